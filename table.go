package weir

import (
	"fmt"

	"github.com/weirstreams/weir/internal/keyenc"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/serde"
)

// Table is a table: the last value of each key. It is a value like [Stream], and
// the handle to read the table with while the application runs. Each update goes
// to the steps that were added to the table.
//
// [Builder.Table], [Stream.ToTable] and the aggregations keep their table in a
// store. Filter and MapValues keep nothing: their result is computed from the
// store above when it is read.
type Table[K, V any] struct {
	b *Builder
	n *node // nil behind a mistake, which was noted
	k side[K]
	v side[V]
	// store is where the table, or the one that it is derived from, is kept, and
	// view makes of an entry of it what the table has for the key.
	store string
	view  viewFunc[K, V]
}

// viewFunc makes an entry of a table of the bytes in a store. found is false
// when the table, unlike the store, has no entry for the key.
type viewFunc[K, V any] func(key K, raw []byte) (value V, ts int64, found bool, err error)

// ready says whether the step op can be added.
func (t Table[K, V]) ready(op string, isNil bool) bool {
	if t.b == nil {
		panic("weir: " + op + " of a Table that is not from a Builder")
	}
	if t.n == nil || !t.b.open(op) {
		return false
	}
	if isNil {
		t.b.fail(op, errNilFunction)
	}
	return !isNil
}

// newTable makes the table that a node keeps in its own store.
func newTable[K, V any](n *node, store string, key serde.Serde[K], value serde.Serde[V]) Table[K, V] {
	return Table[K, V]{b: n.b, n: n, k: side[K]{serde: key}, v: side[V]{serde: value}, store: store,
		view: func(_ K, raw []byte) (v V, ts int64, found bool, err error) {
			ts, body, err := splitTimestamped(raw)
			if err == nil {
				v, err = value.Decode(body)
			}
			return v, ts, err == nil, err
		}}
}

// addStoreNode adds a step with a store of its own, which has the step's name.
func (b *Builder) addStoreNode[K, V any](op, name string, c storeConfig, parent *node, key serde.Serde[K], value serde.Serde[V]) *node {
	d := &storeDecl{name: name, by: located(op), logged: c.logged, unordered: c.unordered, timestamped: true}
	if err := b.checkStore(d); err != nil {
		b.fail(op, err)
		return nil
	}
	if !b.take(b.named, "step", name, op) {
		return nil
	}
	d.info = newStoreInfo(name, key, timestampedValue(value))
	n := b.addNode(topology.Node{Name: name, Kind: topology.OperatorNode}, parent)
	b.attach(n, d)
	return n
}

// table adds the step that keeps a stream as a table.
func (s Stream[K, V]) table(op, name string, c storeConfig) Table[K, V] {
	for _, err := range []error{s.k.need("keys"), s.v.need("values")} {
		if err != nil {
			s.b.fail(op, err)
			return Table[K, V]{b: s.b}
		}
	}
	n := s.b.addStoreNode(op, name, c, s.n, s.k.serde, s.v.serde)
	if n == nil {
		return Table[K, V]{b: s.b}
	}
	k, v := s.k.serde, s.v.serde
	n.wire = func(w *wiring) any {
		t := &tableSource[K, V]{ctx: w.ctx, name: n.name, store: newTableStore(w, name, k, v), sendsOld: n.sendsOld,
			noKey: w.ctx.Drops(n.name, dropNullKey), noChange: w.ctx.Drops(n.name, dropNoChange), next: children[change[K, V]](w, n)}
		return t.process
	}
	return newTable(n, name, k, v)
}

// tableSource keeps a stream as a table.
type tableSource[K, V any] struct {
	ctx      *task.Context
	name     string
	store    *tableStore[K, V]
	sendsOld bool
	noKey    *task.DropCounter
	noChange *task.DropCounter
	out      change[K, V]
	next     func(*change[K, V]) error
}

func (t *tableSource[K, V]) process(r *rec[K, V]) (err error) {
	t.ctx.Enter(t.name)
	if r.keyNull {
		t.noKey.N++
		return nil
	}
	if err = t.store.load(r.key); err != nil {
		return err
	}
	if !r.tombstone {
		if err = t.store.encode(r.val, r.ts); err != nil {
			return err
		}
		if r.ts >= t.store.ts && t.store.same() {
			t.noChange.N++
			return nil
		}
	}
	out := &t.out
	out.key, out.new, out.hasNew, out.ts, out.headers = r.key, r.val, !r.tombstone, r.ts, r.headers
	var none V
	out.old, out.hasOld = none, false
	if t.sendsOld && t.store.found {
		if out.old, err = t.store.old(); err != nil {
			return err
		}
		out.hasOld = true
	}
	if r.tombstone {
		err = t.store.remove(r.ts)
	} else {
		err = t.store.write()
	}
	if err != nil {
		return err
	}
	return t.next(out)
}

