// Package statetest is the conformance suite of package state: what every
// backend has to pass before the runtime may trust it with a task's state.
//
// A backend's test calls Run with a function that opens a fresh, empty backend
// and says in a Harness what else may be done to it. What the Harness does not
// offer is not tested, so a remote backend without a disk runs the same suite
// as an embedded one.
package statetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/weirstreams/weir/state"
)

// Harness is one open, empty backend and what the suite may do to it. The
// suite calls it from one goroutine.
type Harness struct {
	// Backend is the backend under test. The harness closes whatever is still
	// open when the test ends (t.Cleanup); Close is idempotent.
	Backend state.Backend

	// Reopen closes the backend and opens the same storage again. Nil for a
	// backend whose contents end with it.
	Reopen func(t *testing.T) state.Backend

	// Crash opens the storage again as it is when the owner died without
	// closing anything. The old backend may be used no more. Nil where this
	// cannot be done.
	Crash func(t *testing.T) state.Backend

	// LosesSuffix says that a Crash may take the latest acknowledged writes
	// of a view with it: the power failed, or a replica was promoted that had
	// not seen them. What is left must still be the state of some token.
	LosesSuffix bool

	// FailAfter lets the storage under the backend do n more operations that
	// write and makes all later ones fail, until Crash. It returns a function
	// that tells whether the failure was met. Needs Crash. Nil where failures
	// cannot be injected.
	FailAfter func(t *testing.T, n int) (met func() bool)

	// Corrupt closes the backend, damages what is stored, in a way that its
	// checksums can find, and opens it again. Nil where there is nothing to
	// damage.
	Corrupt func(t *testing.T) state.Backend

	// LocalViews says that Views lists the views. A remote backend lists none.
	LocalViews bool

	// Snapshots says that an iterator of Committed yields one consistent
	// state, whatever is applied meanwhile.
	Snapshots bool
}

// Run runs the suite. It calls open once for every subtest, and several times
// in those that enumerate points of failure; each call returns an independent,
// empty backend.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	for _, c := range []struct {
		name string
		test func(*testing.T, func(*testing.T) Harness)
	}{
		{"ClaimFromEmpty", testClaimFromEmpty},
		{"ClaimFromOld", testClaimFromOld},
		{"ClaimMismatch", testClaimMismatch},
		{"ClaimArguments", testClaimArguments},
		{"ClaimRace", testClaimRace},
		{"OlderHandleIsRefused", testOlderHandleIsRefused},
		{"TokensAreOpaque", testTokensAreOpaque},
		{"ForeignToken", testForeignToken},
		{"Drop", testDrop},
		{"Views", testViews},
		{"ViewsAreIsolated", testViewsAreIsolated},
		{"Closed", testClosed},

		{"Apply", testApply},
		{"ApplyRepeated", testApplyRepeated},
		{"ApplyArguments", testApplyArguments},
		{"ApplyCopiesItsBatch", testApplyCopiesItsBatch},
		{"ApplyLarge", testApplyLarge},
		{"Clear", testClear},

		{"ReadAbsentAndEmpty", testReadAbsentAndEmpty},
		{"ReadIsFenced", testReadIsFenced},
		{"BinaryKeys", testBinaryKeys},
		{"LargeValues", testLargeValues},
		{"IterateOrderAndBounds", testIterateOrderAndBounds},
		{"IterateIsFenced", testIterateIsFenced},
		{"IterateAcrossApply", testIterateAcrossApply},
		{"ApproximateCount", testApproximateCount},
		{"Committed", testCommitted},
		{"Cancellation", testCancellation},

		{"Bulk", testBulk},
		{"BulkIntoExisting", testBulkIntoExisting},
		{"BulkCloseDropsTheRest", testBulkCloseDropsTheRest},
		{"BulkIsFenced", testBulkIsFenced},
		{"BulkCopies", testBulkCopies},
		{"BulkLarge", testBulkLarge},

		{"ConcurrentReaders", testConcurrentReaders},
		{"ConcurrentClear", testConcurrentClear},
		{"ConcurrentViews", testConcurrentViews},

		{"Outbox", testOutbox},
		{"OutboxIsFenced", testOutboxIsFenced},
		{"OutboxLimits", testOutboxLimits},
		{"FailedApplyOut", testFailedApplyOut},

		{"Reopen", testReopen},
		{"Crash", testCrash},
		{"CrashBetweenCheckpoints", testCrashBetweenCheckpoints},
		{"FailedClaim", testFailedClaim},
		{"FailedApply", testFailedApply},
		{"FailedClear", testFailedClear},
		{"FailedDrop", testFailedDrop},
		{"FailedCheckpoint", testFailedCheckpoint},
		{"Corruption", testCorruption},

		{"Random", testRandom},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open) })
	}
}

// view0 is the view of tests that need only one.
var view0 = state.ID{Application: "app", Task: "0_0"}

// contents is what a view holds; a nil value does not occur.
type contents map[string]string

func (c contents) clone() contents { return maps.Clone(c) }

// with returns a copy of c after the writes of b.
func (c contents) with(b *state.Batch) contents {
	d := contents{}
	maps.Copy(d, c)
	for _, w := range b.Writes() {
		if w.Value == nil {
			delete(d, string(w.Key))
		} else {
			d[string(w.Key)] = string(w.Value)
		}
	}
	return d
}

// entry is one key with its value.
type entry struct{ key, value string }

// in returns the entries of a range in the order in which an iterator has to
// yield them.
func (c contents) in(r state.Range) []entry {
	var es []entry
	for k, v := range c {
		if bytes.Compare([]byte(k), r.Lower) >= 0 && (r.Upper == nil || bytes.Compare([]byte(k), r.Upper) < 0) {
			es = append(es, entry{k, v})
		}
	}
	slices.SortFunc(es, func(a, b entry) int { return bytes.Compare([]byte(a.key), []byte(b.key)) })
	if r.Reverse {
		slices.Reverse(es)
	}
	return es
}

