package statetest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/weirstreams/weir/state"
)

func testClaimFromEmpty(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	mustToken(t, b, view0, "")
	v := mustClaim(t, b, view0, "", "t1")
	mustToken(t, b, view0, "t1")
	mustHold(t, v, "t1", contents{})

	// The view exists now: making it again is refused.
	_, err := b.Claim(t.Context(), view0, "", "t2")
	mustFence(t, "a second claim from empty", err, view0, "t1")
	mustToken(t, b, view0, "t1")
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if err := v.Close(); err != nil {
		t.Fatalf("a second Close of the view: %v", err)
	}
	mustToken(t, b, view0, "t1")
}

func testClaimFromOld(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	mustApply(t, v, "t1", "t2", batch("a", "1", "b", "2"))

	v2 := mustClaim(t, b, view0, "t2", "t3")
	mustToken(t, b, view0, "t3")
	mustHold(t, v2, "t3", contents{"a": "1", "b": "2"})
	mustApply(t, v2, "t3", "t4", batch("c", "3"))
	mustHold(t, v2, "t4", contents{"a": "1", "b": "2", "c": "3"})
}

func testClaimMismatch(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	_, err := b.Claim(t.Context(), view0, "t1", "t2")
	mustFence(t, "a claim of a view that does not exist", err, view0, "")
	mustToken(t, b, view0, "")

	v := mustClaim(t, b, view0, "", "t1")
	mustApply(t, v, "t1", "t2", batch("a", "1"))
	_, err = b.Claim(t.Context(), view0, "t1", "t3")
	mustFence(t, "a claim with an old token", err, view0, "t2")
	// Claim is no Apply: a claim whose new token is stored already was made
	// by somebody else.
	_, err = b.Claim(t.Context(), view0, "t1", "t2")
	mustFence(t, "a claim towards the stored token", err, view0, "t2")
	mustToken(t, b, view0, "t2")
	mustHold(t, v, "t2", contents{"a": "1"})
}

func testClaimArguments(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	mustClaim(t, b, view0, "", "t1")
	for _, c := range []struct{ old, new state.Token }{{"", ""}, {"t1", ""}, {"t1", "t1"}} {
		_, err := b.Claim(t.Context(), view0, c.old, c.new)
		if err == nil || errors.Is(err, state.ErrFenced) {
			t.Errorf("Claim(%q, %q): error %v, want one about the arguments", c.old, c.new, err)
		}
	}
	mustToken(t, b, view0, "t1")
}

func testClaimRace(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	const claimers = 8
	from := state.Token("")
	for round := range 5 {
		var wg sync.WaitGroup
		errs := make([]error, claimers)
		for i := range claimers {
			wg.Go(func() {
				_, errs[i] = b.Claim(t.Context(), view0, from, state.Token(fmt.Sprintf("r%d-%d", round, i)))
			})
		}
		wg.Wait()
		winner := state.Token("")
		for i, err := range errs {
			switch {
			case err == nil && winner != "":
				t.Fatalf("round %d: two claims of the same token succeeded", round)
			case err == nil:
				winner = state.Token(fmt.Sprintf("r%d-%d", round, i))
			case !errors.Is(err, state.ErrFenced):
				t.Fatalf("round %d: %v", round, err)
			}
		}
		if winner == "" {
			t.Fatalf("round %d: no claim succeeded", round)
		}
		mustToken(t, b, view0, winner)
		from = winner
	}
}

