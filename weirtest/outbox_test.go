package weirtest

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/bridge"
	"github.com/weirstreams/weir/internal/simkafka"
	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/metric"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
)

// outboxOptions run an application at least once on a store that all instances
// share and that keeps the outputs.
func outboxOptions(store state.Backend) Options {
	return Options{Config: weir.Config{Guarantee: weir.AtLeastOnce}, Store: func(int) state.Backend { return store }}
}

// checkOnce compares what a reader with a Deduper gets, and the stores, with a
// plain loop over the input, and makes sure that repetitions are the same in
// every byte.
func (c *chain) checkOnce() {
	c.t.Helper()
	want, last := map[string][]string{}, map[string]string{}
	for key, values := range c.sent {
		for _, v := range values {
			last[key] = hash(last[key], v)
			want[key] = append(want[key], last[key])
		}
	}
	got, texts := map[string][]string{}, map[string]string{}
	var dedupe weir.Deduper
	for _, r := range c.Output(chainOut).All() {
		id := idOf(c.t, r.Headers)
		text := fmt.Sprintf("%d %s %s", r.Source.Partition, r.Key, r.Value)
		if was, ok := texts[string(id)]; ok && was != text {
			c.t.Errorf("one id has %q and %q", was, text)
		}
		_, again := texts[string(id)]
		texts[string(id)] = text
		if dedupe.Repeated("out", r.Source.Partition, id) != again {
			c.t.Errorf("%s: repeated is %t, want %t", text, !again, again)
		}
		if !again {
			got[r.Key] = append(got[r.Key], r.Value)
		}
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		c.t.Errorf("outputs\n got %v\nwant %v", got, want)
	}
	c.checkStores(last)
}

// checkStores compares the stores with the last links, and the counts with what
// was sent.
func (c *chain) checkStores(last map[string]string) {
	c.t.Helper()
	held := map[string]string{}
	for _, e := range c.Store(c.store).Entries() {
		held[e.Key] = e.Value
	}
	if !maps.Equal(held, last) {
		c.t.Errorf("store\n got %v\nwant %v", held, last)
	}
	for key, values := range c.sent {
		if n, _ := c.Table(c.counts).Get(key); n != int64(len(values)) {
			c.t.Errorf("%s is counted %d times, want %d", key, n, len(values))
		}
	}
	for _, l := range c.res.Changelogs {
		if records := c.Raw(l.Name); len(records) > 0 {
			c.t.Errorf("changelog %s has %d records", l.Name, len(records))
		}
	}
}

func idOf(t testing.TB, headers []weir.Header) []byte {
	t.Helper()
	var found []byte
	n := 0
	for _, h := range headers {
		if h.Key == weir.HeaderID {
			found, n = h.Value, n+1
		}
	}
	if n != 1 {
		t.Fatalf("%d ids among the headers %v", n, headers)
	}
	return found
}

// outboxPoints are those that a batch and a claim come to with an outbox.
var outboxPoints = []Point{AfterProcess, BeforeApply, AfterApply, AfterFlush, BeforeCommit, AfterCommit, AfterClaim, Point(worker.DuringResend), DuringRevoke}

// A process dies at each point of the protocol, of the n-th batch, and so does its
// successor at the next one. The state changes once, through the repartition
// topic too, and outputs come once but for repetitions with the same id.
func TestOutboxCrashAtEachPoint(t *testing.T) {
	t.Parallel()
	for _, p := range outboxPoints {
		for _, next := range outboxPoints {
			t.Run(fmt.Sprintf("%s/%s", p, next), func(t *testing.T) {
				t.Parallel()
				o := outboxOptions(memstore.NewShared())
				o.Instances = 2
				c := newChain(t, o)
				c.send(10)
				c.checkOnce()
				for i := range 3 {
					c.CrashAt(p)
					if p == DuringRevoke || p == AfterClaim {
						c.AddInstance()
					}
					c.send(7 + i)
					c.CrashAt(next)
					c.Start()
					c.send(3)
					c.CrashAt("")
					c.Start()
					c.checkOnce()
				}
			})
		}
	}
}