// batch builds a batch from alternating keys and values.
func batch(kv ...string) *state.Batch {
	var b state.Batch
	for i := 0; i < len(kv); i += 2 {
		b.Put([]byte(kv[i]), []byte(kv[i+1]))
	}
	return &b
}

func mustClaim(t *testing.T, b state.Backend, id state.ID, old, new state.Token) state.View {
	t.Helper()
	v, err := b.Claim(t.Context(), id, old, new)
	if err != nil {
		t.Fatalf("Claim(%s, %q, %q): %v", id, short(old), short(new), err)
	}
	return v
}

func mustApply(t *testing.T, v state.View, old, new state.Token, b *state.Batch) {
	t.Helper()
	if err := v.Apply(t.Context(), old, new, b); err != nil {
		t.Fatalf("Apply(%q, %q): %v", short(old), short(new), err)
	}
}

func mustToken(t *testing.T, b state.Backend, id state.ID, want state.Token) {
	t.Helper()
	got, err := b.Token(t.Context(), id)
	if err != nil {
		t.Fatalf("Token(%s): %v", id, err)
	}
	if got != want {
		t.Fatalf("Token(%s) = %q, want %q", id, short(got), short(want))
	}
}

// mustFence checks that err is a *FencedError for the view that carries the
// token which is stored.
func mustFence(t *testing.T, what string, err error, id state.ID, stored state.Token) {
	t.Helper()
	if !errors.Is(err, state.ErrFenced) {
		t.Fatalf("%s: error %v, want ErrFenced", what, err)
	}
	var f *state.FencedError
	if !errors.As(err, &f) {
		t.Fatalf("%s: error %v is no *FencedError", what, err)
	}
	if f.ID != id || f.Stored != stored {
		t.Fatalf("%s: refused by %s with token %q, want %s with %q", what, f.ID, short(f.Stored), id, short(stored))
	}
}

// drain closes the iterator after reading it to its end.
func drain(it state.Iterator) ([]entry, error) {
	var es []entry
	for it.Next() {
		es = append(es, entry{string(it.Key()), string(it.Value())})
	}
	err := it.Err()
	if cerr := it.Close(); err == nil {
		err = cerr
	}
	return es, err
}

// mustHold checks through an iterator and through point reads that the view
// holds exactly want.
func mustHold(t *testing.T, v state.View, token state.Token, want contents) {
	t.Helper()
	got, err := drain(v.Iterate(t.Context(), token, state.Range{}))
	if err != nil {
		t.Fatalf("Iterate(%q): %v", short(token), err)
	}
	mustEqual(t, "the view", got, want.in(state.Range{}))
	mustRead(t, v, token, want)
}

// mustRead checks point reads of all keys of want and of some that are absent.
func mustRead(t *testing.T, v state.View, token state.Token, want contents) {
	t.Helper()
	keys := probes(want)
	seen := make([]int, len(keys))
	err := v.Read(t.Context(), token, keys, func(i int, value []byte) {
		seen[i]++
		checkValue(t, string(keys[i]), value, want)
	})
	if err != nil {
		t.Fatalf("Read(%q): %v", short(token), err)
	}
	for i, n := range seen {
		if n != 1 {
			t.Fatalf("Read visited key %q %d times", short(keys[i]), n)
		}
	}
}

// probes returns the keys of c and neighbours that are absent.
func probes(c contents) [][]byte {
	var keys [][]byte
	for k := range c {
		keys = append(keys, []byte(k))
		if _, ok := c[k+"\x00"]; !ok {
			keys = append(keys, []byte(k+"\x00"))
		}
	}
	if _, ok := c["no such key"]; !ok {
		keys = append(keys, []byte("no such key"))
	}
	return keys
}

func checkValue(t *testing.T, key string, value []byte, want contents) {
	t.Helper()
	w, ok := want[key]
	switch {
	case !ok && value != nil:
		t.Errorf("key %q = %q, want it absent", short(key), short(value))
	case ok && value == nil:
		t.Errorf("key %q is absent, want %q", short(key), short(w))
	case ok && string(value) != w:
		t.Errorf("key %q = %q, want %q", short(key), short(value), short(w))
	}
}

func mustEqual(t *testing.T, what string, got, want []entry) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s holds %d entries, want %d", what, len(got), len(want))
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("%s: entry %d is %q=%q, want %q=%q", what, i,
				short(got[i].key), short(got[i].value), short(want[i].key), short(want[i].value))
		}
	}
	if len(got) != len(want) {
		t.FailNow()
	}
}

// committed reads a whole view without a fence: its token, the entries that
// an iterator yields, and the same through point reads.
func committed(t *testing.T, b state.Backend, id state.ID, probe contents) (state.Token, contents, error) {
	t.Helper()
	r := b.Committed(id)
	es, err := drain(r.Iterate(t.Context(), state.Range{}))
	if err != nil {
		return "", nil, err
	}
	got := contents{}
	for _, e := range es {
		got[e.key] = e.value
	}
	keys := probes(probe)
	token, err := r.Read(t.Context(), keys, func(i int, value []byte) { checkValue(t, string(keys[i]), value, got) })
	if err != nil {
		return "", nil, err
	}
	return token, got, nil
}

// short keeps large values out of messages.
func short[T ~string | ~[]byte](v T) string {
	const limit = 40
	if len(v) > limit {
		return fmt.Sprintf("%s... (%d bytes)", string(v[:limit]), len(v))
	}
	return string(v)
}

// background is for the places where the test's context has ended on purpose.
var background = context.Background()