func testOlderHandleIsRefused(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	older := mustClaim(t, b, view0, "", "t1")
	mustApply(t, older, "t1", "t2", batch("a", "1"))
	newer := mustClaim(t, b, view0, "t2", "t3")

	refused := func(stored state.Token) {
		t.Helper()
		err := older.Apply(t.Context(), "t2", "t2b", batch("a", "zombie", "z", "zombie"))
		mustFence(t, "Apply", err, view0, stored)
		err = older.Read(t.Context(), "t2", [][]byte{[]byte("a"), []byte("z")}, func(i int, value []byte) {
			t.Errorf("a refused Read visited key %d = %q", i, value)
		})
		mustFence(t, "Read", err, view0, stored)
		for _, reverse := range []bool{false, true} {
			es, err := drain(older.Iterate(t.Context(), "t2", state.Range{Reverse: reverse}))
			if len(es) != 0 {
				t.Errorf("a refused iterator yielded %v", es)
			}
			mustFence(t, "Iterate", err, view0, stored)
		}
		bulk, err := older.Bulk(t.Context(), "t2")
		if err == nil {
			bulk.Close()
		}
		mustFence(t, "Bulk", err, view0, stored)
		mustFence(t, "Clear", older.Clear(t.Context(), "t2", "t2c"), view0, stored)
	}
	refused("t3")
	mustHold(t, newer, "t3", contents{"a": "1"})
	mustApply(t, newer, "t3", "t4", batch("a", "2"))
	refused("t4")
	mustHold(t, newer, "t4", contents{"a": "2"})
	mustToken(t, b, view0, "t4")

	// Closing a refused handle does the owner no harm.
	if err := older.Close(); err != nil {
		t.Fatal(err)
	}
	mustApply(t, newer, "t4", "t5", batch("a", "3"))
	mustHold(t, newer, "t5", contents{"a": "3"})
}

// A token belongs to the claimer: whatever bytes it is made of, also damaged
// ones, come back as they are, and only equality counts.
func testTokensAreOpaque(t *testing.T, open func(*testing.T) Harness) {
	h := open(t)
	b := h.Backend
	tokens := []state.Token{
		"\x00", "\x00\x00", "\xff", "\xff\xfe\xfd", "a\x00b", "\r\n", "{}", " ", "\xc3\x28",
		state.Token(bytes.Repeat([]byte{0}, 1000)),
		state.Token(strings.Repeat("\x00\xff", 2048)),
	}
	var previous state.Token
	var v state.View
	for i, token := range tokens {
		v = mustClaim(t, b, view0, previous, token)
		mustToken(t, b, view0, token)
		applied := token + "+"
		mustApply(t, v, token, applied, batch("k", fmt.Sprint(i)))
		mustToken(t, b, view0, applied)
		mustHold(t, v, applied, contents{"k": fmt.Sprint(i)})
		previous = applied
	}
	// Neither a prefix nor an extension of the token is the token.
	for _, near := range []state.Token{previous[:len(previous)-1], previous + "\x00"} {
		err := v.Apply(t.Context(), near, "x", batch("k", "wrong"))
		mustFence(t, "Apply with a similar token", err, view0, previous)
	}
	if h.Reopen != nil {
		b = h.Reopen(t)
		mustToken(t, b, view0, previous)
		mustClaim(t, b, view0, previous, "end")
	}
}

// A view of another lineage looks like any other: its token is handed out, and
// a caller that expects its own is refused with the one that was found.
func testForeignToken(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "lineage-A/1")
	mustApply(t, v, "lineage-A/1", "lineage-A/2", batch("k", "A"))

	// Another owner replaced the view meanwhile.
	if err := b.Drop(t.Context(), view0); err != nil {
		t.Fatal(err)
	}
	other := mustClaim(t, b, view0, "", "lineage-B/1")
	mustApply(t, other, "lineage-B/1", "lineage-B/2", batch("k", "B"))

	_, err := b.Claim(t.Context(), view0, "lineage-A/2", "lineage-A/3")
	mustFence(t, "Claim", err, view0, "lineage-B/2")
	mustFence(t, "Apply", v.Apply(t.Context(), "lineage-A/2", "lineage-A/3", batch("k", "A2")), view0, "lineage-B/2")
	err = v.Read(t.Context(), "lineage-A/2", [][]byte{[]byte("k")}, func(int, []byte) { t.Error("a refused Read visited a key") })
	mustFence(t, "Read", err, view0, "lineage-B/2")
	mustHold(t, other, "lineage-B/2", contents{"k": "B"})
}

