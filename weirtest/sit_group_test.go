package weirtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/metric"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
)

// TestSituationB1: an owner is stopped for longer than its session lasts, another
// one processes 1,000 records meanwhile, and then the first one wakes up and
// writes the batch that it had in memory: old state lay over new state. Its
// writes are refused, in Kafka and in the store, be that one that both share, and
// every count is exact.
func TestSituationB1(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{false, true} {
		for _, p := range []Point{AfterProcess, AfterFlush, BeforeCommit, AfterCommit, BeforeApply} {
			t.Run(fmt.Sprintf("shared %t/%s", shared, p), func(t *testing.T) {
				t.Parallel()
				opts := Options{Instances: 2, Store: Memory(), Config: weir.Config{SessionTimeout: 5 * time.Second, TransactionTimeout: 8 * time.Second}}
				if shared {
					one := memstore.New()
					opts.Store = func(int) state.Backend { return one }
				}
				c := newCounter(t, 2, opts)
				c.send(40, 10)
				c.check()
				z, mine := c.Instance(0), c.Instance(0).Tasks()
				if len(mine) != 1 {
					t.Fatalf("the instance runs %v, want one task", mine)
				}
				z.PauseAt(p)
				c.send(40, 10)
				if z.State() != Paused {
					t.Fatalf("the instance is %v", z.State())
				}
				c.Advance(10 * time.Second)
				c.send(1000, 10)
				c.check()
				store := storedKeys(t, c.Instance(1).store, mine[0])
				refused := c.Metrics().Sum(metric.Aborts)
				end := c.stepwise()
				z.Resume()
				// A batch that was committed before the pause may go into a store of one's own.
				if writes := shared || p != AfterCommit && p != BeforeApply; writes && c.Metrics().Sum(metric.Aborts) <= refused {
					t.Error("nothing that the old owner did was refused")
				}
				if got := storedKeys(t, c.Instance(1).store, mine[0]); !maps.Equal(got, store) {
					t.Errorf("the old owner has changed the store from %q to %q", store, got)
				}
				end()
				c.check()
				c.send(40, 10)
				c.check()
			})
		}
	}
}

// TestSituationB2: the brokers have acknowledged a batch whose offsets are not
// committed when its partition goes to another owner, and the late commit of the
// old one goes through: the offset of a lost partition was committed, and the
// next owner skipped what it had not processed. The late commit is dropped.
func TestSituationB2(t *testing.T) {
	t.Parallel()
	for _, g := range []struct {
		name    string
		is      weir.Guarantee
		outputs int // of each record of the batch: under at least once those of the old owner stay
	}{{"exactly once", weir.ExactlyOnce, 1}, {"at least once", weir.AtLeastOnce, 2}} {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			topology := build(t, func(b *weir.Builder) { b.Stream(chainIn).To(chainOut) })
			d := New(t, topology, Options{Config: weir.Config{Guarantee: g.is, SessionTimeout: 5 * time.Second, TransactionTimeout: time.Minute}})
			in := d.Input(chainIn)
			in.Send("k", "before")
			old := d.Instance(0)
			old.PauseAt(AfterFlush)
			d.Batch(func() {
				for i := range 10 {
					in.Send("k", fmt.Sprint(i))
				}
			})
			if old.State() != Paused {
				t.Fatalf("the instance is %v", old.State())
			}
			committed := d.sim.Committed("test")
			// The next owner has the task and has processed nothing yet.
			next := d.add()
			next.PauseAt(AfterClaim)
			d.Advance(10 * time.Second)
			if next.State() != Paused {
				t.Fatalf("the next owner is %v: %s", next.State(), d.describe())
			}
			end := d.stepwise()
			old.Resume()
			if got := d.sim.Committed("test"); !maps.Equal(got, committed) {
				t.Errorf("the old owner has committed %v over %v", got, committed)
			}
			next.Resume()
			end()
			times := map[string]int{}
			for _, r := range d.Output(chainOut).All() {
				times[r.Value]++
			}
			want := map[string]int{"before": 1}
			for i := range 10 {
				want[fmt.Sprint(i)] = g.outputs
			}
			if !maps.Equal(times, want) {
				t.Errorf("outputs %v, want %v", times, want)
			}
			at := d.sim.Committed("test")[partitionOf("in", 0)].Offset
			if at != 11 {
				t.Errorf("committed offset %d, want 11", at)
			}
		})
	}
}

