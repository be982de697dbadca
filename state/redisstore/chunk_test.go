package redisstore

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/state"
)

// contentsOf reads a whole view without a fence.
func contentsOf(t testing.TB, b *Backend, id state.ID) (state.Token, map[string]string) {
	t.Helper()
	found := map[string]string{}
	it := b.Committed(id).Iterate(t.Context(), state.Range{})
	for it.Next() {
		found[string(it.Key())] = string(it.Value())
	}
	if err := it.Err(); err != nil {
		t.Fatal(err)
	}
	token, err := b.Token(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return token, found
}

// keysOf are the keys of a view in Redis, but for its meta key.
func keysOf(t testing.TB, b *Backend, id state.ID) []string {
	t.Helper()
	meta := b.target(id).meta
	var keys []string
	for _, client := range b.s.Nodes() {
		list, err := client.Do(t.Context(), client.B().Arbitrary("KEYS").Args(strings.NewReplacer("{", `\{`, "}", `\}`).Replace(meta)+":*").Build()).AsStrSlice()
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, list...)
	}
	slices.Sort(keys)
	return keys
}

// mustBeTidy checks that nothing is stored of a view but what belongs to it.
func mustBeTidy(t testing.TB, b *Backend, id state.ID, entries int) {
	t.Helper()
	tg := b.target(id)
	fields, err := raw(t, b, "HKEYS", tg.meta).AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(fields)
	if want := []string{"buckets", "gen", "points", "token", "v"}; !slices.Equal(fields, want) {
		t.Errorf("the meta key has the fields %q, want %q", fields, want)
	}
	gen, err := raw(t, b, "HGET", tg.meta, "gen").ToString()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{indexKey(tg.meta, gen)}
	total := int64(0)
	for i := range tg.layout.Load().buckets {
		want = append(want, bucketKey(tg.meta, gen, i))
		n, err := raw(t, b, "HLEN", want[len(want)-1]).AsInt64()
		if err != nil {
			t.Fatal(err)
		}
		total += n - 1
	}
	slices.Sort(want)
	if got := keysOf(t, b, id); !slices.Equal(got, want) {
		t.Errorf("keys %q, want %q", got, want)
	}
	if total != int64(entries) {
		t.Errorf("%d entries in the buckets, want %d", total, entries)
	}
	n, err := raw(t, b, "ZCARD", want[len(want)-1]).AsInt64()
	if err != nil {
		t.Fatal(err)
	}
	if n != int64(entries)+1 {
		t.Errorf("%d members in the order index, want %d and the mark", n, entries)
	}
}

// bigBatch is a batch of many chunks: puts, replaced values, deletions.
func bigBatch(n int) (*state.Batch, map[string]string) {
	var b state.Batch
	want := map[string]string{}
	for i := range 2500 {
		k, v := fmt.Sprintf("key %05d", (i*7+n*500)%6000), fmt.Sprintf("%d %d %s", n, i, strings.Repeat("v", i%300))
		if i%5 == 4 {
			b.Delete([]byte(k))
		} else {
			b.Put([]byte(k), []byte(v))
		}
		want[k] = v
		if i%5 == 4 {
			want[k] = ""
		}
	}
	return &b, want
}

// merge is a view after a bigBatch.
func merge(view, batch map[string]string) map[string]string {
	next := maps.Clone(view)
	for k, v := range batch {
		if v == "" {
			delete(next, k)
		} else {
			next[k] = v
		}
	}
	return next
}

