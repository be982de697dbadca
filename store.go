package weir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/serde"
)

// StoreOption is an option of a step that keeps a store.
type StoreOption interface {
	TableOption
	applyStore(*storeConfig)
}

type storeConfig struct {
	logged    bool
	unordered bool
}

func newStoreConfig() storeConfig { return storeConfig{logged: true} }

func (c *storeConfig) apply(b *Builder, op string, opts []StoreOption) bool {
	for _, o := range opts {
		if o == nil {
			b.fail(op, errNilOption)
			return false
		}
		o.applyStore(c)
	}
	return true
}

type storeOption func(*storeConfig)

func (o storeOption) applyStore(c *storeConfig)                  { o(c) }
func (o storeOption) applyTable(_ *sourceConfig, c *storeConfig) { o(c) }

// WithoutChangelog keeps a store without a changelog topic. Its contents live as
// long as the task stays where it is: they are gone when the task moves to
// another instance, and after a crash they may be gone or older than the
// committed offsets. For caches and the like.
func WithoutChangelog() StoreOption {
	return storeOption(func(c *storeConfig) { c.logged = false })
}

// PointLookups says that a store is read by single keys only. A backend that
// pays for the order of keys, as Redis does with some 40 % of the memory and a
// third of the writes, leaves it away; for the others nothing changes. A range
// is refused whatever the backend is, with ErrUnordered: that of a processor
// fails the record, that of a [Reader] ends with the error. A store that exists
// keeps its form until it is rebuilt.
func PointLookups() StoreOption {
	return storeOption(func(c *storeConfig) { c.unordered = true })
}

// storeDecl is a store as a builder knows it.
type storeDecl struct {
	name        string
	by          string // the step that declared it, for errors
	logged      bool
	unordered   bool
	timestamped bool
	info        storeInfo
}

// StoreRef is a store that can be attached to a processor: a *[KeyValueStore].
type StoreRef interface {
	decl() *storeDecl
	check() error
}

// KeyValueStore is a store that processors use, by declaration: it has a name
// and types, and no contents. It is attached to the processors that use it as a
// last argument of [Stream.Process], and each opens it for its task in Init; the
// example of [Processor] does.
//
// Processors that share a store run in one subtopology, and the topics that feed
// them must have the same number of partitions.
type KeyValueStore[K, V any] struct {
	d         storeDecl
	key       serde.Serde[K]
	value     serde.Serde[V]
	nilOption bool
}

var _ StoreRef = (*KeyValueStore[string, string])(nil)

// NewKeyValueStore declares a store. It is logged to the changelog topic
// <application>-<name>-changelog unless [WithoutChangelog] is given. A bad name or
// a nil serde is an error of the processor that it is attached to.
func NewKeyValueStore[K, V any](name string, key serde.Serde[K], value serde.Serde[V], opts ...StoreOption) *KeyValueStore[K, V] {
	c := newStoreConfig()
	for _, o := range opts {
		if o != nil {
			o.applyStore(&c)
		}
	}
	s := &KeyValueStore[K, V]{key: key, value: value, nilOption: slices.Contains(opts, nil)}
	s.d = storeDecl{name: name, by: located(fmt.Sprintf("NewKeyValueStore(%q)", name)), logged: c.logged, unordered: c.unordered}
	s.d.info = newStoreInfo(name, key, plainValue(value))
	return s
}

// Name returns the name of the store.
func (s *KeyValueStore[K, V]) Name() string { return s.d.name }

func (s *KeyValueStore[K, V]) decl() *storeDecl {
	if s == nil {
		return nil
	}
	return &s.d
}

// check says what is wrong with the store, or returns nil.
func (s *KeyValueStore[K, V]) check() error {
	if s.nilOption {
		return fmt.Errorf("store %q: %w", s.d.name, errNilOption)
	}
	if s.key == nil || s.value == nil {
		return fmt.Errorf("store %q was declared without a serde for its %s: give NewKeyValueStore both", s.d.name, missingSides(s.key == nil, s.value == nil))
	}
	return nil
}

// Open returns the contents of the store in a task, for the processor that the
// task was handed to in Init. The store has to be attached to that processor;
// otherwise the task fails with an error that names both.
func (s *KeyValueStore[K, V]) Open(t *Task) KeyValue[K, V] {
	var st *task.Store
	for _, d := range t.stores {
		if d == s.decl() && d != nil {
			st = t.ctx.Store(d.name)
		}
	}
	if st == nil {
		name := "nil"
		if s != nil {
			name = fmt.Sprintf("%q", s.d.name)
		}
		t.misuse = fmt.Errorf("store %s is not attached to processor %q: pass it to Process as a last argument", name, t.name)
		return KeyValue[K, V]{}
	}
	return KeyValue[K, V]{&keyValue[K, V]{task: t, store: st, key: s.key, value: s.value, unordered: s.d.unordered}}
}

