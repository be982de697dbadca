package task

import (
	"slices"

	"github.com/weirstreams/weir/state"
)

// cache holds the entries of all stores of a task and keeps the bytes of the
// clean ones below a bound, by second chance. Entries that are dirty or wait
// for the backend are not evicted; MaxBatchBytes and MaxUnflushedBytes bound
// them. It is empty at a claim and never survives one.
type cache struct {
	max   int
	bytes int
	ring  []*entry
	hand  int
	gone  int // entries of the ring that are no entries any more
}

// add makes an entry for a key that has none.
func (c *cache) add(s *Store, key []byte) *entry {
	c.evict()
	if c.gone > sweepMin && c.gone > len(c.ring)/2 {
		c.sweep()
	}
	e := &entry{store: s, key: string(key), used: true}
	s.entries[e.key] = e
	c.ring = append(c.ring, e)
	c.bytes += e.size()
	return e
}

// grew corrects the count after the value of a new entry was filled in.
func (c *cache) grew(e *entry) { c.bytes += cap(e.val) }

// remove drops an entry. Its ring slot goes when the hand comes by, or with the
// next sweep: the hand moves only while the cache is full.
func (c *cache) remove(e *entry) {
	if e.gone {
		return
	}
	e.gone = true
	c.gone++
	c.bytes -= e.size()
	delete(e.store.entries, e.key)
}

// sweepMin is how many slots may be vacant before a sweep is worth it.
const sweepMin = 64

// sweep takes the vacant slots out of the ring.
func (c *cache) sweep() {
	c.ring = slices.DeleteFunc(c.ring, func(e *entry) bool { return e.gone })
	c.hand, c.gone = 0, 0
}

// evictScan is how many entries one add looks at, at most, to find one that
// may go: the work of an add stays constant.
const evictScan = 16

func (c *cache) evict() {
	for n := 0; c.bytes > c.max && n < evictScan && len(c.ring) > 0; n++ {
		if c.hand >= len(c.ring) {
			c.hand = 0
		}
		e := c.ring[c.hand]
		switch {
		case e.gone:
			c.gone--
			c.unring()
		case e.dirty || e.pending:
			c.hand++
		case e.used:
			e.used = false
			c.hand++
		default:
			c.remove(e)
			c.gone--
			c.unring()
		}
	}
}

func (c *cache) unring() {
	last := len(c.ring) - 1
	c.ring[c.hand] = c.ring[last]
	c.ring[last] = nil
	c.ring = c.ring[:last]
}

// batchArena is the reusable memory of one flush to the backend.
type batchArena struct {
	batch state.Batch
	keys  arena
}

func (b *batchArena) reset() {
	b.batch.Reset()
	b.keys.reset()
}
