package sim

import (
	"context"
	"flag"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"

	"github.com/weirstreams/weir/fence"
)

var fenceSeeds = flag.Uint64("sim.fence", 30, "how many schedules TestFencedCode plays of each of its sizes")

// fenceRedis is a stand-in for the server in this process.
type fenceRedis struct {
	m    *miniredis.Miniredis
	opts fence.Options
}

func (r *fenceRedis) Open() (*fence.Fence, error) {
	o := r.opts
	o.URL = "redis://" + r.m.Addr() + "?check=off&timeout=30s"
	return fence.Open(context.Background(), o)
}

func (r *fenceRedis) Reset() { r.m.FlushAll() }

func (r *fenceRedis) keys(part string) (keys []string) {
	for _, k := range r.m.Keys() {
		if strings.Contains(k, part) {
			keys = append(keys, k)
		}
	}
	return keys
}

func (r *fenceRedis) Save(slot int) func() error {
	part := fmt.Sprintf("{%s/%d/", r.opts.Topic, slot)
	hashes, texts, lists := map[string][]string{}, map[string]string{}, map[string][]string{}
	for _, k := range r.keys(part) {
		var err error
		switch kind := r.m.Type(k); kind {
		case "hash":
			var fields []string
			fields, err = r.m.HKeys(k)
			for _, f := range fields {
				hashes[k] = append(hashes[k], f, r.m.HGet(k, f))
			}
		case "string":
			texts[k], err = r.m.Get(k)
		case "list":
			lists[k], err = r.m.List(k)
		default:
			err = fmt.Errorf("key %q is a %s", k, kind)
		}
		if err != nil {
			return func() error { return err }
		}
	}
	return func() error {
		for _, k := range r.keys(part) {
			r.m.Del(k)
		}
		for k, fields := range hashes {
			r.m.HSet(k, fields...)
		}
		for k, text := range texts {
			if err := r.m.Set(k, text); err != nil {
				return err
			}
		}
		for k, list := range lists {
			if _, err := r.m.RPush(k, list...); err != nil {
				return err
			}
		}
		return nil
	}
}

// forgotten is an offset that no record has.
const forgotten = math.MaxInt64

// Forget goes through the window, which is a list of the names of segments and of
// what the records have left, which begins with partition, count, lineage and
// offset.
func (r *fenceRedis) Forget(partition int32, keep func(int64) bool) error {
	for _, k := range r.keys("}:w" + strconv.Itoa(int(partition))) {
		list, err := r.m.List(k)
		if err != nil {
			return err
		}
		for i, text := range list {
			if !strings.Contains(text, " ") {
				continue // a name
			}
			var p, count, lineage, offset int64
			if _, err := fmt.Sscan(text, &p, &count, &lineage, &offset); err != nil {
				return fmt.Errorf("window %s: %q: %w", k, text, err)
			}
			if offset != forgotten && !keep(offset) {
				list[i] = fmt.Sprint(p, count, lineage, int64(forgotten))
			}
		}
		r.m.Del(k)
		if _, err := r.m.RPush(k, list...); err != nil {
			return err
		}
	}
	return nil
}

func fencedSetups() []FenceSetup {
	return []FenceSetup{
		{Partitions: 1, Slots: 1, Consumers: 2, Records: 14},
		{Partitions: 2, Slots: 2, Consumers: 2, Records: 20},
		{Partitions: 3, Slots: 2, Consumers: 3, Records: 24}, // a partition reaches both slots
	}
}

func fencedWorld(t testing.TB, s FenceSetup) *fenceRedis {
	return &fenceRedis{miniredis.RunT(t), fence.Options{Topic: "t", Partitions: s.Partitions, Slots: s.Slots}}
}

// Package fence loses no output and applies no record twice, whoever dies, is
// paused or comes back, and whatever Redis forgets.
func TestFencedCode(t *testing.T) {
	t.Parallel()
	for _, s := range fencedSetups() {
		t.Run(fmt.Sprintf("%d partitions in %d slots", s.Partitions, s.Slots), func(t *testing.T) {
			t.Parallel()
			world := fencedWorld(t, s)
			for seed := range *fenceSeeds {
				if *simSeed != 0 {
					seed = *simSeed
				}
				if trace, err := PlayFenced(seed, world, s); err != nil {
					t.Fatalf("seed %d: %v\n%s", seed, err, trace)
				}
			}
		})
	}
}

// The same play finds out what is known to be wrong.
func TestFencedControls(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]FenceFault{"a window of one": WindowOfOne, "commit before the outputs": CommitFirst,
		"reading on after Redis forgot": SkipForgotten, "a zombie that claims by itself": DuplicateOwners} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := fencedSetups()[1]
			s.Fault = fault
			world := fencedWorld(t, s)
			for seed := uint64(0); ; seed++ {
				if _, err := PlayFenced(seed, world, s); err != nil {
					t.Logf("found out by schedule %d: %v", seed+1, err)
					return
				}
				if seed > 300 {
					t.Fatal("not found out in 300 schedules")
				}
			}
		})
	}
}
