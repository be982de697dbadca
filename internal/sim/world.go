package sim

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/bridge"
	"github.com/weirstreams/weir/internal/simkafka"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
)

// maxInstances bounds the instances of a plan.
const maxInstances = 3

// World is one run of a plan.
type World struct {
	plan    *Plan
	setup   Setup
	control Control
	shop    *workload
	now     time.Time
	rng     *rand.Rand
	chance  *rand.PCG
	kafka   *simkafka.Cluster
	runtime *bridge.Runtime
	res     *topology.Resolved
	tasks   []assign.Task
	ids     []state.ID // of the views, by partition
	procs   []*process
	shared  *Store // nil where each has its own
	opened  []state.Backend
	oracle  *oracle
	cover   Coverage
	err     error
	logger  *slog.Logger
	store   func() Raw
	trace   func(string)

	storeDown, kafkaDown bool
	downSince            time.Time
	noise                int
	sent                 int
	stranger             *simkafka.Transaction
	foreign              map[state.ID]bool
	kept                 map[worker.TopicPartition]worker.Committed // offsets that a tool has changed
	damages              int                                        // of the store
	numbers              numbers                                    // for a control
	applied              map[state.ID]bool                          // views with an outbox that have had batches
	forgot               bool                                       // the store has forgotten something
	broken               bool                                       // something that only a person can mend
	calm                 bool                                       // all faults have ended
}

// Result is how a run went.
type Result struct {
	Err      error // the first thing that did not hold, nil if all did
	Coverage Coverage
	Outputs  int
	Ended    time.Duration // virtual
}

// Player plays plans, one after another. It belongs to one goroutine.
type Player struct {
	shop *workload
	// Control is the design under test; the zero value is the real one.
	Control Control
	// Trace gets what happens, line by line. Nil keeps quiet.
	Trace func(string)
	// Store returns an empty backend for a shared store. Nil is memory.
	Store func() Raw
	// Logger gets what the workers log.
	Logger *slog.Logger
}

// NewPlayer returns a player.
func NewPlayer() (*Player, error) {
	shop, err := newWorkload()
	if err != nil {
		return nil, err
	}
	return &Player{shop: shop}, nil
}

// begin is when all plans begin.
var begin = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// Play runs a plan.
func (pl *Player) Play(p *Plan) (res Result) {
	w := &World{plan: p, setup: p.Setup, control: pl.Control, shop: pl.shop, now: begin, chance: rand.NewPCG(p.Seed, 1),
		cover: Coverage{}, trace: pl.Trace, logger: pl.Logger, store: pl.Store, foreign: map[state.ID]bool{}, applied: map[state.ID]bool{}}
	w.rng = rand.New(w.chance)
	defer func() {
		if r := recover(); r != nil {
			w.violate("the simulation panics: %v\n%s", r, debug.Stack())
		}
		for _, p := range w.procs {
			if p.cond == running {
				p.client.Crash()
				p.end()
			}
		}
		for _, b := range w.opened {
			w.must(b.Close())
		}
		res = Result{Err: w.err, Coverage: w.cover, Ended: w.now.Sub(begin)}
		if w.oracle != nil {
			res.Outputs = w.oracle.outputs
		}
	}()
	if err := w.open(); err != nil {
		w.violate("the world cannot begin: %v", err)
		return
	}
	for i, s := range p.Steps {
		w.reseed(s.ID)
		w.note("step %d: %s", i+1, s)
		w.exec(s)
		if w.trace != nil {
			w.trace("        " + w.describe())
		}
		w.oracle.check()
		if w.err != nil {
			return
		}
	}
	w.reseed(1 << 60)
	w.finish()
	return
}

// reseed makes the chance of a step independent of the steps before it.
func (w *World) reseed(id uint64) { w.chance.Seed(w.plan.Seed, id) }

// Now implements worker.Clock.
func (w *World) Now() time.Time { return w.now }

// heartbeatAnswer is how long an instance that was frozen does not know what the
// group did meanwhile.
const heartbeatAnswer = 20 * time.Millisecond

