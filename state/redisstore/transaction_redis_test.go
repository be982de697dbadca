//go:build integration

package redisstore

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/internal/redistest"
	"github.com/weirstreams/weir/state"
)

// relay is a proxy for one server that changes what clients say, holds it back,
// or cuts connections.
type relay struct {
	l      net.Listener
	wg     sync.WaitGroup
	change func([]byte) []byte      // nil changes nothing
	cut    func(n int) (passed int) // of n bytes, either way; less cuts the connection behind them; nil cuts nothing

	mu struct {
		sync.Mutex
		held  chan struct{} // what clients say waits for it, unless it is nil
		conns []net.Conn
	}
}

func startRelay(t *testing.T, to string, change func([]byte) []byte) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{l: l, change: change}
	r.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				return
			}
			r.mu.Lock()
			r.mu.conns = append(r.mu.conns, c, s)
			r.mu.Unlock()
			r.wg.Go(func() { r.pass(s, c) })
			r.wg.Go(func() {
				_, _ = io.Copy(cutting{c, r}, s)
				c.Close()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		r.mu.Lock()
		for _, c := range r.mu.conns {
			c.Close()
		}
		r.mu.Unlock()
		r.wg.Wait()
	})
	return r
}

// pass carries what a client says to the server, also when the client is gone.
func (r *relay) pass(server, client net.Conn) {
	defer server.Close()
	buf := make([]byte, 1<<20)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		r.mu.Lock()
		held := r.mu.held
		r.mu.Unlock()
		if held != nil {
			<-held
		}
		b := buf[:n]
		if r.change != nil {
			b = r.change(b)
		}
		if _, err := (cutting{server, r}).Write(b); err != nil {
			return
		}
	}
}

// cutting is a connection that is cut now and then.
type cutting struct {
	net.Conn
	r *relay
}

func (c cutting) Write(b []byte) (int, error) {
	if c.r.cut != nil {
		if n := c.r.cut(len(b)); n < len(b) {
			_, _ = c.Conn.Write(b[:n])
			return n, net.ErrClosed
		}
	}
	return c.Conn.Write(b)
}

// hold holds back what clients say from now on until it is let go.
func (r *relay) hold() (letGo func()) {
	held := make(chan struct{})
	r.mu.Lock()
	r.mu.held = held
	r.mu.Unlock()
	return func() {
		r.mu.Lock()
		r.mu.held = nil
		r.mu.Unlock()
		close(held)
	}
}

// unwatched takes WATCH away: the server is told to do something else that it
// answers alike.
func unwatched(b []byte) []byte {
	return bytes.ReplaceAll(b, []byte("*2\r\n$5\r\nWATCH\r\n"), []byte("*3\r\n$3\r\nSET\r\n$7\r\ncontrol\r\n"))
}

