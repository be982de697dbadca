package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/state"
)

// handle is the state.View of a claimed task.
type handle struct {
	b      *Backend
	t      *target
	w      writer
	lane   lane
	closed bool
}

var _ state.View = (*handle)(nil)

func (h *handle) check(ctx context.Context) error {
	if h.closed {
		return fmt.Errorf("redis store: view %s: %w", h.t.id, state.ErrClosed)
	}
	return h.b.check(ctx)
}

// Apply implements state.View.
func (h *handle) Apply(ctx context.Context, old, new state.Token, batch *state.Batch) error {
	if err := checkTokens("apply to", h.t.id, old, new); err != nil {
		return err
	}
	if err := h.check(ctx); err != nil {
		return err
	}
	return h.b.wrap("apply to", h.t.id, h.apply(ctx, old, new, batch))
}

func (h *handle) apply(ctx context.Context, old, new state.Token, batch *state.Batch) error {
	for range maxLayouts {
		l, err := h.b.settled(ctx, h.t, old)
		if err == nil {
			err = h.attempt(ctx, l, old, new, batch)
		}
		if fenced := (*state.FencedError)(nil); errors.As(err, &fenced) {
			if fenced.Stored == new {
				return h.repeated(ctx, old, new)
			}
			h.lane.drop()
		}
		if !isLayout(err) {
			return err
		}
	}
	return h.t.restless()
}

// repeated ends an Apply that was made before: the replicas still have to
// confirm it.
func (h *handle) repeated(ctx context.Context, old, new state.Token) error {
	h.w.init(h.b, h.t, h.t.layout.Load(), old)
	return h.w.commit(ctx, new)
}

func (h *handle) attempt(ctx context.Context, l *layout, old, new state.Token, batch *state.Batch) error {
	h.w.init(h.b, h.t, l, old)
	for _, w := range batch.Writes() {
		if err := h.w.add(ctx, w.Key, w.Value); err != nil {
			return err
		}
	}
	stored, err := h.lane.apply(ctx, l, old, new)
	if !stored && err == nil {
		err = h.w.commit(ctx, new)
	}
	h.w.c.reset()
	return err
}

// settled returns the layout of the view after it moved an overlay that is
// still there.
func (b *Backend) settled(ctx context.Context, t *target, token state.Token) (*layout, error) {
	for range maxLayouts {
		l := t.layout.Load()
		if l.gen == "" {
			// It was dropped, as far as this process knows.
			if _, err := b.read(ctx, t, &token, nil, nil); err != nil {
				return nil, err
			}
			continue
		}
		if l.over == "" {
			return l, nil
		}
		if err := b.settle(ctx, t, l, token); err != nil && !isLayout(err) {
			return nil, err
		}
	}
	return nil, t.restless()
}

// Clear implements state.View. A repeated Clear is recognised as a repeated
// Apply is.
func (h *handle) Clear(ctx context.Context, old, new state.Token) error {
	if err := checkTokens("clear", h.t.id, old, new); err != nil {
		return err
	}
	if err := h.check(ctx); err != nil {
		return err
	}
	return h.b.wrap("clear", h.t.id, h.clear(ctx, old, new))
}

func (h *handle) clear(ctx context.Context, old, new state.Token) error {
	l, keys, err := h.b.generation(h.t)
	if err != nil {
		return err
	}
	replies, err := h.b.s.Run(ctx, h.t.br, true, redisconn.Call{Script: clearScript, Keys: keys,
		Args: []string{string(old), string(new), l.gen, strconv.Itoa(l.buckets), string(l.points), flag(l.indexed()), formatVersion}})
	if err != nil {
		return err
	}
	r := &replies[0]
	if r.Status == statusFenced {
		return h.t.fenced(r.Str(0))
	}
	l, err = h.t.learn(r.List(0))
	if err != nil {
		return err
	}
	h.b.reap(ctx, h.t, l.trash)
	return nil
}

// Read implements state.View.
func (h *handle) Read(ctx context.Context, expect state.Token, keys [][]byte, visit func(i int, value []byte)) error {
	if err := h.check(ctx); err != nil {
		return err
	}
	_, err := h.b.read(ctx, h.t, &expect, keys, visit)
	return h.b.wrap("read", h.t.id, err)
}

// Iterate implements state.View. Keys and values come in pages; each of them
// compares the token.
func (h *handle) Iterate(ctx context.Context, expect state.Token, r state.Range) state.Iterator {
	if err := h.check(ctx); err != nil {
		return state.Empty(err)
	}
	return &iterator{ctx: ctx, b: h.b, t: h.t, expect: &expect, r: r, more: true}
}

// ApproximateCount implements state.View. It counts exactly what has been
// moved into its place; of a range without order it counts the whole view.
func (h *handle) ApproximateCount(ctx context.Context, r state.Range) (int64, error) {
	if err := h.check(ctx); err != nil {
		return 0, err
	}
	n, err := h.b.count(ctx, h.t, r)
	return n, h.b.wrap("count", h.t.id, err)
}

// Close implements state.View.
func (h *handle) Close() error {
	h.closed = true
	h.lane.drop()
	return nil
}
