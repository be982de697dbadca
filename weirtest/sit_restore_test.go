package weirtest

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state"
)

// mirror keeps the value of each key in a store of its own, and deletes with
// tombstones whether there is something or not.
type mirror struct {
	weir.ProcessorDefaults
	store *weir.KeyValueStore[string, string]
	open  weir.KeyValue[string, string]
}

func (m *mirror) Init(t *weir.Task, _ *weir.Emitter[string, string]) error {
	m.open = m.store.Open(t)
	return nil
}

func (m *mirror) Process(r weir.Record[string, string]) error {
	if r.Tombstone {
		return m.open.Delete(r.Key)
	}
	return m.open.Put(r.Key, r.Value)
}

// TestSituationA10: the changelog begins with a tombstone, and has tombstones of
// keys that a restore has never seen. It died of them (nil pointer), or brought
// an entry with no value. They are deletes of absent keys.
func TestSituationA10(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"lost", "disk"} {
		// The changelog is that of another program, or a compaction has left the
		// tombstones of its own.
		for _, origin := range []string{"taken over", "compacted"} {
			t.Run(kind+"/"+origin, func(t *testing.T) {
				t.Parallel()
				b := weir.NewBuilder()
				topic := weir.NewTopic("in", serde.String, serde.String)
				table := b.Table("table", topic)
				plain := weir.NewKeyValueStore("plain", serde.String, serde.String)
				table.ToStream().Process("mirror", func() *mirror { return &mirror{store: plain} }, plain)
				topology, err := b.Build()
				if err != nil {
					t.Fatal(err)
				}
				d := prepare(t, topology, stores[kind](t))
				in := d.Input(topic)
				if origin == "taken over" {
					for _, store := range []string{"table", "plain"} {
						_, err := d.sim.Append(partitionOf("test-"+store+"-changelog", 0), task.Record{Key: []byte("ghost")}, task.Record{Key: []byte("never")},
							task.Record{Key: []byte("a"), Value: []byte("1")}, task.Record{Key: []byte("b"), Value: []byte("2")}, task.Record{Key: []byte("b")})
						if err != nil {
							t.Fatal(err)
						}
					}
					d.add()
					d.settle()
				} else {
					d.add()
					d.settle()
					in.Send("ghost", "0")
					in.SendTombstone("ghost")
					in.Send("a", "1")
					in.Send("b", "2")
					in.SendTombstone("b")
					d.Crash()
					d.Instance(0).DropState()
					d.Compact()
					d.Start()
				}
				for _, store := range []string{"table", "plain"} {
					log := slices.DeleteFunc(d.Changelog(store), func(r RawRecord) bool { return r.Marker != "" })
					if len(log) == 0 || string(log[0].Key) != "ghost" || log[0].Value != nil {
						t.Fatalf("the changelog of %s is %v, want it to begin with the tombstone of ghost", store, log)
					}
				}
				check := func(want map[string]string) {
					t.Helper()
					got := map[string]string{}
					for _, e := range d.Table(table).Entries() {
						got[e.Key] = e.Value
					}
					if !maps.Equal(got, want) {
						t.Errorf("table: %v, want %v", got, want)
					}
					got = map[string]string{}
					for _, e := range d.Store(plain).Entries() {
						got[e.Key] = e.Value
					}
					if !maps.Equal(got, want) {
						t.Errorf("store: %v, want %v", got, want)
					}
				}
				check(map[string]string{"a": "1"})
				in.Send("ghost", "3")
				in.SendTombstone("a")
				check(map[string]string{"ghost": "3"})
			})
		}
	}
}

// TestSituationA14: a partition that is paused for the restore of its task is
// taken away in the middle of it and comes back. It stayed paused for ever. It
// flows as soon as its task is restored.
func TestSituationA14(t *testing.T) {
	t.Parallel()
	c := newCounter(t, 2, Options{})
	// An open transaction of somebody else in the changelogs: a reader of what
	// is committed gets no further, so the restores last until it is decided.
	holder := c.sim.Transaction("holder", 24*time.Hour)
	for p := range int32(2) {
		if err := holder.Append(partitionOf("test-counts-changelog", p), task.Record{Key: []byte("held"), Value: []byte("12345678")}); err != nil {
			t.Fatal(err)
		}
	}
	c.send(40, 10)
	c.check()
	c.Instance(0).Stop() // its state is lost
	end := c.stepwise()
	first := c.Instance(0)
	first.start()
	c.rounds(5 * time.Second)
	if got, want := first.taskStates(), []string{"0_0 restoring", "0_1 restoring"}; !slices.Equal(got, want) {
		t.Fatalf("the instance has %v, want %v", got, want)
	}
	second := c.add()
	c.rounds(5 * time.Second)
	got := append(first.taskStates(), second.taskStates()...)
	slices.Sort(got)
	if want := []string{"0_0 restoring", "0_1 restoring"}; len(first.taskStates()) != 1 || !slices.Equal(got, want) {
		t.Fatalf("the instances have %v and %v, want one restoring task each", first.taskStates(), second.taskStates())
	}
	second.stop()
	c.rounds(5 * time.Second)
	c.send(40, 10)
	c.rounds(time.Second)
	if got, want := first.taskStates(), []string{"0_0 restoring", "0_1 restoring"}; !slices.Equal(got, want) {
		t.Fatalf("the instance has %v, want %v", got, want)
	}
	if err := holder.Abort(); err != nil {
		t.Fatal(err)
	}
	end()
	c.check()
}

