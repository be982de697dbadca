package proof

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
)

var (
	killCount = flag.Int("kills", 0, "how often the kill tests kill an application; 0 for each boundary once")
	killSeed  = flag.Uint64("killseed", 0, "seed of the plan of the kill tests; 0 for a new one")
)

// wiping says what of a child's folder is gone before it starts again.
type wiping int

const (
	keepAll   wiping = iota
	wipeState        // the store, as after a lost volume; the process keeps its identity
	wipeAll          // the folder, as in a new container
)

// act is one death of an application, or one pause.
type act struct {
	point  string // where; "" at any moment
	nth    int64  // at which passage
	stop   bool   // paused past the session limit instead of killed, then continued
	long   bool   // the pause outlasts the transaction limit too
	two    bool   // another instance lives
	memory bool
	wipe   wiping
	victim int // which of the two instances
}

func (a act) String() string {
	s := "killed "
	if a.stop {
		s = "stopped "
	}
	if a.point == "" {
		s += "at any moment"
	} else {
		s += fmt.Sprintf("%s #%d", a.point, a.nth)
	}
	if a.two {
		s += ", another instance lives"
	}
	if a.memory {
		s += ", memory"
	} else {
		s += []string{", disk kept", ", state wiped", ", folder wiped"}[a.wipe]
	}
	return s
}

// boundary is a place of a commit protocol where an application is killed, with
// the largest number of the passage: so low that it comes soon.
type boundary struct {
	point string
	max   int64
}

var boundaries = []boundary{
	{string(worker.AfterProcess), 40},
	{string(worker.AfterFlush), 15},
	{string(worker.BeforeCommit), 15},
	{pointOffsetsAdded, 15},
	{pointEndSent, 15},
	{pointEndAnswered, 15},
	{string(worker.AfterCommit), 15},
	{string(worker.BeforeApply), 15},
	{string(worker.AfterApply), 15},
	{string(worker.AfterClaim), 2},
	{string(worker.DuringRestore), 2},
	{string(worker.DuringRevoke), 1},
}

// stopPoints are the places where it is stopped, "" for any moment.
var stopPoints = []string{"", string(worker.AfterFlush), pointOffsetsAdded, pointEndSent, string(worker.BeforeApply)}

// planKills makes a plan for the protocol with a changelog.
func planKills(rng *rand.Rand, kills int) []act { return planActs(rng, kills, boundaries, stopPoints) }

// planActs makes a plan: each boundary, three moments and three pauses once, in
// any order, and then more of the same up to the given number of kills.
func planActs(rng *rand.Rand, kills int, boundaries []boundary, stopPoints []string) []act {
	var acts []act
	kill := func(i int) act {
		if i >= len(boundaries) {
			return act{}
		}
		b := boundaries[i]
		return act{point: b.point, nth: 1 + rng.Int64N(b.max)}
	}
	for i := range len(boundaries) + 3 {
		acts = append(acts, kill(i))
	}
	for len(acts) < kills {
		acts = append(acts, kill(rng.IntN(len(boundaries)+3)))
	}
	for i := range max(3, kills/10) {
		acts = append(acts, act{stop: true, point: stopPoints[i%len(stopPoints)], nth: 1 + rng.Int64N(10), long: kills > 0 && i%8 == 7})
	}
	rng.Shuffle(len(acts), func(i, j int) { acts[i], acts[j] = acts[j], acts[i] })
	for i := range acts {
		a := &acts[i]
		a.victim = rng.IntN(2)
		a.two = i%2 == 0
		a.memory = rng.IntN(4) == 0
		switch n := rng.IntN(20); {
		case n < 2:
			a.wipe = wipeState
		case n < 3:
			a.wipe = wipeAll
		}
		switch a.point {
		case string(worker.DuringRestore):
			if a.wipe == keepAll {
				a.wipe = wipeState
			}
		case string(worker.DuringRevoke):
			a.two = true
		case string(worker.BeforeApply), string(worker.AfterApply):
			a.memory = false
		}
	}
	return acts
}

// instance is one of the two places where the application runs.
type instance struct {
	dir     string
	workers int
	proc    *process // nil when it does not run
}

