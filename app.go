package weir

import (
	"context"
	crand "crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/bridge"
	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/metric"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/pebblestore"
)

// State is where an App is in its life.
type State int

// An App goes from Created through Starting and Restoring to Running, back to
// Restoring whenever tasks have to be restored or move from one member of the
// group to another, and ends Closed after a clean stop or Failed with an error.
// While it is Running every task has a member that runs it, here or elsewhere.
const (
	Created State = iota
	Starting
	Restoring
	Running
	Closing
	Closed
	Failed
)

// String returns the name of the state.
func (s State) String() string {
	if s < Created || s > Failed {
		return fmt.Sprintf("State(%d)", int(s))
	}
	return [...]string{"Created", "Starting", "Restoring", "Running", "Closing", "Closed", "Failed"}[s]
}

// RestoreProgress tells how far the restore of one store of a task is.
type RestoreProgress struct {
	Task      string // as in "0_3"
	Store     string
	Records   int64 // replayed so far
	Bytes     int64 // of keys and values
	Start     int64 // changelog offsets: where the replay began, is, and ends
	Position  int64
	End       int64
	Rate      float64       // records per second since the start
	Remaining time.Duration // estimate; 0 when unknown or done
	Done      bool
}

// App runs a topology. Its methods are safe for concurrent use.
type App struct {
	topology *Topology
	config   Config

	mu struct {
		sync.Mutex
		state   State
		workers []*worker.Worker
		store   state.Backend
		tasks   []int32            // number of tasks by subtopology
		spread  map[string]int32   // number of tasks that a key may be in, by store
		counts  map[string]int32   // partitions of the topics read
		changed chan struct{}      // closed and replaced at each change of state
		cancel  context.CancelFunc // of Run
		work    context.Context    // of the workers
		done    chan struct{}      // closed when Run has returned
		news    []State            // that OnState has not heard of
		telling bool               // somebody calls OnState
	}
	gauges map[State]metric.Gauge
	// refreshing makes looking at the workers and setting the state that follows
	// from it one step.
	refreshing sync.Mutex
}

// NewApp checks the configuration. Nothing starts before Run.
func NewApp(t *Topology, c Config) (*App, error) {
	if t == nil {
		return nil, fmt.Errorf("%w: the topology is nil: pass the result of Builder.Build", ErrConfig)
	}
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := t.graph.Check(c.ApplicationID); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	a := &App{topology: t, config: c, gauges: map[State]metric.Gauge{}}
	a.mu.changed = make(chan struct{})
	a.mu.done = make(chan struct{})
	return a, nil
}

// State returns the current state.
func (a *App) State() State {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.state
}

