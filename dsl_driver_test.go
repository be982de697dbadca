package weir

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weirstreams/weir/internal/keyenc"
	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
)

// driver runs the tasks of a topology in the test's goroutine: it hands records
// in, commits after each, and carries what is produced to the topics that are
// read, by the partition of the key.
type driver struct {
	t       testing.TB
	top     *Topology
	res     *topology.Resolved
	tasks   []*task.Task
	views   map[topology.TaskID]state.View
	log     []task.Output // everything produced, changelogs included
	offsets map[string]int64
	now     int64
	onError func(*task.Error) task.Decision
	err     error // of a task that failed
}

const (
	driverApp        = "app"
	driverDeadLetter = "dead"
)

// start builds the topology and makes its tasks. counts are the partitions of
// source topics; those that are not named have one.
func start(t testing.TB, counts map[string]int32, declare func(b *Builder), onError ...func(*task.Error) task.Decision) *driver {
	t.Helper()
	b := NewBuilder()
	declare(b)
	top, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	d := &driver{t: t, top: top, offsets: map[string]int64{}, views: map[topology.TaskID]state.View{}}
	if len(onError) > 0 {
		d.onError = onError[0]
	}
	all := map[string]int32{}
	read, _ := top.graph.UserTopics()
	for _, name := range read {
		all[name] = max(counts[name], 1)
	}
	if d.res, err = top.graph.ResolvePartitions(driverApp, all); err != nil {
		t.Fatal(err)
	}
	backend := memstore.New()
	t.Cleanup(func() { _ = backend.Close() })
	for i, plan := range top.plans(driverApp) {
		for p := range d.res.Tasks[i] {
			tk, err := d.newTask(backend, plan, p)
			if err != nil {
				t.Fatal(err)
			}
			d.tasks = append(d.tasks, tk)
		}
	}
	return d
}

func (d *driver) newTask(backend state.Backend, plan *task.Plan, partition int32) (*task.Task, error) {
	id := topology.TaskID{Subtopology: plan.Subtopology, Partition: partition}
	cfg := task.Config{ID: id, MaxTaskIdle: -1, MaxRecordBytes: 1 << 20, CacheBytes: 1 << 20, MaxBatchBytes: 1 << 24,
		DeadLetterTopic: driverDeadLetter, OnError: d.onError}
	st := task.State{}
	for _, in := range plan.Inputs {
		cfg.Present = append(cfg.Present, partition < d.res.Partitions[in])
		st.Positions = append(st.Positions, 0)
	}
	if len(plan.Stores) > 0 {
		st.Decoded = stamp.Token{Epoch: 1}
		st.Token = st.Decoded.Encode()
		view, err := backend.Claim(context.Background(), state.ID{Application: driverApp, Task: id.String()}, "", st.Token)
		if err != nil {
			return nil, err
		}
		st.View, d.views[id] = view, view
	}
	return task.New(context.Background(), cfg, plan, st, d.now)
}

// send hands in a record and waits until everything that comes of it is done.
// Its partition is that of the key.
func (d *driver) send(topic string, key, value []byte, ts int64, headers ...task.Header) {
	d.t.Helper()
	if d.err != nil {
		d.t.Fatalf("the driver has failed: %v", d.err)
	}
	d.deliver(topic, key, value, ts, headers)
	d.settle()
}

// deliver puts a record on a topic that is read.
func (d *driver) deliver(topic string, key, value []byte, ts int64, headers []task.Header) {
	n, read := d.res.Partitions[topic]
	if !read {
		return
	}
	partition := int32(0)
	if key != nil {
		partition = keyenc.Partition(key, n)
	}
	at := topic + "/" + strconv.Itoa(int(partition))
	for _, tk := range d.tasks {
		if input := slices.Index(tk.Plan().Inputs, topic); input >= 0 && tk.ID().Partition == partition {
			tk.Add(input, task.Record{Offset: d.offsets[at], Timestamp: ts, Key: key, Value: value, Headers: headers})
		}
	}
	d.offsets[at]++
}

// settle steps all tasks until none has anything to do.
func (d *driver) settle() {
	for again := true; again && d.err == nil; {
		again = false
		for _, tk := range d.tasks {
			e, err := tk.Step(d.now, 1000)
			if err != nil {
				d.err = err
				return
			}
			if e.Records > 0 || len(e.Outputs) > 0 {
				again = true
				d.commit(tk, e)
			}
		}
	}
}