// Ahead names keys that the processor will ask the store for, from its LookAhead.
// A key that cannot be encoded is left out: Process meets the error.
func (s *KeyValueStore[K, V]) Ahead(a *Ahead, keys ...K) {
	if a == nil || a.want == nil {
		return
	}
	if s == nil || !slices.Contains(a.stores, s.decl()) {
		a.misuse = errors.New("LookAhead names keys of a store that is not attached to the processor: pass it to Process as a last argument")
		return
	}
	st := a.ctx.Store(s.d.name)
	for _, k := range keys {
		if b, err := s.key.Append(nil, k); err == nil {
			a.want(st, b)
		}
	}
}

// KeyValue is the contents of a [KeyValueStore] in one task: the keys whose
// records the task processes. It belongs to the processor that opened it and is
// used from its callbacks only. Keys are ordered by their encoded bytes.
//
// What is written is seen at once by all processors of the task that share the
// store, is committed together with the outputs of the batch, and vanishes if the
// batch is aborted. An error of the store itself makes the batch fail, whatever
// the processor does with it; an error about a key or a value that cannot be
// encoded is the processor's to handle.
//
// The zero value is not usable; every method then returns an error.
type KeyValue[K, V any] struct{ kv *keyValue[K, V] }

type keyValue[K, V any] struct {
	task      *Task
	store     *task.Store
	key       serde.Serde[K]
	value     serde.Serde[V]
	kb, vb    []byte // scratch
	unordered bool
}

var (
	errNotOpen = errors.New("the store was not opened: call Open in Init")
	errClosed  = errors.New("the task is closed: its stores cannot be used any more")
)

// usable says why the store cannot be used, or returns nil.
func (s KeyValue[K, V]) usable() error {
	switch {
	case s.kv == nil:
		return errNotOpen
	case s.kv.task.closed:
		return errClosed
	}
	return nil
}

// encodeKey leaves the bytes of a key in the scratch buffer.
func (s *keyValue[K, V]) encodeKey(k K) error {
	b, err := s.key.Append(s.kb[:0], k)
	if err != nil {
		return fmt.Errorf("key for store %q: %w", s.store.Spec.Name, err)
	}
	s.kb = b
	return nil
}

// Get returns the value of a key and whether there is one.
func (s KeyValue[K, V]) Get(k K) (v V, found bool, err error) {
	if err = s.usable(); err != nil {
		return v, false, err
	}
	if err = s.kv.encodeKey(k); err != nil {
		return v, false, err
	}
	raw, found, err := s.kv.store.Get(s.kv.kb)
	if err != nil || !found {
		return v, false, err
	}
	if v, err = s.kv.value.Decode(raw); err != nil {
		return v, false, s.kv.store.Fail("decode a value", err)
	}
	return v, true, nil
}

// Put sets the value of a key. On the changelog the write has the timestamp of
// the record being processed, in a punctuation that of the punctuation.
func (s KeyValue[K, V]) Put(k K, v V) error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := s.kv.encodeKey(k); err != nil {
		return err
	}
	b, err := s.kv.value.Append(s.kv.vb[:0], v)
	if err != nil {
		return fmt.Errorf("value for store %q: %w", s.kv.store.Spec.Name, err)
	}
	s.kv.vb = b
	return s.kv.store.Put(s.kv.kb, b, s.kv.task.now)
}

// Delete removes a key. Removing one that is not there is no error.
func (s KeyValue[K, V]) Delete(k K) error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := s.kv.encodeKey(k); err != nil {
		return err
	}
	return s.kv.store.Delete(s.kv.kb, s.kv.task.now)
}

// Range yields the entries within bounds in the order of the keys' bytes. The
// loop may be left at any time and may write to the store: a key that is added
// ahead is seen, one that is deleted ahead is not. Range has no way to return an
// error: a store that fails, or an entry or a bound that cannot be decoded or
// encoded, ends the range early and fails the record, whatever the processor
// returns.
func (s KeyValue[K, V]) Range(b Bounds[K]) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		if err := s.usable(); err != nil {
			if s.kv != nil {
				s.kv.task.fail(err)
			}
			return
		}
		if s.kv.unordered {
			s.kv.task.fail(fmt.Errorf("range over store %q: %w: declare it without PointLookups", s.kv.store.Spec.Name, ErrUnordered))
			return
		}
		lower, upper, err := b.encode(s.kv.key)
		if err != nil {
			s.kv.task.fail(fmt.Errorf("range over store %q: %w", s.kv.store.Spec.Name, err))
			return
		}
		s.kv.scan(lower, upper, b.reverse, yield)
	}
}

