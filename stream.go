package weir

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weirstreams/weir/internal/keyenc"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/serde"
)

// Stream is a stream of records: each is a fact of its own, and there may be
// many of a key. It is a value; each method adds a step to the builder that the
// stream came from and returns the stream behind it. Any number of steps can be
// added to one stream, and each of them gets every record, in the order in which
// they were added.
//
// The steps of a record run one after another to the end before the next record
// is taken. What a step makes of a record has its timestamp and headers.
type Stream[K, V any] struct {
	b *Builder
	n *node // nil behind a mistake, which was noted
	k side[K]
	v side[V]
	// rekeyed says that the keys may not be those by which the records were
	// spread over the partitions.
	rekeyed bool
}

// side is what is known of the serde of keys or of values.
type side[T any] struct {
	serde serde.Serde[T]
	// lost is the step since which there is no serde, and why.
	lost string
}

// Why a step loses a serde.
const (
	madeKey   = "makes new keys"
	madeValue = "makes values of another type"
)

func lose[T any](op, why string) side[T] { return side[T]{lost: located(op) + " " + why} }

// keep returns the side of T2 if it is the same type as T, else a lost one.
func keep[T2, T any](s side[T], op, why string) side[T2] {
	if same, ok := any(s).(side[T2]); ok {
		return same
	}
	return lose[T2](op, why)
}

// need says which serde is missing, or returns nil.
func (s side[T]) need(what string) error {
	if s.serde != nil {
		return nil
	}
	return fmt.Errorf("the serde of the %s is not known, because %s: say .Serdes(...) behind that step", what, s.lost)
}

var errNilFunction = errors.New("the function is nil")

// ready says whether the step op can be added.
func (s Stream[K, V]) ready(op string) bool {
	if s.b == nil {
		panic("weir: " + op + " of a Stream that is not from a Builder")
	}
	return s.n != nil && s.b.open(op)
}

// readyFunc is ready for a step with a function.
func (s Stream[K, V]) readyFunc(op string, isNil bool) bool {
	if !s.ready(op) {
		return false
	}
	if isNil {
		s.b.fail(op, errNilFunction)
	}
	return !isNil
}

// Filter passes on the records for which keep returns true. Tombstones pass.
func (s Stream[K, V]) Filter(keep func(K, V) bool) Stream[K, V] {
	if !s.readyFunc("Filter", keep == nil) {
		return Stream[K, V]{b: s.b}
	}
	n := s.b.addOperator("STREAM-FILTER", s.n)
	n.wire = func(w *wiring) any {
		next, c, name := children[rec[K, V]](w, n), w.ctx, n.name
		return func(r *rec[K, V]) error {
			if !r.tombstone {
				c.Enter(name)
				if !keep(r.key, r.val) {
					return nil
				}
			}
			return next(r)
		}
	}
	s.n = n
	return s
}

// Map makes a record with another key and value of each record. Tombstones are
// dropped, since there is no value to find the new key with. The serde of the
// keys is lost, and that of the values if their type changes.
func (s Stream[K, V]) Map[K2, V2 any](f func(K, V) (K2, V2)) Stream[K2, V2] {
	const op = "Map"
	if !s.readyFunc(op, f == nil) {
		return Stream[K2, V2]{b: s.b}
	}
	n := s.b.addRekeying("STREAM-MAP", s.n)
	n.wire = func(w *wiring) any {
		next, c, name := children[rec[K2, V2]](w, n), w.ctx, n.name
		dropped := c.Drops(name, dropNullValue)
		out := new(rec[K2, V2])
		return func(r *rec[K, V]) error {
			if r.tombstone {
				dropped.N++
				return nil
			}
			c.Enter(name)
			out.key, out.val = f(r.key, r.val)
			out.ts, out.headers = r.ts, r.headers
			return next(out)
		}
	}
	return Stream[K2, V2]{b: s.b, n: n, k: lose[K2](op, madeKey), v: keep[V2](s.v, op, madeValue), rekeyed: true}
}