func (w *World) open() error {
	s := w.setup
	w.shop.timers, w.shop.salt, w.shop.spend = s.Timers, 0, func() { w.now = w.now.Add(s.Slow) }
	cfg := weir.Config{ApplicationID: application, SessionTimeout: s.SessionTimeout, TransactionTimeout: s.TransactionTimeout,
		TopicConfigs: map[string]string{"delete.retention.ms": strconv.FormatInt(s.TombstoneLife.Milliseconds(), 10)}}
	if s.AtLeastOnce {
		cfg.Guarantee = weir.AtLeastOnce
	}
	rt := w.shop.runtimes[runtimeKey(&cfg)]
	if rt == nil {
		var err error
		if rt, err = bridge.NewRuntime(w.shop.topology, cfg); err != nil {
			return err
		}
		w.shop.runtimes[runtimeKey(&cfg)] = rt
	}
	w.runtime = rt
	var err error
	w.kafka = simkafka.New(simkafka.Config{Clock: w, HeartbeatAnswer: heartbeatAnswer, Random: w.rng, Hook: func(c simkafka.Call) simkafka.Fault {
		for _, p := range w.procs {
			if p.client != nil && p.name() == c.Client {
				return p.spoil(c)
			}
		}
		return simkafka.Fault{}
	}})
	counts := map[string]int32{inName: s.Partitions, outName: s.Partitions}
	for _, n := range []string{inName, outName} {
		if err := w.kafka.CreateTopic(n, s.Partitions, nil); err != nil {
			return err
		}
	}
	if w.res, err = rt.Graph.ResolvePartitions(rt.Application, counts); err != nil {
		return err
	}
	for _, t := range append(slices.Clone(w.res.Repartitions), w.res.Changelogs...) {
		config := map[string]string{}
		for k, v := range t.Config {
			config[k] = v
		}
		for k, v := range rt.TopicConfigs {
			config[k] = v
		}
		if err := w.kafka.CreateTopic(t.Name, t.Partitions, config); err != nil {
			return err
		}
	}
	w.tasks = rt.Tasks(w.res)
	for _, t := range w.tasks {
		if t.Stateful || s.Outbox {
			w.ids = append(w.ids, state.ID{Application: application, Task: t.ID.String()})
		}
	}
	if s.Store == Shared {
		var b state.Backend = memstore.New()
		if w.store != nil {
			b = w.store()
		}
		w.shared = newStore(w, true, b)
	}
	w.oracle = newOracle(w)
	for i := range maxInstances {
		w.procs = append(w.procs, newProcess(w, i))
	}
	for _, p := range w.procs[:s.Instances] {
		p.start()
	}
	return nil
}

// runtimeKey tells configurations apart. To make an application of one costs more
// than the rest of the beginning.
func runtimeKey(c *weir.Config) string {
	return fmt.Sprint(c.SessionTimeout, c.TransactionTimeout, c.TopicConfigs, c.Guarantee)
}

// violate notes what does not hold. The first counts.
func (w *World) violate(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	w.note("NOT RIGHT: %v", err)
	if w.err == nil {
		w.err = err
	}
}

func (w *World) must(err error) {
	if err != nil {
		w.violate("the simulation itself fails: %v", err)
	}
}

func (w *World) note(format string, args ...any) {
	if w.trace != nil {
		w.trace(fmt.Sprintf("%9.3f ", w.now.Sub(begin).Seconds()) + fmt.Sprintf(format, args...))
	}
}

// describe lists instances and their tasks.
func (w *World) describe() string {
	var b strings.Builder
	for _, p := range w.procs {
		if p.cond == absent {
			continue
		}
		fmt.Fprintf(&b, "[%d %s", p.index, p.cond)
		if p.parked {
			b.WriteString(", stands still")
		}
		for _, t := range p.states() {
			fmt.Fprintf(&b, ", %s %s", t.ID, t.State)
		}
		b.WriteString("] ")
	}
	g := w.kafka.Group(application)
	fmt.Fprintf(&b, "group %s, generation %d", g.State, g.Generation)
	return b.String()
}

