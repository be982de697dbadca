package memstore_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"go.uber.org/goleak"

	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
	"github.com/weirstreams/weir/state/statetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		make  func() *memstore.Backend
		local bool
	}{{"local", memstore.New, true}, {"shared", memstore.NewShared, false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conformance(t, c.make, c.local)
		})
	}
}

func conformance(t *testing.T, make func() *memstore.Backend, local bool) {
	statetest.Run(t, func(t *testing.T) statetest.Harness {
		b := make()
		t.Cleanup(func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
		return statetest.Harness{Backend: b, LocalViews: local, Snapshots: true}
	})
}

var id = state.ID{Application: "app", Task: "0_0"}

func claim(t testing.TB, b *memstore.Backend) state.View {
	t.Helper()
	v, err := b.Claim(t.Context(), id, "", "0")
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func apply(t testing.TB, v state.View, old, new state.Token, b *state.Batch) {
	t.Helper()
	if err := v.Apply(t.Context(), old, new, b); err != nil {
		t.Fatal(err)
	}
}

func TestCountIsExact(t *testing.T) {
	t.Parallel()
	v := claim(t, memstore.New())
	var b state.Batch
	for i := range 5000 {
		b.Put(fmt.Appendf(nil, "%05d", i*2), nil)
	}
	apply(t, v, "0", "1", &b)
	k := func(i int) []byte { return fmt.Appendf(nil, "%05d", i) }
	for _, c := range []struct {
		r    state.Range
		want int64
	}{
		{state.Range{}, 5000},
		{state.Range{Reverse: true}, 5000},
		{state.Range{Lower: k(0), Upper: k(10)}, 5},
		{state.Range{Lower: k(1), Upper: k(11)}, 5},
		{state.Range{Lower: k(9998)}, 1},
		{state.Range{Lower: k(9999)}, 0},
		{state.Range{Upper: k(0)}, 0},
		{state.Range{Lower: k(10), Upper: k(0)}, 0},
		{state.PrefixRange([]byte("01")), 500},
	} {
		n, err := v.ApproximateCount(t.Context(), c.r)
		if err != nil || n != c.want {
			t.Errorf("[%s, %s): %d entries, error %v, want %d", c.r.Lower, c.r.Upper, n, err, c.want)
		}
	}
}

func TestBytesFollowsTheData(t *testing.T) {
	t.Parallel()
	b := memstore.New()
	v := claim(t, b)
	must := func(what string, want int64) {
		t.Helper()
		if got := b.Bytes(); got != want {
			t.Errorf("%s: Bytes() = %d, want %d", what, got, want)
		}
	}
	must("empty", 0)
	var bt state.Batch
	bt.Put([]byte("a"), []byte("12345"))
	bt.Put([]byte("bb"), nil)
	apply(t, v, "0", "1", &bt)
	must("two puts", 8)
	bt.Reset()
	bt.Put([]byte("a"), []byte("1"))
	bt.Delete([]byte("bb"))
	bt.Delete([]byte("absent"))
	apply(t, v, "1", "2", &bt)
	must("a shorter value, a delete", 2)

	bulk, err := v.Bulk(t.Context(), "2")
	if err != nil {
		t.Fatal(err)
	}
	if err := bulk.Put([]byte("ccc"), []byte("123")); err != nil {
		t.Fatal(err)
	}
	must("before the checkpoint", 2)
	if err := bulk.Checkpoint(t.Context(), "3"); err != nil {
		t.Fatal(err)
	}
	must("after the checkpoint", 8)
	if err := bulk.Put([]byte("dropped"), []byte("dropped")); err != nil {
		t.Fatal(err)
	}
	bulk.Close()
	must("after a dropped put", 8)

	other, err := b.Claim(t.Context(), state.ID{Application: "app", Task: "0_1"}, "", "0")
	if err != nil {
		t.Fatal(err)
	}
	bt.Reset()
	bt.Put([]byte("k"), []byte("v"))
	apply(t, other, "0", "1", &bt)
	must("a second view", 10)
	if err := v.Clear(t.Context(), "3", "4"); err != nil {
		t.Fatal(err)
	}
	must("after a clear", 2)
	if err := b.Drop(t.Context(), state.ID{Application: "app", Task: "0_1"}); err != nil {
		t.Fatal(err)
	}
	must("after a drop", 0)
}

// An iterator keeps the state it was opened on, also while a restore or a drop
// replaces the whole tree.
func TestIteratorKeepsItsSnapshot(t *testing.T) {
	t.Parallel()
	b := memstore.New()
	v := claim(t, b)
	var bt state.Batch
	for i := range 1000 {
		bt.Put(fmt.Appendf(nil, "%04d", i), []byte("before"))
	}
	apply(t, v, "0", "1", &bt)
	it := b.Committed(id).Iterate(t.Context(), state.Range{})
	rev := b.Committed(id).Iterate(t.Context(), state.Range{Reverse: true})
	it.Next()
	rev.Next()

	bt.Reset()
	for i := range 1000 {
		bt.Put(fmt.Appendf(nil, "%04d", i), []byte("after"))
		bt.Put(fmt.Appendf(nil, "%04d new", i), []byte("after"))
	}
	apply(t, v, "1", "2", &bt)
	if err := b.Drop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for name, it := range map[string]state.Iterator{"forward": it, "reverse": rev} {
		n := 1
		for it.Next() {
			n++
			if string(it.Value()) != "before" {
				t.Fatalf("%s: entry %d is %q", name, n, it.Value())
			}
		}
		if n != 1000 || it.Err() != nil {
			t.Errorf("%s: %d entries, error %v", name, n, it.Err())
		}
	}
}

// The memory used must be close to the data: this is the store for people who
// count their memory.
func TestMemoryIsCloseToTheData(t *testing.T) {
	const entries, valueSize = 100_000, 100
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	b := memstore.New()
	v := claim(t, b)
	rng := rand.New(rand.NewPCG(1, 1))
	token := state.Token("0")
	value := make([]byte, valueSize)
	for n := range 10 {
		var bt state.Batch
		for i := range entries / 10 {
			bt.Put(fmt.Appendf(nil, "%08x%04d", rng.Uint32(), i), value)
		}
		next := state.Token(fmt.Sprint(n + 1))
		apply(t, v, token, next, &bt)
		token = next
	}
	used := heap() - before
	data := uint64(b.Bytes())
	t.Logf("%d entries: %d bytes of data, %d bytes of memory (%.2f times)", entries, data, used, float64(used)/float64(data))
	if used > data*3/2 {
		t.Errorf("%d bytes of data use %d bytes of memory", data, used)
	}
	runtime.KeepAlive(b)
}

func TestReadDoesNotAllocate(t *testing.T) {
	v := claim(t, memstore.New())
	var bt state.Batch
	keys := make([][]byte, 1000)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "%08d", i)
		bt.Put(keys[i], []byte("value"))
	}
	apply(t, v, "0", "1", &bt)
	sum := 0
	visit := func(_ int, value []byte) { sum += len(value) }
	ctx := t.Context()
	if n := testing.AllocsPerRun(20, func() {
		if err := v.Read(ctx, "1", keys, visit); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("reading %d keys allocates %v times", len(keys), n)
	}
	if sum == 0 {
		t.Error("nothing was read")
	}
}
