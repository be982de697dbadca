package weirtest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/worker"
)

// Records are deleted under a running task, whose topic is to be read from the
// end then. That is done once: what comes later is read, also if the instance
// dies before it has processed any of it.
func TestPositionOutsideTheLogIsResetOnce(t *testing.T) {
	t.Parallel()
	topology := build(t, func(b *weir.Builder) { b.Stream(countsIn, weir.StartAt(weir.Latest)).To(othersIn) })
	d := New(t, topology, Options{})
	in, tp := d.Input(countsIn), worker.TopicPartition{Topic: "in"}
	in.Send("k", "0")
	d.Batch(func() {
		for i := range 5 {
			in.Send("k", fmt.Sprint("lost ", i))
		}
		if err := d.sim.DeleteBelow(tp, 4); err != nil {
			t.Fatal(err)
		}
	})
	if o := d.sim.Committed("test")[tp]; o.Offset != 6 {
		t.Errorf("the group has the offset %d, want 6: the end of the log", o.Offset)
	}
	d.Crash()
	in.Send("k", "1")
	d.Start()
	in.Send("k", "2")
	var got []string
	for _, r := range d.Output(othersIn).All() {
		got = append(got, r.Value)
	}
	if want := []string{"0", "1", "2"}; !slices.Equal(got, want) {
		t.Errorf("outputs %v, want %v", got, want)
	}
}

// The last records of an input are compacted away before they were read. Nothing
// comes from there any more, and the other input of the task does not wait for
// it.
func TestInputWhoseEndIsCompactedAway(t *testing.T) {
	t.Parallel()
	topology := build(t, func(b *weir.Builder) { b.Stream(tableTopic).Merge(b.Stream(countsIn)).To(othersIn) })
	d := New(t, topology, Options{TopicConfigs: map[string]map[string]string{"table-in": {"cleanup.policy": "compact", "delete.retention.ms": "0"}}})
	in, gone := d.Input(countsIn), d.Input(tableTopic)
	d.Instance(0).Stop()
	gone.Send("a", "1")
	gone.SendTombstone("a")
	d.Compact()
	d.Compact()
	in.Send("b", "1")
	d.Start()
	d.Advance(time.Second)
	if v, _ := d.Output(othersIn).Last("b"); v != "1" {
		t.Errorf("the record of the other input is not processed: %v", d.Output(othersIn).All())
	}
	gone.Send("a", "2")
	if v, _ := d.Output(othersIn).Last("a"); v != "2" {
		t.Errorf("the next record of the input is not processed: %v", d.Output(othersIn).All())
	}
}