// killer runs the hash-chain application in children that it kills.
type killer struct {
	t         *testing.T
	c         *cluster
	names     chainNames
	atLeast   bool
	redis     string // URL of the Redis that keeps the state; empty for the disk
	rng       *rand.Rand
	meanwhile func(ctx context.Context, planned <-chan struct{}) // runs beside the acts, of which there are more until it ends
	instances [2]*instance
	procs     []*process // all that ever ran
	kills     int
	pauses    int
	unclean   int // stops that were not clean; see maxUnclean
	check     func(r *chainRecords) *verdict
	forgetful bool // the store may be away, or have forgotten, when a stop applies its last batch

	inputs []input // owned by feed while it runs
}

func newKiller(t *testing.T, ctx context.Context, c *cluster, rng *rand.Rand) *killer {
	k := &killer{t: t, c: c, names: newChainNames(uniqueName(t)), rng: rng, check: check}
	for i := range k.instances {
		k.instances[i] = &instance{dir: filepath.Join(t.TempDir(), fmt.Sprint("instance", i))}
	}
	c.topic(t, k.names.In, chainInPartitions)
	for _, name := range []string{k.names.Out, k.names.Ticks, k.names.Dead} {
		c.topic(t, name, chainOutPartitions)
	}
	c.deleteLater(t, k.names.middle(), k.names.changelog("first"), k.names.changelog("second"), k.names.changelog("ticks"))
	t.Cleanup(k.end)
	return k
}

// shownLines is how much of the log of a child is shown.
const shownLines = 600

// end kills what still runs and shows the logs of a test that failed.
func (k *killer) end() {
	for _, p := range k.procs {
		if p.alive() && k.t.Failed() {
			_ = p.signal(syscall.SIGQUIT) // it says where its goroutines are
			_ = p.signal(syscall.SIGCONT)
			select {
			case <-p.exited:
			case <-time.After(5 * time.Second):
			}
		}
		if p.alive() {
			_ = p.cmd.Process.Kill()
		}
		<-p.exited
	}
	if !k.t.Failed() {
		return
	}
	for _, p := range k.procs[max(0, len(k.procs)-4):] {
		lines := strings.Split(strings.TrimSpace(p.log.String()), "\n")
		k.t.Logf("log of child %s, its last lines:\n%s", p.name, strings.Join(lines[max(0, len(lines)-shownLines):], "\n"))
	}
}

// Rate and keys of the input. Few keys make long chains; a batch of the
// application then has many records of each.
const (
	feedTick    = 10 * time.Millisecond
	feedPerTick = 8
	feedKeys    = 60
	feedPoison  = 100    // one in so many
	feedAhead   = 10_000 // inputs that may wait; a machine with little to give gets no more
	feedLook    = 50     // ticks between two looks at what waits
)

// feed writes inputs until stop is closed.
func (k *killer) feed(ctx context.Context, rng *rand.Rand, stop <-chan struct{}) error {
	tick := time.NewTicker(feedTick)
	defer tick.Stop()
	var failed struct {
		sync.Mutex
		err error
	}
	ahead := false
feeding:
	for n := 1; ; n++ {
		select {
		case <-tick.C:
			if n%feedLook == 0 {
				ahead = k.waiting(ctx) > feedAhead
			}
			if ahead {
				continue
			}
		case <-stop:
			break feeding
		case <-ctx.Done():
			break feeding
		}
		for range feedPerTick {
			in := input{key: fmt.Sprint("key-", min(rng.IntN(feedKeys), rng.IntN(feedKeys))), seq: int64(len(k.inputs)), bad: rng.IntN(feedPoison) == 0}
			k.inputs = append(k.inputs, in)
			k.c.cl.Produce(ctx, &kgo.Record{Topic: k.names.In, Key: []byte(in.key), Value: []byte(in.value())}, func(_ *kgo.Record, err error) {
				if err != nil {
					failed.Lock()
					failed.err = err
					failed.Unlock()
				}
			})
		}
	}
	err := k.c.cl.Flush(ctx)
	failed.Lock()
	defer failed.Unlock()
	return errors.Join(err, failed.err)
}

// waiting is how many inputs the group has not committed yet.
func (k *killer) waiting(ctx context.Context) int64 {
	n := int64(len(k.inputs))
	committed, err := k.c.adm.FetchOffsets(ctx, k.names.App)
	if err != nil {
		return 0 // the coordinator is busy; the next look tells
	}
	for p := range int32(chainInPartitions) {
		if at, ok := committed.Lookup(k.names.In, p); ok {
			n -= at.At
		}
	}
	return n
}

