// Package worker runs stream tasks: one worker is one goroutine that owns one
// member of the consumer group, with its transactional producer, and the tasks
// that the group assigned to it. Workers share nothing.
//
// A worker is a single-threaded event machine. Tick does one round: poll,
// claim, restore, process, commit, apply. Everything that it needs from the
// outside comes through the seams Broker, state.Backend and Clock, so that a
// simulation can drive the same code. This is the only package that drives the
// Kafka client.
package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/state"
)

// Config is what a worker is told by its application. All fields without a
// remark are required.
type Config struct {
	Application string
	Index       int               // of the worker in its process
	Plans       []*task.Plan      // by subtopology
	Tasks       []assign.Task     // all tasks of the application
	Sources     map[string]Source // by topic

	ExactlyOnce     bool
	TransactionalID string
	Process         assign.ProcessID
	Address         string // advertised for queries; may be empty
	Fingerprint     assign.Topology

	CommitInterval     time.Duration
	FlushInterval      time.Duration // how long a committed batch may wait for its APPLY
	PurgeInterval      time.Duration // between deletions of processed repartition records
	MaxTaskIdle        time.Duration
	MaxRecordTime      time.Duration // a single record that takes longer is an error
	MaxBufferedRecords int           // of this worker
	MaxBufferedBytes   int
	MaxBatchBytes      int // of writes and outputs of one batch, all tasks together
	MaxUnflushedBytes  int
	MaxRecordBytes     int
	CacheBytes         int // of clean cached entries, all tasks together
	// MaxViewAge is how old a view may be to be brought up to date by a
	// replay: half the time that the changelogs keep tombstones. With 0 a view
	// that is behind is always rebuilt.
	MaxViewAge time.Duration

	DeadLetterTopic string
	OnError         func(*task.Error) task.Decision // nil stops

	Broker  Broker
	Store   state.Backend // may be nil when no subtopology has stores
	Clock   Clock
	Nonce   func() uint64
	Lineage func() stamp.Lineage
	Logger  *slog.Logger
	Metrics *Metrics              // may be nil
	Restore func(RestoreProgress) // may be nil
	Changed func()                // may be nil: the set or state of tasks changed
	Point   func(point Point)     // may be nil: tells tests where the worker is
	// Sleep waits between two tries to build a client. Tick returns its error as
	// it is and has done nothing then, so that a simulation may come back later.
	// Nil waits by the machine's clock.
	Sleep func(ctx context.Context, d time.Duration) error
}

// Source is what a worker knows of an input topic.
type Source struct {
	Reset       topology.ResetPolicy
	Repartition bool
}

// Point names a boundary of the commit protocol, for tests that crash there.
type Point string

// The points, in the order of the protocol.
const (
	AfterProcess   Point = "after process"
	AfterFlush     Point = "after flush"
	BeforeCommit   Point = "before commit"
	AfterCommit    Point = "after commit"
	BeforeApply    Point = "before apply"
	AfterApply     Point = "after apply"
	DuringRestore  Point = "during restore"
	DuringRevoke   Point = "during revoke"
	AfterClaim     Point = "after claim"
	DuringResend   Point = "during resend"
	AfterFirstSeek Point = "after first seek"
)

// phase is where a task is between assignment and revocation.
type phase int

const (
	claiming phase = iota // assigned, nothing done yet
	restoring
	running
	fenced    // refused by the backend; waits for the group's word
	resending // claimed; the outputs that former owners have left are on their way
)

func (p phase) String() string {
	return [...]string{"claiming", "restoring", "running", "fenced", "resending"}[p]
}

// runner is a task of this worker with what surrounds it.
type runner struct {
	spec    assign.Task
	plan    *task.Plan
	present []bool
	phase   phase

	t       *task.Task
	view    state.View
	token   state.Token
	stored  state.Token // as the last claim has found it
	decoded stamp.Token
	stamp   stamp.Stamp
	force   bool // the start positions are not committed yet
	blank   bool // the group has no offset of the task, so no transaction can have committed to its changelogs
	restore *restore

	committed []int64     // by input: position of the last commit, -1 unknown
	fetchNext []int64     // by input: next offset expected from the broker
	gapSince  []time.Time // by input: since when others wait for records that do not come
	heard     []int64     // by input: Worker.silent when records came last
	stalled   []int64     // by input: fetchNext at the last look of watch, -1 before
	box       box         // of a task with an outbox
	seq       uint64      // of the last commit
	nonce     uint64
	asOf      int64     // ms: nothing was committed after seq at this time
	unflushed time.Time // since when a committed batch waits for its APPLY
	retryAt   time.Time // a claim that failed for a passing reason
	claims    int       // failed claims in a row
	away      int       // tries in a row that found the store unavailable
}

