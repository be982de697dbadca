package statetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weirstreams/weir/state"
)

func testReadAbsentAndEmpty(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	var bt state.Batch
	bt.Put([]byte("empty"), []byte{})
	bt.Put([]byte("nil"), nil)
	bt.Put([]byte(""), []byte("of the empty key"))
	bt.Put([]byte("a"), []byte("1"))
	mustApply(t, v, "t1", "t2", &bt)

	check := func(read func([][]byte, func(int, []byte)) error) {
		t.Helper()
		// A key may be asked for twice.
		keys := [][]byte{[]byte("absent"), []byte("empty"), []byte("nil"), {}, []byte("a"), []byte("aa"), []byte("a")}
		got := make([]string, len(keys))
		err := read(keys, func(i int, value []byte) {
			if got[i] != "" {
				t.Errorf("key %d was visited twice", i)
			}
			got[i] = "value:" + string(value)
			if value == nil {
				got[i] = "absent"
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"absent", "value:", "value:", "value:of the empty key", "value:1", "absent", "value:1"}
		if !slices.Equal(got, want) {
			t.Errorf("Read = %q, want %q", got, want)
		}
	}
	check(func(keys [][]byte, visit func(int, []byte)) error { return v.Read(t.Context(), "t2", keys, visit) })
	check(func(keys [][]byte, visit func(int, []byte)) error {
		token, err := b.Committed(view0).Read(t.Context(), keys, visit)
		if token != "t2" {
			t.Errorf("Committed.Read returned token %q", token)
		}
		return err
	})
	// A read of nothing still compares the token.
	if err := v.Read(t.Context(), "t2", nil, nil); err != nil {
		t.Errorf("Read of no keys: %v", err)
	}
	mustFence(t, "Read of no keys", v.Read(t.Context(), "t1", nil, nil), view0, "t2")
	mustHold(t, v, "t2", contents{}.with(&bt))
}

// Values and token come from one atomic read: an owner that reads while
// another one claims and writes gets its own values or a refusal.
func testReadIsFenced(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	owner := mustClaim(t, b, view0, "", "t0")
	keys := make([][]byte, 50)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "key %d", i)
	}
	fill := func(value string) *state.Batch {
		var bt state.Batch
		for _, k := range keys {
			bt.Put(k, []byte(value))
		}
		return &bt
	}
	const rounds = 30
	token := state.Token("t0")
	for round := range rounds {
		mine := state.Token(fmt.Sprintf("mine %d", round))
		mustApply(t, owner, token, mine, fill(string(mine)))

		theirs := state.Token(fmt.Sprintf("theirs %d", round))
		done := make(chan error, 1)
		next := make(chan state.View, 1)
		go func() {
			v, err := b.Claim(t.Context(), view0, mine, theirs)
			if err == nil {
				err = v.Apply(t.Context(), theirs, theirs+"'", fill("foreign"))
			}
			next <- v
			done <- err
		}()
		for fenced := false; !fenced; {
			visited := 0
			err := owner.Read(t.Context(), mine, keys, func(i int, value []byte) {
				visited++
				if string(value) != string(mine) {
					t.Errorf("round %d: a read under %q saw %q", round, mine, value)
				}
			})
			switch {
			case err == nil && visited != len(keys):
				t.Fatalf("round %d: %d of %d keys visited", round, visited, len(keys))
			case errors.Is(err, state.ErrFenced):
				fenced = true
				if visited != 0 {
					t.Fatalf("round %d: a refused read visited %d keys", round, visited)
				}
			case err != nil:
				t.Fatal(err)
			}
		}
		owner = <-next
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		token = theirs + "'"
	}
}

// trickyKeys are prefixes of one another and hold the bytes that encodings
// tend to use as separators or escapes.
func trickyKeys() []string {
	parts := []string{"", "\x00", "\x01", "\x02", "\xfe", "\xff", "a"}
	var keys []string
	seen := map[string]bool{}
	for _, p := range parts {
		for _, q := range parts {
			for _, r := range parts {
				if k := p + q + r; !seen[k] {
					seen[k] = true
					keys = append(keys, k)
				}
			}
		}
	}
	return keys
}

