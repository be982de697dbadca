package weirtest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state"
)

// The tests of the files sit_*_test.go are situations that broke other stream
// processors, by their numbers: what the situation is, what went wrong there,
// and the right value here.
//
// Most of them run a topology that counts the records of each key in the store
// "counts" and writes each count to "out". A record that is lost, or counted
// twice, is visible in all that follows for its key.
var (
	countsIn  = weir.NewTopic("in", serde.String, serde.String)
	countsOut = weir.NewTopic("out", serde.String, serde.Int64)
)

// build builds the topology of a program.
func build(t testing.TB, program func(b *weir.Builder)) *weir.Topology {
	t.Helper()
	b := weir.NewBuilder()
	program(b)
	topology, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return topology
}

// counter is a run of the counting topology.
type counter struct {
	*Driver
	in    Input[string, string]
	out   *Output[string, int64]
	table weir.Table[string, int64]
	sent  map[string]int64 // by key
	n     int              // next number of send
}

// newCounter runs the topology on so many partitions.
func newCounter(t testing.TB, partitions int32, opts Options) *counter {
	t.Helper()
	b := weir.NewBuilder()
	table := b.Stream(countsIn).GroupByKey().Count("counts")
	table.ToStream().To(countsOut)
	topology, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	opts.Partitions = map[string]int32{"in": partitions, "out": partitions}
	d := New(t, topology, opts)
	return &counter{Driver: d, in: d.Input(countsIn), out: d.Output(countsOut), table: table, sent: map[string]int64{}}
}

// send sends n records to the given number of keys in turn, as one batch.
func (c *counter) send(n, keys int) {
	c.t.Helper()
	c.Batch(func() {
		for range n {
			key := fmt.Sprint("k", c.n%keys)
			c.n++
			c.sent[key]++
			c.in.Send(key, "")
		}
	})
}

// check compares outputs and table with what was sent: the counts of each key
// are 1, 2, 3, ... to the last.
func (c *counter) check() {
	c.t.Helper()
	got := map[string][]int64{}
	for _, r := range c.out.All() {
		got[r.Key] = append(got[r.Key], r.Value)
	}
	for key, n := range c.sent {
		if want := upTo(n); !slices.Equal(got[key], want) {
			c.t.Errorf("outputs of %s: %v, want 1 to %d in order", key, got[key], n)
		}
	}
	if len(got) != len(c.sent) {
		c.t.Errorf("outputs of %d keys, want %d", len(got), len(c.sent))
	}
	c.checkTable()
}

// checkTable compares the table with what was sent.
func (c *counter) checkTable() {
	c.t.Helper()
	entries := c.Table(c.table).Entries()
	for _, e := range entries {
		if n := c.sent[e.Key]; e.Value != n {
			c.t.Errorf("table: %s has %d, want %d", e.Key, e.Value, n)
		}
	}
	if len(entries) != len(c.sent) {
		c.t.Errorf("table: %d keys, want %d", len(entries), len(c.sent))
	}
}

// upTo returns 1 to n.
func upTo(n int64) []int64 {
	list := make([]int64, n)
	for i := range list {
		list[i] = int64(i) + 1
	}
	return list
}

// stepwise makes time the test's own until it calls the function that it gets:
// nothing happens but in rounds.
func (d *Driver) stepwise() (end func()) {
	d.settling = true
	return func() {
		d.t.Helper()
		d.settling = false
		d.settle()
	}
}

// rounds lets all instances work for a span of virtual time, under stepwise.
func (d *Driver) rounds(span time.Duration) {
	d.t.Helper()
	for end := d.clock.now.Add(span); d.clock.now.Before(end); d.clock.now = d.clock.now.Add(recoveryStep) {
		for d.pass() || d.commit() {
		}
	}
}

// tasks lists what an instance does, as in "0_0 restoring".
func (in *Instance) taskStates() []string {
	var list []string
	for _, s := range in.worker.Tasks() {
		list = append(list, s.ID.String()+" "+s.State)
	}
	return list
}

// partitionOf names a partition of a topic.
func partitionOf(topic string, p int32) worker.TopicPartition {
	return worker.TopicPartition{Topic: topic, Partition: p}
}

// storedKeys returns what a backend holds of a task, committed or not, without
// the help of the runtime.
func storedKeys(t testing.TB, b state.Backend, task string) map[string]string {
	t.Helper()
	found := map[string]string{}
	it := b.Committed(state.ID{Application: "test", Task: task}).Iterate(context.Background(), state.Range{})
	for it.Next() {
		found[string(it.Key())] = string(it.Value())
	}
	if err := it.Err(); err != nil {
		t.Fatal(err)
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	return found
}
