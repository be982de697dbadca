package statetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weirstreams/weir/state"
)

// history lists the states that a view went through, oldest first. A crash may
// leave one of them, and nothing between two.
type history []moment

type moment struct {
	token    state.Token
	contents contents
}

func (h *history) add(token state.Token, c contents) { *h = append(*h, moment{token, c.clone()}) }

// mustFind checks that the stored state is one of the history at index from or
// later, and returns its index.
func (h history) mustFind(t *testing.T, b state.Backend, id state.ID, from int) int {
	t.Helper()
	probe := contents{}
	for _, m := range h {
		for k := range m.contents {
			probe[k] = ""
		}
	}
	token, got, err := committed(t, b, id, probe)
	if err != nil {
		t.Fatalf("reading what is stored: %v", err)
	}
	mustToken(t, b, id, token)
	// Backwards: after a Drop the empty token occurs more than once.
	for i, m := range slices.Backward(h) {
		if m.token != token {
			continue
		}
		if i < from {
			t.Fatalf("the stored token %q is that of state %d: acknowledged writes up to state %d are lost", short(token), i, from)
		}
		mustEqual(t, fmt.Sprintf("the view under token %q", short(token)), got.in(state.Range{}), m.contents.in(state.Range{}))
		return i
	}
	t.Fatalf("the stored token %q was never written", short(token))
	return 0
}

