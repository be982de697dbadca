//go:build integration

package redisstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/internal/redistest"
	"github.com/weirstreams/weir/state"
)

var view0 = state.ID{Application: "app", Task: "0_0"}

// owner is a backend with a claimed view, and what the view has to hold.
type owner struct {
	t     testing.TB
	b     *Backend
	v     state.View
	token state.Token
	n     int
	want  map[string]string
	known map[string]bool // keys that it had at some time
}

// newOwner claims a view. Where keys are kept without order the first batches
// are written, so that the next goes as a transaction.
func newOwner(t testing.TB, opts Options) *owner {
	t.Helper()
	o := &owner{t: t, b: mustOpen(t, opts), want: map[string]string{}, known: map[string]bool{}}
	o.claim("")
	o.arm()
	return o
}

// eachWay runs a test with batches that go as scripts, and with batches that go
// as transactions, because no key is kept in order.
func eachWay(t *testing.T, test func(t *testing.T, unordered bool)) {
	t.Run("scripts", func(t *testing.T) { test(t, false) })
	t.Run("transactions", func(t *testing.T) { test(t, true) })
}

// armed says whether the next batch goes as a transaction.
func (o *owner) armed() bool {
	h := o.v.(*handle)
	return h.lane.open && h.lane.token == string(o.token)
}

// arm writes small batches until the next one goes as a transaction, if there
// are to be any.
func (o *owner) arm() {
	o.t.Helper()
	if !o.b.opts.Unordered || o.b.opts.ScriptsOnly {
		return
	}
	for range 3 {
		if o.armed() {
			return
		}
		o.apply(3, 10)
	}
	if !o.armed() {
		o.t.Fatal("batches do not go as transactions")
	}
}

func (o *owner) next() state.Token {
	o.n++
	return state.Token(fmt.Sprintf("token %d", o.n))
}

func (o *owner) claim(old state.Token) {
	o.t.Helper()
	next := o.next()
	v, err := o.b.Claim(o.t.Context(), view0, old, next)
	if err != nil {
		o.t.Fatal(err)
	}
	o.v, o.token = v, next
}

// batch is the next batch: n puts of a value of the given size, and the
// deletion of the first key of the batch before.
func (o *owner) batch(n, size int) (*state.Batch, map[string]string) {
	var b state.Batch
	want := map[string]string{}
	for k, v := range o.want {
		want[k] = v
	}
	gone := fmt.Sprintf("%d/0", o.n-1)
	b.Delete([]byte(gone))
	delete(want, gone)
	for i := range n {
		k, v := fmt.Sprintf("%d/%d", o.n, i), strings.Repeat(string(rune('a'+o.n%26)), size)
		b.Put([]byte(k), []byte(v))
		want[k] = v
		o.known[k] = true
	}
	return &b, want
}

// try applies the next batch; the returned function makes the same call again.
func (o *owner) try(n, size int) (again func() error, err error) {
	o.t.Helper()
	b, want := o.batch(n, size)
	old, next := o.token, o.next()
	again = func() error {
		err := o.v.Apply(o.t.Context(), old, next, b)
		if err == nil {
			o.token, o.want = next, want
		}
		return err
	}
	return again, again()
}

func (o *owner) apply(n, size int) {
	o.t.Helper()
	if _, err := o.try(n, size); err != nil {
		o.t.Fatal(err)
	}
}

// soon repeats a call until it succeeds; only state.ErrUnavailable may come
// before.
func (o *owner) soon(again func() error) {
	o.t.Helper()
	redistest.Eventually(o.t, "the server is back", func() bool {
		err := again()
		if err != nil && !errors.Is(err, state.ErrUnavailable) {
			o.t.Fatalf("%v, want state.ErrUnavailable until it works", err)
		}
		return err == nil
	})
}

