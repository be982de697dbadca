// Package memstore keeps views in the memory of the process, as ordered trees.
//
// Nothing survives the process; the runtime rebuilds a view from the changelog
// when it is assigned anew. Memory used is close to the size of the data: an
// entry is one allocation of key and value, plus 24 bytes in a tree node.
package memstore

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tidwall/btree"

	"github.com/weirstreams/weir/state"
)

// Backend keeps views in memory. Make one with New.
//
// It is safe for concurrent use: each view has one writer at a time and any
// number of readers. A fenced read and an Apply of the same view exclude each
// other; iterators work on a copy-on-write snapshot and block nobody.
type Backend struct {
	bytes  atomic.Int64
	closed atomic.Bool
	shared bool

	mu struct {
		sync.RWMutex
		views map[state.ID]*view
	}
}

var _ state.Outbox = (*Backend)(nil)

// New returns an empty backend.
func New() *Backend {
	b := &Backend{}
	b.mu.views = map[state.ID]*view{}
	return b
}

// NewShared returns an empty backend that says that it is remote: it is nobody's
// own, so it lists no views, and under at least once it keeps the outputs beside
// the state as Redis does. It stands for such a store in tests, and serves
// several Apps of one process.
func NewShared() *Backend {
	b := New()
	b.shared = true
	return b
}

// Remote implements state.Remote.
func (b *Backend) Remote() bool { return b.shared }

// entry is a key, and behind it, between its length and its capacity, the
// value: one allocation for both and one slice header to find them.
type entry []byte

func makeEntry(key, value []byte) entry {
	e := make([]byte, len(key), len(key)+len(value))
	copy(e, key)
	copy(e[len(key):cap(e)], value)
	return e
}

func (e entry) key() []byte   { return e[:len(e):len(e)] }
func (e entry) value() []byte { return e[len(e):cap(e):cap(e)] }

func less(a, b entry) bool { return bytes.Compare(a, b) < 0 }

type tree = btree.BTreeG[entry]

func newTree() *tree { return btree.NewBTreeGOptions(less, btree.Options{NoLocks: true}) }

// view is the state of one task. It stays in the backend's map after a Drop,
// because handles point to it; it then has no token and an empty tree.
type view struct {
	id state.ID

	// version changes whenever the token does, so that an iterator can
	// notice without taking the lock.
	version atomic.Uint64

	mu struct {
		sync.RWMutex
		token state.Token // "" when the view does not exist
		tree  *tree
		bytes int64
		slots map[int][]byte // of the outbox
		// snapshot is an immutable copy of tree that iterators share, nil
		// after a write. Making one costs nothing; what it costs is that the
		// next writes copy the nodes they touch.
		snapshot *tree
	}
}

// lookup returns the view, or nil when it was never made.
func (b *Backend) lookup(id state.ID) *view {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.mu.views[id]
}

func (b *Backend) lookupOrMake(id state.ID) *view {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.mu.views[id]
	if v == nil {
		v = &view{id: id}
		v.mu.tree = newTree()
		b.mu.views[id] = v
	}
	return v
}

// check reports why an operation cannot start.
func (b *Backend) check(ctx context.Context) error {
	if b.closed.Load() {
		return fmt.Errorf("memory store: %w", state.ErrClosed)
	}
	return ctx.Err()
}

// Bytes is the sum of the lengths of all keys and values that the backend
// holds. The memory used is this plus about 40 bytes for each entry.
func (b *Backend) Bytes() int64 { return b.bytes.Load() }

// Token implements state.Backend.
func (b *Backend) Token(ctx context.Context, id state.ID) (state.Token, error) {
	if err := b.check(ctx); err != nil {
		return "", err
	}
	v := b.lookup(id)
	if v == nil {
		return "", nil
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.mu.token, nil
}

// Claim implements state.Backend.
func (b *Backend) Claim(ctx context.Context, id state.ID, old, new state.Token) (state.View, error) {
	if err := checkTokens("claim", id, old, new); err != nil {
		return nil, err
	}
	if err := b.check(ctx); err != nil {
		return nil, err
	}
	v := b.lookupOrMake(id)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.token != old {
		return nil, v.fenced()
	}
	v.setToken(new)
	return &handle{b: b, v: v}, nil
}

// Committed implements state.Backend.
func (b *Backend) Committed(id state.ID) state.Reader { return &reader{b: b, id: id} }

// Drop implements state.Backend.
func (b *Backend) Drop(ctx context.Context, id state.ID) error {
	if err := b.check(ctx); err != nil {
		return err
	}
	v := b.lookup(id)
	if v == nil {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.replace(b, newTree(), 0)
	v.mu.slots = nil
	v.setToken("")
	return nil
}

// Views implements state.Backend.
func (b *Backend) Views(ctx context.Context, application string, yield func(state.ID, state.Token) bool) error {
	if err := b.check(ctx); err != nil {
		return err
	}
	if b.shared {
		return nil
	}
	b.mu.RLock()
	var views []*view
	for id, v := range b.mu.views {
		if id.Application == application {
			views = append(views, v)
		}
	}
	b.mu.RUnlock()
	// yield is foreign code: it is called without a lock.
	for _, v := range views {
		v.mu.RLock()
		token := v.mu.token
		v.mu.RUnlock()
		if token != "" && !yield(v.id, token) {
			return nil
		}
	}
	return nil
}

// Close implements state.Backend. It drops all contents.
func (b *Backend) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	b.mu.Lock()
	views := b.mu.views
	b.mu.views = nil
	b.mu.Unlock()
	for _, v := range views {
		v.mu.Lock()
		v.replace(b, newTree(), 0)
		v.mu.Unlock()
	}
	return nil
}

// checkTokens refuses tokens that would break compare-and-swap: an empty one
// means "no view", and new equal to old could not be told from a repetition.
func checkTokens(what string, id state.ID, old, new state.Token) error {
	if new == "" {
		return fmt.Errorf("%s view %s: the new token is empty", what, id)
	}
	if old == new {
		return fmt.Errorf("%s view %s: the new token is the old one", what, id)
	}
	return nil
}

// The methods below need v.mu.

func (v *view) fenced() error { return &state.FencedError{ID: v.id, Stored: v.mu.token} }

func (v *view) setToken(t state.Token) {
	v.mu.token = t
	v.version.Add(1)
}

// replace puts another tree in place. Iterators keep the one they have.
func (v *view) replace(b *Backend, t *tree, bytes int64) {
	b.bytes.Add(bytes - v.mu.bytes)
	v.mu.tree, v.mu.bytes, v.mu.snapshot = t, bytes, nil
}

// put stores a copy of key and value in t and returns by how much the data
// grew.
func put(t *tree, key, value []byte) int64 {
	e := makeEntry(key, value)
	old, replaced := t.Set(e)
	if !replaced {
		return int64(cap(e))
	}
	return int64(cap(e) - cap(old))
}

// remove deletes a key and returns by how much the data grew, which is
// negative.
func remove(t *tree, key []byte) int64 {
	old, found := t.Delete(entry(key))
	if !found {
		return 0
	}
	return -int64(cap(old))
}
