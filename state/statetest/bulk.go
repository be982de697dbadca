package statetest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weirstreams/weir/state"
)

func mustBulk(t *testing.T, v state.View, old state.Token) state.Bulk {
	t.Helper()
	b, err := v.Bulk(t.Context(), old)
	if err != nil {
		t.Fatalf("Bulk(%q): %v", short(old), err)
	}
	return b
}

func mustPut(t *testing.T, b state.Bulk, kv ...string) {
	t.Helper()
	for i := 0; i < len(kv); i += 2 {
		if err := b.Put([]byte(kv[i]), []byte(kv[i+1])); err != nil {
			t.Fatalf("Put(%q): %v", kv[i], err)
		}
	}
}

func mustDelete(t *testing.T, b state.Bulk, keys ...string) {
	t.Helper()
	for _, k := range keys {
		if err := b.Delete([]byte(k)); err != nil {
			t.Fatalf("Delete(%q): %v", k, err)
		}
	}
}

func mustCheckpoint(t *testing.T, b state.Bulk, new state.Token) {
	t.Helper()
	if err := b.Checkpoint(t.Context(), new); err != nil {
		t.Fatalf("Checkpoint(%q): %v", short(new), err)
	}
}

func mustCloseBulk(t *testing.T, b state.Bulk) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Fatalf("Close of a bulk: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Fatalf("a second Close of a bulk: %v", err)
	}
}

func testBulk(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	bulk := mustBulk(t, v, "t1")
	mustPut(t, bulk, "a", "1", "b", "1", "c", "1", "", "empty key", "e", "")
	mustPut(t, bulk, "a", "2", "d", "long enough to be moved elsewhere, and back")
	mustDelete(t, bulk, "b", "never seen")
	mustPut(t, bulk, "d", "2", "\xff", "last")
	mustDelete(t, bulk, "c")
	mustPut(t, bulk, "c", "back", "a", "a longer value than before")
	mustCheckpoint(t, bulk, "t2")
	want := contents{"a": "a longer value than before", "c": "back", "d": "2", "": "empty key", "e": "", "\xff": "last"}
	mustToken(t, b, view0, "t2")
	token, got, err := committed(t, b, view0, want)
	if err != nil || token != "t2" {
		t.Fatalf("token %q, error %v", token, err)
	}
	mustEqual(t, "after the checkpoint", got.in(state.Range{}), want.in(state.Range{}))

	// A checkpoint may hold nothing but progress.
	mustCheckpoint(t, bulk, "t3")
	mustToken(t, b, view0, "t3")
	mustPut(t, bulk, "a", "3")
	mustDelete(t, bulk, "e", "")
	mustCheckpoint(t, bulk, "t4")
	mustCloseBulk(t, bulk)
	want["a"] = "3"
	delete(want, "e")
	delete(want, "")
	mustHold(t, v, "t4", want)

	// Life goes on.
	mustApply(t, v, "t4", "t5", batch("a", "4", "f", "1"))
	want["a"], want["f"] = "4", "1"
	mustHold(t, v, "t5", want)
}

func testBulkIntoExisting(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	var bt state.Batch
	for i := range 1000 {
		bt.Put(fmt.Appendf(nil, "key %04d", i), []byte("old"))
	}
	mustApply(t, v, "t1", "t2", &bt)
	want := contents{}.with(&bt)
	bulk := mustBulk(t, v, "t2")
	for i := 0; i < 2000; i += 3 {
		k := fmt.Sprintf("key %04d", i)
		if i%2 == 0 {
			mustPut(t, bulk, k, "new")
			want[k] = "new"
		} else {
			mustDelete(t, bulk, k)
			delete(want, k)
		}
	}
	mustCheckpoint(t, bulk, "t3")
	mustCloseBulk(t, bulk)
	mustHold(t, v, "t3", want)

	// After a Clear nothing of the old contents is left under the new ones.
	if err := v.Clear(t.Context(), "t3", "t4"); err != nil {
		t.Fatal(err)
	}
	bulk = mustBulk(t, v, "t4")
	mustPut(t, bulk, "key 0001", "rebuilt", "z", "rebuilt")
	mustCheckpoint(t, bulk, "t5")
	mustCloseBulk(t, bulk)
	mustHold(t, v, "t5", contents{"key 0001": "rebuilt", "z": "rebuilt"})
}

