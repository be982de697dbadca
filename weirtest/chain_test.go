package weirtest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/simkafka"
	"github.com/weirstreams/weir/serde"
)

// The chain topology makes one lost, doubled or reordered record visible in every
// output after it: each output of a key hashes the one before. Records go through
// a repartition topic, and each key has its records in one partition of the
// input, so that their order is that of the input.
var (
	chainIn  = weir.NewTopic("in", serde.String, serde.String)
	chainOut = weir.NewTopic("out", serde.String, serde.String)
)

type link struct {
	weir.ProcessorDefaults
	store *weir.KeyValueStore[string, string]
	last  weir.KeyValue[string, string]
	out   *weir.Emitter[string, string]
}

func (l *link) Init(t *weir.Task, out *weir.Emitter[string, string]) error {
	l.last, l.out = l.store.Open(t), out
	return nil
}

func (l *link) Process(r weir.Record[string, string]) error {
	last, _, err := l.last.Get(r.Key)
	if err != nil {
		return err
	}
	next := hash(last, r.Value)
	l.out.Emit(weir.Record[string, string]{Key: r.Key, Value: next})
	return l.last.Put(r.Key, next)
}

func hash(last, value string) string {
	sum := sha256.Sum256([]byte(last + "/" + value))
	return value + ":" + hex.EncodeToString(sum[:6])
}

// chainTopology returns the topology with its stores: the last hash of each key,
// and a count of the links as a table.
func chainTopology(t testing.TB) (*weir.Topology, *weir.KeyValueStore[string, string], weir.Table[string, int64]) {
	t.Helper()
	b := weir.NewBuilder()
	store := weir.NewKeyValueStore("last", serde.String, serde.String)
	byKey := b.Stream(chainIn).
		SelectKey(func(_, v string) string { return v[:strings.IndexByte(v, '.')] }).Serdes(serde.String, serde.String).
		Repartition("by-key")
	byKey.Process("link", func() *link { return &link{store: store} }, store).To(chainOut)
	counts := byKey.GroupByKey().Count("count")
	topology, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return topology, store, counts
}

// chain is a run of the topology.
type chain struct {
	*Driver
	store  *weir.KeyValueStore[string, string]
	counts weir.Table[string, int64]
	in     Input[string, string]
	sent   map[string][]string // by key
	n      int
}

const chainPartitions = 2

func newChain(t testing.TB, opts Options) *chain {
	t.Helper()
	topology, store, counts := chainTopology(t)
	opts.Partitions = map[string]int32{"in": chainPartitions, "out": chainPartitions}
	d := New(t, topology, opts)
	return &chain{Driver: d, store: store, counts: counts, in: d.Input(chainIn), sent: map[string][]string{}}
}

// send sends n records to a handful of keys, as one batch.
func (c *chain) send(n int) {
	c.t.Helper()
	c.Batch(func() {
		for range n {
			c.n++
			key := fmt.Sprintf("k%d", c.n%5)
			value := fmt.Sprintf("%s.%d", key, c.n)
			c.sent[key] = append(c.sent[key], value)
			c.in.To(int32(c.n%5)%chainPartitions).Send("u", value)
		}
	})
}

// check compares outputs and stores with a plain loop over the input.
func (c *chain) check() {
	c.t.Helper()
	want, last := map[string][]string{}, map[string]string{}
	for key, values := range c.sent {
		for _, v := range values {
			last[key] = hash(last[key], v)
			want[key] = append(want[key], last[key])
		}
	}
	got := map[string][]string{}
	for _, r := range c.Output(chainOut).All() {
		got[r.Key] = append(got[r.Key], r.Value)
	}
	for key := range c.sent {
		if !slices.Equal(got[key], want[key]) {
			c.t.Errorf("outputs of %s:\n got %v\nwant %v", key, got[key], want[key])
		}
		if v, _ := c.Store(c.store).Get(key); v != last[key] {
			c.t.Errorf("store of %s: got %s, want %s", key, v, last[key])
		}
		if n, _ := c.Table(c.counts).Get(key); n != int64(len(want[key])) {
			c.t.Errorf("count of %s: got %d, want %d", key, n, len(want[key]))
		}
	}
	if len(got) != len(want) {
		c.t.Errorf("outputs of %d keys, want %d", len(got), len(want))
	}
}

func TestChain(t *testing.T) {
	t.Parallel()
	c := newChain(t, Options{})
	for range 4 {
		c.send(9)
		c.check()
	}
}

