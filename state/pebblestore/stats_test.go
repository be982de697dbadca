package pebblestore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/weirstreams/weir/state"
)

func newRNG() *rand.Rand { return rand.New(rand.NewPCG(1, 1)) }

// eventually polls a condition for which there is no signal.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestStats(t *testing.T) {
	t.Parallel()
	b := mustOpen(t, t.TempDir(), Options{MaxMemory: 8 << 20, MinFreeSpace: -1})
	v := mustClaim(t, b, testID, "", "0")
	random := rand.NewChaCha8([32]byte{})
	value := make([]byte, 1000)
	const entries = 12_000
	for n := range 4 {
		var bt state.Batch
		for i := range entries / 4 {
			random.Read(value)
			bt.Put(fmt.Appendf(nil, "%d/%05d", n, i), append([]byte(nil), value...))
		}
		if err := v.Apply(t.Context(), state.Token(fmt.Sprint(n)), state.Token(fmt.Sprint(n+1)), &bt); err != nil {
			t.Fatal(err)
		}
	}
	size, err := b.ViewBytes(t.Context(), testID)
	if err != nil || size < entries*1000*8/10 || size > entries*1000*2 {
		t.Errorf("ViewBytes = %d, error %v, for %d bytes", size, err, entries*1000)
	}
	if err := b.db.Flush(); err != nil {
		t.Fatal(err)
	}
	it := v.Iterate(t.Context(), "4", state.Range{})
	for it.Next() {
	}
	s := b.Stats()
	if s.OpenIterators != 0 {
		t.Errorf("%d open iterators after the end of the only one", s.OpenIterators)
	}
	if s.MaxMemory != 8<<20 || s.Failed != nil {
		t.Errorf("MaxMemory %d, Failed %v", s.MaxMemory, s.Failed)
	}
	if s.DiskBytes < entries*1000 || s.DiskBytes > 6*entries*1000 {
		t.Errorf("DiskBytes = %d for %d bytes", s.DiskBytes, entries*1000)
	}
	if s.CacheBytes+s.MemtableBytes > s.MaxMemory+s.MaxMemory/8 {
		t.Errorf("cache %d and memtables %d, the bound is %d", s.CacheBytes, s.MemtableBytes, s.MaxMemory)
	}
	if s.CacheMisses == 0 || s.WALBytes < 0 || s.MemtableBytes <= 0 {
		t.Errorf("%+v", s)
	}

	eventually(t, "blocks that are read stay in the cache", func() bool {
		it := v.Iterate(t.Context(), "4", state.Range{}) // compactions throw them out again
		defer it.Close()
		return it.Next() && b.Stats().CacheBytes > 0
	})

	// The count is near the truth, for the whole and for a part.
	for _, c := range []struct {
		r    state.Range
		want int64
	}{{state.Range{}, entries}, {state.PrefixRange([]byte("2/")), entries / 4}} {
		n, err := v.ApproximateCount(t.Context(), c.r)
		if err != nil || n < c.want/2 || n > c.want*2 {
			t.Errorf("ApproximateCount(%q) = %d, error %v, want about %d", c.r.Lower, n, err, c.want)
		}
	}
	// Few entries are counted.
	n, err := v.ApproximateCount(t.Context(), state.Range{Lower: []byte("1/00010"), Upper: []byte("1/01010")})
	if err != nil || n != 1000 {
		t.Errorf("ApproximateCount of 1000 entries = %d, error %v", n, err)
	}

	open := v.Iterate(t.Context(), "4", state.Range{})
	open.Next()
	if s := b.Stats(); s.OpenIterators != 1 {
		t.Errorf("%d open iterators", s.OpenIterators)
	}
	open.Close()

	// What is dropped gives its disk space back.
	if err := b.Drop(t.Context(), testID); err != nil {
		t.Fatal(err)
	}
	// (Log files are kept for use again.)
	eventually(t, "the space of a dropped view is given back", func() bool {
		return b.db.Metrics().Table.Local.LiveSize < entries*1000/2
	})
	if size, err := b.ViewBytes(t.Context(), testID); size != 0 || err != nil {
		t.Errorf("ViewBytes of a dropped view = %d, error %v", size, err)
	}
	mustClose(t, b)
	if s := b.Stats(); s.DiskBytes != 0 {
		t.Errorf("%+v after Close", s)
	}
	if _, err := b.ViewBytes(t.Context(), testID); !errors.Is(err, state.ErrClosed) {
		t.Errorf("ViewBytes after Close: %v", err)
	}
}

