package weir

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
)

// Processor is a step of one's own: it sees whole records, null keys and
// tombstones among them, keeps state in stores, and is called by the clock if it
// asks for it. There is one processor per task, made by the constructor given to
// [Stream.Process], and all its methods are called from one goroutine at a time.
//
// An error or a panic of Process or of a punctuation goes to the error handler of
// the application: stop, or dead-letter the record and go on. Outputs and writes
// of a record that failed are taken back; fields of the processor are not. After
// an aborted batch the processors of the task are closed and made anew.
type Processor[K1, V1, K2, V2 any] interface {
	// Init is called once, before the first record. Stores are opened and
	// punctuations scheduled here. out is for later: nothing can be emitted
	// during Init. An error stops the task.
	Init(t *Task, out *Emitter[K2, V2]) error
	// Process takes one record.
	Process(r Record[K1, V1]) error
	// Close releases what the processor holds. Nothing can be emitted or
	// written any more.
	Close() error
}

// Lookahead is implemented by a [Processor] that can tell of a record which keys
// of its stores Process will ask for. Where the state is across a network, a
// round trip then fetches the keys of many records together, instead of one for
// each Get. It serves processors directly behind [Builder.Stream] or
// [Stream.Repartition]; records are decoded once more for it, so it costs
// something where the state is near, and there it is not called.
//
// LookAhead is called from the goroutine of Process, some time before it, for a
// record that may be called for again or never be processed here. It may guess: a
// key that is not needed costs its read, one that is missing costs a round trip.
// It must change nothing. A panic fails the next record of the processor.
type Lookahead[K, V any] interface {
	LookAhead(r Record[K, V], a *Ahead)
}

// Ahead takes the keys that a processor names; see [KeyValueStore.Ahead].
type Ahead struct {
	stores []*storeDecl
	ctx    *task.Context
	want   wanted
	misuse error
}

// ProcessorDefaults is embedded by processors that have nothing to close.
type ProcessorDefaults struct{}

// Close does nothing.
func (ProcessorDefaults) Close() error { return nil }

// Process sends the records through a processor of its own for each task, which
// newP makes: newP must return another one with each call. The stores that the
// processors open are given as well.
//
// A processor may emit under any key, so a later aggregation by key sends the
// stream through a repartition topic. A serde is lost if the type of its side
// changes. A processor that keeps state by a key that was changed before needs
// [Stream.Repartition] in front of it: records are not moved by themselves here.
func (s Stream[K, V]) Process[K2, V2 any, P Processor[K, V, K2, V2]](name string, newP func() P, stores ...StoreRef) Stream[K2, V2] {
	op := fmt.Sprintf("Process(%q)", name)
	dead := Stream[K2, V2]{b: s.b}
	if !s.readyFunc(op, newP == nil) || !s.b.take(s.b.named, "step", name, op) {
		return dead
	}
	var decls []*storeDecl
	for _, ref := range stores {
		if ref == nil || ref.decl() == nil {
			return s.b.failedStream[K2, V2](op, errors.New("one of the stores is nil"))
		}
		d := ref.decl()
		if err := errors.Join(ref.check(), s.b.checkStore(d)); err != nil {
			return s.b.failedStream[K2, V2](op, err)
		}
		if !slices.Contains(decls, d) {
			decls = append(decls, d)
		}
	}
	n := s.b.addNode(topology.Node{Name: name, Kind: topology.OperatorNode, RekeysRecords: true}, s.n)
	for _, d := range decls {
		s.b.attach(n, d)
	}
	n.wire = func(w *wiring) any { return wireProcessor[K, V, K2, V2](w, n, newP, decls) }
	step := located(op)
	s.b.checks = append(s.b.checks, func() {
		if err := checkConstructor(newP, decls); err != nil {
			s.b.failAt(step, err)
		}
	})
	return Stream[K2, V2]{b: s.b, n: n, k: keep[K2](s.k, op, madeKeyType), v: keep[V2](s.v, op, madeValue), rekeyed: true}
}

const madeKeyType = "makes keys of another type"