func testDrop(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	if err := b.Drop(t.Context(), view0); err != nil {
		t.Fatalf("Drop of a view that does not exist: %v", err)
	}
	v := mustClaim(t, b, view0, "", "t1")
	mustApply(t, v, "t1", "t2", batch("a", "1", "b", "2"))
	if err := b.Drop(t.Context(), view0); err != nil {
		t.Fatal(err)
	}
	mustToken(t, b, view0, "")
	token, got, err := committed(t, b, view0, contents{"a": ""})
	if err != nil || token != "" || len(got) != 0 {
		t.Fatalf("a dropped view reads as %v with token %q, error %v", got, token, err)
	}
	mustFence(t, "Apply", v.Apply(t.Context(), "t2", "t3", batch("c", "3")), view0, "")
	err = v.Read(t.Context(), "t2", [][]byte{[]byte("a")}, func(int, []byte) { t.Error("a refused Read visited a key") })
	mustFence(t, "Read", err, view0, "")
	_, err = drain(v.Iterate(t.Context(), "t2", state.Range{}))
	mustFence(t, "Iterate", err, view0, "")
	mustFence(t, "Clear", v.Clear(t.Context(), "t2", "t3"), view0, "")
	mustToken(t, b, view0, "")

	// Nothing of the dropped view shines through a new one.
	v = mustClaim(t, b, view0, "", "u1")
	mustHold(t, v, "u1", contents{})
	mustApply(t, v, "u1", "u2", batch("b", "new"))
	mustHold(t, v, "u2", contents{"b": "new"})
	if err := b.Drop(t.Context(), view0); err != nil {
		t.Fatal(err)
	}
	if err := b.Drop(t.Context(), view0); err != nil {
		t.Fatalf("a second Drop: %v", err)
	}
}