// start starts the application in an instance that does not run.
func (k *killer) start(i *instance, c childConfig) error {
	if i.workers = 1 + k.rng.IntN(2); c.Point == string(worker.DuringRevoke) {
		i.workers = 1 // else its own workers have something to revoke at the start
	}
	if !c.Memory {
		c.Redis = k.redis
	}
	c.Names, c.Brokers, c.Dir, c.Workers, c.AtLeast = k.names, k.c.brokers, i.dir, i.workers, k.atLeast
	c.FlushMS = []int64{1, 100, 500}[k.rng.IntN(3)]
	name := fmt.Sprintf("%d (%s)", len(k.procs), filepath.Base(i.dir))
	p, err := startProcess(name, c)
	if err != nil {
		return err
	}
	i.proc = p
	k.procs = append(k.procs, p)
	return nil
}

// stop ends an instance cleanly if it runs.
func (k *killer) stop(ctx context.Context, i *instance) error {
	if i.proc == nil {
		return nil
	}
	p := i.proc
	i.proc = nil
	err := p.terminate(ctx)
	if err != nil && k.c.embedded != nil && k.unclean < maxUnclean && strings.Contains(err.Error(), "the stop was not clean: broker or store did not answer") {
		k.unclean++
		k.t.Logf("tolerated on the embedded broker: %v", err)
		return nil
	}
	if err != nil && k.forgetful && strings.Contains(err.Error(), "the stop was not clean, what was not committed will be processed again") &&
		(strings.Contains(err.Error(), "state: fenced") || strings.Contains(err.Error(), "state: storage is unavailable")) {
		k.unclean++
		k.t.Logf("tolerated on a store that forgets: %v", err)
		return nil
	}
	return err
}

// maxUnclean is how many stops of a run on the embedded broker may say that they
// were not clean: a join of a group whose other member has just died is now and
// then not answered there. The stop ends in its time and says so, as it has to; on
// a real broker none may.
const maxUnclean = 2

// actLimit is how long one act may take.
const actLimit = 2 * time.Minute

// do carries out one act.
func (k *killer) do(ctx context.Context, a act) error {
	ctx, cancel := context.WithTimeoutCause(ctx, actLimit, fmt.Errorf("the act takes longer than %v", actLimit))
	defer cancel()
	if k.redis != "" && a.point == string(worker.DuringRestore) {
		a.two = false // the one that lives would repair the state before the victim looks
	}
	victim, other := k.instances[a.victim], k.instances[1-a.victim]
	if err := k.stop(ctx, victim); err != nil {
		return err
	}
	if a.point == string(worker.DuringResend) {
		if err := k.owe(ctx, victim, other); err != nil {
			return err
		}
	}
	late := a.point == string(worker.DuringRevoke)
	if !a.two || late {
		if err := k.stop(ctx, other); err != nil {
			return err
		}
	} else if other.proc == nil {
		if err := k.start(other, childConfig{}); err != nil {
			return err
		}
	}
	if err := k.startVictim(ctx, victim, a); err != nil {
		return err
	}
	if late {
		err := victim.proc.awaitRunning(ctx)
		if err == nil {
			err = k.start(other, childConfig{})
		} else if !victim.proc.alive() && victim.proc.killed() {
			err = nil // something was revoked already
		}
		if err != nil {
			return err
		}
	}
	if a.stop {
		return k.pause(ctx, a, victim, other)
	}
	defer func() { victim.proc = nil }()
	k.kills++
	if a.point == string(worker.DuringRestore) {
		return k.duringRestore(ctx, victim, a)
	}
	if a.point != "" {
		return victim.proc.awaitKilled(ctx)
	}
	if err := k.anyMoment(ctx, victim.proc); err != nil {
		return err
	}
	return victim.proc.kill(ctx)
}

// startVictim starts the instance to which it happens.
func (k *killer) startVictim(ctx context.Context, victim *instance, a act) (err error) {
	switch a.wipe {
	case wipeState:
		err = os.RemoveAll(filepath.Join(victim.dir, k.names.App, "state"))
	case wipeAll:
		err = os.RemoveAll(victim.dir)
	}
	if err == nil && k.redis != "" && a.wipe != keepAll && !k.outbox() {
		err = k.forget(ctx)
	}
	if err != nil {
		return err
	}
	return k.start(victim, childConfig{Memory: a.memory, Point: a.point, Nth: a.nth, Stop: a.stop})
}