// expected says whether an instance may have failed as it did: because a fault
// said so, because something is broken that only a person can mend, or because it
// could not commit at its end.
func (w *World) expected(p *process) bool {
	var fatal *worker.FatalError
	var refused *assign.Error
	switch err := p.err; {
	case errors.Is(err, state.ErrFull):
		return true
	case w.setup.Outbox && w.outboxExpected(err):
		return true
	case errors.Is(err, state.ErrCorrupt):
		return w.damages > tolerated && !w.calm
	case errors.Is(err, worker.ErrLineage), errors.As(err, &fatal), errors.As(err, &refused):
		return w.broken || len(w.foreign) > 0
	}
	return p.stop
}

// round gives each instance that can a round of its worker.
func (w *World) round() {
	if w.kafkaDown && w.now.Sub(w.downSince) > longestOutage {
		w.kafkaDown = false
	}
	for _, p := range w.procs {
		if p.cond == running && !p.parked && !p.wake.After(w.now) {
			p.goOn()
		}
	}
}

// tolerated is how many times a worker rebuilds a damaged view within some minutes.
const tolerated = 3

// longestOutage is how long Kafka may be away before workers give up, and less.
const longestOutage = 4 * time.Minute

// wait lets time go by.
func (w *World) wait(d time.Duration) {
	end := w.now.Add(d)
	for w.now.Before(end) && w.err == nil {
		version := w.kafka.Version()
		w.round()
		if w.kafka.Version() != version {
			w.now = w.now.Add(min(5*time.Millisecond, end.Sub(w.now)))
			continue
		}
		w.now = w.due(end)
	}
}

// due is when something happens by itself, at the latest at end.
func (w *World) due(end time.Time) time.Time {
	at := func(t time.Time) {
		if t.After(w.now) && t.Before(end) {
			end = t
		}
	}
	at(w.kafka.NextTimeout())
	for _, p := range w.procs {
		if p.cond != running || p.parked {
			continue
		}
		if p.wake.After(w.now) {
			at(p.wake)
			continue
		}
		due := p.worker.Due()
		if !due.IsZero() && !due.After(w.now) {
			due = w.now.Add(100 * time.Millisecond)
		}
		at(due)
	}
	return end
}

// input names a partition of the input.
func input(p int32) worker.TopicPartition { return worker.TopicPartition{Topic: inName, Partition: p} }

// send sends the records of a step: "k1p k0z".
func (w *World) send(what string) {
	for _, f := range strings.Fields(what) {
		key, op := f[:len(f)-1], f[len(f)-1]
		w.sent++
		value := fmt.Sprintf("%s.%d%c", key, w.sent, op)
		n, _ := strconv.Atoi(key[1:])
		w.oracle.sent(key, value)
		_, err := w.kafka.Append(input(int32(n)%w.setup.Partitions), task.Record{Timestamp: w.now.UnixMilli(), Key: []byte("u"), Value: []byte(value)})
		w.must(err)
	}
}

// of returns the process of a step.
func (w *World) of(s Step) *process { return w.procs[s.Who%len(w.procs)] }

// view returns the view of a step.
func (w *World) view(s Step) state.ID { return w.ids[s.Who%len(w.ids)] }

