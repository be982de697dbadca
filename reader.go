package weir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/weirstreams/weir/internal/keyenc"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/internal/worker"
)

// Reader reads a table while the App runs. It sees committed batches only, each
// as a whole per task. It is safe for concurrent use, but not from the functions
// and processors of the App's own topology: they run while the worker has its
// tasks to itself, and a read would wait for them for ever.
type Reader[K, V any] struct {
	app   *App
	table Table[K, V]
	local bool
}

// Entry is one entry of a table. Time is the timestamp of its last update.
type Entry[K, V any] struct {
	Key   K
	Value V
	Time  time.Time
}

// Read returns a reader of a table of the App's topology. A derived table
// (Filter, MapValues) is computed from the store above it.
func (a *App) Read[K, V any](t Table[K, V]) Reader[K, V] { return Reader[K, V]{app: a, table: t} }

// Local returns a reader whose Range yields what is on this instance, without
// an error for the tasks that are not.
func (r Reader[K, V]) Local() Reader[K, V] {
	r.local = true
	return r
}

// Get returns the value of a key and whether there is one. ErrNotOwner says
// that the key's task is on another instance, ErrRestoring that it is not
// ready yet. The task is found by murmur2 of the key's bytes, as the Java
// client and Weir's own topics place records.
func (r Reader[K, V]) Get(ctx context.Context, k K) (v V, found bool, err error) {
	if err = ctx.Err(); err != nil {
		return v, false, err
	}
	key, err := r.table.k.serde.Append(nil, k)
	if err != nil {
		return v, false, fmt.Errorf("key for store %q: %w", r.table.store, err)
	}
	raw, found, err := r.app.get(r.table.store, key)
	if err != nil || !found {
		return v, false, err
	}
	v, _, found, err = r.table.view(k, raw)
	return v, found, err
}

// Range yields the entries within bounds in the order of the keys' bytes, over
// all tasks of the table. Each page of entries is from one commit of its task;
// commits between two pages show. An error ends the range: ErrNotOwner when a
// task of the table is on another instance (see Local), ErrRestoring when one
// is not ready.
func (r Reader[K, V]) Range(ctx context.Context, b Bounds[K]) iter.Seq2[Entry[K, V], error] {
	return func(yield func(Entry[K, V], error) bool) {
		if r.app.topology.stores()[r.table.store].unordered {
			yield(Entry[K, V]{}, fmt.Errorf("range over store %q: %w: declare it without PointLookups", r.table.store, ErrUnordered))
			return
		}
		lower, upper, err := b.encode(r.table.k.serde)
		if err != nil {
			yield(Entry[K, V]{}, fmt.Errorf("range over store %q: %w", r.table.store, err))
			return
		}
		for kv, err := range r.app.scan(ctx, r.table.store, lower, upper, b.reverse, r.local) {
			var e Entry[K, V]
			found := false
			if err == nil {
				e.Key, err = r.table.k.serde.Decode(kv.Key)
			}
			if err == nil {
				var ts int64
				e.Value, ts, found, err = r.table.view(e.Key, kv.Value)
				e.Time = time.UnixMilli(ts).UTC()
			}
			if err != nil {
				yield(Entry[K, V]{}, err)
				return
			}
			if found && !yield(e, nil) {
				return
			}
		}
	}
}

// running returns what a query needs: the subtopology of a store, its number of
// tasks, and over how many of them the keys of the store are spread.
func (a *App) running(store string) (sub, tasks, spread int32, workers []*worker.Worker, err error) {
	sub = -1
	for _, s := range a.topology.graph.Subtopologies {
		for _, st := range s.Stores {
			if st.Name == store {
				sub = s.ID
			}
		}
	}
	if sub < 0 {
		return 0, 0, 0, nil, fmt.Errorf("%w: %q", ErrNoSuchStore, store)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.mu.state == Created || a.mu.state == Starting:
		return 0, 0, 0, nil, fmt.Errorf("%w: its state is %v", ErrRestoring, a.mu.state)
	case len(a.mu.workers) == 0:
		return 0, 0, 0, nil, fmt.Errorf("%w: its state is %v", ErrNotRunning, a.mu.state)
	}
	return sub, a.mu.tasks[sub], a.mu.spread[store], slices.Clone(a.mu.workers), nil
}