// WaitFor blocks until the App is in the given state, has ended in another, or
// ctx ends.
func (a *App) WaitFor(ctx context.Context, s State) error {
	for {
		a.mu.Lock()
		now, changed := a.mu.state, a.mu.changed
		a.mu.Unlock()
		switch {
		case now == s:
			return nil
		case now == Closed || now == Failed:
			return fmt.Errorf("%w: its state is %v", ErrNotRunning, now)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// set moves to a state. The caller holds mu, and calls tell when it does not any
// more.
func (a *App) set(s State) {
	if a.mu.state == s {
		return
	}
	from := a.mu.state
	a.mu.state = s
	close(a.mu.changed)
	a.mu.changed = make(chan struct{})
	a.config.Logger.Info("state changed", "from", from.String(), "to", s.String())
	if a.config.Metrics != nil {
		for st := Created; st <= Failed; st++ {
			g := a.gauges[st]
			if g == nil {
				g = a.config.Metrics.Gauge(metric.AppState, metric.L(metric.LabelState, st.String()))
				a.gauges[st] = g
			}
			v := 0.0
			if st == s {
				v = 1
			}
			g.Set(v)
		}
	}
	if a.config.OnState != nil {
		a.mu.news = append(a.mu.news, s)
	}
}

// tell calls OnState for the changes that it has not heard of, in order and one
// at a time. No lock is held, so that it may ask the App for anything. Of several
// callers one does it for all.
func (a *App) tell() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.telling {
		return
	}
	a.mu.telling = true
	defer func() { a.mu.telling = false }()
	for len(a.mu.news) > 0 {
		s := a.mu.news[0]
		a.mu.news = a.mu.news[1:]
		a.mu.Unlock()
		a.guard("OnState", func() { a.config.OnState(s) })
		a.mu.Lock()
	}
}

// guard calls a listener. One that panics is a mistake of the user's, and no
// reason to end the process.
func (a *App) guard(name string, f func()) {
	defer func() {
		if v := recover(); v != nil {
			a.config.Logger.Error("listener panicked", "listener", name, "panic", v, "stack", string(debug.Stack()))
		}
	}()
	f()
}

// Run processes records until ctx ends, Close is called, or something fails
// that no retry mends. It commits what is processed, leaves the group and
// returns nil after a clean stop. A broker or a store that does not answer holds
// the stop up for some 20 seconds at most; Run returns an error then, and what
// was not committed will be processed again. An App runs once.
func (a *App) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.mu.Lock()
	if a.mu.state != Created {
		a.mu.Unlock()
		return ErrAlreadyRun
	}
	a.mu.cancel = cancel
	a.set(Starting)
	a.mu.Unlock()
	defer close(a.mu.done)
	a.tell()

	err := a.run(ctx)
	defer a.tell()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.workers, a.mu.store = nil, nil
	if err != nil {
		a.config.Logger.Error("application failed", "error", err)
		a.set(Failed)
		return err
	}
	a.set(Closed)
	return nil
}

// Close stops Run and waits for it. It is idempotent, and closes an App that
// never ran.
func (a *App) Close() error {
	a.mu.Lock()
	cancel, done := a.mu.cancel, a.mu.done
	if cancel == nil {
		if a.mu.state == Created {
			a.set(Closed)
		}
		a.mu.Unlock()
		a.tell()
		return nil
	}
	a.mu.Unlock()
	cancel()
	<-done
	return nil
}

func (a *App) run(ctx context.Context) (err error) {
	c := &a.config
	admin, closeAdmin, err := newTopicAdmin(c)
	if err != nil {
		return err
	}
	res, err := admin.prepare(ctx, a.topology.graph)
	var life time.Duration
	if err == nil {
		life, err = admin.tombstoneLife(ctx, res)
	}
	closeAdmin()
	var dir *processDir
	if err == nil {
		dir, err = openProcessDir(ctx, c.Dir, c.ApplicationID)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil // stopped while it waited for topics or for the folder
		}
		return err
	}
	defer dir.close()

	store := c.Store
	if store == nil && hasStores(a.topology.graph) {
		db, err := pebblestore.Open(filepath.Join(dir.path, "state"), pebblestore.Options{
			MaxMemory: c.MaxStateMemory / 2, Logger: c.Logger,
			OnAlarm: func(err error) { c.Logger.Error("store alarm", "error", err) },
		})
		if err != nil {
			return public(err)
		}
		defer func() { err = errors.Join(err, public(db.Close())) }()
		store = db
	}
	tasks := taskTable(c.ApplicationID, a.topology.graph, res)
	workers := max(min(c.Workers, len(tasks)), 1)

	a.mu.Lock()
	if u, ok := store.(state.Unordered); ok {
		u.KeepUnordered(a.config.ApplicationID, a.topology.unordered())
	}
	a.mu.store, a.mu.tasks, a.mu.spread, a.mu.counts = store, res.Tasks, res.Stores, res.Partitions
	a.mu.workers = make([]*worker.Worker, workers)
	for i := range workers {
		a.mu.workers[i] = worker.New(a.workerConfig(i, workers, dir.id, res, tasks, store, life))
	}
	list := slices.Clone(a.mu.workers)
	a.set(Restoring)
	a.mu.Unlock()
	a.tell()

	wctx, stop := context.WithCancel(ctx)
	defer stop()
	a.mu.Lock()
	a.mu.work = wctx
	a.mu.Unlock()
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for i, w := range list {
		wg.Go(func() {
			errs[i] = a.runWorker(wctx, i, w, func() *worker.Worker {
				return worker.New(a.workerConfig(i, workers, dir.id, res, tasks, store, life))
			})
			if errs[i] != nil {
				stop() // one failed worker stops the App
			}
		})
	}
	if store != nil && life > 0 {
		wg.Go(func() { a.cleanViews(wctx, store, life/2) })
	}
	<-wctx.Done()
	a.mu.Lock()
	a.set(Closing)
	a.mu.Unlock()
	a.tell()
	wg.Wait()
	for i := range errs {
		errs[i] = public(errs[i])
	}
	return errors.Join(errs...)
}

