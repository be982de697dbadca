package state

import (
	"context"
	"fmt"
)

// Outbox is implemented by a remote Backend whose views can keep, beside the
// data and in the same atomic unit, the outputs of the last batches. The runtime
// then needs no changelog under at least once: the view is the truth. Each View
// that Claim returns is an OutboxView.
//
// A view has a ring of slots, each for the outputs of one batch as opaque bytes.
// A batch writes one slot, over what was there, so that nothing is ever trimmed.
type Outbox interface {
	Remote
	// OutboxLimits says how large a batch may be. It is always the same.
	OutboxLimits() OutboxLimits
}

// OutboxLimits bound one ApplyOut: what the backend does in one step that stops
// nobody else for long.
type OutboxLimits struct {
	Keys         int // writes of the batch
	Bytes        int // of their keys and values
	SegmentBytes int
	Slots        int
}

// Check returns an error that says which limit an ApplyOut exceeds.
func (l OutboxLimits) Check(b *Batch, slot int, segment []byte) error {
	switch {
	case b.Len() > l.Keys:
		return fmt.Errorf("a batch of %d keys exceeds the limit of %d", b.Len(), l.Keys)
	case b.Bytes() > l.Bytes:
		return fmt.Errorf("a batch of %d bytes exceeds the limit of %d", b.Bytes(), l.Bytes)
	case len(segment) > l.SegmentBytes:
		return fmt.Errorf("outputs of %d bytes exceed the limit of %d", len(segment), l.SegmentBytes)
	case slot < 0 || slot >= l.Slots:
		return fmt.Errorf("there is no slot %d: there are %d", slot, l.Slots)
	}
	return nil
}

// OutboxView is a View with an outbox.
type OutboxView interface {
	View
	// ApplyOut is Apply that also puts a segment into a slot, in the same atomic
	// unit. A batch beyond the limits is refused and nothing stored. An Apply
	// leaves the slots as they are; Clear and Drop empty them.
	ApplyOut(ctx context.Context, old, new Token, b *Batch, slot int, segment []byte) error
	// Segments calls visit once per slot that was written, in any order, fenced
	// as Read is. The segment is valid only during the call.
	Segments(ctx context.Context, expect Token, visit func(slot int, segment []byte)) error
}
