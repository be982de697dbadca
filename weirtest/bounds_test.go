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
	b := weir.NewBuilder()
	b.Stream(countsIn).To(othersIn)
	topology, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
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
