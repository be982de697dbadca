package simkafka

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/internal/worker"
)

// testClock stands still until it is moved.
type testClock struct{ now time.Time }

func (c *testClock) Now() time.Time { return c.now }

// bench is a cluster with a clock and one topic.
type bench struct {
	*Cluster
	t     *testing.T
	clock *testClock
	hook  func(Call) Fault
}

func newBench(t *testing.T, partitions int32, config map[string]string) *bench {
	t.Helper()
	b := &bench{t: t, clock: &testClock{time.UnixMilli(1_000_000)}}
	b.Cluster = New(Config{Clock: b.clock, Hook: func(c Call) Fault {
		if b.hook == nil {
			return Fault{}
		}
		return b.hook(c)
	}})
	b.must(b.CreateTopic("t", partitions, config))
	return b
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) pass(d time.Duration) {
	b.clock.now = b.clock.now.Add(d)
	b.expire()
}

func tp(n int32) worker.TopicPartition { return worker.TopicPartition{Topic: "t", Partition: n} }

// kv makes records of words like k=v and, for a tombstone, k.
func kv(words ...string) []task.Record {
	var list []task.Record
	for _, w := range words {
		k, v, ok := strings.Cut(w, "=")
		r := task.Record{Key: []byte(k)}
		if ok {
			r.Value = []byte(v)
		}
		list = append(list, r)
	}
	return list
}

