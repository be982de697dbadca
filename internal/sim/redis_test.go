package sim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"

	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/redisstore"
)

var redisSeeds = flag.Uint64("sim.redis", 8, "how many seeds of each of its scenarios TestRedis plays")

// redisScenarios are those in which the store does more than keep up.
var redisScenarios = []string{"regress", "loss", "foreign", "refusals", "late-claim", "unknown-outcome", "timers", "outage", "outbox", "outbox-forgets", "outbox-grid", "everything"}

// The store of these plans is redisstore itself, with a stand-in for the server
// in this process whose keys go back to what they were, or are deleted.
func TestRedis(t *testing.T) {
	for _, name := range redisScenarios {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := miniredis.RunT(t)
			pl := player(t)
			pl.Store = func() Raw {
				m.FlushAll()
				r := &redis{m: m}
				var err error
				if r.Backend, err = r.open(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = r.Backend.Close() })
				return r
			}
			seeds := []uint64{*simSeed}
			if *simSeed == 0 {
				seeds = nil
				for i := range *redisSeeds {
					seeds = append(seeds, *simFirst+i)
				}
			}
			for _, seed := range seeds {
				p := ByName(name).Plan(seed)
				p.Setup.Store = Shared
				if res := pl.Play(p); res.Err != nil {
					t.Fatalf("again with: go test ./internal/sim -run 'TestRedis/^%s$' -sim.seed=%d\n%s", name, seed, pl.Story(p, minimiseLimit/4))
				}
			}
		})
	}
}

// redis is a backend with its server.
type redis struct {
	*redisstore.Backend
	m *miniredis.Miniredis
}

var _ Raw = (*redis)(nil)

func (r *redis) open() (*redisstore.Backend, error) {
	return redisstore.Open(context.Background(), redisstore.Options{Addresses: []string{r.m.Addr()}, Check: redisstore.CheckOff})
}

func (r *redis) Another() (state.Backend, error) { return r.open() }

// keys are those of a view; they share a hash tag.
func (r *redis) keys(id state.ID) []string {
	return slices.DeleteFunc(r.m.Keys(), func(k string) bool {
		return !strings.Contains(k, fmt.Sprintf("{%s/%s/", id.Application, id.Task))
	})
}

func (r *redis) Erase(id state.ID) error {
	for _, k := range r.keys(id) {
		r.m.Del(k)
	}
	return nil
}

// Damage deletes a bucket or the index, and leaves the token.
func (r *redis) Damage(id state.ID) (bool, error) {
	for _, k := range r.keys(id) {
		if strings.Count(k, ":") > 1 {
			r.m.Del(k)
			return true, nil
		}
	}
	return false, nil
}

func (r *redis) Save(id state.ID) func() error {
	type member struct {
		name  string
		score float64
	}
	hashes, sets := map[string][]string{}, map[string][]member{}
	var failed error
	for _, k := range r.keys(id) {
		switch kind := r.m.Type(k); kind {
		case "hash":
			fields, err := r.m.HKeys(k)
			failed = errors.Join(failed, err)
			for _, f := range fields {
				hashes[k] = append(hashes[k], f, r.m.HGet(k, f))
			}
		case "zset":
			names, err := r.m.ZMembers(k)
			failed = errors.Join(failed, err)
			for _, n := range names {
				score, err := r.m.ZScore(k, n)
				failed = errors.Join(failed, err)
				sets[k] = append(sets[k], member{n, score})
			}
		default:
			failed = errors.Join(failed, fmt.Errorf("key %q is a %s", k, kind))
		}
	}
	return func() error {
		err := errors.Join(failed, r.Erase(id))
		for k, fields := range hashes {
			r.m.HSet(k, fields...)
		}
		for k, members := range sets {
			for _, m := range members {
				_, e := r.m.ZAdd(k, m.score, m.name)
				err = errors.Join(err, e)
			}
		}
		return err
	}
}