// changes are what others do to a view while its owner has a transaction open.
// They end in the token that is left, with which the owner is refused; where the
// token is that of the owner, its batch is taken.
var changes = []struct {
	name string
	do   func(t *testing.T, s *redistest.Server, o *owner) (left state.Token)
}{
	{"claimed", func(t *testing.T, s *redistest.Server, o *owner) state.Token {
		if _, err := mustOpen(t, serverOptions(s)).Claim(t.Context(), view0, o.token, "theirs"); err != nil {
			t.Fatal(err)
		}
		return "theirs"
	}},
	{"claimed and written", func(t *testing.T, s *redistest.Server, o *owner) state.Token {
		v, err := mustOpen(t, serverOptions(s)).Claim(t.Context(), view0, o.token, "theirs")
		if err != nil {
			t.Fatal(err)
		}
		for _, token := range []state.Token{"theirs", "and more", "and still more"} {
			if err := v.Apply(t.Context(), token, token+".", &state.Batch{}); err != nil && !errors.Is(err, state.ErrFenced) {
				t.Fatal(err)
			}
		}
		return "theirs."
	}},
	{"cleared", func(t *testing.T, s *redistest.Server, o *owner) state.Token {
		v, err := mustOpen(t, serverOptions(s)).Claim(t.Context(), view0, o.token, "theirs")
		if err == nil {
			err = v.Clear(t.Context(), "theirs", "cleared")
		}
		if err != nil {
			t.Fatal(err)
		}
		return "cleared"
	}},
	{"dropped", func(t *testing.T, s *redistest.Server, o *owner) state.Token {
		if err := mustOpen(t, serverOptions(s)).Drop(t.Context(), view0); err != nil {
			t.Fatal(err)
		}
		return ""
	}},
	{"FLUSHALL", func(_ *testing.T, s *redistest.Server, _ *owner) state.Token { s.Must("FLUSHALL"); return "" }},
	{"FLUSHDB", func(_ *testing.T, s *redistest.Server, _ *owner) state.Token { s.Must("FLUSHDB"); return "" }},
	{"SWAPDB", func(_ *testing.T, s *redistest.Server, _ *owner) state.Token { s.Must("SWAPDB", "0", "5"); return "" }},
	{"DEL", func(_ *testing.T, s *redistest.Server, o *owner) state.Token {
		s.Must("DEL", o.b.target(view0).meta)
		return ""
	}},
	{"RENAME", func(_ *testing.T, s *redistest.Server, o *owner) state.Token {
		s.Must("RENAME", o.b.target(view0).meta, "elsewhere")
		return ""
	}},
	{"expired", func(t *testing.T, s *redistest.Server, o *owner) state.Token {
		s.Must("PEXPIRE", o.b.target(view0).meta, "1")
		redistest.Eventually(t, "the key expires", func() bool {
			n, err := s.Must("EXISTS", o.b.target(view0).meta).AsInt64()
			return err == nil && n == 0
		})
		return ""
	}},
	{"another type", func(_ *testing.T, s *redistest.Server, o *owner) state.Token {
		s.Must("SET", o.b.target(view0).meta, "mine")
		return wrongType
	}},
	{"token", func(_ *testing.T, s *redistest.Server, o *owner) state.Token {
		s.Must("HSET", o.b.target(view0).meta, "token", "other")
		return "other"
	}},
	{"the same again", func(_ *testing.T, s *redistest.Server, o *owner) state.Token {
		s.Must("HSET", o.b.target(view0).meta, "token", string(o.token))
		return o.token
	}},
	{"RESTORE", func(t *testing.T, s *redistest.Server, o *owner) state.Token {
		// As a failover that forgets does it, and in place.
		meta := o.b.target(view0).meta
		dump, old := s.Text("DUMP", meta), o.token
		if err := o.v.Apply(t.Context(), old, "forgotten", &state.Batch{}); err != nil {
			t.Fatal(err)
		}
		o.token = "forgotten"
		s.Must("RESTORE", meta, "0", dump, "REPLACE")
		return old
	}},
	{"other data of a primary", func(t *testing.T, s *redistest.Server, o *owner) state.Token {
		other := redistest.Start(t, "--repl-diskless-sync-delay", "0")
		s.Must("REPLICAOF", "127.0.0.1", other.Port)
		redistest.Eventually(t, "the copy", func() bool { return s.Info("replication")["master_link_status"] == "up" })
		s.Must("REPLICAOF", "NO", "ONE")
		return ""
	}},
}

// wrongType stands for the token of a meta key that is none.
const wrongType state.Token = "\x00"

// dumped is what a server holds.
func dumped(s *redistest.Server) map[string]string {
	all := map[string]string{}
	for _, k := range s.Keys() {
		if k != "control" {
			all[k] = s.Text("DUMP", k)
		}
	}
	return all
}

// Whatever changes a view between two batches of its owner makes the transaction
// do nothing, and the owner is refused with what is there. The control shows that
// it is WATCH that does it: without it each of the changes is written over.
func TestTransactionsCompareAndSwap(t *testing.T) {
	for _, c := range changes {
		for _, control := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/control=%t", c.name, control), func(t *testing.T) {
				s := redistest.Start(t)
				opts := serverOptions(s)
				opts.Unordered = true
				if control {
					opts.Addresses = []string{startRelay(t, s.Addr(), unwatched).l.Addr().String()}
				}
				o := newOwner(t, opts)
				left := c.do(t, s, o)
				if !o.armed() {
					t.Fatal("no transaction is open")
				}
				before := dumped(s)
				mine := left == o.token
				_, err := o.try(20, 10)
				var fenced *state.FencedError
				refused := errors.As(err, &fenced) && fenced.Stored == left || left == wrongType && errors.Is(err, state.ErrCorrupt)
				same := maps.Equal(before, dumped(s))
				switch {
				case mine:
					if err != nil {
						t.Errorf("the batch of the owner: %v", err)
					}
					o.check()
				case control && left == wrongType:
					// HSET fails on it either way; the buckets are written.
					if same {
						t.Error("without WATCH nothing is changed either: nothing is tested")
					}
				case control && (refused || same):
					t.Errorf("without WATCH the owner is refused as well (%v): nothing is tested", err)
				case !control && !refused:
					t.Errorf("Apply: %v, want a fence with token %q", err, left)
				case !control && !same:
					t.Errorf("a refused owner has changed what is there")
				}
			})
		}
	}
}

