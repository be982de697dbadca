//go:build integration

package proof

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirstreams/weir/internal/redistest"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/state/redisstore"
)

var forgetCount = flag.Int("forgettings", 5, "how often, at least, Redis forgets what it acknowledged in TestKillForgettingRedis")

// fleet is a primary with two replicas, each a process. The application reaches
// the primary of the moment through a proxy, as it would by a name.
type fleet struct {
	t         *testing.T
	rng       *rand.Rand
	names     chainNames
	namespace string
	primary   *redistest.Server
	replicas  [2]*redistest.Server
	proxy     *redistest.Proxy
	times     map[string]int // how often which of ways has made it forget
}

// fleetArgs are those of each server: what a replica needs first comes at once.
var fleetArgs = []string{"--repl-diskless-sync", "no"}

func newFleet(t *testing.T, rng *rand.Rand, names chainNames) *fleet {
	f := &fleet{t: t, rng: rng, names: names, namespace: names.App, times: map[string]int{}}
	f.primary = redistest.Start(t, fleetArgs...)
	for i := range f.replicas {
		f.replicas[i] = f.primary.StartReplica(fleetArgs...)
	}
	f.primary.AwaitOnline(len(f.replicas))
	f.proxy = redistest.StartProxy(t, f.primary.Addr())
	return f
}

func (f *fleet) url() string {
	return "redis://" + f.proxy.Addr() + "/0?check=off&namespace=" + f.namespace
}

// tokens are those of all views on a server: what has been acknowledged there.
func (f *fleet) tokens(ctx context.Context, s *redistest.Server) (string, error) {
	store, err := redisstore.Open(ctx, redisstore.Options{Addresses: []string{s.Addr()}, Namespace: f.namespace, Check: redisstore.CheckOff})
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for _, id := range f.names.views() {
		token, e := store.Token(ctx, id)
		err = errors.Join(err, e)
		fmt.Fprintf(&all, "%x ", string(token))
	}
	return all.String(), errors.Join(err, store.Close())
}

// awaitMore waits until the primary has acknowledged what a copy does not have.
func (f *fleet) awaitMore(ctx context.Context, copied string) {
	f.t.Helper()
	waitUntil(f.t, ctx, "a write that will be forgotten", func() (bool, error) {
		now, err := f.tokens(ctx, f.primary)
		return err == nil && now != copied, err
	})
}

// mustTokens is tokens of a server that answers.
func (f *fleet) mustTokens(ctx context.Context, s *redistest.Server) string {
	f.t.Helper()
	tokens, err := f.tokens(ctx, s)
	if err != nil {
		f.t.Fatal(err)
	}
	return tokens
}

// lag lets a replica stand still and waits until it lacks something.
func (f *fleet) lag(ctx context.Context) (old, late *redistest.Server) {
	f.t.Helper()
	i := f.rng.IntN(len(f.replicas))
	old, late = f.primary, f.replicas[i]
	late.Must("REPLICAOF", "NO", "ONE")
	f.awaitMore(ctx, f.mustTokens(ctx, late))
	f.primary, f.replicas[i] = late, old
	return old, late
}

// follow lets both replicas follow the new primary. The one that has more throws
// that away.
func (f *fleet) follow() {
	f.t.Helper()
	for _, r := range f.replicas {
		if r.Cmd == nil {
			r.Args = append([]string{"--replicaof", "127.0.0.1 " + f.primary.Port}, fleetArgs...)
			r.Start()
			continue
		}
		r.Must("REPLICAOF", "127.0.0.1", f.primary.Port)
	}
	f.primary.AwaitOnline(len(f.replicas))
}

// ways are how a Redis forgets.
var ways = []struct {
	name string
	do   func(f *fleet, ctx context.Context)
}{
	{"primary killed, late replica promoted", func(f *fleet, ctx context.Context) {
		old, late := f.lag(ctx)
		old.Kill()
		f.proxy.Forward(late.Addr())
		f.proxy.Drop()
		f.follow()
	}},
	{"primary demoted with its connections open, late replica promoted", func(f *fleet, ctx context.Context) {
		_, late := f.lag(ctx)
		f.proxy.Forward(late.Addr())
		f.follow()
	}},
	{"primary killed, started with an older copy", func(f *fleet, ctx context.Context) {
		f.primary.Must("SAVE")
		f.awaitMore(ctx, f.mustTokens(ctx, f.primary))
		f.primary.Kill()
		f.primary.Args = fleetArgs
		f.primary.Start()
		f.primary.AwaitOnline(len(f.replicas))
	}},
}

// forgetLimit is how long it may take until there is something to forget, and
// everybody is back after it.
const forgetLimit = 2 * time.Minute

// forgetPause is how long the application has between two losses at most: on
// average enough to go on from where it was.
const forgetPause = 2 * time.Second

// forget makes the Redis forget so often, and on until planned is closed.
func (f *fleet) forget(ctx context.Context, want int, planned <-chan struct{}) {
	f.t.Helper()
	for n := 0; ; n++ {
		select {
		case <-planned:
			if n >= want {
				return
			}
		default:
		}
		select {
		case <-time.After(time.Duration(f.rng.Int64N(int64(forgetPause)))):
		case <-ctx.Done():
			f.t.Fatalf("the acts have ended: %v", context.Cause(ctx))
		}
		f.forgetOnce(ctx, n)
	}
}

