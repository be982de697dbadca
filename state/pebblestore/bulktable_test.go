package pebblestore

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weirstreams/weir/state"
)

// deleted stands for a delete in a model.
const deleted = "\x00deleted"

func randomKey(rng *rand.Rand) []byte {
	switch rng.IntN(4) {
	case 0:
		return bytes.Repeat([]byte{byte(rng.IntN(2) * 255)}, rng.IntN(20))
	case 1:
		return fmt.Appendf(nil, "a common beginning %d", rng.IntN(200))
	default:
		return fmt.Append(nil, rng.IntN(1000))
	}
}

func randomValue(rng *rand.Rand) []byte {
	if rng.IntN(4) == 0 {
		return nil
	}
	return bytes.Repeat([]byte{byte(rng.Uint32())}, rng.IntN(100))
}

func modelValue(v []byte) string {
	if v == nil {
		return deleted
	}
	return string(v)
}

// collect checks the order of a source and returns its contents.
func collect(t *testing.T, s bulkSource) map[string]string {
	t.Helper()
	got := map[string]string{}
	var previous []byte
	for n := 0; s.next(); n++ {
		k, v := s.record()
		if n > 0 && bytes.Compare(previous, k) >= 0 {
			t.Fatalf("key %q follows %q", k, previous)
		}
		previous = bytes.Clone(k)
		got[string(k)] = modelValue(v)
	}
	if err := s.err(); err != nil {
		t.Fatal(err)
	}
	if s.next() {
		t.Fatal("next is true after the end")
	}
	return got
}

func TestBulkTableAgainstMap(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 0))
		table := newBulkTable()
		for range 3 { // reset makes it as good as new
			want := map[string]string{}
			for range rng.IntN(5000) {
				k, v := randomKey(rng), randomValue(rng)
				table.put(k, v)
				want[string(k)] = modelValue(v)
				clear(k) // it has copied them
				clear(v)
			}
			if table.len() != len(want) {
				t.Fatalf("seed %d: %d entries, want %d", seed, table.len(), len(want))
			}
			if got := collect(t, table.sorted()); !maps.Equal(got, want) {
				t.Fatalf("seed %d: the table differs from the map", seed)
			}
			table.reset()
			if table.len() != 0 || table.sorted().next() {
				t.Fatalf("seed %d: not empty after reset", seed)
			}
		}
	}
}

// runBuffer is the file of a run in memory.
type runBuffer struct {
	nopFile
	bytes.Buffer
}

func (b *runBuffer) Write(p []byte) (int, error) { return b.Buffer.Write(p) }
func (b *runBuffer) Read(p []byte) (int, error)  { return b.Buffer.Read(p) }

func TestMergeAgainstMap(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var sources []bulkSource
		want := map[string]string{}
		for range 1 + rng.IntN(maxBulkRuns) {
			table := newBulkTable()
			for range rng.IntN(400) {
				k, v := randomKey(rng), randomValue(rng)
				table.put(k, v)
				want[string(k)] = modelValue(v)
			}
			// Through a run, as in a restore.
			var file runBuffer
			w := newRunWriter(&file)
			for s := table.sorted(); s.next(); {
				if err := w.add(s.record()); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.finish(); err != nil {
				t.Fatal(err)
			}
			sources = append(sources, newRunReader(&file))
		}
		if got := collect(t, newMerge(sources...)); !maps.Equal(got, want) {
			t.Fatalf("seed %d: the merge of %d sources differs from the map", seed, len(sources))
		}
	}
}

func TestRunHoldsLargeRecords(t *testing.T) {
	t.Parallel()
	var file runBuffer
	w := newRunWriter(&file)
	want := map[string]string{}
	for i, size := range []int{0, 1, runFrame - 20, runFrame, runFrame + 1, 5 * runFrame} {
		k, v := fmt.Sprintf("%d", i), string(bytes.Repeat([]byte{byte(i)}, size))
		want[k] = v
		if err := w.add([]byte(k), []byte(v)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.finish(); err != nil {
		t.Fatal(err)
	}
	if got := collect(t, newRunReader(&file)); !maps.Equal(got, want) {
		t.Error("the records differ")
	}
}

func TestRunFindsDamage(t *testing.T) {
	t.Parallel()
	var file runBuffer
	w := newRunWriter(&file)
	for i := range 6000 {
		if err := w.add(fmt.Appendf(nil, "%06d", i), []byte("value")); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.finish(); err != nil {
		t.Fatal(err)
	}
	whole := bytes.Clone(file.Bytes())
	read := func(content []byte) (int, error) {
		r := newRunReader(bytes.NewReader(content))
		n := 0
		for r.next() {
			if k, v := r.record(); string(k) != fmt.Sprintf("%06d", n) || string(v) != "value" {
				t.Fatalf("record %d is %q = %q", n, k, v)
			}
			n++
		}
		return n, r.err()
	}
	if n, err := read(whole); n != 6000 || err != nil {
		t.Fatalf("%d records, error %v", n, err)
	}
	rng := rand.New(rand.NewPCG(3, 3))
	for range 50 {
		damaged := bytes.Clone(whole)
		damaged[rng.IntN(len(damaged))] ^= 1 << rng.IntN(8)
		if n, err := read(damaged); !errors.Is(err, state.ErrCorrupt) {
			t.Fatalf("%d records, error %v, want ErrCorrupt", n, err)
		}
	}
	for _, cut := range []int{1, 5, 100, runFrame} {
		if n, err := read(whole[:len(whole)-cut]); !errors.Is(err, state.ErrCorrupt) {
			t.Fatalf("cut by %d: %d records, error %v, want ErrCorrupt", cut, n, err)
		}
	}
}

// FuzzRun feeds the reader with anything: it ends, with or without an error.
func FuzzRun(f *testing.F) {
	var file runBuffer
	w := newRunWriter(&file)
	_ = w.add([]byte("key"), []byte("value"))
	_ = w.add([]byte("key 2"), nil)
	_ = w.finish()
	f.Add(file.Bytes(), false)
	f.Add([]byte{3, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3}, true)
	f.Fuzz(func(t *testing.T, content []byte, sum bool) {
		if sum {
			// With the right checksum, so that the payload is looked at.
			var file runBuffer
			w := newRunWriter(&file)
			_ = w.write(content)
			_ = w.finish()
			content = file.Bytes()
		}
		r := newRunReader(bytes.NewReader(content))
		for n := 0; r.next(); n++ {
			if n > len(content) {
				t.Fatal("more records than bytes")
			}
		}
		if err := r.err(); err != nil && !errors.Is(err, state.ErrCorrupt) {
			t.Fatal(err)
		}
	})
}

func FuzzSortKeys(f *testing.F) {
	f.Add([]byte("a,b,a,,abcdefghi,abcdefgh,abcdefgh\x00"))
	f.Add([]byte("prefix12345678,prefix12345679,prefix1234567"))
	f.Fuzz(func(t *testing.T, joined []byte) {
		keys := bytes.Split(joined, []byte(","))
		got := sortKeys(nil, len(keys), func(i uint32) []byte { return keys[i] })
		want := make([]uint32, len(keys))
		for i := range want {
			want[i] = uint32(i)
		}
		slices.SortStableFunc(want, func(a, b uint32) int { return bytes.Compare(keys[a], keys[b]) })
		for i := range want {
			if got[i].index != want[i] {
				t.Fatalf("position %d: %q, want %q", i, keys[got[i].index], keys[want[i]])
			}
		}
	})
}