// Many views share the memory: with a hundred it is not more than with one.
func TestMemoryDoesNotGrowWithViews(t *testing.T) {
	t.Parallel()
	b := mustOpen(t, testDir, testOptions(vfs.NewMem()))
	value := string(make([]byte, 2000))
	for i := range 100 {
		v := mustClaim(t, b, state.ID{Application: "app", Task: fmt.Sprint("0_", i)}, "", "0")
		for n := range 5 {
			mustApply(t, v, state.Token(fmt.Sprint(n)), state.Token(fmt.Sprint(n+1)), "a", value, "b", value)
		}
	}
	if s := b.Stats(); s.CacheBytes+s.MemtableBytes > MinMemory+int64(b.split.memtable) {
		t.Errorf("cache %d and memtables %d, the bound is %d", s.CacheBytes, s.MemtableBytes, MinMemory)
	}
}

// The files of a restore are gone after it, also after one that was cut short.
func TestRestoreLeavesNoFiles(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	b := mustOpen(t, testDir, testOptions(mem))
	v := mustClaim(t, b, testID, "", "0")
	files := func(fs vfs.FS) int {
		t.Helper()
		names, err := fs.List(testDir + "/" + bulkDir)
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	fill := func(bulk state.Bulk, megabytes int) {
		t.Helper()
		value := make([]byte, 10_000)
		for i := range megabytes * 100 {
			if err := bulk.Put(fmt.Appendf(nil, "%d", i), value); err != nil {
				t.Fatal(err)
			}
		}
	}
	bulk, err := v.Bulk(t.Context(), "0")
	if err != nil {
		t.Fatal(err)
	}
	// More than maxBulkRuns runs: they are merged.
	fill(bulk, 40)
	if n := files(mem); n == 0 || n > maxBulkRuns {
		t.Errorf("%d runs during a restore", n)
	}
	if err := bulk.Checkpoint(t.Context(), "1"); err != nil {
		t.Fatal(err)
	}
	if n := files(mem); n != 0 {
		t.Errorf("%d files after a checkpoint", n)
	}
	fill(bulk, 5)
	bulk.Close()
	if n := files(mem); n != 0 {
		t.Errorf("%d files after a restore that was closed", n)
	}

	// A crash leaves some, the next Open removes them.
	bulk, err = v.Bulk(t.Context(), "1")
	if err != nil {
		t.Fatal(err)
	}
	fill(bulk, 5)
	after := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: newRNG()})
	if n := files(after); n == 0 {
		t.Error("no run was written")
	}
	b2 := mustOpen(t, testDir, testOptions(after))
	if n := files(after); n != 0 {
		t.Errorf("%d files after Open", n)
	}
	mustClose(t, b2)
	// A restore may be closed after its backend.
	mustClose(t, b)
	if err := bulk.Put([]byte("k"), make([]byte, 8<<20)); !errors.Is(err, state.ErrClosed) {
		t.Errorf("a Put that spills after Close: %v", err)
	}
	if err := bulk.Close(); err != nil {
		t.Error(err)
	}
}

// A restore that finds no room for its runs says so and harms nobody.
func TestRestoreWithoutRoom(t *testing.T) {
	t.Parallel()
	d := newDisk(vfs.NewMem())
	b := mustOpen(t, testDir, testOptions(d.fs()))
	v := mustClaim(t, b, testID, "", "0")
	mustApply(t, v, "0", "1", "k", "v")
	for n := range 30 {
		bulk, err := v.Bulk(t.Context(), "1")
		if err != nil {
			t.Fatal(err)
		}
		d.failAfter(n)
		value := make([]byte, 10_000)
		for i := 0; i < 400 && err == nil; i++ {
			err = bulk.Put(fmt.Appendf(nil, "%d", i), value)
		}
		d.heal()
		if err != nil && !errors.Is(err, state.ErrFull) {
			t.Fatalf("failure %d: %v, want ErrFull", n, err)
		}
		if err == nil && d.met.Load() {
			t.Fatalf("failure %d was not noticed", n)
		}
		bulk.Close()
		if err := b.stopped(); err != nil {
			t.Fatalf("failure %d stopped the backend: %v", n, err)
		}
	}
	mustApply(t, v, "1", "2", "k", "w")
	mustRead(t, v, "2", "k", "w")
}
