package weirtest

import (
	"errors"
	"iter"
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/bridge"
	"github.com/weirstreams/weir/internal/keyenc"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/internal/worker"
)

// View reads a table or a store, as queries do: what is committed.
type View[K, V any] struct {
	d    *Driver
	from bridge.Contents
	hash bool
}

// Table returns a view of a table. A key is looked for in the task that its hash
// belongs to, as App.Read does it.
func (d *Driver) Table[K, V any](t weir.Table[K, V]) View[K, V] {
	d.t.Helper()
	return view[K, V](d, t, true)
}

// Store returns a view of the store of a processor. A key is looked for in all
// tasks.
func (d *Driver) Store[K, V any](s *weir.KeyValueStore[K, V]) View[K, V] {
	d.t.Helper()
	return view[K, V](d, s, false)
}

func view[K, V any](d *Driver, from any, hash bool) View[K, V] {
	d.t.Helper()
	c := bridge.ContentsOf(from)
	if c.Store == "" {
		d.t.Fatal("weirtest: the table is not part of the topology")
	}
	return View[K, V]{d, c, hash}
}

// Get returns the value of a key and whether there is one.
func (v View[K, V]) Get(key K) (value V, found bool) {
	v.d.t.Helper()
	k, err := v.from.Key(key)
	if err != nil {
		v.d.t.Fatalf("weirtest: key for store %q: %v", v.from.Store, err)
	}
	for p, n := range v.d.partitions(v.from.Store, k, v.hash) {
		var raw []byte
		has := false
		v.d.read(v.from.Store, p, n, func(s *task.Store) (err error) {
			raw, has, err = s.GetCommitted(k)
			return err
		})
		if has {
			return v.decode(key, raw)
		}
	}
	return value, false
}

func (v View[K, V]) decode(key K, raw []byte) (value V, found bool) {
	v.d.t.Helper()
	got, _, found, err := v.from.Value(key, raw)
	if err != nil {
		v.d.t.Fatalf("weirtest: an entry of store %q cannot be decoded: %v", v.from.Store, err)
	}
	value, _ = got.(V)
	return value, found
}

// pageSize is how many entries are read at a time.
const pageSize = 1000

// Entries returns all entries: by task, and in each in the order of the keys'
// bytes. Time is zero where the store keeps none.
func (v View[K, V]) Entries() []weir.Entry[K, V] {
	v.d.t.Helper()
	var list []weir.Entry[K, V]
	for p, n := range v.d.partitions(v.from.Store, nil, false) {
		var lower []byte
		for more := true; more; {
			var page []task.KV
			v.d.read(v.from.Store, p, n, func(s *task.Store) (err error) {
				page, err = s.PageCommitted(lower, nil, false, pageSize)
				return err
			})
			more = len(page) == pageSize
			for _, kv := range page {
				lower = append(append(lower[:0], kv.Key...), 0)
				k, err := v.from.KeyOf(kv.Key)
				if err != nil {
					v.d.t.Fatalf("weirtest: a key of store %q cannot be decoded: %v", v.from.Store, err)
				}
				got, ts, found, err := v.from.Value(k, kv.Value)
				if err != nil {
					v.d.t.Fatalf("weirtest: an entry of store %q cannot be decoded: %v", v.from.Store, err)
				}
				if !found {
					continue
				}
				var e weir.Entry[K, V]
				e.Key, _ = k.(K)
				e.Value, _ = got.(V)
				if ts >= 0 {
					e.Time = time.UnixMilli(ts).UTC()
				}
				list = append(list, e)
			}
		}
	}
	return list
}

// partitions yields the tasks of a store, with their subtopology, that may have a
// key: all, or that of its hash.
func (d *Driver) partitions(store string, key []byte, hash bool) iter.Seq2[int32, int32] {
	return func(yield func(partition, subtopology int32) bool) {
		for _, s := range d.runtime.Graph.Subtopologies {
			for _, st := range s.Stores {
				if st.Name != store {
					continue
				}
				for p := range d.res.Tasks[s.ID] {
					if hash && p != keyenc.Partition(key, d.res.Stores[store]) {
						continue
					}
					if !yield(p, s.ID) {
						return
					}
				}
			}
		}
	}
}

// read calls f with a store of a task that runs.
func (d *Driver) read(store string, partition, subtopology int32, f func(*task.Store) error) {
	d.t.Helper()
	id := topology.TaskID{Subtopology: subtopology, Partition: partition}
	for _, in := range d.instances {
		if in.state != Running {
			continue
		}
		err := in.worker.Read(id, func(t *task.Task) error { return f(t.Store(store)) })
		switch {
		case err == nil:
			return
		case !errors.Is(err, worker.ErrNotHere) && !errors.Is(err, worker.ErrRestoring):
			d.t.Fatalf("weirtest: read store %q of task %s: %v", store, id, err)
		}
	}
	d.t.Fatalf("weirtest: store %q cannot be read: task %s does not run\n%s", store, id, d.describe())
}
