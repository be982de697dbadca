package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/weirstreams/weir/state"
)

// handle is what Claim returns. Its expectation is in the tokens that the
// caller passes, so all handles of a view are alike.
type handle struct {
	b      *Backend
	v      *view
	closed atomic.Bool

	// Buffers of Apply and Read, which one goroutine at a time calls.
	key   []byte
	order []keyOrder
}

var _ state.View = (*handle)(nil)

// enter begins an operation; Backend.leave ends it.
func (h *handle) enter(ctx context.Context) error {
	if h.closed.Load() {
		return fmt.Errorf("view %s: %w", h.v.id, state.ErrClosed)
	}
	return h.b.enter(ctx)
}

const (
	// maxBatchBytes bounds one Apply; Pebble's own limit is 4 GiB.
	maxBatchBytes = 3 << 30
	// writeOverhead is the most that one write takes in a batch beyond its
	// key and value: kind, two lengths and the prefix.
	writeOverhead = 1 + 5 + 5 + dataPrefixLen
	batchHeader   = 12
)

// Apply implements state.View.
func (h *handle) Apply(ctx context.Context, old, new state.Token, b *state.Batch) error {
	if err := checkTokens("apply to", h.v.id, old, new); err != nil {
		return err
	}
	if err := h.enter(ctx); err != nil {
		return err
	}
	defer h.b.leave()
	size := batchHeader + b.Bytes() + len(new) + writeOverhead*(b.Len()+1)
	if size > maxBatchBytes {
		return fmt.Errorf("apply to view %s: %d bytes in one batch, at most %d can be stored: commit more often", h.v.id, size, maxBatchBytes)
	}
	if err := h.b.gate.admit(ctx, h.b, size); err != nil {
		return fmt.Errorf("apply to view %s: %w", h.v.id, err)
	}
	v := h.v
	v.mu.Lock()
	defer v.mu.Unlock()
	switch *v.token.Load() {
	case old:
	case new:
		return nil
	default:
		return v.fenced()
	}
	batch := h.b.db.NewBatchWithSize(size)
	defer batch.Close()
	prefix := appendView(make([]byte, 0, dataPrefixLen), v.number, viewData)
	// In order, because a memtable takes neighbours for a third of the price
	// of strangers, which pays for the sorting.
	writes := b.Writes()
	h.order = sortKeys(h.order, len(writes), func(i uint32) []byte { return writes[i].Key })
	for _, o := range h.order {
		w := writes[o.index]
		var op *pebble.DeferredBatchOp
		if w.Value == nil {
			op = batch.DeleteDeferred(len(prefix) + len(w.Key))
		} else {
			op = batch.SetDeferred(len(prefix)+len(w.Key), len(w.Value))
			copy(op.Value, w.Value)
		}
		copy(op.Key[copy(op.Key, prefix):], w.Key)
		_ = op.Finish() // fails for indexed batches only
	}
	setToken(batch, v.number, new)
	if err := h.b.commit("apply to", v.id, batch); err != nil {
		return err
	}
	v.setToken(new)
	v.wrote(h.b, size)
	return nil
}

func setToken(batch *pebble.Batch, number uint32, token state.Token) {
	op := batch.SetDeferred(dataPrefixLen, len(token))
	appendView(op.Key[:0], number, viewToken)
	copy(op.Value, token)
	_ = op.Finish()
}

// wrote counts bytes that went into a memtable. Needs v.mu.
func (v *view) wrote(b *Backend, n int) {
	if f := b.gate.flushes.Load(); f != v.unflushed.flush {
		v.unflushed.flush, v.unflushed.bytes = f, 0
	}
	v.unflushed.bytes += int64(n)
}

// Read implements state.View. Visit runs while the view cannot change: it must
// not write to the view.
func (h *handle) Read(ctx context.Context, expect state.Token, keys [][]byte, visit func(int, []byte)) error {
	if err := h.enter(ctx); err != nil {
		return err
	}
	defer h.b.leave()
	v := h.v
	v.mu.RLock()
	defer v.mu.RUnlock()
	if *v.token.Load() != expect {
		return v.fenced()
	}
	if len(keys) < minSeekKeys {
		return h.get(ctx, keys, visit)
	}
	it, err := h.b.newSeeker(v)
	if err != nil {
		return h.b.readError(v.id, err)
	}
	h.key, h.order, err = h.b.seek(ctx, it, v.id, v.number, keys, h.key, h.order, visit)
	return err
}

const (
	// minSeekKeys is where an iterator begins to be cheaper than gets of one
	// key each. It goes through the keys in order, and it asks the filters of
	// the last level too, so that absent keys cost no block.
	minSeekKeys = 8
	// readCheckInterval is the number of keys between two looks at the context.
	readCheckInterval = 256
)

// empty is the value of a present key without bytes, which is not nil.
var empty = []byte{}

// get reads few keys.
func (h *handle) get(ctx context.Context, keys [][]byte, visit func(int, []byte)) error {
	h.key = appendView(h.key[:0], h.v.number, viewData)
	for i, k := range keys {
		h.key = append(h.key[:dataPrefixLen], k...)
		value, closer, err := h.b.db.Get(h.key)
		switch {
		case errors.Is(err, pebble.ErrNotFound):
			visit(i, nil)
		case err != nil:
			return h.b.readError(h.v.id, err)
		default:
			if value == nil {
				value = empty
			}
			visit(i, value)
			if err := closer.Close(); err != nil {
				return h.b.readError(h.v.id, err)
			}
		}
	}
	return nil
}