// partitions are the inputs of the task.
func (r *runner) partitions() []TopicPartition {
	tps := make([]TopicPartition, len(r.spec.Partitions))
	for i, p := range r.spec.Partitions {
		tps[i] = TopicPartition{p.Topic, p.Partition}
	}
	return tps
}

// slot says which input of which task a partition is.
type slot struct {
	task  topology.TaskID
	input int
}

// Worker is the event machine. Tick and Close belong to one goroutine; Read,
// Tasks and the Listener methods say themselves who may call them.
type Worker struct {
	cfg    Config
	log    *slog.Logger
	proto  protocol
	member Member
	reader Reader
	unread []Fetched // by the restores, of the last poll of the reader
	slots  map[TopicPartition]slot
	specs  map[topology.TaskID]assign.Task
	facts  map[string]TopicFacts

	// mu guards the tasks and what they hold against queries of other
	// goroutines. The worker holds it while it changes them, and not while it
	// waits for the broker.
	mu struct {
		sync.Mutex
		tasks map[topology.TaskID]*runner
	}
	order []*runner // the tasks by id; only the worker's goroutine and its callbacks

	assigned     []TopicPartition // by the group, not claimed yet
	revoked      bool             // partitions went since the last transaction
	inTxn        bool
	work         context.Context // of everything but polling: the lifetime of Run
	dirtyAt      time.Time       // since when there is something to commit
	progress     bool            // the last round ended with more to do
	limit        int             // of the next poll
	wait         time.Duration
	paused       map[TopicPartition]bool
	holdUntil    time.Time // nothing is processed before
	lagAt        time.Time // when lags are asked for again
	silent       int64     // polls that brought no record
	watchAt      time.Time // when silent inputs are looked at again
	lagging      bool      // a task waits for records that the broker has
	purgeAt      time.Time
	stepSize     int
	slow         string // the batch in which a record took longer than MaxRecordTime
	corrupted    map[topology.TaskID]corruption
	rebuilds     int // of the client, in a row without success
	rebuildAt    time.Time
	rebuildSince time.Time
	refusedSince time.Time   // by the group's leader, as a duplicate
	waiting      atomic.Bool // the group waits for AllowRebalance
	joined       atomic.Bool // the group has assigned, be it nothing
	settled      atomic.Bool // and no task is on its way from one member to another
	fresh        bool        // an assignment came and was not looked at yet
	followUp     bool        // and another one is to come
	batchRecords int
}

// Bounds of one round.
const (
	maxPollWait     = 100 * time.Millisecond
	quantum         = 10 * time.Millisecond // of processing between two polls
	maxStep         = 256                   // records between two looks at the clock
	lagInterval     = 50 * time.Millisecond // between questions for end offsets
	maxRebuilds     = 8                     // of the client in a row
	maxRebuildGap   = 5 * time.Second
	pollWhilePaused = 1000 // records per poll while partitions are paused
)

// New makes a worker. Nothing starts before Tick.
func New(cfg Config) *Worker {
	w := &Worker{cfg: cfg, log: cfg.Logger.With("worker", cfg.Index), slots: map[TopicPartition]slot{},
		specs: map[topology.TaskID]assign.Task{}, facts: map[string]TopicFacts{}, paused: map[TopicPartition]bool{},
		corrupted: map[topology.TaskID]corruption{}, stepSize: maxStep}
	w.mu.tasks = map[topology.TaskID]*runner{}
	w.proto = changelogFirst{w}
	if UsesOutbox(cfg.Store, cfg.ExactlyOnce) {
		w.proto = newOutboxFirst(w)
	}
	w.purgeAt = cfg.Clock.Now().Add(cfg.PurgeInterval) // a start is no reason to purge
	for _, t := range cfg.Tasks {
		w.specs[t.ID] = t
		plan := w.cfg.Plans[t.ID.Subtopology]
		for _, p := range t.Partitions {
			w.slots[TopicPartition{p.Topic, p.Partition}] = slot{t.ID, slices.Index(plan.Inputs, p.Topic)}
		}
	}
	return w
}

// Limits of a stop.
const (
	stopGrace  = 10 * time.Second // for a commit or an APPLY that is under way, and the last commit
	abortLimit = 2 * time.Second  // to abort what could not be committed; the broker does it by itself later
)

// errStopGrace ends the work of a stop that takes longer than stopGrace.
var errStopGrace = fmt.Errorf("the stop was not clean: broker or store did not answer within %v; what was not committed will be processed again", stopGrace)