func testBulkCloseDropsTheRest(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	bulk := mustBulk(t, v, "t1")
	mustPut(t, bulk, "a", "1")
	mustCloseBulk(t, bulk)
	mustToken(t, b, view0, "t1")
	mustHold(t, v, "t1", contents{})

	bulk = mustBulk(t, v, "t1")
	mustPut(t, bulk, "b", "1", "c", "1")
	mustCheckpoint(t, bulk, "t2")
	mustPut(t, bulk, "c", "2", "d", "2")
	mustDelete(t, bulk, "b")
	mustCloseBulk(t, bulk)
	mustToken(t, b, view0, "t2")
	mustHold(t, v, "t2", contents{"b": "1", "c": "1"})
	mustApply(t, v, "t2", "t3", batch("e", "1"))
	mustHold(t, v, "t3", contents{"b": "1", "c": "1", "e": "1"})
}

func testBulkIsFenced(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	_, err := v.Bulk(t.Context(), "t0")
	mustFence(t, "Bulk", err, view0, "t1")

	bulk := mustBulk(t, v, "t1")
	mustPut(t, bulk, "a", "1")
	mustCheckpoint(t, bulk, "t2")
	newer := mustClaim(t, b, view0, "t2", "t3")
	mustPut(t, bulk, "a", "2", "b", "2")
	mustFence(t, "Checkpoint after a claim", bulk.Checkpoint(t.Context(), "t2b"), view0, "t3")
	mustCloseBulk(t, bulk)
	mustHold(t, newer, "t3", contents{"a": "1"})

	// The view may be gone altogether.
	bulk = mustBulk(t, newer, "t3")
	mustPut(t, bulk, "a", "3")
	if err := b.Drop(t.Context(), view0); err != nil {
		t.Fatal(err)
	}
	mustFence(t, "Checkpoint after a drop", bulk.Checkpoint(t.Context(), "t4"), view0, "")
	mustCloseBulk(t, bulk)
	mustToken(t, b, view0, "")
}

func testBulkCopies(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	bulk := mustBulk(t, v, "t1")
	key, value := make([]byte, 5), make([]byte, 5)
	want := contents{}
	for i := range 500 {
		copy(key, fmt.Sprintf("k%04d", i%200))
		copy(value, fmt.Sprintf("v%04d", i))
		if err := bulk.Put(key, value); err != nil {
			t.Fatal(err)
		}
		want[string(key)] = string(value)
	}
	copy(key, "XXXXX")
	copy(value, "XXXXX")
	mustCheckpoint(t, bulk, "t2")
	mustCloseBulk(t, bulk)
	mustHold(t, v, "t2", want)
}

// bulkLargeBytes is more than a backend should be willing to hold in memory
// for one restore in the suite's configuration.
const bulkLargeBytes = 24 << 20

func testBulkLarge(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	rng := rand.New(rand.NewPCG(7, 7))
	want := contents{}
	bulk := mustBulk(t, v, "t1")
	token := state.Token("t1")
	pad := make([]byte, 2000)
	for bytes, n := 0, 0; bytes < bulkLargeBytes; n++ {
		k := fmt.Sprintf("key %05d", rng.IntN(8000))
		if rng.IntN(10) == 0 {
			mustDelete(t, bulk, k)
			delete(want, k)
		} else {
			value := fmt.Sprintf("%d %s", n, pad[:rng.IntN(len(pad))])
			mustPut(t, bulk, k, value)
			want[k] = value
			bytes += len(value)
		}
		if n == 3000 {
			// The rest, which is the most of it, is one checkpoint.
			token = "t2"
			mustCheckpoint(t, bulk, token)
		}
	}
	mustToken(t, b, view0, "t2")
	mustCheckpoint(t, bulk, "t3")
	mustCloseBulk(t, bulk)
	mustHold(t, v, "t3", want)
}
