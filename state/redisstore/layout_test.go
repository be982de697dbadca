package redisstore

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/state"
)

// The slots are those of the specification of Redis Cluster, whose example is
// CRC16("123456789") = 31C3.
func TestCRC16(t *testing.T) {
	t.Parallel()
	if got := redisconn.CRC16("123456789"); got != 0x31c3 {
		t.Errorf("%x", got)
	}
}

// The tags are part of the format: other services find a view by them.
func TestTags(t *testing.T) {
	t.Parallel()
	for id, want := range map[state.ID]string{
		{Application: "ratings", Task: "0_0"}:    "weir:{ratings/0_0/149}",
		{Application: "ratings", Task: "0_3"}:    "weir:{ratings/0_3/171}",
		{Application: "a {b} %/c", Task: "1_17"}: "weir:{a%20%7Bb%7D%20%25%2Fc/1_17/447}",
	} {
		if got := metaKey("weir", id); got != want {
			t.Errorf("%v: %s, want %s", id, got, want)
		}
	}
	// Tags of different views differ, also when names hold separators.
	seen := map[string]state.ID{}
	for _, a := range []string{"a", "a/0_0", "a%", "a%2F", "", "A"} {
		for _, k := range []string{"0_0", "0_1", "0_0/1", "x", ""} {
			id := state.ID{Application: a, Task: k}
			if other, ok := seen[metaKey("n", id)]; ok {
				t.Errorf("%v and %v share a key", id, other)
			}
			seen[metaKey("n", id)] = id
		}
	}
}

// The tasks of an application are spread evenly over the nodes of a cluster,
// however many there are of each.
func TestSpread(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{3, 6, 12, 48, 100} {
		for _, nodes := range []int{3, 5, 6} {
			for sub := range 3 {
				count := make([]int, nodes)
				for p := range partitions {
					key := tag(state.ID{Application: "app", Task: fmt.Sprintf("%d_%d", sub, p)})
					count[int(redisconn.CRC16(key)%redisconn.Slots)*nodes/redisconn.Slots]++
				}
				fair := float64(partitions) / float64(nodes)
				if got := float64(slices.Max(count)); got > fair+2 {
					t.Errorf("%d partitions on %d nodes: %v", partitions, nodes, count)
				}
			}
		}
	}
}

// Names of keys in a bucket keep the order of the keys, and none is the mark.
func FuzzField(f *testing.F) {
	f.Add([]byte(""), []byte("\xff"))
	f.Add([]byte("\xff\xff"), []byte("\xff"))
	f.Add([]byte("a\x00"), []byte("a"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		fa, fb := field(a), field(b)
		if fa == mark || fb == mark {
			t.Fatalf("%q or %q is called as the mark", a, b)
		}
		if !bytes.Equal(keyOf(fa), a) {
			t.Fatalf("%q comes back as %q", a, keyOf(fa))
		}
		if got, want := strings.Compare(fa, fb), bytes.Compare(a, b); got != want {
			t.Fatalf("%q and %q compare as %d, their names as %d", a, b, want, got)
		}
	})
}

// Whatever a meta key holds, it is understood or refused.
func FuzzLayout(f *testing.F) {
	f.Add("1", "0a", "8", "\x05count", "", "")
	f.Add("1", "0a", "2", "*", "3:100:01", "ff:3 fe:4")
	f.Add("2", "0a", "8", "", "", "")
	f.Fuzz(func(t *testing.T, v, gen, buckets, points, over, trash string) {
		l, err := parseLayout("m", []string{v, gen, buckets, points, over, trash})
		if err != nil {
			if !errors.Is(err, state.ErrCorrupt) && !errors.Is(err, ErrFormat) {
				t.Fatalf("%v is of no class", err)
			}
			return
		}
		if l.gen == "" {
			return
		}
		for i := range l.buckets {
			l.covered(i)
		}
		for _, key := range [][]byte{nil, {5}, []byte("\x05count"), []byte("\x05count0")} {
			if b := l.bucket(key); b < 0 || b >= l.buckets {
				t.Fatalf("bucket %d of %d", b, l.buckets)
			}
			l.ordered(key)
		}
		if over != "" && l.overlay.String() != over {
			again, err := parseOverlay(l.overlay.String(), l.buckets)
			if err != nil || again != l.overlay {
				t.Fatalf("overlay %q comes back as %v, %v", over, again, err)
			}
		}
	})
}

func storeKey(store, key string) []byte { return Key(store, []byte(key)) }