// The owner dies before, or right after, each of the calls that a large batch
// is made of. A reader sees the batch before or the batch after, the next owner
// goes on from there, and in the end nothing is left over.
func TestCrashBetweenChunks(t *testing.T) {
	t.Parallel()
	id := state.ID{Application: "app", Task: "0_0"}
	for _, lost := range []bool{false, true} {
		points := 0
		for met := true; met; points++ {
			opts := miniRedis(t)
			var n network
			opts.hooks = redisconn.Hooks{Before: n.before, After: n.after}
			b := mustOpen(t, opts)
			v, err := b.Claim(t.Context(), id, "", "t0")
			if err != nil {
				t.Fatal(err)
			}
			first, w := bigBatch(0)
			before := merge(map[string]string{}, w)
			if err := v.Apply(t.Context(), "t0", "t1", first); err != nil {
				t.Fatal(err)
			}
			second, w := bigBatch(1)
			after := merge(before, w)
			n.failAfter(points, lost)
			err = v.Apply(t.Context(), "t1", "t2", second)
			met = n.met()
			if err != nil && !errors.Is(err, state.ErrUnavailable) {
				t.Fatal(err)
			}
			n.heal()

			heir := mustOpen(t, opts)
			token, got := contentsOf(t, heir, id)
			want := before
			if token == "t2" {
				want = after
			} else if token != "t1" || err == nil {
				t.Fatalf("point %d, lost %t: token %q after %v", points, lost, token, err)
			}
			if !maps.Equal(got, want) {
				t.Fatalf("point %d, lost %t: the view under %q is torn: %d entries, want %d", points, lost, token, len(got), len(want))
			}
			// The old owner may come back before the next one, or not at all.
			if points%2 == 0 && token == "t1" {
				if err := v.Apply(t.Context(), "t1", "t2", second); err != nil && !errors.Is(err, state.ErrUnavailable) {
					t.Fatal(err)
				} else if err == nil {
					token, want = "t2", after
				}
			}
			v2, err := heir.Claim(t.Context(), id, token, "t3")
			if err != nil {
				t.Fatal(err)
			}
			if err := v.Apply(t.Context(), token, "late", second); !errors.Is(err, state.ErrFenced) && !errors.Is(err, state.ErrUnavailable) {
				t.Fatalf("point %d, lost %t: the former owner: %v", points, lost, err)
			}
			var small state.Batch
			small.Put([]byte("key 00001"), []byte("small"))
			if err := v2.Apply(t.Context(), "t3", "t4", &small); err != nil {
				t.Fatal(err)
			}
			third, w := bigBatch(2)
			want = merge(want, map[string]string{"key 00001": "small"})
			want = merge(want, w)
			if err := v2.Apply(t.Context(), "t4", "t5", third); err != nil {
				t.Fatal(err)
			}
			if token, got := contentsOf(t, heir, id); token != "t5" || !maps.Equal(got, want) {
				t.Fatalf("point %d, lost %t: after the next batches: token %q, %d entries, want %d", points, lost, token, len(got), len(want))
			}
			mustBeTidy(t, heir, id, len(want))
			if t.Failed() {
				t.Fatalf("point %d, lost %t", points, lost)
			}
			b.Close()
			heir.Close()
		}
		if points < 6 {
			t.Errorf("%d points only", points)
		}
		t.Logf("lost %t: %d points", lost, points)
	}
}

// No call carries more than a chunk, whatever the batch; a value that is larger
// than one has a call to itself.
func TestChunkBounds(t *testing.T) {
	t.Parallel()
	opts := miniRedis(t)
	largest, calls := 0, 0
	opts.hooks.Before = func(list []redisconn.Call) error {
		for _, c := range list {
			calls++
			size, longest := 0, 0
			for _, a := range c.Args {
				size += len(a)
				longest = max(longest, len(a))
			}
			if longest < maxChunkBytes {
				largest = max(largest, size)
			}
			const overhead = 32 << 10 // flags and counts
			if size-longest > maxChunkBytes+overhead {
				t.Errorf("%s: %d bytes", c.Script.Name, size)
			}
			if n := len(c.Args); n > 2*maxChunkKeys+100 {
				t.Errorf("%s: %d arguments", c.Script.Name, n)
			}
		}
		if len(list) > maxPipeline+2 {
			t.Errorf("%d calls in one round trip", len(list))
		}
		return nil
	}
	b := mustOpen(t, opts)
	id := state.ID{Application: "app", Task: "0_0"}
	v, err := b.Claim(t.Context(), id, "", "t")
	if err != nil {
		t.Fatal(err)
	}
	token := state.Token("t")
	for _, size := range []int{0, 10, 700, 5000, 300 << 10} {
		var batch state.Batch
		n := min(3000, 4<<20/(size+1))
		for i := range n {
			batch.Put(fmt.Appendf(nil, "key %d", i), make([]byte, size))
			if i%3 == 0 {
				batch.Delete(fmt.Appendf(nil, "key %d", i/2))
			}
		}
		if err := v.Apply(t.Context(), token, token+"'", &batch); err != nil {
			t.Fatal(err)
		}
		token += "'"
		keys := make([][]byte, n)
		for i := range keys {
			keys[i] = fmt.Appendf(nil, "key %d", i)
		}
		if err := v.Read(t.Context(), token, keys, func(int, []byte) {}); err != nil {
			t.Fatal(err)
		}
	}
	if calls < 50 || largest < maxChunkBytes/2 {
		t.Errorf("%d calls, the largest of %d bytes: the test does not reach the bounds", calls, largest)
	}
}

