package statetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/weirstreams/weir/state"
)

// outboxOf returns the view with its outbox and the limits, nil for a backend
// without outboxes.
func outboxOf(t *testing.T, b state.Backend, v state.View) (state.OutboxView, state.OutboxLimits) {
	t.Helper()
	ob, ok := b.(state.Outbox)
	if !ok {
		t.Log("the backend has no outboxes")
		return nil, state.OutboxLimits{}
	}
	ov, ok := v.(state.OutboxView)
	if !ok {
		t.Fatalf("a view of a backend with outboxes is a %T, which has none", v)
	}
	l := ob.OutboxLimits()
	if l.Keys < 1 || l.Bytes < 1 || l.SegmentBytes < 1 || l.Slots < 2 {
		t.Fatalf("limits %+v", l)
	}
	return ov, l
}

func mustApplyOut(t *testing.T, v state.OutboxView, old, new state.Token, b *state.Batch, slot int, segment string) {
	t.Helper()
	if err := v.ApplyOut(t.Context(), old, new, b, slot, []byte(segment)); err != nil {
		t.Fatalf("ApplyOut(%q, %q, slot %d): %v", short(old), short(new), slot, err)
	}
}

func mustSegments(t *testing.T, v state.OutboxView, token state.Token, want map[int]string) {
	t.Helper()
	got := map[int]string{}
	err := v.Segments(t.Context(), token, func(slot int, segment []byte) {
		if _, twice := got[slot]; twice {
			t.Errorf("slot %d is visited twice", slot)
		}
		got[slot] = string(segment)
	})
	if err != nil {
		t.Fatalf("Segments(%q): %v", short(token), err)
	}
	if !maps.Equal(got, want) {
		t.Fatalf("the slots hold %d segments %.200q, want %d %.200q", len(got), fmt.Sprint(got), len(want), fmt.Sprint(want))
	}
}

// Data, token and segment change together; a slot keeps what was written last.
func testOutbox(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v, l := outboxOf(t, b, mustClaim(t, b, view0, "", "t0"))
	if v == nil {
		return
	}
	want, slots := contents{}, map[int]string{}
	mustSegments(t, v, "t0", slots)
	token := state.Token("t0")
	for n := 1; n <= 2*l.Slots+1; n++ {
		next := state.Token(fmt.Sprintf("t%d", n))
		bt := batch("last", string(next), fmt.Sprintf("k%d", n), "v")
		if n%3 == 0 {
			bt.Delete(fmt.Appendf(nil, "k%d", n-1))
		}
		segment := fmt.Sprintf("%s\x00\xff", next)
		if n == 2 {
			segment = "" // a batch without outputs has a slot as well
		}
		mustApplyOut(t, v, token, next, bt, n%l.Slots, segment)
		want, token = want.with(bt), next
		slots[n%l.Slots] = segment
		mustHold(t, v, token, want)
		if n < 4 || n >= 2*l.Slots {
			mustSegments(t, v, token, maps.Clone(slots))
			mustSegments(t, v, token, slots)
		}
	}
	mustToken(t, b, view0, token)

	// An Apply and a claim leave the slots.
	mustApply(t, v, token, "applied", batch("k", "v"))
	mustSegments(t, v, "applied", slots)
	again, _ := outboxOf(t, b, mustClaim(t, b, view0, "applied", "claimed"))
	mustSegments(t, again, "claimed", slots)
	mustHold(t, again, "claimed", want.with(batch("k", "v")))

	// The outboxes of two views have nothing to do with each other.
	other, _ := outboxOf(t, b, mustClaim(t, b, state.ID{Application: "app", Task: "0_1"}, "", "o1"))
	mustSegments(t, other, "o1", map[int]string{})
	mustApplyOut(t, other, "o1", "o2", batch(), 1, "other")
	mustSegments(t, again, "claimed", slots)

	if err := again.Clear(t.Context(), "claimed", "cleared"); err != nil {
		t.Fatalf("Clear: %v", err)
	}
	mustSegments(t, again, "cleared", map[int]string{})
	mustApplyOut(t, again, "cleared", "t9", batch("a", "1"), 0, "nine")
	mustSegments(t, again, "t9", map[int]string{0: "nine"})
	if err := b.Drop(t.Context(), view0); err != nil {
		t.Fatalf("Drop: %v", err)
	}
	anew, _ := outboxOf(t, b, mustClaim(t, b, view0, "", "n1"))
	mustSegments(t, anew, "n1", map[int]string{})
	mustSegments(t, other, "o2", map[int]string{1: "other"})
}

