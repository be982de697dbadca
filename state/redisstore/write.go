package redisstore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/state"
)

// Bounds of what the server does in one script, so that nobody else waits for
// long: some ms. A single larger value is a chunk of its own.
const (
	maxChunkKeys  = 500
	maxChunkBytes = 256 << 10
	// maxPipeline is how many chunks are on their way at once.
	maxPipeline = 4
)

// group are the writes of one chunk to one bucket.
type group struct {
	bucket  int
	ordered bool
	puts    []string // field, value, ...
	dels    []string
}

// chunk collects the writes of one script. Of a key that occurs more than once
// the last write counts: the script does puts before deletes, so that only a
// put after a delete needs care.
type chunk struct {
	groups []group // two per bucket: without and with order
	used   []int   // groups that are not empty
	keys   int
	bytes  int
	gone   map[string]struct{} // fields that are deleted
}

func (c *chunk) init(l *layout) {
	c.reset()
	if len(c.groups) == 2*l.buckets {
		return
	}
	c.groups = make([]group, 2*l.buckets)
	for i := range c.groups {
		c.groups[i].bucket, c.groups[i].ordered = i/2, i%2 == 1
	}
}

func (c *chunk) reset() {
	for _, i := range c.used {
		g := &c.groups[i]
		clear(g.puts)
		clear(g.dels)
		g.puts, g.dels = g.puts[:0], g.dels[:0]
	}
	c.used, c.keys, c.bytes = c.used[:0], 0, 0
	clear(c.gone)
}

func (c *chunk) fits(size int) bool {
	return c.keys == 0 || c.keys < maxChunkKeys && c.bytes+size <= maxChunkBytes
}

// add adds a write; a nil value deletes. Key and value must not change before
// the chunk is sent.
func (c *chunk) add(l *layout, key, value []byte) {
	i := 2 * l.bucket(key)
	if l.ordered(key) {
		i++
	}
	g, f := &c.groups[i], field(key)
	if len(g.puts) == 0 && len(g.dels) == 0 {
		c.used = append(c.used, i)
	}
	c.keys++
	c.bytes += len(key) + len(value)
	_, gone := c.gone[f]
	switch {
	case value == nil && gone:
	case value == nil:
		if c.gone == nil {
			c.gone = map[string]struct{}{}
		}
		c.gone[f] = struct{}{}
		g.dels = append(g.dels, f)
	default:
		if gone {
			delete(c.gone, f)
			g.dels = slices.DeleteFunc(g.dels, func(d string) bool { return d == f })
		}
		g.puts = append(g.puts, f, stringOf(value))
	}
}

// ordered says whether a key of the chunk is kept in order.
func (c *chunk) ordered() bool {
	return slices.ContainsFunc(c.used, func(i int) bool { return c.groups[i].ordered })
}

// args is how many arguments the groups take.
func (c *chunk) args() int {
	n := 3 * len(c.used)
	for _, i := range c.used {
		n += len(c.groups[i].puts) + 2*len(c.groups[i].dels)
	}
	return n
}

// What is before the groups in a call of apply.lua.
const (
	applyKeys = 2
	applyArgs = 4
)

// apply is the call that stores the chunk as a whole batch.
func (c *chunk) apply(t *target, l *layout, old, new state.Token) redisconn.Call {
	keys := make([]string, applyKeys, applyKeys+len(c.used)+1) // and one for a segment
	keys[0], keys[1] = t.meta, l.index
	if !l.indexed() {
		keys[1] = t.meta // a place holder in the right slot; no group is ordered
	}
	args := make([]string, applyArgs, applyArgs+c.args()+5)
	args[0], args[1], args[2], args[3] = string(old), string(new), l.gen, l.over
	for _, i := range c.used {
		g := &c.groups[i]
		keys = append(keys, l.base[g.bucket])
		args = append(args, flag(g.ordered), strconv.Itoa(len(g.puts)/2), strconv.Itoa(len(g.dels)))
		args = append(args, g.puts...)
		args = append(args, g.dels...)
	}
	return redisconn.Call{Script: applyScript, Keys: keys, Args: args}
}

// stage is the call that stages the chunk as the given part of a batch.
func (c *chunk) stage(t *target, l *layout, old state.Token, id string, number int) redisconn.Call {
	keys := make([]string, 2, 2+len(c.used))
	keys[0], keys[1] = t.meta, l.index
	if !l.indexed() {
		keys[1] = t.meta
	}
	args := make([]string, 3, 3+c.args())
	args[0], args[1], args[2] = string(old), id, strconv.Itoa(number)
	arena := make([]byte, 0, c.bytes+c.keys)
	for _, i := range c.used {
		g := &c.groups[i]
		keys = append(keys, l.upper[g.bucket])
		args = append(args, flag(g.ordered), strconv.Itoa(len(g.puts)/2), strconv.Itoa(len(g.dels)))
		for j := 0; j < len(g.puts); j += 2 {
			from := len(arena)
			arena = append(append(arena, '+'), g.puts[j+1]...)
			args = append(args, g.puts[j], stringOf(arena[from:len(arena):len(arena)]))
		}
		for _, f := range g.dels {
			args = append(args, f, "-")
		}
	}
	return redisconn.Call{Script: stageScript, Keys: keys, Args: args}
}