// forget makes Redis lose all of the state, also that of an instance that lives.
func (k *killer) forget(ctx context.Context) error {
	store, err := openRedis(ctx, k.redis)
	if err != nil {
		return err
	}
	for _, id := range k.names.views() {
		e := store.Drop(ctx, id)
		for errors.Is(e, state.ErrUnavailable) && ctx.Err() == nil { // it has its own troubles now
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
			e = store.Drop(ctx, id)
		}
		err = errors.Join(err, e)
	}
	return errors.Join(err, store.Close())
}

// restoreLimit is how long a child that runs may have something to restore
// still, which comes with a later rebalance.
const restoreLimit = 3 * time.Second

// duringRestore waits until a child has died in a restore. One that had
// everything in a single look at the changelogs begins again from nothing.
func (k *killer) duringRestore(ctx context.Context, victim *instance, a act) error {
	for {
		p := victim.proc
		if err := p.awaitRunning(ctx); err == nil {
			select {
			case <-p.exited:
			case <-time.After(restoreLimit):
			case <-ctx.Done():
			}
		} else if ctx.Err() != nil {
			return err
		}
		if !p.alive() {
			return p.awaitKilled(ctx)
		}
		if err := k.stop(ctx, victim); err != nil {
			if p.killed() {
				return nil
			}
			return err
		}
		if err := k.startVictim(ctx, victim, a); err != nil {
			return err
		}
	}
}

// anyMoment waits for a moment in the first two seconds of the work of a child,
// or, one time in four, of its start.
func (k *killer) anyMoment(ctx context.Context, p *process) error {
	if k.rng.IntN(4) > 0 {
		if err := p.awaitRunning(ctx); err != nil {
			return err
		}
	}
	select {
	case <-time.After(time.Duration(k.rng.Int64N(int64(2 * time.Second)))):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// longPause outlasts the transaction limit and the interval in which the
// broker looks for transactions past it.
const longPause = 14 * time.Second

// pause stops a child until the group has given it up, and lets it go on: it is
// then a zombie, which must do no harm and come back.
func (k *killer) pause(ctx context.Context, a act, victim, other *instance) error {
	k.pauses++
	p := victim.proc
	if a.point == "" {
		if err := k.anyMoment(ctx, p); err != nil {
			return err
		}
		if err := p.signal(syscall.SIGSTOP); err != nil {
			return err
		}
	} else if err := p.awaitStopped(ctx); err != nil {
		return err
	}
	alone := 0
	if other.proc != nil {
		alone = other.workers
	}
	if err := k.awaitMembers(ctx, alone); err != nil {
		return err
	}
	if a.long {
		select {
		case <-time.After(longPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := p.signal(syscall.SIGCONT); err != nil {
		return err
	}
	return k.awaitMembers(ctx, alone+victim.workers)
}

// awaitMembers waits until the group has that many members and is stable.
func (k *killer) awaitMembers(ctx context.Context, want int) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		n, state, err := k.c.members(ctx, k.names.App)
		if err == nil && n == want && (n == 0 || state == "Stable") {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the group has %d members and is %s (%v), want %d: %w", n, state, err, want, context.Cause(ctx))
		}
	}
}

// run carries out a plan under a steady input, lets an application without any
// state of its own finish the work, and returns what is wrong with the result.
func (k *killer) run(ctx context.Context, acts []act) *verdict {
	k.t.Helper()
	stop, fed := make(chan struct{}), make(chan error, 1)
	rng := rand.New(rand.NewPCG(k.rng.Uint64(), 1))
	go func() { fed <- k.feed(ctx, rng, stop) }()
	failed := k.perform(ctx, acts)
	for _, i := range k.instances {
		if failed == nil {
			failed = k.stop(ctx, i)
		}
	}
	close(stop)
	if err := <-fed; failed == nil && err != nil {
		failed = fmt.Errorf("write inputs: %w", err)
	}
	if failed != nil {
		k.t.Fatal(failed)
	}
	v, err := k.settle(ctx)
	if err != nil {
		k.t.Fatal(err)
	}
	return v
}

// perform carries out a plan, and what goes on beside it.
func (k *killer) perform(ctx context.Context, acts []act) error {
	ctx, cancel := context.WithCancelCause(ctx)
	enough, planned, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		err := k.actAll(ctx, acts, planned, enough)
		if err != nil {
			cancel(err) // nobody needs to wait for more
		}
		done <- err
	})
	defer func() { // also when what goes on beside it has failed the test
		cancel(errors.New("the test has failed"))
		wg.Wait()
	}()
	if k.meanwhile != nil {
		k.meanwhile(ctx, planned)
	}
	close(enough)
	return <-done
}

// actAll carries out a plan, closes planned, and kills at any moment from then on
// until enough is closed.
func (k *killer) actAll(ctx context.Context, acts []act, planned chan<- struct{}, enough <-chan struct{}) error {
	do := func(i int, a act) error {
		began := time.Now()
		if err := k.do(ctx, a); err != nil {
			return fmt.Errorf("act %d (%s): %w", i, a, err)
		}
		k.t.Logf("%3d %s (%.1f s)", i, a, time.Since(began).Seconds())
		return nil
	}
	for i, a := range acts {
		if err := do(i, a); err != nil {
			return err
		}
	}
	close(planned)
	for i := len(acts); ; i++ {
		select {
		case <-enough:
			return nil
		default:
		}
		if err := do(i, act{victim: k.rng.IntN(2), two: i%2 == 0}); err != nil {
			return err
		}
	}
}

// settleLimit is how long the last application may take for what is left.
const settleLimit = 4 * time.Minute

// settle runs the application on an empty folder until everything is processed,
// and checks what is there then: the topics, and the tables as the application
// reads them.
func (k *killer) settle(ctx context.Context) (v *verdict, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, settleLimit, fmt.Errorf("the rest takes longer than %v", settleLimit))
	defer cancel()
	ch, err := newChain(k.names)
	if err != nil {
		return nil, err
	}
	c := childConfig{Names: k.names, Brokers: k.c.brokers, Dir: k.t.TempDir(), Workers: 2, AtLeast: k.atLeast, FlushMS: 100}
	config := c.config()
	if config.Store = memstore.New(); k.redis != "" {
		if config.Store, err = openRedis(ctx, k.redis); err != nil {
			return nil, err
		}
	}
	var log syncBuffer
	config.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	defer func() {
		if err != nil || !v.clean() && !k.atLeast {
			k.t.Logf("log of the last application:\n%s", &log)
		}
	}()
	app, err := weir.NewApp(ch.topology, config)
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- app.Run(ctx) }()
	defer func() { err = errors.Join(err, app.Close(), <-done, config.Store.Close()) }()
	if err := app.WaitFor(ctx, weir.Running); err != nil {
		return nil, err
	}
	if err := k.awaitProcessed(ctx, app); err != nil {
		return nil, err
	}
	first, err := tableOf(ctx, app, ch.first)
	if err != nil {
		return nil, err
	}
	second, err := tableOf(ctx, app, ch.second)
	if err != nil {
		return nil, err
	}
	if err := app.Close(); err != nil { // so that the ticks stand still
		return nil, err
	}
	r, err := k.records(ctx)
	if err != nil {
		return nil, err
	}
	v = k.check(r)
	sameTable(v, "first", first, v.First)
	sameTable(v, "second", second, v.Second)
	return v, nil
}