func (w *World) exec(s Step) {
	store := w.shared
	switch s.Kind {
	case Send:
		w.send(s.What)
	case Work:
		for range s.N {
			w.round()
			w.now = w.now.Add(s.D)
		}
	case Wait:
		w.wait(s.D)
	case Arm:
		if p := w.of(s); p.cond == running {
			p.arms = append(p.arms, s)
		}
	case Go:
		w.resume(w.of(s))
	case Kill:
		w.of(s).kill()
	case Stop:
		w.stop(w.of(s))
	case Start:
		if p := w.of(s); p.cond != running {
			p.start()
		}
	case Wipe:
		if p := w.of(s); p.cond != running && p.own != nil {
			p.own.empty()
		}
	case Compact:
		w.oracle.observe()
		w.kafka.Compact()
	case Deliver:
		w.deliver(s.N)
	case Markers:
		w.kafka.HoldMarkers(s.On)
	case Mark:
		if s.What == offsetMarkers {
			w.note("%d markers of offsets", w.kafka.MarkOffsets())
			return
		}
		if l := w.kafka.Markers(); len(l) > 0 {
			w.note("marker: %s", l[s.N%len(l)])
			w.kafka.Mark(s.N % len(l))
		}
	case Down:
		switch {
		case s.What == "store":
			w.storeDown = s.On
		case s.On && !w.kafkaDown:
			w.kafkaDown, w.downSince = true, w.now
		case !s.On:
			w.kafkaDown = false
		}
	case Noise:
		w.noise = s.N
	case Elect:
		w.must(w.kafka.ElectLeader(worker.TopicPartition{Topic: byKeyName, Partition: int32(s.Who) % w.setup.Partitions}))
	case Stranger:
		w.estrange(int32(s.Who)%w.setup.Partitions, s.On)
	case Rewind, Expire, Grow, Recreate:
		w.meddle(s)
	default:
		if store == nil {
			return
		}
		switch s.Kind {
		case Redo:
			if n := len(store.late); n > 0 {
				store.redo(s.N % n)
			}
		case Regress:
			switch {
			case s.On:
				store.forgetClaims(w.view(s), uint64(s.N))
			case s.Who < 0:
				store.forget(nil, s.N)
			default:
				id := w.view(s)
				store.forget(&id, s.N)
			}
		case Flush:
			store.empty()
		case LoseView:
			store.lose(w.view(s))
		case LosePart:
			w.damages++
			store.damage(w.view(s))
		case Foreign:
			store.usurp(w.view(s))
		case Database:
			store.show(s.On)
		}
	}
}

// resume lets a process go on that stands still.
func (w *World) resume(p *process) {
	if p.cond == running && p.parked {
		p.client.Resume()
		p.goOn()
	}
}

// stop ends a process cleanly, as far as it gets.
func (w *World) stop(p *process) {
	if p.cond == running && !p.parked {
		p.stop, p.wake = true, time.Time{}
		p.goOn()
	}
}

func (w *World) deliver(i int) {
	if l := w.kafka.LateCalls(); len(l) > 0 {
		i %= len(l)
		w.note("late: %v: %v", l[i], w.kafka.Deliver(i))
	}
}

// estrange opens a transaction of another program on the input, or aborts it.
func (w *World) estrange(p int32, open bool) {
	switch {
	case open && w.stranger == nil:
		w.stranger = w.kafka.Transaction("stranger", 30*time.Second)
		w.must(w.stranger.Append(input(p), task.Record{Timestamp: w.now.UnixMilli(), Key: []byte("u"), Value: []byte("k0.0p")}))
	case !open && w.stranger != nil:
		_ = w.stranger.Abort() // it may have timed out
		w.stranger = nil
	}
}

// meddle changes things behind the application's back.
func (w *World) meddle(s Step) {
	w.oracle.observe()
	if (s.Kind == Rewind || s.Kind == Expire) && slices.ContainsFunc(w.procs, func(p *process) bool { return p.cond == running }) {
		return // not while somebody may commit something new
	}
	tp := worker.TopicPartition{Topic: byKeyName, Partition: int32(s.Who) % w.setup.Partitions}
	keep := func() {
		if w.kept == nil {
			w.kept = w.kafka.Committed(application)
		}
	}
	switch s.Kind {
	case Rewind:
		c, ok := w.kafka.Committed(application)[tp]
		if !ok || w.setup.Store != Shared || // who has lost his view takes an offset without a stamp for that of a program to take over
			len(w.kafka.Group(application).Members) > 0 {
			return // the tool refuses
		}
		keep()
		w.kafka.SetOffsets(application, worker.OffsetCommit{TopicPartition: tp, Offset: max(c.Offset-int64(s.N), 0), LeaderEpoch: -1})
	case Expire:
		old := w.kafka.Committed(application)
		if w.kafka.ExpireGroup(application) == nil && w.kept == nil {
			w.kept = old
		}
		if len(old) == 0 {
			w.kept = nil
			return
		}
	case Grow:
		w.must(w.kafka.AddPartitions(inName, w.setup.Partitions+1))
	case Recreate:
		config := w.kafka.TopicConfig(byKeyName)
		w.kafka.DeleteTopic(byKeyName)
		w.must(w.kafka.CreateTopic(byKeyName, w.setup.Partitions, config))
	}
	w.broken = true
}
