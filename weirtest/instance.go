package weirtest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/simkafka"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/state"
)

// Point is a boundary of the commit protocol, where an instance can be killed or
// paused.
type Point string

// The points, in the order in which a batch gets to them, and then those of a
// task that moves.
const (
	// AfterProcess: records were processed, and nothing of it was committed.
	AfterProcess = Point(worker.AfterProcess)
	// AfterFlush: outputs and changelog records are on the broker, in an open
	// transaction.
	AfterFlush = Point(worker.AfterFlush)
	// BeforeCommit: the offsets are known, and the transaction is about to end.
	BeforeCommit = Point(worker.BeforeCommit)
	// AfterCommit: the transaction is committed, and the instance has noted
	// nothing yet.
	AfterCommit = Point(worker.AfterCommit)
	// BeforeApply: the batch is committed, and the store does not have it.
	BeforeApply = Point(worker.BeforeApply)
	// AfterApply: the store has the batch.
	AfterApply = Point(worker.AfterApply)
	// AfterClaim: a task was claimed, and is restored next or runs.
	AfterClaim = Point(worker.AfterClaim)
	// DuringRestore: a part of a changelog was read.
	DuringRestore = Point(worker.DuringRestore)
	// DuringRevoke: the group takes tasks away, and they are not given up yet.
	DuringRevoke = Point(worker.DuringRevoke)
)

// State is where an instance is.
type State int

// An instance is Running from its start until it is stopped, killed or paused,
// or fails.
const (
	Running State = iota
	Stopped
	Crashed
	Paused
	Failed
)

// String returns the name of the state.
func (s State) String() string {
	if s < Running || s > Failed {
		return fmt.Sprintf("State(%d)", int(s))
	}
	return [...]string{"running", "stopped", "crashed", "paused", "failed"}[s]
}

// Instance is one process of the application, with one worker.
type Instance struct {
	d       *Driver
	index   int
	process assign.ProcessID
	state   State
	err     error
	client  *simkafka.Client
	store   state.Backend
	worker  *worker.Worker
	wake    time.Time // it sleeps until then

	crashAt, pauseAt Point
	dying            bool
	held             []string // tasks that ran when it was paused
	round            *round   // that PauseAt may leave in its middle
}

// round is a round of a worker as a coroutine.
type round struct {
	park func() bool // called in the round, to leave it; false ends it
	next func() bool // goes on with it; false when it is over
	stop func()      // ends it
	err  error
	died bool
}

// add makes and starts an instance.
func (d *Driver) add() *Instance {
	in := &Instance{d: d, index: len(d.instances)}
	binary.BigEndian.PutUint64(in.process[:], d.random.Uint64())
	binary.BigEndian.PutUint64(in.process[8:], d.random.Uint64())
	d.instances = append(d.instances, in)
	in.start()
	return in
}

// errAsleep is what Tick returns while the worker waits to try again.
var errAsleep = errors.New("asleep")

func (in *Instance) start() {
	d := in.d
	in.store = d.opts.Store(in.index)
	known := false
	for _, s := range d.stores {
		known = known || s == in.store
	}
	if !known {
		d.stores = append(d.stores, in.store)
	}
	cfg := d.runtime.Worker(in.process, d.res, d.tasks, in.store, d.life).(worker.Config)
	kafka := cfg.Broker.(*worker.Kafka)
	in.client = d.sim.Client(simkafka.ClientConfig{Name: fmt.Sprintf("instance-%d", in.index),
		SessionTimeout: kafka.SessionTimeout, RebalanceTimeout: kafka.RebalanceTimeout, TransactionTimeout: kafka.TransactionTimeout})
	cfg.Broker, cfg.Clock, cfg.Nonce, cfg.Lineage = in.client, d.clock, d.nonce, d.lineage
	cfg.FlushInterval = d.opts.Config.FlushInterval
	cfg.Changed = nil
	cfg.Point = in.point
	cfg.Sleep = func(_ context.Context, wait time.Duration) error {
		in.wake = d.clock.now.Add(wait)
		return errAsleep
	}
	in.worker = worker.New(cfg)
	in.state, in.err, in.dying, in.wake, in.held = Running, nil, false, time.Time{}, nil
}

// point is told where the worker is.
func (in *Instance) point(p worker.Point) {
	if p == worker.AfterProcess {
		in.d.processed++
	}
	at := Point(p)
	switch {
	case in.state != Running:
	case in.d.crashAt == at, in.crashAt == at:
		in.d.crashAt, in.crashAt = "", ""
		in.die()
	case in.pauseAt == at && in.round != nil:
		in.pauseAt = ""
		in.pause()
		if !in.round.park() {
			in.die()
		}
	}
}

// die ends what the process is doing, from inside.
func (in *Instance) die() {
	in.dying = true
	in.client.Crash()
	panic(fmt.Sprintf("weirtest: instance %d is killed", in.index))
}

// guard runs a piece of the worker and finds out whether the process died in it.
func (in *Instance) guard(f func() error) (err error, died bool) {
	defer func() {
		if in.dying || in.client.Dead() {
			_ = recover()
			died = true
		}
	}()
	return f(), false
}

// tick gives the worker one round.
func (in *Instance) tick() {
	in.d.t.Helper()
	tick := func() (error, bool) {
		return in.guard(func() error { return in.worker.Tick(context.Background()) })
	}
	if in.pauseAt == "" {
		in.done(tick())
		return
	}
	in.held = in.running()
	r := &round{}
	next, stop := iter.Pull(func(yield func(struct{}) bool) {
		r.park = func() bool { return yield(struct{}{}) }
		r.err, r.died = tick()
	})
	r.next = func() bool { _, paused := next(); return paused }
	r.stop = stop
	in.round = r
	in.goOn()
}