// TestSituationB4: a cooperative rebalance comes while each partition has a batch
// that is processed in part and not committed. Each partition that was revoked
// lost exactly that batch: its offsets were committed and its outputs dropped.
// The batch is committed whole before its partition goes.
func TestSituationB4(t *testing.T) {
	t.Parallel()
	for _, g := range []weir.Guarantee{weir.ExactlyOnce, weir.AtLeastOnce} {
		t.Run(map[weir.Guarantee]string{weir.ExactlyOnce: "exactly once", weir.AtLeastOnce: "at least once"}[g], func(t *testing.T) {
			t.Parallel()
			const partitions = 4
			c := newCounter(t, partitions, Options{CommitOnClock: true, Config: weir.Config{Guarantee: g, CommitInterval: 5 * time.Second}})
			c.Advance(time.Minute)
			for range 3 {
				before := c.sim.Committed("test")
				c.send(20, 20)
				for p := range int32(partitions) {
					tp := partitionOf("in", p)
					if b, err := c.sim.Bounds(tp); err != nil || before[tp].Offset >= b.High {
						t.Fatalf("partition %d has no batch: %v", p, err)
					}
				}
				if !maps.Equal(c.sim.Committed("test"), before) {
					t.Fatal("the batch is committed already: the test does not show what it should")
				}
				other := c.AddInstance()
				if n := len(other.Tasks()); n == 0 {
					t.Fatalf("nothing was revoked: %s", c.describe())
				}
				c.Advance(time.Minute)
				c.check()
				c.send(20, 20)
				other.Stop()
				c.Advance(time.Minute)
				c.check()
			}
		})
	}
}

// TestSituationB9: many rebalances in a row, of all kinds. An assigned partition
// was passed over in one of them, and nothing in it was processed any more. After
// each of them every partition makes progress.
func TestSituationB9(t *testing.T) {
	t.Parallel()
	const partitions = 6
	c := newCounter(t, partitions, Options{Instances: 2, Store: Memory(), Config: weir.Config{SessionTimeout: 5 * time.Second}})
	keys := make([]string, partitions) // one for each partition
	for i, found := 0, 0; found < partitions; i++ {
		key := fmt.Sprint("key", i)
		before := len(c.Raw("in"))
		c.in.Send(key, "")
		c.sent[key]++
		for _, r := range c.Raw("in")[:before+1] {
			if string(r.Key) == key && keys[r.Partition] == "" {
				keys[r.Partition] = key
				found++
			}
		}
	}
	progress := func(what string) {
		t.Helper()
		for p, key := range keys {
			c.sent[key]++
			c.in.Send(key, "")
			if n, ok := c.out.Last(key); !ok || n != c.sent[key] {
				t.Fatalf("%s: partition %d makes no progress: the count is %d, want %d\n%s", what, p, n, c.sent[key], c.describe())
			}
		}
	}
	for i := range 40 {
		var what string
		switch in := c.Instance(i % 2); i % 5 {
		case 0:
			what = "a third instance comes"
			if len(c.instances) < 3 {
				c.AddInstance()
			} else if in := c.Instance(2); in.State() != Running {
				in.Start()
			}
		case 1:
			what = "one dies"
			in.Crash()
		case 2:
			what = "it comes back"
			c.Start()
		case 3:
			what = "one is stopped past its session and goes on"
			in.Pause()
			c.Advance(6 * time.Second)
			in.Resume()
		case 4:
			what = "the third one leaves"
			c.Instance(2).Stop()
		}
		progress(fmt.Sprintf("rebalance %d, %s", i, what))
	}
	if g := c.sim.Group("test").Generation; g < 40 {
		t.Errorf("%d generations: there were too few rebalances", g)
	}
	c.check()
}

// TestSituationB16: two instances with default settings had one transactional id
// and fenced each other in a loop. Ids are those of the process and worker; and
// when a folder with the identity of a process is copied, the second process is
// refused with a reason, and the first goes on.
func TestSituationB16(t *testing.T) {
	t.Parallel()
	t.Run("defaults", func(t *testing.T) {
		t.Parallel()
		c := newCounter(t, 4, Options{Instances: 3})
		for range 10 {
			c.send(20, 10)
		}
		c.check()
		ids := map[string]bool{}
		for _, in := range c.instances {
			ids[c.transactionalID(in)] = true
		}
		if len(ids) != 3 {
			t.Errorf("transactional ids %v, want 3 different ones", slices.Sorted(maps.Keys(ids)))
		}
		if n := c.Metrics().Sum(metric.Aborts, metric.L(metric.LabelReason, "rebuild")); n != 0 {
			t.Errorf("%v clients were fenced", n)
		}
	})
	t.Run("copied folder", func(t *testing.T) {
		t.Parallel()
		c := newCounter(t, 4, Options{AllowFailure: true})
		c.send(20, 10)
		other := &Instance{d: c.Driver, index: 1, process: c.Instance(0).process}
		c.instances = append(c.instances, other)
		other.start()
		c.Settle()
		for range 300 {
			c.Advance(time.Second)
		}
		if s := c.Instance(0).State(); s != Running {
			t.Errorf("the first process is %v: %v", s, c.Instance(0).Err())
		}
		if err := other.Err(); err == nil || !strings.Contains(err.Error(), "process") {
			t.Errorf("the second process is %v: %v; want that it is refused", other.State(), err)
		}
		c.send(20, 10)
		c.check()
	})
}

// transactionalID is that of an instance.
func (d *Driver) transactionalID(in *Instance) string {
	d.t.Helper()
	cfg := d.runtime.Worker(in.process, d.res, d.tasks, in.store, d.life).(worker.Config)
	return cfg.TransactionalID
}
