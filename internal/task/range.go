package task

import (
	"bytes"
	"slices"
	"strings"

	"github.com/tidwall/btree"

	"github.com/weirstreams/weir/state"
)

func byKey(a, b *entry) bool { return a.key < b.key }

// order makes the index of uncommitted and unflushed entries.
func (s *Store) order() {
	if s.ordered != nil {
		return
	}
	s.ordered = btree.NewBTreeGOptions(byKey, btree.Options{NoLocks: true})
	for _, e := range s.dirty {
		s.ordered.Set(e)
	}
	for _, e := range s.pending {
		s.ordered.Set(e)
	}
}

// bounds is a range of keys of one store: lower <= key < upper, nil is open.
type bounds struct{ lower, upper []byte }

func (b bounds) has(key string) bool {
	return (b.lower == nil || key >= string(b.lower)) && (b.upper == nil || key < string(b.upper))
}

// view returns the bounds as a range of the view.
func (s *Store) viewRange(b bounds, reverse bool) state.Range {
	r := state.PrefixRange(s.prefix)
	if b.lower != nil {
		r.Lower = append(slices.Clone(s.prefix), b.lower...)
	}
	if b.upper != nil {
		r.Upper = append(slices.Clone(s.prefix), b.upper...)
	}
	r.Reverse = reverse
	return r
}

// next returns the first entry of the overlay beyond the key last, in the
// given direction, or nil. It seeks anew each time, so that the caller may
// write to the store between two calls.
func (s *Store) nextOrdered(b bounds, reverse bool, last string, started bool) *entry {
	var found *entry
	take := func(e *entry) bool {
		if started && e.key == last {
			return true
		}
		if b.has(e.key) {
			found = e
		}
		return false
	}
	switch {
	case reverse && started:
		s.ordered.Descend(&entry{key: last}, take)
	case reverse && b.upper != nil:
		s.ordered.Descend(&entry{key: string(b.upper)}, func(e *entry) bool {
			return e.key == string(b.upper) || take(e)
		})
	case reverse:
		s.ordered.Reverse(take)
	case started:
		s.ordered.Ascend(&entry{key: last}, take)
	case b.lower != nil:
		s.ordered.Ascend(&entry{key: string(b.lower)}, take)
	default:
		s.ordered.Scan(take)
	}
	return found
}

// Range calls yield with the entries lower <= key < upper (nil is open) in key
// order until it returns false. The slices are valid until the next call of a
// method of this task's stores. yield may write to the store: keys that it
// adds beyond the current one are seen, keys that it deletes are not.
func (s *Store) Range(lower, upper []byte, reverse bool, yield func(key, value []byte) bool) error {
	t := s.task
	if t.storeErr != nil {
		return t.storeErr
	}
	s.order()
	b := bounds{lower, upper}
	it := t.view.Iterate(t.ctx, t.token, s.viewRange(b, reverse))
	defer it.Close()
	more := it.Next()
	last, started := "", false
	var scratch []byte
	for {
		e := s.nextOrdered(b, reverse, last, started)
		if !more && e == nil {
			break
		}
		fromBackend := e == nil
		if more {
			k := it.Key()[len(s.prefix):]
			if e != nil {
				switch c := bytes.Compare(k, []byte(e.key)); {
				case c == 0:
					more = it.Next()
				case c < 0 != reverse:
					fromBackend = true
				}
			}
		}
		if fromBackend {
			scratch = append(scratch[:0], it.Key()[len(s.prefix):]...)
			last, started = string(scratch), true
			if !yield(scratch, it.Value()) {
				return it.Err()
			}
			more = it.Next()
		} else {
			last, started = e.key, true
			if e.has {
				scratch = append(scratch[:0], e.key...)
				if !yield(scratch, e.val) {
					return it.Err()
				}
			}
		}
		if t.storeErr != nil {
			return t.storeErr
		}
	}
	if err := it.Err(); err != nil {
		return t.storeFailed(s, "range", err)
	}
	return nil
}

// Count estimates the number of keys: what the backend estimates, plus the
// committed keys that it does not have yet.
func (s *Store) Count() (int64, error) {
	n, err := s.task.view.ApproximateCount(s.task.ctx, state.PrefixRange(s.prefix))
	if err != nil {
		return 0, s.task.storeFailed(s, "count", err)
	}
	return n + int64(len(s.pending)), nil
}

// KV is one entry of a page of committed contents.
type KV struct{ Key, Value []byte }

// GetCommitted returns a copy of the value of a key as of the last commit.
// The current batch does not show. It is for queries and does not change what
// the cache holds.
func (s *Store) GetCommitted(key []byte) ([]byte, bool, error) {
	if e, ok := s.entries[string(key)]; ok {
		if val, has, known := e.committed(); known {
			if !has {
				return nil, false, nil
			}
			return append([]byte{}, val...), true, nil
		}
	}
	var val []byte
	full := append(slices.Clone(s.prefix), key...)
	err := s.task.view.Read(s.task.ctx, s.task.token, [][]byte{full}, func(_ int, v []byte) {
		if v != nil {
			val = append([]byte{}, v...)
		}
	})
	return val, val != nil, err
}

// PageCommitted returns up to limit entries of a range as of the last commit,
// in key order. A result shorter than limit is the end of the range.
func (s *Store) PageCommitted(lower, upper []byte, reverse bool, limit int) ([]KV, error) {
	b := bounds{lower, upper}
	var over []*entry
	pick := func(e *entry) {
		if !b.has(e.key) {
			return
		}
		if _, _, known := e.committed(); known {
			over = append(over, e)
		}
	}
	for _, e := range s.pending {
		pick(e)
	}
	for _, e := range s.dirty {
		if !e.pending {
			pick(e)
		}
	}
	slices.SortFunc(over, func(x, y *entry) int {
		if reverse {
			return strings.Compare(y.key, x.key)
		}
		return strings.Compare(x.key, y.key)
	})
	it := s.task.view.Iterate(s.task.ctx, s.task.token, s.viewRange(b, reverse))
	defer it.Close()
	var page []KV
	more := it.Next()
	for len(page) < limit && (more || len(over) > 0) {
		c := -1 // backend first
		if !more {
			c = 1
		} else if len(over) > 0 {
			if c = bytes.Compare(it.Key()[len(s.prefix):], []byte(over[0].key)); reverse {
				c = -c
			}
		}
		if c < 0 {
			page = append(page, KV{slices.Clone(it.Key()[len(s.prefix):]), append([]byte{}, it.Value()...)})
			more = it.Next()
			continue
		}
		if val, has, _ := over[0].committed(); has {
			page = append(page, KV{[]byte(over[0].key), append([]byte{}, val...)})
		}
		if over = over[1:]; c == 0 {
			more = it.Next()
		}
	}
	return page, it.Err()
}