func testBinaryKeys(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	keys := trickyKeys()
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	var bt state.Batch
	for i, k := range keys {
		bt.Put([]byte(k), fmt.Appendf(nil, "%x", k))
		if i%5 == 0 {
			bt.Put([]byte(k), nil)
		}
	}
	mustApply(t, v, "t1", "t2", &bt)
	want := contents{}.with(&bt)
	mustHold(t, v, "t2", want)

	for _, lower := range keys {
		for _, reverse := range []bool{false, true} {
			r := state.PrefixRange([]byte(lower))
			r.Reverse = reverse
			got, err := drain(v.Iterate(t.Context(), "t2", r))
			if err != nil {
				t.Fatal(err)
			}
			mustEqual(t, fmt.Sprintf("prefix %x (reverse %v)", lower, reverse), got, want.in(r))
		}
	}
	// Deleting a key leaves those that begin with it.
	bt.Reset()
	bt.Delete([]byte("a"))
	bt.Delete([]byte("\x00"))
	bt.Delete([]byte(""))
	mustApply(t, v, "t2", "t3", &bt)
	mustHold(t, v, "t3", want.with(&bt))
}

// largeValue is the largest record that Kafka takes by default.
const largeValue = 1 << 20

func testLargeValues(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	rng := rand.NewChaCha8([32]byte{1})
	var bt state.Batch
	for i := range 6 {
		value := make([]byte, largeValue-i)
		rng.Read(value)
		bt.Put(fmt.Appendf(nil, "large %d", i), value)
		bt.Put(fmt.Appendf(nil, "small %d", i), []byte("s"))
	}
	longKey := []byte(strings.Repeat("k", 60_000))
	bt.Put(longKey, []byte("of a long key"))
	mustApply(t, v, "t1", "t2", &bt)
	want := contents{}.with(&bt)
	mustHold(t, v, "t2", want)

	bt.Reset()
	bt.Put([]byte("large 1"), []byte("now small"))
	bt.Delete([]byte("large 2"))
	mustApply(t, v, "t2", "t3", &bt)
	mustHold(t, v, "t3", want.with(&bt))
}

