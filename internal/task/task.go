// Package task is the pure core of a stream task: it chooses the next record
// between the partitions of the task, runs it through the operators, and
// collects what came of it. It has no goroutine, clock, random source or
// client; the worker brings records and the time, and carries out the effects
// in the one order that the commit protocol allows.
package task

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/state"
)

// Config is what a task is told by its worker.
type Config struct {
	ID topology.TaskID
	// Present says for each input of the plan whether the topic has the
	// partition of this task. Nil means all of them.
	Present []bool
	// MaxTaskIdle in ms, as max.task.idle.ms in Kafka Streams: negative takes
	// what is there, 0 waits for what the broker is known to have.
	MaxTaskIdle int64
	// MaxRecordBytes bounds key, value and headers of one output.
	MaxRecordBytes int
	// CacheBytes bounds the clean entries of all stores of the task.
	CacheBytes int
	// MaxBatchBytes bounds the writes and outputs of one batch: beyond it the
	// task takes no more records until the batch is committed.
	MaxBatchBytes int
	// ReadAhead says that a read of the view costs a round trip, so that those
	// of a step are to be made in one.
	ReadAhead bool
	// Limits bound a batch that the store takes in one step with its outputs.
	// Nil has none.
	Limits *Limits
	// Mark reads the id that an output of another task carries. Ids says for each
	// input of the plan whether its records have one; repetitions are dropped
	// there. Nil has none.
	Mark func(r *Record) (Mark, bool)
	Ids  []bool
	// DeadLetterTopic is where dead letters go.
	DeadLetterTopic string
	// OnError decides about an error of any class but ClassStore. Nil stops.
	OnError func(*Error) Decision
}

// Task processes the records of one partition group with the state that
// belongs to it. It is used by one goroutine at a time.
type Task struct {
	cfg     Config
	plan    *Plan
	ctx     context.Context
	context Context
	inst    Instance
	looker  Looker // inst, if it is one

	queues   []queue // by input; absent inputs are never ready and never waited for
	inputs   []int   // queue index -> input index
	stores   []*Store
	cache    cache
	view     state.View
	token    state.Token // as the backend has it
	tok      stamp.Token // the same, decoded
	flushing stamp.Token // what tok becomes with the APPLY under way

	lineage     stamp.Lineage
	seq         uint64 // of the last committed batch
	nonce       uint64
	sealedSeq   uint64 // of the batch that waits for its commit
	sealedNonce uint64
	now         int64
	streamTime  int64
	times       []int64
	committed   clocks // stream time and times as of the last commit
	timers      []*timer
	outputs     []Output
	emitted     bool // the batch has outputs
	outputBytes int
	dirtyBytes  int
	arena       arena
	undo        undo
	undoTimes   []int64
	storeErr    error
	ahead       ahead
	force       bool // commit positions although nothing was processed
	drops       []*DropCounter
	deadLetters map[DeadLetterKey]int64

	segmentBytes int  // what the outputs of the batch take in an outbox
	units        int  // records and punctuations that the batch consists of
	cut          bool // the batch has to end: what comes next does not fit
	anew         bool // the operators are to be made anew when it has
	seen         []*seen
	marked       []*mark // by the batch
	next         *mark   // of the record being processed
	nextMark     Mark

	pendingBytes int // committed writes that the backend lacks
	flush        batchArena
	sealed       []Output
}

type clocks struct {
	stream int64
	times  []int64
}

// State is what a claimed and loaded task starts from.
type State struct {
	View    state.View // nil for a task without stores
	Token   state.Token
	Decoded stamp.Token
	// Stamp is the last committed one; its Seq is 0 for a new task.
	Stamp stamp.Stamp
	// Positions are the next offsets by input, -1 where the input is absent.
	Positions []int64
	// Force makes the next commit store the positions even if no record was
	// processed: a reset policy is applied once (first claim).
	Force bool
}