// Stores for point lookups are not in the order index; ranges of them are
// refused, ranges of the others go on.
func TestPointLookups(t *testing.T) {
	t.Parallel()
	id := state.ID{Application: "app", Task: "0_0"}
	opts := miniRedis(t)
	opts.PointLookups = []string{"b"}
	b := mustOpen(t, opts)
	b.KeepUnordered("app", []string{"counts", "b"})
	b.KeepUnordered("another", []string{"ordered"})
	v, err := b.Claim(t.Context(), id, "", "t1")
	if err != nil {
		t.Fatal(err)
	}
	var batch state.Batch
	for i := range 1500 {
		for _, store := range []string{"counts", "ordered"} {
			batch.Put(storeKey(store, fmt.Sprint(i)), fmt.Append(nil, store, i))
		}
	}
	if err := v.Apply(t.Context(), "t1", "t2", &batch); err != nil {
		t.Fatal(err)
	}
	l := b.target(id).layout.Load()
	if n, err := raw(t, b, "ZCARD", l.index).AsInt64(); err != nil || n != 1501 {
		t.Errorf("%d members in the order index, error %v", n, err)
	}
	count := func(r state.Range) (n int, err error) {
		for _, it := range []state.Iterator{v.Iterate(t.Context(), "t2", r), b.Committed(id).Iterate(t.Context(), r)} {
			n = 0
			for it.Next() {
				n++
			}
			err = it.Err()
		}
		return n, err
	}
	if n, err := count(state.PrefixRange(storeKey("ordered", ""))); err != nil || n != 1500 {
		t.Errorf("the store in order: %d entries, error %v", n, err)
	}
	for _, r := range []state.Range{{}, state.PrefixRange(storeKey("counts", "")), state.PrefixRange(storeKey("counts", "1")), {Lower: storeKey("counts", "2")}} {
		if n, err := count(r); !errors.Is(err, ErrUnordered) || n != 0 {
			t.Errorf("%v: %d entries, error %v", r, n, err)
		}
	}
	if n, err := v.ApproximateCount(t.Context(), state.Range{}); err != nil || n != 3000 {
		t.Errorf("%d entries, error %v", n, err)
	}
	err = v.Read(t.Context(), "t2", [][]byte{storeKey("counts", "7"), storeKey("b", "7")}, func(i int, value []byte) {
		if want := []string{"counts7", ""}[i]; string(value) != want {
			t.Errorf("key %d = %q, want %q", i, value, want)
		}
	})
	if err != nil {
		t.Fatal(err)
	}

	// The layout stays until the view is rebuilt, whatever the options say.
	opts.PointLookups, opts.Buckets = nil, 3
	b = mustOpen(t, opts)
	if v, err = b.Claim(t.Context(), id, "t2", "t3"); err != nil {
		t.Fatal(err)
	}
	it := v.Iterate(t.Context(), "t3", state.Range{})
	if it.Next() || !errors.Is(it.Err(), ErrUnordered) {
		t.Errorf("a range of the old layout: %v", it.Err())
	}
	if err := v.Clear(t.Context(), "t3", "t4"); err != nil {
		t.Fatal(err)
	}
	if err := v.Apply(t.Context(), "t4", "t5", &batch); err != nil {
		t.Fatal(err)
	}
	it = v.Iterate(t.Context(), "t5", state.Range{})
	n := 0
	for it.Next() {
		n++
	}
	if it.Err() != nil || n != 3000 {
		t.Errorf("%d entries, error %v", n, it.Err())
	}
	mustBeTidy(t, b, id, 3000)
}