// check compares the view with what it has to hold, through the owner and
// through a reader.
func (o *owner) check() {
	o.t.Helper()
	if o.b.opts.Unordered {
		o.checkKeys()
		return
	}
	for what, it := range map[string]state.Iterator{
		"view":      o.v.Iterate(o.t.Context(), o.token, state.Range{}),
		"committed": o.b.Committed(view0).Iterate(o.t.Context(), state.Range{}),
	} {
		n := 0
		for it.Next() {
			n++
			if want, ok := o.want[string(it.Key())]; !ok || want != string(it.Value()) {
				o.t.Fatalf("%s: %q = %.20q, want %.20q", what, it.Key(), it.Value(), want)
			}
		}
		if err := it.Err(); err != nil {
			o.t.Fatalf("%s: %v", what, err)
		}
		if n != len(o.want) {
			o.t.Fatalf("%s: %d entries, want %d", what, n, len(o.want))
		}
	}
	var keys [][]byte
	for k := range o.want {
		keys = append(keys, []byte(k))
	}
	err := o.v.Read(o.t.Context(), o.token, keys, func(i int, v []byte) {
		if !bytes.Equal(v, []byte(o.want[string(keys[i])])) {
			o.t.Errorf("%q = %.20q", keys[i], v)
		}
	})
	if err != nil {
		o.t.Fatal(err)
	}
}

// checkKeys is check without an order: it asks for all keys that there ever were,
// and for their number.
func (o *owner) checkKeys() {
	o.t.Helper()
	var keys [][]byte
	for k := range o.known {
		keys = append(keys, []byte(k))
	}
	visit := func(i int, v []byte) {
		if want, ok := o.want[string(keys[i])]; ok != (v != nil) || want != string(v) {
			o.t.Errorf("%q = %.20q, want %.20q", keys[i], v, want)
		}
	}
	if err := o.v.Read(o.t.Context(), o.token, keys, visit); err != nil {
		o.t.Fatal(err)
	}
	if token, err := o.b.Committed(view0).Read(o.t.Context(), keys, visit); err != nil || token != o.token {
		o.t.Fatalf("token %q, want %q, error %v", token, o.token, err)
	}
	if o.b.target(view0).layout.Load().over != "" {
		return // what has not been moved into its place is not counted
	}
	if n, err := o.v.ApproximateCount(o.t.Context(), state.Range{}); err != nil || n != int64(len(o.want)) {
		o.t.Fatalf("%d entries, want %d, error %v", n, len(o.want), err)
	}
}

// With an append-only file a killed server comes back with everything that it
// acknowledged; until then calls fail at once.
func TestKilledWithAppendOnlyFile(t *testing.T) { eachWay(t, testKilledWithAppendOnlyFile) }

func testKilledWithAppendOnlyFile(t *testing.T, unordered bool) {
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "everysec")
	opts := serverOptions(s)
	opts.Unordered = unordered
	o := newOwner(t, opts)
	o.apply(100, 100)
	o.apply(2000, 500) // larger than a chunk
	o.arm()
	s.Kill()
	again, err := o.try(10, 10)
	mustBe(t, "Apply while the server is down", err, state.ErrUnavailable)
	for range redisconn.BreakerFailures {
		mustBe(t, "Apply while the server is down", again(), state.ErrUnavailable)
	}
	begin := time.Now()
	mustBe(t, "Apply behind the breaker", again(), state.ErrUnavailable)
	if took := time.Since(begin); took > 500*time.Millisecond {
		t.Errorf("a call took %v although the server is known to be down", took)
	}
	s.Start()
	o.soon(again)
	o.soon(func() error { // on a connection of before
		return o.v.Read(t.Context(), o.token, nil, nil)
	})
	o.check()
}

// Without one it comes back empty: the owner is refused, and may begin anew.
func TestKilledWithoutAppendOnlyFile(t *testing.T) { eachWay(t, testKilledWithoutAppendOnlyFile) }

func testKilledWithoutAppendOnlyFile(t *testing.T, unordered bool) {
	s := redistest.Start(t)
	opts := serverOptions(s)
	opts.Unordered = unordered
	o := newOwner(t, opts)
	o.apply(100, 100)
	s.Kill()
	s.Start()
	err := error(state.ErrUnavailable)
	for errors.Is(err, state.ErrUnavailable) {
		_, err = o.try(10, 10)
	}
	mustBeGone(t, "Apply", err)
	o.want = map[string]string{}
	o.claim("")
	o.check()
	o.apply(10, 10)
	o.check()
}

