// Package state is the seam between the runtime and the stores: what a backend
// (memory, Pebble, Redis, SQL) has to do so that a task's state survives
// crashes, pauses and failovers under one commit protocol.
//
// A view is the state of one task: all its stores are key prefixes in it, and
// one Apply covers all of them. A view is materialised from the changelog and
// is never the truth: it may be behind Kafka, and the runtime then replays the
// missing tail. (Not so with an Outbox under at least once: there is no
// changelog then.) What it must never be is torn. Data and token change in one
// atomic unit, and a caller that holds another token than the stored one is
// refused with ErrFenced.
//
// Everything here is bytes. Keys compare as unsigned bytes.
package state

import (
	"context"
	"errors"
	"fmt"
)

// Token is what a view stores beside its data, written in the same atomic
// unit. A backend only compares it for equality; its contents belong to the
// claimer. The empty Token means that the view does not exist.
type Token string

// ID names a view: the application and the task, as in "ratings" and "0_3".
type ID struct {
	Application string
	Task        string
}

// String returns application and task joined by a slash.
func (id ID) String() string { return id.Application + "/" + id.Task }

// Errors that a backend returns, wrapped with what it was doing.
var (
	// ErrFenced says that the stored token is not the one the caller expected:
	// the view was claimed by a newer owner, or the backend lost writes.
	ErrFenced = errors.New("state: fenced: the stored token is not the expected one")
	// ErrCorrupt says that the backend found its own data damaged. The view
	// has to be dropped and rebuilt from the changelog.
	ErrCorrupt = errors.New("state: stored data is corrupt")
	// ErrLocked says that another process holds the backend's storage.
	ErrLocked = errors.New("state: storage is locked by another process")
	// ErrFull says that the backend has no room: disk full, out of memory.
	// Nothing of the refused write was stored.
	ErrFull = errors.New("state: storage is full")
	// ErrUnavailable says that a remote backend cannot be reached or cannot
	// serve now. Whether the call was carried out is unknown. It passes: the
	// caller pauses, reads the token again, and goes on from there.
	ErrUnavailable = errors.New("state: storage is unavailable")
	// ErrClosed says that the backend or the view was closed.
	ErrClosed = errors.New("state: closed")
)

// FencedError carries the token that was found instead of the expected one.
// It matches ErrFenced.
type FencedError struct {
	ID     ID
	Stored Token // "" when the view is gone
}

func (e *FencedError) Error() string {
	if e.Stored == "" {
		return fmt.Sprintf("view %s: state: fenced: the view is gone", e.ID)
	}
	return fmt.Sprintf("view %s: state: fenced: another token is stored", e.ID)
}

// Is makes errors.Is(err, ErrFenced) true.
func (e *FencedError) Is(target error) bool { return target == ErrFenced }

// Backend keeps views. Its methods are safe for concurrent use.
type Backend interface {
	// Token returns the stored token of a view without fencing anything, or
	// "" when there is no such view.
	Token(ctx context.Context, id ID) (Token, error)

	// Claim replaces the token old by new, by compare-and-swap, and returns
	// the view under the new token. With old == "" it makes the view, which
	// must not exist. From then on every handle of the view that expects
	// another token is refused. A mismatch is a *FencedError and changes
	// nothing. Old and new must differ and new must not be empty.
	Claim(ctx context.Context, id ID, old, new Token) (View, error)

	// Committed returns an unfenced reader of what the view holds, for
	// queries. It sees whole Applies only. A view that does not exist reads
	// as empty.
	Committed(id ID) Reader

	// Drop removes a view and its token, whoever owns it. Dropping a view
	// that does not exist is no error.
	Drop(ctx context.Context, id ID) error

	// Views calls yield with each view of the application that the backend
	// holds locally, in no particular order, until yield returns false. It is
	// how a restarted process tells the group which tasks it has state for;
	// a remote backend, which is equally near to everybody, yields nothing.
	Views(ctx context.Context, application string, yield func(ID, Token) bool) error

	// Close releases the backend. It is idempotent.
	Close() error
}

// Remote is implemented by a Backend whose calls cross a network. The runtime
// then reads the keys of the records at hand in one call before it needs them.
type Remote interface {
	Backend
	// Remote says whether they do.
	Remote() bool
}

