package redisstore

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"go.uber.org/goleak"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/statetest"
)

// AfterExamples are run when all tests are done: an example has no clean-up.
var AfterExamples []func()

func TestMain(m *testing.M) {
	code := m.Run()
	for _, f := range AfterExamples {
		f()
	}
	// The driver closes the connections to a node that it no longer needs after
	// 5 s, and looks for new nodes after 1 s, also when the client is closed.
	err := goleak.Find(goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"))
	if code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// miniRedis starts an in-process stand-in. It runs the scripts in another Lua
// (gopher-lua) and answers CLUSTER SLOTS, so that the driver takes it for a
// cluster and checks that all keys of a call are in one slot. To WATCH it does not
// count FLUSHALL and HDEL as changes of a key, as Redis does. It lacks INFO,
// WAIT, persistence, memory limits and everything else that can go wrong: that
// is tested on a real server, with the tag integration.
func miniRedis(t testing.TB) Options {
	m := miniredis.RunT(t)
	return Options{Addresses: []string{m.Addr()}, Check: CheckOff}
}

func mustOpen(t testing.TB, opts Options) *Backend {
	t.Helper()
	b, err := Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// network stands between a backend and its server. It counts the calls that
// write, and can break.
type network struct {
	mu struct {
		sync.Mutex
		armed bool
		left  int  // calls that get through before it breaks
		lost  bool // the call at which it breaks is carried out and its reply lost
		met   bool
		down  bool
	}
	execs *atomic.Int64 // how many batches have gone as transactions
}

func (n *network) failAfter(calls int, lost bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.armed, n.mu.left, n.mu.lost, n.mu.met, n.mu.down = true, calls, lost, false, false
}

func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.armed, n.mu.down = false, false
}

func (n *network) met() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.met
}

// reads are the calls that change nothing.
var reads = []string{"read", "page", "count", "segments", "HGET", "watch"}

func (n *network) before(calls []redisconn.Call) error {
	if calls[0].Script == execCall {
		n.execs.Add(1)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.mu.armed {
		return nil
	}
	if n.mu.down {
		return state.ErrUnavailable
	}
	if slices.ContainsFunc(calls, func(c redisconn.Call) bool { return !slices.Contains(reads, c.Script.Name) }) {
		n.mu.left--
	}
	if n.mu.left < 0 {
		n.mu.met, n.mu.down = true, true
		if !n.mu.lost {
			return state.ErrUnavailable
		}
	}
	return nil
}

func (n *network) after([]redisconn.Call) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.armed && n.mu.down {
		return state.ErrUnavailable
	}
	return nil
}

// harness is what the suite may do to a backend on a server that lives on
// while its clients die. With lost the call at which the network breaks is
// carried out, and only its reply is lost. What goes as a transaction is counted.
func harness(t *testing.T, opts Options, lost bool, execs *atomic.Int64) statetest.Harness {
	n := network{execs: execs}
	opts.hooks = redisconn.Hooks{Before: n.before, After: n.after}
	b := mustOpen(t, opts)
	face := func() state.Backend {
		if opts.Unordered {
			return pointBackend{b}
		}
		return b
	}
	return statetest.Harness{
		Backend: face(),
		Reopen: func(t *testing.T) state.Backend {
			b.Close()
			b = mustOpen(t, opts)
			return face()
		},
		Crash: func(t *testing.T) state.Backend {
			n.heal()
			b = mustOpen(t, opts) // the server does not notice that a client died
			return face()
		},
		FailAfter: func(t *testing.T, calls int) func() bool {
			n.failAfter(calls, lost)
			return n.met
		},
		Corrupt: func(t *testing.T) state.Backend {
			id := state.ID{Application: "app", Task: "0_0"}
			raw(t, b, "DEL", b.target(id).layout.Load().base[2])
			b.Close()
			b = mustOpen(t, opts)
			return face()
		},
	}
}

// conform runs the suite in each way that batches can go: as scripts with keys
// in order, as transactions without an order, and without an order as scripts.
func conform(t *testing.T, options func(t *testing.T) Options, lost func() bool) {
	for _, c := range []struct {
		name                   string
		unordered, scriptsOnly bool
	}{{"ordered", false, false}, {"transactions", true, false}, {"unordered-scripts", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			var execs atomic.Int64
			statetest.Run(t, func(t *testing.T) statetest.Harness {
				opts := options(t)
				opts.Unordered, opts.ScriptsOnly = c.unordered, c.scriptsOnly
				return harness(t, opts, lost(), &execs)
			})
			n := execs.Load()
			t.Logf("%d batches have gone as transactions", n)
			if n > 0 && c.scriptsOnly || n < 100 && c.unordered && !c.scriptsOnly {
				t.Error("that is not what was to be tested")
			}
		})
	}
}

// raw sends a command as a person with redis-cli would. The second word is a
// key, if there is one.
func raw(t testing.TB, b *Backend, args ...string) rueidis.RedisResult {
	t.Helper()
	c := b.s.Client().B().Arbitrary(args[0])
	if len(args) > 1 {
		c = c.Keys(args[1]).Args(args[2:]...)
	}
	r := b.s.Client().Do(context.Background(), c.Build())
	if err := r.Error(); err != nil && !rueidis.IsRedisNil(err) {
		t.Fatalf("%v: %v", args, err)
	}
	return r
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conform(t, func(t *testing.T) Options { return miniRedis(t) }, func() bool { return false })
}
