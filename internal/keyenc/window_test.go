package keyenc

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"
)

// Keys as Kafka Streams 4.4.0 wrote them: tumbling 10 ms, then sessions with a
// gap of 5 ms, key "ab".
func TestWindowKeysAreKafkaStreams(t *testing.T) {
	t.Parallel()
	ab := []byte("ab")
	for _, c := range []struct {
		what string
		got  []byte
		want string
	}{
		{"window store key, record @12", AppendWindowStoreKey(nil, ab, 10, 0), "6162000000000000000a00000000"},
		{"window key, record @12", AppendWindowKey(nil, ab, 10), "6162000000000000000a"},
		{"window store key, record @25", AppendWindowStoreKey(nil, ab, 20, 0), "6162000000000000001400000000"},
		{"join store key, second duplicate", AppendWindowStoreKey(nil, []byte("k"), 1, 2), "6b000000000000000100000002"},
		{"session @12", AppendSessionKey(nil, ab, 12, 12), "6162000000000000000c000000000000000c"},
		{"session @12 and @16", AppendSessionKey(nil, ab, 12, 16), "61620000000000000010000000000000000c"},
	} {
		if got := hex.EncodeToString(c.got); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

func TestWindowKeyRoundTrip(t *testing.T) {
	t.Parallel()
	times := []int64{0, 1, 255, 256, 1700000000000, math.MaxInt64}
	for _, key := range []string{"", "a", "ab\x00", "\xff\xff", strings.Repeat("k", 1000)} {
		for _, start := range times {
			b := AppendWindowKey([]byte("x"), []byte(key), start)[1:]
			k, s, err := DecodeWindowKey(b)
			if err != nil || string(k) != key || s != start {
				t.Errorf("window key %.8q %d came back as %.8q %d, %v", key, start, k, s, err)
			}
			for _, seq := range []int32{0, 1, math.MaxInt32} {
				b := AppendWindowStoreKey([]byte("x"), []byte(key), start, seq)[1:]
				k, s, q, err := DecodeWindowStoreKey(b)
				if err != nil || string(k) != key || s != start || q != seq {
					t.Errorf("window store key %.8q %d %d came back as %.8q %d %d, %v", key, start, seq, k, s, q, err)
				}
			}
			for _, end := range times {
				if end < start {
					continue
				}
				b := AppendSessionKey([]byte("x"), []byte(key), start, end)[1:]
				k, s, e, err := DecodeSessionKey(b)
				if err != nil || string(k) != key || s != start || e != end {
					t.Errorf("session key %.8q %d %d came back as %.8q %d %d, %v", key, start, end, k, s, e, err)
				}
			}
		}
	}
}

func TestWindowKeyErrors(t *testing.T) {
	t.Parallel()
	window := func(b []byte) error { _, _, err := DecodeWindowKey(b); return err }
	store := func(b []byte) error { _, _, _, err := DecodeWindowStoreKey(b); return err }
	session := func(b []byte) error { _, _, _, err := DecodeSessionKey(b); return err }
	for _, c := range []struct {
		decode    func([]byte) error
		hex, want string
	}{
		{window, "", "malformed windowed key: want at least 8 bytes: 0 bytes "},
		{window, "00000000000001", "malformed windowed key: want at least 8 bytes: 7 bytes 00000000000001"},
		{window, "61ffffffffffffffff", "malformed windowed key: the start -1 is negative: 9 bytes 61ffffffffffffffff"},
		{store, "0000000000000000000000", "malformed window store key: want at least 12 bytes: 11 bytes 0000000000000000000000"},
		{store, "61800000000000000000000000", "malformed window store key: the start -9223372036854775808 is negative: 13 bytes 61800000000000000000000000"},
		{store, "610000000000000000ffffffff", "malformed window store key: the sequence number -1 is negative: 13 bytes 610000000000000000ffffffff"},
		{session, "000000000000000000000000000000", "malformed session key: want at least 16 bytes: 15 bytes 000000000000000000000000000000"},
		{session, "ffffffffffffffff0000000000000000", "malformed session key: the end -1 is negative: 16 bytes ffffffffffffffff0000000000000000"},
		{session, "0000000000000000ffffffffffffffff", "malformed session key: the start -1 is negative: 16 bytes 0000000000000000ffffffffffffffff"},
		{session, "00000000000000010000000000000002", "malformed session key: it starts at 2, after its end 1: 16 bytes 00000000000000010000000000000002"},
		{
			session, "000000000000000100000000000000020000000000000001000000000000000200000003",
			"malformed session key: it starts at 8589934595, after its end 4294967296: 36 bytes 0000000000000001000000000000000200000000000000010000000000000002...",
		},
	} {
		err := c.decode(unhex(t, c.hex))
		if err == nil || err.Error() != c.want || !errors.Is(err, ErrMalformed) {
			t.Errorf("%s:\n got %v\nwant %s", c.hex, err, c.want)
		}
	}
}

// An append to a decoded key must not overwrite the time behind it.
func TestDecodedKeyIsClipped(t *testing.T) {
	t.Parallel()
	b := AppendWindowKey(nil, []byte("ab"), 10)
	before := bytes.Clone(b)
	key, _, err := DecodeWindowKey(b)
	if err != nil {
		t.Fatal(err)
	}
	if key = append(key, "zzz"...); !bytes.Equal(b, before) {
		t.Errorf("appending to the key made the source %x (key now %q)", b, key)
	}
}
