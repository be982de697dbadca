package weirtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/metric"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
)

// storeCall names a call to a store, as storeCrash and storeFault see it.
type storeCall string

// The calls of a backend, its views and its bulks.
const (
	callToken      storeCall = "token"
	callClaim      storeCall = "claim"
	callDrop       storeCall = "drop"
	callApply      storeCall = "apply"
	callRead       storeCall = "read"
	callClear      storeCall = "clear"
	callBulk       storeCall = "bulk"
	callCheckpoint storeCall = "checkpoint"
)

// spoil is what becomes of a call to a store: it fails with err, or the process
// dies in it; after says that the call is carried out before.
type spoil struct {
	err   error
	dies  *Instance
	after bool
}

// spoilt is a store whose calls fail as hook says. It survives its process.
type spoilt struct {
	state.Backend
	hook func(c storeCall) spoil
}

func newSpoilt() *spoilt { return &spoilt{Backend: memstore.New()} }

// options runs all instances on the store.
func (s *spoilt) options() Options {
	return Options{Store: func(int) state.Backend { return s }}
}

func (s *spoilt) call(c storeCall, f func() error) error {
	var sp spoil
	if s.hook != nil {
		sp = s.hook(c)
	}
	if sp.err == nil && sp.dies == nil {
		return f()
	}
	if sp.after {
		_ = f()
	}
	if sp.dies != nil {
		sp.dies.die()
	}
	return fmt.Errorf("%s: %w", c, sp.err)
}

func (s *spoilt) Token(ctx context.Context, id state.ID) (tok state.Token, err error) {
	err = s.call(callToken, func() (err error) { tok, err = s.Backend.Token(ctx, id); return err })
	return tok, err
}

func (s *spoilt) Claim(ctx context.Context, id state.ID, old, new state.Token) (v state.View, err error) {
	err = s.call(callClaim, func() (err error) { v, err = s.Backend.Claim(ctx, id, old, new); return err })
	if err != nil {
		return nil, err
	}
	return &spoiltView{v, s}, nil
}

func (s *spoilt) Drop(ctx context.Context, id state.ID) error {
	return s.call(callDrop, func() error { return s.Backend.Drop(ctx, id) })
}

type spoiltView struct {
	state.View
	s *spoilt
}

func (v *spoiltView) Apply(ctx context.Context, old, new state.Token, b *state.Batch) error {
	return v.s.call(callApply, func() error { return v.View.Apply(ctx, old, new, b) })
}

func (v *spoiltView) Read(ctx context.Context, expect state.Token, keys [][]byte, visit func(int, []byte)) error {
	return v.s.call(callRead, func() error { return v.View.Read(ctx, expect, keys, visit) })
}

func (v *spoiltView) Clear(ctx context.Context, old, new state.Token) error {
	return v.s.call(callClear, func() error { return v.View.Clear(ctx, old, new) })
}

func (v *spoiltView) Bulk(ctx context.Context, old state.Token) (b state.Bulk, err error) {
	err = v.s.call(callBulk, func() (err error) { b, err = v.View.Bulk(ctx, old); return err })
	if err != nil {
		return nil, err
	}
	return &spoiltBulk{b, v.s}, nil
}

type spoiltBulk struct {
	state.Bulk
	s *spoilt
}

func (b *spoiltBulk) Checkpoint(ctx context.Context, new state.Token) error {
	return b.s.call(callCheckpoint, func() error { return b.Bulk.Checkpoint(ctx, new) })
}

