package memstore

import (
	"bytes"
	"context"
	"fmt"

	"github.com/tidwall/btree"

	"github.com/weirstreams/weir/state"
)

// iterator walks an immutable tree.
type iterator struct {
	ctx   context.Context // of the Iterate call, which the iterator is part of
	b     *Backend
	it    btree.IterG[entry]
	r     state.Range
	cur   entry
	err   error
	n     int
	ended bool

	// fence is the view whose version has to stay what it was, nil for an
	// iterator without a fence.
	fence   *view
	version uint64
}

// nextCheckInterval is the number of entries between two looks at the context.
const nextCheckInterval = 256

func newIterator(ctx context.Context, b *Backend, t *tree, r state.Range) *iterator {
	return &iterator{ctx: ctx, b: b, it: t.Iter(), r: r}
}

func (i *iterator) Next() bool {
	if i.ended {
		return false
	}
	if err := i.check(); err != nil {
		return i.end(err)
	}
	if !i.move() {
		return i.end(nil)
	}
	e := i.it.Item()
	if i.r.Reverse {
		if bytes.Compare(e, i.r.Lower) < 0 {
			return i.end(nil)
		}
	} else if i.r.Upper != nil && bytes.Compare(e, i.r.Upper) >= 0 {
		return i.end(nil)
	}
	i.cur = e
	i.n++
	return true
}

func (i *iterator) check() error {
	if i.n%nextCheckInterval == 0 {
		if err := i.ctx.Err(); err != nil {
			return err
		}
	}
	if i.b.closed.Load() {
		return fmt.Errorf("memory store: %w", state.ErrClosed)
	}
	if i.fence != nil && i.fence.version.Load() != i.version {
		i.fence.mu.RLock()
		defer i.fence.mu.RUnlock()
		return i.fence.fenced()
	}
	return nil
}

func (i *iterator) move() bool {
	switch {
	case i.n > 0 && i.r.Reverse:
		return i.it.Prev()
	case i.n > 0:
		return i.it.Next()
	case !i.r.Reverse && i.r.Lower == nil:
		return i.it.First()
	case !i.r.Reverse:
		return i.it.Seek(entry(i.r.Lower))
	case i.r.Upper != nil && i.it.Seek(entry(i.r.Upper)):
		return i.it.Prev() // Upper itself is not in the range
	default:
		return i.it.Last()
	}
}

func (i *iterator) end(err error) bool {
	if !i.ended {
		i.ended, i.err, i.cur = true, err, nil
		i.it.Release()
	}
	return false
}

func (i *iterator) Key() []byte   { return i.cur.key() }
func (i *iterator) Value() []byte { return i.cur.value() }
func (i *iterator) Err() error    { return i.err }

func (i *iterator) Close() error {
	i.end(nil)
	return nil
}
