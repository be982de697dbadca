package redisstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/state"
)

// pointBackend keeps no key in order, so that batches go as transactions, and
// yet has ranges, as the conformance suite wants them: it lists the names in the
// buckets and reads their values, which Read compares with the token.
type pointBackend struct{ *Backend }

func (b pointBackend) Claim(ctx context.Context, id state.ID, old, new state.Token) (state.View, error) {
	v, err := b.Backend.Claim(ctx, id, old, new)
	if err != nil {
		return nil, err
	}
	return pointView{v.(*handle)}, nil
}

func (b pointBackend) Committed(id state.ID) state.Reader {
	return pointReader{b.Backend.Committed(id), b.Backend, b.target(id)}
}

type pointView struct{ *handle }

func (v pointView) Iterate(ctx context.Context, expect state.Token, r state.Range) state.Iterator {
	return listed(ctx, v.b, v.t, r, func(keys [][]byte, visit func(int, []byte)) (state.Token, error) {
		return expect, v.Read(ctx, expect, keys, visit)
	})
}

type pointReader struct {
	state.Reader
	b *Backend
	t *target
}

func (p pointReader) Iterate(ctx context.Context, r state.Range) state.Iterator {
	return listed(ctx, p.b, p.t, r, func(keys [][]byte, visit func(int, []byte)) (state.Token, error) {
		return p.Read(ctx, keys, visit)
	})
}

// list is an iterator over keys that were listed under one token: the names in
// the buckets are those of that token when it was there before and after. Their
// values are read in pages, as the iterator of package redisstore does.
type list struct {
	ctx   context.Context
	b     *Backend
	read  func([][]byte, func(int, []byte)) (state.Token, error)
	keys  [][]byte // to be read
	page  [][2][]byte
	at    int // behind the current entry of the page
	ended bool
	err   error
}

func listed(ctx context.Context, b *Backend, t *target, r state.Range, read func([][]byte, func(int, []byte)) (state.Token, error)) state.Iterator {
	for {
		before, err := read(nil, func(int, []byte) {})
		if err != nil {
			return state.Empty(err)
		}
		keys, err := names(ctx, b, t, r)
		if err != nil {
			return state.Empty(err)
		}
		after, err := read(nil, func(int, []byte) {})
		if err != nil {
			return state.Empty(err)
		}
		if before == after {
			return &list{ctx: ctx, b: b, read: read, keys: keys}
		}
	}
}

// names lists the keys of a range.
func names(ctx context.Context, b *Backend, t *target, r state.Range) ([][]byte, error) {
	var keys [][]byte
	l := t.layout.Load()
	for i, name := range slices.Concat(l.base, l.upper) {
		c := b.s.Client()
		names, err := c.Do(ctx, c.B().Arbitrary("HKEYS").Keys(name).Build()).AsStrSlice()
		if err = b.s.Classify(ctx, err); err != nil {
			return nil, err
		}
		if i < l.buckets && !slices.Contains(names, mark) {
			return nil, corrupt(name)
		}
		for _, n := range names {
			if k := keyOf(n); n != mark && (r.Lower == nil || bytes.Compare(k, r.Lower) >= 0) && (r.Upper == nil || bytes.Compare(k, r.Upper) < 0) {
				keys = append(keys, k)
			}
		}
	}
	slices.SortFunc(keys, bytes.Compare)
	keys = slices.CompactFunc(keys, bytes.Equal)
	if r.Reverse {
		slices.Reverse(keys)
	}
	return keys, nil
}

func (l *list) Next() bool {
	for l.err == nil && !l.ended {
		if l.err = l.b.check(l.ctx); l.err != nil {
			return false
		}
		if l.at < len(l.page) {
			l.at++
			return true
		}
		n := min(100, len(l.keys))
		keys := l.keys[:n]
		l.keys, l.page, l.at, l.ended = l.keys[n:], nil, 0, n == 0
		values := make([][]byte, n)
		_, l.err = l.read(keys, func(i int, v []byte) { values[i] = v })
		for i, v := range values {
			if v != nil {
				l.page = append(l.page, [2][]byte{keys[i], v})
			}
		}
	}
	return false
}

