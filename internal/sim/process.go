package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"time"

	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/simkafka"
	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
)

// condition is where a process is.
type condition int

const (
	absent condition = iota
	running
	stopped
	dead
	failed
)

func (c condition) String() string {
	return [...]string{"absent", "running", "stopped", "dead", "failed"}[c]
}

// process is one instance of the application, with one worker. It is a coroutine,
// so that it can be left in the middle of what it does, and abandoned there.
type process struct {
	w     *World
	index int
	id    assign.ProcessID
	cond  condition
	err   error

	client *simkafka.Client
	own    *Store // its own, nil where all share one
	worker *worker.Worker
	wake   time.Time
	stop   bool // it is to end cleanly

	// For controls: the client of the group, and what tokens stand for.
	member worker.Member
	told   map[state.Token]state.Token

	yield  func(bool) bool
	next   func() (bool, bool)
	end    func()
	parked bool // in the middle of something
	arms   []Step
}

var (
	errAsleep = errors.New("asleep")
	errDead   = errors.New("the process is dead")
)

func newProcess(w *World, index int) *process {
	p := &process{w: w, index: index}
	binary.BigEndian.PutUint64(p.id[:], uint64(index)+1)
	if w.setup.Store == Kept || w.setup.Store == Lagging {
		p.own = newStore(w, false, memstore.New())
	}
	return p
}

func (p *process) name() string { return fmt.Sprintf("instance-%d", p.index) }

// start begins another life.
func (p *process) start() {
	w := p.w
	store := w.shared
	switch {
	case w.setup.Store == Lost:
		p.own = newStore(w, false, memstore.New())
		store = p.own
	case store == nil:
		store = p.own
	}
	if w.control.Flaws != (Flaws{}) {
		store.flaws = w.control.Flaws
	}
	p.client = w.kafka.Client(simkafka.ClientConfig{Name: p.name(), SessionTimeout: w.setup.SessionTimeout, TransactionTimeout: w.setup.TransactionTimeout})
	way := &conn{p: p, s: store}
	if raw := store.db.raw; raw != nil {
		b, err := raw.Another()
		w.must(err)
		way.own = b
		w.opened = append(w.opened, b)
	}
	var backend state.Backend = way
	if w.setup.Outbox {
		backend = &outboxConn{way}
	}
	var broker worker.Broker = p.client
	if f := w.control.Store; f != nil {
		backend = f(p, backend)
	}
	if f := w.control.Broker; f != nil {
		broker = f(p, broker)
	}
	cfg := w.runtime.Worker(p.id, w.res, w.tasks, backend, w.setup.TombstoneLife).(worker.Config)
	cfg.Broker, cfg.Clock, cfg.Nonce, cfg.Lineage = broker, w, w.nonce, w.lineage
	cfg.CommitInterval, cfg.FlushInterval, cfg.PurgeInterval = w.setup.CommitInterval, w.setup.FlushInterval, w.setup.PurgeInterval
	cfg.Changed = nil
	cfg.Point = func(at worker.Point) { p.boundary(Await(at)) }
	cfg.Sleep = p.sleep
	if w.setup.SmallCache {
		cfg.CacheBytes = 1
	}
	if w.logger != nil {
		cfg.Logger = w.logger.With("instance", p.index)
	}
	if f := w.control.Config; f != nil {
		f(&cfg)
	}
	p.worker = worker.New(cfg)
	p.cond, p.err, p.wake, p.stop, p.parked, p.arms = running, nil, time.Time{}, false, false, nil
	p.next, p.end = iter.Pull(p.live)
}

// live is a life of the process. It yields false between two rounds of its worker
// and true in the middle of one.
func (p *process) live(yield func(bool) bool) {
	p.yield = yield
	defer func() {
		r := recover()
		if r != nil && !p.client.Dead() {
			p.w.violate("instance %d panics: %v\n%s", p.index, r, debug.Stack())
			p.client.Crash()
		}
	}()
	for {
		err := p.worker.Tick(ctx)
		switch {
		case p.client.Dead():
			return
		case err != nil && !errors.Is(err, errAsleep):
			p.fail(err)
			return
		}
		if p.stop {
			err := p.worker.Close(true)
			if p.client.Dead() {
				return
			}
			p.cond = stopped
			if err != nil {
				p.cond, p.err = failed, err
			}
			return
		}
		if !yield(false) {
			return
		}
	}
}

