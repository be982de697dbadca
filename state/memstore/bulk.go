package memstore

import (
	"context"
	"fmt"

	"github.com/weirstreams/weir/state"
)

// bulk writes into a copy-on-write copy of the view's tree, which takes the
// tree's place at a checkpoint. Unchanged nodes and all entries are shared, so
// that the copy costs only what is new in it.
type bulk struct {
	h      *handle
	token  state.Token // of the last checkpoint
	work   *tree
	bytes  int64
	closed bool
}

var _ state.Bulk = (*bulk)(nil)

// Bulk implements state.View.
func (h *handle) Bulk(ctx context.Context, old state.Token) (state.Bulk, error) {
	if err := h.check(ctx); err != nil {
		return nil, err
	}
	v := h.v
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.token != old {
		return nil, v.fenced()
	}
	return &bulk{h: h, token: old, work: v.mu.tree.IsoCopy(), bytes: v.mu.bytes}, nil
}

func (b *bulk) check() error {
	if b.closed {
		return fmt.Errorf("bulk of view %s: %w", b.h.v.id, state.ErrClosed)
	}
	return nil
}

func (b *bulk) Put(key, value []byte) error {
	if err := b.check(); err != nil {
		return err
	}
	b.bytes += put(b.work, key, value)
	return nil
}

func (b *bulk) Delete(key []byte) error {
	if err := b.check(); err != nil {
		return err
	}
	b.bytes += remove(b.work, key)
	return nil
}

func (b *bulk) Checkpoint(ctx context.Context, new state.Token) error {
	if err := b.check(); err != nil {
		return err
	}
	if err := checkTokens("checkpoint", b.h.v.id, b.token, new); err != nil {
		return err
	}
	if err := b.h.check(ctx); err != nil {
		return err
	}
	v := b.h.v
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.token != b.token {
		return v.fenced()
	}
	v.replace(b.h.b, b.work, b.bytes)
	v.setToken(new)
	b.token = new
	b.work = v.mu.tree.IsoCopy()
	return nil
}

func (b *bulk) Close() error {
	b.closed, b.work = true, nil
	return nil
}
