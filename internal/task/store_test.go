package task

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
)

// bench is a task over one view, driven by hand.
type bench struct {
	*Task
	t       testing.TB
	backend state.Backend
	id      state.ID
}

// newBench makes a task whose inputs run each record through process.
func newBench(t testing.TB, cfg Config, stores []StoreSpec, inputs []string, process func(*Context, int, *Record) error) *bench {
	t.Helper()
	b := &bench{t: t, backend: memstore.New(), id: state.ID{Application: "app", Task: "0_0"}}
	tok := stamp.Token{Lineage: stamp.Lineage{1}, Epoch: 1}
	view, err := b.backend.Claim(context.Background(), b.id, "", tok.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if cfg.MaxRecordBytes == 0 {
		cfg.MaxRecordBytes = 1 << 20
	}
	if cfg.MaxBatchBytes == 0 {
		cfg.MaxBatchBytes = 1 << 30
	}
	plan := &Plan{Inputs: inputs, Stores: stores, New: func(c *Context) (Instance, error) { return &instance{c, process}, nil }}
	b.Task, err = New(context.Background(), cfg, plan, State{View: view, Token: tok.Encode(), Decoded: tok,
		Stamp: stamp.Stamp{Lineage: tok.Lineage}, Positions: make([]int64, len(inputs))}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

type instance struct {
	c *Context
	f func(*Context, int, *Record) error
}

func (i *instance) Process(input int, r *Record) error { return i.f(i.c, input, r) }
func (i *instance) Close() error                       { return nil }

// commit plays a commit that the broker takes.
func (b *bench) commit() []Output {
	b.t.Helper()
	var out []Output
	b.Seal(7, func(list []Output) {
		for _, o := range list {
			o.Key, o.Value = bytes.Clone(o.Key), bytes.Clone(o.Value)
			out = append(out, o)
		}
	})
	b.Committed(nil)
	return out
}

func (b *bench) apply() {
	b.t.Helper()
	if !b.Behind() {
		return
	}
	old, next, batch := b.Flush(0)
	if err := b.view.Apply(context.Background(), old, next, batch); err != nil {
		b.t.Fatal(err)
	}
	b.Flushed(next)
}

func all(s *Store, lower, upper []byte, reverse bool) ([]string, error) {
	var got []string
	err := s.Range(lower, upper, reverse, func(k, v []byte) bool {
		got = append(got, string(k)+"="+string(v))
		return true
	})
	return got, err
}

func page(s *Store, lower, upper []byte, reverse bool, limit int) ([]string, error) {
	kvs, err := s.PageCommitted(lower, upper, reverse, limit)
	var got []string
	for _, kv := range kvs {
		got = append(got, string(kv.Key)+"="+string(kv.Value))
	}
	return got, err
}

func list(m map[string]string, lower, upper []byte, reverse bool, limit int) []string {
	var want []string
	keys := slices.Sorted(maps.Keys(m))
	if reverse {
		slices.Reverse(keys)
	}
	b := bounds{lower, upper}
	for _, k := range keys {
		if b.has(k) && len(want) < limit {
			want = append(want, k+"="+m[k])
		}
	}
	return want
}

// TestStoreAgainstModel runs random operations, savepoints, aborts, commits
// and applies against Go maps: what the batch sees, what queries see, what the
// changelog gets and what the backend holds must all agree with the model.
func TestStoreAgainstModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 1))
			cfg := Config{CacheBytes: []int{0, 2000, 1 << 20}[seed%3]}
			b := newBench(t, cfg, []StoreSpec{{Name: "s", Changelog: "log"}, {Name: "t", Changelog: "log2"}}, []string{"in"}, nil)
			s, other := b.Store("s"), b.Store("t")
			committed, current, logged := map[string]string{}, map[string]string{}, map[string]string{}
			key := func() []byte { return fmt.Append(nil, "k", r.IntN(40)) }
			write := func() {
				k := key()
				if r.IntN(4) == 0 {
					delete(current, string(k))
					if err := s.Delete(k, 1); err != nil {
						t.Fatal(err)
					}
					return
				}
				v := fmt.Sprint(r.IntN(1000))
				current[string(k)] = v
				if err := s.Put(k, []byte(v), 1); err != nil {
					t.Fatal(err)
				}
			}
			for range 1500 {
				switch r.IntN(14) {
				case 0, 1, 2, 3:
					b.save()
					write()
				case 4: // a record that fails after some writes
					before := maps.Clone(current)
					sp := b.save()
					for range r.IntN(4) {
						write()
					}
					b.restore(sp)
					current = before
				case 5, 6:
					k := key()
					got, ok, err := s.Get(k)
					want, has := current[string(k)]
					if err != nil || ok != has || string(got) != want {
						t.Fatalf("Get(%s) = %q %v %v, want %q %v", k, got, ok, err, want, has)
					}
				case 7:
					k := key()
					got, ok, err := s.GetCommitted(k)
					want, has := committed[string(k)]
					if err != nil || ok != has || string(got) != want {
						t.Fatalf("GetCommitted(%s) = %q %v %v, want %q %v", k, got, ok, err, want, has)
					}
				case 8, 9:
					var lower, upper []byte
					if r.IntN(2) == 0 {
						lower = key()
					}
					if r.IntN(2) == 0 {
						upper = key()
					}
					reverse := r.IntN(2) == 0
					got, err := all(s, lower, upper, reverse)
					if want := list(current, lower, upper, reverse, 1000); err != nil || !slices.Equal(got, want) {
						t.Fatalf("Range(%s, %s, %v) = %v %v, want %v", lower, upper, reverse, got, err, want)
					}
					limit := r.IntN(10)
					got, err = page(s, lower, upper, reverse, limit)
					if want := list(committed, lower, upper, reverse, limit); err != nil || !slices.Equal(got, want) {
						t.Fatalf("PageCommitted(%s, %s, %v, %d) = %v %v, want %v", lower, upper, reverse, limit, got, err, want)
					}
				case 10:
					if err := b.Abort(); err != nil {
						t.Fatal(err)
					}
					current = maps.Clone(committed)
				case 11, 12:
					seen := map[string]bool{}
					for _, o := range b.commit() {
						if seen[string(o.Key)] {
							t.Fatalf("two changelog records for key %s in one batch", o.Key)
						}
						seen[string(o.Key)] = true
						if o.Value == nil {
							delete(logged, string(o.Key))
						} else {
							logged[string(o.Key)] = string(o.Value)
						}
					}
					committed = maps.Clone(current)
					if !maps.Equal(logged, committed) {
						t.Fatalf("changelog holds %v, committed is %v", logged, committed)
					}
				case 13:
					b.apply()
					if b.Unflushed() != 0 {
						t.Fatalf("%d bytes unflushed after an apply", b.Unflushed())
					}
					held := map[string]string{}
					it := b.backend.Committed(b.id).Iterate(context.Background(), state.PrefixRange(StorePrefix("s")))
					for it.Next() {
						held[string(it.Key()[2:])] = string(it.Value())
					}
					if it.Close(); !maps.Equal(held, committed) {
						t.Fatalf("backend holds %v, committed is %v", held, committed)
					}
				}
			}
			if n, err := other.Count(); n != 0 || err != nil {
				t.Fatalf("the other store has %d keys (%v), want none", n, err)
			}
			size := 0
			for _, e := range s.entries {
				size += e.size()
			}
			if size != b.cache.bytes {
				t.Fatalf("the cache counts %d bytes and holds %d", b.cache.bytes, size)
			}
		})
	}
}