// writer turns writes into calls: one call when they fit into a chunk, else a
// stage, whose chunks are sent while the writes come in.
type writer struct {
	b   *Backend
	t   *target
	l   *layout
	old state.Token
	c   chunk

	stage   string // id of the stage, "" when there is none yet
	chunks  int
	o       overlay
	mask    []byte
	pending []redisconn.Call // not known to have been carried out
}

func (w *writer) init(b *Backend, t *target, l *layout, old state.Token) {
	w.b, w.t = b, t
	w.next(l, old)
}

// next begins another batch.
func (w *writer) next(l *layout, old state.Token) {
	w.l, w.old = l, old
	w.c.init(l)
	w.stage, w.chunks, w.o, w.pending = "", 0, overlay{}, nil
}

// add adds a write, which may send those before it.
func (w *writer) add(ctx context.Context, key, value []byte) error {
	var err error
	if !w.c.fits(len(key) + len(value)) {
		w.spill()
		if len(w.pending) >= maxPipeline {
			err = w.flush(ctx)
		}
	}
	w.c.add(w.l, key, value)
	return err
}

// spill makes a staged chunk of what has been collected.
func (w *writer) spill() {
	if w.stage == "" {
		var id [8]byte
		rand.Read(id[:])
		w.stage = hex.EncodeToString(id[:])
		w.mask = append(w.mask[:0], zeros(w.l.buckets)...)
		w.pending = append(w.pending, redisconn.Call{Script: beginScript, Keys: append([]string{w.t.meta}, w.l.upper...),
			Args: []string{string(w.old), w.l.gen, w.stage, flag(!w.l.indexed())}})
	}
	w.chunks++
	for _, i := range w.c.used {
		w.mask[w.c.groups[i].bucket] = '1'
	}
	w.o.entries += w.c.keys
	w.o.bytes += w.c.bytes
	w.pending = append(w.pending, w.c.stage(w.t, w.l, w.old, w.stage, w.chunks))
	w.c.reset()
}

func zeros(n int) []byte {
	z := make([]byte, n)
	for i := range z {
		z[i] = '0'
	}
	return z
}

// flush sends what is pending. After an error it stays pending: to send it
// again does no harm, and is the way to find out.
func (w *writer) flush(ctx context.Context) error {
	for range 2 {
		replies, err := w.b.s.Run(ctx, w.t.br, false, w.pending...)
		if err != nil {
			return err
		}
		again, err := w.judge(ctx, replies)
		if err != nil {
			return err
		}
		if !again {
			w.pending = w.pending[:0]
			return nil
		}
	}
	return w.lost()
}

func (w *writer) lost() error {
	return fmt.Errorf("%w: what was staged of a large batch is gone: another owner, or the server lost it", state.ErrUnavailable)
}

// judge looks at the replies of a stage. It says whether to send them again,
// after what an earlier stage left was cleaned up.
func (w *writer) judge(ctx context.Context, replies []redisconn.Reply) (again bool, err error) {
	for i := range replies {
		switch r := &replies[i]; r.Status {
		case statusOK:
		case statusFenced:
			return false, w.t.fenced(r.Str(0))
		case statusLeftover:
			return true, w.discard(ctx)
		case statusLayout:
			if _, err := w.t.learn(r.List(0)); err != nil {
				return false, err
			}
			return false, errLayout{}
		default:
			return false, w.lost()
		}
	}
	return false, nil
}

// discard undoes what a stage that was given up left in the order index, and
// lets the stage begin whose call is the first that is pending.
func (w *writer) discard(ctx context.Context) error {
	all := overlay{entries: maxChunkKeys * w.l.buckets, mask: string(ones(w.l.buckets))}
	if err := w.b.move(ctx, w.t, w.l, w.old, all, true); err != nil {
		return err
	}
	begin := &w.pending[0]
	begin.Args[len(begin.Args)-1] = flag(true)
	return nil
}

func ones(n int) []byte {
	z := make([]byte, n)
	for i := range z {
		z[i] = '1'
	}
	return z
}

// errLayout says that the data are elsewhere, and that the target knows where.
type errLayout struct{}

func (errLayout) Error() string { return "the layout of the view has changed" }

func isLayout(err error) bool { return errors.Is(err, errLayout{}) }