// advance moves the wall clock.
func (d *driver) advance(ms int64) {
	d.t.Helper()
	d.now += ms
	for _, tk := range d.tasks {
		e, err := tk.Punctuate(d.now)
		if err != nil {
			d.err = err
			return
		}
		d.commit(tk, e)
	}
	d.settle()
}

// commit does what the worker does at the end of a batch.
func (d *driver) commit(tk *task.Task, e task.Effects) {
	d.t.Helper()
	var out []task.Output
	add := func(list []task.Output) {
		for _, o := range list {
			o.Key, o.Value = slices.Clone(o.Key), slices.Clone(o.Value) // they live no longer than the batch
			out = append(out, o)
		}
	}
	add(e.Outputs)
	tk.Seal(1, add)
	tk.Committed(nil)
	if tk.Behind() {
		old, token, batch := tk.Flush(d.now)
		if err := d.views[tk.ID()].Apply(context.Background(), old, token, batch); err != nil {
			d.t.Fatal(err)
		}
		tk.Flushed(token)
	}
	d.log = append(d.log, out...)
	for _, o := range out {
		d.deliver(o.Topic, o.Key, o.Value, o.Timestamp, o.Headers)
	}
}

// take returns what was produced to a topic since the last call.
func (d *driver) take(topic string) []task.Output {
	var taken []task.Output
	d.log = slices.DeleteFunc(d.log, func(o task.Output) bool {
		if o.Topic == topic {
			taken = append(taken, o)
		}
		return o.Topic == topic
	})
	return taken
}

// drops returns how many records were dropped for a reason, "" for any.
func (d *driver) drops(reason string) int64 {
	var n int64
	for _, tk := range d.tasks {
		for _, c := range tk.Stats().Drops {
			if reason == "" || c.Reason == reason {
				n += c.N
			}
		}
	}
	return n
}

// show formats records as key=value @timestamp, decoded with serdes.
func show[K, V any](key serde.Serde[K], value serde.Serde[V]) func(task.Output) string {
	return func(o task.Output) string {
		k, v := "null", "null"
		if o.Key != nil {
			d, err := key.Decode(o.Key)
			k = fmt.Sprint(d)
			if err != nil {
				k = err.Error()
			}
		}
		if o.Value != nil {
			d, err := value.Decode(o.Value)
			v = fmt.Sprint(d)
			if err != nil {
				v = err.Error()
			}
		}
		return fmt.Sprintf("%s=%s @%d", k, v, o.Timestamp)
	}
}

var showStrings, showCounts = show(serde.String, serde.String), show(serde.String, serde.Int64)

// row is an input "topic key=value @ts", where the topic defaults to "in", and
// what comes of it on topic "out", with " (dropped +n)" behind it if records
// were dropped, or "-".
type row struct{ in, out string }

func (d *driver) rows(show func(task.Output) string, rows []row) {
	d.t.Helper()
	for i, r := range rows {
		before := d.drops("") - d.drops(dropNoChange)
		topic, key, value, ts := parseInput(d.t, r.in)
		d.send(topic, key, value, ts)
		if d.err != nil {
			d.t.Fatalf("row %d, %s: %v", i+1, r.in, d.err)
		}
		if got := d.shown(show, before); got != r.out {
			d.t.Errorf("row %d, %s: got %s, want %s", i+1, r.in, got, r.out)
		}
	}
}

func (d *driver) shown(show func(task.Output) string, before int64) string {
	var out []string
	for _, o := range d.take("out") {
		out = append(out, show(o))
	}
	got := strings.Join(out, "; ")
	if got == "" {
		got = "-"
	}
	if n := d.drops("") - d.drops(dropNoChange) - before; n > 0 {
		got += fmt.Sprintf(" (dropped +%d)", n)
	}
	return got
}

func parseInput(t testing.TB, in string) (topic string, key, value []byte, ts int64) {
	t.Helper()
	f := strings.Fields(in)
	topic = "in"
	if len(f) == 3 {
		topic, f = f[0], f[1:]
	}
	k, v, ok := strings.Cut(f[0], "=")
	ts, err := strconv.ParseInt(strings.TrimPrefix(f[1], "@"), 10, 64)
	if !ok || err != nil {
		t.Fatalf("bad input %q", in)
	}
	return topic, orNull(k), orNull(v), ts
}

func orNull(s string) []byte {
	if s == "null" {
		return nil
	}
	return []byte(s)
}

// The topics of most tests.
var (
	in        = NewTopic("in", serde.String, serde.String)
	out       = NewTopic("out", serde.String, serde.String)
	outCounts = NewTopic("out", serde.String, serde.Int64)
)