// The connection is lost with what it watches, at a failover to a server that
// holds the very same data too: the next batch finds out and is taken once.
func TestTransactionsEndWithTheirConnection(t *testing.T) {
	s := redistest.Start(t)
	opts := serverOptions(s)
	opts.Unordered = true
	o := newOwner(t, opts)
	s.Must("CLIENT", "KILL", "TYPE", "normal")
	again, err := o.try(20, 10)
	mustBe(t, "Apply on a connection that is gone", err, state.ErrUnavailable)
	o.soon(again)
	o.soon(func() error { return o.v.Read(t.Context(), o.token, nil, nil) })
	o.check()
	o.arm()
	o.check()
}

// Connections are cut anywhere, within what either side says: a write is never
// without its transaction, as it would be if the rest of a batch went over a
// connection that was opened anew, and each batch is taken once.
func TestTransactionsThroughCuts(t *testing.T) {
	s := redistest.Start(t)
	monitor, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := monitor.Write([]byte("MONITOR\r\n")); err != nil {
		t.Fatal(err)
	}
	var loose []string
	within, taken := map[string]bool{}, 0
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(monitor); lines.Scan(); {
			f := strings.Fields(lines.Text()) // time, [database, address], "command", ...
			if len(f) < 4 {
				continue
			}
			switch client, command := f[2], strings.ToLower(strings.Trim(f[3], `"`)); command {
			case "multi":
				within[client] = true
			case "exec", "discard":
				within[client] = false
			case "hset", "hdel":
				if client != "lua]" && !within[client] {
					loose = append(loose, lines.Text())
				} else if client != "lua]" {
					taken++
				}
			}
		}
	}()
	r := startRelay(t, s.Addr(), nil)
	opts := serverOptions(s)
	opts.Unordered, opts.Addresses = true, []string{r.l.Addr().String()}
	random, cuts := rand.New(rand.NewPCG(1, 2)), 0
	var mu sync.Mutex
	on := false
	r.cut = func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		if !on || random.IntN(12) > 0 {
			return n
		}
		cuts++
		return random.IntN(n)
	}
	o := newOwner(t, opts)
	mu.Lock()
	on = true
	mu.Unlock()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		if again, err := o.try(1+o.n%10, 20); err != nil {
			o.soon(again)
		}
	}
	mu.Lock()
	on = false
	mu.Unlock()
	o.soon(func() error { return o.v.Read(t.Context(), o.token, nil, nil) })
	o.check()
	monitor.Close()
	<-ended
	t.Logf("%d batches, %d cuts, %d writes in transactions", o.n, cuts, taken)
	if len(loose) > 0 {
		t.Errorf("writes without a transaction: %q", loose)
	}
	if cuts < 20 || taken < 100 {
		t.Error("hardly anything is tested")
	}
}

// The connection of a view alone is lost: the batch goes as a script on another,
// and nobody is told.
func TestTransactionsSurviveTheirConnection(t *testing.T) {
	s := redistest.Start(t)
	opts := serverOptions(s)
	opts.Unordered = true
	o := newOwner(t, opts)
	killed := 0
	for line := range strings.Lines(s.Text("CLIENT", "LIST")) {
		if !strings.Contains(line, " multi=-1 ") { // in a transaction
			killed++
			s.Must("CLIENT", "KILL", "ID", strings.TrimPrefix(strings.Fields(line)[0], "id="))
		}
	}
	if killed != 1 {
		t.Fatalf("%d connections are in a transaction", killed)
	}
	o.apply(20, 10)
	o.check()
	o.arm()
	o.check()
}