// New makes a task. ctx bounds its calls to the backend and lives as long as
// the worker. now is the wall time in ms.
func New(ctx context.Context, cfg Config, plan *Plan, st State, now int64) (*Task, error) {
	t := &Task{cfg: cfg, plan: plan, ctx: ctx, view: st.View, token: st.Token, tok: st.Decoded,
		lineage: st.Stamp.Lineage, seq: st.Stamp.Seq, nonce: st.Stamp.Nonce, now: now, force: st.Force,
		deadLetters: map[DeadLetterKey]int64{}}
	t.cache.max = cfg.CacheBytes
	for i := range plan.Inputs {
		if cfg.Present != nil && !cfg.Present[i] {
			continue
		}
		q := newQueue(st.Positions[i], -1)
		for _, in := range st.Stamp.Inputs {
			if in.Topic == plan.Inputs[i] {
				q.time, q.committedTime = in.Time, in.Time
			}
		}
		t.queues, t.inputs = append(t.queues, q), append(t.inputs, i)
	}
	for i, spec := range plan.Stores {
		s := newStore(t, i, spec)
		for _, o := range st.Stamp.Changelog {
			if o.Name == spec.Name {
				s.nextPos = o.Next
			}
		}
		t.stores = append(t.stores, s)
	}
	t.committed = clocks{stream: -1, times: make([]int64, len(plan.Times))}
	for i, name := range plan.Times {
		t.committed.times[i] = -1
		for _, tm := range st.Stamp.Times {
			if tm.Name == name {
				t.committed.times[i] = tm.Millis
			}
		}
	}
	for _, tm := range st.Stamp.Times {
		if tm.Name == "" {
			t.committed.stream = tm.Millis
		}
	}
	t.context.task = t
	for i, ids := range cfg.Ids {
		if t.seen == nil {
			t.seen = make([]*seen, len(plan.Inputs))
		}
		if ids {
			t.seen[i] = t.newSeen(plan.Inputs[i], st.Decoded.Highs)
		}
	}
	return t, t.start()
}

// start wires the operators from the committed clocks.
func (t *Task) start() (err error) {
	t.streamTime = t.committed.stream
	t.times = append(t.times[:0], t.committed.times...)
	t.timers, t.undo = t.timers[:0], undo{}
	t.context.record, t.context.node = nil, ""
	defer t.recovered(&err, ClassProcess)
	t.inst, err = t.plan.New(&t.context)
	t.looker, _ = t.inst.(Looker)
	return t.located(err, ClassProcess)
}

// SetLimits changes CacheBytes and MaxBatchBytes, when the number of tasks that
// share them changes.
func (t *Task) SetLimits(cacheBytes, maxBatchBytes int) {
	t.cache.max, t.cfg.MaxBatchBytes = cacheBytes, maxBatchBytes
}

// ID is the id of the task.
func (t *Task) ID() topology.TaskID { return t.cfg.ID }

// Plan is the plan that the task was made from.
func (t *Task) Plan() *Plan { return t.plan }

// Store returns a store by name, or nil.
func (t *Task) Store(name string) *Store { return t.context.Store(name) }

// Close releases the operators. The view stays with the caller.
func (t *Task) Close() (err error) {
	if t.inst == nil {
		return nil
	}
	inst := t.inst
	t.inst, t.looker = nil, nil
	defer t.recovered(&err, ClassProcess)
	return inst.Close()
}

// Add buffers records of an input, in offset order. Records below the
// position of the input, which a rewind may bring again, are left out.
func (t *Task) Add(input int, records ...Record) {
	q := t.queue(input)
	if q == nil {
		return
	}
	for _, r := range records {
		if r.Offset < q.next {
			continue
		}
		q.add(r)
	}
	q.skipControl()
}

// Skip moves the position of an input, behind what is buffered of it, to next:
// the records before are gone. The next commit stores that.
func (t *Task) Skip(input int, next int64) {
	t.Add(input, Record{Offset: next - 1, Control: true})
	t.force = true
}

func (t *Task) queue(input int) *queue {
	for qi, i := range t.inputs {
		if i == input {
			return &t.queues[qi]
		}
	}
	return nil
}

// SetLag says how many records the broker holds beyond those that were
// fetched of an input, -1 when that is not known.
func (t *Task) SetLag(input int, lag int64) {
	if q := t.queue(input); q != nil {
		q.lag = lag
	}
}

// Lag is what SetLag said last of an input, -1 when that is not known.
func (t *Task) Lag(input int) int64 {
	if q := t.queue(input); q != nil {
		return q.lag
	}
	return -1
}

// Buffered returns the number of records and bytes buffered of an input.
func (t *Task) Buffered(input int) (records, bytes int) {
	if q := t.queue(input); q != nil {
		return q.len(), q.bytes
	}
	return 0, 0
}

