package pebblestore

import (
	"bytes"
	"cmp"
	"hash/maphash"
	"math/bits"
)

// bulkTable gathers writes, the last one of each key, until they are written
// in order. It is a hash table over one buffer: a restore hands over many more
// records than there are keys, in no order, and the budget is a few hundred
// nanoseconds for each.
type bulkTable struct {
	seed    maphash.Seed
	buf     []byte // keys and values
	entries []bulkEntry
	// slots is an open-addressed table of a power of two. A slot holds 32
	// bits of the hash and the index of the entry plus one; 0 is free.
	slots []uint64
	order []keyOrder
}

type bulkEntry struct {
	key, keyLen uint32
	value       uint32
	valueLen    int32 // deleted: -1
	valueCap    uint32
}

const bulkDeleted = -1

const (
	bulkEntryBytes = 20
	bulkSlotBytes  = 8
	bulkOrderBytes = 16
	minBulkSlots   = 1 << 10
	// maxBulkRecord bounds key and value together: offsets have 32 bits.
	maxBulkRecord = 1 << 30
)

func newBulkTable() *bulkTable { return &bulkTable{seed: maphash.MakeSeed()} }

// size is the memory in use, including what sorting will take.
func (t *bulkTable) size() int {
	return len(t.buf) + len(t.entries)*(bulkEntryBytes+bulkOrderBytes) + len(t.slots)*bulkSlotBytes
}

func (t *bulkTable) len() int { return len(t.entries) }

// reset empties the table and keeps its memory.
func (t *bulkTable) reset() {
	t.buf, t.entries, t.order = t.buf[:0], t.entries[:0], t.order[:0]
	clear(t.slots)
}

// put sets a key; a nil value deletes it.
func (t *bulkTable) put(key, value []byte) {
	e := t.find(key)
	if value == nil {
		e.valueLen = bulkDeleted
		return
	}
	if uint32(len(value)) > e.valueCap {
		e.value, e.valueCap = uint32(len(t.buf)), uint32(len(value))
		t.buf = append(t.buf, value...)
	} else {
		copy(t.buf[e.value:], value)
	}
	e.valueLen = int32(len(value))
}

// find returns the entry of a key, which it makes when there is none. It is
// valid until the next call.
func (t *bulkTable) find(key []byte) *bulkEntry {
	if len(t.entries) >= len(t.slots)/4*3 {
		t.grow()
	}
	h := uint32(maphash.Bytes(t.seed, key))
	mask := uint32(len(t.slots) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		s := t.slots[i]
		if s == 0 {
			t.entries = append(t.entries, bulkEntry{key: uint32(len(t.buf)), keyLen: uint32(len(key))})
			t.buf = append(t.buf, key...)
			t.slots[i] = uint64(h)<<32 | uint64(len(t.entries))
			return &t.entries[len(t.entries)-1]
		}
		if uint32(s>>32) == h {
			if e := &t.entries[uint32(s)-1]; bytes.Equal(t.key(e), key) {
				return e
			}
		}
	}
}

func (t *bulkTable) grow() {
	old := t.slots
	t.slots = make([]uint64, max(2*len(old), minBulkSlots))
	mask := uint32(len(t.slots) - 1)
	for _, s := range old {
		if s == 0 {
			continue
		}
		i := uint32(s>>32) & mask
		for t.slots[i] != 0 {
			i = (i + 1) & mask
		}
		t.slots[i] = s
	}
}

func (t *bulkTable) key(e *bulkEntry) []byte { return t.buf[e.key : e.key+e.keyLen] }

// sorted returns a source of the contents in key order. It is valid until the
// next put or reset.
func (t *bulkTable) sorted() bulkSource {
	t.order = sortKeys(t.order, len(t.entries), func(i uint32) []byte { return t.key(&t.entries[i]) })
	return &sortedTable{t: t, at: -1}
}

// bulkSource yields writes in key order, each key once. Bytes are valid until
// the next call.
type bulkSource interface {
	// next returns false at the end and on an error.
	next() bool
	// record returns a key and its value, nil for a delete.
	record() (key, value []byte)
	err() error
}

type sortedTable struct {
	t  *bulkTable
	at int
}

func (s *sortedTable) next() bool {
	s.at++
	return s.at < len(s.t.order)
}

func (s *sortedTable) record() (key, value []byte) {
	e := &s.t.entries[s.t.order[s.at].index]
	if e.valueLen != bulkDeleted {
		value = s.t.buf[e.value : e.value+uint32(e.valueLen)]
	}
	return s.t.key(e), value
}

func (s *sortedTable) err() error { return nil }

// merge yields the keys of several sources in order. When more than one has a
// key, the last of them wins. There are at most 64 sources.
type merge struct {
	sources []bulkSource
	heads   []mergeHead
	// stale has a bit for each source that has to move: those that stood on
	// the key which was yielded last.
	stale   uint64
	at      int // the source that wins, -1 at the end
	failure error
}

type mergeHead struct {
	key    []byte
	prefix uint64 // keyPrefix of key
	live   bool
}

func newMerge(sources ...bulkSource) bulkSource {
	if len(sources) == 1 {
		return sources[0]
	}
	return &merge{sources: sources, heads: make([]mergeHead, len(sources)), stale: 1<<len(sources) - 1, at: -1}
}

func (m *merge) next() bool {
	for ; m.stale != 0; m.stale &= m.stale - 1 {
		if !m.move(bits.TrailingZeros64(m.stale)) {
			return false
		}
	}
	m.at = -1
	for i := range m.heads {
		h := &m.heads[i]
		if !h.live {
			continue
		}
		c := -1
		if m.at >= 0 {
			best := &m.heads[m.at]
			if c = cmp.Compare(h.prefix, best.prefix); c == 0 {
				c = bytes.Compare(h.key, best.key)
			}
		}
		switch {
		case c < 0:
			m.at, m.stale = i, 1<<i
		case c == 0:
			m.at, m.stale = i, m.stale|1<<i
		}
	}
	return m.at >= 0
}

// move returns false on an error.
func (m *merge) move(i int) bool {
	s, h := m.sources[i], &m.heads[i]
	if h.live = s.next(); h.live {
		h.key, _ = s.record()
		h.prefix = keyPrefix(h.key)
		return true
	}
	if err := s.err(); err != nil {
		m.failure, m.at = err, -1
		return false
	}
	return true
}

func (m *merge) record() (key, value []byte) { return m.sources[m.at].record() }
func (m *merge) err() error                  { return m.failure }