// A transaction arrives when its sender has given it up: after the repetition,
// which went as a script, or after another claim. It does nothing any more. When
// it arrives first, the repetition finds it.
func TestTransactionArrivesLate(t *testing.T) {
	for _, c := range []string{"repetition", "claim", "first"} {
		t.Run(c, func(t *testing.T) {
			s := redistest.Start(t)
			r := startRelay(t, s.Addr(), nil)
			opts := serverOptions(s)
			opts.Unordered, opts.Timeout, opts.Addresses = true, 200*time.Millisecond, []string{r.l.Addr().String()}
			o := newOwner(t, opts)
			execs := func() (n int) {
				fmt.Sscanf(s.Info("commandstats")["cmdstat_exec"], "calls=%d", &n)
				return n
			}
			before := execs()
			old := o.token
			letGo := r.hold()
			again, err := o.try(20, 10)
			mustBe(t, "Apply whose reply does not come", err, state.ErrUnavailable)
			arrives := func() {
				letGo()
				redistest.Eventually(t, "the transaction arrives", func() bool { return execs() > before })
			}
			direct := serverOptions(s)
			direct.Unordered = true
			b := mustOpen(t, direct)
			switch c {
			case "first":
				arrives()
				if token, err := b.Token(t.Context(), view0); err != nil || token == old {
					t.Fatalf("token %q, error %v: the late transaction was not taken", token, err)
				}
				o.soon(again)
				o.check()
			case "claim":
				v, err := b.Claim(t.Context(), view0, old, "theirs")
				if err != nil {
					t.Fatal(err)
				}
				kept := dumped(s)
				arrives()
				for k, v := range dumped(s) {
					if kept[k] != v {
						t.Errorf("key %q was changed by a former owner", k)
					}
				}
				redistest.Eventually(t, "the former owner is refused", func() bool { return errors.Is(again(), state.ErrFenced) })
				o.v, o.token, o.b = v, "theirs", b
				o.check()
			case "repetition":
				// The repetition by another way: the relay still holds the first.
				h := &handle{b: b, t: b.target(view0)}
				h.lane.h = h
				o.v, o.b = h, b
				o.soon(again)
				newer, want := o.token, o.want
				o.apply(20, 10) // and goes on
				arrives()
				if o.token == newer || len(want) == 0 {
					t.Fatal("no further batch")
				}
				o.check()
			}
		})
	}
}

// A bucket that somebody overwrote: the transaction passes it over, and Apply says
// that the view is corrupt. A process that dies before it hears that leaves a view
// whose token is ahead of that bucket, and any read of the bucket says so, also
// when the key is deleted and written again.
func TestTransactionMeetsAnotherType(t *testing.T) {
	s := redistest.Start(t)
	opts := serverOptions(s)
	opts.Unordered = true
	o := newOwner(t, opts)
	l := o.b.target(view0).layout.Load()
	victim := l.base[3]
	s.Must("SET", victim, "mine")
	before := o.token
	_, err := o.try(100, 10)
	mustBe(t, "Apply", err, state.ErrCorrupt)
	token, err := o.b.Token(t.Context(), view0)
	if err != nil || token == before {
		t.Fatalf("token %q, error %v: the transaction was not carried out, so there is nothing to be found out", token, err)
	}
	inside, outside := [][]byte{}, [][]byte{}
	for i := range 100 {
		k := fmt.Appendf(nil, "%d/%d", o.n-1, i)
		if l.bucket(k) == 3 {
			inside = append(inside, k)
		} else {
			outside = append(outside, k)
		}
	}
	if len(inside) == 0 || len(outside) == 0 {
		t.Fatalf("%d and %d keys", len(inside), len(outside))
	}
	heir := mustOpen(t, opts)
	v, err := heir.Claim(t.Context(), view0, token, "heir")
	if err != nil {
		t.Fatal(err)
	}
	token = "heir"
	damaged := func(when string) {
		t.Helper()
		for _, k := range inside {
			mustBe(t, when+": Read", v.Read(t.Context(), token, [][]byte{k}, func(int, []byte) { t.Errorf("%s: visited", when) }), state.ErrCorrupt)
			_, err := heir.Committed(view0).Read(t.Context(), [][]byte{k}, func(int, []byte) { t.Errorf("%s: visited", when) })
			mustBe(t, when+": a committed Read", err, state.ErrCorrupt)
		}
		if err := v.Read(t.Context(), token, outside, func(int, []byte) {}); err != nil {
			t.Errorf("%s: a read of other buckets: %v", when, err)
		}
	}
	damaged("another type")
	s.Must("DEL", victim)
	damaged("deleted")
	for i := range 4 { // by a script, then by transactions
		var b state.Batch
		b.Put(inside[0], []byte("again"))
		b.Delete(inside[len(inside)-1])
		next := state.Token(fmt.Sprintf("heir %d", i))
		if err := v.Apply(t.Context(), token, next, &b); err != nil {
			t.Fatal(err)
		}
		token = next
		damaged("written again")
	}
	// The rebuild mends it.
	if err := heir.Drop(t.Context(), view0); err != nil {
		t.Fatal(err)
	}
	o.b, o.want = heir, map[string]string{}
	o.claim("")
	o.apply(100, 10)
	o.arm()
	o.check()
}