// MapValues makes another value of each value. Tombstones pass as they are. The
// serde of the values is lost if their type changes.
func (s Stream[K, V]) MapValues[V2 any](f func(K, V) V2) Stream[K, V2] {
	const op = "MapValues"
	if !s.readyFunc(op, f == nil) {
		return Stream[K, V2]{b: s.b}
	}
	n := s.b.addOperator("STREAM-MAPVALUES", s.n)
	n.wire = func(w *wiring) any {
		next, c, name := children[rec[K, V2]](w, n), w.ctx, n.name
		out := new(rec[K, V2])
		return func(r *rec[K, V]) error {
			out.key, out.meta = r.key, r.meta
			var none V2
			out.val = none
			if !r.tombstone {
				c.Enter(name)
				out.val = f(r.key, r.val)
			}
			return next(out)
		}
	}
	return Stream[K, V2]{b: s.b, n: n, k: s.k, v: keep[V2](s.v, op, madeValue), rekeyed: s.rekeyed}
}

// TryMapValues is MapValues with a function that can fail. An error goes to the
// error handler of the application with the place of the record: stop, or
// dead-letter the record and go on.
func (s Stream[K, V]) TryMapValues[V2 any](f func(K, V) (V2, error)) Stream[K, V2] {
	const op = "TryMapValues"
	if !s.readyFunc(op, f == nil) {
		return Stream[K, V2]{b: s.b}
	}
	n := s.b.addOperator("STREAM-TRYMAPVALUES", s.n)
	n.wire = func(w *wiring) any {
		next, c, name := children[rec[K, V2]](w, n), w.ctx, n.name
		out := new(rec[K, V2])
		return func(r *rec[K, V]) (err error) {
			out.key, out.meta = r.key, r.meta
			var none V2
			out.val = none
			if !r.tombstone {
				c.Enter(name)
				if out.val, err = f(r.key, r.val); err != nil {
					return err
				}
			}
			return next(out)
		}
	}
	return Stream[K, V2]{b: s.b, n: n, k: s.k, v: keep[V2](s.v, op, madeValue), rekeyed: s.rekeyed}
}

// FlatMap makes any number of records of each record: one for each call of emit,
// which must not be called after f has returned. Tombstones are dropped. The
// serde of the keys is lost, and that of the values if their type changes.
func (s Stream[K, V]) FlatMap[K2, V2 any](f func(k K, v V, emit func(K2, V2))) Stream[K2, V2] {
	const op = "FlatMap"
	if !s.readyFunc(op, f == nil) {
		return Stream[K2, V2]{b: s.b}
	}
	n := s.b.addRekeying("STREAM-FLATMAP", s.n)
	n.wire = func(w *wiring) any { return wireFlatMap(w, n, f) }
	return Stream[K2, V2]{b: s.b, n: n, k: lose[K2](op, madeKey), v: keep[V2](s.v, op, madeValue), rekeyed: true}
}

var errLateEmit = errors.New("the emit function of FlatMap was called after the function it was given to had returned: its records would be lost")

func wireFlatMap[K, V, K2, V2 any](w *wiring, n *node, f func(K, V, func(K2, V2))) func(*rec[K, V]) error {
	next, c, name := children[rec[K2, V2]](w, n), w.ctx, n.name
	dropped := c.Drops(name, dropNullValue)
	out := new(rec[K2, V2])
	var failed, late error
	running := false
	emit := func(k K2, v V2) {
		if !running {
			late = errLateEmit
			return
		}
		if failed != nil {
			return
		}
		out.key, out.val = k, v
		if failed = next(out); failed == nil {
			c.Enter(name)
		}
	}
	return func(r *rec[K, V]) error {
		c.Enter(name)
		if err := late; err != nil {
			late = nil
			return err
		}
		if r.tombstone {
			dropped.N++
			return nil
		}
		out.ts, out.headers = r.ts, r.headers
		running, failed = true, nil
		f(r.key, r.val, emit)
		running = false
		return failed
	}
}

