package state_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weirstreams/weir/state"
)

func TestBatchTellsEmptyFromDeleted(t *testing.T) {
	t.Parallel()
	var b state.Batch
	b.Put([]byte("a"), nil)
	b.Put([]byte("bb"), []byte{})
	b.Put([]byte("c"), []byte("123"))
	b.Delete([]byte("dddd"))

	w := b.Writes()
	if len(w) != 4 || b.Len() != 4 {
		t.Fatalf("len = %d, Len() = %d, want 4", len(w), b.Len())
	}
	for i, deleted := range []bool{false, false, false, true} {
		if got := w[i].Value == nil; got != deleted {
			t.Errorf("write %d (%s): deleted = %v, want %v", i, w[i].Key, got, deleted)
		}
	}
	if want := 1 + 2 + 1 + 3 + 4; b.Bytes() != want {
		t.Errorf("Bytes() = %d, want %d", b.Bytes(), want)
	}
}

func TestBatchResetDropsReferencesAndKeepsMemory(t *testing.T) {
	var b state.Batch
	for i := range 100 {
		b.Put(fmt.Append(nil, i), []byte("value"))
	}
	before := b.Writes()
	b.Reset()
	if b.Len() != 0 || b.Bytes() != 0 {
		t.Fatalf("after Reset: Len() = %d, Bytes() = %d", b.Len(), b.Bytes())
	}
	for i, w := range before[:100] {
		if w.Key != nil || w.Value != nil {
			t.Fatalf("write %d is still referenced after Reset", i)
		}
	}
	key, value := []byte("k"), []byte("v")
	allocs := testing.AllocsPerRun(100, func() {
		b.Reset()
		for range 100 {
			b.Put(key, value)
		}
	})
	if allocs != 0 {
		t.Errorf("a batch that was reset allocates %v times", allocs)
	}
}

func TestPrefixRange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ prefix, upper []byte }{
		{nil, nil},
		{[]byte{}, nil},
		{[]byte("a"), []byte("b")},
		{[]byte{0}, []byte{1}},
		{[]byte{0, 0xff}, []byte{1}},
		{[]byte{1, 0xff, 0xff}, []byte{2}},
		{[]byte{0xff}, nil},
		{[]byte{0xff, 0xff}, nil},
		{[]byte{0xff, 0xfe}, []byte{0xff, 0xff}},
	} {
		r := state.PrefixRange(c.prefix)
		if !bytes.Equal(r.Lower, c.prefix) || !bytes.Equal(r.Upper, c.upper) || (r.Upper == nil) != (c.upper == nil) {
			t.Errorf("PrefixRange(%x) = [%x, %x), want [%x, %x)", c.prefix, r.Lower, r.Upper, c.prefix, c.upper)
		}
		if r.Reverse {
			t.Errorf("PrefixRange(%x) is a reverse range", c.prefix)
		}
	}
}

// FuzzPrefixRange holds the range against its definition: a key is in it
// exactly when it begins with the prefix.
func FuzzPrefixRange(f *testing.F) {
	f.Add([]byte("a"), []byte("ab"))
	f.Add([]byte{0xff}, []byte{0xff, 0})
	f.Add([]byte{}, []byte{})
	f.Add([]byte{1, 0xff}, []byte{2})
	f.Fuzz(func(t *testing.T, prefix, key []byte) {
		before := slices.Clone(prefix)
		r := state.PrefixRange(prefix)
		if !bytes.Equal(prefix, before) {
			t.Fatalf("PrefixRange changed its argument from %x to %x", before, prefix)
		}
		// Random keys seldom share the prefix: try one that does and its
		// neighbours as well.
		longer := append(slices.Clone(prefix), key...)
		for _, k := range [][]byte{key, longer, prefix} {
			in := bytes.Compare(k, r.Lower) >= 0 && (r.Upper == nil || bytes.Compare(k, r.Upper) < 0)
			if want := bytes.HasPrefix(k, prefix); in != want {
				t.Fatalf("prefix %x: key %x in range = %v, has prefix = %v", prefix, k, in, want)
			}
		}
	})
}

func TestPrefixRangesOfDifferentPrefixesOfOneLengthAreDisjoint(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		a, b := []byte{byte(rng.Uint32()), byte(rng.Uint32())}, []byte{byte(rng.Uint32()), byte(rng.Uint32())}
		if bytes.Compare(a, b) >= 0 {
			continue
		}
		upper := state.PrefixRange(a).Upper
		if upper == nil || bytes.Compare(upper, b) > 0 {
			t.Fatalf("the range of %x ends at %x, past the beginning of %x", a, upper, b)
		}
	}
}

func TestFencedErrorMatchesTheSentinel(t *testing.T) {
	t.Parallel()
	id := state.ID{Application: "ratings", Task: "0_3"}
	err := fmt.Errorf("apply: %w", &state.FencedError{ID: id, Stored: "x"})
	if !errors.Is(err, state.ErrFenced) {
		t.Error("a FencedError does not match ErrFenced")
	}
	if errors.Is(err, state.ErrCorrupt) {
		t.Error("a FencedError matches ErrCorrupt")
	}
	var f *state.FencedError
	if !errors.As(err, &f) || f.Stored != "x" || f.ID != id {
		t.Errorf("As = %+v", f)
	}
	gone := &state.FencedError{ID: id}
	if gone.Error() == f.Error() {
		t.Errorf("a view that is gone and one that was claimed read alike: %q", gone.Error())
	}
}

func TestEmptyIteratorEndsWithItsError(t *testing.T) {
	t.Parallel()
	want := errors.New("broken")
	it := state.Empty(want)
	if it.Next() {
		t.Error("Next() = true")
	}
	if it.Err() != want {
		t.Errorf("Err() = %v", it.Err())
	}
	if err := it.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if it := state.Empty(nil); it.Next() || it.Err() != nil {
		t.Error("an empty iterator without an error has one")
	}
}