func mustBeGone(t testing.TB, what string, err error) {
	t.Helper()
	var fenced *state.FencedError
	if !errors.As(err, &fenced) || fenced.Stored != "" {
		t.Fatalf("%s: %v, want that the view is gone", what, err)
	}
}

func TestFlushAll(t *testing.T) { eachWay(t, testFlushAll) }

func testFlushAll(t *testing.T, unordered bool) {
	s := redistest.Start(t)
	opts := serverOptions(s)
	opts.Unordered = unordered
	o := newOwner(t, opts)
	o.apply(100, 100)
	s.Must("FLUSHALL")
	_, err := o.try(10, 10)
	mustBeGone(t, "Apply", err)
	_, err = o.try(2000, 1000)
	mustBeGone(t, "a large Apply", err)
	mustBeGone(t, "Read", o.v.Read(t.Context(), o.token, [][]byte{[]byte("a")}, func(int, []byte) { t.Error("visited") }))
	if !unordered {
		it := o.v.Iterate(t.Context(), o.token, state.Range{})
		if it.Next() {
			t.Error("an iterator yields an entry")
		}
		mustBeGone(t, "Iterate", it.Err())
	}
	_, err = o.v.Bulk(t.Context(), o.token)
	mustBeGone(t, "Bulk", err)
	mustBeGone(t, "Clear", o.v.Clear(t.Context(), o.token, "x"))
	if keys := s.Keys(); len(keys) > 0 {
		t.Errorf("a refused owner made keys: %q", keys)
	}
	o.want = map[string]string{}
	o.claim("")
	o.apply(10, 10)
	o.check()
}

// FLUSHALL between two chunks of a large batch, or of a restore.
func TestFlushAllBetweenChunks(t *testing.T) {
	s := redistest.Start(t)
	opts := serverOptions(s)
	flush := false
	opts.hooks.Before = func(calls []redisconn.Call) error {
		if flush && calls[len(calls)-1].Script.Name == "flip" {
			flush = false
			s.Must("FLUSHALL")
		}
		return nil
	}
	o := newOwner(t, opts)
	o.apply(100, 100)
	flush = true
	_, err := o.try(5000, 1000)
	mustBeGone(t, "a large Apply", err)
	if flush {
		t.Error("the batch was not staged")
	}
	if keys := s.Keys(); len(keys) > 0 {
		t.Errorf("a refused owner made keys: %q", keys)
	}
}

// A server that is full refuses a batch as a whole, also when it gets full in
// the middle of a large one, and takes it when there is room again.
func TestOutOfMemory(t *testing.T) { eachWay(t, testOutOfMemory) }

func testOutOfMemory(t *testing.T, unordered bool) {
	for _, c := range []struct{ keys, size, limit int }{
		{100, 1000, 0},        // nothing fits
		{5000, 1000, 2 << 20}, // some chunks fit
	} {
		t.Run(fmt.Sprint(c.keys), func(t *testing.T) {
			s := redistest.Start(t)
			opts := serverOptions(s)
			opts.Unordered = unordered
			o := newOwner(t, opts)
			o.apply(100, 100)
			used := s.Info("memory")["used_memory"]
			limit := 0
			fmt.Sscan(used, &limit)
			s.Must("CONFIG", "SET", "maxmemory", fmt.Sprint(limit+c.limit))
			again, err := o.try(c.keys, c.size)
			mustBe(t, "Apply", err, state.ErrFull)
			o.check()
			mustBe(t, "the same Apply", again(), state.ErrFull)
			o.check()
			// What makes room is still taken.
			var b state.Batch
			for k := range o.want {
				b.Delete([]byte(k))
				delete(o.want, k)
				break
			}
			next := o.next()
			if err := o.v.Apply(t.Context(), o.token, next, &b); err != nil {
				t.Fatalf("a deletion: %v", err)
			}
			o.token = next
			o.check()
			s.Must("CONFIG", "SET", "maxmemory", "0")
			o.apply(c.keys, c.size)
			o.check()
			o.arm()
		})
	}
}