// SelectKey gives each record another key. Tombstones are dropped. The serde of
// the keys is lost, even if the type stays: a derived key never takes over an
// encoding unasked.
func (s Stream[K, V]) SelectKey[K2 any](f func(K, V) K2) Stream[K2, V] {
	const op = "SelectKey"
	if !s.readyFunc(op, f == nil) {
		return Stream[K2, V]{b: s.b}
	}
	return s.selectKey(s.b.addRekeying("STREAM-KEY-SELECT", s.n), f, lose[K2](op, madeKey))
}

func (s Stream[K, V]) selectKey[K2 any](n *node, f func(K, V) K2, k side[K2]) Stream[K2, V] {
	n.wire = func(w *wiring) any {
		next, c, name := children[rec[K2, V]](w, n), w.ctx, n.name
		dropped := c.Drops(name, dropNullValue)
		out := new(rec[K2, V])
		return func(r *rec[K, V]) error {
			if r.tombstone {
				dropped.N++
				return nil
			}
			c.Enter(name)
			out.key, out.val = f(r.key, r.val), r.val
			out.ts, out.headers = r.ts, r.headers
			return next(out)
		}
	}
	return Stream[K2, V]{b: s.b, n: n, k: k, v: s.v, rekeyed: true}
}

// Peek calls f with each record and passes it on unchanged. f is not called for
// tombstones, which pass.
func (s Stream[K, V]) Peek(f func(K, V)) Stream[K, V] {
	if !s.readyFunc("Peek", f == nil) {
		return Stream[K, V]{b: s.b}
	}
	n := s.b.addOperator("STREAM-PEEK", s.n)
	n.wire = func(w *wiring) any {
		next, c, name := children[rec[K, V]](w, n), w.ctx, n.name
		return func(r *rec[K, V]) error {
			if !r.tombstone {
				c.Enter(name)
				f(r.key, r.val)
			}
			return next(r)
		}
	}
	s.n = n
	return s
}

// Merge returns one stream with the records of all, in the order in which the
// task takes them: by timestamp between the topics, as far as they are there. A
// serde is lost unless all streams have the same one. Tombstones and null keys
// pass.
func (s Stream[K, V]) Merge(others ...Stream[K, V]) Stream[K, V] {
	const op = "Merge"
	if !s.ready(op) {
		return Stream[K, V]{b: s.b}
	}
	parents := []*node{s.n}
	out := s
	for _, o := range others {
		switch {
		case o.b == nil:
			return s.b.failedStream[K, V](op, errors.New("one of the streams is not from a Builder"))
		case o.b != s.b:
			return s.b.failedStream[K, V](op, errors.New("the streams are from different builders: declare both with one"))
		case o.n == nil:
			return Stream[K, V]{b: s.b}
		case slices.Contains(parents, o.n):
			return s.b.failedStream[K, V](op, errors.New("a stream is merged with itself, which would double its records: merge different streams"))
		}
		parents = append(parents, o.n)
		out.k, out.v = mergeSides(out.k, o.k, op, "keys"), mergeSides(out.v, o.v, op, "values")
		out.rekeyed = out.rekeyed || o.rekeyed
	}
	if len(others) == 0 {
		return s
	}
	n := s.b.addOperator("STREAM-MERGE", parents...)
	n.value = valuePassed
	n.wire = func(w *wiring) any { return children[rec[K, V]](w, n) }
	out.n = n
	return out
}

func mergeSides[T any](a, b side[T], op, what string) side[T] {
	switch {
	case a.serde == nil:
		return a
	case b.serde == nil:
		return b
	case !sameSerde(a.serde, b.serde):
		return lose[T](op, fmt.Sprintf("joins streams whose %s have different serdes (%s and %s)", what, serde.NameOf(a.serde), serde.NameOf(b.serde)))
	}
	return a
}