// tableOf returns all entries of a table of an application that has all tasks.
func tableOf[V any](ctx context.Context, app *weir.App, table weir.Table[string, V]) (map[string]V, error) {
	entries := map[string]V{}
	for e, err := range app.Read(table).Range(ctx, weir.All[string]()) {
		if err != nil {
			return nil, err
		}
		entries[e.Key] = e.Value
	}
	return entries, nil
}

func sameTable[V comparable](v *verdict, name string, got, want map[string]V) {
	for key, w := range want {
		if got[key] != w {
			v.note(&v.Wrong, "table %s: key %s is %+v, want %+v", name, key, got[key], w)
		}
	}
	if len(got) != len(want) {
		v.note(&v.Wrong, "table %s has %d keys, want %d", name, len(got), len(want))
	}
}

// awaitProcessed waits until the application has committed a position behind the
// last record of both inputs, and its tables have it. The input first: what is
// behind the positions in it has reached the repartition topic.
func (k *killer) awaitProcessed(ctx context.Context, app *weir.App) error {
	for _, topic := range []string{k.names.In, k.names.middle()} {
		if k.outbox() {
			if err := k.awaitCommitted(ctx, topic); err != nil {
				return err
			}
			continue
		}
		records, err := k.c.readDecided(ctx, topic)
		if err != nil {
			return err
		}
		if err := awaitPosition(ctx, app, topic, records); err != nil {
			return err
		}
	}
	return nil
}

