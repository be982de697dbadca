// Package pebblestore keeps views on the local disk, in one Pebble database
// for the whole process.
//
// All tasks and all their stores share the database, told apart by key
// prefixes, and so they share one block cache and one set of memtables: the
// memory used does not grow with the number of stores. Options.MaxMemory is
// the one bound for it.
//
// # Durability
//
// An Apply that has returned is handed to the operating system right behind
// it, and is not synced to the disk. So the death of the process takes the
// Applies of the last moment with it at most, and a power failure or a crash of
// the operating system the latest ones; what is left is always the state of one
// earlier token, never a mixture. The runtime finds the older token and
// replays the missing tail from the changelog. Close syncs everything, and so
// does the end of a restore.
//
// # When the disk fails
//
// Every Apply first checks that MinFreeSpace is left on the disk, and is
// refused with state.ErrFull when it is not; nothing is stored, reading goes
// on, and writing too once there is room. Should a write of the operating
// system fail nevertheless, the backend stops: it leaves the disk as it is at
// that moment, refuses every further call with the reason, and must be closed
// and opened again. The process is not ended.
//
// Damage is found by checksums. A folder that cannot be opened because of it,
// or in which damage was met while it was open, is renamed to
// <dir>.corrupt-<time> at the next Open, which starts with an empty database;
// the runtime rebuilds the views from the changelog. The latest
// MaxQuarantined such folders are kept for people to look at, older ones are
// removed.
package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/weirstreams/weir/state"
)

// Options configures Open. The zero value is the default.
type Options struct {
	// MaxMemory bounds the memory of the database in bytes: the block cache,
	// and taken out of it the memtables (an eighth each, at most 16 MiB,
	// three of them before an Apply waits) and what restores gather before
	// they write it (half for all that run at the same time, at most a
	// quarter and 256 MiB for one). Outside of it are iterators, a few
	// kilobytes for every open file and the buffers of Go itself. Defaults to
	// DefaultMaxMemory(); raised to MinMemory when it is less.
	MaxMemory int64

	// MinFreeSpace is the room, in bytes, that writes leave on the disk; they
	// are refused with state.ErrFull when there is less. It is what the
	// database needs to write out what it holds in memory. Defaults to three
	// times the size of a memtable, which is 3/8 of MaxMemory and at most
	// 192 MiB. Negative: do not check.
	MinFreeSpace int64

	// LockTimeout is for how long Open tries again when another process, as
	// one that is about to die, holds the folder. Defaults to 10 s. Negative:
	// try once.
	LockTimeout time.Duration

	// Logger receives what happens in the background. Nil discards it.
	Logger *slog.Logger

	// OnAlarm is called with what a person has to know: a folder was
	// quarantined, damage was found, a write failed, the disk is full. Open
	// calls it before it returns, later calls come one at a time from a
	// goroutine that Close waits for; so it must not call Close. The errors wrap state.ErrCorrupt or
	// state.ErrFull where that is what happened. Nil: log only.
	OnAlarm func(error)

	// For tests.
	fs  vfs.FS
	now func() time.Time
}

const defaultLockTimeout = 10 * time.Second