// A process dies in each call to the broker, before and after it was carried out.
func TestOutboxCrashInEachCall(t *testing.T) {
	t.Parallel()
	ops := []simkafka.Op{simkafka.Join, simkafka.Poll, simkafka.Buffer, simkafka.Produce, simkafka.Flush, simkafka.CommitOffsets, simkafka.FetchCommitted,
		simkafka.FetchBounds, simkafka.Describe, simkafka.Seek, simkafka.Resume, simkafka.AllowRebalance}
	for _, op := range ops {
		for nth := range 4 {
			t.Run(fmt.Sprintf("%s/%d", op, nth), func(t *testing.T) {
				t.Parallel()
				c := newChain(t, outboxOptions(memstore.NewShared()))
				c.send(6)
				for _, effect := range []simkafka.Effect{simkafka.Dropped, simkafka.Applied} {
					left := nth
					c.hook = func(call simkafka.Call) simkafka.Fault {
						if call.Op != op {
							return simkafka.Fault{}
						}
						if left--; left >= 0 {
							return simkafka.Fault{}
						}
						c.hook = nil
						return simkafka.Fault{Effect: effect, Crash: true}
					}
					c.send(9)
					c.Restart()
					c.hook = nil
					c.Restart()
					c.send(5)
					c.checkOnce()
				}
			})
		}
	}
}

// An instance stalls at each point for longer than its session, another takes
// over, and the first goes on where it was: it may still send what it has in
// its hands, and nobody takes that for new.
func TestOutboxZombieAtEachPoint(t *testing.T) {
	t.Parallel()
	for _, p := range []Point{AfterProcess, BeforeApply, AfterApply, AfterFlush, BeforeCommit, AfterCommit} {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			o := outboxOptions(memstore.NewShared())
			o.Instances = 2
			o.Config.SessionTimeout = 5 * time.Second
			c := newChain(t, o)
			c.send(10)
			z := c.stall(p)
			c.Advance(6 * time.Second)
			c.send(10)
			if z.State() != Paused {
				t.Fatalf("the instance does not get to the point: %s", c.describe())
			}
			z.Resume()
			c.send(10)
			c.Advance(time.Minute)
			c.checkOnce()
			if len(z.Tasks()) == 0 {
				t.Errorf("the zombie is not back:\n%s", c.describe())
			}
		})
	}
}

// regressing is a store whose views can go back to what they were.
type regressing struct{ *memstore.Backend }