// An ApplyOut is fenced, and recognised when it is repeated, as an Apply is.
func testOutboxIsFenced(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v, _ := outboxOf(t, b, mustClaim(t, b, view0, "", "t1"))
	if v == nil {
		return
	}
	mustApplyOut(t, v, "t1", "t2", batch("a", "1"), 1, "one")
	// The token says that it was done; neither batch nor segment is looked at.
	mustApplyOut(t, v, "t1", "t2", batch("a", "2"), 1, "two")
	mustApplyOut(t, v, "t1", "t2", batch("a", "2"), 0, "two")
	mustSegments(t, v, "t2", map[int]string{1: "one"})
	mustHold(t, v, "t2", contents{"a": "1"})

	newer, _ := outboxOf(t, b, mustClaim(t, b, view0, "t2", "t3"))
	for _, old := range []state.Token{"t1", "t2", ""} {
		err := v.ApplyOut(t.Context(), old, "t4", batch("a", "wrong"), 1, []byte("wrong"))
		mustFence(t, fmt.Sprintf("ApplyOut(%q)", old), err, view0, "t3")
	}
	visited := false
	err := v.Segments(t.Context(), "t2", func(int, []byte) { visited = true })
	mustFence(t, "Segments", err, view0, "t3")
	if visited {
		t.Error("a refused read of the outbox has yielded something")
	}
	mustSegments(t, newer, "t3", map[int]string{1: "one"})
	mustHold(t, newer, "t3", contents{"a": "1"})

	for _, c := range []struct{ old, new state.Token }{{"t3", ""}, {"t3", "t3"}} {
		if err := newer.ApplyOut(t.Context(), c.old, c.new, batch("a", "wrong"), 0, nil); err == nil {
			t.Errorf("ApplyOut(%q, %q) is taken", c.old, c.new)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := newer.ApplyOut(ended, "t3", "t4", batch("a", "wrong"), 0, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("ApplyOut in a context that has ended: %v", err)
	}
	mustSegments(t, newer, "t3", map[int]string{1: "one"})

	if err := newer.Close(); err != nil {
		t.Fatal(err)
	}
	if err := newer.ApplyOut(t.Context(), "t3", "t4", batch(), 0, nil); !errors.Is(err, state.ErrClosed) {
		t.Errorf("ApplyOut of a closed view: %v", err)
	}
	if err := newer.Segments(t.Context(), "t3", func(int, []byte) {}); !errors.Is(err, state.ErrClosed) {
		t.Errorf("Segments of a closed view: %v", err)
	}
}

// A batch of just the size that is allowed is taken, one beyond it is refused
// and leaves no trace.
func testOutboxLimits(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v, l := outboxOf(t, b, mustClaim(t, b, view0, "", "t1"))
	if v == nil {
		return
	}
	keys := func(n int) *state.Batch {
		var bt state.Batch
		for i := range n {
			bt.Put(fmt.Appendf(nil, "key%05d", i), []byte("v"))
		}
		return &bt
	}
	size := func(n int) *state.Batch { return batch("big", strings.Repeat("x", n-len("big"))) }
	segment := func(n int) []byte { return bytes.Repeat([]byte("s"), n) }
	for _, c := range []struct {
		name    string
		b       *state.Batch
		slot    int
		segment []byte
	}{
		{"too many keys", keys(l.Keys + 1), 0, nil},
		{"too many bytes", size(l.Bytes + 1), 0, nil},
		{"a segment that is too large", batch("a", "1"), 0, segment(l.SegmentBytes + 1)},
		{"no such slot", batch("a", "1"), l.Slots, nil},
		{"no slot", batch("a", "1"), -1, nil},
	} {
		err := v.ApplyOut(t.Context(), "t1", "t2", c.b, c.slot, c.segment)
		if err == nil || errors.Is(err, state.ErrFenced) || errors.Is(err, state.ErrUnavailable) {
			t.Errorf("%s: error %v", c.name, err)
		}
	}
	mustToken(t, b, view0, "t1")
	mustHold(t, v, "t1", contents{})
	mustSegments(t, v, "t1", map[int]string{})

	mustApplyOut(t, v, "t1", "t2", keys(l.Keys), 0, string(segment(l.SegmentBytes)))
	want := contents{}.with(keys(l.Keys))
	mustHold(t, v, "t2", want)
	mustApplyOut(t, v, "t2", "t3", size(l.Bytes), l.Slots-1, "s")
	mustHold(t, v, "t3", want.with(size(l.Bytes)))
	mustSegments(t, v, "t3", map[int]string{0: string(segment(l.SegmentBytes)), l.Slots - 1: "s"})
}

// Of a batch that failed, data and segment are there or neither.
func testFailedApplyOut(t *testing.T, open func(*testing.T) Harness) {
	for n := 0; ; n++ {
		h := open(t)
		if h.FailAfter == nil {
			t.Log("failures cannot be injected")
			return
		}
		v, l := outboxOf(t, h.Backend, mustClaim(t, h.Backend, view0, "", "t1"))
		if v == nil {
			return
		}
		mustApplyOut(t, v, "t1", "t2", batch("a", "1", "b", "1"), 1, "one")
		met := h.FailAfter(t, n)
		bt := batch("a", "2", "c", "2")
		for i := range l.Keys / 2 {
			bt.Put(fmt.Appendf(nil, "key%d", i), []byte("v"))
		}
		err := v.ApplyOut(t.Context(), "t2", "t3", bt, 1, []byte("two"))
		failed := met()
		if failed == (err == nil) {
			t.Fatalf("failure %d: met %v, error %v", n, failed, err)
		}
		b := h.Crash(t)
		token, err := b.Token(t.Context(), view0)
		if err != nil {
			t.Fatal(err)
		}
		next, _ := outboxOf(t, b, mustClaim(t, b, view0, token, "claimed"))
		want := contents{"a": "1", "b": "1"}
		switch token {
		case "t2":
			mustSegments(t, next, "claimed", map[int]string{1: "one"})
		case "t3":
			want = want.with(bt)
			mustSegments(t, next, "claimed", map[int]string{1: "two"})
		default:
			t.Fatalf("failure %d: token %q", n, token)
		}
		mustHold(t, next, "claimed", want)
		if !failed {
			return
		}
	}
}
