package task

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/weirstreams/weir/state"
)

// counted is a view that counts its reads and can fail them.
type counted struct {
	state.View
	reads, keys int
	fail        error
}

func (c *counted) Read(ctx context.Context, expect state.Token, keys [][]byte, visit func(int, []byte)) error {
	c.reads++
	c.keys += len(keys)
	if c.fail != nil {
		return c.fail
	}
	return c.View.Read(ctx, expect, keys, visit)
}

// counting is a task that counts the records of each key in the store "s"; a
// record with the value "other" counts for another key than its own.
func counting(t *testing.T, cfg Config) (*bench, *counted) {
	t.Helper()
	b := newBench(t, cfg, []StoreSpec{{Name: "x"}, {Name: "s"}}, []string{"in", "side"}, func(c *Context, _ int, r *Record) error {
		s, key := c.Store("s"), r.Key
		if string(r.Value) == "other" {
			key = append([]byte("other "), key...)
		}
		v, ok, err := s.Get(key)
		if err != nil {
			return err
		}
		n := uint64(1)
		if ok {
			n += binary.BigEndian.Uint64(v)
		}
		return s.Put(key, binary.BigEndian.AppendUint64(nil, n), r.Timestamp)
	})
	b.plan.Ahead = [][]int{{1}, nil}
	v := &counted{View: b.view}
	b.view = v
	return b, v
}

func record(offset int64, key string) Record {
	return Record{Offset: offset, Timestamp: offset, Key: []byte(key), Value: []byte("v")}
}

// What was fetched for a task on a remote store is one round trip, however many
// keys it needs and however small the steps are.
func TestReadAheadIsOneRead(t *testing.T) {
	t.Parallel()
	for _, ahead := range []bool{false, true} {
		b, v := counting(t, Config{ReadAhead: ahead, CacheBytes: 1 << 20, MaxTaskIdle: -1})
		for i := range int64(100) {
			b.Add(0, record(i, fmt.Sprint("key ", i%80)))
		}
		for range 20 {
			if e, err := b.Step(0, 5); err != nil || e.Records != 5 {
				t.Fatalf("%d records, error %v", e.Records, err)
			}
		}
		want := 80
		if ahead {
			want = 1
		}
		if v.reads != want || v.keys != 80 {
			t.Errorf("ahead %t: %d reads of %d keys, want %d of 80", ahead, v.reads, v.keys, want)
		}
		// All of it is known now.
		for i := range int64(100) {
			b.Add(0, record(100+i, fmt.Sprint("key ", i%80)))
		}
		if _, err := b.Step(0, 100); err != nil {
			t.Fatal(err)
		}
		if v.reads != want {
			t.Errorf("ahead %t: %d reads for keys that are cached", ahead, v.reads-want)
		}
	}
}

// Read-ahead changes nothing but the number of reads, whatever the size of the
// cache, also with keys that are guessed wrong, aborts, commits and applies.
func TestReadAheadAgainstModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 2))
			b, v := counting(t, Config{ReadAhead: true, CacheBytes: []int{0, 3000, 20_000, 1 << 20}[seed%4], MaxTaskIdle: -1})
			committed, current := map[string]uint64{}, map[string]uint64{}
			at, committedAt := int64(0), int64(0)
			for range 60 {
				n := rng.IntN(40)
				for range n {
					r := record(at, fmt.Sprint("key ", rng.IntN(200)))
					at++
					key := string(r.Key)
					switch rng.IntN(10) {
					case 0:
						r.Value = []byte("other")
						key = "other " + key
					case 1:
						r.Control, key = true, ""
					}
					if key != "" {
						current[key]++
					}
					b.Add(0, r)
				}
				for {
					e, err := b.Step(0, 1+rng.IntN(20))
					if err != nil {
						t.Fatal(err)
					}
					if e.Records == 0 {
						break
					}
				}
				switch rng.IntN(4) {
				case 0:
					if err := b.Abort(); err != nil {
						t.Fatal(err)
					}
					current = maps.Clone(committed)
					at = committedAt
				case 1, 2:
					if b.Dirty() {
						b.commit()
					}
					committed, committedAt = maps.Clone(current), at
					if rng.IntN(2) == 0 {
						b.apply()
					}
				}
				size := 0
				for _, s := range b.stores {
					for _, e := range s.entries {
						size += e.size()
					}
				}
				if size != b.cache.bytes {
					t.Fatalf("the cache counts %d bytes and has %d", b.cache.bytes, size)
				}
			}
			s := b.Store("s")
			for key, n := range current {
				got, ok, err := s.Get([]byte(key))
				if err != nil || !ok || binary.BigEndian.Uint64(got) != n {
					t.Fatalf("%s = %v, %t, error %v; want %d", key, got, ok, err, n)
				}
			}
			if v.reads == 0 {
				t.Error("nothing was read")
			}
		})
	}
}

// A read-ahead that fails is no failure of its own: the get that needs the key
// tells it, with the record, and nothing that was not read counts as known.
func TestReadAheadThatFails(t *testing.T) {
	t.Parallel()
	b, v := counting(t, Config{ReadAhead: true, CacheBytes: 1 << 20, MaxTaskIdle: -1})
	for i := range int64(10) {
		b.Add(0, record(i, fmt.Sprint("key ", i)))
	}
	v.fail = state.ErrUnavailable
	_, err := b.Step(0, 100)
	var te *Error
	if !errors.Is(err, state.ErrUnavailable) || !errors.As(err, &te) || te.Class != ClassStore || te.Offset != 0 {
		t.Fatalf("Step: %v, want a store error of the first record", err)
	}
	if err := b.Abort(); err != nil {
		t.Fatal(err)
	}
	if n := len(b.Store("s").entries); n > 0 {
		t.Errorf("%d entries that nobody has read", n)
	}
	v.fail = nil
	for i := range int64(10) {
		b.Add(0, record(i, fmt.Sprint("key ", i)))
	}
	if e, err := b.Step(0, 100); err != nil || e.Records != 10 {
		t.Errorf("%d records, error %v", e.Records, err)
	}
}