// goOn goes on with a round until it is over or paused again.
func (in *Instance) goOn() {
	in.d.t.Helper()
	r := in.round
	if r.next() {
		return
	}
	in.round = nil
	in.done(r.err, r.died)
}

// done notes how a round ended.
func (in *Instance) done(err error, died bool) {
	in.d.t.Helper()
	switch {
	case died:
		in.gone(Crashed)
	case errors.Is(err, errAsleep):
	case err != nil:
		in.fail(err)
	}
}

// fail ends the instance as App.Run does when its worker fails.
func (in *Instance) fail(err error) {
	in.d.t.Helper()
	closing, died := in.guard(func() error { return in.worker.Close(false) })
	if died {
		in.gone(Crashed)
		return
	}
	in.gone(Failed)
	in.err = in.d.runtime.Error(errors.Join(err, closing))
	if !in.d.opts.AllowFailure {
		in.d.t.Fatalf("weirtest: instance %d failed: %v", in.index, in.err)
	}
}

// gone forgets the process.
func (in *Instance) gone(s State) {
	in.state, in.worker, in.held, in.wake = s, nil, nil, time.Time{}
}

func (in *Instance) pause() {
	in.state = Paused
	in.client.Pause()
}

func (in *Instance) crash() {
	in.client.Crash()
	if r := in.round; r != nil {
		in.round, in.dying = nil, true
		r.stop()
	}
	in.gone(Crashed)
}

func (in *Instance) stop() {
	in.d.t.Helper()
	err, died := in.guard(func() error { return in.worker.Close(true) })
	if died {
		in.gone(Crashed)
		return
	}
	in.gone(Stopped)
	if err == nil {
		return
	}
	in.state, in.err = Failed, in.d.runtime.Error(err)
	if !in.d.opts.AllowFailure {
		in.d.t.Fatalf("weirtest: instance %d does not stop cleanly: %v", in.index, in.err)
	}
}

// discard ends the instance with the test.
func (in *Instance) discard() {
	switch in.state {
	case Paused:
		in.crash()
	case Running:
		in.crashAt, in.pauseAt, in.d.crashAt, in.d.hook = "", "", "", nil
		_, _ = in.guard(func() error { return in.worker.Close(false) })
	}
}

// running lists the tasks that run here.
func (in *Instance) running() []string {
	var ids []string
	for _, s := range in.worker.Tasks() {
		if s.State == "running" {
			ids = append(ids, s.ID.String())
		}
	}
	return ids
}

// runs lists the tasks that are in nobody else's care.
func (in *Instance) runs() []string {
	switch in.state {
	case Running:
		return in.running()
	case Paused:
		return in.held
	}
	return nil
}

// need ends the test unless the instance is in one of the states.
func (in *Instance) need(call string, states ...State) {
	in.d.t.Helper()
	for _, s := range states {
		if in.state == s {
			return
		}
	}
	in.d.t.Fatalf("weirtest: %s of instance %d, which is %s", call, in.index, in.state)
}

// State returns where the instance is.
func (in *Instance) State() State { return in.state }

// Err returns the error of an instance that failed, as App.Run returns it.
func (in *Instance) Err() error { return in.err }

// Tasks returns the ids of the tasks that the instance runs, in order, as in
// "0_3". A paused instance has those that it ran when it was paused.
func (in *Instance) Tasks() []string { return in.runs() }

// Start starts the instance again.
func (in *Instance) Start() {
	in.d.t.Helper()
	in.need("Start", Stopped, Crashed, Failed)
	in.start()
	in.d.settle()
}

// Stop stops the instance cleanly: it commits what is processed and leaves the
// group. Others take its tasks over.
func (in *Instance) Stop() {
	in.d.t.Helper()
	in.need("Stop", Running)
	in.stop()
	in.d.settle()
}

// Crash kills the instance, as SIGKILL does. Other instances take its tasks over
// once the session of the dead one has timed out.
func (in *Instance) Crash() {
	in.d.t.Helper()
	in.need("Crash", Running, Paused)
	in.crash()
	in.d.settle()
}

// CrashAt kills the instance when it gets to a point of the commit protocol.
func (in *Instance) CrashAt(p Point) { in.crashAt = p }

// Pause stops the instance between two rounds, as SIGSTOP does: it processes
// nothing and sends no heartbeats. The group does not notice before its session
// times out, which takes an Advance.
func (in *Instance) Pause() {
	in.d.t.Helper()
	in.need("Pause", Running)
	in.held = in.running()
	in.pause()
}

// PauseAt pauses the instance when it gets to a point of the commit protocol, in
// the middle of what it does. Not at DuringRevoke while it is stopped.
func (in *Instance) PauseAt(p Point) { in.pauseAt = p }

// Resume lets a paused instance go on where it was, whatever has happened since.
func (in *Instance) Resume() {
	in.d.t.Helper()
	in.need("Resume", Paused)
	in.state = Running
	in.client.Resume()
	if in.round != nil {
		in.goOn()
	}
	in.d.settle()
}

// DropState removes what the store of the instance has kept, as when a disk is
// lost. The instance must not run.
func (in *Instance) DropState() {
	in.d.t.Helper()
	in.need("DropState", Stopped, Crashed, Failed)
	ctx, app := context.Background(), in.d.runtime.Application
	var ids []state.ID
	err := in.store.Views(ctx, app, func(id state.ID, _ state.Token) bool {
		ids = append(ids, id)
		return true
	})
	for _, id := range ids {
		err = errors.Join(err, in.store.Drop(ctx, id))
	}
	if err != nil {
		in.d.t.Fatalf("weirtest: drop the state of instance %d: %v", in.index, err)
	}
}