// save keeps what a view holds, and returns a function that puts it back.
func (s *regressing) save(t *testing.T, id state.ID) func() {
	t.Helper()
	ctx := t.Context()
	r := s.Committed(id)
	var b state.Batch
	tok, err := r.Read(ctx, nil, func(int, []byte) {})
	if err != nil {
		t.Fatal(err)
	}
	it := r.Iterate(ctx, state.Range{})
	for it.Next() {
		b.Put(slices.Clone(it.Key()), slices.Clone(it.Value()))
	}
	if err := errors.Join(it.Err(), it.Close()); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := s.Drop(ctx, id); err != nil {
			t.Fatal(err)
		}
		v, err := s.Claim(ctx, id, "", "put back")
		if err == nil {
			err = v.Apply(ctx, "put back", tok, &b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A store that forgets the last batches of a task has their input processed again.
// That is counted, and the outputs of both times have ids of their own, since they
// are not the same.
func TestOutboxOfAStoreThatForgets(t *testing.T) {
	t.Parallel()
	store := &regressing{memstore.NewShared()}
	c := newCounter(t, 1, outboxOptions(store))
	id := state.ID{Application: "test", Task: "0_0"}
	c.send(5, 2)
	back := store.save(t, id)
	c.send(4, 2)
	c.check()
	back()
	c.send(3, 2) // refused; claimed again; nine records are processed
	c.checkTable()
	if n := c.Metrics().Sum(metric.StoreForgot); n != 1 {
		t.Errorf("the store is said to have forgotten %v times, want 1", n)
	}
	if n := c.Metrics().Sum(metric.Reprocessed); n != 4 {
		t.Errorf("%v records are said to be processed again, want 4", n)
	}
	seen := map[string]bool{}
	var dedupe weir.Deduper
	values := map[string][]int64{}
	for _, r := range c.out.All() {
		id := idOf(t, r.Headers)
		if seen[string(id)] || dedupe.Repeated("out", r.Source.Partition, id) {
			t.Errorf("%s %d has an id that another output had", r.Key, r.Value)
		}
		seen[string(id)] = true
		values[r.Key] = append(values[r.Key], r.Value)
	}
	if want := map[string][]int64{"k0": {1, 2, 3, 4, 5, 4, 5, 6}, "k1": {1, 2, 3, 4, 3, 4, 5, 6}}; !maps.EqualFunc(values, want, slices.Equal) {
		t.Errorf("outputs %v, want %v", values, want)
	}
}

// refusing is a store that refuses the next claims, as if another owner had come in
// between.
type refusing struct {
	*regressing
	left int
}

func (s *refusing) Claim(ctx context.Context, id state.ID, old, new state.Token) (state.View, error) {
	if s.left > 0 {
		s.left--
		return nil, &state.FencedError{ID: id, Stored: old}
	}
	return s.regressing.Claim(ctx, id, old, new)
}

// What a store has forgotten is counted by the claim that goes back with it, and not
// by those before it that came to nothing.
func TestOutboxCountsWhatItHasClaimed(t *testing.T) {
	t.Parallel()
	store := &refusing{regressing: &regressing{memstore.NewShared()}}
	c := newCounter(t, 1, outboxOptions(store))
	c.send(5, 2)
	back := store.save(t, state.ID{Application: "test", Task: "0_0"})
	c.send(4, 2)
	back()
	store.left = 3
	c.send(3, 2)
	c.Advance(2 * time.Second)
	c.checkTable()
	if n, again := c.Metrics().Sum(metric.StoreForgot), c.Metrics().Sum(metric.Reprocessed); store.left != 0 || n != 1 || again != 4 {
		t.Errorf("after three refused claims the store is said to have forgotten %v times, and %v records to be processed again, want 1 and 4", n, again)
	}
}

// A task that has nothing to do finds out as well that its store has forgotten.
func TestOutboxOfAnIdleTask(t *testing.T) {
	t.Parallel()
	store := &regressing{memstore.NewShared()}
	c := newCounter(t, 1, outboxOptions(store))
	c.send(5, 2)
	back := store.save(t, state.ID{Application: "test", Task: "0_0"})
	c.send(4, 2)
	back()
	c.Advance(30 * time.Second)
	c.checkTable()
}

// What nothing can mend stops the application with a reason, and changes nothing.
func TestOutboxFailsClosed(t *testing.T) {
	t.Parallel()
	id := state.ID{Application: "test", Task: "0_0"}
	for _, tc := range []struct {
		name, want string
		harm       func(t *testing.T, c *counter, s *regressing, back func())
	}{
		{"the store was emptied", "the store has nothing of the task", func(t *testing.T, c *counter, s *regressing, _ func()) {
			if err := s.Drop(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}},
		{"the input to process again is gone", "the input to process again is gone", func(t *testing.T, c *counter, _ *regressing, back func()) {
			back()
			if err := c.sim.DeleteBelow(worker.TopicPartition{Topic: "in"}, 8); err != nil {
				t.Fatal(err)
			}
		}},
		{"the token was overwritten", "the token of task 0_0 is damaged", func(t *testing.T, c *counter, s *regressing, _ func()) {
			old, err := s.Token(t.Context(), id)
			if err == nil {
				_, err = s.Claim(t.Context(), id, old, "no token")
			}
			if err != nil {
				t.Fatal(err)
			}
		}},
		{"the group's offsets were deleted", "the group has no committed offsets", func(t *testing.T, c *counter, _ *regressing, _ func()) {
			if err := c.sim.ExpireGroup("test"); err != nil {
				t.Fatal(err)
			}
		}},
		{"the offsets are a Java application's", "is kept with a changelog", func(t *testing.T, c *counter, s *regressing, _ func()) {
			if err := s.Drop(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			c.sim.SetOffsets("test", worker.OffsetCommit{TopicPartition: worker.TopicPartition{Topic: "in"}, Offset: 9, LeaderEpoch: -1,
				Metadata: base64.StdEncoding.EncodeToString([]byte{2, 0, 0, 0, 0, 0, 0, 3, 0xe8, 0, 0, 0, 0})})
		}},
		{"another guarantee", "there is nothing to rebuild it from under this guarantee", func(_ *testing.T, c *counter, _ *regressing, _ func()) {
			c.setGuarantee(weir.ExactlyOnce)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			store := &regressing{memstore.NewShared()}
			o := outboxOptions(store)
			o.AllowFailure = true
			c := newCounter(t, 1, o)
			c.send(5, 2)
			back := store.save(t, id)
			c.send(4, 2)
			c.Instance(0).Stop()
			tc.harm(t, c, store, back)
			before, err := store.Token(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			c.Instance(0).Start()
			in := c.Instance(0)
			if in.State() != Failed || !errors.Is(in.Err(), weir.ErrStateMismatch) || !strings.Contains(in.Err().Error(), tc.want) {
				t.Fatalf("the instance is %v with %v, want an error that says %q", in.State(), in.Err(), tc.want)
			}
			if after, err := store.Token(t.Context(), id); err != nil || after != before {
				t.Errorf("the view was claimed (%v)", err)
			}
			if n := len(c.out.All()); n != 9 {
				t.Errorf("%d outputs, want 9", n)
			}
		})
	}
}

// setGuarantee lets the instances that are started from then on run with another
// guarantee.
func (c *counter) setGuarantee(g weir.Guarantee) {
	c.t.Helper()
	topology := build(c.t, func(b *weir.Builder) {
		table := b.Stream(countsIn).GroupByKey().Count("counts")
		table.ToStream().To(countsOut)
	})
	cfg := c.opts.Config
	cfg.Guarantee = g
	var err error
	if c.runtime, err = bridge.NewRuntime(topology, cfg); err != nil {
		c.t.Fatal(err)
	}
}

// A view that was kept with a changelog is taken over when it has all of it.
func TestOutboxAfterExactlyOnce(t *testing.T) {
	t.Parallel()
	o := outboxOptions(memstore.NewShared())
	o.Config.Guarantee = weir.ExactlyOnce
	c := newCounter(t, 2, o)
	c.send(9, 4)
	c.Instance(0).Stop()
	written := len(c.Changelog("counts"))
	c.setGuarantee(weir.AtLeastOnce)
	c.Instance(0).Start()
	c.send(7, 4)
	c.check()
	c.Crash()
	c.Start()
	c.send(5, 4)
	c.check()
	if n := len(c.Changelog("counts")); n != written {
		t.Errorf("%d records were added to the changelog", n-written)
	}
}

// A view that was taken over from a changelog is one that the store can lose, also
// before it had its first batch.
func TestOutboxAfterExactlyOnceAndEmptied(t *testing.T) {
	t.Parallel()
	store := memstore.NewShared()
	o := outboxOptions(store)
	o.Config.Guarantee = weir.ExactlyOnce
	o.AllowFailure = true
	c := newCounter(t, 1, o)
	c.send(9, 4)
	c.Instance(0).Stop()
	c.setGuarantee(weir.AtLeastOnce)
	c.Instance(0).Start()
	c.Instance(0).Stop()
	c.Instance(0).Start() // a claim of what was taken over
	c.checkTable()
	c.Instance(0).Stop()
	if err := store.Drop(t.Context(), state.ID{Application: "test", Task: "0_0"}); err != nil {
		t.Fatal(err)
	}
	c.Instance(0).Start()
	in := c.Instance(0)
	if in.State() != Failed || !errors.Is(in.Err(), weir.ErrStateMismatch) || !strings.Contains(in.Err().Error(), "the store has nothing of the task") {
		t.Errorf("the instance is %v with %v, want an error", in.State(), in.Err())
	}
}

// A view that is the only truth is not taken for one that may be rebuilt, although
// it belongs to a subtopology that had the task's number earlier.
func TestOutboxOfAnotherSubtopologyIsKept(t *testing.T) {
	t.Parallel()
	store, id := memstore.NewShared(), state.ID{Application: "test", Task: "0_0"}
	token := stamp.Token{Lineage: stamp.Lineage{1}, Outbox: true, Epoch: 1, Seq: 40, Last: 40, Inputs: []stamp.Offset{{Name: "another", Next: 3}}}.Encode()
	if _, err := store.Claim(t.Context(), id, "", token); err != nil {
		t.Fatal(err)
	}
	for _, g := range []weir.Guarantee{weir.ExactlyOnce, weir.AtLeastOnce} {
		o := outboxOptions(store)
		o.Config.Guarantee, o.AllowFailure = g, true
		in := newCounter(t, 1, o).Instance(0)
		if in.State() != Failed || !errors.Is(in.Err(), weir.ErrStateMismatch) {
			t.Errorf("guarantee %v: the instance is %v with %v, want an error", g, in.State(), in.Err())
		}
		if after, err := store.Token(t.Context(), id); err != nil || after != token {
			t.Errorf("guarantee %v: the view was claimed (%v)", g, err)
		}
	}
}

// A claim whose positions the group has refused may be that of a member that is
// none any more: it asks the group before it fences whoever has the task now.
func TestOutboxClaimRefusedByTheGroup(t *testing.T) {
	t.Parallel()
	c := newCounter(t, 1, outboxOptions(memstore.NewShared()))
	c.send(5, 2)
	c.Instance(0).Stop()
	var calls []simkafka.Op
	refused := 0
	c.hook = func(call simkafka.Call) simkafka.Fault {
		switch call.Op {
		case simkafka.Confirm:
			calls = append(calls, call.Op)
		case simkafka.CommitOffsets:
			calls = append(calls, call.Op)
			if refused++; refused <= 2 {
				return simkafka.Fault{Effect: simkafka.Dropped, Err: simkafka.ErrRebalancing}
			}
		}
		return simkafka.Fault{}
	}
	c.Instance(0).Start()
	c.Advance(2 * time.Second)
	want := []simkafka.Op{simkafka.CommitOffsets, simkafka.Confirm, simkafka.CommitOffsets, simkafka.Confirm, simkafka.CommitOffsets}
	if len(calls) < len(want) || !slices.Equal(calls[:len(want)], want) {
		t.Errorf("calls %v, want %v first", calls, want)
	}
	c.hook = nil
	c.send(4, 2)
	c.check()
}

// many writes so many keys and so long an output as a record says.
type many struct {
	weir.ProcessorDefaults
	store *weir.KeyValueStore[string, string]
	open  weir.KeyValue[string, string]
	out   *weir.Emitter[string, string]
}

func (m *many) Init(t *weir.Task, out *weir.Emitter[string, string]) error {
	m.open, m.out = m.store.Open(t), out
	return nil
}

func (m *many) Process(r weir.Record[string, string]) error {
	var keys, size int
	if _, err := fmt.Sscan(r.Value, &keys, &size); err != nil {
		return err
	}
	for i := range keys {
		if err := m.open.Put(fmt.Sprintf("%s/%d", r.Key, i), "x"); err != nil {
			return err
		}
	}
	m.out.Emit(weir.Record[string, string]{Key: r.Key, Value: strings.Repeat("o", size)})
	return nil
}

// Batches end before they get larger than the store takes: a record that does not
// fit behind the others begins the next one, and one that fits into none is an
// error that can be matched, or a dead letter.
func TestOutboxCutsBatches(t *testing.T) {
	t.Parallel()
	for _, dead := range []bool{false, true} {
		t.Run(fmt.Sprintf("dead letters %t", dead), func(t *testing.T) {
			t.Parallel()
			store := weir.NewKeyValueStore("kv", serde.String, serde.String)
			topology := build(t, func(b *weir.Builder) {
				b.Stream(chainIn).Process("many", func() *many { return &many{store: store} }, store).To(chainOut)
			})
			shared := &sizing{Backend: memstore.NewShared(), t: t}
			o := outboxOptions(shared)
			o.AllowFailure = true
			o.Config.MaxRecordBytes = 2 << 20
			if dead {
				o.Config.DeadLetterTopic = "dead"
				o.Config.OnError = func(*weir.TaskError) weir.Decision { return weir.DeadLetter }
			}
			d := New(t, topology, o)
			in, out := d.Input(chainIn), d.Output(chainOut)
			want := 0
			d.Batch(func() {
				for i := range 60 {
					in.Send(fmt.Sprint("a", i), fmt.Sprint(1+20*(i%7), " ", 10))
					in.Send(fmt.Sprint("b", i), fmt.Sprint(400+i, " ", 100_000))
					want += 1 + 20*(i%7) + 400 + i
				}
			})
			if n := len(out.All()); n != 120 {
				t.Fatalf("%d outputs, want 120: %v", n, d.Instance(0).Err())
			}
			if n := len(d.Store(store).Entries()); n != want {
				t.Errorf("%d keys, want %d", n, want)
			}
			if shared.most > 500 || shared.most < 480 || shared.batches < 60 {
				// Of 60 records with 1 to 121 keys some do not fit before one with 400 to 459.
				t.Errorf("%d batches with at most %d keys", shared.batches, shared.most)
			}
			in.Send("ok", "1 1")
			for _, size := range []string{"501 1", fmt.Sprint("1 ", 1<<20)} {
				in.Send("too large", size)
				if dead {
					continue
				}
				if err := d.Instance(0).Err(); !errors.Is(err, weir.ErrBatchTooLarge) {
					t.Fatalf("error %v", err)
				}
				return
			}
			in.Send("fine", "1 1")
			if n := len(out.All()); n != 122 {
				t.Errorf("%d outputs, want 122", n)
			}
			letters := d.Raw("dead")
			if len(letters) != 2 {
				t.Fatalf("%d dead letters, want 2", len(letters))
			}
			for _, l := range letters {
				idOf(t, l.Headers)
			}
		})
	}
}

// sizing is a store that counts what batches hold.
type sizing struct {
	*memstore.Backend
	t             *testing.T
	batches, most int
}

func (s *sizing) Claim(ctx context.Context, id state.ID, old, new state.Token) (state.View, error) {
	v, err := s.Backend.Claim(ctx, id, old, new)
	if err != nil {
		return nil, err
	}
	return &sizingView{v.(state.OutboxView), s}, nil
}

type sizingView struct {
	state.OutboxView
	s *sizing
}

func (v *sizingView) ApplyOut(ctx context.Context, old, new state.Token, b *state.Batch, slot int, segment []byte) error {
	v.s.batches++
	v.s.most = max(v.s.most, b.Len())
	return v.OutboxView.ApplyOut(ctx, old, new, b, slot, segment)
}

// While the group refuses the positions the task goes on until its outbox is full.
// Then it waits, and stays a member; nothing is dropped, and it goes on by itself.
func TestOutboxIsFull(t *testing.T) {
	t.Parallel()
	store := &sizing{Backend: memstore.NewShared(), t: t}
	o := outboxOptions(store)
	o.CommitOnClock = true
	o.Config.CommitInterval = 50 * time.Millisecond
	c := newCounter(t, 1, o)
	c.send(1, 1)
	c.Advance(time.Second)
	before := store.batches
	refused := 0
	c.hook = func(call simkafka.Call) simkafka.Fault {
		if call.Op == simkafka.CommitOffsets {
			refused++
			return simkafka.Fault{Effect: simkafka.Dropped, Err: simkafka.ErrRebalancing}
		}
		return simkafka.Fault{}
	}
	for range 40 {
		c.send(3, 3)
		c.Advance(500 * time.Millisecond)
	}
	slots := store.OutboxLimits().Slots
	if n := store.batches - before; n != slots {
		t.Errorf("%d batches are in the store and not acknowledged, want %d, one for each slot", n, slots)
	}
	if refused < slots {
		t.Errorf("the commit was tried %d times", refused)
	}
	if s := c.Instance(0).State(); s != Running || c.sim.Group("test").Generation != 1 {
		t.Errorf("the instance is %v in generation %d", s, c.sim.Group("test").Generation)
	}
	c.hook = nil
	c.Advance(2 * time.Second)
	c.check()
	if again := c.Metrics().Sum(metric.RecordsResent); again != 0 {
		t.Errorf("%v outputs were sent again", again)
	}
}

// Records of a repartition topic stay for some hours after they were processed.
func TestOutboxKeepsRepartitionRecords(t *testing.T) {
	t.Parallel()
	o := outboxOptions(memstore.NewShared())
	o.Config.PurgeInterval = time.Minute
	c := newChain(t, o)
	c.send(10)
	first := func() (start int64) {
		for p := range int32(chainPartitions) {
			b, err := c.sim.Bounds(worker.TopicPartition{Topic: "test-by-key-repartition", Partition: p})
			if err != nil {
				t.Fatal(err)
			}
			start += b.Start
		}
		return start
	}
	for range 5 {
		c.Advance(time.Hour)
		c.send(5)
	}
	if n := first(); n != 0 {
		t.Errorf("%d records were deleted within five hours", n)
	}
	for range 3 {
		c.Advance(time.Hour)
		c.send(5)
	}
	if n := first(); n < 10 || n > 25 {
		t.Errorf("%d records were deleted within eight hours", n)
	}
	c.checkOnce()
}

// The hours go on from one owner to the next: instances that come and go more often
// than that do not keep the records of a repartition topic for ever.
func TestOutboxPurgesThroughClaims(t *testing.T) {
	t.Parallel()
	o := outboxOptions(memstore.NewShared())
	o.Config.PurgeInterval = time.Minute
	c := newChain(t, o)
	const hours, perHour = 40, 5
	for range hours {
		c.send(perHour)
		c.Advance(time.Hour)
		c.Restart()
	}
	deleted := int64(0)
	for p := range int32(chainPartitions) {
		b, err := c.sim.Bounds(worker.TopicPartition{Topic: "test-by-key-repartition", Partition: p})
		if err != nil {
			t.Fatal(err)
		}
		deleted += b.Start
	}
	if kept := hours*perHour - int(deleted); kept < 6*perHour || kept > 14*perHour {
		t.Errorf("the records of the last %d hours are kept, want those of 6 to 14", kept/perHour)
	}
	c.checkOnce()
}

// What is sent and not acknowledged has a bound in bytes, of all tasks together.
func TestOutboxBoundsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	store := weir.NewKeyValueStore("kv", serde.String, serde.String)
	topology := build(t, func(b *weir.Builder) {
		b.Stream(chainIn).Process("many", func() *many { return &many{store: store} }, store).To(chainOut)
	})
	o := outboxOptions(memstore.NewShared())
	o.Partitions = map[string]int32{"in": 4, "out": 1}
	o.CommitOnClock = true
	o.Config.CommitInterval = 10 * time.Second
	d := New(t, topology, o)
	in := d.Input(chainIn)
	const size, records = 300 << 10, 200
	flushed, most, sent := 0, 0, 0
	d.hook = func(call simkafka.Call) simkafka.Fault {
		switch call.Op {
		case simkafka.Flush:
			flushed = 0
		case simkafka.Produce:
			flushed += call.Records
			sent += call.Records
			most = max(most, flushed)
		}
		return simkafka.Fault{}
	}
	d.Batch(func() {
		for i := range records {
			in.To(int32(i%4)).Send("k", fmt.Sprint("1 ", size))
		}
	})
	d.Advance(3 * time.Minute)
	if sent != records {
		t.Fatalf("%d outputs, want %d", sent, records)
	}
	if bytes := most * size; bytes < 12<<20 || bytes > 17<<20 {
		t.Errorf("%d MiB were under way, want some 16", bytes>>20)
	}
}

// A null key goes anywhere, but when it is sent again to the same place. And an
// output never has the id of the record that it was made from.
func TestOutboxWithoutKeys(t *testing.T) {
	t.Parallel()
	topology := build(t, func(b *weir.Builder) {
		in := b.Stream(chainIn)
		in.MapValues(func(_, v string) string { return v + "1" }).To(chainOut)
		in.MapValues(func(_, v string) string { return v + "2" }).To(chainOut)
	})
	o := outboxOptions(memstore.NewShared())
	o.Partitions = map[string]int32{"out": 5}
	d := New(t, topology, o)
	in, out := d.Input(chainIn), d.Output(chainOut)
	for range 4 {
		d.CrashAt(BeforeCommit)
		d.Batch(func() {
			for i := range 9 {
				in.SendRecord(weir.Record[string, string]{KeyNull: true, Value: fmt.Sprint(i), Headers: []weir.Header{{Key: weir.HeaderID, Value: []byte("another's")}, {Key: "mine", Value: []byte("x")}}})
			}
		})
		d.Start()
	}
	partitions, repeats, n := map[string]int32{}, 0, map[int32]int{}
	var dedupe weir.Deduper
	for _, r := range out.All() {
		id := idOf(t, r.Headers)
		if len(r.Headers) != 2 || r.Headers[0].Key != "mine" {
			t.Errorf("headers %v", r.Headers)
		}
		p, again := partitions[string(id)]
		if again && p != r.Source.Partition {
			t.Errorf("%s is in partition %d and in %d", r.Value, p, r.Source.Partition)
		}
		if dedupe.Repeated("out", r.Source.Partition, id) != again {
			t.Errorf("%s: repeated is %t, want %t", r.Value, !again, again)
		}
		partitions[string(id)] = r.Source.Partition
		if again {
			repeats++
		} else {
			n[r.Source.Partition]++
		}
	}
	if len(partitions) != 4*18 || repeats == 0 || len(n) != 5 {
		t.Errorf("%d outputs, want %d; %d repetitions; partitions %v", len(partitions), 4*18, repeats, n)
	}
}

// ticker writes a key for each key that there is, once a second of stream time.
type ticker struct {
	weir.ProcessorDefaults
	store *weir.KeyValueStore[string, string]
	open  weir.KeyValue[string, string]
	out   *weir.Emitter[string, string]
}

func (p *ticker) Init(t *weir.Task, out *weir.Emitter[string, string]) error {
	p.open, p.out = p.store.Open(t), out
	t.EveryStreamTime(time.Second, func(at time.Time) error {
		n := 0
		for range p.open.Range(weir.Bounds[string]{}) {
			n++
		}
		p.out.Emit(weir.Record[string, string]{Key: at.UTC().Format("05"), Value: fmt.Sprint(n)})
		return nil
	})
	return nil
}

func (p *ticker) Process(r weir.Record[string, string]) error { return p.open.Put(r.Key, r.Value) }

// A punctuation is in the batch of the record that has caused it, however full
// the batch was: a crash between two batches leaves none out and repeats none.
func TestOutboxPunctuations(t *testing.T) {
	t.Parallel()
	store := weir.NewKeyValueStore("kv", serde.String, serde.String)
	topology := build(t, func(b *weir.Builder) {
		b.Stream(chainIn).Process("ticker", func() *ticker { return &ticker{store: store} }, store).To(chainOut)
	})
	d := New(t, topology, outboxOptions(memstore.NewShared()))
	in, out := d.Input(chainIn), d.Output(chainOut)
	at := d.Now()
	for range 5 {
		d.CrashAt(AfterApply)
		d.Batch(func() {
			for range 40 {
				at = at.Add(250 * time.Millisecond)
				in.SendRecord(weir.Record[string, string]{Key: at.Format("05.000"), Value: "v", Time: at})
			}
		})
		for d.Instance(0).State() == Crashed {
			d.CrashAt(AfterApply)
			d.Start()
		}
	}
	d.CrashAt("")
	d.Start()
	var dedupe weir.Deduper
	var got, want []string
	for _, r := range out.All() {
		if !dedupe.Repeated("out", r.Source.Partition, idOf(t, r.Headers)) {
			got = append(got, r.Key+"="+r.Value)
		}
	}
	for n := 1; n <= 200; n++ {
		if n == 1 || n%4 == 0 {
			want = append(want, fmt.Sprintf("%02d=%d", n*250/1000%60, n))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("punctuations\n got %v\nwant %v", got, want)
	}
}