// stores are the ways in which local state survives a crash, or does not.
var stores = map[string]func(testing.TB) Options{
	"lost":   func(testing.TB) Options { return Options{} },
	"memory": func(testing.TB) Options { return Options{Store: Memory()} },
	"behind": func(testing.TB) Options {
		// The store has nothing of what was committed lately.
		return Options{Store: Memory(), Config: weir.Config{FlushInterval: time.Hour}}
	},
	"disk": func(t testing.TB) Options { return Options{Store: Disk(t)} },
}

// points are all of the protocol.
var points = []Point{AfterProcess, AfterFlush, BeforeCommit, AfterCommit, BeforeApply, AfterApply, AfterClaim, DuringRestore, DuringRevoke}

// An instance dies at each point of the protocol, the first or a later time that
// it gets there, and again at each point of its recovery.
func TestCrashAtEachPoint(t *testing.T) {
	t.Parallel()
	for name, opts := range stores {
		for _, p := range points {
			for _, again := range append([]Point{""}, AfterClaim, DuringRestore, AfterProcess, AfterCommit) {
				t.Run(fmt.Sprintf("%s/%s/%s", name, p, again), func(t *testing.T) {
					t.Parallel()
					c := newChain(t, opts(t))
					c.send(10)
					c.check()
					c.provoke(p)
					if c.Instance(0).State() != Crashed {
						if p == DuringRestore && (name == "memory" || name == "disk") || (p == BeforeApply || p == AfterApply) && name == "behind" {
							return // does not come
						}
						t.Fatalf("the instance does not get there")
					}
					c.CrashAt(again)
					c.Start()
					c.CrashAt("")
					c.Start()
					c.send(7)
					c.check()
				})
			}
		}
	}
}

// provoke lets the instance die at a point.
func (c *chain) provoke(p Point) {
	c.t.Helper()
	switch p {
	case AfterClaim, DuringRestore:
		c.Crash()
		c.CrashAt(p)
		c.Start()
	case DuringRevoke:
		c.CrashAt(p)
		c.AddInstance()
		c.Instance(1).Stop()
	default:
		c.CrashAt(p)
		c.send(10)
	}
}

// An instance dies in each single call to the broker of a run, once with the
// request carried out and once without.
func TestCrashInEachCall(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, opts Options, hook func(simkafka.Call) simkafka.Fault) *chain {
		c := newChain(t, opts)
		c.hook = hook
		for range 3 {
			c.send(6)
			c.Start() // if it died
		}
		c.Restart()
		c.hook = nil
		c.Start()
		c.check()
		return c
	}
	for _, name := range []string{"lost", "memory", "behind"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls []simkafka.Call
			run(t, stores[name](t), func(c simkafka.Call) simkafka.Fault {
				calls = append(calls, c)
				return simkafka.Fault{}
			})
			if len(calls) < 100 {
				t.Fatalf("%d calls only", len(calls))
			}
			for i, call := range calls {
				for _, effect := range []simkafka.Effect{simkafka.Dropped, simkafka.Applied} {
					n := 0
					run(t, stores[name](t), func(simkafka.Call) simkafka.Fault {
						n++
						if n-1 == i {
							return simkafka.Fault{Effect: effect, Crash: true}
						}
						return simkafka.Fault{}
					})
					if t.Failed() {
						t.Fatalf("died in call %d of %d, %v, effect %d", i, len(calls), call, effect)
					}
				}
			}
		})
	}
}

// Each single request of a run is refused, loses its answer, or is carried out
// late, when the client has been built anew.
func TestFaultInEachCall(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, hook func(c *chain, call simkafka.Call) simkafka.Fault) {
		c := newChain(t, Options{Store: Memory()})
		c.hook = func(call simkafka.Call) simkafka.Fault { return hook(c, call) }
		for range 3 {
			c.send(6)
			for range c.sim.LateCalls() {
				_ = c.sim.Deliver(0) // nobody waits for the answer
				c.Settle()
			}
			c.check()
		}
		c.hook = nil
	}
	var calls []simkafka.Call
	run(t, func(_ *chain, call simkafka.Call) simkafka.Fault {
		calls = append(calls, call)
		return simkafka.Fault{}
	})
	for i, call := range calls {
		for _, fault := range []simkafka.Fault{
			{Effect: simkafka.Dropped}, {Err: simkafka.ErrConnection}, {Effect: simkafka.Late},
		} {
			n := 0
			run(t, func(_ *chain, _ simkafka.Call) simkafka.Fault {
				n++
				if n-1 == i {
					return fault
				}
				return simkafka.Fault{}
			})
			if t.Failed() {
				t.Fatalf("call %d of %d, %v, fault %+v", i, len(calls), call, fault)
			}
		}
	}
}