// refusing are set-ups in which a server refuses writes, and how to end them.
var refusing = []struct {
	code  string
	begin func(t *testing.T, s *redistest.Server)
	end   func(t *testing.T, s *redistest.Server)
}{
	{"NOREPLICAS",
		func(t *testing.T, s *redistest.Server) { s.Must("CONFIG", "SET", "min-replicas-to-write", "1") },
		func(t *testing.T, s *redistest.Server) { s.Must("CONFIG", "SET", "min-replicas-to-write", "0") }},
	{"READONLY",
		func(t *testing.T, s *redistest.Server) { s.Must("REPLICAOF", "127.0.0.1", redistest.FreePort(t)) },
		func(t *testing.T, s *redistest.Server) { s.Must("REPLICAOF", "NO", "ONE") }},
	{"MISCONF",
		func(t *testing.T, s *redistest.Server) {
			s.Must("CONFIG", "SET", "save", "3600 1")
			// Root may write everywhere, but not into a folder that is gone.
			if err := os.RemoveAll(s.Dir); err != nil {
				t.Fatal(err)
			}
			s.Do("BGSAVE")
			redistest.Eventually(t, "a snapshot that fails", func() bool {
				return s.Info("persistence")["rdb_last_bgsave_status"] == "err"
			})
		},
		func(t *testing.T, s *redistest.Server) { s.Must("CONFIG", "SET", "stop-writes-on-bgsave-error", "no") }},
	{"BUSY",
		func(t *testing.T, s *redistest.Server) {
			s.Must("CONFIG", "SET", "lua-time-limit", "20")
			done := make(chan struct{})
			t.Cleanup(func() { <-done })
			go func() {
				defer close(done)
				s.Do("EVAL", "while true do end", "0") // until it is killed
			}()
			redistest.Eventually(t, "a busy script", func() bool {
				err := s.Do("GET", "x").Error()
				return err != nil && strings.HasPrefix(err.Error(), "BUSY")
			})
		},
		func(t *testing.T, s *redistest.Server) { s.Must("SCRIPT", "KILL") }},
}

// A server that refuses writes for a time: nothing is changed, the error names
// the reason, and the same call succeeds afterwards.
func TestRefusedWrites(t *testing.T) { eachWay(t, testRefusedWrites) }

func testRefusedWrites(t *testing.T, unordered bool) {
	for _, c := range refusing {
		t.Run(c.code, func(t *testing.T) {
			s := redistest.Start(t)
			opts := serverOptions(s)
			opts.Unordered = unordered
			o := newOwner(t, opts)
			o.apply(100, 100)
			c.begin(t, s)
			again, err := o.try(10, 10)
			mustBe(t, "Apply", err, state.ErrUnavailable)
			if !strings.Contains(err.Error(), c.code) {
				t.Errorf("the error does not name the reason: %v", err)
			}
			_, cerr := o.b.Claim(t.Context(), view0, o.token, "other")
			mustBe(t, "Claim", cerr, state.ErrUnavailable)
			c.end(t, s)
			o.soon(again)
			o.check()
			again, err = o.try(3000, 500)
			if err != nil {
				mustBe(t, "a large Apply", err, state.ErrUnavailable)
				o.soon(again)
			}
			o.check()
			o.arm()
		})
	}
}

// A server that loads its data answers, and serves nothing.
func TestLoading(t *testing.T) { eachWay(t, testLoading) }