// TestSituationC10: a process dies with a batch that is not committed, its local
// store stays, and the mark that says how far the store is has gone. What the
// store held was taken for state, the uncommitted batch too. Here that batch
// never gets into a store, and a store with contents that no mark vouches for is
// wiped and restored.
func TestSituationC10(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"memory", "disk"} {
		for _, p := range []Point{AfterProcess, AfterFlush, BeforeCommit} {
			t.Run(fmt.Sprintf("%s/%s", kind, p), func(t *testing.T) {
				t.Parallel()
				c := newCounter(t, 1, stores[kind](t))
				c.send(20, 4)
				c.check()
				store := c.Instance(0).store
				before := storedKeys(t, store, "0_0")
				if len(before) != 4 {
					t.Fatalf("the store has %d keys, want 4", len(before))
				}
				c.CrashAt(p)
				c.send(20, 5)
				if s := c.Instance(0).State(); s != Crashed {
					t.Fatalf("the instance is %v", s)
				}
				if got := storedKeys(t, store, "0_0"); !maps.Equal(got, before) {
					t.Errorf("the store has %q after the crash, and had %q at the last commit", got, before)
				}
				// Contents of nobody knows when, and no mark that can be read.
				ctx, id := context.Background(), state.ID{Application: "test", Task: "0_0"}
				tok, err := store.Token(ctx, id)
				if err != nil || tok == "" {
					t.Fatalf("token %q, %v", tok, err)
				}
				view, err := store.Claim(ctx, id, tok, "lost")
				if err != nil {
					t.Fatal(err)
				}
				var dirty state.Batch
				for key, value := range before {
					dirty.Put([]byte(key), []byte(value[:8]+"\x00\x00\x00\x00\x00\x00\x03\xe8"))
					dirty.Put([]byte(key+"-dirty"), []byte(value))
				}
				if err := view.Apply(ctx, "lost", "lost too", &dirty); err != nil {
					t.Fatal(err)
				}
				if err := view.Close(); err != nil {
					t.Fatal(err)
				}
				c.Start()
				c.check()
				if got := storedKeys(t, store, "0_0"); len(got) != 5 {
					t.Errorf("the store has the keys %q, want those of 5 counts", slices.Sorted(maps.Keys(got)))
				}
			})
		}
	}
}

// TestSituationC11: a task dies on A with a batch that is not committed, B takes
// over, and later A, whose store stayed, gets the task back. A's uncommitted
// values came back with it. Every instance has committed values only.
func TestSituationC11(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"memory", "behind", "disk"} {
		for _, death := range []string{"error", string(AfterProcess), string(AfterFlush), string(BeforeCommit), string(AfterCommit)} {
			t.Run(kind+"/"+death, func(t *testing.T) {
				t.Parallel()
				opts := stores[kind](t)
				opts.AllowFailure = true
				most := int64(math.MaxInt64) // a larger count cannot be sent
				b := weir.NewBuilder()
				table := b.Stream(countsIn).GroupByKey().Count("counts")
				table.ToStream().TryMapValues(func(_ string, n int64) (int64, error) {
					if n > most {
						return 0, fmt.Errorf("%d is too much", n)
					}
					return n, nil
				}).Serdes(serde.String, serde.Int64).To(countsOut)
				topology, err := b.Build()
				if err != nil {
					t.Fatal(err)
				}
				d := New(t, topology, opts)
				c := &counter{Driver: d, in: d.Input(countsIn), out: d.Output(countsOut), table: table, sent: map[string]int64{}}
				c.send(20, 4)
				c.check()
				a := c.Instance(0)
				if death == "error" {
					most = 7 // the first eight records of the batch pass
				} else {
					a.CrashAt(Point(death))
				}
				c.send(10, 4)
				most = math.MaxInt64
				if s := a.State(); s != Crashed && s != Failed {
					t.Fatalf("A is %v", s)
				}
				other := c.AddInstance()
				c.check()
				c.send(10, 5)
				c.check()
				a.Start()
				other.Stop()
				if got := a.Tasks(); !slices.Equal(got, []string{"0_0"}) {
					t.Fatalf("A runs %v, want 0_0", got)
				}
				c.check()
				c.send(10, 5)
				c.check()
			})
		}
	}
}
