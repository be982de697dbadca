package task

import (
	"fmt"

	"github.com/tidwall/btree"
)

// StoreSpec describes a store of a subtopology.
type StoreSpec struct {
	Name string
	// Changelog is the topic that the store's writes go to; empty for a store
	// without one, whose contents may be lost in a crash.
	Changelog string
	// Timestamped stores keep an 8-byte timestamp in front of each value. On
	// the changelog it travels as the timestamp of the record.
	Timestamped bool
}

// tsLen is the length of the timestamp in front of a timestamped value.
const tsLen = 8

// entry is one key of a store as the task knows it: what the current batch
// made of it, what was committed, and whether the backend has that yet.
//
// val is the newest value. While the entry is dirty, old is the committed one,
// unless the key was written without being read first (oldKnown false).
type entry struct {
	store *Store
	key   string
	val   []byte
	old   []byte
	ts    int64 // timestamp of the last write of this batch, for the changelog

	pendingLen int // length of the value that counts as pending

	has, oldHas, oldKnown bool
	dirty                 bool // written by the current batch
	pending               bool // committed, but not in the backend yet
	used                  bool // touched since the clock hand last passed
	gone                  bool // dropped from the store's index
}

// entryOverhead is what an entry costs besides its bytes: struct, index slot
// and ring slot.
const entryOverhead = 200

func (e *entry) size() int { return len(e.key) + cap(e.val) + cap(e.old) + entryOverhead }

// Store is a key-value store of one task, as operators see it: the writes of
// the current batch over the committed ones over the backend. One goroutine
// uses it at a time.
type Store struct {
	Spec  StoreSpec
	Index int

	task    *Task
	prefix  []byte
	entries map[string]*entry
	dirty   []*entry
	pending []*entry
	// ordered holds the entries that are dirty or pending, in key order. It is
	// made when the store is first iterated and kept from then on.
	ordered *btree.BTreeG[*entry]

	full     []byte // scratch: prefix and key
	keys     [1][]byte
	found    *entry
	visit    func(int, []byte)
	hits     int64
	misses   int64
	nextPos  int64 // changelog position of the committed contents, -1 unknown
	flushPos int64
}

func newStore(t *Task, index int, spec StoreSpec) *Store {
	s := &Store{Spec: spec, Index: index, task: t, prefix: StorePrefix(spec.Name),
		entries: make(map[string]*entry), nextPos: -1, flushPos: -1}
	s.visit = func(_ int, v []byte) {
		s.found.has = v != nil
		s.found.val = append(s.found.val[:0], v...)
	}
	return s
}

// StorePrefix is what the keys of a store begin with inside the view of its
// task: the length of the name in one byte, then the name. No prefix is the
// beginning of another, and a store keeps its keys when others come or go.
func StorePrefix(name string) []byte {
	return append([]byte{byte(len(name))}, name...)
}

// Get returns the value of a key. The slice is valid until the next call of a
// method of this task's stores and must not be changed.
func (s *Store) Get(key []byte) ([]byte, bool, error) {
	e, err := s.load(key)
	if err != nil || !e.has {
		return nil, false, err
	}
	return e.val, true, nil
}

func (s *Store) load(key []byte) (*entry, error) {
	if err := s.task.storeErr; err != nil {
		return nil, err
	}
	if e, ok := s.entries[string(key)]; ok {
		e.used = true
		s.hits++
		return e, nil
	}
	s.misses++
	e := s.task.cache.add(s, key)
	s.full = append(append(s.full[:0], s.prefix...), key...)
	s.keys[0], s.found = s.full, e
	err := s.task.view.Read(s.task.ctx, s.task.token, s.keys[:], s.visit)
	s.found = nil
	if err != nil {
		s.task.cache.remove(e)
		return nil, s.task.storeFailed(s, "get", err)
	}
	e.oldKnown = true
	s.task.cache.grew(e)
	return e, nil
}

