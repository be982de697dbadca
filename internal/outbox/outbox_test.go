package outbox

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/internal/wire"
	"github.com/weirstreams/weir/state"
)

func exampleID() ID {
	return ID{Lineage: stamp.Lineage{0: 0xa0, 15: 0xaf}, Task: topology.TaskID{Subtopology: 1, Partition: 300}, Seq: 70000, Nonce: 0xfeed, Index: 2}
}

func exampleSegment() Segment {
	return Segment{
		Head: Head{Lineage: stamp.Lineage{0: 0xa0, 15: 0xaf}, Task: topology.TaskID{Subtopology: 1, Partition: 3}, Seq: 41, Nonce: 7, Prev: 9},
		Outputs: []task.Output{
			{Topic: "out", Partition: -1, Timestamp: 1000, Key: []byte("k"), Value: []byte("v"), Store: -1},
			{Topic: "out", Partition: 2, Timestamp: -1, Key: nil, Value: []byte{}, Store: -1, Headers: []task.Header{{Key: "h", Value: nil}, {Key: "", Value: []byte("x")}}},
			{Topic: "other", Partition: -1, Key: []byte{}, Value: nil, Store: -1},
		},
	}
}

// The layouts are what other programs and later releases read, so the bytes are
// pinned here as docs/formats/outbox.md gives them.
func TestLayouts(t *testing.T) {
	t.Parallel()
	want := strings.Join([]string{
		"01",                               // version
		"a00000000000000000000000000000af", // lineage
		"01", "ac02",                       // task 1_300
		"f0a204",           // seq
		"000000000000feed", // nonce
		"02",               // index
	}, "")
	if got := hex.EncodeToString(exampleID().Append(nil)); got != want {
		t.Errorf("id:\n got %s\nwant %s", got, want)
	}
	s := exampleSegment()
	want = strings.Join([]string{
		"01", "5cdbe157", // version, CRC-32C
		"a00000000000000000000000000000af",         // lineage
		"01", "03", "29", "0000000000000007", "09", // task, seq, nonce, prev
		"03",                                           // outputs
		"036f7574", "01", "d00f", "026b", "0276", "00", // topic, partition, time, key, value, headers
		"00", "04", "01", "00", "01", "02", "0168", "00", "00", "0278",
		"056f74686572", "01", "00", "01", "00", "00",
	}, "")
	if got := hex.EncodeToString(s.Encode()); got != want {
		t.Errorf("segment:\n got %s\nwant %s", got, want)
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, want := range []ID{{}, exampleID(), {Task: topology.TaskID{Subtopology: 1<<31 - 1, Partition: 1<<31 - 1}, Seq: 1<<64 - 1, Nonce: 1<<64 - 1, Index: 1<<32 - 1}} {
		b := want.Append(nil)
		if got, err := ParseID(b); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
		if len(b) > maxIDBytes {
			t.Errorf("an id of %d bytes, and the bound is %d", len(b), maxIDBytes)
		}
	}
	for _, want := range []Segment{{}, exampleSegment()} {
		got, err := Decode(want.Encode())
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v\nwant %+v", got, err, want)
		}
	}
}

// A segment that was cut short or changed is damage, wherever; so is an id.
func TestDamage(t *testing.T) {
	t.Parallel()
	s := exampleSegment()
	good := s.Encode()
	for i := range good {
		if _, err := Decode(good[:i]); !errors.Is(err, state.ErrCorrupt) {
			t.Fatalf("a segment cut at %d: %v", i, err)
		}
		bad := bytes.Clone(good)
		bad[i] ^= 0x10
		if _, err := Decode(bad); !errors.Is(err, state.ErrCorrupt) {
			t.Fatalf("a segment with byte %d changed: %v", i, err)
		}
	}
	newer := bytes.Clone(good)
	newer[0] = segmentVersion + 1
	wire.Seal(newer, 1)
	if _, err := Decode(newer); !errors.Is(err, stamp.ErrNewer) {
		t.Errorf("a segment of a newer layout: %v", err)
	}
	trailing := append(bytes.Clone(good), 0)
	wire.Seal(trailing, 1)
	if _, err := Decode(trailing); !errors.Is(err, state.ErrCorrupt) {
		t.Errorf("a segment with a byte left over: %v", err)
	}
	id := exampleID().Append(nil)
	for i := range id {
		if _, err := ParseID(id[:i]); !errors.Is(err, ErrID) {
			t.Errorf("an id cut at %d: %v", i, err)
		}
	}
	for _, bad := range [][]byte{nil, {}, append(bytes.Clone(id), 0), append([]byte{idVersion + 1}, id[1:]...)} {
		if _, err := ParseID(bad); !errors.Is(err, ErrID) {
			t.Errorf("id %x: %v", bad, err)
		}
	}
}

// What is sent is the same each time, has one id each, and nothing of the segment
// changes by it.
func TestSent(t *testing.T) {
	t.Parallel()
	s := exampleSegment()
	again, err := Decode(s.Encode())
	if err != nil {
		t.Fatal(err)
	}
	one, two := s.Sent(), again.Sent()
	if !reflect.DeepEqual(one, two) {
		t.Errorf("sent\n%+v\nand then\n%+v", one, two)
	}
	for i, o := range one {
		last := o.Headers[len(o.Headers)-1]
		id, err := ParseID(last.Value)
		if want := (ID{s.Lineage, s.Task, s.Seq, s.Nonce, uint32(i)}); err != nil || last.Key != Header || id != want {
			t.Errorf("output %d has the header %s with the id %v (%v), want %v", i, last.Key, id, err, want)
		}
		o.Headers = o.Headers[:len(o.Headers)-1]
		if len(o.Headers) == 0 {
			o.Headers = nil
		}
		if !reflect.DeepEqual(o, s.Outputs[i]) {
			t.Errorf("output %d is %+v, want %+v", i, o, s.Outputs[i])
		}
	}
	if want := exampleSegment(); !reflect.DeepEqual(s, want) {
		t.Errorf("the segment has become %+v", s)
	}
}

func FuzzParseID(f *testing.F) {
	f.Add(exampleID().Append(nil))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := ParseID(b)
		if err != nil {
			return
		}
		if again, err := ParseID(id.Append(nil)); err != nil || again != id {
			t.Fatalf("%x is %+v, and again %+v, %v", b, id, again, err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	s := exampleSegment()
	f.Add(s.Encode(), true)
	f.Add([]byte("short"), false)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= segmentHead { // get past the checksum
			wire.Seal(b, 1)
		}
		s, err := Decode(b)
		if err != nil {
			return
		}
		raw := s.Encode()
		again, err := Decode(raw)
		if err != nil || !reflect.DeepEqual(s, again) {
			t.Fatalf("decoded %+v, and again %+v, %v", s, again, err)
		}
		n := segmentHead + 64
		for i := range s.Outputs {
			n += Size(&s.Outputs[i])
		}
		if len(raw) > n {
			t.Fatalf("a segment of %d bytes, and Size says at most %d", len(raw), n)
		}
	})
}