func testLoading(t *testing.T, unordered bool) {
	s := redistest.Start(t, "--appendonly", "yes", "--loading-process-events-interval-bytes", "1024")
	opts := serverOptions(s)
	opts.Unordered = unordered
	o := newOwner(t, opts)
	o.apply(100, 100)
	for i := range 20 {
		var args []string
		for j := range 100 {
			args = append(args, fmt.Sprintf("filler %d %d", i, j), strings.Repeat("x", 100))
		}
		s.Must(append([]string{"MSET"}, args...)...)
	}
	s.Must("BGREWRITEAOF")
	redistest.Eventually(t, "the rewrite", func() bool {
		in := s.Info("persistence")
		return in["aof_rewrite_in_progress"] == "0" && in["aof_rewrite_scheduled"] == "0"
	})
	s.Kill()
	s.Args = append(s.Args, "--key-load-delay", "1000") // microseconds for each key
	s.Launch()
	loading := false
	again, _ := o.try(10, 10)
	o.soon(func() error {
		err := again()
		loading = loading || err != nil && strings.Contains(err.Error(), "LOADING")
		return err
	})
	if !loading {
		t.Error("the server never said that it loads")
	}
	o.check()
}

// The server forgets scripts: on demand, and with each restart.
func TestNoScript(t *testing.T) { eachWay(t, testNoScript) }

func testNoScript(t *testing.T, unordered bool) {
	s := redistest.Start(t)
	opts := serverOptions(s)
	opts.Unordered = unordered
	o := newOwner(t, opts)
	for range 3 {
		s.Must("SCRIPT", "FLUSH")
		o.apply(2000, 500)
		s.Must("SCRIPT", "FLUSH")
		o.check()
		s.Must("SCRIPT", "FLUSH")
		if err := o.v.Clear(t.Context(), o.token, o.next()); err != nil {
			t.Fatal(err)
		}
		s.Must("SCRIPT", "FLUSH")
		o.want = map[string]string{}
		o.claim(state.Token(fmt.Sprintf("token %d", o.n)))
		o.check()
	}
}

// A connection that is half open: the server neither answers nor refuses. Calls
// end after Timeout, then at once; what was written meanwhile is recognised.
func TestHalfOpenConnection(t *testing.T) { eachWay(t, testHalfOpenConnection) }

func testHalfOpenConnection(t *testing.T, unordered bool) {
	s := redistest.Start(t)
	opts := serverOptions(s)
	opts.Unordered = unordered
	opts.Timeout, opts.DialTimeout = 200*time.Millisecond, 200*time.Millisecond
	o := newOwner(t, opts)
	o.apply(100, 100)
	thaw := s.Freeze()
	begin := time.Now()
	again, err := o.try(10, 10)
	mustBe(t, "Apply", err, state.ErrUnavailable)
	if took := time.Since(begin); took < opts.Timeout || took > 10*opts.Timeout {
		t.Errorf("a call took %v, Timeout is %v", took, opts.Timeout)
	}
	for range 2 * redisconn.BreakerFailures {
		mustBe(t, "Apply", again(), state.ErrUnavailable)
	}
	begin = time.Now()
	mustBe(t, "Apply behind the breaker", again(), state.ErrUnavailable)
	if took := time.Since(begin); took > opts.Timeout {
		t.Errorf("a call took %v although the server is known not to answer", took)
	}
	// A caller that gives up is let go; the timeout is the bound for that.
	thaw()
	o.soon(again)
	o.check()
}

// The server carries out a call, and the connection breaks before the reply.
// The call is made once, its caller is told, and its repetition is recognised.
func TestReplyLost(t *testing.T) { eachWay(t, testReplyLost) }