func testIterateOrderAndBounds(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	var bt state.Batch
	for i := range 300 {
		bt.Put(fmt.Appendf(nil, "k%04d", i*2), fmt.Append(nil, i))
	}
	mustApply(t, v, "t1", "t2", &bt)
	want := contents{}.with(&bt)

	k := func(i int) []byte { return fmt.Appendf(nil, "k%04d", i) }
	ranges := []state.Range{
		{},
		{Lower: k(0)}, {Lower: k(1)}, {Lower: k(598)}, {Lower: k(599)},
		{Upper: k(0)}, {Upper: k(1)}, {Upper: k(598)}, {Upper: k(599)},
		{Lower: k(100), Upper: k(200)}, // Lower is in it, Upper is not
		{Lower: k(101), Upper: k(201)},
		{Lower: k(100), Upper: k(100)}, // empty
		{Lower: k(200), Upper: k(100)}, // upside down: empty
		{Lower: []byte{}, Upper: []byte{}},
		{Lower: []byte{}},
		{Lower: []byte("k0100\x00"), Upper: []byte("k0104\x00")},
		{Lower: []byte("z")}, {Upper: []byte("a")},
	}
	for _, r := range ranges {
		for _, reverse := range []bool{false, true} {
			r.Reverse = reverse
			what := fmt.Sprintf("range [%q, %q) reverse %v", r.Lower, r.Upper, reverse)
			got, err := drain(v.Iterate(t.Context(), "t2", r))
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			mustEqual(t, what, got, want.in(r))
			got, err = drain(b.Committed(view0).Iterate(t.Context(), r))
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			mustEqual(t, "committed "+what, got, want.in(r))
		}
	}

	// An iterator is over when it is over, and may be left early.
	it := v.Iterate(t.Context(), "t2", state.Range{Lower: k(596)})
	n := 0
	for it.Next() {
		n++
	}
	if n != 2 || it.Next() || it.Next() || it.Err() != nil {
		t.Errorf("%d entries, then Next = %v, Err = %v", n, it.Next(), it.Err())
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	if err := it.Close(); err != nil {
		t.Fatalf("a second Close: %v", err)
	}
	it = v.Iterate(t.Context(), "t2", state.Range{})
	it.Next()
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	if it.Next() {
		t.Error("Next = true after Close")
	}
	mustApply(t, v, "t2", "t3", batch("k0001", "odd"))
	// Several iterators at once, in both directions.
	fwd, rev := v.Iterate(t.Context(), "t3", state.Range{}), v.Iterate(t.Context(), "t3", state.Range{Reverse: true})
	es := contents{"k0001": "odd"}
	for key, value := range want {
		es[key] = value
	}
	sorted := es.in(state.Range{})
	for i := range sorted {
		if !fwd.Next() || !rev.Next() {
			t.Fatalf("entry %d: the iterators end early: %v, %v", i, fwd.Err(), rev.Err())
		}
		if a, z := sorted[i], sorted[len(sorted)-1-i]; string(fwd.Key()) != a.key || string(rev.Key()) != z.key ||
			string(fwd.Value()) != a.value || string(rev.Value()) != z.value {
			t.Fatalf("entry %d: %q and %q, want %q and %q", i, fwd.Key(), rev.Key(), a.key, z.key)
		}
	}
	fwd.Close()
	rev.Close()
}

// iterateEntries is more than a backend that reads in pages is likely to hold
// in one page.
const iterateEntries = 5000

func testIterateIsFenced(t *testing.T, open func(*testing.T) Harness) {
	for _, reverse := range []bool{false, true} {
		t.Run(fmt.Sprintf("reverse=%v", reverse), func(t *testing.T) {
			b := open(t).Backend
			v := mustClaim(t, b, view0, "", "t1")
			mine, theirs := new(state.Batch), new(state.Batch)
			for i := range iterateEntries {
				mine.Put(fmt.Appendf(nil, "key %05d", i), []byte("mine"))
				theirs.Put(fmt.Appendf(nil, "key %05d", i), []byte("theirs"))
			}
			mustApply(t, v, "t1", "t2", mine)

			it := v.Iterate(t.Context(), "t2", state.Range{Reverse: reverse})
			defer it.Close()
			for range 10 {
				if !it.Next() {
					t.Fatal(it.Err())
				}
			}
			newer := mustClaim(t, b, view0, "t2", "t3")
			mustApply(t, newer, "t3", "t4", theirs)
			n := 10
			for it.Next() {
				n++
				if string(it.Value()) != "mine" {
					t.Fatalf("entry %d is from another state: %q = %q", n, it.Key(), it.Value())
				}
			}
			if n == iterateEntries {
				t.Errorf("an iterator of %d entries did not notice the claim", n)
			}
			if !errors.Is(it.Err(), state.ErrFenced) {
				t.Errorf("the iterator ended with %v after %d entries, want ErrFenced", it.Err(), n)
			}
		})
	}
}

// The owner's own Apply may invalidate its iterators, but never mixes two
// states in one.
func testIterateAcrossApply(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	first, second := new(state.Batch), new(state.Batch)
	for i := range iterateEntries {
		first.Put(fmt.Appendf(nil, "key %05d", i), []byte("first"))
		second.Put(fmt.Appendf(nil, "key %05d", i), []byte("second"))
	}
	mustApply(t, v, "t1", "t2", first)
	it := v.Iterate(t.Context(), "t2", state.Range{})
	defer it.Close()
	if !it.Next() {
		t.Fatal(it.Err())
	}
	mustApply(t, v, "t2", "t3", second)
	n := 1
	for it.Next() {
		n++
		if string(it.Value()) != "first" {
			t.Fatalf("entry %d is from another state: %q = %q", n, it.Key(), it.Value())
		}
	}
	if err := it.Err(); err != nil && !errors.Is(err, state.ErrFenced) {
		t.Errorf("the iterator ended with %v", err)
	} else if err == nil && n != iterateEntries {
		t.Errorf("the iterator ended without an error after %d of %d entries", n, iterateEntries)
	}
}

func testApproximateCount(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	count := func(r state.Range) int64 {
		t.Helper()
		n, err := v.ApproximateCount(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if n < 0 {
			t.Fatalf("ApproximateCount = %d", n)
		}
		return n
	}
	count(state.Range{})
	var bt state.Batch
	for i := range 1000 {
		bt.Put(fmt.Appendf(nil, "%d %04d", i%2, i), []byte("value"))
	}
	mustApply(t, v, "t1", "t2", &bt)
	if n := count(state.Range{}); n == 0 {
		t.Error("a view of 1000 entries counts as empty")
	}
	count(state.PrefixRange([]byte("1 ")))
	count(state.Range{Lower: []byte("z"), Upper: []byte("a")})
}

func testCommitted(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	r := b.Committed(view0)
	// It may be made before the view, and reads as empty till then.
	token, got, err := committed(t, b, view0, contents{"a": ""})
	if err != nil || token != "" || len(got) != 0 {
		t.Fatalf("a view that does not exist reads as %v with token %q, error %v", got, token, err)
	}
	v := mustClaim(t, b, view0, "", "t1")
	mustApply(t, v, "t1", "t2", batch("a", "1", "b", ""))
	read := func(want string) state.Token {
		t.Helper()
		got := "absent"
		token, err := r.Read(t.Context(), [][]byte{[]byte("a")}, func(_ int, value []byte) {
			if value != nil {
				got = string(value)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("Read = %q, want %q", got, want)
		}
		return token
	}
	if token := read("1"); token != "t2" {
		t.Errorf("token %q", token)
	}
	// A claim does not disturb it.
	newer := mustClaim(t, b, view0, "t2", "t3")
	if token := read("1"); token != "t3" {
		t.Errorf("token %q", token)
	}
	mustApply(t, newer, "t3", "t4", batch("a", "2"))
	if token := read("2"); token != "t4" {
		t.Errorf("token %q", token)
	}
	if err := b.Drop(t.Context(), view0); err != nil {
		t.Fatal(err)
	}
	if token := read("absent"); token != "" {
		t.Errorf("token %q", token)
	}
}

func testCancellation(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "t1")
	var bt state.Batch
	for i := range iterateEntries {
		bt.Put(fmt.Appendf(nil, "key %05d", i), []byte("value"))
	}
	mustApply(t, v, "t1", "t2", &bt)

	ctx, cancel := context.WithCancel(background)
	it := v.Iterate(ctx, "t2", state.Range{})
	defer it.Close()
	running := b.Committed(view0).Iterate(ctx, state.Range{})
	defer running.Close()
	if !it.Next() || !running.Next() {
		t.Fatal(it.Err(), running.Err())
	}
	cancel()
	mustBeCancelled := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v, want context.Canceled", what, err)
		}
	}
	for what, it := range map[string]state.Iterator{"an iterator": it, "an iterator of Committed": running} {
		n := 1
		for it.Next() {
			n++
		}
		if n == iterateEntries {
			t.Errorf("%s went through all %d entries after the cancellation", what, n)
		}
		mustBeCancelled(what, it.Err())
	}
	key := [][]byte{[]byte("key 00000")}
	mustBeCancelled("Apply", v.Apply(ctx, "t2", "t3", batch("a", "1")))
	mustBeCancelled("Read", v.Read(ctx, "t2", key, func(int, []byte) {}))
	_, err := drain(v.Iterate(ctx, "t2", state.Range{}))
	mustBeCancelled("Iterate", err)
	_, err = v.Bulk(ctx, "t2")
	mustBeCancelled("Bulk", err)
	mustBeCancelled("Clear", v.Clear(ctx, "t2", "t3"))
	_, err = v.ApproximateCount(ctx, state.Range{})
	mustBeCancelled("ApproximateCount", err)
	_, err = b.Token(ctx, view0)
	mustBeCancelled("Token", err)
	_, err = b.Claim(ctx, view0, "t2", "t3")
	mustBeCancelled("Claim", err)
	mustBeCancelled("Drop", b.Drop(ctx, view0))
	_, err = b.Committed(view0).Read(ctx, key, func(int, []byte) {})
	mustBeCancelled("Committed.Read", err)
	_, err = drain(b.Committed(view0).Iterate(ctx, state.Range{}))
	mustBeCancelled("Committed.Iterate", err)

	bulk, err := v.Bulk(t.Context(), "t2")
	if err != nil {
		t.Fatal(err)
	}
	if err := bulk.Put([]byte("a"), []byte("1")); err != nil {
		t.Fatal(err)
	}
	mustBeCancelled("Checkpoint", bulk.Checkpoint(ctx, "t3"))
	bulk.Close()
	mustToken(t, b, view0, "t2")
	mustHold(t, v, "t2", contents{}.with(&bt))
}
