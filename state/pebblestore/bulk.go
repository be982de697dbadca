package pebblestore

import (
	"context"
	"fmt"

	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/weirstreams/weir/state"
)

const (
	// bulkDir is the folder, within the database's, for the files of restores
	// that are running. It is emptied by Open.
	bulkDir = "bulk"
	// bulkBatchBytes is up to where a checkpoint is written as an ordinary
	// batch: an ingest syncs files, which takes longer.
	bulkBatchBytes = 1 << 20
	// bulkTableBytes is where one sorted table ends and the next begins.
	bulkTableBytes = 32 << 20
	// maxBulkRuns bounds the runs that are merged, and with it the memory
	// for their frames. When there are as many they are merged into one.
	maxBulkRuns = 16
)

// bulk gathers a restore in memory and, at a checkpoint, writes it as sorted
// tables that become part of the database all at once, with the token as
// their first key. Nothing of it passes through the log or a memtable.
//
// What does not fit into its share of the memory before the checkpoint is kept
// in runs on the disk and merged then. Who asks for a checkpoint at every 32
// MiB or so of distinct keys and values does not pay for that.
type bulk struct {
	h     *handle
	token state.Token // of the last checkpoint
	// number is the view's when the bulk began; the same token is stored only
	// as long as it is the same.
	number  uint32
	table   *bulkTable
	runs    []string
	release func() // of the memory taken from the cache
	closed  bool
}

var _ state.Bulk = (*bulk)(nil)

// Bulk implements state.View.
func (h *handle) Bulk(ctx context.Context, old state.Token) (state.Bulk, error) {
	if err := h.enter(ctx); err != nil {
		return nil, err
	}
	defer h.b.leave()
	v := h.v
	v.mu.RLock()
	defer v.mu.RUnlock()
	if *v.token.Load() != old {
		return nil, v.fenced()
	}
	h.b.bulksRunning.Add(1)
	return &bulk{
		h: h, token: old, number: v.number,
		table:   newBulkTable(),
		release: h.b.cache.Reserve(h.b.bulkBudget()),
	}, nil
}

// bulkBudget is the memory for one restore: restores that run at the same time
// share what there is for all.
func (b *Backend) bulkBudget() int {
	n := max(1, int(b.bulksRunning.Load()))
	return max(min(b.split.bulk, b.split.bulks/n), minBulk)
}

func (b *bulk) check() error {
	if b.closed {
		return fmt.Errorf("bulk of view %s: %w", b.h.v.id, state.ErrClosed)
	}
	return nil
}

func (b *bulk) Put(key, value []byte) error {
	if value == nil {
		value = empty
	}
	return b.add(key, value)
}

func (b *bulk) Delete(key []byte) error { return b.add(key, nil) }

func (b *bulk) add(key, value []byte) error {
	if err := b.check(); err != nil {
		return err
	}
	if len(key)+len(value) > maxBulkRecord {
		return fmt.Errorf("bulk of view %s: a record of %d bytes, at most %d can be stored", b.h.v.id, len(key)+len(value), maxBulkRecord)
	}
	b.table.put(key, value)
	if b.table.size() > b.h.b.bulkBudget() {
		return b.spill()
	}
	return nil
}

// file returns the name of a new file.
func (b *bulk) file(suffix string) string {
	s := b.h.b
	return s.opts.fs.PathJoin(s.dir, bulkDir, fmt.Sprintf("%s-%d.%s", s.session, s.bulks.Add(1), suffix))
}

// spill moves what is in memory to a run.
func (b *bulk) spill() error {
	if err := b.h.b.enter(context.Background()); err != nil {
		return err
	}
	defer b.h.b.leave()
	if b.table.len() == 0 {
		return nil
	}
	run, err := b.writeRun(b.table.sorted())
	if err != nil {
		return err
	}
	b.runs = append(b.runs, run)
	b.table.reset()
	if len(b.runs) < maxBulkRuns {
		return nil
	}
	merged := ""
	err = b.withRuns(func(sources []bulkSource) error {
		merged, err = b.writeRun(newMerge(sources...))
		return err
	})
	if err != nil {
		return err
	}
	b.removeRuns()
	b.runs = append(b.runs, merged)
	return nil
}

func (b *bulk) writeRun(src bulkSource) (name string, err error) {
	name = b.file("run")
	fs := b.h.b.opts.fs
	file, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return "", b.failed(err)
	}
	w := newRunWriter(file)
	for src.next() {
		if err = w.add(src.record()); err != nil {
			break
		}
	}
	if err == nil {
		err = src.err()
	}
	if ferr := w.finish(); err == nil {
		err = ferr
	}
	if err != nil {
		_ = fs.Remove(name)
		return "", b.failed(err)
	}
	return name, nil
}

func (b *bulk) failed(err error) error {
	return fmt.Errorf("restore view %s in %s: %w", b.h.v.id, b.h.b.dir, classify(err))
}

// withRuns opens the runs for reading while it calls f.
func (b *bulk) withRuns(f func([]bulkSource) error) error {
	var sources []bulkSource
	for _, name := range b.runs {
		file, err := b.h.b.opts.fs.Open(name)
		if err != nil {
			return b.failed(err)
		}
		defer file.Close()
		sources = append(sources, newRunReader(file))
	}
	return f(sources)
}