func (f *fleet) forgetOnce(ctx context.Context, n int) {
	f.t.Helper()
	ctx, cancel := context.WithTimeoutCause(ctx, forgetLimit, fmt.Errorf("it takes longer than %v", forgetLimit))
	defer cancel()
	way := ways[n%len(ways)]
	began := time.Now()
	way.do(f, ctx)
	f.times[way.name]++
	f.t.Logf("    %d: %s (%.1f s)", n, way.name, time.Since(began).Seconds())
}

// TestKillForgettingRedis is the kill test with the state in a Redis that forgets
// acknowledged writes again and again, under load and while instances are killed
// and paused: each output is there once, and the tables are what a single-threaded
// run makes of the inputs. The long form:
//
//	scripts/services run go test -tags integration -run TestKillForgettingRedis -v \
//		-timeout 0 ./internal/proof -kills 60 -forgettings 60
func TestKillForgettingRedis(t *testing.T) {
	t.Parallel()
	ctx := testContext(t, 2*time.Hour)
	rng := newRand(t)
	k := newKiller(t, ctx, realCluster(t), rng)
	f := newFleet(t, rand.New(rand.NewPCG(rng.Uint64(), 2)), k.names)
	k.redis = f.url()
	k.meanwhile = func(ctx context.Context, planned <-chan struct{}) { f.forget(ctx, *forgetCount, planned) }
	acts := planKills(rng, *killCount)
	if *killCount == 0 {
		acts = []act{
			{point: string(worker.BeforeApply), nth: 5, two: true},
			{point: string(worker.AfterApply), nth: 5},
			{point: pointEndSent, nth: 5, two: true, victim: 1},
			{stop: true, point: string(worker.BeforeApply), nth: 3, two: true},
		}
	}
	for i := range acts {
		acts[i].memory = false
	}
	began := time.Now()
	v := k.run(ctx, acts)
	total := 0
	for _, n := range f.times {
		total += n
	}
	refused, behind := 0, 0
	for _, p := range k.procs {
		log := p.log.String()
		refused += strings.Count(log, "the view refused this owner")
		behind += strings.Count(log, "verdict=behind")
	}
	t.Logf("%d times acknowledged writes were forgotten %v, %d kills and %d pauses in %v, %d times a view refused its owner, %d times it was behind: %v",
		total, f.times, k.kills, k.pauses, time.Since(began).Round(time.Second), refused, behind, v)
	if behind == 0 {
		t.Error("no view was behind: nothing was forgotten")
	}
	if !v.clean() {
		t.Error("not exactly once")
	}
}

// TestKillOutboxForgettingRedis is the same at least once, with the outputs beside
// the state and no changelog: the application goes back with the store. Nothing is
// lost, and the state in front of the repartition topic is that of a single-threaded
// run; what came out twice is counted.
func TestKillOutboxForgettingRedis(t *testing.T) {
	t.Parallel()
	ctx := testContext(t, 2*time.Hour)
	rng := newRand(t)
	k := newKiller(t, ctx, realCluster(t), rng)
	k.atLeast, k.check, k.forgetful = true, checkForgotten, true
	f := newFleet(t, rand.New(rand.NewPCG(rng.Uint64(), 2)), k.names)
	k.redis = f.url()
	k.meanwhile = func(ctx context.Context, planned <-chan struct{}) { f.forget(ctx, *forgetCount, planned) }
	acts := planOutboxKills(rng, *killCount)
	if *killCount == 0 {
		acts = []act{
			{point: string(worker.AfterApply), nth: 5, two: true},
			{point: pointAnswered, nth: 5},
			{point: string(worker.BeforeCommit), nth: 5, two: true, victim: 1},
			{stop: true, point: string(worker.AfterApply), nth: 3, two: true},
		}
	}
	began := time.Now()
	v := k.run(ctx, acts)
	total := 0
	for _, n := range f.times {
		total += n
	}
	found, records, strays := 0, 0, 0
	for _, p := range k.procs {
		for line := range strings.Lines(p.log.String()) {
			switch {
			case strings.Contains(line, "the store has forgotten acknowledged batches"):
				found++
				if _, rest, ok := strings.Cut(line, " records="); ok {
					n, _, _ := strings.Cut(rest, " ")
					again, err := strconv.Atoi(n)
					if err != nil {
						t.Errorf("%v in %s", err, line)
					}
					records += again
				}
			case strings.Contains(line, "the store had forgotten a claim"):
				strays++
			}
		}
	}
	t.Logf("%d times acknowledged writes were forgotten %v, %d kills and %d pauses in %v; %d tasks have noticed, with %d records to process again, and %d that a fenced owner had gone on; "+
		"%d outputs came again, %d repetitions, %d were a fenced owner's: %v",
		total, f.times, k.kills, k.pauses, time.Since(began).Round(time.Second), found, records, strays, v.Again, v.Repeats, v.Unseen, v)
	if found == 0 {
		t.Error("no task has noticed anything: nothing was forgotten")
	}
	if !v.clean() {
		t.Error("something is lost, or not right")
	}
}
