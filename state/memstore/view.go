package memstore

import (
	"context"
	"fmt"
	"sort"
	"sync/atomic"

	"github.com/weirstreams/weir/state"
)

// handle is what Claim returns. Its expectation is in the tokens that the
// caller passes, so all handles of a view are alike.
type handle struct {
	b      *Backend
	v      *view
	closed atomic.Bool
}

var _ state.OutboxView = (*handle)(nil)

// readCheckInterval is the number of keys between two looks at the context.
const readCheckInterval = 1024

func (h *handle) check(ctx context.Context) error {
	if h.closed.Load() {
		return fmt.Errorf("view %s: %w", h.v.id, state.ErrClosed)
	}
	return h.b.check(ctx)
}

// Apply implements state.View.
func (h *handle) Apply(ctx context.Context, old, new state.Token, b *state.Batch) error {
	return h.apply(ctx, old, new, b, func() {})
}

// apply calls also in the same step.
func (h *handle) apply(ctx context.Context, old, new state.Token, b *state.Batch, also func()) error {
	if err := checkTokens("apply to", h.v.id, old, new); err != nil {
		return err
	}
	if err := h.check(ctx); err != nil {
		return err
	}
	v := h.v
	v.mu.Lock()
	defer v.mu.Unlock()
	switch v.mu.token {
	case old:
	case new:
		return nil
	default:
		return v.fenced()
	}
	v.mu.snapshot = nil
	grown := int64(0)
	for _, w := range b.Writes() {
		if w.Value == nil {
			grown += remove(v.mu.tree, w.Key)
		} else {
			grown += put(v.mu.tree, w.Key, w.Value)
		}
	}
	v.mu.bytes += grown
	h.b.bytes.Add(grown)
	also()
	v.setToken(new)
	return nil
}

// Read implements state.View. Visit runs while the view cannot change: it must
// not write to the view.
func (h *handle) Read(ctx context.Context, expect state.Token, keys [][]byte, visit func(int, []byte)) error {
	if err := h.check(ctx); err != nil {
		return err
	}
	v := h.v
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.mu.token != expect {
		return v.fenced()
	}
	return v.read(ctx, keys, visit)
}

// read needs v.mu.
func (v *view) read(ctx context.Context, keys [][]byte, visit func(int, []byte)) error {
	for i, k := range keys {
		if i%readCheckInterval == readCheckInterval-1 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		if e, ok := v.mu.tree.Get(entry(k)); ok {
			visit(i, e.value())
		} else {
			visit(i, nil)
		}
	}
	return nil
}

// Iterate implements state.View. The entries come from a snapshot. The iterator
// fails with ErrFenced once the view's token is another, also after an Apply of
// the same owner.
func (h *handle) Iterate(ctx context.Context, expect state.Token, r state.Range) state.Iterator {
	if err := h.check(ctx); err != nil {
		return state.Empty(err)
	}
	v := h.v
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.token != expect {
		return state.Empty(v.fenced())
	}
	it := newIterator(ctx, h.b, v.snapshot(), r)
	it.fence, it.version = v, v.version.Load()
	return it
}

// snapshot needs v.mu held for writing.
func (v *view) snapshot() *tree {
	if v.mu.snapshot == nil {
		v.mu.snapshot = v.mu.tree.IsoCopy()
	}
	return v.mu.snapshot
}

// Clear implements state.View.
func (h *handle) Clear(ctx context.Context, old, new state.Token) error {
	if err := checkTokens("clear", h.v.id, old, new); err != nil {
		return err
	}
	if err := h.check(ctx); err != nil {
		return err
	}
	v := h.v
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.token != old {
		return v.fenced()
	}
	v.replace(h.b, newTree(), 0)
	v.mu.slots = nil
	v.setToken(new)
	return nil
}

// ApproximateCount implements state.View. It is exact.
func (h *handle) ApproximateCount(ctx context.Context, r state.Range) (int64, error) {
	if err := h.check(ctx); err != nil {
		return 0, err
	}
	v := h.v
	v.mu.RLock()
	defer v.mu.RUnlock()
	t := v.mu.tree
	rank := func(key []byte) int {
		return sort.Search(t.Len(), func(i int) bool {
			e, _ := t.GetAt(i)
			return !less(e, entry(key))
		})
	}
	upper := t.Len()
	if r.Upper != nil {
		upper = rank(r.Upper)
	}
	return int64(max(0, upper-rank(r.Lower))), nil
}

// Close implements state.View.
func (h *handle) Close() error {
	h.closed.Store(true)
	return nil
}

// reader is what Committed returns. It finds the view anew each time, because
// the view may be made, dropped and made again.
type reader struct {
	b  *Backend
	id state.ID
}

// Read implements state.Reader. Visit runs while the view cannot change: it
// must not write to the view.
func (r *reader) Read(ctx context.Context, keys [][]byte, visit func(int, []byte)) (state.Token, error) {
	if err := r.b.check(ctx); err != nil {
		return "", err
	}
	v := r.b.lookup(r.id)
	if v == nil {
		for i := range keys {
			visit(i, nil)
		}
		return "", nil
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.mu.token, v.read(ctx, keys, visit)
}

// Iterate implements state.Reader. The entries come from one snapshot.
func (r *reader) Iterate(ctx context.Context, rng state.Range) state.Iterator {
	if err := r.b.check(ctx); err != nil {
		return state.Empty(err)
	}
	v := r.b.lookup(r.id)
	if v == nil {
		return state.Empty(nil)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return newIterator(ctx, r.b, v.snapshot(), rng)
}