// Pauses before a failed worker is replaced.
const (
	replaceFirst = time.Second
	replaceMax   = time.Minute
)

func (a *App) runWorker(ctx context.Context, i int, w *worker.Worker, again func() *worker.Worker) error {
	for pause := replaceFirst; ; pause = min(2*pause, replaceMax) {
		err := w.Run(ctx)
		if err == nil || !a.config.ReplaceFailedWorkers || ctx.Err() != nil {
			return err
		}
		a.config.Logger.Error("worker failed; it is replaced", "worker", i, "error", err, "pause", pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		w = again()
		a.mu.Lock()
		a.mu.workers[i] = w
		a.mu.Unlock()
	}
}

// fingerprint is what the members of a group have to agree about: the topology
// and the partition counts that it was started with.
func fingerprint(t *topology.Topology, res *topology.Resolved) (f assign.Topology) {
	h := sha256.New()
	h.Write(t.Fingerprint[:])
	for _, topic := range slices.Sorted(maps.Keys(res.Partitions)) {
		fmt.Fprintf(h, "%s\x00%d\x00", topic, res.Partitions[topic])
	}
	copy(f[:], h.Sum(nil))
	return f
}

// Cleanup of views whose task has moved away for good.
const cleanInterval = 10 * time.Minute

// cleanViews drops local views that no task of this process uses and that are
// too old to be brought up to date by a replay: they could only be rebuilt.
func (a *App) cleanViews(ctx context.Context, store state.Backend, age time.Duration) {
	tick := time.NewTicker(cleanInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var old []state.ID
		err := store.Views(ctx, a.config.ApplicationID, func(id state.ID, raw state.Token) bool {
			if t, err := stamp.DecodeToken(raw); err == nil && time.Since(time.UnixMilli(t.Wall)) > age {
				old = append(old, id)
			}
			return true
		})
		for _, id := range old {
			if err == nil && !a.holds(id.Task) {
				a.config.Logger.Info("an old view that no task uses is dropped", "task", id.Task)
				err = store.Drop(ctx, id)
			}
		}
		if err != nil && ctx.Err() == nil {
			a.config.Logger.Warn("old views could not be dropped", "error", err)
		}
	}
}

// holds says whether a task is on this instance, in whatever phase.
func (a *App) holds(id string) bool {
	a.mu.Lock()
	workers := slices.Clone(a.mu.workers)
	a.mu.Unlock()
	for _, w := range workers {
		for _, t := range w.Tasks() {
			if t.ID.String() == id {
				return true
			}
		}
	}
	return false
}

func hasStores(t *topology.Topology) bool {
	return slices.ContainsFunc(t.Subtopologies, func(s *topology.Subtopology) bool { return len(s.Stores) > 0 })
}

// taskTable lists all tasks of the application.
func taskTable(app string, t *topology.Topology, res *topology.Resolved) []assign.Task {
	var tasks []assign.Task
	for _, s := range t.Subtopologies {
		for p := range res.Tasks[s.ID] {
			task := assign.Task{ID: topology.TaskID{Subtopology: s.ID, Partition: p}, Stateful: len(s.Stores) > 0}
			for _, src := range s.Sources {
				if topic := src.Topic(app); p < res.Partitions[topic] {
					task.Partitions = append(task.Partitions, assign.TopicPartition{Topic: topic, Partition: p})
				}
			}
			tasks = append(tasks, task)
		}
	}
	return tasks
}

func (a *App) workerConfig(i, workers int, process assign.ProcessID, res *topology.Resolved, tasks []assign.Task, store state.Backend, life time.Duration) worker.Config {
	c := &a.config
	sources := map[string]worker.Source{}
	for _, s := range a.topology.graph.Subtopologies {
		for _, src := range s.Sources {
			sources[src.Topic(c.ApplicationID)] = worker.Source{Reset: src.Reset, Repartition: src.Repartition}
		}
	}
	opts := c.ClientOptions
	if len(c.Brokers) > 0 {
		opts = append([]kgo.Opt{kgo.SeedBrokers(c.Brokers...)}, opts...)
	}
	share := func(n int64) int { return int(max(n/int64(workers), 1)) }
	txnID := fmt.Sprintf("%s-%s-%d", c.ApplicationID, process, i)
	if c.Incarnation != "" {
		txnID += "-" + c.Incarnation
	}
	cfg := worker.Config{
		Application: c.ApplicationID, Index: i, Plans: a.topology.plans(c.ApplicationID), Tasks: tasks, Sources: sources,
		ExactlyOnce: c.Guarantee == ExactlyOnce, TransactionalID: txnID, Process: process, Address: c.AdvertisedAddress,
		Fingerprint:    fingerprint(a.topology.graph, res),
		CommitInterval: c.CommitInterval, FlushInterval: c.FlushInterval, PurgeInterval: c.PurgeInterval,
		MaxTaskIdle: c.MaxTaskIdle, MaxRecordTime: c.MaxRecordTime,
		MaxBufferedRecords: c.MaxBufferedRecords, MaxBufferedBytes: share(c.MaxBufferedBytes), MaxBatchBytes: share(c.MaxBatchBytes),
		MaxUnflushedBytes: share(c.MaxUnflushedBytes), MaxRecordBytes: c.MaxRecordBytes, CacheBytes: share(c.MaxStateMemory / 2),
		MaxViewAge: life / 2, DeadLetterTopic: c.DeadLetterTopic, OnError: c.onError(),
		Broker: &worker.Kafka{Options: opts, SessionTimeout: c.SessionTimeout, HeartbeatInterval: c.HeartbeatInterval,
			RebalanceTimeout: c.RebalanceTimeout, TransactionTimeout: c.TransactionTimeout,
			MaxBufferedOutputs: max(maxBufferedOutputs, worker.OutboxBuffer(store, c.Guarantee == ExactlyOnce)), MaxFetchBytes: maxFetchBytes, MaxRecordBytes: c.MaxRecordBytes, Logger: c.Logger},
		Store: store, Clock: wallClock{}, Nonce: randomNonce, Lineage: randomLineage, Logger: c.Logger,
		Metrics: worker.NewMetrics(c.Metrics, i), Changed: a.refresh, Point: crashPoint,
	}
	if c.OnRestore != nil {
		cfg.Restore = func(p worker.RestoreProgress) {
			a.guard("OnRestore", func() {
				c.OnRestore(RestoreProgress{Task: p.Task.String(), Store: p.Store, Records: p.Records, Bytes: p.Bytes,
					Start: p.Start, Position: p.Position, End: p.End, Rate: p.Rate, Remaining: p.Remaining, Done: p.Done})
			})
		}
	}
	return cfg
}

// Bounds of one worker's client.
const (
	maxBufferedOutputs = 1 << 13 // records between Produce and their acknowledgement
	maxFetchBytes      = 1 << 20 // one fetch response
)

// crashPoint is told where the workers are. Tests of this module set it to
// kill the process there.
var crashPoint func(worker.Point)

func init() {
	bridge.CrashPoint = func(f func(point string)) {
		crashPoint = nil
		if f != nil {
			crashPoint = func(p worker.Point) { f(string(p)) }
		}
	}
}

// refresh works out whether the App is running or restoring.
func (a *App) refresh() {
	a.refreshing.Lock()
	defer a.tell()
	defer a.refreshing.Unlock()
	a.mu.Lock()
	workers := slices.Clone(a.mu.workers)
	a.mu.Unlock()
	ready := true
	for _, w := range workers {
		if w == nil || !w.Ready() {
			ready = false
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.state != Restoring && a.mu.state != Running || a.mu.work.Err() != nil {
		return // a worker that stops is not one that restores
	}
	if ready {
		a.set(Running)
	} else {
		a.set(Restoring)
	}
}

type wallClock struct{}

func (wallClock) Now() time.Time { return time.Now() }

func randomNonce() uint64 {
	var b [8]byte
	crand.Read(b[:])
	return binary.BigEndian.Uint64(b[:])
}

func randomLineage() (l stamp.Lineage) {
	crand.Read(l[:])
	return l
}
