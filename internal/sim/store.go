package sim

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
)

// Store is a store that forgets. What it holds is in a backend; beside it is the
// list of everything that it ever acknowledged, so that it can go back.
type Store struct {
	w      *World
	remote bool // nobody's own
	db     *database
	other  *database // that Database shows in its place
	late   []lateWrite
	flaws  Flaws
}

// Flaws are ways in which a store can be wrong. They are for controls.
type Flaws struct {
	Unfenced   bool // reads do not compare the token
	EpochOnly  bool // an owner is known by its epoch, not by the whole token
	TokenFirst bool // the token is written in a call of its own, before the data
}

// Raw is a backend whose contents can be put back, as they lie there, without a
// word to the backend. Methods that fail end the simulation.
type Raw interface {
	state.Backend
	// Save keeps what there is of a view and returns a function that puts it
	// back.
	Save(id state.ID) func() error
	// Erase deletes what there is of a view, and Damage a part of it, if there
	// is one: it says whether there was.
	Erase(id state.ID) error
	Damage(id state.ID) (bool, error)
	// Another returns the same store as another process sees it.
	Another() (state.Backend, error)
}

// database is what a store holds.
type database struct {
	b       state.Backend
	raw     Raw // b, if it is one
	handles map[state.ID]state.View
	views   map[state.ID]*version
	past    []change
}

// version is a view at one time. It does not change.
type version struct {
	token  state.Token
	data   map[string]string
	slots  map[int]string // of the outbox
	broken bool           // a part of it is gone
}

// change is one acknowledged write: what the view was before it, nil when it was
// not there, and the way back where the backend has one of its own.
type change struct {
	id     state.ID
	before *version
	back   func() error
}

type lateWrite struct {
	what string
	do   func() error
}

func newStore(w *World, remote bool, b state.Backend) *Store {
	return &Store{w: w, remote: remote, db: newDatabase(b)}
}

func newDatabase(b state.Backend) *database {
	raw, _ := b.(Raw)
	return &database{b: b, raw: raw, handles: map[state.ID]state.View{}, views: map[state.ID]*version{}}
}

var ctx = context.Background()

// set makes a version the present one of a view, through the front door.
func (d *database) set(id state.ID, v *version) error {
	if err := d.b.Drop(ctx, id); err != nil {
		return err
	}
	delete(d.views, id)
	if v == nil {
		return nil
	}
	h, err := d.b.Claim(ctx, id, "", "being set")
	if err != nil {
		return err
	}
	var b state.Batch
	for k, val := range v.data {
		b.Put([]byte(k), []byte(val))
	}
	if err := setSlots(h, v.slots); err != nil {
		return err
	}
	if err := h.Apply(ctx, "being set", v.token, &b); err != nil {
		return err
	}
	d.handles[id], d.views[id] = h, v
	return nil
}

// save is to be called before a view changes, with what is to be noted then.
func (d *database) save(id state.ID) change {
	c := change{id: id, before: d.views[id]}
	if d.raw != nil {
		c.back = d.raw.Save(id)
	}
	return c
}

// undo takes a change back.
func (d *database) undo(c change) error {
	if c.back == nil {
		return d.set(c.id, c.before)
	}
	if c.before == nil {
		delete(d.views, c.id)
	} else {
		d.views[c.id] = c.before
	}
	return c.back()
}

// noted records that a view has become v.
func (d *database) noted(c change, v *version) {
	id := c.id
	d.past = append(d.past, c)
	if v == nil {
		delete(d.views, id)
	} else {
		d.views[id] = v
	}
}

// token is the present token of a view.
func (d *database) token(id state.ID) state.Token {
	if v := d.views[id]; v != nil {
		return v.token
	}
	return ""
}