// Each single call to the store fails in each way that the contract knows, with
// and without effect. A store that is damaged, that refuses, or that is away for
// a moment is nothing that stops an instance; one that is full, or fails in a
// way nobody knows, stops it with the reason. Nothing is lost, doubled or
// reordered by any of it.
func TestFaultInEachStoreCall(t *testing.T) {
	t.Parallel()
	strange := errors.New("input/output error")
	run := func(t *testing.T, fatal bool, hook func(c storeCall) spoil) *chain {
		s := newSpoilt()
		o := s.options()
		o.AllowFailure = fatal
		c := newChain(t, o)
		s.hook = hook
		for range 2 {
			c.send(6)
			c.Start() // if it failed
		}
		c.Instance(0).Stop()
		if c.Instance(0).State() == Stopped {
			c.Instance(0).DropState()
		}
		c.Start()
		c.send(6)
		s.hook = nil
		c.Start()
		c.Advance(time.Minute)
		c.check()
		return c
	}
	var calls []storeCall
	run(t, false, func(c storeCall) spoil {
		calls = append(calls, c)
		return spoil{}
	})
	if len(calls) < 30 {
		t.Fatalf("%d calls only", len(calls))
	}
	for _, fault := range []struct {
		err   error
		fatal bool
	}{{state.ErrFenced, false}, {state.ErrCorrupt, false}, {state.ErrUnavailable, false}, {state.ErrLocked, false}, {state.ErrFull, true}, {strange, true}} {
		t.Run(fault.err.Error(), func(t *testing.T) {
			t.Parallel()
			for i, call := range calls {
				if call == callDrop || errors.Is(fault.err, state.ErrLocked) && call != callToken && call != callClaim {
					continue
				}
				for _, after := range []bool{false, true} {
					n := 0
					c := run(t, fault.fatal, func(storeCall) spoil {
						n++
						if n-1 == i {
							return spoil{err: fault.err, after: after}
						}
						return spoil{}
					})
					if t.Failed() {
						t.Fatalf("call %d of %d, %s, after %t", i, len(calls), call, after)
					}
					if in := c.Instance(0); in.State() != Running {
						t.Fatalf("call %d of %d, %s, after %t: the instance is %v: %v", i, len(calls), call, after, in.State(), in.Err())
					}
				}
			}
		})
	}
}

// A store that is away for minutes does not cost the instance its place in the
// group, nor anything else: it goes on when the store is back.
func TestStoreAwayForMinutes(t *testing.T) {
	t.Parallel()
	for _, flush := range []time.Duration{0, time.Second} {
		s := newSpoilt()
		o := s.options()
		o.Config.FlushInterval = flush
		c := newChain(t, o)
		c.send(10)
		c.check()
		members := c.sim.Group("test").Members
		s.hook = func(storeCall) spoil { return spoil{err: state.ErrUnavailable} }
		c.settling = true // tasks that do not run are no reason to wait
		c.send(10)
		for range 3 * 60 * 10 {
			c.clock.now = c.clock.now.Add(100 * time.Millisecond)
			for c.pass() || c.commit() {
			}
		}
		s.hook = nil
		c.settling = false
		c.Settle()
		c.send(10)
		c.check()
		if got := c.sim.Group("test").Members; fmt.Sprint(got) != fmt.Sprint(members) {
			t.Errorf("members %v, and %v before", got, members)
		}
		if n := c.Metrics().Sum(metric.Aborts); n > 10 {
			t.Errorf("%v batches were aborted", n)
		}
	}
}

// tableTopic feeds the table of a deleter.
var tableTopic = weir.NewTopic("table-in", serde.String, serde.String)

// deleter runs a table on two instances, each with a store of its own. The first
// one's store is behind: it lacks the deletion of a key.
type deleter struct {
	*Driver
	store *spoilt // of the first instance
	in    Input[string, string]
	table weir.Table[string, string]
}

// life is how long the changelog of a deleter keeps tombstones.
const life = 60 * time.Second

func newDeleter(t testing.TB, life time.Duration) *deleter {
	t.Helper()
	b := weir.NewBuilder()
	table := b.Table("table", tableTopic)
	topology, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	s := newSpoilt()
	o := Options{Store: func(i int) state.Backend {
		if i == 0 {
			return s
		}
		return memstore.New()
	}}
	o.Config.TopicConfigs = map[string]string{"delete.retention.ms": fmt.Sprint(life.Milliseconds())}
	d := New(t, topology, o)
	in := d.Input(tableTopic)
	in.Send("gone", "1")
	in.Send("kept", "1")
	d.Instance(0).Crash()
	other := d.AddInstance()
	in.SendTombstone("gone")
	in.Send("kept", "2")
	other.Stop()
	return &deleter{d, s, in, table}
}