// checkConstructor looks at what the constructor of a processor returns.
func checkConstructor[P any](newP func() P, attached []*storeDecl) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the constructor panics: %v", v)
		}
	}()
	first, second := reflect.ValueOf(newP()), reflect.ValueOf(newP())
	if !first.IsValid() || first.Kind() == reflect.Pointer && first.IsNil() {
		return errors.New("the constructor returns nil")
	}
	if first.Kind() == reflect.Pointer {
		if first.Type().Elem().Size() > 0 && first.Pointer() == second.Pointer() {
			return errors.New("the constructor returns the same processor twice: tasks run at the same time, so each needs one of its own")
		}
		first = first.Elem()
	}
	if first.Kind() != reflect.Struct {
		return nil
	}
	var errs []error
	for _, d := range heldStores(first, nil) {
		if !slices.Contains(attached, d) {
			errs = append(errs, fmt.Errorf("the processor uses store %q, which is not attached: pass it to Process as a last argument", d.name))
		}
	}
	return errors.Join(errs...)
}

// heldStores returns the stores that the fields of a struct point to.
func heldStores(v reflect.Value, found []*storeDecl) []*storeDecl {
	for i := range v.NumField() {
		switch f := v.Field(i); {
		case f.Kind() == reflect.Struct:
			found = heldStores(f, found)
		case f.Kind() == reflect.Pointer && isKeyValueStore(f.Type().Elem()) && !f.IsNil():
			// The declaration is the first field of a store. This way it is
			// found behind fields that are not exported, too.
			found = append(found, (*storeDecl)(f.UnsafePointer()))
		}
	}
	return found
}

func isKeyValueStore(t reflect.Type) bool {
	return t.PkgPath()+"." == thisPackage && strings.HasPrefix(t.Name(), "KeyValueStore[")
}

// Task is what a processor knows of the task that it belongs to. It is valid as
// long as the processor is.
type Task struct {
	ctx    *task.Context
	name   string // of the processor
	stores []*storeDecl

	now    int64 // timestamp of the record or the punctuation, ms
	active bool  // a callback is running
	closed bool
	failed error // of the running callback
	misuse error // of a call that no callback can report; it fails the next one
}

// ID returns the id of the task, as in "0_3": subtopology and partition.
func (t *Task) ID() string { return t.ctx.Task().String() }

// Partition returns the number of the partitions that the task processes.
func (t *Task) Partition() int32 { return t.ctx.Task().Partition }

// StreamTime returns the largest timestamp that the task has processed, or the
// zero time when it has processed none.
func (t *Task) StreamTime() time.Time {
	if ms := t.ctx.StreamTime(); ms >= 0 {
		return time.UnixMilli(ms).UTC()
	}
	return time.Time{}
}

// EveryStreamTime calls f each time the stream time of the task, which follows
// the timestamps of its records, has moved on by d: first with the first record,
// then at multiples of d, once if several are passed at a time. now is the stream
// time. Without records stream time stands still. d is rounded down to
// milliseconds and is at least one.
func (t *Task) EveryStreamTime(d time.Duration, f func(now time.Time) error) {
	t.schedule("EveryStreamTime", task.StreamTime, d, f)
}

// EveryWallClock calls f each time the clock of the machine has moved on by d,
// between two records: first after d, and once if several intervals have passed.
// now is the time of the clock. d is rounded down to milliseconds and is at least
// one.
func (t *Task) EveryWallClock(d time.Duration, f func(now time.Time) error) {
	t.schedule("EveryWallClock", task.WallClock, d, f)
}

func (t *Task) schedule(op string, clock task.Clock, d time.Duration, f func(now time.Time) error) {
	switch {
	case t.closed:
		t.misuse = errClosed
	case f == nil:
		t.misuse = fmt.Errorf("%s of processor %q: %w", op, t.name, errNilFunction)
	case d < time.Millisecond:
		t.misuse = fmt.Errorf("%s of processor %q: the interval %s is below a millisecond", op, t.name, d)
	default:
		t.ctx.Schedule(clock, d.Milliseconds(), t.name, func(now int64) error {
			return t.run(now, func() error { return f(time.UnixMilli(now).UTC()) })
		})
	}
}

// run runs a callback of the processor at the given time.
func (t *Task) run(now int64, f func() error) error {
	if err := t.begin(now); err != nil {
		return err
	}
	return t.end(f())
}

func (t *Task) begin(now int64) error {
	t.ctx.Enter(t.name)
	if err := t.takeMisuse(); err != nil {
		return err
	}
	t.now, t.active, t.failed = now, true, nil
	return nil
}

