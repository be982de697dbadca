package memstore

import (
	"bytes"
	"context"
	"fmt"

	"github.com/weirstreams/weir/state"
)

// Limits of a batch: those of package redisstore.
const (
	outboxKeys    = 500
	outboxBytes   = 256 << 10
	outboxSegment = 1 << 20
	outboxSlots   = 16
)

// OutboxLimits implements state.Outbox.
func (b *Backend) OutboxLimits() state.OutboxLimits {
	return state.OutboxLimits{Keys: outboxKeys, Bytes: outboxBytes, SegmentBytes: outboxSegment, Slots: outboxSlots}
}

// ApplyOut implements state.OutboxView.
func (h *handle) ApplyOut(ctx context.Context, old, new state.Token, b *state.Batch, slot int, segment []byte) error {
	if err := h.b.OutboxLimits().Check(b, slot, segment); err != nil {
		return fmt.Errorf("apply to view %s: %w", h.v.id, err)
	}
	return h.apply(ctx, old, new, b, func() {
		v := h.v
		if v.mu.slots == nil {
			v.mu.slots = map[int][]byte{}
		}
		v.mu.slots[slot] = bytes.Clone(segment)
	})
}

// Segments implements state.OutboxView. Visit runs while the view cannot change:
// it must not write to the view.
func (h *handle) Segments(ctx context.Context, expect state.Token, visit func(slot int, segment []byte)) error {
	if err := h.check(ctx); err != nil {
		return err
	}
	v := h.v
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.mu.token != expect {
		return v.fenced()
	}
	for slot := range outboxSlots {
		if s, ok := v.mu.slots[slot]; ok {
			visit(slot, s)
		}
	}
	return nil
}