// Serdes says how keys and values are encoded from here on. It is needed where a
// step lost a serde and a later one writes the records: a sink has those of its
// topic, but a store or a repartition needs to know.
func (s Stream[K, V]) Serdes(key serde.Serde[K], value serde.Serde[V]) Stream[K, V] {
	const op = "Serdes"
	if !s.ready(op) {
		return Stream[K, V]{b: s.b}
	}
	if key == nil || value == nil {
		return s.b.failedStream[K, V](op, fmt.Errorf("the serde of the %s is nil: give both", missingSides(key == nil, value == nil)))
	}
	s.k, s.v = side[K]{serde: key}, side[V]{serde: value}
	return s
}

// Repartition sends the stream through a topic of its own,
// <application>-<name>-repartition, so that each record is processed by the task
// that its key belongs to. Steps that aggregate do so by themselves where the
// key was changed; it is needed before a [Processor] that keeps state by a
// changed key, and before streams of topics with different partition counts
// meet. Null keys and tombstones pass; a record with a null key goes to any
// partition.
func (s Stream[K, V]) Repartition(name string, opts ...RepartitionOption) Stream[K, V] {
	op := fmt.Sprintf("Repartition(%q)", name)
	if !s.ready(op) {
		return Stream[K, V]{b: s.b}
	}
	var c repartitionConfig
	for _, o := range opts {
		if o == nil {
			return s.b.failedStream[K, V](op, errNilOption)
		}
		o.applyRepartition(&c)
	}
	if c.given && (c.partitions < 1 || c.partitions > maxPartitions) {
		return s.b.failedStream[K, V](op, fmt.Errorf("Partitions(%d): the number must be from 1 to %d", c.partitions, maxPartitions))
	}
	return s.through(op, name, repartitioning{partitions: int32(c.partitions)})
}

// maxPartitions is far beyond what brokers manage and keeps sums in an int32.
const maxPartitions = 1 << 20

// repartitioning is how a stream goes through a repartition topic.
type repartitioning struct {
	partitions int32
	needKey    bool // drop records with a null key
	taken      bool // the name was reserved before
}

// through adds the two ends of a repartition topic.
func (s Stream[K, V]) through(op, name string, how repartitioning) Stream[K, V] {
	if err := errors.Join(s.k.need("keys"), s.v.need("values")); err != nil {
		return s.b.failedStream[K, V](op, err)
	}
	if !how.taken && !s.b.take(s.b.repartitions, "repartition", name, op) {
		return Stream[K, V]{b: s.b}
	}
	id, ok := s.b.addRepartition(op, name, how.partitions, s.n, func(n *node) {
		k, v := s.k.serde, s.v.serde
		n.wire = func(w *wiring) any {
			out := newSink(w, n, k, v)
			topic := keyenc.RepartitionTopic(w.app, name)
			if !how.needKey {
				return func(r *rec[K, V]) error { return out.write(topic, r) }
			}
			dropped := w.ctx.Drops(n.name, dropNullKey)
			return func(r *rec[K, V]) error {
				if r.keyNull {
					dropped.N++
					return nil
				}
				return out.write(topic, r)
			}
		}
	})
	if !ok {
		return Stream[K, V]{b: s.b}
	}
	return s.b.decoder(id, s.k.serde, s.v.serde)
}

// addRepartition adds the sink of a repartition topic, which wire completes, and
// its source, whose id it returns.
func (b *Builder) addRepartition(op, name string, partitions int32, parent *node, wire func(sink *node)) (id int, ok bool) {
	sinkName, sourceName := name+"-repartition-sink", name+"-repartition-source"
	if !b.take(b.named, "step", sinkName, op) || !b.take(b.named, "step", sourceName, op) {
		return 0, false
	}
	b.graph.Repartitions = append(b.graph.Repartitions, topology.Repartition{Name: name, Partitions: partitions})
	wire(b.addNode(topology.Node{Name: sinkName, Kind: topology.SinkNode, Topic: name, Repartition: true}, parent))
	return b.addGraphNode(topology.Node{Name: sourceName, Kind: topology.SourceNode, Topic: name, Repartition: true}), true
}

