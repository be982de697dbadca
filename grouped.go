package weir

import (
	"errors"
	"fmt"

	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/serde"
)

// Grouped is a stream whose records are to be aggregated by key. Records with a
// null key or without a value are dropped and counted.
//
// The timestamp of a result is the largest among the records that it is made of;
// where a key was deleted, or is new, it begins anew. Results carry the headers
// of the record that caused them.
type Grouped[K, V any] struct {
	b      *Builder
	stream Stream[K, V] // n is nil behind a mistake
	group  *streamGroup[K, V]
}

// streamGroup is the repartition topic of a GroupBy, which all aggregations of
// it share. It is made with the first of them.
type streamGroup[K, V any] struct {
	make   func() Stream[K, V]
	made   bool
	stream Stream[K, V]
}

// GroupByKey groups the records by their key. If the key was changed since the
// records were read, each aggregation sends them through the topic
// <application>-<store>-repartition first, with the name of its store.
func (s Stream[K, V]) GroupByKey() Grouped[K, V] {
	if !s.ready("GroupByKey") {
		s.n = nil
	}
	return Grouped[K, V]{b: s.b, stream: s}
}

// GroupBy groups the records by another key, with the serde of that key. They go
// through the topic <application>-<name>-repartition, which several aggregations
// of the result share. Tombstones are dropped and counted.
func (s Stream[K, V]) GroupBy[K2 any](name string, key serde.Serde[K2], f func(K, V) K2) Grouped[K2, V] {
	op := fmt.Sprintf("GroupBy(%q)", name)
	dead := Grouped[K2, V]{b: s.b}
	if !s.readyFunc(op, f == nil) {
		return dead
	}
	if key == nil {
		s.b.fail(op, errors.New("the serde of the keys is nil"))
		return dead
	}
	if err := s.v.need("values"); err != nil {
		s.b.fail(op, err)
		return dead
	}
	if !s.b.take(s.b.repartitions, "repartition", name, op) {
		return dead
	}
	keyed := Stream[K2, V]{b: s.b, n: s.n, k: side[K2]{serde: key}, v: s.v, rekeyed: true}
	return Grouped[K2, V]{b: s.b, stream: keyed, group: &streamGroup[K2, V]{make: func() Stream[K2, V] {
		n := s.b.addRekeying("STREAM-KEY-SELECT", s.n)
		return s.selectKey(n, f, keyed.k).through(op, name, repartitioning{needKey: true, taken: true})
	}}}
}

// source returns the records in the tasks that their keys belong to, ready to be
// kept in a store of the given name.
func (g Grouped[K, V]) source(op, store string) (Stream[K, V], bool) {
	if g.b == nil {
		panic("weir: " + op + " of a Grouped that is not from a Builder")
	}
	if g.stream.n == nil || !g.b.open(op) {
		return g.stream, false
	}
	if g.group != nil {
		if !g.group.made {
			g.group.stream, g.group.made = g.group.make(), true
		}
		return g.group.stream, g.group.stream.n != nil
	}
	s := g.stream
	if s.rekeyed {
		s = s.through(op, store, repartitioning{needKey: true})
	} else if err := s.k.need("keys"); err != nil {
		g.b.fail(op, err)
		return s, false
	}
	return s, s.n != nil
}

// Count counts the records of each key, in a store of the given name.
func (g Grouped[K, V]) Count(name string, opts ...StoreOption) Table[K, int64] {
	t := g.aggregate(fmt.Sprintf("Count(%q)", name), name, serde.Int64, opts, false,
		func(_ K, _ V, n int64, _ bool) (int64, bool) { return n + 1, true })
	if t.n != nil {
		t.n.value = valueIgnored
	}
	return t
}

// Reduce combines the values of each key, in a store of the given name: the
// first one is the result as it is, and each further one is combined with the
// result so far, f(result, value). The store has the serde of the values.
func (g Grouped[K, V]) Reduce(name string, f func(a, b V) V, opts ...StoreOption) Table[K, V] {
	op := fmt.Sprintf("Reduce(%q)", name)
	if g.b != nil && g.stream.n != nil {
		if err := g.stream.v.need("values"); err != nil {
			g.b.fail(op, err)
			return Table[K, V]{b: g.b}
		}
	}
	return g.aggregate(op, name, g.stream.v.serde, opts, f == nil,
		func(_ K, v V, old V, found bool) (V, bool) {
			if !found {
				return v, true
			}
			return f(old, v), true
		})
}

