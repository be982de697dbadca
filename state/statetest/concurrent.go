package statetest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/weirstreams/weir/state"
)

// In these tests every value of a state is the number of its Apply, so that
// one look tells whether two states were mixed.

const concurrentKeys = 100

func numbered(n int) *state.Batch {
	var b state.Batch
	for i := range concurrentKeys {
		b.Put(fmt.Appendf(nil, "key %03d", i), fmt.Append(nil, n))
	}
	return &b
}

func numberedKeys() [][]byte {
	keys := make([][]byte, concurrentKeys)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "key %03d", i)
	}
	return keys
}

func testConcurrentReaders(t *testing.T, open func(*testing.T) Harness) {
	h := open(t)
	b := h.Backend
	v := mustClaim(t, b, view0, "", "0")
	mustApply(t, v, "0", "1", numbered(1))

	done := make(chan struct{})
	var readers sync.WaitGroup
	defer readers.Wait()
	defer close(done)
	r := b.Committed(view0)
	for range 3 {
		readers.Go(func() {
			keys := numberedKeys()
			for {
				select {
				case <-done:
					return
				default:
				}
				seen := map[string]int{}
				token, err := r.Read(t.Context(), keys, func(_ int, value []byte) { seen[string(value)]++ })
				if err != nil {
					t.Errorf("Committed.Read: %v", err)
					return
				}
				number, _, _ := strings.Cut(string(token), "/")
				if len(seen) != 1 || seen[number] != concurrentKeys {
					t.Errorf("a read with token %q saw %v", token, seen)
					return
				}
				clear(seen)
				es, err := drain(r.Iterate(t.Context(), state.Range{}))
				if err != nil {
					t.Errorf("Committed.Iterate: %v", err)
					return
				}
				if len(es) != concurrentKeys {
					t.Errorf("an iterator yielded %d entries", len(es))
					return
				}
				for _, e := range es {
					seen[e.value]++
				}
				if h.Snapshots && len(seen) != 1 {
					t.Errorf("an iterator saw %v", seen)
					return
				}
			}
		})
	}
	const applies = 200
	token := state.Token("1")
	for n := 2; n < applies; n++ {
		if n%17 == 0 { // claims in between do no harm
			v = mustClaim(t, b, view0, token, token+"/claimed")
			token += "/claimed"
		}
		next := state.Token(fmt.Sprint(n))
		mustApply(t, v, token, next, numbered(n))
		token = next
	}
}

func testConcurrentClear(t *testing.T, open func(*testing.T) Harness) {
	b := open(t).Backend
	v := mustClaim(t, b, view0, "", "0")
	done := make(chan struct{})
	var reader sync.WaitGroup
	defer reader.Wait()
	defer close(done)
	reader.Go(func() {
		keys := numberedKeys()
		for {
			select {
			case <-done:
				return
			default:
			}
			seen := map[string]int{}
			_, err := b.Committed(view0).Read(t.Context(), keys, func(_ int, value []byte) {
				if value != nil {
					seen[string(value)]++
				} else {
					seen["absent"]++
				}
			})
			if err != nil {
				t.Errorf("Committed.Read: %v", err)
				return
			}
			if len(seen) != 1 {
				t.Errorf("a read saw a part of a state: %v", seen)
				return
			}
		}
	})
	token := state.Token("0")
	for n := 1; n < 60; n++ {
		filled, cleared := state.Token(fmt.Sprint(n)), state.Token(fmt.Sprintf("%d cleared", n))
		switch n % 3 {
		case 0:
			mustApply(t, v, token, filled, numbered(n))
		default:
			bulk := mustBulk(t, v, token)
			for _, w := range numbered(n).Writes() {
				if err := bulk.Put(w.Key, w.Value); err != nil {
					t.Fatal(err)
				}
			}
			mustCheckpoint(t, bulk, filled)
			mustCloseBulk(t, bulk)
		}
		if n%5 == 0 {
			if err := b.Drop(t.Context(), view0); err != nil {
				t.Fatal(err)
			}
			v = mustClaim(t, b, view0, "", cleared)
		} else if err := v.Clear(t.Context(), filled, cleared); err != nil {
			t.Fatal(err)
		}
		token = cleared
	}
}

func testConcurrentViews(t *testing.T, open func(*testing.T) Harness) {
	h := open(t)
	b := h.Backend
	const owners, rounds = 6, 40
	var wg sync.WaitGroup
	for o := range owners {
		wg.Go(func() {
			id := state.ID{Application: "app", Task: fmt.Sprintf("0_%d", o)}
			token := state.Token("")
			var v state.View
			for n := range rounds {
				claimed := state.Token(fmt.Sprintf("%d claimed", n))
				if n%10 == 0 {
					var err error
					if v, err = b.Claim(t.Context(), id, token, claimed); err != nil {
						t.Errorf("%s: %v", id, err)
						return
					}
					token = claimed
				}
				next := state.Token(fmt.Sprint(n))
				if err := v.Apply(t.Context(), token, next, numbered(n)); err != nil {
					t.Errorf("%s: %v", id, err)
					return
				}
				token = next
				err := v.Read(t.Context(), token, numberedKeys(), func(_ int, value []byte) {
					if string(value) != fmt.Sprint(n) {
						t.Errorf("%s: round %d read %q", id, n, value)
					}
				})
				if err != nil {
					t.Errorf("%s: %v", id, err)
					return
				}
				if err := v.Apply(t.Context(), "foreign", "other", numbered(-1)); !errors.Is(err, state.ErrFenced) {
					t.Errorf("%s: %v, want ErrFenced", id, err)
					return
				}
				if err := b.Views(t.Context(), "app", func(state.ID, state.Token) bool { return true }); err != nil {
					t.Errorf("Views: %v", err)
					return
				}
			}
			v.Close()
		})
	}
	wg.Wait()
	for o := range owners {
		mustToken(t, b, state.ID{Application: "app", Task: fmt.Sprintf("0_%d", o)}, state.Token(fmt.Sprint(rounds-1)))
	}
}
