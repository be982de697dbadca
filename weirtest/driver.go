package weirtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/bridge"
	"github.com/weirstreams/weir/internal/simkafka"
	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/metric"
	"github.com/weirstreams/weir/state"
)

// Options say how a topology is run in a test. The zero value of a field is its
// default.
type Options struct {
	// Config is the configuration of the application. ApplicationID defaults to
	// "test", and FlushInterval to none: a store has each batch as soon as it is
	// committed. Not used are Brokers, ClientOptions and Dir; Workers, which is
	// one for each instance; ReplaceFailedWorkers, see [Instance.Start]; and
	// Metrics, see [Driver.Metrics]. Store is that of all instances, if
	// Options.Store is nil.
	Config weir.Config
	// Partitions are the partition counts of the user's topics. Topics that the
	// topology reads or writes have one partition by default. Others that are
	// named here are made too, for records that choose their topic.
	Partitions map[string]int32
	// TopicConfigs are the settings of the user's topics, by name. Known are
	// cleanup.policy, retention.ms, delete.retention.ms and max.message.bytes.
	TopicConfigs map[string]map[string]string
	// Instances is the number of processes that run the application. Defaults
	// to 1.
	Instances int
	// Store returns the store of an instance. It is called each time that the
	// instance is started: a new store is one that was lost with the process, and
	// the same one again survived it. Defaults to memory that is lost. See [Keep]
	// and [Disk]. One memstore.NewShared for all instances, with the guarantee
	// AtLeastOnce, runs an application as on Redis without a changelog. The driver
	// closes all stores at the end of the test.
	Store func(instance int) state.Backend
	// Start is where the clock begins. Defaults to 2024-01-01 00:00 UTC.
	Start time.Time
	// CommitOnClock makes instances wait for CommitInterval before they commit,
	// as in production: what was processed is committed by Advance. By default
	// they commit when they have nothing else to do.
	CommitOnClock bool
	// AllowFailure keeps the test going when an instance fails: see
	// [Instance.Err].
	AllowFailure bool

	random *rand.Rand // of the simulated cluster, for tests of this package
}

// defaultStart is where the clock begins.
var defaultStart = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// defaultTombstoneLife is Kafka's delete.retention.ms.
const defaultTombstoneLife = 24 * time.Hour

// Driver runs one application.
type Driver struct {
	t       testing.TB
	opts    Options
	runtime *bridge.Runtime
	res     *topology.Resolved
	tasks   []assign.Task
	life    time.Duration
	clock   *clock
	sim     *simkafka.Cluster
	hook    func(simkafka.Call) simkafka.Fault // of tests of this package
	random  *rand.Rand
	metrics *sink

	instances []*Instance
	stores    []state.Backend // all that were ever used
	crashAt   Point
	batches   int              // depth of Batch
	settling  bool             // a call from inside of a callback does not settle
	processed uint64           // steps that processed records
	turns     map[string]int32 // next partition for null keys, by topic
}

// clock is the time of everybody.
type clock struct{ now time.Time }

// Now implements worker.Clock.
func (c *clock) Now() time.Time { return c.now }

// New starts a topology and waits until all its tasks run.
func New(t testing.TB, topology *weir.Topology, opts Options) *Driver {
	t.Helper()
	d := prepare(t, topology, opts)
	for range max(opts.Instances, 1) {
		d.add()
	}
	d.settle()
	return d
}

// prepare is New without instances.
func prepare(t testing.TB, topology *weir.Topology, opts Options) *Driver {
	t.Helper()
	d, err := open(topology, opts)
	if err != nil {
		t.Fatalf("weirtest: %v", err)
	}
	d.t = t
	t.Cleanup(d.close)
	return d
}

// Check returns the error with which App.Run would refuse to start the topology
// with the options: a bad configuration, or topics that do not fit.
func Check(topology *weir.Topology, opts Options) error {
	_, err := open(topology, opts)
	return err
}

// open lays an application out and makes its topics.
func open(t *weir.Topology, opts Options) (*Driver, error) {
	if opts.Config.ApplicationID == "" {
		opts.Config.ApplicationID = "test"
	}
	m := newSink()
	opts.Config.Metrics = m
	rt, err := bridge.NewRuntime(t, opts.Config)
	if err != nil {
		return nil, err
	}
	d := &Driver{opts: opts, runtime: rt, clock: &clock{opts.Start}, random: rand.New(rand.NewPCG(1, 2)), metrics: m, life: defaultTombstoneLife,
		turns: map[string]int32{}}
	if d.clock.now.IsZero() {
		d.clock.now = defaultStart
	}
	if d.opts.Store == nil {
		d.opts.Store = lostMemory
		if s := opts.Config.Store; s != nil {
			d.opts.Store = func(int) state.Backend { return s }
		}
	}
	d.sim = simkafka.New(simkafka.Config{Clock: d.clock, Random: opts.random, Hook: func(c simkafka.Call) simkafka.Fault {
		if d.hook == nil {
			return simkafka.Fault{}
		}
		return d.hook(c)
	}})
	return d, d.topics()
}

