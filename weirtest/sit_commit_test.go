package weirtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/simkafka"
	"github.com/weirstreams/weir/metric"
	"github.com/weirstreams/weir/serde"
)

// TestSituationC1: a clean stop and a start, with no new input. The last record
// of each partition was processed again. Nothing is, and nothing is written.
func TestSituationC1(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"lost", "memory", "disk"} {
		for _, g := range []weir.Guarantee{weir.ExactlyOnce, weir.AtLeastOnce} {
			t.Run(fmt.Sprintf("%s/%d", kind, g), func(t *testing.T) {
				t.Parallel()
				opts := stores[kind](t)
				opts.Instances, opts.Config.Guarantee = 2, g
				c := newCounter(t, 3, opts)
				c.send(30, 10)
				c.check()
				out, log := len(c.Raw("out")), len(c.Changelog("counts"))
				read := c.Metrics().Sum(metric.RecordsIn)
				if read != 30 {
					t.Fatalf("%v records were read, want 30", read)
				}
				for range 3 {
					c.Restart()
					c.Advance(time.Minute)
				}
				if n := c.Metrics().Sum(metric.RecordsIn) - read; n != 0 {
					t.Errorf("%v records were read again", n)
				}
				if n := len(c.Raw("out")) - out; n != 0 {
					t.Errorf("%d more entries in the output", n)
				}
				if n := len(c.Changelog("counts")) - log; n != 0 {
					t.Errorf("%d more entries in the changelog", n)
				}
				c.check()
			})
		}
	}
}

// TestSituationC2: the process is killed in the middle of its work. A reader of
// what is committed saw duplicates. It sees none, although they are on the broker.
func TestSituationC2(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"lost", "disk"} {
		for _, p := range []Point{AfterProcess, AfterFlush, BeforeCommit, AfterCommit, BeforeApply, AfterApply} {
			t.Run(fmt.Sprintf("%s/%s", kind, p), func(t *testing.T) {
				t.Parallel()
				c := newCounter(t, 1, stores[kind](t))
				c.send(20, 5)
				for range 2 {
					c.CrashAt(p)
					c.send(20, 5)
					if s := c.Instance(0).State(); s != Crashed {
						t.Fatalf("the instance is %v", s)
					}
					c.Start()
				}
				c.check()
				aborted := 0
				for _, r := range c.Raw("out") {
					if r.Aborted {
						aborted++
					}
				}
				if want := map[Point]int{AfterFlush: 40, BeforeCommit: 40}[p]; aborted != want {
					t.Errorf("%d outputs are on the broker that must not be seen, want %d", aborted, want)
				}
			})
		}
	}
}

// TestSituationC3: instances come and go while records are processed. There were
// crashes and duplicates. Each input has its output once, in order.
func TestSituationC3(t *testing.T) {
	t.Parallel()
	for name, opts := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := opts(t)
			o.CommitOnClock = true
			c := newChain(t, o)
			for i := range 6 {
				// The rebalance finds records that wait, that are processed, and
				// that are not committed.
				c.send(20)
				end := c.stepwise()
				c.send(20)
				var in *Instance
				if i == 0 {
					in = c.add()
				} else {
					in = c.Instance(1)
					in.start()
				}
				for range 5 {
					c.pass()
					c.send(3)
				}
				end()
				c.send(20)
				end = c.stepwise()
				c.send(20)
				c.pass()
				in.stop()
				c.send(3)
				end()
			}
			c.Advance(time.Minute)
			c.check()
		})
	}
}

// leaky is a processor whose emitter gets out.
type leaky struct {
	weir.ProcessorDefaults
	out  *weir.Emitter[string, string]
	leak **weir.Emitter[string, string]
}

func (l *leaky) Init(t *weir.Task, out *weir.Emitter[string, string]) error {
	l.out, *l.leak = out, out
	t.EveryWallClock(time.Second, func(time.Time) error {
		out.Emit(weir.Record[string, string]{Key: "tick", Value: "tock"})
		return nil
	})
	return nil
}