func (b *bulk) removeRuns() {
	for _, name := range b.runs {
		_ = b.h.b.opts.fs.Remove(name)
	}
	b.runs = b.runs[:0]
}

func (b *bulk) Checkpoint(ctx context.Context, new state.Token) error {
	if err := b.check(); err != nil {
		return err
	}
	if err := checkTokens("checkpoint", b.h.v.id, b.token, new); err != nil {
		return err
	}
	if err := b.h.enter(ctx); err != nil {
		return err
	}
	defer b.h.b.leave()
	s := b.h.b
	if err := s.gate.admit(ctx, s, len(b.table.buf)); err != nil {
		return fmt.Errorf("checkpoint view %s: %w", b.h.v.id, err)
	}
	var err error
	if len(b.runs) == 0 && len(b.table.buf) < bulkBatchBytes {
		err = b.checkpointBatch(new)
	} else {
		err = b.checkpointIngest(ctx, new)
	}
	if err != nil {
		return err
	}
	b.token = new
	b.table.reset()
	b.removeRuns()
	return nil
}

// current checks that the view still is what the bulk works on. Needs v.mu.
func (b *bulk) current() error {
	if v := b.h.v; *v.token.Load() != b.token || v.number != b.number {
		return v.fenced()
	}
	return nil
}

// checkpointBatch stores a small checkpoint like an Apply.
func (b *bulk) checkpointBatch(new state.Token) error {
	v := b.h.v
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := b.current(); err != nil {
		return err
	}
	batch := b.h.b.db.NewBatchWithSize(batchHeader + len(b.table.buf) + len(new) + (b.table.len()+1)*writeOverhead)
	defer batch.Close()
	key := appendView(nil, b.number, viewData)
	for src := b.table.sorted(); src.next(); {
		k, value := src.record()
		key = append(key[:dataPrefixLen], k...)
		if value == nil {
			_ = batch.Delete(key, nil)
		} else {
			_ = batch.Set(key, value, nil)
		}
	}
	setToken(batch, b.number, new)
	if err := b.h.b.commit("checkpoint", v.id, batch); err != nil {
		return err
	}
	v.wrote(b.h.b, batch.Len())
	v.setToken(new)
	return nil
}

// checkpointIngest stores a large checkpoint as sorted tables.
func (b *bulk) checkpointIngest(ctx context.Context, new state.Token) error {
	s, v := b.h.b, b.h.v
	var tables []string
	defer func() {
		// Those that were ingested are moved away by then.
		for _, name := range tables {
			_ = s.opts.fs.Remove(name)
		}
	}()
	err := b.withRuns(func(sources []bulkSource) (err error) {
		tables, err = b.writeTables(ctx, newMerge(append(sources, b.table.sorted())...), new)
		return err
	})
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := b.current(); err != nil {
		return err
	}
	if err := s.guard("checkpoint", v.id, func() error { return s.db.Ingest(context.Background(), tables) }); err != nil {
		return err
	}
	v.setToken(new)
	return nil
}

// writeTables writes sorted tables: the token, and the data of src. The token
// has one of its own, because it overlaps with the token that is stored, and
// has to lie above it, while data of a view that was empty does not overlap
// with anything and goes to the last level at once. On an error the names
// returned are those of the files that were made.
func (b *bulk) writeTables(ctx context.Context, src bulkSource, token state.Token) (names []string, err error) {
	s := b.h.b
	options := s.pebbleOptions.MakeWriterOptions(0, s.db.TableFormat())
	var w *sstable.Writer
	finish := func() error {
		if w == nil {
			return nil
		}
		err := w.Close()
		w = nil
		return err
	}
	start := func() error {
		name := b.file("sst")
		file, err := s.opts.fs.Create(name, vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		names = append(names, name)
		w = sstable.NewWriter(objstorageprovider.NewFileWritable(file), options)
		return nil
	}
	defer func() {
		if ferr := finish(); err == nil {
			err = ferr
		}
		if err != nil && ctx.Err() == nil {
			err = b.failed(err)
		}
	}()
	if err := start(); err != nil {
		return names, err
	}
	if err := w.Set(tokenKey(b.number), []byte(token)); err != nil {
		return names, err
	}
	key := appendView(nil, b.number, viewData)
	for n, size := 0, bulkTableBytes; src.next(); n++ {
		if n%readCheckInterval == 0 {
			if err := ctx.Err(); err != nil {
				return names, err
			}
		}
		if size >= bulkTableBytes {
			if err := finish(); err != nil {
				return names, err
			}
			if err := start(); err != nil {
				return names, err
			}
			size = 0
		}
		k, value := src.record()
		key = append(key[:dataPrefixLen], k...)
		if value != nil {
			err = w.Set(key, value)
		} else {
			err = w.Delete(key)
		}
		if err != nil {
			return names, err
		}
		size += len(key) + len(value)
	}
	return names, src.err()
}

func (b *bulk) Close() error {
	if b.closed {
		return nil
	}
	b.closed = true
	b.removeRuns()
	b.table = nil
	b.h.b.bulksRunning.Add(-1)
	// The cache is gone once the backend is closed.
	b.h.b.life.RLock()
	defer b.h.b.life.RUnlock()
	if !b.h.b.life.closed {
		b.release()
	}
	return nil
}