// Aggregate folds the values of each key into an aggregate, in a store of the
// given name and with the serde given: it begins with zero() and becomes
// add(key, value, aggregate) with each record. The aggregate that add gets is its
// own: it may change it in place and return it.
func (g Grouped[K, V]) Aggregate[A any](name string, acc serde.Serde[A], zero func() A, add func(K, V, A) A, opts ...StoreOption) Table[K, A] {
	return g.aggregate(fmt.Sprintf("Aggregate(%q)", name), name, acc, opts, zero == nil || add == nil,
		func(k K, v V, old A, found bool) (A, bool) {
			if !found {
				old = zero()
			}
			return add(k, v, old), true
		})
}

// Update is Aggregate with a function that sees whether the key has an aggregate
// and may delete it: it returns the new aggregate and true, or false. A deletion
// is passed on as a tombstone, even if nothing was stored.
func (g Grouped[K, V]) Update[A any](name string, acc serde.Serde[A], f func(k K, v V, old A, found bool) (A, bool), opts ...StoreOption) Table[K, A] {
	return g.aggregate(fmt.Sprintf("Update(%q)", name), name, acc, opts, f == nil, f)
}

// aggregate adds the step of an aggregation.
func (g Grouped[K, V]) aggregate[A any](op, name string, acc serde.Serde[A], opts []StoreOption, isNil bool, f func(K, V, A, bool) (A, bool)) Table[K, A] {
	if g.b != nil && g.stream.n != nil {
		switch {
		case isNil:
			g.b.fail(op, errNilFunction)
			return Table[K, A]{b: g.b}
		case acc == nil:
			g.b.fail(op, errors.New("the serde of the aggregate is nil"))
			return Table[K, A]{b: g.b}
		}
	}
	sc := newStoreConfig()
	if g.b != nil && !sc.apply(g.b, op, opts) {
		return Table[K, A]{b: g.b}
	}
	s, ok := g.source(op, name)
	if !ok {
		return Table[K, A]{b: g.b}
	}
	key := s.k.serde
	n := g.b.addStoreNode(op, name, sc, s.n, key, acc)
	if n == nil {
		return Table[K, A]{b: g.b}
	}
	n.wire = func(w *wiring) any {
		a := &aggregator[K, V, A]{ctx: w.ctx, name: name, store: newTableStore(w, name, key, acc), sendsOld: n.sendsOld, f: f,
			noKey: w.ctx.Drops(name, dropNullKey), noValue: w.ctx.Drops(name, dropNullValue), next: children[change[K, A]](w, n)}
		return a.process
	}
	return newTable(n, name, key, acc)
}

// aggregator folds records into the aggregates of their keys.
type aggregator[K, V, A any] struct {
	ctx      *task.Context
	name     string
	store    *tableStore[K, A]
	sendsOld bool
	f        func(K, V, A, bool) (A, bool)
	noKey    *task.DropCounter
	noValue  *task.DropCounter
	out      change[K, A]
	next     func(*change[K, A]) error
}

func (a *aggregator[K, V, A]) process(r *rec[K, V]) (err error) {
	a.ctx.Enter(a.name)
	switch {
	case r.keyNull:
		a.noKey.N++
		return nil
	case r.tombstone:
		a.noValue.N++
		return nil
	}
	if err = a.store.load(r.key); err != nil {
		return err
	}
	out := &a.out
	var old, none A
	out.old, out.hasOld = none, false
	ts := r.ts
	if a.store.found {
		ts = max(ts, a.store.ts)
		if old, err = a.store.old(); err != nil {
			return err
		}
		if a.sendsOld {
			if out.old, err = a.store.old(); err != nil {
				return err
			}
			out.hasOld = true
		}
	}
	out.key, out.ts, out.headers = r.key, ts, r.headers
	if out.new, out.hasNew = a.f(r.key, r.val, old, a.store.found); !out.hasNew {
		out.new = none
		if err = a.store.remove(r.ts); err != nil {
			return err
		}
		return a.next(out)
	}
	if err = a.store.encode(out.new, ts); err != nil {
		return err
	}
	if err = a.store.write(); err != nil {
		return err
	}
	return a.next(out)
}
