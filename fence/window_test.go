package fence

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A segment is pruned with the others, however many there are: a call takes
// some of them.
func TestPruneMany(t *testing.T) {
	t.Parallel()
	f, m := openMini(t, Options{Topic: "t", Partitions: 1})
	c := mustClaim(t, f, Assignment{Committed: -1})
	const n = maxPrune + 5
	for o := range int64(n) {
		if _, err := c.Apply(t.Context(), Batch{Records: []Record{{Offset: o, Key: []byte("k"), Op: Set([]byte("v"))}}}); err != nil {
			t.Fatal(err)
		}
	}
	if c.Pending() != n {
		t.Errorf("%d are pending, want %d", c.Pending(), n)
	}
	list := forms(f)
	if _, err := c.Apply(t.Context(), Batch{Committed: n - 2}); err != nil {
		t.Fatal(err)
	}
	if len(*list) != 2 || c.Pending() != 2 {
		t.Errorf("%d calls, %d are pending", len(*list), c.Pending())
	}
	if list, err := m.List(f.partitionKey(0, "w", 0)); err != nil || len(list) != 4 || list[0] != fmt.Sprintf("%d-%d-1", n-2, n-2) {
		t.Errorf("%d are left: %.20q, error %v", len(list), list, err)
	}
}

// The window is pruned from the front, up to the first segment that is still
// needed, by a claim and by a batch: one that came late and is of old records stays
// as long as those before it.
func TestPruneFromTheFront(t *testing.T) {
	t.Parallel()
	segments := []string{"0-1-2", "0 1 1 0\na", "0 1 1 1\nb", "5-9-2", "0 1 1 5\nc", "0 1 1 9\nd", "3-3-1", "0 1 1 3\ne"}
	for _, tc := range []struct {
		committed    int64
		left, claims int
	}{{0, 8, 5}, {1, 8, 5}, {2, 5, 3}, {4, 5, 3}, {9, 5, 3}, {10, 0, 0}} {
		f, m := openMini(t, Options{Topic: "t", Partitions: 1})
		window := f.partitionKey(0, "w", 0)
		fill := func() {
			m.Del(window)
			if _, err := m.Push(window, segments...); err != nil {
				t.Fatal(err)
			}
		}
		look := func(who string, c *Claim) {
			t.Helper()
			var list []string
			if m.Exists(window) {
				var err error
				if list, err = m.List(window); err != nil {
					t.Fatal(err)
				}
			}
			if !slices.Equal(list, segments[8-tc.left:]) || c.Pending() != tc.claims {
				t.Errorf("committed %d, %s: %q is left, %d are pending", tc.committed, who, list, c.Pending())
			}
		}
		c := mustClaim(t, f, Assignment{Committed: -1})
		if _, err := c.Apply(t.Context(), Batch{Next: 10}); err != nil {
			t.Fatal(err)
		}
		fill()
		c = mustClaim(t, f, Assignment{Committed: tc.committed})
		look("claim", c)

		f, m = openMini(t, Options{Topic: "t", Partitions: 1})
		if _, err := mustClaim(t, f, Assignment{Committed: -1}).Apply(t.Context(), Batch{Next: 10}); err != nil {
			t.Fatal(err)
		}
		fill()
		c = mustClaim(t, f, Assignment{Committed: 0})
		if c.Pending() != 5 {
			t.Errorf("%d are pending, want 5", c.Pending())
		}
		c.through = 10 // as after these batches
		if _, err := c.Apply(t.Context(), Batch{Committed: tc.committed, Next: 10}); err != nil {
			t.Fatal(err)
		}
		look("batch", c)
	}
}

// A window that was damaged by hand is no reason to apply a record again.
func TestDamagedWindow(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(list []string) []string{
		"the last record is gone":  func(list []string) []string { return list[:len(list)-1] },
		"the first record is gone": func(list []string) []string { return append([]string{list[0]}, list[2:]...) },
		"the first name is gone":   func(list []string) []string { return list[1:] },
		"a record is none":         func(list []string) []string { list[4] = "x"; return list },
	} {
		f, m := openMini(t, Options{Topic: "t", Partitions: 1})
		c := mustClaim(t, f, Assignment{Committed: -1})
		batch := func(first int64) Batch {
			return Batch{Records: []Record{{Offset: first, Key: []byte("k"), Op: Add(1)}, {Offset: first + 1, Key: []byte("k"), Op: Add(1)}}}
		}
		for _, first := range []int64{0, 2} {
			if _, err := c.Apply(t.Context(), batch(first)); err != nil {
				t.Fatal(err)
			}
		}
		window := f.partitionKey(0, "w", 0)
		list, err := m.List(window)
		if err != nil {
			t.Fatal(err)
		}
		m.Del(window)
		if _, err := m.Push(window, damage(slices.Clone(list))...); err != nil {
			t.Fatal(err)
		}
		before := m.Dump()
		if _, err := c.Apply(t.Context(), batch(2)); err == nil || errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "of the window is damaged") {
			t.Errorf("%s: %v", name, err)
		}
		if m.Dump() != before {
			t.Errorf("%s: something was written", name)
		}
	}
}