// Waiting returns the inputs that have nothing buffered while others have: the
// ones whose lag the worker should find out. It returns nil for a task with
// one input or without idling.
func (t *Task) Waiting(dst []int) []int {
	dst = dst[:0]
	if len(t.queues) < 2 || t.cfg.MaxTaskIdle < 0 {
		return dst
	}
	some := false
	for i := range t.queues {
		if t.queues[i].len() > 0 {
			some = true
		} else {
			dst = append(dst, t.inputs[i])
		}
	}
	if !some {
		return dst[:0]
	}
	return dst
}

// Effects is what came of some steps: the outputs to produce now, and how many
// records were processed. The slice is used again by the next step; the bytes
// that it points to live until the batch is committed or aborted.
type Effects struct {
	Outputs []Output
	Records int
}

// Step processes up to limit records and runs the stream-time punctuations that
// they cause. now is the wall time in ms. After an error the batch must be
// aborted.
func (t *Task) Step(now int64, limit int) (Effects, error) {
	t.begin(now)
	if err := t.restart(); err != nil {
		return t.effects(0), err
	}
	if t.cfg.ReadAhead {
		t.readAhead(limit)
	}
	n := 0
	for n < limit && !t.Full() && ready(t.queues, now, t.cfg.MaxTaskIdle) {
		qi := choose(t.queues)
		q := &t.queues[qi]
		r := &q.records[q.head]
		repeated, err := t.repeated(t.inputs[qi], r)
		if err != nil {
			return t.effects(n), err
		}
		if repeated {
			q.take()
			n++
			continue
		}
		if t.alone(r) {
			t.cut = true
			break
		}
		dead, err := t.process(t.inputs[qi], r)
		if err == errCut {
			break
		}
		if err != nil {
			return t.effects(n), err
		}
		t.taken()
		if !dead {
			q.time = max(q.time, r.Timestamp)
		}
		q.take()
		n++
		if err := t.punctuate(StreamTime, t.streamTime); err != nil {
			return t.effects(n), err
		}
		t.units++
	}
	return t.effects(n), nil
}

// Punctuate runs the wall-clock punctuations that are due. With Limits it runs one
// of them, and the batch has to have ended before.
func (t *Task) Punctuate(now int64) (Effects, error) {
	t.begin(now)
	err := t.restart()
	if err == nil {
		err = t.punctuate(WallClock, now)
	}
	return t.effects(0), err
}

// NextWallClock is when the next wall-clock punctuation or the end of an
// idling input is due, in ms; 0 when there is none.
func (t *Task) NextWallClock() int64 {
	var due int64
	at := func(ms int64) {
		if ms > 0 && (due == 0 || ms < due) {
			due = ms
		}
	}
	for _, tm := range t.timers {
		if tm.clock == WallClock {
			at(tm.due)
		}
	}
	for i := range t.queues {
		if idle := t.queues[i].idle; idle > t.now { // else nobody waits for it any more
			at(idle)
		}
	}
	return due
}

func (t *Task) effects(n int) Effects {
	t.emitted = t.emitted || len(t.outputs) > 0
	return Effects{Outputs: t.outputs, Records: n}
}

// begin starts a step: what the last one emitted was produced.
func (t *Task) begin(now int64) {
	clear(t.outputs)
	t.now, t.outputs = now, t.outputs[:0]
	t.settle()
}

// BatchBytes is what writes and outputs of the batch take so far.
func (t *Task) BatchBytes() int { return t.dirtyBytes + t.outputBytes }

// Full says that the batch reached its bound and has to be committed.
func (t *Task) Full() bool { return t.BatchBytes() >= t.cfg.MaxBatchBytes || t.nearLimits() }

// savepoint is what a failed record is undone to.
type savepoint struct {
	outputs, outputBytes, segmentBytes, dirtyBytes, timers int
	streamTime                                             int64
	arena                                                  arenaMark
}

func (t *Task) save() savepoint {
	t.undo.reset()
	t.undoTimes = append(t.undoTimes[:0], t.times...)
	return savepoint{len(t.outputs), t.outputBytes, t.segmentBytes, t.dirtyBytes, len(t.timers), t.streamTime, t.arena.mark()}
}

func (t *Task) restore(s savepoint) {
	t.undo.rollback()
	copy(t.times, t.undoTimes)
	clear(t.outputs[s.outputs:])
	t.outputs, t.outputBytes, t.segmentBytes, t.dirtyBytes, t.streamTime = t.outputs[:s.outputs], s.outputBytes, s.segmentBytes, s.dirtyBytes, s.streamTime
	clear(t.timers[s.timers:])
	t.timers = t.timers[:s.timers]
	t.arena.rewind(s.arena)
}