// Run ticks until ctx ends or an error that the worker cannot handle, then
// closes. It returns nil after a clean stop: what was processed is committed
// and the group is left. A broker or a store that does not answer holds a stop
// up for stopGrace; then it is not clean, and has abortLimit and what a client
// needs to leave its group (seconds) to give everything back.
func (w *Worker) Run(ctx context.Context) error {
	// A commit that is cut off halfway has an unknown outcome. So a stop ends
	// the polling at once and lets the rest of the round finish.
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(stopGrace, func() { cancel(errStopGrace) }) })
	defer stop()
	w.work = work
	var err error
	for ctx.Err() == nil && err == nil {
		err = w.Tick(ctx)
	}
	switch {
	case work.Err() != nil:
		err = context.Cause(work)
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		err = nil
	}
	return errors.Join(err, w.close(work, err == nil))
}

// Tick does one round. An error means that the worker cannot go on; the caller
// closes it.
func (w *Worker) Tick(ctx context.Context) error {
	if w.member == nil {
		if err := w.join(ctx); err != nil || w.member == nil {
			return err
		}
	}
	fetched, err := w.member.Poll(ctx, w.limit, w.wait)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if w.work != nil {
		ctx = w.work
	}
	if err != nil {
		return w.trouble(ctx, fmt.Errorf("poll: %w", err))
	}
	if e := w.member.Assignment().Error; e != nil {
		return w.refused(ctx, e)
	}
	if w.joined.Load() {
		w.refusedSince = time.Time{}
	}
	if err := w.enqueue(ctx, fetched); err != nil {
		return w.trouble(ctx, err)
	}
	if w.revoked {
		// A client that saw partitions go aborts its next transaction. An
		// empty one takes that abort, before real work begins.
		w.revoked = false
		if err := w.emptyAbort(ctx); err != nil {
			return w.trouble(ctx, err)
		}
	}
	for _, round := range []func(context.Context) error{w.claim, w.restoreStep, w.watch, w.process, w.punctuate} {
		if err := round(ctx); err != nil {
			return w.trouble(ctx, err)
		}
	}
	if w.commitDue() {
		if err := w.commit(ctx); err != nil {
			return w.trouble(ctx, err)
		}
	}
	if !w.inTxn {
		if err := w.applyDue(ctx, false); err != nil {
			return w.trouble(ctx, err)
		}
		if !w.cfg.Clock.Now().Before(w.purgeAt) {
			w.purge(ctx)
		}
	}
	if w.member == nil {
		return nil
	}
	// From AllowRebalance to the return of the next Poll the tasks belong to
	// the callbacks of the group.
	w.limit, w.wait = w.pollLimit(), w.pollWait()
	if !w.inTxn && w.dirtyAt.IsZero() || w.proto.yields() {
		w.calm()
		w.waiting.Store(false)
		w.member.AllowRebalance()
	}
	return nil
}

// join builds the client.
func (w *Worker) join(ctx context.Context) error {
	if wait := w.rebuildAt.Sub(w.cfg.Clock.Now()); wait > 0 {
		if err := w.sleep(ctx, wait); err != nil {
			return err
		}
	}
	var topics []string
	for _, p := range w.cfg.Plans {
		for _, t := range p.Inputs {
			if !slices.Contains(topics, t) {
				topics = append(topics, t)
			}
		}
	}
	slices.Sort(topics)
	cfg := MemberConfig{Group: w.cfg.Application, Topics: topics, Listener: w, UserData: w.userData, Tasks: w.tasksFor}
	if w.cfg.ExactlyOnce {
		cfg.TransactionalID = w.cfg.TransactionalID
	}
	m, err := w.cfg.Broker.Join(ctx, cfg)
	if err != nil {
		return w.trouble(ctx, fmt.Errorf("join group %s: %w", w.cfg.Application, err))
	}
	facts, err := m.TopicFacts(ctx, topics)
	if err != nil {
		m.Close(ctx)
		return w.trouble(ctx, fmt.Errorf("describe topics: %w", err))
	}
	w.member, w.facts = m, facts
	w.limit, w.wait = w.cfg.MaxBufferedRecords, maxPollWait
	return nil
}