// end returns what is wrong with a callback that returned err. What went wrong
// first counts.
func (t *Task) end(err error) error {
	t.active = false
	if m := t.takeMisuse(); m != nil {
		return m
	}
	if t.failed != nil {
		return t.failed
	}
	return err
}

func (t *Task) takeMisuse() error {
	err := t.misuse
	t.misuse = nil
	return err
}

// fail makes the running callback fail, whatever it returns.
func (t *Task) fail(err error) {
	if t.failed == nil {
		t.failed = err
	}
}

// Emitter takes the records that a processor makes. It belongs to the processor
// and is used from its callbacks only.
type Emitter[K, V any] struct {
	t    *Task
	next func(*rec[K, V]) error
	out  rec[K, V]
}

// Emit hands a record to the steps below, which process it before Emit returns.
// Null keys and tombstones are emitted as such, Source is ignored, and a zero
// Time stands for that of the record being processed, in a punctuation for that
// of the punctuation. An error of a step below fails the record being processed,
// and what is emitted after it is ignored.
func (e *Emitter[K, V]) Emit(r Record[K, V]) {
	t := e.t
	switch {
	case !t.active:
		t.misuse = fmt.Errorf("processor %q emitted a record outside of Process and punctuations: it would be lost", t.name)
		return
	case t.failed != nil:
		return
	}
	ts := t.now
	if !r.Time.IsZero() {
		if ts = r.Time.UnixMilli(); ts < 0 {
			t.fail(task.Classify(task.ClassProduce, fmt.Errorf("the record was emitted with the time %s, which is before 1970: Kafka has no such timestamps", r.Time)))
			return
		}
	}
	var noKey K
	var noValue V
	out := &e.out
	out.key, out.val = r.Key, r.Value
	if r.KeyNull {
		out.key = noKey
	}
	if r.Tombstone {
		out.val = noValue
	}
	out.meta = meta{keyNull: r.KeyNull, tombstone: r.Tombstone, ts: ts, headers: toTaskHeaders(r.Headers)}
	if err := e.next(out); err != nil {
		t.fail(err)
		return
	}
	t.ctx.Enter(t.name)
}

// wireProcessor makes the processor of a task and the function that hands
// records to it.
func wireProcessor[K, V, K2, V2 any, P Processor[K, V, K2, V2]](w *wiring, n *node, newP func() P, stores []*storeDecl) func(*rec[K, V]) error {
	t := &Task{ctx: w.ctx, name: n.name, stores: stores, now: max(w.ctx.StreamTime(), 0)}
	out := &Emitter[K2, V2]{t: t, next: children[rec[K2, V2]](w, n)}
	if w.err != nil {
		return nil
	}
	t.ctx.Enter(t.name)
	p := newP()
	w.closers = append(w.closers, func() error {
		t.ctx.Enter(t.name)
		t.closed = true
		if err := p.Close(); err != nil {
			return fmt.Errorf("close processor %q: %w", t.name, err)
		}
		return nil
	})
	if err := p.Init(t, out); err != nil || t.misuse != nil {
		w.err = fmt.Errorf("init of processor %q: %w", t.name, errors.Join(t.misuse, err))
		return nil
	}
	ahead := &Ahead{stores: stores, ctx: t.ctx}
	if l, ok := any(p).(Lookahead[K, V]); ok {
		w.lookers[n] = func(r *rec[K, V], want wanted) {
			defer func() {
				if v := recover(); v != nil && ahead.misuse == nil {
					ahead.misuse = fmt.Errorf("panic in LookAhead: %v", v)
				}
			}()
			ahead.want = want
			l.LookAhead(Record[K, V]{Key: r.key, Value: r.val, KeyNull: r.keyNull, Tombstone: r.tombstone,
				Time: time.UnixMilli(r.ts).UTC(), Headers: fromTaskHeaders(r.headers)}, ahead)
			ahead.want = nil
		}
	}
	return func(r *rec[K, V]) error {
		if err := t.begin(r.ts); err != nil {
			return err
		}
		if err := ahead.misuse; err != nil {
			ahead.misuse = nil
			return t.end(err)
		}
		var from Source
		from.Topic, from.Partition, from.Offset = t.ctx.Source()
		return t.end(p.Process(Record[K, V]{Key: r.key, Value: r.val, KeyNull: r.keyNull, Tombstone: r.tombstone,
			Time: time.UnixMilli(r.ts).UTC(), Headers: fromTaskHeaders(r.headers), Source: from}))
	}
}