func (l *list) Key() []byte   { return l.page[l.at-1][0] }
func (l *list) Value() []byte { return l.page[l.at-1][1] }
func (l *list) Err() error    { return l.err }
func (l *list) Close() error  { l.ended = true; return nil }

// trips notes the round trips of a backend.
type trips struct{ made []string }

func (tr *trips) before(calls []redisconn.Call) error {
	for _, c := range calls {
		tr.made = append(tr.made, c.Script.Name)
	}
	tr.made = append(tr.made, ";")
	return nil
}

func (tr *trips) take() string {
	s := strings.Join(tr.made, " ")
	tr.made = nil
	return s
}

// writing applies batches to a view of a backend.
type writing struct {
	t     testing.TB
	v     state.View
	token state.Token
	n     int
}

func claimed(t testing.TB, b state.Backend, id state.ID) *writing {
	t.Helper()
	v, err := b.Claim(t.Context(), id, "", "t0")
	if err != nil {
		t.Fatal(err)
	}
	return &writing{t: t, v: v, token: "t0"}
}

// put applies a batch of n keys.
func (w *writing) put(n int) error {
	var b state.Batch
	for i := range n {
		b.Put(fmt.Appendf(nil, "\x01p%d", i), fmt.Append(nil, w.n))
	}
	w.n++
	next := state.Token(fmt.Sprintf("t%d", w.n))
	if err := w.v.Apply(w.t.Context(), w.token, next, &b); err != nil {
		return err
	}
	w.token = next
	return nil
}

func (w *writing) must(n int) {
	w.t.Helper()
	if err := w.put(n); err != nil {
		w.t.Fatal(err)
	}
}

// A batch that follows one for a transaction is one, in one round trip; the first
// of them takes one more. Batches with keys in order, staged ones and those of a
// backend that is told so go as scripts, and none that comes between makes the
// others cost a round trip more.
func TestTripsOfBatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		opts  Options
		sizes []int
		want  string
	}{
		{"one after another", Options{Unordered: true}, []int{5, 5, 1, 0, 500}, "apply ; watch ; exec ; exec ; exec ; exec ;"},
		{"point lookups", Options{PointLookups: []string{"p"}}, []int{5, 5, 5}, "apply ; watch ; exec ; exec ;"},
		{"in order", Options{}, []int{5, 5, 5}, "apply ; apply ; apply ;"},
		{"scripts only", Options{Unordered: true, ScriptsOnly: true}, []int{5, 5, 5}, "apply ; apply ; apply ;"},
		{"staged", Options{Unordered: true}, []int{5, 5, 501, 5, 5, 5},
			"apply ; watch ; exec ; begin stage stage flip ; move ; moved ; apply ; watch ; exec ; exec ;"},
		{"in turns", Options{Unordered: true}, []int{5, 501, 5, 501, 5},
			"apply ; begin stage stage flip ; move ; moved ; apply ; begin stage stage flip ; move ; moved ; apply ;"},
	} {
		var tr trips
		opts := miniRedis(t)
		opts.Unordered, opts.ScriptsOnly, opts.PointLookups = c.opts.Unordered, c.opts.ScriptsOnly, c.opts.PointLookups
		opts.hooks.Before = tr.before
		b := mustOpen(t, opts)
		w := claimed(t, b, state.ID{Application: "app", Task: "0_0"})
		tr.take()
		for _, n := range c.sizes {
			w.must(n)
		}
		if got := tr.take(); got != c.want {
			t.Errorf("%s: the round trips are %q, want %q", c.name, got, c.want)
		}
	}
}

