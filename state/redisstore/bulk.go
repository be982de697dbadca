package redisstore

import (
	"context"
	"fmt"

	"github.com/weirstreams/weir/state"
)

// bulk is a restore in progress. What is put is staged as it comes; a
// checkpoint makes it part of the view.
type bulk struct {
	h      *handle
	ctx    context.Context // of the Bulk call, for the calls without one
	w      writer
	token  state.Token
	closed bool
}

var _ state.Bulk = (*bulk)(nil)

// Bulk implements state.View. Puts and deletes use the context ctx when they
// have to send what has been collected.
func (h *handle) Bulk(ctx context.Context, old state.Token) (state.Bulk, error) {
	if err := h.check(ctx); err != nil {
		return nil, err
	}
	l, err := h.found(ctx, old)
	if err != nil {
		return nil, h.b.wrap("begin the restore of", h.t.id, err)
	}
	b := &bulk{h: h, ctx: ctx, token: old}
	b.w.init(h.b, h.t, l, old)
	return b, nil
}

// found compares the token and returns the layout of the view, which it has
// asked the server for, after it moved an overlay that is still there.
func (h *handle) found(ctx context.Context, token state.Token) (*layout, error) {
	for range maxLayouts {
		_, l, err := h.b.locate(ctx, h.t, &token, nil, nil)
		if err != nil {
			return nil, err
		}
		if l.gen != "" && l.over == "" {
			return l, nil
		}
		if err := h.b.settle(ctx, h.t, l, token); err != nil && !isLayout(err) {
			return nil, err
		}
	}
	return nil, h.t.restless()
}

func (b *bulk) check(ctx context.Context) error {
	if b.closed {
		return fmt.Errorf("redis store: restore of view %s: %w", b.h.t.id, state.ErrClosed)
	}
	return b.h.check(ctx)
}

// Put implements state.Bulk. After state.ErrUnavailable the value counts as
// put; what was not sent is sent with a later call.
func (b *bulk) Put(key, value []byte) error {
	if value == nil {
		value = []byte{}
	}
	return b.add(key, value)
}

// Delete implements state.Bulk, with the same remark.
func (b *bulk) Delete(key []byte) error { return b.add(key, nil) }

func (b *bulk) add(key, value []byte) error {
	if err := b.check(b.ctx); err != nil {
		return err
	}
	own := make([]byte, len(key)+len(value))
	n := copy(own, key)
	copy(own[n:], value)
	if value != nil {
		value = own[n:]
	}
	return b.h.b.wrap("restore", b.h.t.id, changed(b.w.add(b.ctx, own[:n:n], value)))
}

// Checkpoint implements state.Bulk. After state.ErrUnavailable it may be
// repeated with the same token.
func (b *bulk) Checkpoint(ctx context.Context, new state.Token) error {
	if err := checkTokens("checkpoint", b.h.t.id, b.token, new); err != nil {
		return err
	}
	if err := b.check(ctx); err != nil {
		return err
	}
	return b.h.b.wrap("checkpoint the restore of", b.h.t.id, b.checkpoint(ctx, new))
}

func (b *bulk) checkpoint(ctx context.Context, new state.Token) error {
	if err := changed(b.w.commit(ctx, new)); err != nil {
		return err
	}
	l := b.w.l
	if b.w.stage != "" { // there may be an overlay
		var err error
		if l, err = b.h.found(ctx, new); err != nil {
			return err
		}
	}
	b.token = new
	b.w.next(l, new)
	return nil
}

// changed is the error of a restore that found another layout than it began
// with. What it has put cannot be put again.
func changed(err error) error {
	if isLayout(err) {
		return fmt.Errorf("%w: the view has changed under the restore", state.ErrUnavailable)
	}
	return err
}

// Close implements state.Bulk. What is staged is removed by the next batch
// that needs a stage, or with the generation.
func (b *bulk) Close() error {
	b.closed = true
	b.w.pending = nil
	return nil
}
