package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	key    []byte // buffer of Read
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
	for _, w := range b.Writes() {
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
	var err error
	h.key, err = h.b.read(ctx, h.b.db, v.id, v.number, keys, h.key, visit)
	return err
}

// getter is a database or a snapshot of it.
type getter interface {
	Get(key []byte) ([]byte, io.Closer, error)
}

// readCheckInterval is the number of keys between two looks at the context.
const readCheckInterval = 256

// empty is the value of a present key without bytes, which is not nil.
var empty = []byte{}

// read gets keys of a view. Buf is reused for keys and returned.
func (b *Backend) read(ctx context.Context, from getter, id state.ID, number uint32, keys [][]byte, buf []byte, visit func(int, []byte)) ([]byte, error) {
	buf = appendView(buf[:0], number, viewData)
	for i, k := range keys {
		if i%readCheckInterval == readCheckInterval-1 {
			if err := ctx.Err(); err != nil {
				return buf, err
			}
		}
		buf = append(buf[:dataPrefixLen], k...)
		value, closer, err := from.Get(buf)
		switch {
		case errors.Is(err, pebble.ErrNotFound):
			visit(i, nil)
		case err != nil:
			return buf, b.readError(id, err)
		default:
			if value == nil {
				value = empty
			}
			visit(i, value)
			if err := closer.Close(); err != nil {
				return buf, b.readError(id, err)
			}
		}
	}
	return buf, nil
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

// Read implements state.Reader. It works on a snapshot, so that a slow visit
// does not hold the writer up.
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
	// Under the lock number, token and data belong together.
	snapshot := r.b.db.NewSnapshot()
	v.mu.RUnlock()
	_, err := r.b.read(ctx, snapshot, r.id, number, keys, nil, visit)
	if cerr := snapshot.Close(); err == nil && cerr != nil {
		err = r.b.readError(r.id, cerr)
	}
	return token, err
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