// A user may lose the right to a command between two batches. What is written
// without a transaction would not be guarded: nothing is.
func TestTransactionsWithoutRights(t *testing.T) {
	all, _ := rights(t)
	user := all[2]
	for _, c := range []struct {
		name  string
		lose  []string
		taken bool // the transaction that is open is carried out nonetheless
	}{
		{"MULTI", []string{"-multi"}, true},
		{"WATCH", []string{"-watch"}, true},
		{"EXEC", []string{"-exec"}, false},
		{"all", []string{"-multi", "-watch", "-exec", "-discard"}, false},
		{"HDEL", []string{"-hdel"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := redistest.Start(t)
			words := slices.Clone(all)
			words[slices.Index(words, ">PASSWORD")] = ">secret"
			s.Must(words...)
			var log lines
			opts := serverOptions(s)
			opts.Username, opts.Password, opts.Unordered, opts.Logger = user, "secret", true, slog.New(slog.NewTextHandler(&log, nil))
			o := newOwner(t, opts)
			s.Must(append([]string{"ACL", "SETUSER", user}, c.lose...)...)
			execs := func() (n, refused int) {
				var us, per float64
				var failed int
				fmt.Sscanf(s.Info("commandstats")["cmdstat_exec"], "calls=%d,usec=%f,usec_per_call=%f,rejected_calls=%d,failed_calls=%d", &n, &us, &per, &refused, &failed)
				return n, refused
			}
			before, _ := execs()
			again, err := o.try(20, 10) // which also deletes a key
			if c.name == "HDEL" {
				if err == nil || errors.Is(err, state.ErrUnavailable) || errors.Is(err, state.ErrCorrupt) {
					t.Fatalf("Apply without a right that it needs: %v", err)
				}
				// The script is refused as well, after its first writes: they are
				// those of this batch, and its repetition makes it whole.
				s.Must("ACL", "SETUSER", user, "+hdel")
				o.soon(again)
				o.check()
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if after, _ := execs(); (after > before) != c.taken {
				t.Errorf("%d transactions were carried out, want one: %t", after-before, c.taken)
			}
			for range 3 {
				o.apply(20, 10)
			}
			o.check()
			if n := strings.Count(log.String(), "refuses transactions"); n != 1 {
				t.Errorf("it is said %d times that transactions are refused:\n%s", n, log.String())
			}
			// A former owner is refused by the scripts.
			if _, err := mustOpen(t, serverOptions(s)).Claim(t.Context(), view0, o.token, "theirs"); err != nil {
				t.Fatal(err)
			}
			_, err = o.try(20, 10)
			mustBe(t, "Apply of a former owner", err, state.ErrFenced)
		})
	}
}

// A former owner whose user has lost the right to MULTI, and whose transaction is
// open: the writes of its batch are in it, and are not carried out one by one.
func TestTransactionsAreNotSentUnguarded(t *testing.T) {
	all, _ := rights(t)
	user := all[2]
	s := redistest.Start(t)
	words := slices.Clone(all)
	words[slices.Index(words, ">PASSWORD")] = ">secret"
	s.Must(words...)
	opts := serverOptions(s)
	opts.Username, opts.Password, opts.Unordered = user, "secret", true
	o := newOwner(t, opts)
	if _, err := mustOpen(t, serverOptions(s)).Claim(t.Context(), view0, o.token, "theirs"); err != nil {
		t.Fatal(err)
	}
	s.Must("ACL", "SETUSER", user, "-multi")
	before := dumped(s)
	_, err := o.try(20, 10)
	mustBe(t, "Apply of a former owner", err, state.ErrFenced)
	if !maps.Equal(before, dumped(s)) {
		t.Error("it has changed what is there")
	}
}

// lines is a log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A server that has no room for more clients still serves those that it has, and
// batches go on as scripts.
func TestTransactionsOnFullServer(t *testing.T) {
	s := redistest.Start(t)
	opts := serverOptions(s)
	opts.Unordered = true
	o := &owner{t: t, b: mustOpen(t, opts), want: map[string]string{}, known: map[string]bool{}}
	o.claim("")
	o.apply(10, 10)
	// One for the driver's own questions, one for calls.
	n, err := s.Must("CLIENT", "LIST").ToString()
	if err != nil {
		t.Fatal(err)
	}
	s.Must("CONFIG", "SET", "maxclients", fmt.Sprint(strings.Count(n, "name=weir")))
	for range 5 {
		o.apply(10, 10)
		if o.armed() {
			t.Fatal("there was room for another client")
		}
	}
	o.check()
}

// Two owners duel for a view, each with transactions, with scripts in between,
// from two processes: each batch is that of one of them, on top of the batch
// before, and none is lost.
func TestTransactionsInADuel(t *testing.T) {
	s := redistest.Start(t)
	opts := serverOptions(s)
	opts.Unordered = true
	var wg sync.WaitGroup
	type step struct{ old, new state.Token }
	var mu sync.Mutex
	done := map[state.Token]step{} // by the old token: no two may be taken on top of one
	deadline := time.Now().Add(2 * time.Second)
	var execs [2]int
	for i := range 2 {
		opts := opts
		opts.hooks.Before = func(calls []redisconn.Call) error {
			if calls[0].Script == execCall {
				execs[i]++
			}
			return nil
		}
		b := mustOpen(t, opts)
		wg.Go(func() {
			n := 0
			next := func() state.Token { n++; return state.Token(fmt.Sprintf("%d-%d", i, n)) }
			for time.Now().Before(deadline) {
				old, err := b.Token(context.Background(), view0)
				if err != nil {
					t.Error(err)
					return
				}
				token := next()
				v, err := b.Claim(context.Background(), view0, old, token)
				if errors.Is(err, state.ErrFenced) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if other, twice := done[old]; twice {
					t.Errorf("%s and %s are both on top of %q", other.new, token, old)
				}
				done[old] = step{old, token}
				mu.Unlock()
				for time.Now().Before(deadline) && n%500 > 0 { // then it claims again
					var batch state.Batch
					to := next()
					for k := range 20 {
						batch.Put(fmt.Appendf(nil, "k%d", k), []byte(to))
					}
					err := v.Apply(context.Background(), token, to, &batch)
					if errors.Is(err, state.ErrFenced) {
						break
					}
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if other, twice := done[token]; twice {
						t.Errorf("%s and %s are both on top of %q", other.new, to, token)
					}
					done[token] = step{token, to}
					mu.Unlock()
					token = to
				}
				v.Close()
			}
		})
	}
	// A reader sees whole batches.
	reader := mustOpen(t, opts)
	wg.Go(func() {
		keys := [][]byte{}
		for k := range 20 {
			keys = append(keys, fmt.Appendf(nil, "k%d", k))
		}
		for time.Now().Before(deadline) {
			seen := map[string]int{}
			if _, err := reader.Committed(view0).Read(context.Background(), keys, func(_ int, v []byte) { seen[string(v)]++ }); err != nil {
				t.Error(err)
				return
			}
			if len(seen) > 1 {
				t.Errorf("a reader sees parts of several batches: %v", seen)
				return
			}
		}
	})
	wg.Wait()
	// From nothing to the last token there is one chain, and all are in it.
	at, n := state.Token(""), 0
	for {
		st, ok := done[at]
		if !ok {
			break
		}
		at, n = st.new, n+1
	}
	if token, err := reader.Token(t.Context(), view0); err != nil || token != at || n != len(done) {
		t.Errorf("the chain has %d of %d batches and ends at %q; the token is %q, error %v", n, len(done), at, token, err)
	}
	t.Logf("%d batches and claims, %d and %d transactions", len(done), execs[0], execs[1])
	if execs[0] < 10 || execs[1] < 10 {
		t.Error("hardly a batch went as a transaction")
	}
}