// process takes one record through the operators. dead says that it ended as a
// dead letter.
func (t *Task) process(input int, r *Record) (dead bool, err error) {
	sp := t.save()
	t.context.input, t.context.record, t.context.node = input, r, ""
	if r.Timestamp < 0 {
		err = t.located(Classify(ClassDecode, fmt.Errorf("the timestamp is %d; a record needs one that is not negative", r.Timestamp)), ClassDecode)
	} else {
		t.streamTime = max(t.streamTime, r.Timestamp)
		err = t.run(input, r)
	}
	if t.storeErr != nil {
		err = t.located(Classify(ClassStore, t.storeErr), ClassStore)
	}
	if err = t.fit(sp, err); err != nil && err != errCut {
		if err = t.failed(sp, err); err == nil {
			dead, err = true, t.overLimits()
		}
	}
	t.context.record = nil
	return dead, err
}

func (t *Task) run(input int, r *Record) (err error) {
	defer t.recovered(&err, ClassProcess)
	if err = t.inst.Process(input, r); err != nil {
		err = t.located(err, ClassProcess)
	}
	return err
}

func (t *Task) punctuate(clock Clock, now int64) error {
	if now < 0 {
		return nil
	}
	for i := 0; i < len(t.timers); i++ {
		tm := t.timers[i]
		if tm.clock != clock || tm.due > now {
			continue
		}
		tm.advance(now)
		sp := t.save()
		t.context.record, t.context.node = nil, tm.node
		err := t.fire(tm, now)
		if t.storeErr != nil {
			err = t.located(Classify(ClassStore, t.storeErr), ClassStore)
		}
		if err = t.fit(sp, err); err != nil {
			if err = t.failed(sp, err); err == nil {
				err = t.overLimits()
			}
			if err != nil {
				return err
			}
		}
		if clock == WallClock && t.cfg.Limits != nil {
			t.units++
			return nil
		}
	}
	return nil
}

func (t *Task) fire(tm *timer, now int64) (err error) {
	defer t.recovered(&err, ClassPunctuate)
	return t.located(tm.fn(now), ClassPunctuate)
}

// recovered turns a panic of user code into an error. It is to be deferred.
func (t *Task) recovered(err *error, class Class) {
	if v := recover(); v != nil {
		*err = t.located(&PanicError{Value: v, Stack: debug.Stack()}, class)
	}
}

// located adds to an error where it happened.
func (t *Task) located(err error, class Class) error {
	if err == nil {
		return nil
	}
	if e := (*Error)(nil); errors.As(err, &e) {
		return err
	}
	if c := (*classified)(nil); errors.As(err, &c) {
		class = c.class
	}
	e := &Error{Class: class, Task: t.cfg.ID, Node: t.context.node, Err: err}
	if r := t.context.record; r != nil {
		e.Topic, e.Partition, e.Offset = t.plan.Inputs[t.context.input], t.cfg.ID.Partition, r.Offset
	}
	return e
}

// failed asks the handler about an error and, for a dead letter, puts one in
// the place of everything that the record did.
func (t *Task) failed(sp savepoint, err error) error {
	e := (*Error)(nil)
	if !errors.As(err, &e) || e.Class == ClassStore || t.cfg.OnError == nil {
		return err
	}
	decision, panicked := t.ask(e)
	if panicked != nil {
		return errors.Join(err, panicked)
	}
	if decision != DeadLetter {
		return err
	}
	t.restore(sp)
	if dl := t.deadLetter(e); dl != nil {
		return errors.Join(err, fmt.Errorf("and its dead letter failed: %w", dl))
	}
	t.deadLetters[DeadLetterKey{e.Node, e.Class}]++
	return nil
}

// ask calls the error handler.
func (t *Task) ask(e *Error) (d Decision, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("and the error handler failed: %w", &PanicError{Value: v, Stack: debug.Stack()})
		}
	}()
	return t.cfg.OnError(e), nil
}

// storeFailed makes an error of a store sticky: the batch will abort, whatever
// user code does with it.
func (t *Task) storeFailed(s *Store, op string, err error) error {
	err = fmt.Errorf("%s in store %q: %w", op, s.Spec.Name, err)
	if t.storeErr == nil {
		t.storeErr = err
	}
	return err
}