// What is not of the open transaction is found out by comparing, before anything
// is sent: another generation, another token, an overlay.
func TestTransactionOnTopOfOthers(t *testing.T) {
	t.Parallel()
	id := state.ID{Application: "app", Task: "0_0"}
	for _, c := range []struct {
		name string
		do   func(w *writing) error
		want string
	}{
		{"clear", func(w *writing) error {
			if err := w.v.Clear(t.Context(), w.token, "cleared"); err != nil {
				return err
			}
			w.token = "cleared"
			return nil
		}, "watch ; exec ;"},
		{"restore", func(w *writing) error {
			bulk, err := w.v.Bulk(t.Context(), w.token)
			if err != nil {
				return err
			}
			w.token = "restored"
			return errors.Join(bulk.Put([]byte("a"), []byte("b")), bulk.Checkpoint(t.Context(), "restored"), bulk.Close())
		}, "watch ; exec ;"},
		{"outputs", func(w *writing) error {
			var b state.Batch
			b.Put([]byte("a"), []byte("b"))
			old := w.token
			w.token = "out"
			return w.v.(state.OutboxView).ApplyOut(t.Context(), old, "out", &b, 0, []byte("segment"))
		}, "watch ; exec ;"},
	} {
		var tr trips
		opts := miniRedis(t)
		opts.Unordered, opts.hooks.Before = true, tr.before
		b := mustOpen(t, opts)
		w := claimed(t, b, id)
		w.must(5)
		w.must(5)
		if err := c.do(w); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		tr.take()
		w.must(5)
		if got := tr.take(); got != c.want {
			t.Errorf("%s: the round trips are %q, want %q", c.name, got, c.want)
		}
		stale := *w
		stale.token = "t1"
		var fenced *state.FencedError
		if err := stale.put(5); !errors.As(err, &fenced) || fenced.Stored != w.token {
			t.Errorf("%s: a batch on top of an old token: %v", c.name, err)
		}
		w.must(5)
		seen := 0
		if err := w.v.Read(t.Context(), w.token, slices.Collect(keysTo(5)), func(_ int, v []byte) {
			if string(v) == fmt.Sprint(w.n-1) {
				seen++
			}
		}); err != nil || seen != 5 {
			t.Errorf("%s: %d of 5 values are there, error %v", c.name, seen, err)
		}
	}
}