// forget lets the changelog lose the tombstone.
func (d *deleter) forget() {
	d.Compact()
	d.clock.now = d.clock.now.Add(life + time.Second)
	d.Compact()
}

func (d *deleter) check() {
	d.t.Helper()
	var got []string
	for _, e := range d.Table(d.table).Entries() {
		got = append(got, e.Key+"="+e.Value)
	}
	if fmt.Sprint(got) != "[kept=2]" {
		d.t.Errorf("the table has %v, want [kept=2]", got)
	}
}

// A rebuild of a view is interrupted at each call to the store, by a process
// that dies there. A key that was deleted meanwhile, and whose tombstone is
// compacted away, does not come back.
func TestCrashInEachCallOfARebuild(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		for i := 0; ; i++ {
			d := newDeleter(t, life)
			d.forget()
			n := 0
			d.store.hook = func(c storeCall) spoil {
				if n++; n-1 == i {
					return spoil{dies: d.Instance(0), after: after}
				}
				return spoil{}
			}
			d.Instance(0).Start()
			if died := d.Instance(0).State() == Crashed; !died {
				if i < 4 {
					t.Fatalf("%d calls only", i)
				}
				d.check()
				break
			}
			d.Instance(0).Start()
			d.check()
			if t.Failed() {
				t.Fatalf("died in call %d, after %t", i, after)
			}
		}
	}
}

// A restore that is interrupted again and again does not make its view younger
// than what is in it: tombstones that it has not come to are lost meanwhile.
func TestAnInterruptedRestoreKeepsItsAge(t *testing.T) {
	t.Parallel()
	d := newDeleter(t, life)
	d.Compact() // from now on the tombstone lives for a minute
	begin := d.Now()
	in := d.Instance(0)
	for d.Now().Sub(begin) < life {
		d.clock.now = d.clock.now.Add(5 * time.Second) // and the session of the last one
		in.CrashAt(DuringRestore)
		in.Start()
		if in.State() != Crashed {
			t.Fatalf("the instance is %v", in.State())
		}
	}
	d.Compact()
	in.Start()
	d.check()
}

// Without any time for tombstones a view that is behind is never brought up to
// date by a replay.
func TestNoTimeForTombstones(t *testing.T) {
	t.Parallel()
	d := newDeleter(t, 0)
	d.Compact()
	d.Compact()
	d.Instance(0).Start()
	d.check()
}

// initOnce is a processor that cannot be made twice in partition 1.
type initOnce struct {
	weir.ProcessorDefaults
	made  map[int32]int
	store *weir.KeyValueStore[string, string]
	kv    weir.KeyValue[string, string]
}

func (p *initOnce) Init(t *weir.Task, _ *weir.Emitter[string, string]) error {
	p.kv = p.store.Open(t)
	if p.made[t.Partition()]++; t.Partition() == 1 && p.made[1] == 2 {
		return errors.New("init fails")
	}
	return nil
}

func (p *initOnce) Process(r weir.Record[string, string]) error {
	_, _, err := p.kv.Get(r.Key)
	return err
}

