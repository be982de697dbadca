package statetest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/weirstreams/weir/state"
)

func testApply(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	want := contents{}
	token := state.Token("t1")
	step := func(fill func(b *state.Batch)) {
		t.Helper()
		var bt state.Batch
		fill(&bt)
		next := token + "'"
		mustApply(t, v, token, next, &bt)
		want, token = want.with(&bt), next
		mustToken(t, b, view0, token)
		mustHold(t, v, token, want)
	}
	step(func(b *state.Batch) { b.Put([]byte("a"), []byte("1")); b.Put([]byte("b"), []byte("2")) })
	step(func(b *state.Batch) { b.Put([]byte("a"), []byte("11")); b.Delete([]byte("b")) })
	// Deleting what is absent is no error, and a delete is no value.
	step(func(b *state.Batch) { b.Delete([]byte("b")); b.Delete([]byte("never seen")) })
	// Positions move without writes as well.
	step(func(b *state.Batch) {})
	// The last write of a key in a batch wins.
	step(func(b *state.Batch) {
		b.Put([]byte("x"), []byte("first"))
		b.Put([]byte("y"), []byte("first"))
		b.Delete([]byte("z"))
		b.Put([]byte("x"), []byte("last"))
		b.Delete([]byte("y"))
		b.Put([]byte("z"), []byte("last"))
	})
	step(func(b *state.Batch) { b.Put([]byte("b"), []byte("again")); b.Put([]byte("empty"), nil) })

	// A foreign or old token changes nothing.
	for _, old := range []state.Token{"t1", "other", ""} {
		err := v.Apply(t.Context(), old, "t9", batch("a", "wrong"))
		mustFence(t, fmt.Sprintf("Apply(%q)", old), err, view0, token)
	}
	mustHold(t, v, token, want)
}

// An Apply whose reply was lost is sent again. It must be recognised even
// though the view has moved on to the new token, and must not be stored twice.
func testApplyRepeated(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	mustApply(t, v, "t1", "t2", batch("a", "1"))
	mustApply(t, v, "t1", "t2", batch("a", "1"))
	// It is the token that says so; the batch is not looked at.
	mustApply(t, v, "t1", "t2", batch("a", "other", "b", "other"))
	mustHold(t, v, "t2", contents{"a": "1"})
	mustToken(t, b, view0, "t2")

	mustApply(t, v, "t2", "t3", batch("a", "2"))
	// One further back is not recognised any more: it is refused.
	err := v.Apply(t.Context(), "t1", "t2", batch("a", "1"))
	mustFence(t, "Apply of the batch before the last", err, view0, "t3")
	mustHold(t, v, "t3", contents{"a": "2"})

	// Nor does an owner that was fenced pass as a repetition.
	newer := mustClaim(t, b, view0, "t3", "t4")
	err = v.Apply(t.Context(), "t2", "t3", batch("a", "2"))
	mustFence(t, "a repetition after a claim", err, view0, "t4")
	mustHold(t, newer, "t4", contents{"a": "2"})
}

func testApplyArguments(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	for _, c := range []struct{ old, new state.Token }{{"t1", ""}, {"t1", "t1"}} {
		// With new equal to old the batch would pass for a repetition and be
		// lost without a word.
		err := v.Apply(t.Context(), c.old, c.new, batch("a", "1"))
		if err == nil || errors.Is(err, state.ErrFenced) {
			t.Errorf("Apply(%q, %q): error %v, want one about the arguments", c.old, c.new, err)
		}
		err = v.Clear(t.Context(), c.old, c.new)
		if err == nil || errors.Is(err, state.ErrFenced) {
			t.Errorf("Clear(%q, %q): error %v, want one about the arguments", c.old, c.new, err)
		}
	}
	mustHold(t, v, "t1", contents{})
}

func testApplyCopiesItsBatch(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	key, value := []byte("key"), []byte("value")
	var bt state.Batch
	bt.Put(key, value)
	mustApply(t, v, "t1", "t2", &bt)
	copy(key, "XXX")
	copy(value, "XXXXX")
	bt.Reset()
	bt.Put([]byte("second"), []byte("2"))
	mustApply(t, v, "t2", "t3", &bt)
	mustHold(t, v, "t3", contents{"key": "value", "second": "2"})
}

// applyLargeWrites is above every internal buffer that a backend is likely to
// have, in writes and in bytes (about 8 MB).
const applyLargeWrites = 20_000

func testApplyLarge(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	pad := make([]byte, 400)
	var bt state.Batch
	for i := range applyLargeWrites {
		bt.Put(fmt.Appendf(nil, "key %07d", i*7919%applyLargeWrites), fmt.Appendf(nil, "%d %s", i, pad))
	}
	mustApply(t, v, "t1", "t2", &bt)
	want := contents{}.with(&bt)
	mustHold(t, v, "t2", want)

	bt.Reset()
	for k := range want {
		if k[len(k)-1]%2 == 0 {
			bt.Delete([]byte(k))
		}
	}
	mustApply(t, v, "t2", "t3", &bt)
	mustHold(t, v, "t3", want.with(&bt))
}

func testClear(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	if err := v.Clear(t.Context(), "t1", "t2"); err != nil {
		t.Fatalf("Clear of an empty view: %v", err)
	}
	mustHold(t, v, "t2", contents{})
	mustApply(t, v, "t2", "t3", batch("", "empty key", "a", "1", "b", "2", "\xff\xff", "3"))
	mustFence(t, "Clear", v.Clear(t.Context(), "t2", "t4"), view0, "t3")
	mustHold(t, v, "t3", contents{"": "empty key", "a": "1", "b": "2", "\xff\xff": "3"})

	if err := v.Clear(t.Context(), "t3", "t4"); err != nil {
		t.Fatal(err)
	}
	mustToken(t, b, view0, "t4")
	mustHold(t, v, "t4", contents{})
	mustRead(t, v, "t4", contents{})
	err := v.Read(t.Context(), "t4", [][]byte{[]byte("a")}, func(_ int, value []byte) {
		if value != nil {
			t.Errorf("a cleared view holds a = %q", value)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	mustApply(t, v, "t4", "t5", batch("b", "new"))
	mustHold(t, v, "t5", contents{"b": "new"})
}