func (o Options) withDefaults() Options {
	if o.MaxMemory == 0 {
		o.MaxMemory = DefaultMaxMemory()
	}
	o.MaxMemory = max(o.MaxMemory, MinMemory)
	if o.MinFreeSpace == 0 {
		o.MinFreeSpace = memtablesWaiting * int64(splitMemory(o.MaxMemory).memtable)
	}
	if o.LockTimeout == 0 {
		o.LockTimeout = defaultLockTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.OnAlarm == nil {
		o.OnAlarm = func(error) {}
	}
	if o.fs == nil {
		o.fs = vfs.Default
	}
	if o.now == nil {
		o.now = time.Now
	}
	return o
}

// Backend keeps views in one Pebble database. Make one with Open.
//
// It is safe for concurrent use. Each view has a lock: writes of a view
// exclude each other and its fenced reads; different views do not wait for
// each other, nor do iterators and committed readers for anybody.
type Backend struct {
	dir   string
	opts  Options
	split memorySplit
	db    *pebble.DB
	// pebbleOptions are those the database was opened with.
	pebbleOptions *pebble.Options
	cache         *pebble.Cache
	fs            *failStop
	lock          io.Closer
	gate          gate
	alarm         alarm

	// life is held for reading by every operation and for writing by Close.
	life struct {
		sync.RWMutex
		closed bool
	}
	// closing is closed when Close begins, and ends waiting operations.
	closing   chan struct{}
	closeOnce sync.Once
	closeErr  error

	// failed is closed when a write has failed; failure is then set.
	failed  chan struct{}
	failure atomic.Pointer[error]
	// corrupt is set when damage was met.
	corrupt atomic.Bool
	// poisoned is set when Pebble has panicked and may hold locks for ever.
	poisoned atomic.Bool

	views struct {
		sync.RWMutex
		byID map[state.ID]*view
		// next is the number that the next new view gets. Numbers are not
		// used again while the database is open.
		next uint32
	}

	iterators struct {
		sync.Mutex
		open map[*iterator]struct{}
	}
	// session and bulks name the files of restores. A restore may be closed
	// after the backend, when the folder is another one's: names must differ.
	session      string
	bulks        atomic.Uint64
	bulksRunning atomic.Int64
}

var _ state.Backend = (*Backend)(nil)

// view is the state of one task. It stays in the map after a Drop, because
// handles point to it; its number is then 0.
type view struct {
	id state.ID

	mu sync.RWMutex
	// number is the prefix of the view's keys, 0 when it does not exist. It
	// changes with Clear, so that what is restored afterwards does not lie
	// over what was deleted.
	number uint32
	// token is what is stored: the folder is locked, so that nobody else can
	// have changed it. Replaced under mu; iterators compare the pointer
	// without it. Never nil.
	token atomic.Pointer[state.Token]
	// unflushed estimates the bytes of the view that are in memtables.
	unflushed struct {
		flush uint64 // counts flushes; another one makes bytes obsolete
		bytes int64
	}
}

func newView(id state.ID) *view {
	v := &view{id: id}
	v.setToken("")
	return v
}

func (v *view) setToken(t state.Token) { v.token.Store(&t) }

// fenced needs v.mu.
func (v *view) fenced() error { return &state.FencedError{ID: v.id, Stored: *v.token.Load()} }

func (b *Backend) lookup(id state.ID) *view {
	b.views.RLock()
	defer b.views.RUnlock()
	return b.views.byID[id]
}

func (b *Backend) lookupOrMake(id state.ID) *view {
	if v := b.lookup(id); v != nil {
		return v
	}
	b.views.Lock()
	defer b.views.Unlock()
	v := b.views.byID[id]
	if v == nil {
		v = newView(id)
		b.views.byID[id] = v
	}
	return v
}

// newNumber returns a number that no view has had since the database was
// opened, nor any that exists.
func (b *Backend) newNumber() (uint32, error) {
	b.views.Lock()
	defer b.views.Unlock()
	n := b.views.next
	if n == 0 {
		return 0, errors.New("all 4294967295 view numbers are used up: drop the state folder, it is rebuilt")
	}
	b.views.next++
	return n, nil
}

// enter begins an operation: the database stays open until leave.
func (b *Backend) enter(ctx context.Context) error {
	b.life.RLock()
	err := b.refusal()
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		b.life.RUnlock()
	}
	return err
}

func (b *Backend) leave() { b.life.RUnlock() }

// refusal returns why no operation may start. Needs life.
func (b *Backend) refusal() error {
	if b.life.closed {
		return fmt.Errorf("state folder %s: %w", b.dir, state.ErrClosed)
	}
	return b.stopped()
}

// stopped returns the failure that stopped the backend, if there was one.
func (b *Backend) stopped() error {
	if p := b.failure.Load(); p != nil {
		return *p
	}
	return nil
}

