package pebblestore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"slices"
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
	order []bulkOrder
}

type bulkEntry struct {
	key, keyLen uint32
	value       uint32
	valueLen    int32 // deleted: -1
	valueCap    uint32
}

const bulkDeleted = -1

// bulkOrder is what sorting works on: the first bytes of a key decide most
// comparisons without a look at the buffer.
type bulkOrder struct {
	prefix uint64
	entry  uint32
}

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

// keyPrefix returns the first eight bytes of a key as a number that orders
// like them. Keys with the same number still have to be compared.
func keyPrefix(key []byte) uint64 {
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	var b [8]byte
	copy(b[:], key)
	return binary.BigEndian.Uint64(b[:])
}

// sorted returns a source of the contents in key order. It is valid until the
// next put or reset.
func (t *bulkTable) sorted() bulkSource {
	t.order = slices.Grow(t.order[:0], len(t.entries))
	for i := range t.entries {
		t.order = append(t.order, bulkOrder{keyPrefix(t.key(&t.entries[i])), uint32(i)})
	}
	slices.SortFunc(t.order, func(a, b bulkOrder) int {
		if a.prefix != b.prefix {
			return cmp.Compare(a.prefix, b.prefix)
		}
		return bytes.Compare(t.key(&t.entries[a.entry]), t.key(&t.entries[b.entry]))
	})
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
	e := &s.t.entries[s.t.order[s.at].entry]
	if e.valueLen != bulkDeleted {
		value = s.t.buf[e.value : e.value+uint32(e.valueLen)]
	}
	return s.t.key(e), value
}

func (s *sortedTable) err() error { return nil }

// merge yields the keys of several sources in order. When more than one has a
// key, the last of them wins.
type merge struct {
	sources []bulkSource
	live    []bool
	at      int
	failure error
	started bool
}

func newMerge(sources ...bulkSource) bulkSource {
	if len(sources) == 1 {
		return sources[0]
	}
	return &merge{sources: sources, live: make([]bool, len(sources))}
}

func (m *merge) next() bool {
	if m.failure != nil {
		return false
	}
	var done []byte
	if m.started {
		done, _ = m.record()
	}
	// The few sources that stand on the key that was yielded move on; the
	// source of done itself last, because its key is overwritten.
	for i, s := range m.sources {
		if i == m.at && m.started {
			continue
		}
		if m.started {
			if !m.live[i] {
				continue
			}
			if k, _ := s.record(); !bytes.Equal(k, done) {
				continue
			}
		}
		m.move(i)
	}
	if m.started {
		m.move(m.at)
	}
	m.started = true
	best := -1
	var key []byte
	for i, s := range m.sources {
		if !m.live[i] {
			continue
		}
		if k, _ := s.record(); best < 0 || bytes.Compare(k, key) <= 0 {
			best, key = i, k
		}
	}
	m.at = best
	return best >= 0 && m.failure == nil
}

func (m *merge) move(i int) {
	m.live[i] = m.sources[i].next()
	if err := m.sources[i].err(); err != nil {
		m.failure = err
	}
}

func (m *merge) record() (key, value []byte) { return m.sources[m.at].record() }
func (m *merge) err() error                  { return m.failure }