func (l *leaky) Process(r weir.Record[string, string]) error {
	l.out.Emit(r)
	return nil
}

// TestSituationC5: an output is sent beside the transaction, by a call that
// nobody waits for. It was seen although the transaction aborted. Everything that
// an application writes is inside, and an emitter that is used outside of its
// callbacks is refused.
func TestSituationC5(t *testing.T) {
	t.Parallel()
	other := weir.NewTopic("other", serde.String, serde.String)
	setup := func(opts Options) (*Driver, **weir.Emitter[string, string]) {
		leak := new(*weir.Emitter[string, string])
		b := weir.NewBuilder()
		s := b.Stream(chainIn).Process("leaky", func() *leaky { return &leaky{leak: leak} }).Serdes(serde.String, serde.String)
		s.To(chainOut)
		s.ToEach(func(string, string) weir.Topic[string, string] { return other })
		s.TryMapValues(func(_, v string) (string, error) {
			if v == "bad" {
				return "", fmt.Errorf("%q is bad", v)
			}
			return v, nil
		}).Serdes(serde.String, serde.String).GroupByKey().Count("counts")
		topology, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		opts.Partitions = map[string]int32{"other": 1}
		opts.Config.DeadLetterTopic = "dead"
		opts.Config.OnError = func(*weir.TaskError) weir.Decision { return weir.DeadLetter }
		return New(t, topology, opts), leak
	}
	t.Run("inside", func(t *testing.T) {
		d, _ := setup(Options{})
		in := d.Input(chainIn)
		d.CrashAt(BeforeCommit)
		d.Batch(func() {
			in.Send("a", "1")
			in.Send("b", "bad")
		})
		d.Start()
		d.Advance(time.Second)
		for _, topic := range []string{"out", "other", "dead", "test-counts-repartition", "test-counts-changelog"} {
			tp := partitionOf(topic, 0)
			entries, err := d.sim.Log(tp)
			if err != nil {
				t.Fatal(err)
			}
			aborted := 0
			for _, e := range entries {
				if e.Producer < 0 {
					t.Errorf("%s has %q=%q, which is in no transaction", topic, e.Key, e.Value)
				}
				if e.Aborted {
					aborted++
				}
			}
			if aborted == 0 && topic != "test-counts-changelog" {
				t.Errorf("%s has nothing that was aborted: the test does not show what it should", topic)
			}
		}
		got := d.Output(chainOut).ReadKeyValues()
		if want := []KeyValue[string, string]{{Key: "a", Value: "1"}, {Key: "tick", Value: "tock"}}; !slices.Equal(got, want) {
			t.Errorf("outputs %v, want %v", got, want)
		}
	})
	t.Run("refused", func(t *testing.T) {
		d, leak := setup(Options{})
		(*leak).Emit(weir.Record[string, string]{Key: "leaked", Value: "1"})
		d.Input(chainIn).Send("a", "1")
		d.Input(chainIn).Send("b", "2")
		for _, r := range d.Raw("out") {
			if string(r.Key) == "leaked" {
				t.Errorf("what was emitted outside of a callback is in the output at %d", r.Offset)
			}
		}
		// The next callback says so: its record is a dead letter.
		dead := slices.DeleteFunc(d.Raw("dead"), func(r RawRecord) bool { return r.Marker != "" })
		if len(dead) != 1 || string(dead[0].Value) != "1" || !slices.ContainsFunc(dead[0].Headers, func(h weir.Header) bool {
			return h.Key == "weir-error" && strings.Contains(string(h.Value), "outside of Process and punctuations")
		}) {
			t.Errorf("dead letters %v, want the next record with the reason", dead)
		}
		if got := d.Output(chainOut).ReadKeyValues(); len(got) != 1 || got[0].Value != "2" {
			t.Errorf("outputs %v, want that of b", got)
		}
	})
}