// TestRangeWhileWriting: a caller may change the store in the loop.
func TestRangeWhileWriting(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{CacheBytes: 1 << 20}, []StoreSpec{{Name: "s", Changelog: "log"}}, []string{"in"}, nil)
	s := b.Store("s")
	for _, k := range []string{"a", "c", "e"} {
		s.Put([]byte(k), []byte("old"), 1)
	}
	b.commit()
	b.apply()
	var got []string
	err := s.Range(nil, nil, false, func(k, v []byte) bool {
		got = append(got, string(k))
		if string(k) == "a" {
			s.Put([]byte("b"), []byte("new"), 1)
			s.Delete([]byte("c"), 1)
			s.Put([]byte("A"), []byte("behind"), 1)
		}
		return true
	})
	if want := []string{"a", "b", "e"}; err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %v %v, want %v", got, err, want)
	}
}

// failing is a view whose reads fail.
type failing struct {
	state.View
	err error
}

func (f failing) Read(context.Context, state.Token, [][]byte, func(int, []byte)) error { return f.err }
func (f failing) Iterate(context.Context, state.Token, state.Range) state.Iterator {
	return state.Empty(f.err)
}

// TestStoreErrorIsSticky: the batch fails although user code swallows the
// error, and the handler is not asked.
func TestStoreErrorIsSticky(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"get", "range"} {
		cfg := Config{DeadLetterTopic: "dlq", OnError: func(*Error) Decision { t.Error("the handler was asked"); return DeadLetter }}
		b := newBench(t, cfg, []StoreSpec{{Name: "s"}}, []string{"in"}, func(c *Context, _ int, r *Record) error {
			if op == "get" {
				c.Store("s").Get(r.Key)
			} else {
				c.Store("s").Range(nil, nil, false, func(_, _ []byte) bool { return true })
			}
			return nil
		})
		b.view = failing{b.view, state.ErrFenced}
		b.Add(0, Record{Offset: 0, Key: []byte("k")})
		_, err := b.Step(0, 10)
		var te *Error
		if !errors.As(err, &te) || te.Class != ClassStore || !errors.Is(err, state.ErrFenced) || te.Topic != "in" {
			t.Fatalf("%s: Step = %v, want a store error of record in[0]@0 that matches ErrFenced", op, err)
		}
	}
}

// TestCacheBound: clean entries stay below CacheBytes, whatever is read.
func TestCacheBound(t *testing.T) {
	t.Parallel()
	const bound = 100_000
	b := newBench(t, Config{CacheBytes: bound}, []StoreSpec{{Name: "s", Changelog: "log"}}, []string{"in"}, nil)
	s := b.Store("s")
	for i := range 5000 {
		s.Put(fmt.Append(nil, "key", i), make([]byte, 20), 1)
		if i%500 == 499 {
			b.commit()
			b.apply()
		}
	}
	for i := range 20_000 {
		if _, ok, err := s.Get(fmt.Append(nil, "key", i%5000)); !ok || err != nil {
			t.Fatal(i, ok, err)
		}
	}
	if b.cache.bytes > bound+1000 {
		t.Fatalf("the cache holds %d bytes, the bound is %d", b.cache.bytes, bound)
	}
}
