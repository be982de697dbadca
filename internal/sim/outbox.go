package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirstreams/weir/internal/outbox"
	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/state"
)

// With an outbox the state changes once and each output appears once, but for
// repetitions with equal ids, as long as the store keeps what it has
// acknowledged. Once it has forgotten something nothing is lost, and what may
// take effect twice is whatever the store had forgotten.

// outboxConn is a conn to a store that keeps outputs.
type outboxConn struct{ *conn }

var (
	_ state.Outbox     = (*outboxConn)(nil)
	_ state.OutboxView = (*view)(nil)
)

func (c *outboxConn) Remote() bool { return true }

// OutboxLimits are small, so that the limits are met.
func (c *outboxConn) OutboxLimits() state.OutboxLimits {
	return state.OutboxLimits{Keys: 24, Bytes: 16 << 10, SegmentBytes: 16 << 10, Slots: outboxSlots}
}

// outboxSlots is how many batches a task may be ahead of the group.
const outboxSlots = 3

// setSlots writes the slots of a version.
func setSlots(h state.View, slots map[int]string) error {
	var none state.Batch
	for _, slot := range slices.Sorted(maps.Keys(slots)) {
		between := state.Token(fmt.Sprintf("being set, slot %d", slot))
		err := h.(state.OutboxView).ApplyOut(ctx, "being set", between, &none, slot, []byte(slots[slot]))
		if err == nil {
			err = h.Apply(ctx, between, "being set", &none)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (v *view) ApplyOut(ctx context.Context, old, new state.Token, b *state.Batch, slot int, segment []byte) error {
	own := copied(b)
	segment = bytes.Clone(segment)
	s := v.c.s
	return v.call(ctx, StoreApply, func(h state.View) error {
		if err := (&outboxConn{v.c}).OutboxLimits().Check(own, slot, segment); err != nil {
			return err
		}
		d := s.db
		was, want, saved := d.views[v.id], s.want(v.id, old), d.save(v.id)
		if want == new {
			return nil
		}
		if err := h.(state.OutboxView).ApplyOut(context.Background(), want, new, own, slot, segment); err != nil {
			return err
		}
		if was.token != new {
			now := was.fold(new, own.Writes())
			now.slots = maps.Clone(was.slots)
			if now.slots == nil {
				now.slots = map[int]string{}
			}
			now.slots[slot] = string(segment)
			s.w.applied[v.id] = true
			d.noted(saved, now)
		}
		return nil
	})
}

func (v *view) Segments(ctx context.Context, expect state.Token, visit func(int, []byte)) error {
	return v.call(ctx, StoreOutbox, func(h state.View) error {
		return h.(state.OutboxView).Segments(ctx, v.c.s.want(v.id, expect), visit)
	})
}

// outboxExpected says whether an instance may have failed as it did: a view that
// nothing can rebuild is no reason to go on without it.
func (w *World) outboxExpected(err error) bool {
	return errors.Is(err, state.ErrCorrupt) && w.damages > 0
}

// ids knows the outputs by their ids.
type ids struct {
	seen    map[outbox.ID]string // what it says
	highs   map[string]outbox.ID // by partition and task: the last one
	repeats int
}

// fresh says whether an output is not a repetition. Two that have one id have to
// be the same, in the same partition, and new ones come in order: else readers
// that remember the last one only would drop them.
func (o *oracle) fresh(topic string, p int32, key, value []byte, headers []task.Header) bool {
	where := fmt.Sprintf("output %q of key %s in %s[%d]", value, key, topic, p)
	var found []outbox.ID
	for _, h := range headers {
		if h.Key != outbox.Header {
			continue
		}
		id, err := outbox.ParseID(h.Value)
		if err != nil {
			o.w.violate("%s: %v", where, err)
			return false
		}
		found = append(found, id)
	}
	if len(found) != 1 {
		o.w.violate("%s has %d ids", where, len(found))
		return false
	}
	i := &o.ids
	if i.seen == nil {
		i.seen, i.highs = map[outbox.ID]string{}, map[string]outbox.ID{}
	}
	id := found[0]
	text := fmt.Sprintf("%s[%d] %s %s", topic, p, key, value)
	if was, ok := i.seen[id]; ok {
		i.repeats++
		if was != text {
			o.w.violate("two outputs have the id %s: %s, and %s", id, was, text)
		}
		return false
	}
	i.seen[id] = text
	from := fmt.Sprintf("%s[%d] %s %s", topic, p, id.Lineage, id.Task)
	if last, ok := i.highs[from]; ok && (id.Seq < last.Seq || id.Seq == last.Seq && id.Index < last.Index) {
		if !o.w.forgot {
			o.w.violate("%s: its id %s is new and comes after %s: a reader takes it for a repetition", where, id, last)
		}
		return false // a fenced owner's, who did not know; it has to come again
	}
	i.highs[from] = id
	return true
}

// strict says that outputs have to be those of a state that changed once.
func (o *oracle) strict() bool { return o.w.setup.Outbox && !o.w.forgot }

// held returns what the views hold, of all partitions.
func (o *oracle) held() (chains map[string]string, counts map[string]int64) {
	chains, counts = map[string]string{}, map[string]int64{}
	for _, id := range o.w.ids {
		v := o.w.shared.db.views[id]
		if v == nil {
			continue
		}
		for k, val := range v.data {
			if key, ok := strings.CutPrefix(k, string(task.StorePrefix(chainStore))); ok {
				chains[key] = val
			} else if key, ok := strings.CutPrefix(k, string(task.StorePrefix(countStore))); ok && len(val) == 16 {
				counts[key] = int64(binary.BigEndian.Uint64([]byte(val[8:])))
			}
		}
	}
	return chains, counts
}

// counted says whether the state has all records, and the group knows it: before
// that the outputs of the last batches may be on their way.
func (o *oracle) counted() bool {
	committed := o.w.kafka.Committed(application)
	for _, t := range o.w.tasks {
		v := o.w.shared.db.views[state.ID{Application: application, Task: t.ID.String()}]
		if v == nil {
			return false
		}
		token, err := stamp.DecodeToken(v.token)
		if err != nil {
			o.w.violate("view %s: %v", t.ID, err)
			return false
		}
		for _, tp := range t.Partitions {
			c := committed[worker.TopicPartition(tp)]
			if s, ours, err := stamp.DecodeStamp(c.Metadata); err != nil || !ours || s.Last != token.Last {
				return false
			}
		}
	}
	_, counts := o.held()
	for key, c := range o.keys {
		if counts[key] < int64(len(c.sent)) {
			return false
		}
	}
	return true
}

// finalOutbox checks the state at the end.
func (o *oracle) finalOutbox() {
	if o.w.err != nil || !o.counted() { // a timer may have come meanwhile
		return
	}
	for _, id := range o.w.ids {
		if v := o.w.shared.db.views[id]; v != nil && o.w.shared.db.raw != nil {
			o.really(id, v)
		}
	}
	chains, counts := o.held()
	for _, key := range slices.Sorted(maps.Keys(o.keys)) {
		c := o.keys[key]
		if !o.strict() {
			continue // counted has seen that none is missing
		}
		want := c.last
		for _, v := range c.sent[c.next:] {
			want = hash(want, v, 0)
		}
		if counts[key] != int64(len(c.sent)) {
			o.w.violate("the state counts %d records of key %s, and %d were sent", counts[key], key, len(c.sent))
		}
		if chains[key] != want {
			o.w.violate("the state has the link %q of key %s, and the outputs end with %q", chains[key], key, want)
		}
	}
}