// send carries out an APPLY of one chunk.
func (w *writer) send(ctx context.Context, c redisconn.Call) error {
	replies, err := w.b.s.Run(ctx, w.t.br, true, c)
	if err != nil {
		return err
	}
	switch r := &replies[0]; r.Status {
	case statusFenced:
		return w.t.fenced(r.Str(0))
	case statusLayout:
		if _, err := w.t.learn(r.List(0)); err != nil {
			return err
		}
		return errLayout{}
	}
	return nil
}

// commit stores all writes together with the token new.
func (w *writer) commit(ctx context.Context, new state.Token) error {
	if w.stage == "" {
		return w.send(ctx, w.c.apply(w.t, w.l, w.old, new))
	}
	if w.c.keys > 0 {
		w.spill()
	}
	w.o.mask = string(w.mask)
	over := w.o.String()
	flip := redisconn.Call{Script: flipScript, Keys: []string{w.t.meta},
		Args: []string{string(w.old), string(new), w.l.gen, w.stage, strconv.Itoa(w.chunks), over}}
	if len(w.pending) > maxPipeline {
		if err := w.flush(ctx); err != nil {
			return err
		}
	}
	for range 2 {
		calls := append(slices.Clone(w.pending), flip)
		replies, err := w.b.s.Run(ctx, w.t.br, true, calls...)
		if err != nil {
			return err
		}
		switch last := &replies[len(replies)-1]; last.Status {
		case statusDup:
			// By an earlier call, whose overlay is still there.
			_, err := w.b.read(ctx, w.t, &new, nil, nil)
			return err
		case statusOK:
			w.settle(ctx, over, new)
			return nil
		case statusFenced:
			return w.t.fenced(last.Str(0))
		}
		again, err := w.judge(ctx, replies)
		if err != nil {
			return err
		}
		if !again {
			break
		}
	}
	return w.lost()
}

// settle moves the overlay into its place. The batch is part of the view
// already; when the move fails, the next batch begins with it.
func (w *writer) settle(ctx context.Context, over string, token state.Token) {
	l := w.l.with(over, w.o)
	w.t.layout.Store(l)
	if err := w.b.settle(ctx, w.t, l, token); err != nil {
		w.b.opts.Logger.Warn("a large batch was stored and could not be moved into its place; the next one will move it",
			"task", w.t.id.Task, "error", err)
	}
}

// settle moves an overlay into the buckets.
func (b *Backend) settle(ctx context.Context, t *target, l *layout, token state.Token) error {
	if l.over == "" {
		return nil
	}
	if err := b.move(ctx, t, l, token, l.overlay, false); err != nil {
		return err
	}
	replies, err := b.s.Run(ctx, t.br, false, redisconn.Call{Script: movedScript, Keys: append([]string{t.meta}, l.upper...), Args: []string{string(token), l.over}})
	if err != nil {
		return err
	}
	switch r := &replies[0]; r.Status {
	case statusOK:
		t.layout.Store(l.with("", overlay{}))
		return nil
	case statusFenced:
		return t.fenced(r.Str(0))
	default:
		_, err := t.learn(r.List(0))
		return err
	}
}

// move calls the move script for all buckets of an overlay, each until it has
// been walked through, and for so many buckets in one call that the call stays
// within the bounds of a chunk.
func (b *Backend) move(ctx context.Context, t *target, l *layout, token state.Token, o overlay, discard bool) error {
	type pair struct {
		bucket int
		cursor string
	}
	var queue []pair
	for i := range l.buckets {
		if o.mask[i] == '1' {
			queue = append(queue, pair{i, "0"})
		}
	}
	if len(queue) == 0 {
		return nil
	}
	count := maxChunkKeys
	if o.entries > 0 && o.bytes > 0 {
		count = max(min(count, maxChunkBytes/(o.bytes/o.entries+1)), 1)
	}
	// What one step takes from a bucket: all of it, or count.
	step := max(min(count, o.entries/len(queue)), 1)
	index := t.meta
	if l.indexed() {
		index = l.index
	}
	for len(queue) > 0 {
		n := min(max(count/step, 1), len(queue))
		keys, args := []string{t.meta, index}, []string{string(token), l.over, flag(discard), flag(l.indexed()), strconv.Itoa(count)}
		for _, p := range queue[:n] {
			keys = append(keys, l.upper[p.bucket], l.base[p.bucket])
			args = append(args, p.cursor)
		}
		replies, err := b.s.Run(ctx, t.br, false, redisconn.Call{Script: moveScript, Keys: keys, Args: args})
		if err != nil {
			return err
		}
		switch r := &replies[0]; r.Status {
		case statusFenced:
			return t.fenced(r.Str(0))
		case statusLayout:
			if _, err := t.learn(r.List(0)); err != nil {
				return err
			}
			return errLayout{}
		case statusCorrupt:
			return corrupt(r.Str(0))
		default:
			var rest []pair
			for i, p := range queue[:n] {
				if p.cursor = r.Str(i); p.cursor != "0" {
					rest = append(rest, p)
				}
			}
			queue = append(rest, queue[n:]...)
		}
	}
	return nil
}