// text writes records as offset:key=value, with C and A for markers.
func text(records []task.Record) string {
	var words []string
	for _, r := range records {
		w := fmt.Sprintf("%d:", r.Offset)
		switch {
		case r.Control:
			w += "*"
		case r.Value == nil:
			w += string(r.Key)
		default:
			w += string(r.Key) + "=" + string(r.Value)
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

// log writes a partition with everything in it.
func (b *bench) log(p worker.TopicPartition) string {
	entries, err := b.Log(p)
	b.must(err)
	var words []string
	for _, e := range entries {
		w := text([]task.Record{e.Record})
		switch {
		case e.Control && e.Commit:
			w = strings.TrimSuffix(w, "*") + "C"
		case e.Control:
			w = strings.TrimSuffix(w, "*") + "A"
		case e.Open:
			w += "?"
		case e.Aborted:
			w += "!"
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

func (b *bench) committed(p worker.TopicPartition) string {
	records, err := b.ReadCommitted(p)
	b.must(err)
	return text(records)
}

func (b *bench) want(what, got, want string) {
	b.t.Helper()
	if got != want {
		b.t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

func (b *bench) wantBounds(p worker.TopicPartition, want worker.Bounds) {
	b.t.Helper()
	got, err := b.Bounds(p)
	b.must(err)
	if got != want {
		b.t.Errorf("bounds of %s: got %+v, want %+v", name(p), got, want)
	}
}

// fakeWorker is the owner of a member: it hears of the group and remembers.
type fakeWorker struct {
	*Member
	b       *bench
	has     map[worker.TopicPartition]bool
	heard   []string
	waiting int
	inPoll  bool
	proc    assign.ProcessID
}

var _ worker.Listener = (*fakeWorker)(nil)

// start builds a process with one member. Tasks are one for each partition.
func (b *bench) start(process byte, txnID string) *fakeWorker {
	b.t.Helper()
	cl := b.Client(ClientConfig{Name: fmt.Sprintf("p%d", process), SessionTimeout: 10 * time.Second, RebalanceTimeout: 30 * time.Second, TransactionTimeout: 5 * time.Second})
	return b.startOn(cl, process, txnID)
}

func (b *bench) startOn(cl *Client, process byte, txnID string) *fakeWorker {
	b.t.Helper()
	w := &fakeWorker{b: b, has: map[worker.TopicPartition]bool{}, proc: assign.ProcessID{process}}
	m, err := cl.Join(context.Background(), worker.MemberConfig{
		Group: "g", TransactionalID: txnID, Topics: []string{"t"}, Listener: w,
		UserData: func() assign.UserData {
			return assign.UserData{Version: assign.Version, ProcessID: w.proc, Topology: assign.Topology{1}, Capacity: 1}
		},
		Tasks: func(counts map[string]int32) ([]assign.Task, error) {
			n := b.Topics()["t"]
			if c := counts["t"]; c != 0 && c != n {
				return nil, fmt.Errorf("%d partitions", c)
			}
			var tasks []assign.Task
			for p := range n {
				tasks = append(tasks, assign.Task{ID: topology.TaskID{Partition: p}, Stateful: true, Partitions: []assign.TopicPartition{{Topic: "t", Partition: p}}})
			}
			return tasks, nil
		},
	})
	b.must(err)
	w.Member = m.(*Member)
	return w
}

func (w *fakeWorker) call(what string, tps []worker.TopicPartition) {
	if !w.inPoll {
		w.b.t.Errorf("%s outside of Poll", what)
	}
	if len(tps) > 0 {
		w.heard = append(w.heard, what+" "+parts(tps))
	}
}

func (w *fakeWorker) Assigned(added []worker.TopicPartition, _ bool) {
	w.call("assigned", added)
	for _, p := range added {
		w.has[p] = true
	}
}

func (w *fakeWorker) Revoked(gone []worker.TopicPartition) {
	w.call("revoked", gone)
	for _, p := range gone {
		delete(w.has, p)
	}
}

func (w *fakeWorker) Lost(gone []worker.TopicPartition) {
	w.call("lost", gone)
	for _, p := range gone {
		delete(w.has, p)
	}
}

func (w *fakeWorker) RebalanceWaiting() { w.waiting++ }

func parts(tps []worker.TopicPartition) string {
	var list []string
	for _, p := range sorted(slices.Clone(tps)) {
		list = append(list, fmt.Sprint(p.Partition))
	}
	return strings.Join(list, ",")
}

// poll polls and returns what came.
func (w *fakeWorker) poll() string {
	w.b.t.Helper()
	w.inPoll = true
	fetched, err := w.Poll(context.Background(), 1000, 0)
	w.inPoll = false
	w.b.must(err)
	var all []string
	for _, f := range fetched {
		if f.Err != nil {
			all = append(all, fmt.Sprintf("%d!%v", f.Partition, f.Err))
			continue
		}
		all = append(all, fmt.Sprintf("%d{%s}", f.Partition, text(f.Records)))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// turn is a poll between two batches.
func (w *fakeWorker) turn() string {
	w.b.t.Helper()
	w.AllowRebalance()
	return w.poll()
}

// own turns all workers until the group has settled.
func (b *bench) settle(workers ...*fakeWorker) {
	b.t.Helper()
	for range 20 {
		v := b.Version()
		for _, w := range workers {
			w.turn()
		}
		b.disjoint(workers...)
		if v == b.Version() {
			return
		}
	}
	b.t.Fatal("the group does not settle")
}

// disjoint checks that no partition has two owners.
func (b *bench) disjoint(workers ...*fakeWorker) {
	b.t.Helper()
	owner := map[worker.TopicPartition]*fakeWorker{}
	for _, w := range workers {
		for p := range w.has {
			if owner[p] != nil {
				b.t.Errorf("%s has two owners", name(p))
			}
			owner[p] = w
		}
	}
}

func (w *fakeWorker) owns() string {
	var tps []worker.TopicPartition
	for p := range w.has {
		tps = append(tps, p)
	}
	return parts(tps)
}

// produce puts a record for each word into the transaction.
func (w *fakeWorker) produce(partition int32, words ...string) {
	w.b.t.Helper()
	var out []task.Output
	for _, r := range kv(words...) {
		out = append(out, task.Output{Topic: "t", Partition: partition, Key: r.Key, Value: r.Value, Store: -1})
	}
	w.Produce(context.Background(), out)
}

func at(p int32, offset int64, metadata string) worker.OffsetCommit {
	return worker.OffsetCommit{TopicPartition: tp(p), Offset: offset, Metadata: metadata}
}

func (w *fakeWorker) commit(offsets ...worker.OffsetCommit) (worker.Outcome, error) {
	return w.Commit(context.Background(), offsets)
}