// A batch within one chunk is one call, in one round trip: the hot path.
func TestOneCallPerBatch(t *testing.T) {
	t.Parallel()
	opts := miniRedis(t)
	var made []string
	opts.hooks.Before = func(list []redisconn.Call) error {
		for _, c := range list {
			made = append(made, c.Script.Name)
		}
		made = append(made, ";")
		return nil
	}
	b := mustOpen(t, opts)
	v, err := b.Claim(t.Context(), state.ID{Application: "app", Task: "0_0"}, "", "t1")
	if err != nil {
		t.Fatal(err)
	}
	made = nil
	var batch state.Batch
	keys := make([][]byte, maxChunkKeys)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "%d", i)
		batch.Put(keys[i], make([]byte, 100))
	}
	if err := v.Apply(t.Context(), "t1", "t2", &batch); err != nil {
		t.Fatal(err)
	}
	if err := v.Read(t.Context(), "t2", keys, func(int, []byte) {}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(made, " "); got != "apply ; read ;" {
		t.Errorf("calls: %s", got)
	}
}

// Where the data are is known to a restore from its own question, whatever a
// reader beside it learns late: its checkpoints are taken, large and small.
func TestRestoreBesideLateReader(t *testing.T) {
	t.Parallel()
	id := state.ID{Application: "app", Task: "0_0"}
	opts := miniRedis(t)
	var late func()
	opts.hooks.After = func(calls []redisconn.Call) error {
		if late != nil && calls[0].Script == readScript {
			late()
		}
		return nil
	}
	b := mustOpen(t, opts)
	v, err := b.Claim(t.Context(), id, "", "claimed")
	if err != nil {
		t.Fatal(err)
	}
	former := b.target(id).layout.Load()
	if err := v.Clear(t.Context(), "claimed", "cleared"); err != nil {
		t.Fatal(err)
	}
	late = func() {
		// Not when it has been met: the call would be made again without an end.
		if l := &b.target(id).layout; l.Load() != former {
			l.Store(former)
		}
	}
	bulk, err := v.Bulk(t.Context(), "cleared")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for i, n := range []int{10, 10, 2*maxChunkKeys + 10, 10} {
		for k := range n {
			key := fmt.Sprintf("%d/%d", i, k)
			want[key] = fmt.Sprint(i)
			if err := bulk.Put([]byte(key), []byte(want[key])); err != nil {
				t.Fatal(err)
			}
		}
		if err := bulk.Checkpoint(t.Context(), state.Token(fmt.Sprint("point ", i))); err != nil {
			t.Fatalf("checkpoint %d: %v", i, err)
		}
	}
	late = nil
	for key, value := range want {
		if err := v.Read(t.Context(), "point 3", [][]byte{[]byte(key)}, func(_ int, got []byte) {
			if string(got) != value {
				t.Errorf("%s is %q, want %q", key, got, value)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// A large checkpoint is stored, and then the server does not say where the data
// are: it may be repeated.
func TestRestoreRepeatsLargeCheckpoint(t *testing.T) {
	t.Parallel()
	id := state.ID{Application: "app", Task: "0_0"}
	opts := miniRedis(t)
	down := false
	opts.hooks.Before = func(calls []redisconn.Call) error {
		if down && calls[0].Script == readScript {
			down = false
			return state.ErrUnavailable
		}
		return nil
	}
	b := mustOpen(t, opts)
	v, err := b.Claim(t.Context(), id, "", "claimed")
	if err != nil {
		t.Fatal(err)
	}
	bulk, err := v.Bulk(t.Context(), "claimed")
	if err != nil {
		t.Fatal(err)
	}
	n := 2*maxChunkKeys + 10
	for k := range n {
		if err := bulk.Put(fmt.Append(nil, k), []byte("v")); err != nil {
			t.Fatal(err)
		}
	}
	down = true
	if err := bulk.Checkpoint(t.Context(), "a"); !errors.Is(err, state.ErrUnavailable) {
		t.Fatalf("Checkpoint: %v, want state.ErrUnavailable", err)
	}
	for _, token := range []state.Token{"a", "b"} {
		if err := bulk.Checkpoint(t.Context(), token); err != nil {
			t.Fatalf("Checkpoint(%q): %v", token, err)
		}
	}
	if token, found := contentsOf(t, b, id); token != "b" || len(found) != n {
		t.Errorf("token %q and %d entries, want %d", token, len(found), n)
	}
}