// fail ends the process as an App ends when its worker fails.
func (p *process) fail(err error) {
	err = errors.Join(err, p.worker.Close(false))
	if p.client.Dead() {
		return
	}
	p.cond, p.err = failed, err
}

func (p *process) sleep(_ context.Context, d time.Duration) error {
	p.wake = p.w.now.Add(d)
	return errAsleep
}

// goOn lets the process go on to the end of its round, or to where it is parked.
func (p *process) goOn() {
	parked, alive := p.next()
	p.parked = alive && parked
	if alive && !p.client.Dead() {
		return
	}
	p.over()
}

// over notes how a life ended.
func (p *process) over() {
	w := p.w
	if p.client.Dead() {
		p.cond = dead
		if p.own != nil && w.setup.Store == Lagging {
			p.own.forget(nil, w.rng.IntN(4))
		}
	} else if p.own != nil {
		p.own.db.past = nil // synced
	}
	p.client.Crash() // what is left of it says nothing any more
	p.parked = false
	w.note("instance %d is %s", p.index, p.cond)
	if p.cond == failed && !w.expected(p) {
		w.violate("instance %d fails: %v", p.index, p.err)
	}
}

// kill ends the process from outside.
func (p *process) kill() {
	if p.cond != running {
		return
	}
	p.client.Crash()
	p.end()
	p.over()
}

// die ends it from inside.
func (p *process) die() {
	p.client.Crash()
	panic("killed")
}

// park leaves the process in the middle of what it does.
func (p *process) park(freeze bool) {
	if freeze {
		p.client.Pause()
	}
	if !p.yield(true) || p.client.Dead() {
		p.die()
	}
}

// await is called at each await point and says what happens there.
func (p *process) await(at Await) (Fault, int) {
	if p.client.Dead() {
		return noFault, 0
	}
	w := p.w
	do, n := noFault, 0
	for i := range p.arms {
		a := &p.arms[i]
		if a.At != "" && a.At != at || !fits(at, a.Do) {
			continue
		}
		if a.Nth--; a.Nth <= 0 {
			do, n = a.Do, a.N
			p.arms = append(p.arms[:i], p.arms[i+1:]...)
			break
		}
	}
	if do == noFault && w.noise > 0 && w.rng.IntN(1000) < w.noise {
		if f := []Fault{Refuse, LoseReply, Late}[w.rng.IntN(3)]; fits(at, f) {
			do = f
		}
	}
	if do == noFault {
		return noFault, 0
	}
	w.cover.add(at, do, 1)
	w.note("instance %d at %q: %s", p.index, at, do)
	switch do {
	case Damaged:
		w.damages++
	case Die:
		p.die()
	case Freeze, Stall:
		p.park(do == Freeze)
		return noFault, 0
	}
	return do, n
}

// boundary is an await point of the protocol.
func (p *process) boundary(at Await) {
	if do, n := p.await(at); do == Forget {
		if s := p.store(); s != nil {
			s.forget(nil, n)
		}
	}
}

func (p *process) store() *Store {
	if p.w.shared != nil {
		return p.w.shared
	}
	return p.own
}

// spoil is what happens to a call to the broker.
func (p *process) spoil(c simkafka.Call) simkafka.Fault {
	at := Await(c.Op)
	if at == Await(simkafka.DeleteRecords) {
		p.w.oracle.observe() // before they are gone
	}
	do, _ := p.await(at)
	if p.w.kafkaDown && !isLocal(at) {
		return simkafka.Fault{Effect: simkafka.Dropped}
	}
	switch do {
	case DieAfter:
		return simkafka.Fault{Crash: true}
	case Refuse:
		return simkafka.Fault{Effect: simkafka.Dropped}
	case LoseReply:
		return simkafka.Fault{Err: simkafka.ErrConnection}
	case Late:
		return simkafka.Fault{Effect: simkafka.Late}
	}
	return simkafka.Fault{}
}

// states lists the tasks of the process.
func (p *process) states() []worker.TaskState {
	if p.cond != running || p.parked {
		return nil
	}
	return p.worker.Tasks()
}

func (w *World) nonce() uint64 { return w.rng.Uint64() }

func (w *World) lineage() (l stamp.Lineage) {
	binary.BigEndian.PutUint64(l[:], w.rng.Uint64())
	binary.BigEndian.PutUint64(l[8:], w.rng.Uint64())
	return l
}