// The store of one task is away for a moment. The abort makes the processors of
// all tasks anew, and one of another task fails in that: the instance stops with
// its error, and does not go on with half a task.
func TestAbortMeetsAFailingInit(t *testing.T) {
	t.Parallel()
	b := weir.NewBuilder()
	store, made := weir.NewKeyValueStore("s", serde.String, serde.String), map[int32]int{}
	b.Stream(countsIn).Process("p", func() *initOnce { return &initOnce{made: made, store: store} }, store).To(othersIn)
	topology, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	clear(made)
	s := newSpoilt()
	o := s.options()
	o.Partitions, o.AllowFailure = map[string]int32{"in": 2}, true
	o.Config.DeadLetterTopic, o.Config.OnError = "dlq", func(*weir.TaskError) weir.Decision { return weir.DeadLetter }
	d := New(t, topology, o)
	s.hook = func(c storeCall) spoil {
		if c == callRead {
			s.hook = nil
			return spoil{err: state.ErrUnavailable}
		}
		return spoil{}
	}
	d.settling = true
	in := d.Input(countsIn)
	in.To(0).Send("k", "v")
	in.To(1).Send("k", "v")
	for d.pass() || d.commit() {
	}
	if i := d.Instance(0); i.State() != Failed || !strings.Contains(i.Err().Error(), "init fails") {
		t.Errorf("the instance is %v with %v, want it failed with the error of Init", i.State(), i.Err())
	}
	if n := len(d.Raw("dlq")); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

// A store that is damaged anew after each rebuild stops its instance with the
// reason, instead of restoring for ever.
func TestStoreThatIsDamagedAgainAndAgain(t *testing.T) {
	t.Parallel()
	for _, call := range []storeCall{callRead, callClaim, callApply} {
		s := newSpoilt()
		o := s.options()
		o.AllowFailure = true
		c := newChain(t, o)
		c.send(5)
		c.check()
		drops := 0
		s.hook = func(sc storeCall) spoil {
			switch sc {
			case callDrop:
				drops++
			case call:
				return spoil{err: state.ErrCorrupt}
			}
			return spoil{}
		}
		c.settling = true
		c.Instance(0).Stop()
		c.Instance(0).start()
		for range 10 {
			c.send(5)
			for range 100 {
				if c.Instance(0).State() != Running || !c.pass() && !c.commit() {
					break
				}
			}
		}
		if in := c.Instance(0); in.State() != Failed || !errors.Is(in.Err(), state.ErrCorrupt) || !strings.Contains(in.Err().Error(), "check the disk") {
			t.Errorf("%s: the instance is %v with %v, want it failed with what to do", call, in.State(), in.Err())
		}
		if drops == 0 || drops > 3*len(c.tasks) {
			t.Errorf("%s: %d rebuilds", call, drops)
		}
		s.hook = nil
		c.settling = false
		c.Start()
		c.send(5)
		c.check()
	}
}

// Under at least once a process died before its last batch was committed, so that
// the changelog goes on behind the stamp, and the replay of that was interrupted
// when it had come past the stamp. The view was taken for one that the group's
// offsets were set back from, and the application stopped, at every start. It goes
// on with the replay.
func TestAnInterruptedReplayPastTheStamp(t *testing.T) {
	t.Parallel()
	var table weir.Table[string, int64]
	topology := build(t, func(b *weir.Builder) { table = b.Stream(countsIn).GroupByKey().Count("counts") })
	s := newSpoilt()
	o := s.options()
	o.Config.Guarantee = weir.AtLeastOnce
	o.Config.TopicConfigs = map[string]string{"delete.retention.ms": fmt.Sprint(life.Milliseconds())}
	d := New(t, topology, o)
	in, one := d.Input(countsIn), d.Instance(0)
	in.Send("k", "")
	one.CrashAt(BeforeCommit)
	in.Send("k", "")
	if one.State() != Crashed {
		t.Fatalf("the instance is %v, want it dead before its commit", one.State())
	}
	// After so long a time the replay is not good enough, which shows at its end,
	// and a rebuild follows it.
	d.Advance(life + time.Second)
	one.Start()
	if n := d.Metrics().Sum(metric.Claims); n != 3 {
		t.Errorf("%v claims, want one of the first start and two of the second: the test does not show what it should", n)
	}
	// The record that was not committed counts again.
	if n, ok := d.Table(table).Get("k"); !ok || n != 3 {
		t.Errorf("count %d, %t, want 3", n, ok)
	}
}
