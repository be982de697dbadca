package sim

import (
	"context"
	"errors"
	"flag"
	"fmt"
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
	hashes, texts := map[string][]string{}, map[string]string{}
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
		return nil
	}
}

// Forget goes through the segments of the window: offset, size, a colon and the
// value of each record.
func (r *fenceRedis) Forget(partition int32, keep func(int64) bool) error {
	for _, k := range r.keys("}:w" + strconv.Itoa(int(partition))) {
		fields, err := r.m.HKeys(k)
		if err != nil {
			return err
		}
		for _, f := range fields {
			var kept strings.Builder
			for rest := r.m.HGet(k, f); rest != ""; {
				head, after, _ := strings.Cut(rest, ":")
				offset, size, _ := strings.Cut(head, " ")
				o, err1 := strconv.ParseInt(offset, 10, 64)
				n, err2 := strconv.Atoi(size)
				if err := errors.Join(err1, err2); err != nil || n > len(after) {
					return fmt.Errorf("segment %s of the window: %q: %w", f, rest, err)
				}
				if keep(o) {
					kept.WriteString(rest[:len(head)+1+n])
				}
				rest = after[n:]
			}
			r.m.HSet(k, f, kept.String())
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