// Where the data are is only a guess of the process, which what was read with the
// token corrects: another generation, or an overlay that counts before the buckets.
func TestTransactionInAnotherLayout(t *testing.T) {
	t.Parallel()
	id := state.ID{Application: "app", Task: "0_0"}
	for _, c := range []struct {
		name  string
		guess func(b *Backend, w *writing) *layout // makes the layout another one, and returns the guess
	}{
		{"generation", func(b *Backend, w *writing) *layout {
			former := b.target(id).layout.Load()
			if err := w.v.Clear(t.Context(), w.token, "cleared"); err != nil {
				t.Fatal(err)
			}
			w.token = "cleared"
			w.must(5)
			w.must(5) // a transaction is open on top of the new one
			return former
		}},
		{"overlay", func(b *Backend, w *writing) *layout {
			b.s.Options().Hooks.Before = func(calls []redisconn.Call) error {
				if calls[0].Script == moveScript {
					return state.ErrUnavailable
				}
				return nil
			}
			w.must(maxChunkKeys + 1)
			b.s.Options().Hooks.Before = nil
			l := b.target(id).layout.Load()
			if l.over == "" {
				t.Fatal("there is no overlay")
			}
			w.v.(*handle).lane.suited = time.Now() // so that the next batch opens a transaction
			return l.with("", overlay{})
		}},
	} {
		opts := miniRedis(t)
		opts.Unordered = true
		b := mustOpen(t, opts)
		w := claimed(t, b, id)
		w.must(5)
		w.must(5)
		guess := c.guess(b, w)
		b.target(id).layout.Store(guess)
		w.must(5)
		want := fmt.Sprint(w.n - 1)
		if err := w.v.Read(t.Context(), w.token, slices.Collect(keysTo(5)), func(i int, v []byte) {
			if string(v) != want {
				t.Errorf("%s: value %d is %q, want %q", c.name, i, v, want)
			}
		}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// keysTo are the keys of put.
func keysTo(n int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := range n {
			if !yield(fmt.Appendf(nil, "\x01p%d", i)) {
				return
			}
		}
	}
}

// Something between forgets MULTI: the writes are carried out as they come. That
// is found out, and not done again.
func TestTransactionCarriedOutUnguarded(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	var tr trips
	opts := Options{Addresses: []string{m.Addr()}, Check: CheckOff, Unordered: true}
	opts.hooks.Before = tr.before
	b := mustOpen(t, opts)
	w := claimed(t, b, state.ID{Application: "app", Task: "0_0"})
	m.Server().SetPreHook(func(p *miniserver.Peer, cmd string, _ ...string) bool {
		if cmd == "MULTI" {
			p.WriteOK()
		}
		return cmd == "MULTI"
	})
	w.must(1)
	if err := w.put(1); !errors.Is(err, state.ErrCorrupt) {
		t.Errorf("a batch without a guard: %v, want state.ErrCorrupt", err)
	}
	tr.take()
	w.token = "t2"
	w.must(1)
	w.must(1)
	if got := tr.take(); got != "apply ; apply ;" {
		t.Errorf("the next batches are %q", got)
	}
}

// More views than connections may be pinned: the others go as scripts, until one
// of the first is closed or claimed anew.
func TestPinnedConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	var tr trips
	opts := miniRedis(t)
	opts.Unordered, opts.hooks.Before = true, tr.before
	b := mustOpen(t, opts)
	var views []*writing
	for i := range redisconn.MaxPinned + 2 {
		w := claimed(t, b, state.ID{Application: "app", Task: fmt.Sprintf("0_%d", i)})
		views = append(views, w)
		w.must(1)
		w.must(1)
	}
	step := func(w *writing) string {
		tr.take()
		w.must(1)
		return tr.take()
	}
	last := views[len(views)-2:]
	for i, w := range views[:len(views)-2] {
		if got := step(w); got != "exec ;" {
			t.Fatalf("view %d: %s", i, got)
		}
	}
	for _, w := range last {
		if got := step(w); got != "apply ;" {
			t.Errorf("a view without a connection: %s", got)
		}
	}
	if err := views[0].v.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := b.Claim(t.Context(), state.ID{Application: "app", Task: "0_1"}, views[1].token, "claimed")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range last {
		got := ""
		for got != "exec ;" { // connections are closed behind one's back
			if got = step(w); t.Context().Err() != nil {
				t.Fatalf("no connection is free: %s", got)
			}
		}
	}
	if err := views[1].put(1); !errors.Is(err, state.ErrFenced) {
		t.Errorf("the former handle: %v", err)
	}
	w := &writing{t: t, v: again, token: "claimed", n: 100}
	for range 3 {
		w.must(1)
	}
}

// What the replies of EXEC mean: refused as a whole, or in part.
func TestExecReplies(t *testing.T) {
	t.Parallel()
	id := state.ID{Application: "app", Task: "0_0"}
	refused := func(msg string) func(p *miniserver.Peer) {
		return func(p *miniserver.Peer) { p.WriteError(msg) }
	}
	partly := func(replies ...string) func(p *miniserver.Peer) {
		return func(p *miniserver.Peer) {
			p.WriteLen(len(replies))
			for _, r := range replies {
				if r == "" {
					p.WriteInt(1)
				} else {
					p.WriteError(r)
				}
			}
		}
	}
	const why = "EXECABORT Transaction discarded because of: "
	for name, c := range map[string]struct {
		reply func(p *miniserver.Peer)
		want  error // nil: a script stores the batch; errors.ErrUnsupported: none of the classes
		goes  bool  // batches go as transactions afterwards
	}{
		"MISCONF":            {refused(why + "MISCONF Redis is configured to save RDB snapshots"), state.ErrUnavailable, true},
		"READONLY":           {refused(why + "READONLY You can't write against a read only replica."), state.ErrUnavailable, true},
		"NOREPLICAS":         {refused(why + "NOREPLICAS Not enough good replicas to write."), state.ErrUnavailable, true},
		"BUSY":               {refused(why + "BUSY Redis is busy running a script."), state.ErrUnavailable, true},
		"LOADING":            {refused("LOADING Redis is loading the dataset in memory"), state.ErrUnavailable, true},
		"CLUSTERDOWN":        {refused("CLUSTERDOWN Hash slot not served"), state.ErrUnavailable, true},
		"TRYAGAIN":           {refused("TRYAGAIN Multiple keys request during rehashing of slot"), state.ErrUnavailable, true},
		"MOVED":              {refused("MOVED 1 127.0.0.1:1"), nil, true},
		"ASK":                {refused("ASK 1 127.0.0.1:1"), nil, true},
		"OOM":                {refused(why + "OOM command not allowed when used memory > 'maxmemory'."), nil, true},
		"EXECABORT":          {refused("EXECABORT Transaction discarded because of previous errors."), nil, false},
		"NOPERM":             {refused("NOPERM this user has no permissions to run the 'exec' command"), nil, false},
		"changed":            {func(p *miniserver.Peer) { p.WriteLen(-1) }, nil, true},
		"another type":       {partly("WRONGTYPE Operation against a key holding the wrong kind of value", ""), state.ErrCorrupt, true},
		"rights of a bucket": {partly("NOPERM ACLs rules changed between the moment", ""), state.ErrCorrupt, true},
		"rights of the meta": {partly("", "NOPERM ACLs rules changed between the moment"), errors.ErrUnsupported, true},
		"too few replies":    {partly(""), errors.ErrUnsupported, true},
	} {
		m := miniredis.RunT(t)
		var tr trips
		opts := Options{Addresses: []string{m.Addr()}, Check: CheckOff, Unordered: true}
		opts.hooks.Before = tr.before
		b := mustOpen(t, opts)
		w := claimed(t, b, id)
		w.must(1)
		w.must(1)
		old := w.token
		m.Server().SetPreHook(func(p *miniserver.Peer, cmd string, _ ...string) bool {
			if cmd != "EXEC" {
				return false
			}
			c.reply(p)
			return true
		})
		err := w.put(1)
		m.Server().SetPreHook(nil)
		switch {
		case c.want == nil && err != nil:
			t.Errorf("%s: %v, want that a script stores the batch", name, err)
		case c.want != nil && err == nil:
			t.Errorf("%s: the batch is taken for stored", name)
		}
		for _, class := range []error{state.ErrUnavailable, state.ErrFull, state.ErrCorrupt, state.ErrFenced, state.ErrClosed} {
			if errors.Is(err, class) != (class == c.want) {
				t.Errorf("%s: %v, is %v: %t", name, err, class, errors.Is(err, class))
			}
		}
		token, err := b.Token(t.Context(), id)
		if errors.Is(err, state.ErrUnavailable) { // READONLY has closed all connections
			token, err = b.Token(t.Context(), id)
		}
		if err != nil || (token != old) != (c.want == nil) {
			t.Errorf("%s: token %q behind %q, error %v", name, token, old, err)
		}
		// Nothing of it is still open, whatever it was.
		w.token = token
		w.n += 10
		w.must(1)
		tr.take()
		w.must(1)
		w.must(1)
		if got := tr.take(); strings.HasSuffix(got, "exec ;") != c.goes {
			t.Errorf("%s: the next batches are %q", name, got)
		}
	}
}