// Filter returns the table of the entries for which keep returns true. An update
// to a value that is not kept deletes the key, and a tombstone is passed on
// without a call, both even if the key was never in the table: it is not stored,
// so nobody knows. keep is called by readers of the table as well, and so from
// several goroutines.
func (t Table[K, V]) Filter(keep func(K, V) bool) Table[K, V] {
	if !t.ready("Table.Filter", keep == nil) {
		return Table[K, V]{b: t.b}
	}
	n := t.b.addOperator("TABLE-FILTER", t.n)
	n.derivedFrom = t.n
	n.wire = func(w *wiring) any {
		next, c, name := children[change[K, V]](w, n), w.ctx, n.name
		out := new(change[K, V])
		return func(in *change[K, V]) error {
			c.Enter(name)
			*out = *in
			var none V
			if out.hasNew && !keep(in.key, in.new) {
				out.new, out.hasNew = none, false
			}
			if out.hasOld && !keep(in.key, in.old) {
				out.old, out.hasOld = none, false
			}
			if n.sendsOld && !out.hasNew && !out.hasOld {
				return nil // it was not there and is not there
			}
			return next(out)
		}
	}
	view := t.view
	t.n = n
	t.view = func(key K, raw []byte) (V, int64, bool, error) {
		v, ts, found, err := view(key, raw)
		if err == nil && found && !keep(key, v) {
			var none V
			return none, ts, false, nil
		}
		return v, ts, found, err
	}
	return t
}

// MapValues returns the table with another value for each value. Tombstones are
// passed on without a call. f is called by readers of the table as well, and so
// from several goroutines.
func (t Table[K, V]) MapValues[V2 any](f func(K, V) V2) Table[K, V2] {
	const op = "Table.MapValues"
	if !t.ready(op, f == nil) {
		return Table[K, V2]{b: t.b}
	}
	n := t.b.addOperator("TABLE-MAPVALUES", t.n)
	n.derivedFrom = t.n
	n.wire = func(w *wiring) any {
		next, c, name := children[change[K, V2]](w, n), w.ctx, n.name
		out := new(change[K, V2])
		return func(in *change[K, V]) error {
			c.Enter(name)
			var none V2
			out.key, out.ts, out.headers = in.key, in.ts, in.headers
			out.new, out.hasNew, out.old, out.hasOld = none, in.hasNew, none, in.hasOld
			if in.hasNew {
				out.new = f(in.key, in.new)
			}
			if in.hasOld {
				out.old = f(in.key, in.old)
			}
			return next(out)
		}
	}
	view := t.view
	return Table[K, V2]{b: t.b, n: n, k: t.k, v: keep[V2](t.v, op, madeValue), store: t.store,
		view: func(key K, raw []byte) (v V2, ts int64, found bool, err error) {
			old, ts, found, err := view(key, raw)
			if err == nil && found {
				v = f(key, old)
			}
			return v, ts, found, err
		}}
}

// ToStream returns the updates of the table as a stream: the new value of a key,
// or a tombstone when it was deleted.
func (t Table[K, V]) ToStream() Stream[K, V] {
	if !t.ready("ToStream", false) {
		return Stream[K, V]{b: t.b}
	}
	n := t.b.addOperator("TABLE-TOSTREAM", t.n)
	n.wire = func(w *wiring) any {
		next := children[rec[K, V]](w, n)
		out := new(rec[K, V])
		return func(in *change[K, V]) error {
			out.key, out.val = in.key, in.new
			out.meta = meta{tombstone: !in.hasNew, ts: in.ts, headers: in.headers}
			return next(out)
		}
	}
	return Stream[K, V]{b: t.b, n: n, k: t.k, v: t.v}
}

// GroupBy groups the entries of the table by another key, with the serdes of that
// key and of the value to aggregate. When an entry changes, what it added to the
// aggregate of its old key is subtracted, and it is added to that of the new one.
// Both travel through the topic <application>-<name>-repartition, as one message
// when the key is the same (KIP-904). Several aggregations of the result share
// the topic.
func (t Table[K, V]) GroupBy[K2, V2 any](name string, key serde.Serde[K2], value serde.Serde[V2], f func(K, V) (K2, V2)) GroupedTable[K2, V2] {
	op := fmt.Sprintf("Table.GroupBy(%q)", name)
	dead := GroupedTable[K2, V2]{b: t.b}
	if !t.ready(op, f == nil) {
		return dead
	}
	if key == nil || value == nil {
		t.b.fail(op, fmt.Errorf("the serde of the %s is nil: give both", missingSides(key == nil, value == nil)))
		return dead
	}
	if !t.b.take(t.b.repartitions, "repartition", name, op) {
		return dead
	}
	g := &tableGroup{op: op}
	g.make = func() *node {
		id, ok := t.b.addRepartition(op, name, 0, t.n, func(n *node) {
			n.wire = func(w *wiring) any {
				r := &regrouper[K, V, K2, V2]{ctx: w.ctx, name: n.name, topic: keyenc.RepartitionTopic(w.app, name), key: key, value: value, f: f}
				return r.process
			}
		})
		if !ok {
			return nil
		}
		t.n.requireOld()
		src := &node{b: t.b, id: id, name: t.b.graph.Nodes[id].Name}
		src.wire = func(w *wiring) any { return wireChangeDecoder(w, src, key, value) }
		t.b.nodes = append(t.b.nodes, src)
		t.b.decoders[src.name] = append(t.b.decoders[src.name], src)
		return src
	}
	return GroupedTable[K2, V2]{b: t.b, key: key, group: g}
}

