package pebblestore

import (
	"context"

	"github.com/cockroachdb/pebble/v2"

	"github.com/weirstreams/weir/state"
)

// Stats are figures of the database for metrics and for people. Bytes are
// estimates where the field says so.
type Stats struct {
	// MaxMemory is the bound that CacheBytes and MemtableBytes stay within.
	MaxMemory int64
	// CacheBytes are the blocks of tables in memory.
	CacheBytes int64
	// CacheHits and CacheMisses count lookups of blocks since Open.
	CacheHits, CacheMisses int64
	// MemtableBytes are allocated for writes that are not in a table yet.
	MemtableBytes int64
	// DiskBytes is the size of all files of the database, log included.
	DiskBytes int64
	// WALBytes is the size of the log.
	WALBytes int64
	// Level0Sublevels is how many tables a read may have to look into before
	// the sorted levels; at 20 writes wait for compactions.
	Level0Sublevels int
	// CompactionDebtBytes estimates what compactions have still to rewrite.
	CompactionDebtBytes int64
	// OpenIterators are those that were made and not closed. One that stays
	// open keeps deleted data on the disk.
	OpenIterators int
	// Failed is why the backend has stopped, nil when it has not.
	Failed error
}

// Stats returns figures of the database. It may be called at any time, and
// returns zeros after Close.
func (b *Backend) Stats() Stats {
	b.life.RLock()
	defer b.life.RUnlock()
	s := Stats{MaxMemory: b.opts.MaxMemory, Failed: b.stopped()}
	if b.life.closed || b.poisoned.Load() {
		return s
	}
	m := b.db.Metrics()
	s.CacheBytes = m.BlockCache.Size
	s.CacheHits, s.CacheMisses = m.BlockCache.Hits, m.BlockCache.Misses
	s.MemtableBytes = int64(m.MemTable.Size + m.MemTable.ZombieSize)
	s.DiskBytes = int64(m.DiskSpaceUsage())
	s.WALBytes = int64(m.WAL.PhysicalSize)
	s.Level0Sublevels = int(m.Levels[0].Sublevels)
	s.CompactionDebtBytes = int64(m.Compact.EstimatedDebt)
	b.iterators.Lock()
	s.OpenIterators = len(b.iterators.open)
	b.iterators.Unlock()
	return s
}

// ViewBytes estimates what a view takes on the disk, in bytes, plus what of it
// is in memtables. It is 0 for a view that does not exist.
func (b *Backend) ViewBytes(ctx context.Context, id state.ID) (int64, error) {
	if err := b.enter(ctx); err != nil {
		return 0, err
	}
	defer b.leave()
	v := b.lookup(id)
	if v == nil {
		return 0, nil
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.number == 0 {
		return 0, nil
	}
	lower, upper := viewBounds(v.number)
	n, err := b.db.EstimateDiskUsage(lower, upper)
	if err != nil {
		return 0, b.readError(id, err)
	}
	return int64(n) + v.inMemtables(b), nil
}

// inMemtables needs v.mu.
func (v *view) inMemtables(b *Backend) int64 {
	if v.unflushed.flush != b.gate.flushes.Load() {
		return 0
	}
	return v.unflushed.bytes
}

// countSample is how many entries ApproximateCount looks at. Up to there the
// count is exact.
const countSample = 4096

// ApproximateCount implements state.View. Up to countSample entries it is
// exact. Beyond, the size of the range is divided by what the first entries
// take, so it is far off when entries differ in size, and too high when many
// writes are of the same keys.
func (h *handle) ApproximateCount(ctx context.Context, r state.Range) (int64, error) {
	if err := h.enter(ctx); err != nil {
		return 0, err
	}
	defer h.b.leave()
	b, v := h.b, h.v
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.number == 0 {
		return 0, nil
	}
	lower, upper := dataBounds(v.number, r)
	if string(lower) >= string(upper) {
		return 0, nil
	}
	it, err := b.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return 0, b.readError(v.id, err)
	}
	count, bytes := int64(0), int64(0)
	var last []byte
	for it.First(); it.Valid() && count < countSample; it.Next() {
		count++
		bytes += int64(len(it.Key()) - dataPrefixLen + len(it.Value()))
		if count == countSample {
			last = append(last, it.Key()...)
		}
	}
	more := it.Valid()
	if err := it.Error(); err != nil {
		_ = it.Close()
		return 0, b.readError(v.id, err)
	}
	if err := it.Close(); err != nil {
		return 0, b.readError(v.id, err)
	}
	if !more {
		return count, nil
	}
	total, err := b.db.EstimateDiskUsage(lower, upper)
	if err != nil {
		return 0, b.readError(v.id, err)
	}
	sampled, err := b.db.EstimateDiskUsage(lower, last)
	if err != nil {
		return 0, b.readError(v.id, err)
	}
	estimate := int64(0)
	if sampled > blockSize {
		// Compared on the disk, so that compression does not matter.
		estimate = int64(float64(count) * float64(total) / float64(sampled))
	}
	// What is only in memory is not in the figures of the disk.
	estimate += v.inMemtables(b) / (bytes/count + writeOverhead)
	return max(count, estimate), nil
}