// awaitPosition waits until an application that has all tasks is behind the last
// record of each partition of a topic. The offsets of the group do not tell: they
// are there before the application knows of its commit, and its tables have it.
func awaitPosition(ctx context.Context, app *weir.App, topic string, records [][]*kgo.Record) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		at, behind := app.Position()[topic], ""
		for p, list := range records {
			if len(list) == 0 {
				continue
			}
			if last := list[len(list)-1].Offset; at[int32(p)] <= last {
				behind = fmt.Sprintf("%s[%d] is at %d, its last record is %d", topic, p, at[int32(p)], last)
			}
		}
		if behind == "" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not everything is processed: %s: %w", behind, context.Cause(ctx))
		}
	}
}

// records reads what the run has left behind.
func (k *killer) records(ctx context.Context) (*chainRecords, error) {
	r := &chainRecords{inputs: k.inputs, changelogs: map[string][][]*kgo.Record{}}
	var errs []error
	read := func(topic string) [][]*kgo.Record {
		records, err := k.c.readDecided(ctx, topic)
		errs = append(errs, err)
		return records
	}
	r.middle, r.out, r.ticks, r.dead = read(k.names.middle()), read(k.names.Out), read(k.names.Ticks), read(k.names.Dead)
	if k.outbox() {
		var err error
		r.changelogs, err = k.views(ctx)
		return r, errors.Join(append(errs, err)...)
	}
	for _, s := range []string{"first", "second", "ticks"} {
		r.changelogs[s] = read(k.names.changelog(s))
	}
	return r, errors.Join(errs...)
}

// newRand returns the generator of a plan, and logs its seed.
func newRand(t *testing.T) *rand.Rand {
	seed := *killSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("plan from -killseed=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// keepIn lets the Redis with a URL keep the state, until the test ends.
func (k *killer) keepIn(ctx context.Context, redis string) {
	k.redis = redis + "&namespace=" + k.names.App
	k.t.Cleanup(func() {
		if err := k.forget(context.WithoutCancel(ctx)); err != nil {
			k.t.Errorf("remove the state from Redis: %v", err)
		}
	})
}

// testKills is the kill test: whatever dies, each output is there once, in
// order, and the stores are what a single-threaded run makes of the inputs
// (C2, C3, B1).
func testKills(t *testing.T, c *cluster, kills int, limit time.Duration, redis string) {
	ctx := testContext(t, limit)
	rng := newRand(t)
	k := newKiller(t, ctx, c, rng)
	if redis != "" {
		k.keepIn(ctx, redis)
	}
	began := time.Now()
	v := k.run(ctx, planKills(rng, kills))
	t.Logf("%d kills and %d pauses in %v: %v", k.kills, k.pauses, time.Since(began).Round(time.Second), v)
	if !v.clean() {
		t.Error("not exactly once")
	}
}

// testKillsAtLeastOnce is the negative control of the kill test: without
// transactions, a kill between the flush of the outputs and the commit of the
// offsets repeats outputs, and the checker says so. It loses none.
func testKillsAtLeastOnce(t *testing.T, c *cluster) {
	ctx := testContext(t, 10*time.Minute)
	rng := newRand(t)
	k := newKiller(t, ctx, c, rng)
	k.atLeast = true
	var acts []act
	for range 3 {
		acts = append(acts, act{point: string(worker.BeforeCommit), nth: 2 + rng.Int64N(8)})
	}
	v := k.run(ctx, acts)
	t.Logf("%d kills: %v", k.kills, v)
	if v.Duplicates == 0 {
		t.Error("the checker found no duplicate although offsets were not committed with the outputs")
	}
	if v.Losses > 0 {
		t.Error("at least once has lost something")
	}
}

// TestKillRedisEmbedded: with the state in Redis, which also loses all of it while
// an instance uses it.
func TestKillRedisEmbedded(t *testing.T) {
	t.Parallel()
	c := embeddedCluster(t, 1, true)
	testKills(t, c, *killCount, 2*time.Hour, c.redisBeside(t)+"?check=off")
}

func TestKillEmbedded(t *testing.T) {
	t.Parallel()
	testKills(t, embeddedCluster(t, 1, true), *killCount, 2*time.Hour, "")
}

func TestKillAtLeastOnceEmbedded(t *testing.T) {
	t.Parallel()
	testKillsAtLeastOnce(t, embeddedCluster(t, 1, true))
}