func (s *keyValue[K, V]) scan(lower, upper []byte, reverse bool, yield func(K, V) bool) {
	if lower != nil && upper != nil && string(lower) >= string(upper) {
		return
	}
	err := s.store.Range(lower, upper, reverse, func(key, value []byte) bool {
		k, err := s.key.Decode(key)
		if err != nil {
			s.store.Fail("decode a key", err)
			return false
		}
		v, err := s.value.Decode(value)
		if err != nil {
			s.store.Fail("decode a value", err)
			return false
		}
		return yield(k, v)
	})
	if err != nil {
		s.store.Fail("range", err) // kept; the first error of the batch counts
	}
}

// ApproximateCount estimates the number of keys in the task's part of the store.
// The error of the estimate has no bound: it is for metrics and people.
func (s KeyValue[K, V]) ApproximateCount() (int64, error) {
	if err := s.usable(); err != nil {
		return 0, err
	}
	return s.kv.store.Count()
}

// timestampLen is the length of the timestamp in front of a value in the store
// of a table.
const timestampLen = 8

var errShortValue = errors.New("it is shorter than the timestamp in front of it")

// splitTimestamped takes a value of a timestamped store apart.
func splitTimestamped(raw []byte) (ts int64, value []byte, err error) {
	if len(raw) < timestampLen {
		return 0, nil, errShortValue
	}
	return int64(binary.BigEndian.Uint64(raw)), raw[timestampLen:], nil
}

// tableStore is the store of a table or an aggregate in a task: values with
// timestamps, for one key at a time.
type tableStore[K, V any] struct {
	store *task.Store
	key   serde.Serde[K]
	value serde.Serde[V]

	// What load found. The bytes are valid until the next call on any store.
	found bool
	ts    int64
	body  []byte

	kb, vb []byte // the encoded key, and an encoded timestamp and value
}

func newTableStore[K, V any](w *wiring, name string, key serde.Serde[K], value serde.Serde[V]) *tableStore[K, V] {
	return &tableStore[K, V]{store: w.ctx.Store(name), key: key, value: value}
}

// load looks a key up. The other methods are about this key.
func (s *tableStore[K, V]) load(k K) error {
	b, err := s.key.Append(s.kb[:0], k)
	if err != nil {
		return task.Classify(task.ClassProduce, fmt.Errorf("key for store %q: %w", s.store.Spec.Name, err))
	}
	s.kb = b
	raw, found, err := s.store.Get(b)
	s.found, s.ts, s.body = found, 0, nil
	if err != nil || !found {
		return err
	}
	if s.ts, s.body, err = splitTimestamped(raw); err != nil {
		return s.store.Fail("decode a value", err)
	}
	return nil
}

// old decodes what load found. Each call makes another value, so that a function
// which changes one in place does not change the other.
func (s *tableStore[K, V]) old() (V, error) {
	v, err := s.value.Decode(s.body)
	if err != nil {
		return v, s.store.Fail("decode a value", err)
	}
	return v, nil
}

// encode prepares a value for write.
func (s *tableStore[K, V]) encode(v V, ts int64) error {
	b, err := s.value.Append(binary.BigEndian.AppendUint64(s.vb[:0], uint64(ts)), v)
	if err != nil {
		return task.Classify(task.ClassProduce, fmt.Errorf("value for store %q: %w", s.store.Spec.Name, err))
	}
	if len(b) < timestampLen || binary.BigEndian.Uint64(b) != uint64(ts) {
		return task.Classify(task.ClassProduce, fmt.Errorf("value for store %q: Append of the serde %s does not append to the slice it is given",
			s.store.Spec.Name, serde.NameOf(s.value)))
	}
	s.vb = b
	return nil
}

// same says whether the value that was encoded has the bytes that load found.
func (s *tableStore[K, V]) same() bool {
	return s.found && string(s.vb[timestampLen:]) == string(s.body)
}

// write stores the value that was encoded.
func (s *tableStore[K, V]) write() error {
	return s.store.Put(s.kb, s.vb, int64(binary.BigEndian.Uint64(s.vb)))
}

// remove deletes the key, if it is there.
func (s *tableStore[K, V]) remove(ts int64) error {
	if !s.found {
		return nil
	}
	return s.store.Delete(s.kb, ts)
}