// To writes the stream to a topic, with the serdes of the topic. The partition
// is that of the encoded key, as Kafka's own clients choose it. Null keys go to
// any partition; tombstones are written as such.
func (s Stream[K, V]) To(t Topic[K, V]) {
	op := fmt.Sprintf("To(%q)", t.name)
	if !s.ready(op) {
		return
	}
	if err := t.check(); err != nil {
		s.b.fail(op, err)
		return
	}
	n := s.b.addNode(topology.Node{Name: s.b.generate("STREAM-SINK"), Kind: topology.SinkNode, Topic: t.name}, s.n)
	n.wire = func(w *wiring) any {
		out := newSink(w, n, t.key, t.value)
		return func(r *rec[K, V]) error { return out.write(t.name, r) }
	}
}

// ToEach writes each record to the topic that choose returns for it, with the
// serdes of that topic. The topics must exist. Tombstones are dropped and
// counted, since there is no value to choose by. Topics that are written this
// way are not known when the topology is built.
func (s Stream[K, V]) ToEach(choose func(K, V) Topic[K, V]) {
	if !s.readyFunc("ToEach", choose == nil) {
		return
	}
	n := s.b.addNode(topology.Node{Name: s.b.generate("STREAM-SINK"), Kind: topology.SinkNode}, s.n)
	n.wire = func(w *wiring) any {
		out := newSink[K, V](w, n, nil, nil)
		c, name := w.ctx, n.name
		dropped := c.Drops(name, dropNullValue)
		last := "" // a name that was found to be good
		return func(r *rec[K, V]) error {
			if r.tombstone {
				dropped.N++
				return nil
			}
			c.Enter(name)
			t := choose(r.key, r.val)
			if t.name != last || t.key == nil || t.value == nil {
				if err := t.check(); err != nil {
					return task.Classify(task.ClassProduce, err)
				}
				last = t.name
			}
			out.key, out.value = t.key, t.value
			return out.write(t.name, r)
		}
	}
}

// sink writes records to topics.
type sink[K, V any] struct {
	ctx   *task.Context
	name  string
	key   serde.Serde[K]
	value serde.Serde[V]
}

func newSink[K, V any](w *wiring, n *node, key serde.Serde[K], value serde.Serde[V]) *sink[K, V] {
	return &sink[K, V]{w.ctx, n.name, key, value}
}

func (s *sink[K, V]) write(topic string, r *rec[K, V]) error {
	s.ctx.Enter(s.name)
	var key, value []byte
	var err error
	if !r.keyNull {
		if key, err = encode(s.ctx, s.key, r.key); err != nil {
			return task.Classify(task.ClassProduce, fmt.Errorf("key of a record for topic %s: %w", topic, err))
		}
	}
	if !r.tombstone {
		if value, err = encode(s.ctx, s.value, r.val); err != nil {
			return task.Classify(task.ClassProduce, fmt.Errorf("value of a record for topic %s: %w", topic, err))
		}
	}
	return s.ctx.Emit(topic, task.AnyPartition, key, value, r.ts, r.headers)
}

// encode returns the bytes of a value, which live as long as the batch. They are
// never nil, not even if the serde returns nil: that would delete.
func encode[T any](c *task.Context, s serde.Serde[T], v T) ([]byte, error) {
	b, err := s.Append(c.Buf(), v)
	if err != nil {
		return nil, err
	}
	if b == nil {
		return []byte{}, nil
	}
	return c.Keep(b), nil
}

// ToTable turns the stream into a table, as [Builder.Table] does with a topic:
// each record is the new value of its key, tombstones delete, null keys are
// dropped. If the key was changed the stream goes through the topic
// <application>-<name>-repartition first.
func (s Stream[K, V]) ToTable(name string, opts ...StoreOption) Table[K, V] {
	op := fmt.Sprintf("ToTable(%q)", name)
	if !s.ready(op) {
		return Table[K, V]{b: s.b}
	}
	sc := newStoreConfig()
	if !sc.apply(s.b, op, opts) {
		return Table[K, V]{b: s.b}
	}
	if s.rekeyed {
		if s = s.through(op, name, repartitioning{needKey: true}); s.n == nil {
			return Table[K, V]{b: s.b}
		}
	}
	return s.table(op, name, sc)
}
