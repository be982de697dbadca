package pebblestore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/weirstreams/weir/state"
)

// gate decides when a write may go to Pebble. Pebble has such a gate itself,
// but who waits in it holds its locks and cannot be woken: not by the context,
// nor by Close, and if the flush that it waits for cannot succeed, not at all.
// So Pebble's limits are out of reach, and the waiting is done here.
type gate struct {
	// budget is what may be written, in bytes, before the next look at the
	// memtables.
	budget atomic.Int64
	// full is set while there is too little room on the disk.
	full atomic.Bool
	// flushes counts the memtables written out.
	flushes atomic.Uint64

	change struct {
		sync.Mutex
		ch chan struct{} // closed and replaced when a flush or compaction ends
	}
}

const (
	// gateLooks is how often the gate looks while one memtable fills up.
	gateLooks = 4
	// maxSublevels of level 0 make a write wait for compactions: reads have
	// to look into each of them.
	maxSublevels = 20
	// unreachable is for limits of Pebble that the gate stands in for.
	unreachable = 1 << 20
)

func (g *gate) init() { g.change.ch = make(chan struct{}) }

// changed wakes those who wait. Pebble calls it after each flush and
// compaction.
func (g *gate) changed() {
	g.change.Lock()
	defer g.change.Unlock()
	close(g.change.ch)
	g.change.ch = make(chan struct{})
}

func (g *gate) flushed() {
	g.flushes.Add(1)
	g.changed()
}

func (g *gate) next() <-chan struct{} {
	g.change.Lock()
	defer g.change.Unlock()
	return g.change.ch
}

// admit returns when n bytes may be written, or why they may not.
func (g *gate) admit(ctx context.Context, b *Backend, n int) error {
	if err := g.checkSpace(b); err != nil {
		return err
	}
	if g.budget.Add(-int64(n)) >= 0 {
		return nil
	}
	for {
		ch := g.next() // before the look, so that no change is missed
		m := b.db.Metrics()
		crowded := m.Levels[0].Sublevels >= maxSublevels
		if m.MemTable.Size < b.split.unflushed && !crowded {
			g.budget.Store(int64(b.split.memtable) / gateLooks)
			return nil
		}
		if crowded && b.corrupt.Load() {
			return fmt.Errorf("state folder %s: compactions meet damage: %w", b.dir, state.ErrCorrupt)
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return ctx.Err()
		case <-b.failed:
			return b.stopped()
		case <-b.closing:
			return fmt.Errorf("state folder %s: %w", b.dir, state.ErrClosed)
		}
	}
}

// checkSpace is asked before every write: it costs a microsecond, and others
// may fill the disk too.
func (g *gate) checkSpace(b *Backend) error {
	if b.opts.MinFreeSpace < 0 {
		return nil
	}
	usage, err := b.fs.GetDiskUsage(b.dir)
	if err != nil {
		// The file system does not say: the write will.
		return nil
	}
	if usage.AvailBytes >= uint64(b.opts.MinFreeSpace) {
		if g.full.Load() && g.full.Swap(false) {
			b.opts.Logger.Info("room on the disk again", "dir", b.dir, "free_bytes", usage.AvailBytes)
		}
		return nil
	}
	err = fmt.Errorf("state folder %s: %d bytes are free on its disk, %d have to stay free: make room or set MinFreeSpace: %w",
		b.dir, usage.AvailBytes, b.opts.MinFreeSpace, state.ErrFull)
	if !g.full.Swap(true) {
		b.alarm.raise(err)
	}
	return err
}

// listener connects Pebble's events to the backend.
func (b *Backend) listener() *pebble.EventListener {
	return &pebble.EventListener{
		FlushEnd: func(info pebble.FlushInfo) {
			if info.Err == nil {
				b.gate.flushed()
			}
		},
		CompactionEnd: func(pebble.CompactionInfo) { b.gate.changed() },
		BackgroundError: func(err error) {
			if pebble.IsCorruptionError(err) {
				b.damaged(err)
			}
			b.opts.Logger.Warn("background work of the database failed", "dir", b.dir, "error", err)
		},
		DataCorruption: func(info pebble.DataCorruptionInfo) { b.damaged(info.Details) },
		WriteStallBegin: func(info pebble.WriteStallBeginInfo) {
			b.opts.Logger.Warn("writes are stalled inside of the database", "dir", b.dir, "reason", info.Reason)
		},
	}
}

// logger passes Pebble's messages on. Fatalf must not end the process: it
// stops the backend.
type logger struct{ b *Backend }

func (l logger) Infof(format string, args ...any) {
	l.b.opts.Logger.Debug(fmt.Sprintf(format, args...), "dir", l.b.dir)
}

func (l logger) Errorf(format string, args ...any) {
	l.b.opts.Logger.Warn(fmt.Sprintf(format, args...), "dir", l.b.dir)
}

func (l logger) Fatalf(format string, args ...any) {
	l.b.fs.fail("use", l.b.dir, fmt.Errorf(format, args...))
}
