package weirtest

import (
	"strings"
	"testing"
	"time"

	weir "github.com/weirstreams/weir"
)

// MaxBatchBytes is a bound for all tasks of an instance together, however many
// there are.
func TestMaxBatchBytesIsForAllTasks(t *testing.T) {
	t.Parallel()
	topology := build(t, func(b *weir.Builder) { b.Stream(countsIn).To(othersIn) })
	d := New(t, topology, Options{CommitOnClock: true, Partitions: map[string]int32{"in": 4},
		Config: weir.Config{MaxBatchBytes: 1 << 20, CommitInterval: 5 * time.Second}})
	d.Advance(time.Minute) // the first offsets are committed
	in := d.Input(countsIn)
	send := func(size int) {
		d.Batch(func() {
			for p := range int32(4) {
				for range 6 {
					in.To(p).Send("k", strings.Repeat("x", size))
				}
			}
		})
	}
	out := d.Output(othersIn)
	send(10_000)
	if n := len(out.Read()); n != 0 {
		t.Errorf("%d records of a small batch are there before its time", n)
	}
	send(100_000)
	if n := len(out.Read()); n != 2*24 {
		t.Errorf("%d records are there, want 48: the batch is larger than MaxBatchBytes", n)
	}
}

// A task that waits for one of its inputs does not gather all of the other:
// MaxBufferedRecords is reached, and passed by what one poll brings at most.
// When the wait is over everything is processed.
func TestMaxBufferedRecordsBoundsWhatWaits(t *testing.T) {
	t.Parallel()
	topology := build(t, func(b *weir.Builder) { b.Stream(countsIn).Merge(b.Stream(othersIn)).To(chainOut) })
	const bound, n = 20, 500
	d := New(t, topology, Options{Partitions: map[string]int32{"in": 1, othersIn.Name(): 1, "out": 1},
		Config: weir.Config{MaxBufferedRecords: bound, MaxTaskIdle: time.Hour}})
	in, out := d.Input(countsIn), d.Output(chainOut)
	d.Batch(func() {
		for range n {
			in.Send("k", "x")
		}
	})
	d.Advance(time.Minute)
	if got := d.Instance(0).client.Fetched(); got < bound || got > 2*bound {
		t.Errorf("%d records were fetched while the other input is empty, want %d to %d", got, bound, 2*bound)
	}
	if !out.Empty() {
		t.Error("the task did not wait")
	}
	d.Advance(2 * time.Hour)
	if got := len(out.Read()); got != n {
		t.Errorf("%d records came out, want %d", got, n)
	}
}
