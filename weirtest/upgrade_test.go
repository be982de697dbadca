package weirtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/bridge"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/serde"
)

// upgrade stops all instances and starts them again with another program.
func (d *Driver) upgrade(program func(b *weir.Builder)) {
	d.t.Helper()
	for _, in := range d.instances {
		if in.state == Running {
			in.stop()
		}
	}
	var err error
	if d.runtime, err = bridge.NewRuntime(build(d.t, program), d.opts.Config); err != nil {
		d.t.Fatal(err)
	}
	d.layOut()
	d.start()
}

// layOut makes the topics of the program that are missing.
func (d *Driver) layOut() {
	d.t.Helper()
	counts := d.sim.Topics()
	read, written := d.runtime.Graph.UserTopics()
	var err error
	if d.res, err = d.runtime.Graph.ResolvePartitions(d.runtime.Application, counts); err != nil {
		d.t.Fatal(err)
	}
	missing := append(slices.Clone(d.res.Repartitions), d.res.Changelogs...)
	for _, name := range append(read, written...) {
		missing = append(missing, topology.InternalTopic{Name: name, Partitions: 1})
	}
	for _, topic := range missing {
		if counts[topic.Name] > 0 {
			continue
		}
		counts[topic.Name] = topic.Partitions
		if err := d.sim.CreateTopic(topic.Name, topic.Partitions, topic.Config); err != nil {
			d.t.Fatal(err)
		}
	}
	d.tasks = d.runtime.Tasks(d.res)
}

var othersIn = weir.NewTopic("others", serde.String, serde.String)

// counting counts the records of "in" in a table.
func counting(table *weir.Table[string, int64]) func(b *weir.Builder) {
	return func(b *weir.Builder) { *table = b.Stream(countsIn).GroupByKey().Count("counts") }
}

func newProgram(t *testing.T, program func(b *weir.Builder), opts Options) *Driver {
	t.Helper()
	opts.Partitions = map[string]int32{"others": 1}
	return New(t, build(t, program), opts)
}

// A program that reads one topic more gives its subtopologies other numbers. The
// state that is at hand under the old number is another subtopology's; each
// finds its own in its changelog.
func TestSubtopologiesChangeTheirNumbers(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]Options{"lost": {}, "memory": {Store: Memory()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var table, others weir.Table[string, int64]
			d := newProgram(t, counting(&table), store)
			in, other := d.Input(countsIn), d.Input(othersIn)
			check := func(want, wantOthers int64) {
				t.Helper()
				if n, _ := d.Table(table).Get("k"); n != want {
					t.Errorf("count %d, want %d", n, want)
				}
				if n, _ := d.Table(others).Get("k"); n != wantOthers {
					t.Errorf("count of the others %d, want %d", n, wantOthers)
				}
			}
			both := func(b *weir.Builder) {
				others = b.Stream(othersIn).GroupByKey().Count("other-counts")
				counting(&table)(b)
			}
			in.Send("k", "1")
			in.Send("k", "2")
			other.Send("k", "a")
			d.upgrade(both)
			in.Send("k", "3")
			other.Send("k", "b")
			check(3, 2)
			d.upgrade(func(b *weir.Builder) {
				counting(&table)(b)
				others = b.Stream(othersIn).GroupByKey().Count("other-counts")
			})
			check(3, 2)
			in.Send("k", "4")
			other.Send("k", "c")
			check(4, 3)
			d.Crash()
			d.Start()
			check(4, 3)
		})
	}
}

// A store that is taken out of a program and put back has what its changelog
// has, whether the instance has kept it or not, and keeps it in the next rebuild.
func TestAStoreComesBack(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]Options{"lost": {}, "memory": {Store: Memory()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var table, extra weir.Table[string, int64]
			with := func(b *weir.Builder) {
				counting(&table)(b)
				extra = b.Stream(countsIn).GroupByKey().Count("extra")
			}
			d := newProgram(t, with, store)
			in := d.Input(countsIn)
			check := func(want, wantExtra int64) {
				t.Helper()
				if n, _ := d.Table(table).Get("k"); n != want {
					t.Errorf("count %d, want %d", n, want)
				}
				if n, _ := d.Table(extra).Get("k"); n != wantExtra {
					t.Errorf("the store that came back has %d, want %d", n, wantExtra)
				}
			}
			in.Send("k", "1")
			in.Send("k", "2")
			check(2, 2)
			d.upgrade(counting(&table))
			in.Send("k", "3")
			d.upgrade(with)
			check(3, 2)
			in.SendTombstone("k") // a commit that writes nothing
			d.Instance(0).Stop()
			d.Instance(0).DropState()
			d.Start()
			check(3, 2)
			in.Send("k", "5")
			check(4, 3)
		})
	}
}