// forget takes the last n changes back, of one view or of all.
func (s *Store) forget(id *state.ID, n int) {
	d := s.db
	back := map[state.ID]change{}
	for i := len(d.past) - 1; i >= 0 && n > 0; i-- {
		if c := d.past[i]; id == nil || c.id == *id {
			back[c.id] = c
			d.past = slices.Delete(d.past, i, i+1)
			n--
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(back), byTask) {
		if back[id].before == nil && s.w.applied[id] {
			continue // nobody can mend that; TestOutboxFailsClosed in weirtest has it
		}
		s.w.forgot = true
		s.w.must(d.undo(back[id]))
		s.w.note("the store goes back: view %s to %s", id.Task, describe(back[id].before))
	}
}

// forgetClaims takes the changes of a view back to what its owner had applied last
// before that many claims.
func (s *Store) forgetClaims(id state.ID, claims uint64) {
	epoch := func(raw state.Token) uint64 {
		t, err := stamp.DecodeToken(raw)
		if err != nil {
			return 0
		}
		return t.Epoch
	}
	now, n := epoch(s.db.token(id)), 0
	for _, c := range slices.Backward(s.db.past) {
		if c.id != id {
			continue
		}
		n++
		if c.before == nil {
			return
		}
		if epoch(c.before.token)+claims <= now {
			s.forget(&id, n)
			return
		}
	}
}

func byTask(a, b state.ID) int { return strings.Compare(a.Task, b.Task) }

// empty drops everything, as FLUSHALL does. It cannot be taken back.
func (s *Store) empty() {
	for _, id := range slices.SortedFunc(maps.Keys(s.db.views), byTask) {
		s.w.must(s.db.erase(id))
	}
	s.db.past = nil
}

func (d *database) erase(id state.ID) error {
	if d.raw == nil {
		return d.set(id, nil)
	}
	delete(d.views, id)
	return d.raw.Erase(id)
}

// lose deletes a view, and cannot take that back.
func (s *Store) lose(id state.ID) {
	s.w.must(s.db.erase(id))
	s.db.past = slices.DeleteFunc(s.db.past, func(c change) bool { return c.id == id })
}

// damage deletes a part of a view that has one. The store notices that when it
// is asked for it.
func (s *Store) damage(id state.ID) {
	v := s.db.views[id]
	if v == nil || len(v.data) == 0 {
		return
	}
	left := &version{v.token, maps.Clone(v.data), v.slots, true}
	if s.db.raw != nil {
		damaged, err := s.db.raw.Damage(id)
		s.w.must(err)
		if damaged {
			s.db.views[id] = left
		}
		return
	}
	for _, k := range slices.Sorted(maps.Keys(v.data))[:(len(v.data)+1)/2] {
		delete(left.data, k)
	}
	s.w.must(s.db.set(id, left))
}

// usurp lets another application write a view.
func (s *Store) usurp(id state.ID) {
	t := stamp.Token{Lineage: stamp.Lineage{0xf0, 0x0d}, Epoch: 7, Seq: 9, Nonce: 1, Wall: s.w.now.UnixMilli()}
	s.w.must(s.db.set(id, &version{token: t.Encode(), data: map[string]string{"foreign": "data"}}))
	s.w.foreign[id] = true
}

// show swaps the database for an empty one, and back.
func (s *Store) show(another bool) {
	if another == (s.other != nil) || s.db.raw != nil {
		return
	}
	if another {
		s.other, s.db = s.db, newDatabase(memstore.New())
		return
	}
	s.db, s.other = s.other, nil
}

// redo carries out a late write.
func (s *Store) redo(i int) {
	l := s.late[i]
	s.late = slices.Delete(s.late, i, i+1)
	s.w.note("late: %s: %v", l.what, l.do())
}

func describe(v *version) string {
	if v == nil {
		return "nothing"
	}
	return describeToken(v.token)
}

func describeToken(raw state.Token) string {
	if raw == "" {
		return "none"
	}
	t, err := stamp.DecodeToken(raw)
	if err != nil {
		return "a token that cannot be read"
	}
	s := fmt.Sprintf("epoch %d, batch %d", t.Epoch, t.Seq)
	if t.Restoring {
		s += ", restoring"
	}
	for _, o := range t.Changelog {
		s += fmt.Sprintf(", %s@%d", o.Name, o.Next)
	}
	return s
}

// conn is a store as one process sees it.
type conn struct {
	p   *process
	s   *Store
	own state.Backend // of the process, nil where there is only the store's
}

func (c *conn) backend() state.Backend {
	if c.own != nil {
		return c.own
	}
	return c.s.db.b
}

var (
	_ state.Backend = (*conn)(nil)
	_ state.View    = (*view)(nil)
	_ state.Bulk    = (*bulk)(nil)
)

// call takes a call of the process by the faults and carries it out.
func (c *conn) call(ctx context.Context, at Await, id state.ID, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	do, n := c.p.await(at)
	if c.p.client.Dead() {
		return errDead
	}
	fault := func(err error) error { return fmt.Errorf("%s of view %s: %w", at, id.Task, err) }
	if c.s.w.storeDown {
		return fault(state.ErrUnavailable)
	}
	switch do {
	case Forget:
		c.s.forget(nil, n)
	case Refuse:
		return fault(state.ErrUnavailable)
	case LoseReply:
		_ = f() // the caller never learns
		return fault(state.ErrUnavailable)
	case Late:
		c.s.late = append(c.s.late, lateWrite{fmt.Sprintf("%s of view %s", at, id.Task), f})
		return fault(state.ErrUnavailable)
	case Damaged:
		return fault(state.ErrCorrupt)
	case Full:
		return fault(state.ErrFull)
	case Fenced:
		return fault(&state.FencedError{ID: id, Stored: c.s.db.token(id)})
	}
	if v := c.s.db.views[id]; v != nil && v.broken && c.s.db.raw == nil && (at == StoreRead || at == StoreIterate || at == StoreApply || at == StoreOutbox) {
		return fault(state.ErrCorrupt)
	}
	err := f()
	if do == DieAfter {
		c.p.die()
	}
	if err != nil {
		c.s.w.note("instance %d: %s of view %s: %v", c.p.index, at, id.Task, err)
	} else if slices.Contains(storeWrites, at) {
		c.s.w.note("instance %d: %s of view %s: now %s", c.p.index, at, id.Task, describeToken(c.s.db.token(id)))
	}
	return err
}

// want is the token that the store compares with when a caller wants old.
func (s *Store) want(id state.ID, old state.Token) state.Token {
	if !s.flaws.EpochOnly {
		return old
	}
	have := s.db.token(id)
	t, err := stamp.DecodeToken(old)
	h, err2 := stamp.DecodeToken(have)
	if err == nil && err2 == nil && t.Epoch == h.Epoch {
		return have
	}
	return old
}

// handle returns the way to a view. In memory all handles of a view are alike,
// and the database may have been swapped; others belong to their claim.
func (v *view) handle() (state.View, error) {
	d := v.c.s.db
	if d.raw != nil {
		return v.own, nil
	}
	if h := d.handles[v.id]; h != nil && d.views[v.id] != nil {
		return h, nil
	}
	return nil, &state.FencedError{ID: v.id}
}

func (c *conn) Token(ctx context.Context, id state.ID) (tok state.Token, err error) {
	err = c.call(ctx, StoreToken, id, func() (err error) {
		tok, err = c.backend().Token(ctx, id)
		return err
	})
	return tok, err
}

func (c *conn) Claim(ctx context.Context, id state.ID, old, new state.Token) (state.View, error) {
	v := &view{c: c, id: id}
	err := c.call(ctx, StoreClaim, id, func() error {
		d := c.s.db
		was := d.save(id)
		h, err := c.backend().Claim(context.Background(), id, c.s.want(id, old), new)
		if err != nil {
			return err
		}
		v.own = h
		d.handles[id] = h
		now := &version{token: new, data: map[string]string{}}
		if v := d.views[id]; v != nil {
			now.data, now.slots, now.broken = v.data, v.slots, v.broken
		}
		d.noted(was, now)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}

func (c *conn) Committed(id state.ID) state.Reader { return c.backend().Committed(id) }

func (c *conn) Drop(ctx context.Context, id state.ID) error {
	return c.call(ctx, StoreDrop, id, func() error {
		d := c.s.db
		was := d.save(id)
		if err := c.backend().Drop(ctx, id); err != nil {
			return err
		}
		if d.views[id] != nil {
			d.noted(was, nil)
		}
		return nil
	})
}

func (c *conn) Views(_ context.Context, app string, yield func(state.ID, state.Token) bool) error {
	if c.s.remote {
		return nil
	}
	for _, id := range slices.SortedFunc(maps.Keys(c.s.db.views), byTask) {
		if id.Application == app && !yield(id, c.s.db.token(id)) {
			break
		}
	}
	return nil
}

func (c *conn) Close() error { return nil }

// view is a claimed view. It has no handle of its own, since the store may show
// another database when it is used.
type view struct {
	c   *conn
	id  state.ID
	own state.View // of its claim
}

func (v *view) call(ctx context.Context, at Await, f func(h state.View) error) error {
	return v.c.call(ctx, at, v.id, func() error {
		h, err := v.handle()
		if err != nil {
			return err
		}
		return f(h)
	})
}

// fold is what a version becomes by a batch.
func (v *version) fold(tok state.Token, writes []state.Write) *version {
	n := &version{tok, maps.Clone(v.data), v.slots, v.broken}
	for _, w := range writes {
		if w.Value == nil {
			delete(n.data, string(w.Key))
		} else {
			n.data[string(w.Key)] = string(w.Value)
		}
	}
	return n
}

// copied returns a batch that outlives its caller, as a late copy of a call does.
func copied(b *state.Batch) *state.Batch {
	own := &state.Batch{}
	for _, w := range b.Writes() {
		if w.Value == nil {
			own.Delete(bytes.Clone(w.Key))
		} else {
			own.Put(bytes.Clone(w.Key), append([]byte{}, w.Value...))
		}
	}
	return own
}

func (v *view) Apply(ctx context.Context, old, new state.Token, b *state.Batch) error {
	own := copied(b)
	s := v.c.s
	apply := func(h state.View) error {
		d := s.db
		was, want, saved := d.views[v.id], s.want(v.id, old), d.save(v.id)
		if want == new {
			return nil
		}
		if err := h.Apply(context.Background(), want, new, own); err != nil {
			return err
		}
		if was.token != new {
			d.noted(saved, was.fold(new, own.Writes()))
		}
		return nil
	}
	if !s.flaws.TokenFirst {
		return v.call(ctx, StoreApply, apply)
	}
	err := v.call(ctx, StoreApply, func(h state.View) error {
		d := s.db
		was, saved := d.views[v.id], d.save(v.id)
		var none state.Batch
		if err := h.Apply(context.Background(), old, new, &none); err != nil {
			return err
		}
		d.noted(saved, &version{token: new, data: was.data, slots: was.slots})
		return nil
	})
	if err != nil {
		return err
	}
	return v.call(ctx, StoreTokenWrite, func(h state.View) error {
		d := s.db
		was := d.views[v.id]
		d.noted(d.save(v.id), was.fold(was.token, own.Writes()))
		return d.set(v.id, d.views[v.id])
	})
}

func (v *view) Read(ctx context.Context, expect state.Token, keys [][]byte, visit func(int, []byte)) error {
	return v.call(ctx, StoreRead, func(h state.View) error {
		if v.c.s.flaws.Unfenced {
			_, err := v.c.s.db.b.Committed(v.id).Read(ctx, keys, visit)
			return err
		}
		return h.Read(ctx, v.c.s.want(v.id, expect), keys, visit)
	})
}

func (v *view) Iterate(ctx context.Context, expect state.Token, r state.Range) state.Iterator {
	var it state.Iterator
	err := v.call(ctx, StoreIterate, func(h state.View) error {
		if v.c.s.flaws.Unfenced {
			it = v.c.s.db.b.Committed(v.id).Iterate(ctx, r)
		} else {
			it = h.Iterate(ctx, v.c.s.want(v.id, expect), r)
		}
		return nil
	})
	if err != nil {
		return state.Empty(err)
	}
	return it
}

func (v *view) Clear(ctx context.Context, old, new state.Token) error {
	s := v.c.s
	return v.call(ctx, StoreClear, func(h state.View) error {
		d := s.db
		saved := d.save(v.id)
		if err := h.Clear(context.Background(), s.want(v.id, old), new); err != nil {
			return err
		}
		d.noted(saved, &version{token: new, data: map[string]string{}})
		return nil
	})
}

func (v *view) ApproximateCount(ctx context.Context, r state.Range) (int64, error) {
	h, err := v.handle()
	if err != nil {
		return 0, err
	}
	return h.ApproximateCount(ctx, r)
}

func (v *view) Close() error { return nil }

// bulk is a restore. The writes since the last checkpoint are its own until the
// next.
type bulk struct {
	v     *view
	d     *database
	token state.Token
	inner state.Bulk
	since []state.Write
}

func (v *view) Bulk(ctx context.Context, old state.Token) (state.Bulk, error) {
	b := &bulk{v: v, d: v.c.s.db, token: old}
	err := v.call(ctx, StoreBulk, func(h state.View) (err error) {
		if want := v.c.s.want(v.id, old); want != old {
			b.token = want
		}
		b.inner, err = h.Bulk(ctx, b.token)
		return err
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

func (b *bulk) Put(key, value []byte) error {
	b.since = append(b.since, state.Write{Key: bytes.Clone(key), Value: append([]byte{}, value...)})
	return b.inner.Put(key, value)
}

func (b *bulk) Delete(key []byte) error {
	b.since = append(b.since, state.Write{Key: bytes.Clone(key)})
	return b.inner.Delete(key)
}

func (b *bulk) Checkpoint(ctx context.Context, new state.Token) error {
	return b.v.call(ctx, StoreCheckpoint, func(state.View) error {
		if b.v.c.s.db != b.d {
			return &state.FencedError{ID: b.v.id, Stored: b.v.c.s.db.token(b.v.id)}
		}
		was, saved := b.d.views[b.v.id], b.d.save(b.v.id)
		if err := b.inner.Checkpoint(context.Background(), new); err != nil {
			return err
		}
		b.d.noted(saved, was.fold(new, b.since))
		b.token, b.since = new, nil
		return nil
	})
}

func (b *bulk) Close() error { return b.inner.Close() }
