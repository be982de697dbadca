package keyenc

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

func added(v string) Change   { return Change{New: []byte(v), HasNew: true} }
func removed(v string) Change { return Change{Old: []byte(v), HasOld: true} }
func both(added, old string) Change {
	return Change{New: []byte(added), Old: []byte(old), HasNew: true, HasOld: true}
}

// Values of repartition topics as Kafka Streams 4.4.0 wrote them, and the edges.
func TestChange(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 64)
	for _, c := range []struct {
		change Change
		hex    string
	}{
		{added("a1"), "613101"},
		{both("a2", "a1"), "046132613102"},
		{removed("a2"), "613200"},
		{added("b1"), "623101"},
		{removed("b1"), "623100"},
		{added(""), "01"},
		{removed(""), "00"},
		{both("", ""), "0002"},
		{both("", "a"), "006102"},
		{both("a", ""), "026102"},
		{both(long, "o"), "8001" + strings.Repeat("6e", 64) + "6f02"}, // 64 zigzags to 128
		{added("\x02"), "0201"},
	} {
		got, err := AppendChange([]byte("x"), c.change)
		if err != nil || hex.EncodeToString(got[1:]) != c.hex || got[0] != 'x' {
			t.Errorf("AppendChange(%+v) = %x, %v, want 78 and %s", c.change, got, err, c.hex)
		}
		back, err := DecodeChange(unhex(t, c.hex))
		if err != nil || !sameChange(back, c.change) {
			t.Errorf("DecodeChange(%s) = %+v, %v, want %+v", c.hex, back, err, c.change)
		}
	}
}

func sameChange(a, b Change) bool {
	return a.HasNew == b.HasNew && a.HasOld == b.HasOld && bytes.Equal(a.New, b.New) && bytes.Equal(a.Old, b.Old)
}

func TestChangeErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ hex, want string }{
		{"", "the flag byte is missing"},
		{"02", "is cut off or too long"},
		{"8002", "is cut off or too long"},
		{"80808080800002", "is cut off or too long"}, // six bytes where Java reads five
		{"0102", "the new value should have -1 bytes, and 0 follow"},
		{"046102", "the new value should have 2 bytes, and 1 follow"},
		{"feffffff0f6102", "the new value should have 2147483647 bytes, and 1 follow"},
		{"613103", "flag 3 is one that Kafka Streams reserves"},
		{"04613261310105", "flag 5 is one that Kafka Streams reserves"},
		{"6106", "unknown flag 6"},
		{"61ff", "unknown flag 255"},
	} {
		got, err := DecodeChange(unhex(t, c.hex))
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, ErrMalformed) {
			t.Errorf("DecodeChange(%s): %v, want it to say %q", c.hex, err, c.want)
		}
		if !sameChange(got, Change{}) {
			t.Errorf("DecodeChange(%s) = %+v with its error", c.hex, got)
		}
	}
	got, err := AppendChange([]byte("x"), Change{New: []byte("ignored")})
	if err == nil || string(got) != "x" {
		t.Errorf("AppendChange of nothing = %q, %v", got, err)
	}
}

// The error on a large value shows its head alone.
func TestMalformedIsBounded(t *testing.T) {
	t.Parallel()
	_, err := DecodeChange(append(bytes.Repeat([]byte("v"), 1<<20), 9))
	want := "malformed change: unknown flag 9: 1048577 bytes " + strings.Repeat("76", 32) + "..."
	if err == nil || err.Error() != want {
		t.Errorf("got %.200v\nwant %s", err, want)
	}
}

func TestDecodedChangeIsClipped(t *testing.T) {
	t.Parallel()
	src := unhex(t, "046132613102")
	c, err := DecodeChange(src)
	if err != nil {
		t.Fatal(err)
	}
	before := bytes.Clone(src)
	c.New, c.Old = append(c.New, "zz"...), append(c.Old, "zz"...)
	if !bytes.Equal(src, before) {
		t.Errorf("appending to the values made the source %x", src)
	}
}
