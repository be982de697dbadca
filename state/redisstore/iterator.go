package redisstore

import (
	"context"
	"fmt"
	"strconv"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/state"
)

// Bounds of the pages of an iterator.
const (
	pageKeys       = 500       // keys that are asked for at once
	firstValues    = 64        // values of the first page, before their size is known
	pageValueBytes = 256 << 10 // what the values of a later page should come to
)

// mustOrder returns ErrUnordered when a range has keys without order in it.
func (l *layout) mustOrder(r state.Range) error {
	if l.points == allPoints {
		return fmt.Errorf("%w: the view was made with Unordered; rebuild it without", ErrUnordered)
	}
	prefixes, err := l.points.prefixes()
	if err != nil {
		return err
	}
	for _, p := range prefixes {
		all := state.PrefixRange([]byte(p))
		if (r.Upper == nil || p < string(r.Upper)) && (all.Upper == nil || string(r.Lower) < string(all.Upper)) {
			return fmt.Errorf("%w: the view was made with PointLookups for store %q; rebuild it without", ErrUnordered, p[1:])
		}
	}
	return nil
}

// bounds are the lower and the upper bound of a range of the order index.
func bounds(r state.Range) (from, to string) {
	from, to = "-", "+"
	if r.Lower != nil {
		from = "[" + field(r.Lower)
	}
	if r.Upper != nil {
		to = "(" + field(r.Upper)
	}
	return from, to
}

// iterator walks the order index in pages and reads the values of the keys.
// The values of one page and the keys of the next come in one round trip.
type iterator struct {
	ctx    context.Context // of the Iterate call, which the iterator is part of
	b      *Backend
	t      *target
	expect *state.Token // nil: no fence
	r      state.Range

	keys  []string // fields whose values have not been asked for
	last  string   // the last field that the index returned
	begun bool
	more  bool // the index has more

	page   []entry
	at     int // the current entry of page, counted from 1
	values int // read so far
	bytes  int
	err    error
	ended  bool
}

type entry struct {
	field string
	value []byte
}

// Next implements state.Iterator.
func (i *iterator) Next() bool {
	for !i.ended {
		if i.b.closed.Load() {
			return i.end(fmt.Errorf("redis store: %w", state.ErrClosed))
		}
		if i.at < len(i.page) {
			i.at++
			return true
		}
		if len(i.keys) == 0 && !i.more {
			return i.end(nil)
		}
		i.page, i.at = i.page[:0], 0
		if err := i.fill(); err != nil {
			return i.end(i.b.wrap("iterate over", i.t.id, err))
		}
	}
	return false
}

// fill makes one round trip: for the values of keys that are known, and for
// the keys that come next.
func (i *iterator) fill() error {
	for range maxLayouts {
		l := i.t.layout.Load()
		// Of a layout that may be out of date only what it says now counts,
		// and the scripts compare it.
		unordered := l.mustOrder(i.r)
		n := min(i.step(), len(i.keys))
		keys := make([][]byte, n)
		for j := range keys {
			keys[j] = keyOf(i.keys[j])
		}
		var calls []redisconn.Call
		var order []int
		if n > 0 || l.gen == "" || unordered != nil {
			var c redisconn.Call
			c, order = readCall(i.t, l, i.expect, keys, 0, n)
			calls = append(calls, c)
		}
		ask := i.more && len(i.keys)-n < firstValues && l.gen != "" && unordered == nil
		if ask {
			calls = append(calls, i.pageCall(l))
		}
		replies, err := i.b.s.Run(i.ctx, i.t.br, false, calls...)
		if err != nil {
			return err
		}
		moved, err := i.t.judgeRead(replies)
		switch {
		case err != nil:
			return err
		case moved:
			continue
		case unordered != nil:
			return unordered
		}
		return i.take(l, replies, order, n, ask)
	}
	return i.t.restless()
}

// step is how many values to read next.
func (i *iterator) step() int {
	if i.values == 0 {
		return firstValues
	}
	return max(min(pageKeys, pageValueBytes/(i.bytes/i.values+1)), 1)
}

func (i *iterator) pageCall(l *layout) redisconn.Call {
	from, to := bounds(i.r)
	if i.r.Reverse {
		from, to = to, from
	}
	if i.begun {
		from = "(" + i.last
	}
	token := ""
	if i.expect != nil {
		token = string(*i.expect)
	}
	return redisconn.Call{Script: pageScript, Keys: []string{i.t.meta, l.index},
		Args: []string{flag(i.expect != nil), token, l.gen, flag(i.r.Reverse), from, to, strconv.Itoa(pageKeys)}}
}

// take takes what a round trip brought.
func (i *iterator) take(l *layout, replies []redisconn.Reply, order []int, n int, ask bool) error {
	if n > 0 {
		fields := i.keys[:n]
		err := deliver(replies[0].Values[1:], order, func(j int, value []byte) {
			i.page = append(i.page, entry{fields[j], value})
			i.values++
			i.bytes += len(value)
		})
		if err != nil {
			return err
		}
		// The values came in the order of the buckets.
		sorted := make([]entry, n)
		for j := range order {
			sorted[order[j]] = i.page[j]
		}
		i.page = i.page[:0]
		for _, e := range sorted {
			if e.value != nil { // the index may know more keys than there are
				i.page = append(i.page, e)
			}
		}
		i.keys = i.keys[n:]
	}
	if l.gen == "" {
		i.keys, i.more = nil, false
	}
	if !ask {
		return nil
	}
	page := replies[len(replies)-1].List(1)
	i.more = len(page) == pageKeys
	if len(page) > 0 {
		i.begun, i.last = true, page[len(page)-1]
	}
	for _, f := range page {
		if f != mark {
			i.keys = append(i.keys, f)
		}
	}
	return nil
}

func (i *iterator) end(err error) bool {
	if !i.ended {
		i.ended, i.err = true, err
		i.page, i.keys = nil, nil
	}
	return false
}

// Key implements state.Iterator.
func (i *iterator) Key() []byte {
	if i.ended || i.at == 0 {
		return nil
	}
	return keyOf(i.page[i.at-1].field)
}

// Value implements state.Iterator.
func (i *iterator) Value() []byte {
	if i.ended || i.at == 0 {
		return nil
	}
	return i.page[i.at-1].value
}

// Err implements state.Iterator.
func (i *iterator) Err() error { return i.err }

// Close implements state.Iterator.
func (i *iterator) Close() error {
	i.end(nil)
	return nil
}