// Put sets the value of a key. ts becomes the timestamp of the changelog
// record. Key and value are copied.
func (s *Store) Put(key, value []byte, ts int64) error { return s.write(key, value, true, ts) }

// Delete removes a key; removing an absent one is no error.
func (s *Store) Delete(key []byte, ts int64) error { return s.write(key, nil, false, ts) }

func (s *Store) write(key, value []byte, has bool, ts int64) error {
	t := s.task
	if t.storeErr != nil {
		return t.storeErr
	}
	if n := len(key) + len(value); s.Spec.Changelog != "" && n > t.cfg.MaxRecordBytes {
		return Classify(ClassProduce, fmt.Errorf("store %q: a record of %d bytes for changelog %s is larger than the limit of %d (MaxRecordBytes)",
			s.Spec.Name, n, s.Spec.Changelog, t.cfg.MaxRecordBytes))
	}
	e, ok := s.entries[string(key)]
	fresh := !ok
	if fresh {
		e = t.cache.add(s, key)
	}
	t.undo.push(e)
	if !e.dirty {
		s.markDirty(e, fresh)
		t.dirtyBytes += entryOverhead
	}
	before := cap(e.val)
	e.val = append(e.val[:0], value...)
	e.has, e.ts, e.used = has, ts, true
	t.dirtyBytes += len(key) + len(value)
	t.cache.bytes += cap(e.val) - before
	return nil
}

// markDirty keeps the committed value aside, if it is known.
func (s *Store) markDirty(e *entry, fresh bool) {
	e.dirty = true
	e.oldKnown = !fresh
	e.val, e.old = e.old, e.val
	e.oldHas = e.has
	s.dirty = append(s.dirty, e)
	if s.ordered != nil && !e.pending {
		s.ordered.Set(e)
	}
}

// clean undoes markDirty: the entry is as committed again, or gone when the
// committed value is not known.
func (s *Store) clean(e *entry) {
	e.dirty = false
	if !e.oldKnown {
		if s.ordered != nil {
			s.ordered.Delete(e)
		}
		s.task.cache.remove(e)
		return
	}
	e.val, e.old = e.old, e.val[:0]
	e.has = e.oldHas
	if s.ordered != nil && !e.pending {
		s.ordered.Delete(e)
	}
}

// abort drops the writes of the current batch.
func (s *Store) abort() {
	for i, e := range s.dirty {
		s.clean(e)
		s.dirty[i] = nil
	}
	s.dirty = s.dirty[:0]
}

// commit makes the writes of the batch committed ones, which wait for the
// backend.
func (s *Store) commit() {
	for i, e := range s.dirty {
		s.dirty[i] = nil
		e.dirty = false
		e.old = e.old[:0]
		if !e.pending {
			e.pending = true
			s.pending = append(s.pending, e)
			s.task.pendingBytes += len(e.key) + len(s.prefix) + entryOverhead
		} else {
			s.task.pendingBytes -= e.pendingLen
		}
		e.pendingLen = len(e.val)
		s.task.pendingBytes += e.pendingLen
	}
	s.dirty = s.dirty[:0]
}

// flush adds the committed writes that the backend lacks to b.
func (s *Store) flush(b *batchArena) {
	for _, e := range s.pending {
		key := b.keys.take(append(append(b.keys.tail(), s.prefix...), e.key...))
		if val, has, _ := e.committed(); has {
			b.batch.Put(key, val)
		} else {
			b.batch.Delete(key)
		}
	}
}

// flushed says that the backend has what flush gave it.
func (s *Store) flushed() {
	for i, e := range s.pending {
		s.pending[i] = nil
		e.pending = false
		if s.ordered != nil && !e.dirty {
			s.ordered.Delete(e)
		}
	}
	s.pending = s.pending[:0]
}

// committed returns what a key had at the last commit. known is false when
// only the backend can tell.
func (e *entry) committed() (val []byte, has, known bool) {
	if !e.dirty {
		return e.val, e.has, true
	}
	return e.old, e.oldHas, e.oldKnown
}