// stop makes every further call fail with err. It is called from within
// Pebble: it must not block and not call it.
func (b *Backend) stop(err error) {
	err = fmt.Errorf("state folder %s: stopped after a failed write, close and open it again: %w", b.dir, classify(err))
	if b.failure.CompareAndSwap(nil, &err) {
		close(b.failed)
		if errors.Is(err, state.ErrCorrupt) {
			b.corrupt.Store(true)
		}
		b.alarm.raise(err)
	}
}

// damaged records damage, so that the next Open quarantines the folder. It is
// called from within Pebble: it must not block and not call it.
func (b *Backend) damaged(err error) {
	if b.corrupt.Swap(true) {
		return
	}
	b.alarm.raise(fmt.Errorf("state folder %s is damaged and will be quarantined at the next start: %w", b.dir, classify(err)))
}

// classify adds the sentinel of package state that an error of Pebble or of
// the operating system stands for.
func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, state.ErrFull), errors.Is(err, state.ErrCorrupt):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %w", state.ErrFull, err)
	case pebble.IsCorruptionError(err), errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", state.ErrCorrupt, err)
	default:
		return err
	}
}

// readError is what a read that failed returns.
func (b *Backend) readError(id state.ID, err error) error {
	err = classify(err)
	if errors.Is(err, state.ErrCorrupt) {
		b.damaged(err)
	}
	return fmt.Errorf("read view %s in %s: %w", id, b.dir, err)
}

// commit writes a batch. The view's lock is held by the caller.
func (b *Backend) commit(what string, id state.ID, batch *pebble.Batch) error {
	// The sync makes the log reach the operating system; see failStop.
	return b.guard(what, id, func() error { return batch.Commit(pebble.Sync) })
}

// guard calls Pebble to write something.
func (b *Backend) guard(what string, id state.ID, write func() error) (err error) {
	defer func() {
		// Pebble panics on what it thinks impossible. It may then hold locks,
		// so it is not called again.
		if r := recover(); r != nil {
			b.fs.fail("commit to", b.dir, fmt.Errorf("panic: %v", r))
			b.poisoned.Store(true)
		}
		// A failed write is not reported by Pebble, which must not know.
		if ferr := b.stopped(); ferr != nil {
			err = fmt.Errorf("%s view %s: %w", what, id, ferr)
		}
	}()
	if err := write(); err != nil {
		return fmt.Errorf("%s view %s: %w", what, id, classify(err))
	}
	return nil
}

// Token implements state.Backend.
func (b *Backend) Token(ctx context.Context, id state.ID) (state.Token, error) {
	if err := b.enter(ctx); err != nil {
		return "", err
	}
	defer b.leave()
	if v := b.lookup(id); v != nil {
		return *v.token.Load(), nil
	}
	return "", nil
}

// Claim implements state.Backend.
func (b *Backend) Claim(ctx context.Context, id state.ID, old, new state.Token) (state.View, error) {
	if err := checkTokens("claim", id, old, new); err != nil {
		return nil, err
	}
	if err := b.enter(ctx); err != nil {
		return nil, err
	}
	defer b.leave()
	if err := b.gate.admit(ctx, b, len(new)); err != nil {
		return nil, fmt.Errorf("claim view %s: %w", id, err)
	}
	v := b.lookupOrMake(id)
	v.mu.Lock()
	defer v.mu.Unlock()
	if *v.token.Load() != old {
		return nil, v.fenced()
	}
	batch := b.db.NewBatch()
	defer batch.Close()
	number := v.number
	if number == 0 {
		// Registry and token are in one batch. Thus, as long as the registry
		// is not on disk, the token is in the memtable too, and a restore
		// that brings a token flushes it first: data never gets to the disk
		// before the entry that says whose it is.
		var err error
		if number, err = b.newNumber(); err != nil {
			return nil, fmt.Errorf("claim view %s: %w", id, err)
		}
		_ = batch.Set(registryKey(id), registryValue(number), nil)
	}
	_ = batch.Set(tokenKey(number), []byte(new), nil)
	if err := b.commit("claim", id, batch); err != nil {
		return nil, err
	}
	v.number = number
	v.setToken(new)
	return &handle{b: b, v: v}, nil
}