// sleep waits before the next try.
func (w *Worker) sleep(ctx context.Context, d time.Duration) error {
	if w.cfg.Sleep != nil {
		return w.cfg.Sleep(ctx, d)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// userData is what the group's leader is told about this member.
func (w *Worker) userData() assign.UserData {
	d := assign.UserData{Version: assign.Version, ProcessID: w.cfg.Process, Worker: int32(w.cfg.Index),
		Address: w.cfg.Address, Topology: w.cfg.Fingerprint, Capacity: 1}
	w.mu.Lock()
	for id := range w.mu.tasks {
		d.Owned = append(d.Owned, id)
	}
	w.mu.Unlock()
	slices.SortFunc(d.Owned, topology.TaskID.Compare)
	if w.cfg.Index == 0 {
		d.Local = w.findLocal() // one member of a process tells for all
	}
	return d
}

// localLimit bounds the look into the backend at a join.
const localLimit = 2 * time.Second

// findLocal asks the backend which tasks it has views of, so that they come
// back to this process.
func (w *Worker) findLocal() []assign.LocalTask {
	if w.cfg.Store == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), localLimit)
	defer cancel()
	var found []assign.LocalTask
	err := w.cfg.Store.Views(ctx, w.cfg.Application, func(id state.ID, tok state.Token) bool {
		tid, err := topology.ParseTaskID(id.Task)
		t, err2 := stamp.DecodeToken(tok)
		if err == nil && err2 == nil {
			var sum int64
			for _, o := range t.Changelog {
				sum += o.Next
			}
			found = append(found, assign.LocalTask{ID: tid, Position: sum})
		}
		return true
	})
	if err != nil {
		w.log.Warn("local state cannot be listed; tasks may move", "error", err)
		return nil
	}
	slices.SortFunc(found, func(a, b assign.LocalTask) int { return a.ID.Compare(b.ID) })
	return found
}

// tasksFor gives the leader the task table, unless the topics have changed
// under it.
func (w *Worker) tasksFor(counts map[string]int32) ([]assign.Task, error) {
	want := map[string]int32{}
	for tp := range w.slots {
		want[tp.Topic] = max(want[tp.Topic], tp.Partition+1)
	}
	for topic, n := range counts {
		if have := want[topic]; have != 0 && n != have {
			return nil, fmt.Errorf("topic %s has %d partitions and had %d when the application started: keys move between partitions and their state does not; restore the old topic, or migrate to a new one",
				topic, n, have)
		}
	}
	return w.cfg.Tasks, nil
}

// Assigned implements Listener. The partitions are paused until their task
// is claimed and restored.
func (w *Worker) Assigned(added []TopicPartition, followUp bool) {
	w.followUp = followUp
	w.assigned = append(w.assigned, added...)
	w.fresh = true
}

// Revoked implements Listener: it returns when the tasks are off the worker
// (G1 in docs/guarantees.md).
func (w *Worker) Revoked(gone []TopicPartition) {
	w.point(DuringRevoke)
	w.release(gone)
}

// Lost implements Listener.
func (w *Worker) Lost(gone []TopicPartition) { w.release(gone) }

// RebalanceWaiting implements Listener. Safe for any goroutine.
func (w *Worker) RebalanceWaiting() { w.waiting.Store(true) }

func (w *Worker) point(p Point) {
	if w.cfg.Point != nil {
		w.cfg.Point(p)
	}
}

func (w *Worker) changed() {
	if w.cfg.Changed != nil {
		w.cfg.Changed()
	}
}

// releaseLimit bounds what a revocation may spend on bringing the view up to
// date. What it does not manage the next owner replays.
const releaseLimit = 10 * time.Second

// release takes tasks off the worker. Nothing of them is uncommitted: a
// rebalance goes ahead only between transactions.
func (w *Worker) release(gone []TopicPartition) {
	if len(gone) == 0 {
		return
	}
	w.revoked = true
	var ids []topology.TaskID // in an order that a simulation can repeat
	for _, tp := range gone {
		if s, ok := w.slots[tp]; ok && !slices.Contains(ids, s.task) {
			ids = append(ids, s.task)
		}
		delete(w.paused, tp)
	}
	w.assigned = slices.DeleteFunc(w.assigned, func(tp TopicPartition) bool { return slices.Contains(gone, tp) })
	ctx, cancel := context.WithTimeout(context.Background(), releaseLimit)
	defer cancel()
	for _, id := range ids {
		w.drop(ctx, id)
	}
	w.changed()
}

// drop closes one task: it brings the view up to date if that is possible at
// once, and gives everything back.
func (w *Worker) drop(ctx context.Context, id topology.TaskID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.mu.tasks[id]
	if r == nil {
		return
	}
	delete(w.mu.tasks, id)
	w.order = slices.DeleteFunc(w.order, func(o *runner) bool { return o == r })
	w.closeRunner(ctx, r)
	w.share()
	w.log.Info("task released", "task", id.String())
}

