package pebblestore

import (
	"bytes"
	"context"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/weirstreams/weir/state"
)

// iterator walks a range of a view as it was when the iterator was made: a
// Pebble iterator keeps the tables and memtables of that moment alive. So one
// that is left open holds memory and disk space.
type iterator struct {
	ctx     context.Context // of the Iterate call, which the iterator is part of
	b       *Backend
	v       *view
	reverse bool

	// fence is the token that the view has to keep, nil for none.
	fence *state.Token

	// mu lets Backend.Close end an iterator that its owner still uses.
	mu      sync.Mutex
	it      *pebble.Iterator // nil when ended
	started bool
	n       int
	err     error

	// Copies: Pebble's own bytes are gone when Backend.Close ends the
	// iterator while its owner looks at them. Written by Next only.
	key, value []byte
}

// nextCheckInterval is the number of entries between two looks at the context.
const nextCheckInterval = 256

// iterate needs v.mu for reading, and the view to exist.
func (b *Backend) iterate(ctx context.Context, v *view, fence *state.Token, r state.Range) state.Iterator {
	lower, upper := dataBounds(v.number, r)
	if bytes.Compare(lower, upper) >= 0 {
		return state.Empty(nil)
	}
	it, err := b.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return state.Empty(b.readError(v.id, err))
	}
	i := &iterator{ctx: ctx, b: b, v: v, reverse: r.Reverse, fence: fence, it: it, value: empty}
	b.iterators.Lock()
	b.iterators.open[i] = struct{}{}
	b.iterators.Unlock()
	return i
}

func (i *iterator) Next() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.it == nil {
		return false
	}
	if i.n%nextCheckInterval == 0 {
		if err := i.ctx.Err(); err != nil {
			i.end(err)
			return false
		}
	}
	if i.fence != nil && i.v.token.Load() != i.fence {
		i.v.mu.RLock()
		err := i.v.fenced()
		i.v.mu.RUnlock()
		i.end(err)
		return false
	}
	i.n++
	var valid bool
	switch {
	case i.started && i.reverse:
		valid = i.it.Prev()
	case i.started:
		valid = i.it.Next()
	case i.reverse:
		valid = i.it.Last()
	default:
		valid = i.it.First()
	}
	i.started = true
	if !valid {
		err := i.it.Error()
		if err != nil {
			err = i.b.readError(i.v.id, err)
		}
		i.end(err)
		return false
	}
	value, err := i.it.ValueAndErr()
	if err != nil {
		i.end(i.b.readError(i.v.id, err))
		return false
	}
	i.key = append(i.key[:0], i.it.Key()[dataPrefixLen:]...)
	i.value = append(i.value[:0], value...)
	return true
}

// end needs mu. The first error stays.
func (i *iterator) end(err error) {
	if i.it == nil {
		return
	}
	cerr := i.it.Close()
	i.it = nil
	if err == nil && cerr != nil {
		err = i.b.readError(i.v.id, cerr)
	}
	i.err = err
	i.b.iterators.Lock()
	delete(i.b.iterators.open, i) // of a nil map: nothing
	i.b.iterators.Unlock()
}

// stop ends the iterator for Backend.Close.
func (i *iterator) stop(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.end(err)
}

func (i *iterator) Key() []byte   { return i.key }
func (i *iterator) Value() []byte { return i.value }

func (i *iterator) Err() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.err
}

func (i *iterator) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.end(nil)
	return nil
}
