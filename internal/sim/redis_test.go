package sim

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/redisstore"
)

var redisSeeds = flag.Uint64("sim.redis", 8, "how many seeds of each of its scenarios TestRedis plays")

// redisScenarios are those in which the store does more than keep up.
var redisScenarios = []string{"regress", "loss", "foreign", "refusals", "late-claim", "unknown-outcome", "timers", "outage", "outbox", "outbox-forgets", "outbox-grid", "everything"}

// The store of these plans is redisstore itself, with a stand-in for the server
// in this process whose keys go back to what they were, or are deleted. Where no
// timer asks for a range, two of three seeds keep no key in order: their batches
// go as transactions.
func TestRedis(t *testing.T) {
	for _, name := range redisScenarios {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRedisPlayer(t, false)
			seeds := []uint64{*simSeed}
			if *simSeed == 0 {
				seeds = nil
				for i := range *redisSeeds {
					seeds = append(seeds, *simFirst+i)
				}
			}
			for _, seed := range seeds {
				if p, res := r.play(name, seed); res.Err != nil {
					t.Fatalf("again with: go test ./internal/sim -run 'TestRedis/^%s$' -sim.seed=%d\n%s", name, seed, r.Story(p, minimiseLimit/4))
				}
			}
			n := r.transactions.Load()
			t.Logf("%d batches have gone as transactions", n)
			if n == 0 && r.wanted && len(seeds) >= 8 {
				t.Error("no batch has gone as a transaction")
			}
		})
	}
}

// The same with a server that watches nothing: a transaction is carried out
// whatever has become of the view.
func TestRedisControl(t *testing.T) {
	t.Parallel()
	r := startRedisPlayer(t, true)
	for seed := uint64(1); seed <= 60; seed++ {
		if _, res := r.play("regress", seed); res.Err != nil {
			what, _, _ := strings.Cut(res.Err.Error(), "\n")
			t.Logf("seed %d: %s", seed, what)
			return
		}
	}
	t.Errorf("without WATCH %d transactions pass", r.transactions.Load())
}

// redisPlayer plays plans on a server of its own.
type redisPlayer struct {
	*Player
	transactions atomic.Int64
	unordered    bool // the plan that is played
	wanted       bool // there should have been transactions
}

func startRedisPlayer(t *testing.T, unwatched bool) *redisPlayer {
	m := miniredis.RunT(t)
	r := &redisPlayer{Player: player(t)}
	m.Server().SetPreHook(func(p *server.Peer, cmd string, _ ...string) bool {
		if cmd == "EXEC" {
			r.transactions.Add(1)
		}
		if cmd == "WATCH" && unwatched {
			p.WriteOK()
			return true
		}
		return false
	})
	r.Store = func() Raw {
		m.FlushAll()
		b := &redis{m: m, unordered: r.unordered}
		var err error
		if b.Backend, err = b.open(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Backend.Close() })
		return b
	}
	return r
}

func (r *redisPlayer) play(name string, seed uint64) (*Plan, Result) {
	p := ByName(name).Plan(seed)
	p.Setup.Store = Shared
	r.unordered = !p.Setup.Timers && seed%3 > 0
	r.wanted = r.wanted || r.unordered && !p.Setup.Outbox
	return p, r.Play(p)
}

// redis is a backend with its server.
type redis struct {
	*redisstore.Backend
	m         *miniredis.Miniredis
	unordered bool
}

var _ Raw = (*redis)(nil)

func (r *redis) open() (*redisstore.Backend, error) {
	return redisstore.Open(context.Background(), redisstore.Options{Addresses: []string{r.m.Addr()}, Check: redisstore.CheckOff, Unordered: r.unordered})
}

func (r *redis) Another() (state.Backend, error) { return r.open() }

// Committed lists a view whose keys have no order by the names in its buckets, of
// which the store does not know ranges.
func (r *redis) Committed(id state.ID) state.Reader {
	if !r.unordered {
		return r.Backend.Committed(id)
	}
	return lister{r.Backend.Committed(id), r, id}
}

type lister struct {
	state.Reader
	r  *redis
	id state.ID
}

func (l lister) Iterate(ctx context.Context, _ state.Range) state.Iterator {
	var keys [][]byte
	for _, k := range l.r.keys(l.id) {
		if strings.Count(k, ":") < 2 || strings.HasSuffix(k, ":q") {
			continue // the meta key, and the outbox
		}
		names, err := l.r.m.HKeys(k)
		if err != nil {
			return state.Empty(err)
		}
		for _, n := range names {
			if n != "\xff" {
				keys = append(keys, []byte(n))
			}
		}
	}
	slices.SortFunc(keys, bytes.Compare)
	it := &listed{keys: slices.CompactFunc(keys, bytes.Equal)}
	it.values = make([][]byte, len(it.keys))
	if _, err := l.Read(ctx, it.keys, func(i int, v []byte) { it.values[i] = v }); err != nil {
		return state.Empty(err)
	}
	return it
}

// listed iterates over entries at hand; those without a value are not there.
type listed struct {
	keys, values [][]byte
	at           int // behind the current entry
}

func (l *listed) Next() bool {
	for l.at++; l.at <= len(l.keys); l.at++ {
		if l.values[l.at-1] != nil {
			return true
		}
	}
	return false
}

func (l *listed) Key() []byte   { return l.keys[l.at-1] }
func (l *listed) Value() []byte { return l.values[l.at-1] }
func (l *listed) Err() error    { return nil }
func (l *listed) Close() error  { return nil }

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