func testReplyLost(t *testing.T, unordered bool) {
	s := redistest.Start(t)
	p := redistest.StartProxy(t, s.Addr())
	opts := serverOptions(s)
	opts.Unordered = unordered
	_, port, _ := net.SplitHostPort(p.Addr())
	opts.Addresses = []string{net.JoinHostPort("127.0.0.1", port)}
	o := newOwner(t, opts)
	o.apply(100, 100)
	verb := "evalsha"
	if unordered {
		verb = "exec"
	}
	count := func() (n int) {
		fmt.Sscanf(s.Info("commandstats")["cmdstat_"+verb], "calls=%d", &n)
		return n
	}
	before := count()
	p.Cut(true)
	again, err := o.try(10, 10)
	mustBe(t, "Apply whose reply is lost", err, state.ErrUnavailable)
	if n := count() - before; n != 1 {
		t.Errorf("the driver made the call %d times", n)
	}
	other := mustOpen(t, serverOptions(s))
	if token, err := other.Token(t.Context(), view0); err != nil || token == o.token {
		t.Fatalf("token %q, error %v: the call was not carried out", token, err)
	}
	p.Cut(false)
	o.soon(again)
	o.check()

	// The same for the flip of a large batch, whose overlay stays behind.
	flip := false
	o.b.s.Options().Hooks.Before = func(calls []redisconn.Call) error {
		if calls[len(calls)-1].Script.Name == "flip" && !flip {
			flip = true
			p.Cut(true)
		}
		return nil
	}
	again, err = o.try(5000, 300)
	mustBe(t, "Apply whose reply is lost", err, state.ErrUnavailable)
	p.Cut(false)
	o.soon(again)
	o.check()
	o.apply(100, 10)
	o.check()
	o.apply(5000, 100)
	o.check()
}

// Two databases of a server are two stores.
func TestWrongDatabase(t *testing.T) {
	s := redistest.Start(t)
	o := newOwner(t, serverOptions(s))
	o.apply(100, 100)
	opts := serverOptions(s)
	opts.Database = 3
	other := mustOpen(t, opts)
	if token, err := other.Token(t.Context(), view0); err != nil || token != "" {
		t.Fatalf("token %q, error %v", token, err)
	}
	v, err := other.Claim(t.Context(), view0, "", "theirs")
	if err != nil {
		t.Fatal(err)
	}
	var b state.Batch
	b.Put([]byte("a"), []byte("theirs"))
	if err := v.Apply(t.Context(), "theirs", "theirs too", &b); err != nil {
		t.Fatal(err)
	}
	o.check()
	opts.Database = 99
	if _, err := Open(t.Context(), opts); err == nil || errors.Is(err, state.ErrUnavailable) {
		t.Errorf("a database that does not exist: %v", err)
	}
}

// Somebody deletes, or overwrites, one key. That is found out at the next read
// of it, and mended by a rebuild of the view.
func TestKeyDamagedByHand(t *testing.T) {
	for _, large := range []bool{false, true} {
		for _, by := range []string{"DEL", "SET"} {
			s := redistest.Start(t)
			for i := 0; ; i++ {
				s.Must("FLUSHALL")
				opts := serverOptions(s)
				stop := false
				opts.hooks.Before = func(calls []redisconn.Call) error {
					if stop && strings.HasPrefix(calls[0].Script.Name, "move") {
						return state.ErrUnavailable
					}
					return nil
				}
				o := newOwner(t, opts)
				o.apply(100, 10)
				if stop = large; large {
					o.apply(2000, 10) // stays in the overlay
				}
				keys := s.Keys()
				if i >= len(keys) {
					break
				}
				if by == "DEL" {
					s.Must("DEL", keys[i])
				} else {
					s.Must("SET", keys[i], "mine")
				}
				damage := fmt.Sprintf("%s %s, large %t", by, keys[i], large)
				stop = false
				it := o.v.Iterate(t.Context(), o.token, state.Range{})
				n := 0
				for it.Next() {
					n++
				}
				err := it.Err()
				if !errors.Is(err, state.ErrCorrupt) && !errors.Is(err, state.ErrFenced) {
					t.Fatalf("%s: reading everything ends with %v after %d of %d entries", damage, err, n, len(o.want))
				}
				if large {
					// The batch that was left in the overlay must not get lost
					// without a word either.
					if _, err := o.try(1, 1); err == nil {
						it := o.v.Iterate(t.Context(), o.token, state.Range{})
						for it.Next() {
							continue
						}
						err = it.Err()
						if !errors.Is(err, state.ErrCorrupt) && !errors.Is(err, state.ErrFenced) {
							t.Fatalf("%s: an Apply covers the damage: %v", damage, err)
						}
					}
				}
				if err := o.b.Drop(t.Context(), view0); err != nil {
					t.Fatalf("%s: Drop: %v", damage, err)
				}
				o.want = map[string]string{}
				o.claim("")
				o.apply(10, 10)
				o.check()
			}
			s.Kill()
		}
	}
}

