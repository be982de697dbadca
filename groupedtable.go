package weir

import (
	"errors"
	"fmt"

	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/serde"
)

// GroupedTable is a table whose entries are to be aggregated by another key.
// What an entry adds to an aggregate is taken away when the entry changes or is
// deleted: first the old value is subtracted, then the new one added. An
// aggregate that was made once stays, even when all its entries are gone.
//
// The timestamp of a result is the largest among the updates that it is made of.
type GroupedTable[K, V any] struct {
	b     *Builder
	key   serde.Serde[K]
	group *tableGroup // nil behind a mistake
}

// tableGroup is the repartition topic of a Table.GroupBy, which all aggregations
// of it share. It is made with the first of them.
type tableGroup struct {
	op     string
	make   func() *node
	made   bool
	source *node
}

// Count counts the entries of each key, in a store of the given name. A count
// that gets back to 0 stays in the table as 0.
func (g GroupedTable[K, V]) Count(name string, opts ...StoreOption) Table[K, int64] {
	return g.aggregate(fmt.Sprintf("GroupedTable.Count(%q)", name), name, serde.Int64, opts, false,
		func(_ K, _ V, n int64, _ bool) int64 { return n + 1 },
		func(_ K, _ V, n int64) int64 { return n - 1 })
}

// Reduce combines the values of each key, in a store of the given name and with
// the serde given: the first one is the result as it is, further ones are added
// with add(result, value), and those that are gone are taken away with
// sub(result, value).
func (g GroupedTable[K, V]) Reduce(name string, value serde.Serde[V], add, sub func(a, b V) V, opts ...StoreOption) Table[K, V] {
	return g.aggregate(fmt.Sprintf("GroupedTable.Reduce(%q)", name), name, value, opts, add == nil || sub == nil,
		func(_ K, v V, old V, found bool) V {
			if !found {
				return v
			}
			return add(old, v)
		},
		func(_ K, v V, old V) V { return sub(old, v) })
}

// Aggregate folds the values of each key into an aggregate, in a store of the
// given name and with the serde given: it begins with zero(), becomes
// add(key, value, aggregate) with a value that comes and sub(key, value,
// aggregate) with one that goes. Both may change the aggregate in place and
// return it.
func (g GroupedTable[K, V]) Aggregate[A any](name string, acc serde.Serde[A], zero func() A, add, sub func(K, V, A) A, opts ...StoreOption) Table[K, A] {
	return g.aggregate(fmt.Sprintf("GroupedTable.Aggregate(%q)", name), name, acc, opts, zero == nil || add == nil || sub == nil,
		func(k K, v V, old A, found bool) A {
			if !found {
				old = zero()
			}
			return add(k, v, old)
		}, sub)
}

func (g GroupedTable[K, V]) aggregate[A any](op, name string, acc serde.Serde[A], opts []StoreOption, isNil bool,
	add func(K, V, A, bool) A, sub func(K, V, A) A) Table[K, A] {
	if g.b == nil {
		panic("weir: " + op + " of a GroupedTable that is not from a Builder")
	}
	dead := Table[K, A]{b: g.b}
	if g.group == nil || !g.b.open(op) {
		return dead
	}
	switch {
	case isNil:
		g.b.fail(op, errNilFunction)
		return dead
	case acc == nil:
		g.b.fail(op, errors.New("the serde of the aggregate is nil"))
		return dead
	}
	sc := newStoreConfig()
	if !sc.apply(g.b, op, opts) {
		return dead
	}
	if !g.group.made {
		g.group.source, g.group.made = g.group.make(), true
	}
	if g.group.source == nil {
		return dead
	}
	n := g.b.addStoreNode(op, name, sc, g.group.source, g.key, acc)
	if n == nil {
		return dead
	}
	key := g.key
	n.wire = func(w *wiring) any {
		a := &tableAggregator[K, V, A]{ctx: w.ctx, name: name, store: newTableStore(w, name, key, acc), sendsOld: n.sendsOld,
			add: add, sub: sub, next: children[change[K, A]](w, n)}
		return a.process
	}
	return newTable(n, name, key, acc)
}

// tableAggregator folds the changes of a table into the aggregates of its groups.
type tableAggregator[K, V, A any] struct {
	ctx      *task.Context
	name     string
	store    *tableStore[K, A]
	sendsOld bool
	add      func(K, V, A, bool) A
	sub      func(K, V, A) A
	out      change[K, A]
	next     func(*change[K, A]) error
}

func (a *tableAggregator[K, V, A]) process(in *change[K, V]) (err error) {
	a.ctx.Enter(a.name)
	if err = a.store.load(in.key); err != nil {
		return err
	}
	out := &a.out
	var none A
	out.key, out.ts, out.headers = in.key, in.ts, in.headers
	out.new, out.hasNew, out.old, out.hasOld = none, false, none, false
	if a.store.found {
		out.ts = max(in.ts, a.store.ts)
		if out.new, err = a.store.old(); err != nil {
			return err
		}
		out.hasNew = true
		if a.sendsOld {
			if out.old, err = a.store.old(); err != nil {
				return err
			}
			out.hasOld = true
		}
		if in.hasOld {
			out.new = a.sub(in.key, in.old, out.new)
		}
	}
	if in.hasNew {
		out.new = a.add(in.key, in.new, out.new, out.hasNew)
		out.hasNew = true
	}
	if !out.hasNew {
		// Something is taken away from an aggregate that is not there.
		return a.next(out)
	}
	if err = a.store.encode(out.new, out.ts); err != nil {
		return err
	}
	if err = a.store.write(); err != nil {
		return err
	}
	return a.next(out)
}