func testReopen(t *testing.T, open func(*testing.T) Harness) {
	h := open(t)
	if h.Reopen == nil {
		t.Log("the backend's contents end with it")
		return
	}
	b := h.Backend
	v := mustClaim(t, b, view0, "", "t1")
	other := state.ID{Application: "app", Task: "0_11"}
	mustClaim(t, b, other, "", "o1")
	token := state.Token("t1")
	want := contents{}
	for round := range 3 {
		var bt state.Batch
		for i := range 100 {
			bt.Put(fmt.Appendf(nil, "%d/%03d", i%7, i+round), fmt.Appendf(nil, "%d", round))
		}
		bt.Delete(fmt.Appendf(nil, "%d/%03d", 1, 1))
		next := state.Token(fmt.Sprintf("applied %d", round))
		mustApply(t, v, token, next, &bt)
		want = want.with(&bt)

		bulk := mustBulk(t, v, next)
		k := fmt.Sprintf("bulk %d", round)
		mustPut(t, bulk, k, "restored")
		want[k] = "restored"
		token = state.Token(fmt.Sprintf("restored %d", round))
		mustCheckpoint(t, bulk, token)
		mustCloseBulk(t, bulk)

		b = h.Reopen(t)
		mustToken(t, b, view0, token)
		mustToken(t, b, other, "o1")
		claimed := state.Token(fmt.Sprintf("claimed %d", round))
		v = mustClaim(t, b, view0, token, claimed)
		mustHold(t, v, claimed, want)
		token = claimed
	}
	if err := v.Clear(t.Context(), token, "cleared"); err != nil {
		t.Fatal(err)
	}
	if err := b.Drop(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	b = h.Reopen(t)
	mustToken(t, b, other, "")
	mustHold(t, mustClaim(t, b, view0, "cleared", "again"), "again", contents{})
	mustHold(t, mustClaim(t, b, other, "", "o2"), "o2", contents{})
}

func testCrash(t *testing.T, open func(*testing.T) Harness) {
	h := open(t)
	if h.Crash == nil {
		t.Log("the harness cannot crash the backend")
		return
	}
	b := h.Backend
	ids := []state.ID{view0, {Application: "app", Task: "0_01"}, {Application: "app0", Task: "_0"}}
	hist := make([]history, len(ids))
	views := make([]state.View, len(ids))
	tokens := make([]state.Token, len(ids))
	for i := range ids {
		hist[i].add("", contents{})
	}
	last := func(i int) contents { return hist[i][len(hist[i])-1].contents }
	for round := range 12 {
		for i, id := range ids {
			claimed := state.Token(fmt.Sprintf("%d claimed", round))
			views[i] = mustClaim(t, b, id, tokens[i], claimed)
			hist[i].add(claimed, last(i))
			tokens[i] = claimed
		}
		for n := range 5 {
			for i := range ids {
				var bt state.Batch
				for k := range 20 {
					bt.Put(fmt.Appendf(nil, "key %d", (k*7+n+round)%50), fmt.Appendf(nil, "%d.%d", round, n))
				}
				bt.Delete(fmt.Appendf(nil, "key %d", n))
				next := state.Token(fmt.Sprintf("%d.%d", round, n))
				mustApply(t, views[i], tokens[i], next, &bt)
				hist[i].add(next, last(i).with(&bt))
				tokens[i] = next
				if n == 2 && round%3 == i {
					bulk := mustBulk(t, views[i], next)
					mustPut(t, bulk, "bulk", fmt.Sprint(round))
					restored := next + " restored"
					mustCheckpoint(t, bulk, restored)
					mustCloseBulk(t, bulk)
					hist[i].add(restored, last(i).with(batch("bulk", fmt.Sprint(round))))
					tokens[i] = restored
				}
			}
		}
		b = h.Crash(t)
		for i, id := range ids {
			from := len(hist[i]) - 1
			if h.LosesSuffix {
				from = 0
			}
			at := hist[i].mustFind(t, b, id, from)
			tokens[i] = hist[i][at].token
			// What was lost does not come back with the next crash.
			hist[i] = hist[i][:at+1]
		}
	}
}

func testCrashBetweenCheckpoints(t *testing.T, open func(*testing.T) Harness) {
	for _, into := range []string{"empty", "existing"} {
		t.Run(into, func(t *testing.T) {
			h := open(t)
			if h.Crash == nil {
				t.Log("the harness cannot crash the backend")
				return
			}
			b := h.Backend
			v := mustClaim(t, b, view0, "", "t1")
			hist := history{{"", contents{}}, {"t1", contents{}}}
			token := state.Token("t1")
			if into == "existing" {
				mustApply(t, v, "t1", "t2", batch("key 00001", "old", "old", "old"))
				token = "t2"
				hist.add("t2", contents{"key 00001": "old", "old": "old"})
			}
			fill := func(bulk state.Bulk, n int, want contents) {
				// Large enough for the path that a backend takes for much data.
				pad := string(make([]byte, 1000))
				for i := range 5000 {
					k := fmt.Sprintf("key %05d", i*3%5000)
					value := fmt.Sprintf("%d %d %s", n, i, pad)
					mustPut(t, bulk, k, value)
					want[k] = value
				}
				mustDelete(t, bulk, "old")
				delete(want, "old")
			}
			bulk := mustBulk(t, v, token)
			want := hist[len(hist)-1].contents.clone()
			for n := range 3 {
				fill(bulk, n, want)
				mustCheckpoint(t, bulk, state.Token(fmt.Sprintf("checkpoint %d", n)))
				hist.add(state.Token(fmt.Sprintf("checkpoint %d", n)), want)
			}
			fill(bulk, 99, contents{})

			b = h.Crash(t)
			from := len(hist) - 1
			if h.LosesSuffix {
				from = 0
			}
			hist.mustFind(t, b, view0, from)
		})
	}
}

// maxFailures bounds the points at which a failure is tried in one operation.
const maxFailures = 300

// eachFailure runs do once for every point at which the storage can fail
// during it, crashes the backend there and checks that the view is in a state
// of its history: the one before or the one after, never between.
//
// prepare brings the view into the state before and returns its history; do
// performs the operation and adds the state after it.
func eachFailure(t *testing.T, open func(*testing.T) Harness,
	prepare func(*testing.T, state.Backend) (state.View, history),
	do func(*testing.T, state.Backend, state.View, *history) error,
) {
	h := open(t)
	if h.FailAfter == nil || h.Crash == nil {
		t.Log("the harness injects no failures")
		return
	}
	for n := 0; ; n++ {
		if n == maxFailures {
			t.Fatalf("the operation did not end within %d operations of the storage", n)
		}
		if n > 0 {
			h = open(t)
		}
		v, hist := prepare(t, h.Backend)
		before := len(hist) - 1
		met := h.FailAfter(t, n)
		err := do(t, h.Backend, v, &hist)
		after := len(hist) - 1
		if after != before+1 {
			t.Fatalf("the operation added %d states", after-before)
		}
		if errors.Is(err, state.ErrFenced) {
			t.Fatalf("failure %d: %v: a failure of the storage is no fence", n, err)
		}
		if err == nil && !met() {
			// The whole operation fits in n operations of the storage.
			if n == 0 {
				t.Fatal("the operation wrote nothing: no failure was tried")
			}
			return
		}

		// What can still be read on the failed backend is whole.
		token, got, rerr := committed(t, h.Backend, view0, hist[after].contents)
		if rerr == nil {
			i := before
			if token == hist[after].token {
				i = after
			}
			if token != hist[i].token {
				t.Fatalf("failure %d: token %q is none of the two states", n, token)
			}
			mustEqual(t, fmt.Sprintf("failure %d: before the crash", n), got.in(state.Range{}), hist[i].contents.in(state.Range{}))
		}

		b := h.Crash(t)
		from := before
		if err == nil {
			from = after
		}
		if h.LosesSuffix {
			from = 0
		}
		at := hist.mustFind(t, b, view0, from)

		// The view is usable again.
		if hist[at].token == "" {
			v = mustClaim(t, b, view0, "", "anew")
		} else {
			v = mustClaim(t, b, view0, hist[at].token, "anew")
		}
		mustApply(t, v, "anew", "anew 2", batch("anew", "1"))
		mustHold(t, v, "anew 2", hist[at].contents.with(batch("anew", "1")))
		if err := b.Close(); err != nil {
			t.Fatalf("failure %d: Close after the crash: %v", n, err)
		}
	}
}

func prepareFilled(t *testing.T, b state.Backend) (state.View, history) {
	t.Helper()
	v := mustClaim(t, b, view0, "", "t1")
	bt := batch("a", "1", "b", "1", "c", "1", "d", "1")
	mustApply(t, v, "t1", "t2", bt)
	return v, history{{"", contents{}}, {"t1", contents{}}, {"t2", contents{}.with(bt)}}
}

func testFailedClaim(t *testing.T, open func(*testing.T) Harness) {
	t.Run("empty", func(t *testing.T) {
		eachFailure(t, open,
			func(*testing.T, state.Backend) (state.View, history) { return nil, history{{"", contents{}}} },
			func(t *testing.T, b state.Backend, _ state.View, hist *history) error {
				hist.add("t1", contents{})
				_, err := b.Claim(t.Context(), view0, "", "t1")
				return err
			})
	})
	t.Run("existing", func(t *testing.T) {
		eachFailure(t, open, prepareFilled,
			func(t *testing.T, b state.Backend, _ state.View, hist *history) error {
				hist.add("t3", (*hist)[len(*hist)-1].contents)
				_, err := b.Claim(t.Context(), view0, "t2", "t3")
				return err
			})
	})
}

func testFailedApply(t *testing.T, open func(*testing.T) Harness) {
	for _, size := range []int{10, 100_000} {
		t.Run(fmt.Sprintf("value=%d", size), func(t *testing.T) {
			eachFailure(t, open, prepareFilled,
				func(t *testing.T, b state.Backend, v state.View, hist *history) error {
					pad := string(make([]byte, size))
					bt := batch("a", "2"+pad, "b", "2"+pad, "e", "2"+pad, "f", "2")
					bt.Delete([]byte("c"))
					hist.add("t3", (*hist)[len(*hist)-1].contents.with(bt))
					return v.Apply(t.Context(), "t2", "t3", bt)
				})
		})
	}
}

func testFailedClear(t *testing.T, open func(*testing.T) Harness) {
	eachFailure(t, open, prepareFilled,
		func(t *testing.T, b state.Backend, v state.View, hist *history) error {
			hist.add("t3", contents{})
			return v.Clear(t.Context(), "t2", "t3")
		})
}

func testFailedDrop(t *testing.T, open func(*testing.T) Harness) {
	eachFailure(t, open,
		func(t *testing.T, b state.Backend) (state.View, history) {
			// The state after a drop is the first one again; give it the only
			// place in the history, so that it is found there.
			v, hist := prepareFilled(t, b)
			return v, hist[1:]
		},
		func(t *testing.T, b state.Backend, _ state.View, hist *history) error {
			hist.add("", contents{})
			return b.Drop(t.Context(), view0)
		})
}

func testFailedCheckpoint(t *testing.T, open func(*testing.T) Harness) {
	for _, c := range []struct{ records, size int }{{5, 10}, {40, 30_000}} {
		t.Run(fmt.Sprintf("records=%d", c.records), func(t *testing.T) {
			eachFailure(t, open, prepareFilled,
				func(t *testing.T, b state.Backend, v state.View, hist *history) error {
					want := (*hist)[len(*hist)-1].contents.clone()
					delete(want, "b")
					for i := range c.records {
						want[fmt.Sprintf("key %02d", i)] = string(make([]byte, c.size))
					}
					hist.add("t3", want)
					bulk, err := v.Bulk(t.Context(), "t2")
					if err != nil {
						return err
					}
					defer bulk.Close()
					if err := bulk.Delete([]byte("b")); err != nil {
						return err
					}
					for k, value := range want {
						if err := bulk.Put([]byte(k), []byte(value)); err != nil {
							return err
						}
					}
					return bulk.Checkpoint(t.Context(), "t3")
				})
		})
	}
}

// A backend that is damaged says so or has started anew; what it still hands
// out is right.
func testCorruption(t *testing.T, open func(*testing.T) Harness) {
	h := open(t)
	if h.Corrupt == nil {
		t.Log("the harness cannot damage the storage")
		return
	}
	v := mustClaim(t, h.Backend, view0, "", "t1")
	// Values that do not compress, in many blocks.
	var bt state.Batch
	random := rand.NewChaCha8([32]byte{1})
	for i := range 500 {
		value := make([]byte, 300)
		random.Read(value)
		bt.Put(fmt.Appendf(nil, "key %05d", i), value)
	}
	mustApply(t, v, "t1", "t2", &bt)
	want := contents{}.with(&bt)

	b := h.Corrupt(t)
	token, err := b.Token(t.Context(), view0)
	if err != nil {
		if !errors.Is(err, state.ErrCorrupt) {
			t.Fatalf("Token: %v, want ErrCorrupt", err)
		}
		return
	}
	if token == "" {
		// Quarantined: as good as new.
		v := mustClaim(t, b, view0, "", "u1")
		mustHold(t, v, "u1", contents{})
		mustApply(t, v, "u1", "u2", batch("a", "1"))
		mustHold(t, v, "u2", contents{"a": "1"})
		return
	}
	if token != "t2" {
		t.Fatalf("token %q", token)
	}
	es, ierr := drain(b.Committed(view0).Iterate(t.Context(), state.Range{}))
	for _, e := range es {
		if want[e.key] != e.value {
			t.Errorf("damaged storage yields %q = %q", short(e.key), short(e.value))
		}
	}
	if !errors.Is(ierr, state.ErrCorrupt) {
		t.Errorf("reading everything ended with %v after %d entries, want ErrCorrupt", ierr, len(es))
	}
	corrupt := 0
	for k, value := range want {
		_, err := b.Committed(view0).Read(t.Context(), [][]byte{[]byte(k)}, func(_ int, got []byte) {
			if string(got) != value {
				t.Errorf("damaged storage reads %q as %q", k, short(got))
			}
		})
		switch {
		case errors.Is(err, state.ErrCorrupt):
			corrupt++
		case err != nil:
			t.Fatalf("Read(%q): %v", k, err)
		}
	}
	if corrupt == 0 {
		t.Error("no point read met the damage")
	}
}