func testViews(t *testing.T, open func(*testing.T) Harness) {
	h := open(t)
	b := h.Backend
	want := map[state.ID]state.Token{}
	for _, id := range trickyIDs() {
		token := state.Token("token of " + id.String())
		mustClaim(t, b, id, "", token)
		want[id] = token
	}
	check := func() {
		t.Helper()
		for _, app := range applications() {
			got := map[state.ID]state.Token{}
			err := b.Views(t.Context(), app, func(id state.ID, token state.Token) bool {
				if _, twice := got[id]; twice {
					t.Errorf("Views(%q) yielded %s twice", app, id)
				}
				got[id] = token
				return true
			})
			if err != nil {
				t.Fatalf("Views(%q): %v", app, err)
			}
			of := map[state.ID]state.Token{}
			if h.LocalViews {
				maps.Copy(of, want)
				maps.DeleteFunc(of, func(id state.ID, _ state.Token) bool { return id.Application != app })
			}
			if !maps.Equal(got, of) {
				t.Errorf("Views(%q) = %v, want %v", app, got, of)
			}
		}
	}
	check()

	app := applications()[0]
	calls := 0
	err := b.Views(t.Context(), app, func(state.ID, state.Token) bool { calls++; return false })
	if err != nil || calls > 1 {
		t.Errorf("Views went on after yield returned false: %d calls, error %v", calls, err)
	}
	gone := state.ID{Application: app, Task: tasks()[0]}
	if err := b.Drop(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	delete(want, gone)
	check()
	if h.Reopen != nil {
		b = h.Reopen(t)
		check()
	}
}

// applications and tasks hold names that are prefixes of each other or that
// would run together if the two were only joined.
func applications() []string {
	return []string{"app", "app0", "ap", "app/0", "app\x00", "app\x01", "a\xff", "ä"}
}

func tasks() []string { return []string{"0_1", "0_11", "0_1\x00", "0_1\xff", "0_", "1_1", "/0_1"} }

func trickyIDs() []state.ID {
	var ids []state.ID
	for _, a := range applications() {
		for _, task := range tasks() {
			ids = append(ids, state.ID{Application: a, Task: task})
		}
	}
	return ids
}

func testViewsAreIsolated(t *testing.T, open func(*testing.T) Harness) {
	h := open(t)
	b := h.Backend
	ids := trickyIDs()
	views := map[state.ID]state.View{}
	want := map[state.ID]contents{}
	token := func(id state.ID, n int) state.Token { return state.Token(fmt.Sprintf("%s#%d", id, n)) }
	for _, id := range ids {
		views[id] = mustClaim(t, b, id, "", token(id, 0))
	}
	// Keys that continue a task name in one view, and a task name as key.
	keys := []string{"", "\x00", "\xff", "1", "1\x00", "_1", "0_1", "0_11", "a/0_1"}
	for i, id := range ids {
		var bt state.Batch
		for j, k := range keys {
			if (i+j)%3 != 0 {
				bt.Put([]byte(k), []byte(id.String()+"="+k))
			}
		}
		mustApply(t, views[id], token(id, 0), token(id, 1), &bt)
		want[id] = contents{}.with(&bt)
	}
	check := func() {
		t.Helper()
		for _, id := range ids {
			n := 1
			if want[id] == nil {
				mustToken(t, b, id, "")
				continue
			}
			if len(want[id]) == 0 {
				n = 2
			}
			mustHold(t, views[id], token(id, n), want[id])
		}
	}
	check()
	// Clear every third view and drop every fourth: the others stay.
	for i, id := range ids {
		switch {
		case i%3 == 0:
			if err := views[id].Clear(t.Context(), token(id, 1), token(id, 2)); err != nil {
				t.Fatal(err)
			}
			want[id] = contents{}
		case i%4 == 0:
			if err := b.Drop(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			want[id] = nil
		}
	}
	check()
}

func testClosed(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	closedView := mustClaim(t, b, view0, "", "t1")
	mustApply(t, closedView, "t1", "t2", batch("a", "1", "b", "2"))
	other := state.ID{Application: "app", Task: "0_1"}
	v := mustClaim(t, b, other, "", "u1")
	mustApply(t, v, "u1", "u2", batch("a", "1", "b", "2"))

	if err := closedView.Close(); err != nil {
		t.Fatal(err)
	}
	mustBeClosed := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, state.ErrClosed) {
			t.Errorf("%s: error %v, want ErrClosed", what, err)
		}
	}
	useView := func(v state.View, token state.Token) {
		t.Helper()
		mustBeClosed("Apply", v.Apply(t.Context(), token, "x", batch("a", "2")))
		mustBeClosed("Read", v.Read(t.Context(), token, [][]byte{[]byte("a")}, func(int, []byte) { t.Error("a closed view was read") }))
		_, err := drain(v.Iterate(t.Context(), token, state.Range{}))
		mustBeClosed("Iterate", err)
		_, err = v.Bulk(t.Context(), token)
		mustBeClosed("Bulk", err)
		mustBeClosed("Clear", v.Clear(t.Context(), token, "x"))
		_, err = v.ApproximateCount(t.Context(), state.Range{})
		mustBeClosed("ApproximateCount", err)
	}
	useView(closedView, "t2")
	mustToken(t, b, view0, "t2")

	bulk, err := v.Bulk(t.Context(), "u2")
	if err != nil {
		t.Fatal(err)
	}
	bulk.Close()
	mustBeClosed("Put", bulk.Put([]byte("a"), []byte("x")))
	mustBeClosed("Delete", bulk.Delete([]byte("a")))
	mustBeClosed("Checkpoint", bulk.Checkpoint(t.Context(), "u3"))

	// The backend may be closed under open iterators and readers.
	reader := b.Committed(other)
	it := v.Iterate(t.Context(), "u2", state.Range{})
	if !it.Next() {
		t.Fatalf("Next = false: %v", it.Err())
	}
	if err := b.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Fatalf("a second Close: %v", err)
	}
	if it.Next() {
		t.Error("an iterator went on after its backend was closed")
	}
	mustBeClosed("an open iterator", it.Err())
	if err := it.Close(); err != nil {
		t.Errorf("Close of the iterator: %v", err)
	}
	useView(v, "u2")
	_, err = b.Token(t.Context(), view0)
	mustBeClosed("Token", err)
	_, err = b.Claim(t.Context(), view0, "t2", "t3")
	mustBeClosed("Claim", err)
	mustBeClosed("Drop", b.Drop(t.Context(), view0))
	mustBeClosed("Views", b.Views(t.Context(), "app", func(state.ID, state.Token) bool { return true }))
	_, err = reader.Read(t.Context(), [][]byte{[]byte("a")}, func(int, []byte) { t.Error("a closed backend was read") })
	mustBeClosed("Committed.Read", err)
	_, err = drain(reader.Iterate(t.Context(), state.Range{}))
	mustBeClosed("Committed.Iterate", err)
	if err := v.Close(); err != nil {
		t.Errorf("Close of a view after its backend: %v", err)
	}
}
