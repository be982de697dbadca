package simkafka

import (
	"slices"
	"testing"
	"time"

	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/worker"
)

// A transaction is decided, and the logs learn of it one by one. The producer
// waits for its markers before it goes on.
func TestMarkersThatAreHeld(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, nil)
	ends := func() (list []int64) {
		t.Helper()
		for p := range int32(2) {
			bounds, err := b.Bounds(tp(p))
			b.must(err)
			list = append(list, bounds.End)
		}
		return list
	}
	want := func(what string, want ...int64) {
		t.Helper()
		if got := ends(); !slices.Equal(got, want) {
			t.Errorf("%s: last stable offsets %v, want %v", what, got, want)
		}
	}
	tx := b.Transaction("tx", time.Minute)
	both := func(value string) {
		t.Helper()
		for p := range int32(2) {
			b.must(tx.Append(tp(p), task.Record{Key: []byte("k"), Value: []byte(value)}))
		}
	}
	both("1")
	b.HoldMarkers(true)
	b.must(tx.Commit())
	want("decided", 0, 0)
	if n := len(b.Markers()); n != 2 {
		t.Fatalf("%d markers are held, want 2: %v", n, b.Markers())
	}
	b.Mark(1)
	want("one marker arrived", 0, 2)
	both("2")
	want("the producer went on", 2, 2)
	b.must(tx.Abort())
	b.HoldMarkers(false)
	want("none is held", 4, 4)
	for p := range int32(2) {
		records, err := b.ReadCommitted(tp(p))
		b.must(err)
		if len(records) != 1 || string(records[0].Value) != "1" {
			t.Errorf("partition %d has %v", p, records)
		}
	}
}

// The offsets of a transaction count when their marker arrives, and a stable
// fetch waits for it.
func TestMarkersOfOffsets(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, nil)
	w := b.start(1, "tx")
	b.settle(w)
	b.HoldMarkers(true)
	b.must(w.Begin())
	w.produce(0, "a=1")
	b.must(w.Flush(ctx))
	if o, err := w.commit(at(0, 7, "m")); o != worker.Done || err != nil {
		t.Fatalf("commit: %v, %v", o, err)
	}
	if _, err := w.Committed(ctx, []worker.TopicPartition{tp(0)}); err == nil {
		t.Error("a stable fetch does not wait")
	}
	if n := b.MarkOffsets(); n != 1 {
		t.Errorf("%d markers of offsets, want 1", n)
	}
	found, err := w.Committed(ctx, []worker.TopicPartition{tp(0)})
	if err != nil || found[tp(0)].Offset != 7 {
		t.Errorf("committed: %v, %v", found, err)
	}
	b.want("log", b.log(tp(0)), "0:a=1?")
	b.HoldMarkers(false)
	b.want("log", b.log(tp(0)), "0:a=1 1:C")
}