// withTask calls fn with a task that runs on this instance.
func withTask(workers []*worker.Worker, id topology.TaskID, fn func(*task.Task) error) error {
	for _, w := range workers {
		err := w.Read(id, fn)
		if !errors.Is(err, worker.ErrNotHere) {
			return err
		}
	}
	return worker.ErrNotHere
}

// get reads the bytes of one key from the store that has it.
func (a *App) get(store string, key []byte) (raw []byte, found bool, err error) {
	sub, _, spread, workers, err := a.running(store)
	if err != nil {
		return nil, false, err
	}
	id := topology.TaskID{Subtopology: sub, Partition: keyenc.Partition(key, spread)}
	err = withTask(workers, id, func(t *task.Task) (err error) {
		raw, found, err = t.Store(store).GetCommitted(key)
		return err
	})
	if err != nil {
		return nil, false, a.notHere(fmt.Errorf("store %q, task %s: %w", store, id, err))
	}
	return raw, found, nil
}

// notHere turns an error of a read into a public one. While the group gives
// tasks out, a task that is nowhere yet is restoring and not elsewhere; during a
// stop it is gone, and may be nowhere else yet.
func (a *App) notHere(err error) error {
	if errors.Is(err, worker.ErrNotHere) {
		switch s := a.State(); s {
		case Restoring:
			return fmt.Errorf("%w: %w", ErrRestoring, err)
		case Closing, Closed, Failed:
			return fmt.Errorf("%w: its state is %v: %w", ErrNotRunning, s, err)
		}
	}
	return public(err)
}

// pageSize is how many entries one look into a task's store returns.
const pageSize = 256

// cursor walks the entries of one task.
type cursor struct {
	id   topology.TaskID
	page []task.KV
	last bool
}

// scan yields the bytes of a range over all tasks of a store, merged in order.
func (a *App) scan(ctx context.Context, store string, lower, upper []byte, reverse, local bool) iter.Seq2[task.KV, error] {
	return func(yield func(task.KV, error) bool) {
		sub, tasks, _, workers, err := a.running(store)
		if err != nil {
			yield(task.KV{}, err)
			return
		}
		if lower != nil && upper != nil && bytes.Compare(lower, upper) >= 0 {
			return
		}
		fill := func(c *cursor, lower, upper []byte) error {
			return withTask(workers, c.id, func(t *task.Task) (err error) {
				c.page, err = t.Store(store).PageCommitted(lower, upper, reverse, pageSize)
				c.last = len(c.page) < pageSize
				return err
			})
		}
		var cursors []*cursor
		for p := range tasks {
			c := &cursor{id: topology.TaskID{Subtopology: sub, Partition: p}}
			err := fill(c, lower, upper)
			if local && errors.Is(err, worker.ErrNotHere) {
				continue
			}
			if err != nil {
				yield(task.KV{}, a.notHere(fmt.Errorf("store %q, task %s: %w", store, c.id, err)))
				return
			}
			cursors = append(cursors, c)
		}
		for {
			var next *cursor
			for _, c := range cursors {
				if len(c.page) > 0 && (next == nil || bytes.Compare(c.page[0].Key, next.page[0].Key) < 0 != reverse) {
					next = c
				}
			}
			if next == nil {
				return
			}
			kv := next.page[0]
			if err := ctx.Err(); err != nil {
				yield(task.KV{}, err)
				return
			}
			if !yield(kv, nil) {
				return
			}
			if next.page = next.page[1:]; len(next.page) > 0 || next.last {
				continue
			}
			var err error
			if reverse {
				err = fill(next, lower, kv.Key)
			} else {
				err = fill(next, append(slices.Clone(kv.Key), 0), upper)
			}
			if err != nil {
				yield(task.KV{}, a.notHere(fmt.Errorf("store %q, task %s: %w", store, next.id, err)))
				return
			}
		}
	}
}