// TestSituationC7: the broker has forgotten the transactional id of a producer
// that was idle for long (InvalidPidMapping). The application died. It gets a new
// producer and goes on.
func TestSituationC7(t *testing.T) {
	t.Parallel()
	c := newCounter(t, 2, Options{Instances: 2})
	for range 3 {
		c.send(20, 10)
		c.Advance(7 * 24 * time.Hour)
		for _, in := range c.instances {
			if err := c.sim.ExpireProducer(c.transactionalID(in)); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.send(20, 10)
	c.check()
	if n := c.Metrics().Sum(metric.Aborts, metric.L(metric.LabelReason, "rebuild")); n != 6 {
		t.Errorf("%v new producers, want 6", n)
	}
}

// TestSituationC9: the producer cannot register its transactional id at the
// start. The application crashed. It tries again, with growing pauses, and gives
// up after five minutes with the reason.
func TestSituationC9(t *testing.T) {
	t.Parallel()
	refusing := func(t *testing.T, refusals int) (d *Driver, tries *[]time.Time) {
		d = prepare(t, build(t, func(b *weir.Builder) { b.Stream(chainIn).To(chainOut) }), Options{AllowFailure: true})
		tries = new([]time.Time)
		d.hook = func(c simkafka.Call) simkafka.Fault {
			if c.Op != simkafka.Join {
				return simkafka.Fault{}
			}
			if *tries = append(*tries, d.Now()); len(*tries) > refusals {
				return simkafka.Fault{}
			}
			return simkafka.Fault{Effect: simkafka.Dropped, Err: fmt.Errorf("InitProducerId: REQUEST_TIMED_OUT")}
		}
		return d, tries
	}
	t.Run("for a while", func(t *testing.T) {
		d, tries := refusing(t, 9)
		d.add()
		d.settle()
		var pauses []time.Duration
		for i, at := range (*tries)[1:] {
			pauses = append(pauses, at.Sub((*tries)[i]))
		}
		ms := time.Millisecond
		if want := []time.Duration{50 * ms, 100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 5000 * ms, 5000 * ms}; !slices.Equal(pauses, want) {
			t.Errorf("the pauses are %v, want %v", pauses, want)
		}
		d.Input(chainIn).Send("a", "1")
		if got := d.Output(chainOut).ReadKeyValues(); len(got) != 1 || got[0].Value != "1" {
			t.Errorf("outputs %v, want the one record", got)
		}
	})
	t.Run("for ever", func(t *testing.T) {
		d, _ := refusing(t, 1<<30)
		began := d.Now()
		in := d.add()
		d.settle()
		if took := d.Now().Sub(began); in.State() != Failed || took < 5*time.Minute || took > 5*time.Minute+10*time.Second {
			t.Errorf("after %v the instance is %v, want failed after 5m", took, in.State())
		}
		if err := in.Err(); err == nil || !strings.Contains(err.Error(), "REQUEST_TIMED_OUT") || !strings.Contains(err.Error(), "in 5m0s without success") {
			t.Errorf("error %v, want the reason and for how long it was tried", err)
		}
	})
}

// An application with nothing to do loses its connection once a day. Each client
// works; only there is nothing to commit between two of them, and the limit of
// five minutes for clients that do not work was over on the second day.
func TestIdleClientsMayFailDaysApart(t *testing.T) {
	t.Parallel()
	c := newCounter(t, 2, Options{})
	c.send(20, 10)
	failures := 0
	for day := 1; day <= 10; day++ {
		c.Advance(24 * time.Hour)
		c.hook = func(call simkafka.Call) simkafka.Fault {
			if call.Op != simkafka.Poll || failures == day {
				return simkafka.Fault{}
			}
			failures++
			return simkafka.Fault{Effect: simkafka.Dropped}
		}
	}
	c.Advance(24 * time.Hour)
	if n := c.Metrics().Sum(metric.Aborts, metric.L(metric.LabelReason, "rebuild")); n != 10 || failures != 10 {
		t.Errorf("%d failures and %v new clients, want 10 of each", failures, n)
	}
	c.send(20, 10)
	c.check()
}

// TestSituationC14: a commit with no offsets in it. It was sent to the broker, or
// an error. There is no such request: not by an idle application, not around a
// rebalance, not after a batch of which nothing came, and not when only the clock
// did something.
func TestSituationC14(t *testing.T) {
	t.Parallel()
	for _, g := range []weir.Guarantee{weir.ExactlyOnce, weir.AtLeastOnce} {
		b := weir.NewBuilder()
		leak := new(*weir.Emitter[string, string])
		s := b.Stream(chainIn).Filter(func(_, v string) bool { return v != "dropped" })
		s.Process("leaky", func() *leaky { return &leaky{leak: leak} }).To(chainOut)
		topology, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		d := New(t, topology, Options{Config: weir.Config{Guarantee: g}, Partitions: map[string]int32{"in": 2}})
		requests := 0
		d.hook = func(c simkafka.Call) simkafka.Fault {
			switch c.Op {
			case simkafka.CommitOffsets:
				requests++
				if len(c.Partitions) == 0 {
					t.Errorf("guarantee %d: a commit of no offsets", g)
				}
			case simkafka.EndTransaction:
				requests++
			}
			return simkafka.Fault{}
		}
		per := map[weir.Guarantee]int{weir.ExactlyOnce: 2, weir.AtLeastOnce: 1}[g] // requests of a commit
		expect := func(what string, commits int) {
			t.Helper()
			if requests != commits*per {
				t.Errorf("guarantee %d, %s: %d requests, want %d", g, what, requests, commits*per)
			}
			requests = 0
		}
		d.Advance(999 * time.Millisecond)
		expect("idle", 0)
		other := d.AddInstance()
		other.Stop()
		other.Start()
		expect("rebalances", 0)
		d.Input(chainIn).Send("a", "dropped")
		expect("a record that is dropped", 1)
		d.Advance(time.Second)
		expect("two tasks tick on two instances", 2)
	}
}

// TestSituationC16: of a batch of 100 outputs one part fails once, as when the
// leader of a partition moves. The rest was sent before it, or all of it again
// behind it: the order by key was lost. The outputs are there once, in order.
func TestSituationC16(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		for _, fault := range []simkafka.Fault{{Effect: simkafka.Dropped}, {Err: simkafka.ErrConnection}, {Effect: simkafka.Late}} {
			b := weir.NewBuilder()
			b.Stream(chainIn).FlatMap(func(_, v string, emit func(string, int64)) {
				for i := range int64(100) {
					emit(fmt.Sprint("k", i%3), i+1)
				}
			}).Serdes(serde.String, serde.Int64).To(countsOut)
			topology, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			d := New(t, topology, Options{random: rand.New(rand.NewPCG(seed, 1)), Partitions: map[string]int32{"out": 2}})
			d.Input(chainIn).Send("warm", "up")
			sent, failed := 0, false
			d.hook = func(c simkafka.Call) simkafka.Fault {
				if c.Op != simkafka.Produce || failed {
					return simkafka.Fault{}
				}
				if sent += c.Records; sent < 50 {
					return simkafka.Fault{}
				}
				failed = true
				return fault
			}
			d.Input(chainIn).Send("a", "1")
			if !failed {
				t.Fatal("no request failed")
			}
			for len(d.sim.LateCalls()) > 0 {
				_ = d.sim.Deliver(0) // nobody waits for the answer
				d.Settle()
			}
			got := map[string][]int64{}
			for _, r := range d.Output(countsOut).All() {
				got[r.Key] = append(got[r.Key], r.Value)
			}
			want := map[string][]int64{}
			for range 2 {
				for i := range int64(100) {
					key := fmt.Sprint("k", i%3)
					want[key] = append(want[key], i+1)
				}
			}
			for key := range want {
				if !slices.Equal(got[key], want[key]) {
					t.Errorf("seed %d, fault %+v: outputs of %s: %v, want %v", seed, fault, key, got[key], want[key])
				}
			}
		}
	}
}

// TestSituationC17: a stage beside the main loop went on after the loop had
// stopped, and its output was there twice after a restart. Nothing is written
// behind a stop: what the clock wants is done once, before it or after the start.
func TestSituationC17(t *testing.T) {
	t.Parallel()
	leak := new(*weir.Emitter[string, string])
	topology := build(t, func(b *weir.Builder) {
		b.Stream(chainIn).Process("leaky", func() *leaky { return &leaky{leak: leak} }).To(chainOut)
	})
	d := New(t, topology, Options{CommitOnClock: true, Config: weir.Config{CommitInterval: 5 * time.Second}})
	d.Advance(10 * time.Second)
	out := d.Output(chainOut)
	d.Advance(3*time.Second + 500*time.Millisecond) // three ticks that are not committed
	d.Batch(func() { d.Input(chainIn).Send("a", "1") })
	d.Instance(0).Stop()
	ticks := func() (n int) {
		for _, r := range out.All() {
			if r.Key == "tick" {
				n++
			}
		}
		return n
	}
	if n := ticks(); n != 13 {
		t.Errorf("%d ticks at the stop, want 13: those before it, with what was not committed", n)
	}
	end := len(d.Raw("out"))
	(*leak).Emit(weir.Record[string, string]{Key: "late", Value: "x"})
	d.Advance(time.Hour)
	if n := len(d.Raw("out")); n != end {
		t.Errorf("%d entries were written behind the stop", n-end)
	}
	d.Start()
	d.Advance(10 * time.Second)
	d.Restart()
	if n := ticks(); n != 23 {
		t.Errorf("%d ticks at the end, want 23", n)
	}
	if v, ok := out.Last("a"); !ok || v != "1" {
		t.Errorf("the record has the output %q, %t", v, ok)
	}
	if _, ok := out.Last("late"); ok {
		t.Error("what was emitted behind the stop is in the output")
	}
}

// TestSituationC20: 500 records are processed, and the commit fails since the
// group does not know the member any more. The records of the next batch were
// skipped. None is.
func TestSituationC20(t *testing.T) {
	t.Parallel()
	for _, g := range []struct {
		name  string
		is    weir.Guarantee
		again int // outputs of a record whose commit failed
	}{{"exactly once", weir.ExactlyOnce, 1}, {"at least once", weir.AtLeastOnce, 2}} {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			topology := build(t, func(b *weir.Builder) { b.Stream(chainIn).To(chainOut) })
			d := New(t, topology, Options{Config: weir.Config{Guarantee: g.is, SessionTimeout: 5 * time.Second, TransactionTimeout: time.Minute}})
			in := d.Input(chainIn)
			n := 0
			send := func(count int) {
				d.Batch(func() {
					for range count {
						in.Send("k", fmt.Sprint(n))
						n++
					}
				})
			}
			send(100)
			z := d.Instance(0)
			z.PauseAt(BeforeCommit)
			send(500)
			if z.State() != Paused {
				t.Fatalf("the instance is %v", z.State())
			}
			d.Advance(6 * time.Second)
			send(500) // the next batch waits
			z.Resume()
			if n := d.Metrics().Sum(metric.Aborts); n == 0 {
				t.Error("no commit has failed: the test does not show what it should")
			}
			send(100)
			times := map[string]int{}
			for _, r := range d.Output(chainOut).All() {
				times[r.Value]++
			}
			for i := range n {
				want := 1
				if i >= 100 && i < 600 {
					want = g.again
				}
				if times[fmt.Sprint(i)] != want {
					t.Fatalf("record %d has %d outputs, want %d", i, times[fmt.Sprint(i)], want)
				}
			}
		})
	}
}
