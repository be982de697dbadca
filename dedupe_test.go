package weir_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/outbox"
	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/topology"
)

func outputID(lineage byte, partition int32, seq uint64, index uint32) []byte {
	return outbox.ID{Lineage: stamp.Lineage{lineage}, Task: topology.TaskID{Partition: partition}, Seq: seq, Nonce: seq * 7, Index: index}.Append(nil)
}

func TestDeduper(t *testing.T) {
	t.Parallel()
	var d weir.Deduper
	for i, c := range []struct {
		topic     string
		partition int32
		id        []byte
		want      bool
	}{
		{"out", 0, outputID(1, 0, 5, 0), false},
		{"out", 0, outputID(1, 0, 5, 0), true},
		{"out", 1, outputID(1, 0, 5, 0), false}, // another partition
		{"other", 0, outputID(1, 0, 5, 0), false},
		{"out", 0, outputID(1, 1, 5, 0), false}, // another task
		{"out", 0, outputID(1, 0, 5, 3), false},
		{"out", 0, outputID(1, 0, 5, 1), true},
		{"out", 0, outputID(1, 0, 4, 9), true},
		{"out", 0, outputID(1, 0, 37, 0), false},
		{"out", 0, outputID(1, 0, 5, 3), true},
		{"out", 0, outputID(2, 0, 1, 0), false}, // its state was reset
		{"out", 0, outputID(2, 0, 1, 0), true},
		{"out", 0, nil, false},
		{"out", 0, nil, false},
		{"out", 0, []byte("another's"), false},
		{"out", 0, []byte("another's"), false},
	} {
		if got := d.Repeated(c.topic, c.partition, c.id); got != c.want {
			t.Errorf("%d: Repeated(%s, %d, %x) = %t, want %t", i, c.topic, c.partition, c.id, got, c.want)
		}
	}
}

// What a Deduper remembers is bounded: the longest unused goes.
func TestDeduperIsBounded(t *testing.T) {
	t.Parallel()
	var d weir.Deduper
	const bound = 100_000
	for i := range bound + 1 {
		if d.Repeated("out", int32(i), outputID(1, 0, 9, 0)) {
			t.Fatalf("partition %d was never read", i)
		}
		if i > 0 {
			d.Repeated("out", 1, outputID(1, 0, 9, 0)) // stays in use
		}
	}
	if d.Repeated("out", 0, outputID(1, 0, 9, 0)) {
		t.Error("partition 0 is still remembered")
	}
	for _, p := range []int32{1, 3, bound} {
		if !d.Repeated("out", p, outputID(1, 0, 9, 0)) {
			t.Errorf("partition %d is forgotten", p)
		}
	}
}

// A reader of the outputs of an application that runs with AtLeastOnce and its
// state in Redis drops those that were sent twice.
func ExampleDeduper() {
	type record struct {
		partition int32
		id        []byte // the value of the header weir.HeaderID
		value     string
	}
	// The process died after it had sent the second record, and did not know that it
	// was written. Its successor has sent it again.
	records := []record{
		{0, exampleID(1, 0), "one"},
		{0, exampleID(1, 1), "two"},
		{0, exampleID(1, 1), "two"},
		{0, exampleID(2, 0), "three"},
	}
	var d weir.Deduper
	for _, r := range records {
		if d.Repeated("totals", r.partition, r.id) {
			continue
		}
		fmt.Println(r.value)
	}
	// Output:
	// one
	// two
	// three
}

// exampleID makes an id as docs/formats/outbox.md describes it.
func exampleID(batch, index byte) []byte {
	id := append([]byte{1}, make([]byte, 16)...) // layout, lineage
	id = append(id, 0, 3, batch)                 // task 0_3, batch
	id = binary.BigEndian.AppendUint64(id, 42)   // nonce
	return append(id, index)
}