// topics makes the user's topics and the internal ones.
func (d *Driver) topics() error {
	read, written := d.runtime.Graph.UserTopics()
	if dl := d.runtime.DeadLetterTopic; dl != "" {
		written = append(written, dl)
	}
	counts := map[string]int32{}
	for _, name := range append(read, written...) {
		counts[name] = 1
	}
	maps.Copy(counts, d.opts.Partitions)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		errs = append(errs, d.sim.CreateTopic(name, counts[name], d.opts.TopicConfigs[name]))
	}
	for name := range d.opts.TopicConfigs {
		if _, ok := counts[name]; !ok {
			errs = append(errs, fmt.Errorf("TopicConfigs names the topic %q, which the topology does not use: correct the name, or add it to Partitions", name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	res, err := d.runtime.Graph.ResolvePartitions(d.runtime.Application, counts)
	if err != nil {
		return fmt.Errorf("%w: %w", weir.ErrTopics, err)
	}
	for _, t := range append(slices.Clone(res.Repartitions), res.Changelogs...) {
		config := maps.Clone(d.runtime.TopicConfigs)
		if config == nil {
			config = map[string]string{}
		}
		maps.Copy(config, t.Config)
		errs = append(errs, d.sim.CreateTopic(t.Name, t.Partitions, config))
		if ms, err := strconv.ParseInt(config["delete.retention.ms"], 10, 64); err == nil && t.Store != "" {
			d.life = min(d.life, time.Duration(ms)*time.Millisecond)
		}
	}
	d.res, d.tasks = res, d.runtime.Tasks(res)
	return errors.Join(errs...)
}

// close ends what still runs, at the end of the test.
func (d *Driver) close() {
	for _, in := range d.instances {
		in.discard()
	}
	for _, s := range d.stores {
		if err := s.Close(); err != nil {
			d.t.Errorf("weirtest: close the store: %v", err)
		}
	}
}

// Now is the time of the virtual clock.
func (d *Driver) Now() time.Time { return d.clock.now }

// Instance returns an instance by its number, from 0.
func (d *Driver) Instance(i int) *Instance {
	d.t.Helper()
	if i < 0 || i >= len(d.instances) {
		d.t.Fatalf("weirtest: there is no instance %d: there are %d, numbered from 0", i, len(d.instances))
	}
	return d.instances[i]
}

// AddInstance starts another instance and waits for the rebalance.
func (d *Driver) AddInstance() *Instance {
	d.t.Helper()
	in := d.add()
	d.settle()
	return in
}

// Restart stops all instances cleanly, one after another, and starts them again.
// Those that do not run are started too.
func (d *Driver) Restart() {
	d.t.Helper()
	for _, in := range d.instances {
		if in.state == Running {
			in.stop()
		}
	}
	d.start()
}

// Crash kills all instances that run, as SIGKILL does: nothing is flushed,
// committed or told to anybody. Start, Restart or Instance.Start start them
// again.
func (d *Driver) Crash() {
	d.t.Helper()
	for _, in := range d.instances {
		if in.state == Running || in.state == Paused {
			in.crash()
		}
	}
}

// Start starts all instances that do not run.
func (d *Driver) Start() {
	d.t.Helper()
	d.start()
}

func (d *Driver) start() {
	d.t.Helper()
	for _, in := range d.instances {
		if in.state != Running && in.state != Paused {
			in.start()
		}
	}
	d.settle()
}

// CrashAt kills the first instance that gets to a point of the commit protocol.
// It stays dead until it is started.
func (d *Driver) CrashAt(p Point) { d.crashAt = p }

// Batch calls f, which sends records, and then processes all of them at a time:
// in one transaction, as far as they are for one instance and no bound is
// reached.
func (d *Driver) Batch(f func()) {
	d.t.Helper()
	d.batches++
	f()
	d.batches--
	d.settle()
}

// Compact runs the log cleaner over the compacted topics, changelogs among them.
func (d *Driver) Compact() { d.sim.Compact() }

// Bounds against topologies and tests that never come to rest.
const (
	maxRounds    = 100_000          // of all instances in one Settle
	maxRecovery  = 10 * time.Minute // of virtual time until all tasks run
	recoveryStep = 100 * time.Millisecond
)

// Settle runs all instances until nothing moves any more: what can be processed
// is processed and committed. Every call that changes something does that by
// itself. Time stands still, unless tasks have nobody who runs them: then it goes
// on until they have, at most ten minutes.
func (d *Driver) Settle() {
	d.t.Helper()
	d.settle()
}

func (d *Driver) settle() {
	d.t.Helper()
	if d.batches > 0 || d.settling {
		return
	}
	d.settling = true
	defer func() { d.settling = false }()
	begin := d.clock.now
	for range maxRounds {
		switch {
		case d.pass():
		case !d.opts.CommitOnClock && d.commit():
		case !d.recovers():
			return
		case d.clock.now.Sub(begin) > maxRecovery:
			d.t.Fatalf("weirtest: not all tasks run after %v of virtual time:\n%s", maxRecovery, d.describe())
		default:
			d.clock.now = d.next(d.clock.now.Add(maxRecovery))
		}
	}
	d.t.Fatalf("weirtest: the application does not come to rest in %d rounds: does a record feed itself?\n%s", maxRounds, d.describe())
}

// pass gives each instance a round and says whether anything happened.
func (d *Driver) pass() bool {
	d.t.Helper()
	version, processed := d.sim.Version(), d.processed
	for _, in := range d.instances {
		if in.state == Running && !in.wake.After(d.clock.now) {
			in.tick()
		}
	}
	return version != d.sim.Version() || processed != d.processed
}

// commit makes instances commit that hold something back, as they do when the
// group waits for a rebalance.
func (d *Driver) commit() bool {
	d.t.Helper()
	version := d.sim.Version()
	for _, in := range d.instances {
		if in.state == Running && in.client.Holding() {
			in.worker.RebalanceWaiting()
			in.tick()
		}
	}
	return version != d.sim.Version()
}

// recovers says whether tasks wait for an instance that could run them.
func (d *Driver) recovers() bool {
	alive := false
	run := map[string]bool{}
	for _, in := range d.instances {
		alive = alive || in.state == Running
		for _, id := range in.runs() {
			run[id] = true
		}
	}
	return alive && len(run) < len(d.tasks)
}

// next is when something is due, at the latest at end.
func (d *Driver) next(end time.Time) time.Time {
	now := d.clock.now
	at := func(t time.Time) {
		if t.After(now) && t.Before(end) {
			end = t
		}
	}
	at(d.sim.NextTimeout())
	for _, in := range d.instances {
		if in.state != Running {
			continue
		}
		due := in.worker.Due()
		if !due.IsZero() && !due.After(now) {
			due = now.Add(recoveryStep) // it waits for something else
		}
		at(due)
	}
	return end
}

// Advance moves the clock on. What comes due on the way happens at its time:
// wall-clock punctuations, commits and flushes by interval, the end of idling,
// and timeouts of sessions and transactions.
func (d *Driver) Advance(by time.Duration) {
	d.t.Helper()
	if d.batches > 0 {
		d.t.Fatal("weirtest: Advance inside of Batch: the clock stands still there")
	}
	end := d.clock.now.Add(by)
	d.settle()
	for d.clock.now.Before(end) {
		d.clock.now = d.next(end)
		d.settle()
	}
}

// describe lists instances and tasks, for errors.
func (d *Driver) describe() string {
	var b strings.Builder
	g := d.sim.Group(d.runtime.Application)
	fmt.Fprintf(&b, "group: %s, generation %d, members %v\n", g.State, g.Generation, g.Members)
	for _, in := range d.instances {
		fmt.Fprintf(&b, "instance %d: %s", in.index, in.state)
		if in.state == Running {
			for _, s := range in.worker.Tasks() {
				fmt.Fprintf(&b, ", task %s %s", s.ID, s.State)
			}
		}
		if in.err != nil {
			fmt.Fprintf(&b, ": %v", in.err)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (d *Driver) nonce() uint64 { return d.random.Uint64() }

func (d *Driver) lineage() (l stamp.Lineage) {
	binary.BigEndian.PutUint64(l[:], d.random.Uint64())
	binary.BigEndian.PutUint64(l[8:], d.random.Uint64())
	return l
}

// Metrics returns what the application reports. Unlike in production, series
// stay when their task or worker is gone.
func (d *Driver) Metrics() *metric.Memory { return d.metrics.Memory }

// Dropped returns how many records were dropped for a reason, such as
// "null-key", over all steps.
func (d *Driver) Dropped(reason string) int {
	return int(d.metrics.Sum(metric.RecordsDropped, metric.L(metric.LabelReason, reason)))
}

// sink is a metrics sink that keeps its series.
type sink struct{ *metric.Memory }

func newSink() *sink { return &sink{&metric.Memory{}} }

// Counter returns a handle beside one that is never closed.
func (s *sink) Counter(name string, labels ...metric.Label) metric.Counter {
	s.Memory.Counter(name, labels...)
	return s.Memory.Counter(name, labels...)
}

// Gauge returns a handle beside one that is never closed.
func (s *sink) Gauge(name string, labels ...metric.Label) metric.Gauge {
	s.Memory.Gauge(name, labels...)
	return s.Memory.Gauge(name, labels...)
}

// Histogram returns a handle beside one that is never closed.
func (s *sink) Histogram(name string, labels ...metric.Label) metric.Histogram {
	s.Memory.Histogram(name, labels...)
	return s.Memory.Histogram(name, labels...)
}

var (
	_ metric.Sink  = (*sink)(nil)
	_ worker.Clock = (*clock)(nil)
)