// A view without any order has no index at all.
func TestUnordered(t *testing.T) {
	t.Parallel()
	id := state.ID{Application: "app", Task: "0_0"}
	opts := miniRedis(t)
	opts.Unordered = true
	b := mustOpen(t, opts)
	v, err := b.Claim(t.Context(), id, "", "t1")
	if err != nil {
		t.Fatal(err)
	}
	batch, want := bigBatch(0)
	if err := v.Apply(t.Context(), "t1", "t2", batch); err != nil {
		t.Fatal(err)
	}
	for _, k := range keysOf(t, b, id) {
		if strings.HasSuffix(k, ":z") {
			t.Errorf("there is an index: %s", k)
		}
	}
	it := v.Iterate(t.Context(), "t2", state.Range{})
	if it.Next() || !errors.Is(it.Err(), ErrUnordered) {
		t.Errorf("a range: %v", it.Err())
	}
	for k, value := range want {
		err := v.Read(t.Context(), "t2", [][]byte{[]byte(k)}, func(_ int, got []byte) {
			if string(got) != value || (got == nil) != (value == "") {
				t.Errorf("%s = %q, want %q", k, got, value)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	n, err := v.ApproximateCount(t.Context(), state.Range{})
	if want := int64(len(merge(map[string]string{}, want))); err != nil || n != want {
		t.Errorf("%d entries, want %d, error %v", n, want, err)
	}
}

// A view of a later version is left alone, by every call but Drop.
func TestFormatOfTheFuture(t *testing.T) {
	t.Parallel()
	id := state.ID{Application: "app", Task: "0_0"}
	opts := miniRedis(t)
	b := mustOpen(t, opts)
	if _, err := b.Claim(t.Context(), id, "", "t1"); err != nil {
		t.Fatal(err)
	}
	raw(t, b, "HSET", b.target(id).meta, "v", "2")
	b = mustOpen(t, opts)
	_, err := b.Claim(t.Context(), id, "t1", "t2")
	if !errors.Is(err, ErrFormat) {
		t.Errorf("Claim: %v", err)
	}
	if token, err := b.Token(t.Context(), id); err != nil || token != "t1" {
		t.Errorf("token %q, error %v: the claim was made", token, err)
	}
	if _, err := b.Committed(id).Read(t.Context(), [][]byte{nil}, func(int, []byte) {}); !errors.Is(err, ErrFormat) {
		t.Errorf("Read: %v", err)
	}
	if err := b.Drop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Claim(t.Context(), id, "", "t2"); err != nil {
		t.Fatal(err)
	}
	mustBeTidy(t, b, id, 0)
}

// What a rebuild leaves of the former generation is removed in steps, and by
// the next claim when its owner died before.
func TestFormerGenerationsAreRemoved(t *testing.T) {
	t.Parallel()
	id := state.ID{Application: "app", Task: "0_0"}
	opts := miniRedis(t)
	opts.Buckets = 200
	unlinks, fail := 0, false
	opts.hooks.Before = func(calls []redisconn.Call) error {
		if calls[0].Script.Name != "UNLINK" {
			return nil
		}
		unlinks++
		if n := len(calls[0].Keys); n > reapStep {
			t.Errorf("%d keys are removed at once", n)
		}
		if fail && unlinks > 2 {
			return state.ErrUnavailable
		}
		return nil
	}
	b := mustOpen(t, opts)
	v, err := b.Claim(t.Context(), id, "", "t1")
	if err != nil {
		t.Fatal(err)
	}
	var batch state.Batch
	for i := range 2000 {
		batch.Put(fmt.Append(nil, i), []byte("x"))
	}
	if err := v.Apply(t.Context(), "t1", "t2", &batch); err != nil {
		t.Fatal(err)
	}
	if err := v.Clear(t.Context(), "t2", "t3"); err != nil {
		t.Fatal(err)
	}
	mustBeTidy(t, b, id, 0)
	if want := (2*200 + 1 + reapStep - 1) / reapStep; unlinks != want {
		t.Errorf("%d steps, want %d", unlinks, want)
	}
	unlinks, fail = 0, true
	if err := v.Clear(t.Context(), "t3", "t4"); err != nil {
		t.Fatalf("Clear is done when the switch is: %v", err)
	}
	if n := len(keysOf(t, b, id)); n < 300 {
		t.Errorf("%d keys: the removal was not interrupted", n)
	}
	fail = false
	heir := mustOpen(t, opts)
	if _, err := heir.Claim(t.Context(), id, "t4", "t5"); err != nil {
		t.Fatal(err)
	}
	mustBeTidy(t, heir, id, 0)
	// The same for a view that is dropped.
	unlinks, fail = 0, true
	if err := heir.Drop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	fail = false
	if token, err := heir.Token(t.Context(), id); err != nil || token != "" {
		t.Errorf("token %q, error %v", token, err)
	}
	if _, err := heir.Claim(t.Context(), id, "", "t6"); err != nil {
		t.Fatal(err)
	}
	mustBeTidy(t, heir, id, 0)
	// And for one whose token somebody removed.
	raw(t, b, "HDEL", b.target(id).meta, "token")
	if _, err := heir.Claim(t.Context(), id, "", "t7"); err != nil {
		t.Fatal(err)
	}
	mustBeTidy(t, heir, id, 0)
}
