package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/state"
)

// Bounds of a batch that carries its outputs. It is one chunk, so that it is
// applied as a whole; the segment is one argument of the script, and costs the
// server a copy.
const (
	maxSegmentBytes = 1 << 20
	outboxSlots     = 16
)

var (
	_ state.Outbox     = (*Backend)(nil)
	_ state.OutboxView = (*handle)(nil)
)

// OutboxLimits implements state.Outbox: a batch of one chunk, 16 segments of at
// most 1 MiB for each view.
func (b *Backend) OutboxLimits() state.OutboxLimits {
	return state.OutboxLimits{Keys: maxChunkKeys, Bytes: maxChunkBytes, SegmentBytes: maxSegmentBytes, Slots: outboxSlots}
}

// ApplyOut implements state.OutboxView, as one script: a transaction could not
// stop at an error in the middle, and nothing rebuilds this state.
func (h *handle) ApplyOut(ctx context.Context, old, new state.Token, batch *state.Batch, slot int, segment []byte) error {
	if err := checkTokens("apply to", h.t.id, old, new); err != nil {
		return err
	}
	if err := h.b.OutboxLimits().Check(batch, slot, segment); err != nil {
		return h.b.wrap("apply to", h.t.id, err)
	}
	if err := h.check(ctx); err != nil {
		return err
	}
	return h.b.wrap("apply to", h.t.id, h.applyOut(ctx, old, new, batch, slot, segment))
}

func (h *handle) applyOut(ctx context.Context, old, new state.Token, batch *state.Batch, slot int, segment []byte) error {
	for range maxLayouts {
		l, err := h.b.settled(ctx, h.t, old)
		if err == nil {
			h.w.init(h.b, h.t, l, old)
			for _, w := range batch.Writes() {
				h.w.c.add(l, w.Key, w.Value)
			}
			err = h.w.send(ctx, withSegment(h.w.c.apply(h.t, l, old, new), outboxKey(h.t.meta, l.gen), slot, segment))
			h.w.c.reset()
		}
		if fenced := (*state.FencedError)(nil); errors.As(err, &fenced) && fenced.Stored == new {
			return h.repeated(ctx, old, new)
		}
		if !isLayout(err) {
			return err
		}
	}
	return h.t.restless()
}

// withSegment puts one more group into the call of apply.lua, and puts it first:
// the slot of a hash that is not in the order index. Should somebody have
// overwritten that hash, the script ends before it has changed any state; a
// segment whose batch ends half-way is nobody's, for no token leads to it, and
// what was in its slot had been acknowledged before the batch began.
func withSegment(c redisconn.Call, key string, slot int, segment []byte) redisconn.Call {
	c.Keys = slices.Insert(c.Keys, applyKeys, key)
	c.Args = slices.Insert(c.Args, applyArgs, flag(false), "1", "0", strconv.Itoa(slot), stringOf(segment))
	return c
}

// Segments implements state.OutboxView.
func (h *handle) Segments(ctx context.Context, expect state.Token, visit func(slot int, segment []byte)) error {
	if err := h.check(ctx); err != nil {
		return err
	}
	return h.b.wrap("read the outbox of", h.t.id, h.segments(ctx, expect, visit))
}

func (h *handle) segments(ctx context.Context, expect state.Token, visit func(slot int, segment []byte)) error {
	for range maxLayouts {
		l := h.t.layout.Load()
		args := make([]string, 2, 2+outboxSlots)
		args[0], args[1] = string(expect), l.gen
		for slot := range outboxSlots {
			args = append(args, strconv.Itoa(slot))
		}
		replies, err := h.b.s.Run(ctx, h.t.br, false, redisconn.Call{Script: segmentsScript, Keys: []string{h.t.meta, outboxKey(h.t.meta, l.gen)}, Args: args})
		if err != nil {
			return err
		}
		switch r := &replies[0]; r.Status {
		case statusFenced:
			return h.t.fenced(r.Str(0))
		case statusLayout:
			if _, err := h.t.learn(r.List(0)); err != nil {
				return err
			}
		default:
			values, err := r.Values[0].ToArray()
			if err != nil || len(values) != outboxSlots {
				return fmt.Errorf("redis: a reply with %d slots (%v)", len(values), err)
			}
			for slot := range values {
				if values[slot].IsNil() {
					continue
				}
				s, err := values[slot].ToString()
				if err != nil {
					return fmt.Errorf("redis: slot %d: %w", slot, err)
				}
				visit(slot, bytesOf(s))
			}
			return nil
		}
	}
	return h.t.restless()
}