// newSeeker returns an iterator for seek. Needs v.mu for reading: what the
// iterator sees belongs to the view's token and number.
func (b *Backend) newSeeker(v *view) (*pebble.Iterator, error) {
	lower, upper := dataBounds(v.number, state.Range{})
	return b.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper, UseL6Filters: true})
}

// seek reads keys of a view with an iterator, which it closes. Buf and order
// are reused and returned.
func (b *Backend) seek(ctx context.Context, it *pebble.Iterator, id state.ID, number uint32, keys [][]byte, buf []byte, order []keyOrder, visit func(int, []byte)) (_ []byte, _ []keyOrder, err error) {
	defer func() {
		if cerr := it.Close(); err == nil && cerr != nil {
			err = b.readError(id, cerr)
		}
	}()
	buf = appendView(buf[:0], number, viewData)
	order = sortKeys(order, len(keys), func(i uint32) []byte { return keys[i] })
	for n, o := range order {
		if n%readCheckInterval == readCheckInterval-1 {
			if err := ctx.Err(); err != nil {
				return buf, order, err
			}
		}
		buf = append(buf[:dataPrefixLen], keys[o.index]...)
		if !it.SeekPrefixGE(buf) {
			if err := it.Error(); err != nil {
				return buf, order, b.readError(id, err)
			}
			visit(int(o.index), nil)
			continue
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return buf, order, b.readError(id, err)
		}
		if value == nil {
			value = empty
		}
		visit(int(o.index), value)
	}
	return buf, order, nil
}

// Clear implements state.View. The disk space is given back in the background.
func (h *handle) Clear(ctx context.Context, old, new state.Token) error {
	if err := checkTokens("clear", h.v.id, old, new); err != nil {
		return err
	}
	if err := h.enter(ctx); err != nil {
		return err
	}
	defer h.b.leave()
	v := h.v
	v.mu.Lock()
	defer v.mu.Unlock()
	if *v.token.Load() != old {
		return v.fenced()
	}
	// A new number: what is restored next does not overlap with what is
	// deleted here, so its tables go straight to the last level.
	number, err := h.b.newNumber()
	if err != nil {
		return fmt.Errorf("clear view %s: %w", v.id, err)
	}
	batch := h.b.db.NewBatch()
	defer batch.Close()
	lower, upper := viewBounds(v.number)
	_ = batch.DeleteRange(lower, upper, nil)
	_ = batch.Set(registryKey(v.id), registryValue(number), nil)
	setToken(batch, number, new)
	if err := h.b.commit("clear", v.id, batch); err != nil {
		return err
	}
	h.b.reclaim(v.number)
	v.number = number
	v.setToken(new)
	return nil
}

// Close implements state.View.
func (h *handle) Close() error {
	h.closed.Store(true)
	return nil
}

// Iterate implements state.View. The entries are those of the moment of the
// call. The iterator fails with ErrFenced once the view's token is another,
// also after an Apply of the same owner.
func (h *handle) Iterate(ctx context.Context, expect state.Token, r state.Range) state.Iterator {
	if err := h.enter(ctx); err != nil {
		return state.Empty(err)
	}
	defer h.b.leave()
	v := h.v
	v.mu.RLock()
	defer v.mu.RUnlock()
	token := v.token.Load()
	if *token != expect {
		return state.Empty(v.fenced())
	}
	return h.b.iterate(ctx, v, token, r)
}

// reader is what Committed returns. It finds the view anew each time, because
// the view may be made, dropped and made again.
type reader struct {
	b  *Backend
	id state.ID
}

// Read implements state.Reader. It works on an iterator, whose contents do not
// change, so that a slow visit does not hold the writer up.
func (r *reader) Read(ctx context.Context, keys [][]byte, visit func(int, []byte)) (state.Token, error) {
	if err := r.b.enter(ctx); err != nil {
		return "", err
	}
	defer r.b.leave()
	v := r.b.lookup(r.id)
	if v == nil {
		v = newView(r.id)
	}
	v.mu.RLock()
	number, token := v.number, *v.token.Load()
	if number == 0 {
		v.mu.RUnlock()
		for i := range keys {
			visit(i, nil)
		}
		return "", nil
	}
	it, err := r.b.newSeeker(v)
	v.mu.RUnlock()
	if err != nil {
		return "", r.b.readError(r.id, err)
	}
	if _, _, err := r.b.seek(ctx, it, r.id, number, keys, nil, nil, visit); err != nil {
		return "", err
	}
	return token, nil
}

// Iterate implements state.Reader. The entries are those of the moment of the
// call.
func (r *reader) Iterate(ctx context.Context, rng state.Range) state.Iterator {
	if err := r.b.enter(ctx); err != nil {
		return state.Empty(err)
	}
	defer r.b.leave()
	v := r.b.lookup(r.id)
	if v == nil {
		return state.Empty(nil)
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.number == 0 {
		return state.Empty(nil)
	}
	return r.b.iterate(ctx, v, nil, rng)
}