// A failover promotes a replica that has not seen the latest acknowledged
// writes: token and data are set back together, and the owner is refused with
// the token that is left.
func TestFailoverForgets(t *testing.T) { eachWay(t, testFailoverForgets) }

func testFailoverForgets(t *testing.T, unordered bool) {
	for _, size := range []int{10, 3000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			s := redistest.Start(t, "--repl-diskless-sync", "no")
			r := s.StartReplica()
			p := redistest.StartProxy(t, s.Addr())
			opts := serverOptions(s)
			opts.Addresses, opts.Unordered = []string{p.Addr()}, unordered
			o := newOwner(t, opts)
			o.apply(100, 100)
			s.Must("WAIT", "1", "10000")
			seen, kept := o.token, o.want
			awaitToken(t, r, seen)
			r.Must("REPLICAOF", "NO", "ONE")
			for range 5 {
				o.apply(size, 10)
			}
			s.Kill()
			p.Forward(r.Addr())
			p.Drop()
			err := error(state.ErrUnavailable)
			for errors.Is(err, state.ErrUnavailable) {
				_, err = o.try(1, 1)
			}
			var fenced *state.FencedError
			if !errors.As(err, &fenced) {
				t.Fatalf("Apply after the failover: %v, want a fence", err)
			}
			if fenced.Stored == o.token {
				t.Fatal("nothing was forgotten")
			}
			o.want = kept
			if fenced.Stored != seen {
				t.Fatalf("token %q is left, want %q", fenced.Stored, seen)
			}
			o.claim(fenced.Stored)
			o.check()
			o.apply(100, 10)
			o.check()
		})
	}
}

func awaitToken(t testing.TB, s *redistest.Server, want state.Token) {
	t.Helper()
	redistest.Eventually(t, "the replica has the token", func() bool {
		token, _ := s.Must("HGET", metaKey(DefaultNamespace, view0), "token").ToString()
		return token == string(want)
	})
}

// With WaitReplicas a write that too few replicas confirm is no success. The
// same call again recognises it and waits anew.
func TestWaitReplicas(t *testing.T) { eachWay(t, testWaitReplicas) }

func testWaitReplicas(t *testing.T, unordered bool) {
	s := redistest.Start(t, "--repl-diskless-sync", "no")
	r := s.StartReplica()
	opts := serverOptions(s)
	opts.Unordered = unordered
	opts.WaitReplicas, opts.WaitTimeout = 1, 300*time.Millisecond
	o := newOwner(t, opts)
	o.apply(10, 10)
	o.apply(2000, 300)
	o.arm()
	for _, size := range []int{10, 2000} {
		thaw := r.Freeze()
		again, err := o.try(size, 100)
		mustBe(t, "Apply without a replica", err, ErrReplicas)
		mustBe(t, "Apply without a replica", err, state.ErrUnavailable)
		mustBe(t, "the same Apply", again(), ErrReplicas)
		thaw()
		o.soon(again)
		o.check()
	}
	thaw := r.Freeze()
	_, err := o.b.Claim(t.Context(), view0, o.token, "c")
	mustBe(t, "Claim without a replica", err, ErrReplicas)
	thaw()
}

// A context that ends lets its caller go.
func TestCancelledWhileTheServerHangs(t *testing.T) {
	s := redistest.Start(t)
	opts := serverOptions(s)
	opts.Timeout = redistest.WaitLimit
	o := newOwner(t, opts)
	thaw := s.Freeze()
	defer thaw()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, err := o.b.Token(ctx, view0)
	mustBe(t, "Token", err, context.DeadlineExceeded)
	if took := time.Since(begin); took > redistest.WaitLimit/2 {
		t.Errorf("it took %v", took)
	}
}