// Unordered is implemented by a Backend that can keep the keys of some stores
// without order, and cheaper so.
type Unordered interface {
	Backend
	// KeepUnordered names the stores of an application of which no range will
	// be asked. It is called before the first Claim of the application. Views
	// that exist keep their form.
	KeepUnordered(application string, stores []string)
}

// View is the state of one claimed task. One goroutine uses it at a time.
type View interface {
	// Apply stores the batch and replaces the token old by new, all of it or
	// nothing, by compare-and-swap. When the stored token already is new the
	// batch was applied before (its reply was lost): Apply then returns nil
	// and changes nothing. Any other token is a *FencedError.
	// Batch keeps ownership of its bytes: a backend copies what it keeps.
	Apply(ctx context.Context, old, new Token, b *Batch) error

	// Read calls visit once per key, in any order, with the index of the key
	// and its value, nil for an absent one (a present, empty value is a
	// non-nil empty slice). Value is valid only during the call. Values and
	// token come from one atomic read: when the stored token is not expect
	// the whole read is refused with a *FencedError and visit is not called.
	Read(ctx context.Context, expect Token, keys [][]byte, visit func(i int, value []byte)) error

	// Iterate returns the entries of a range in key order, fenced like Read:
	// an iterator whose view was claimed by another owner fails instead of
	// yielding entries of another state.
	Iterate(ctx context.Context, expect Token, r Range) Iterator

	// Bulk starts a restore: many puts and deletes whose progress is stored
	// by Checkpoint. Other methods of the view must not be called until the
	// Bulk is closed.
	Bulk(ctx context.Context, old Token) (Bulk, error)

	// Clear replaces the view by an empty one with the token new, by
	// compare-and-swap; readers see the old contents or none, never a part.
	Clear(ctx context.Context, old, new Token) error

	// ApproximateCount estimates the number of entries of a range. Its error
	// is unbounded, it is meant for metrics and people.
	ApproximateCount(ctx context.Context, r Range) (int64, error)

	// Close releases the handle, not the view. It is idempotent.
	Close() error
}

// Reader reads committed contents without a fence. It is safe for concurrent
// use and needs no closing.
type Reader interface {
	// Read is View.Read without the comparison; it returns the token that the
	// values belong to.
	Read(ctx context.Context, keys [][]byte, visit func(i int, value []byte)) (Token, error)
	// Iterate is View.Iterate without the comparison. Entries come from one
	// consistent snapshot where the backend has them, else each entry is from
	// some committed state.
	Iterate(ctx context.Context, r Range) Iterator
}

// Bulk is a restore in progress. One goroutine uses it.
type Bulk interface {
	// Put stores a value; Delete removes one. Later calls for a key win. Key
	// and value are copied. Their effect is undefined, but never visible
	// under a token, until the next Checkpoint.
	Put(key, value []byte) error
	Delete(key []byte) error
	// Checkpoint stores all that came before together with the token new, all
	// or nothing: after a crash the view holds what one Checkpoint stored.
	Checkpoint(ctx context.Context, new Token) error
	// Close ends the restore. What came after the last Checkpoint is
	// dropped. It is idempotent.
	Close() error
}

// Range selects the keys Lower <= key < Upper; nil bounds are open.
type Range struct {
	Lower, Upper []byte
	Reverse      bool // from the largest key to the smallest
}

// Iterator walks a range. Key and Value are valid until the next call of Next
// or Close. After Next returned false, Err tells whether the range ended or
// failed.
type Iterator interface {
	Next() bool
	Key() []byte
	Value() []byte
	Err() error
	Close() error
}

// Empty is an iterator over nothing that ends with err, which may be nil.
func Empty(err error) Iterator { return &empty{err} }

type empty struct{ err error }

func (*empty) Next() bool    { return false }
func (*empty) Key() []byte   { return nil }
func (*empty) Value() []byte { return nil }
func (e *empty) Err() error  { return e.err }
func (*empty) Close() error  { return nil }

// PrefixRange returns the range of all keys that begin with prefix.
func PrefixRange(prefix []byte) Range {
	upper := append([]byte(nil), prefix...)
	for i := len(upper) - 1; i >= 0; i-- {
		if upper[i]++; upper[i] != 0 {
			return Range{Lower: prefix, Upper: upper[:i+1]}
		}
	}
	return Range{Lower: prefix}
}