// An input of a program without state gets more partitions. With the next start
// they are all read.
func TestPartitionsAreAddedToAStatelessInput(t *testing.T) {
	t.Parallel()
	d := newProgram(t, func(b *weir.Builder) { b.Stream(countsIn).To(othersIn) }, Options{})
	in := d.Input(countsIn)
	in.Send("a", "0")
	d.Instance(0).Stop()
	if err := d.sim.AddPartitions("in", 3); err != nil {
		t.Fatal(err)
	}
	d.layOut()
	d.start()
	for p := range int32(3) {
		in.To(p).Send("a", fmt.Sprint("p", p))
	}
	var got []string
	for _, r := range d.Output(othersIn).All() {
		got = append(got, r.Value)
	}
	slices.Sort(got)
	if want := []string{"0", "p0", "p1", "p2"}; !slices.Equal(got, want) {
		t.Errorf("outputs %v, want %v", got, want)
	}
}

// One of two inputs of a task is set back by a tool, or its offset is deleted. The
// state has what was counted since, so the instance stops instead of counting it
// twice.
func TestOffsetsOfOneInputAreSetBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		store Options
		to    int64
	}{"lost": {Options{}, 0}, "memory": {Options{Store: Memory()}, 0}, "lost, deleted": {Options{}, -1}, "memory, deleted": {Options{Store: Memory()}, -1}} {
		t.Run(name, func(t *testing.T) {
			store := c.store
			t.Parallel()
			var table weir.Table[string, int64]
			store.AllowFailure = true
			d := newProgram(t, func(b *weir.Builder) {
				table = b.Stream(countsIn).Merge(b.Stream(othersIn)).GroupByKey().Count("counts")
			}, store)
			in, other := d.Input(countsIn), d.Input(othersIn)
			in.Send("k", "1")
			other.Send("k", "2")
			d.Instance(0).Stop()
			was := d.sim.Committed("test")
			d.sim.SetOffsets("test", worker.OffsetCommit{TopicPartition: worker.TopicPartition{Topic: "others"}, Offset: c.to, LeaderEpoch: -1})
			d.settling = true
			d.Instance(0).start()
			for d.pass() || d.commit() {
			}
			if s := d.Instance(0).State(); s != Failed {
				t.Fatalf("the instance is %v", s)
			}
			if err := d.Instance(0).Err(); !errors.Is(err, weir.ErrStateMismatch) || !strings.Contains(err.Error(), "others[0]") {
				t.Errorf("the error is %v, want ErrStateMismatch with the partition", err)
			}
			d.settling = false
			at := worker.TopicPartition{Topic: "others"}
			d.sim.SetOffsets("test", worker.OffsetCommit{TopicPartition: at, Offset: was[at].Offset, LeaderEpoch: -1, Metadata: was[at].Metadata})
			d.Start()
			if n, _ := d.Table(table).Get("k"); n != 2 {
				t.Errorf("count %d, want 2", n)
			}
		})
	}
}

// A table of a topic with two partitions shares its subtopology with a topic
// that has more. Its keys are where their hash says for two.
func TestTableBesideATopicWithMorePartitions(t *testing.T) {
	t.Parallel()
	b := weir.NewBuilder()
	table := b.Table("table", tableTopic)
	table.ToStream().Merge(b.Stream(countsIn)).To(othersIn)
	topology, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	d := New(t, topology, Options{Partitions: map[string]int32{"table-in": 2, "in": 5}})
	in := d.Input(tableTopic)
	for i := range 20 {
		in.Send(fmt.Sprint("k", i), "v")
	}
	for i := range 20 {
		if v, _ := d.Table(table).Get(fmt.Sprint("k", i)); v != "v" {
			t.Errorf("k%d has %q", i, v)
		}
	}
}