func (w *Worker) closeRunner(ctx context.Context, r *runner) {
	if r.phase == running && r.t.Behind() {
		if err := w.apply(ctx, r); err != nil {
			w.log.Warn("view left behind; the next owner replays the changelog", "task", r.spec.ID.String(), "error", err)
		}
	}
	if r.restore != nil {
		r.restore.close(ctx, w, r)
	}
	if r.t != nil {
		if err := r.t.Close(); err != nil {
			w.log.Warn("processor failed to close", "task", r.spec.ID.String(), "error", err)
		}
	}
	w.cfg.Metrics.forget(r)
	if r.view != nil {
		if err := r.view.Close(); err != nil {
			w.log.Warn("view failed to close", "task", r.spec.ID.String(), "error", err)
		}
	}
	r.t, r.view, r.restore = nil, nil, nil
}

// dropAll closes all tasks. With apply false their views stay as they are.
func (w *Worker) dropAll(apply bool) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseLimit)
	defer cancel()
	if !apply {
		cancel()
	}
	for _, r := range slices.Clone(w.order) {
		w.drop(ctx, r.spec.ID)
	}
	w.assigned = nil
	clear(w.paused)
	w.changed()
}

// Close commits what is processed if clean is set, leaves the group and gives
// everything back.
func (w *Worker) Close(clean bool) error { return w.close(context.Background(), clean) }

// close is Close; what still has to be done ends with work.
func (w *Worker) close(work context.Context, clean bool) error {
	var err error
	ctx, cancel := context.WithTimeout(work, 2*releaseLimit)
	defer cancel()
	if w.member != nil {
		// The last round has allowed a rebalance, whose callbacks would meet
		// the end of the tasks here. A poll holds them back; this one does not
		// wait for anything.
		over, end := context.WithCancel(ctx)
		end()
		_, _ = w.member.Poll(over, 1, 0)
		if clean {
			err = w.commit(ctx)
			for err == nil && w.proto.yields() {
				err = w.commit(ctx) // nothing else is to be done any more
			}
			switch {
			case err != nil && work.Err() != nil:
				err = context.Cause(work)
			case err != nil:
				err = fmt.Errorf("the stop was not clean, what was not committed will be processed again: %w", err)
			}
		}
		if w.inTxn {
			w.inTxn = false
			ctx, cancel := context.WithTimeout(context.Background(), abortLimit)
			if err := w.member.Abort(ctx); err != nil {
				w.log.Info("the transaction is left to the broker, which aborts it by its timeout", "error", err)
			}
			cancel()
		}
		w.joined.Store(false)
		w.dropAll(err == nil && work.Err() == nil)
		w.member.AllowRebalance()
		w.member.Close(ctx)
		w.member = nil
	}
	if w.reader != nil {
		w.reader.Close()
		w.reader = nil
	}
	w.cfg.Metrics.close()
	return err
}

// sortedRunners keeps order by task id.
func (w *Worker) insert(r *runner) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.tasks[r.spec.ID] = r
	i, _ := slices.BinarySearchFunc(w.order, r, func(a, b *runner) int { return a.spec.ID.Compare(b.spec.ID) })
	w.order = slices.Insert(w.order, i, r)
	w.share()
}

// TaskState is where a task of this worker is.
type TaskState struct {
	ID    topology.TaskID
	State string
}

// Tasks returns the tasks of this worker by id. Safe for any goroutine.
func (w *Worker) Tasks() []TaskState {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []TaskState
	for id, r := range w.mu.tasks {
		list = append(list, TaskState{id, r.phase.String()})
	}
	slices.SortFunc(list, func(a, b TaskState) int { return cmp.Or(a.ID.Compare(b.ID)) })
	return list
}

// Ready says whether the group has given the worker its tasks, and all others
// theirs, all of the worker's run, and where they began is committed: before
// that, a new client of a task that starts at the end of its input would start
// at a later end. Safe for any goroutine.
func (w *Worker) Ready() bool {
	if !w.joined.Load() || !w.settled.Load() {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.mu.tasks {
		if r.phase != running || r.force {
			return false
		}
	}
	return true
}

// Errors of Read.
var (
	ErrNotHere   = errors.New("task is not on this worker")
	ErrRestoring = errors.New("task is not ready: its state is being restored")
)

// Read calls fn with a running task while the worker does not touch it. fn may
// use the committed readers of the task's stores only, and should be short.
// Safe for any goroutine.
func (w *Worker) Read(id topology.TaskID, fn func(*task.Task) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.mu.tasks[id]
	if r == nil {
		return ErrNotHere
	}
	if r.phase != running {
		return ErrRestoring
	}
	return fn(r.t)
}