// regrouper sends the changes of a table to the owners of the keys that they are
// grouped by.
type regrouper[K, V, K2, V2 any] struct {
	ctx   *task.Context
	name  string
	topic string
	key   serde.Serde[K2]
	value serde.Serde[V2]
	f     func(K, V) (K2, V2)

	newValue, oldValue []byte // scratch
}

func (g *regrouper[K, V, K2, V2]) process(in *change[K, V]) (err error) {
	g.ctx.Enter(g.name)
	var newKey, oldKey []byte
	if in.hasOld {
		if oldKey, g.oldValue, err = g.encode(in.key, in.old, g.oldValue); err != nil {
			return err
		}
	}
	if in.hasNew {
		if newKey, g.newValue, err = g.encode(in.key, in.new, g.newValue); err != nil {
			return err
		}
	}
	c := keyenc.Change{New: g.newValue, Old: g.oldValue, HasNew: in.hasNew, HasOld: in.hasOld}
	if in.hasNew && in.hasOld && string(newKey) != string(oldKey) {
		// Two owners, and the old one first.
		if err := g.emit(oldKey, keyenc.Change{Old: g.oldValue, HasOld: true}, in); err != nil {
			return err
		}
		c.HasOld = false
	}
	switch {
	case c.HasNew:
		return g.emit(newKey, c, in)
	case c.HasOld:
		return g.emit(oldKey, c, in)
	}
	return nil
}

func (g *regrouper[K, V, K2, V2]) encode(k K, v V, scratch []byte) (key, value []byte, err error) {
	k2, v2 := g.f(k, v)
	if key, err = encode(g.ctx, g.key, k2); err != nil {
		return nil, scratch, task.Classify(task.ClassProduce, fmt.Errorf("key of a record for topic %s: %w", g.topic, err))
	}
	if value, err = g.value.Append(scratch[:0], v2); err != nil {
		return nil, scratch, task.Classify(task.ClassProduce, fmt.Errorf("value of a record for topic %s: %w", g.topic, err))
	}
	return key, value, nil
}

func (g *regrouper[K, V, K2, V2]) emit(key []byte, c keyenc.Change, in *change[K, V]) error {
	b, err := keyenc.AppendChange(g.ctx.Buf(), c)
	if err != nil {
		return err
	}
	return g.ctx.Emit(g.topic, task.AnyPartition, key, g.ctx.Keep(b), in.ts, in.headers)
}

// wireChangeDecoder makes the function that decodes what a regrouper sent.
func wireChangeDecoder[K, V any](w *wiring, n *node, key serde.Serde[K], value serde.Serde[V]) func(*task.Record) error {
	next := children[change[K, V]](w, n)
	c, name := w.ctx, n.name
	noKey, noValue := c.Drops(name, dropNullKey), c.Drops(name, dropNullValue)
	out := new(change[K, V])
	return func(r *task.Record) (err error) {
		c.Enter(name)
		switch {
		case r.Key == nil:
			noKey.N++
			return nil
		case r.Value == nil:
			noValue.N++
			return nil
		}
		d, err := keyenc.DecodeChange(r.Value)
		if err != nil {
			return task.Classify(task.ClassDecode, err)
		}
		*out = change[K, V]{hasNew: d.HasNew, hasOld: d.HasOld, ts: r.Timestamp, headers: r.Headers}
		if out.key, err = key.Decode(r.Key); err != nil {
			return task.Classify(task.ClassDecode, fmt.Errorf("key: %w", err))
		}
		if d.HasNew {
			if out.new, err = value.Decode(d.New); err != nil {
				return task.Classify(task.ClassDecode, fmt.Errorf("new value: %w", err))
			}
		}
		if d.HasOld {
			if out.old, err = value.Decode(d.Old); err != nil {
				return task.Classify(task.ClassDecode, fmt.Errorf("old value: %w", err))
			}
		}
		return next(out)
	}
}