// checkTokens refuses tokens that would break compare-and-swap: an empty one
// means "no view", and new equal to old could not be told from a repetition.
func checkTokens(what string, id state.ID, old, new state.Token) error {
	if new == "" {
		return fmt.Errorf("%s view %s: the new token is empty", what, id)
	}
	if old == new {
		return fmt.Errorf("%s view %s: the new token is the old one", what, id)
	}
	return nil
}

// Committed implements state.Backend.
func (b *Backend) Committed(id state.ID) state.Reader { return &reader{b: b, id: id} }

// Drop implements state.Backend. The disk space is given back in the
// background.
func (b *Backend) Drop(ctx context.Context, id state.ID) error {
	if err := b.enter(ctx); err != nil {
		return err
	}
	defer b.leave()
	v := b.lookup(id)
	if v == nil {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.number == 0 {
		return nil
	}
	// No admission: dropping is how a person makes room.
	batch := b.db.NewBatch()
	defer batch.Close()
	lower, upper := viewBounds(v.number)
	_ = batch.Delete(registryKey(id), nil)
	_ = batch.DeleteRange(lower, upper, nil)
	if err := b.commit("drop", id, batch); err != nil {
		return err
	}
	b.reclaim(v.number)
	v.number = 0
	v.setToken("")
	return nil
}

// reclaimBytes is how much disk space a deleted range must hold for its
// tombstone to be flushed at once; until then compactions do not see it.
const reclaimBytes = 8 << 20

// reclaim lets compactions free the space of a view whose range was deleted.
func (b *Backend) reclaim(number uint32) {
	lower, upper := viewBounds(number)
	if n, err := b.db.EstimateDiskUsage(lower, upper); err != nil || n < reclaimBytes {
		return
	}
	if _, err := b.db.AsyncFlush(); err != nil {
		b.opts.Logger.Warn("flush after a drop failed", "dir", b.dir, "error", err)
	}
}

// Views implements state.Backend.
func (b *Backend) Views(ctx context.Context, application string, yield func(state.ID, state.Token) bool) error {
	if err := b.enter(ctx); err != nil {
		return err
	}
	b.views.RLock()
	var views []*view
	for id, v := range b.views.byID {
		if id.Application == application {
			views = append(views, v)
		}
	}
	b.views.RUnlock()
	b.leave()
	// yield is foreign code: it is called without a lock.
	for _, v := range views {
		if token := *v.token.Load(); token != "" && !yield(v.id, token) {
			return nil
		}
	}
	return nil
}

// Dir is the folder that the backend was opened on.
func (b *Backend) Dir() string { return b.dir }

// Close implements state.Backend. It waits for running operations, ends open
// iterators, writes everything to the disk and syncs it. The error says what
// could not be written; the folder is unlocked in any case.
func (b *Backend) Close() error {
	b.closeOnce.Do(func() { b.closeErr = b.close() })
	return b.closeErr
}

func (b *Backend) close() error {
	close(b.closing)
	b.life.Lock()
	b.life.closed = true
	b.life.Unlock()

	b.iterators.Lock()
	open := b.iterators.open
	b.iterators.open = nil
	b.iterators.Unlock()
	for it := range open {
		it.stop(fmt.Errorf("state folder %s: %w", b.dir, state.ErrClosed))
	}

	var errs []error
	if !b.poisoned.Load() {
		if b.stopped() == nil {
			// So that opening again does not have to replay the log.
			errs = append(errs, b.db.Flush())
		}
		b.fs.release()
		errs = append(errs, b.db.Close())
	} else {
		// The database cannot be closed. What it still does cannot reach the
		// frozen disk.
		b.fs.release()
	}
	// The lock goes last: nothing of ours touches the folder any more.
	stopped := b.stopped()
	b.alarm.close()
	b.cache.Unref()
	errs = append(errs, b.lock.Close())
	if stopped != nil {
		return fmt.Errorf("close: %w", stopped)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close state folder %s: %w", b.dir, classify(err))
	}
	return nil
}
