package pebblestore

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/weirstreams/weir/state"
)

const (
	// MaxQuarantined is how many quarantined folders are kept beside the
	// state folder; the oldest are removed when there are more.
	MaxQuarantined = 2

	quarantineInfix  = ".corrupt-"
	quarantineLayout = "20060102T150405Z"

	// damageMarker is a file that is written when damage is met while the
	// database is open, with the reason in it. Open quarantines the folder.
	damageMarker = "DAMAGED"

	// lockFile is the name that Pebble uses.
	lockFile = "LOCK"
	// Attempts to lock the folder are repeated with growing pauses.
	firstLockPause = 10 * time.Millisecond
	maxLockPause   = 500 * time.Millisecond

	maxOpenFiles = 1000

	blockSize      = 8 << 10
	indexBlockSize = 32 << 10
	bloomBits      = 10
)

// Open opens the database in a folder, which it makes when there is none, and
// locks the folder for the process.
//
// A folder that another process holds is tried again for LockTimeout, then the
// error wraps state.ErrLocked. A damaged one is quarantined, as the package
// comment says, and an empty database takes its place. A database that a newer
// version wrote, or that is not ours, is an error and is left alone.
func Open(dir string, options Options) (*Backend, error) {
	opts := options.withDefaults()
	if opts.fs == vfs.Default {
		// Pebble knows its locks by name.
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, fmt.Errorf("state folder %s: %w", dir, err)
		}
		dir = abs
	}
	var quarantined error
	for range 2 {
		b, err := open(dir, opts)
		if err == nil {
			return b, nil
		}
		var d *damageError
		if !errors.As(err, &d) {
			return nil, fmt.Errorf("open state folder %s: %w", dir, classify(err))
		}
		if quarantined != nil {
			return nil, fmt.Errorf("open state folder %s: a fresh database is damaged at once: %w", dir, d.err)
		}
		quarantined = d.err
	}
	return nil, fmt.Errorf("open state folder %s: %w", dir, quarantined)
}

// damageError says that the folder was found damaged and has been moved away.
type damageError struct{ err error }

func (e *damageError) Error() string { return e.err.Error() }

// open makes one attempt. On damage the folder has been quarantined when it
// returns a *damageError.
func open(dir string, opts Options) (_ *Backend, err error) {
	if err := opts.fs.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	lock, err := lockFolder(dir, opts)
	if err != nil {
		return nil, err
	}
	unlock := true
	defer func() {
		if unlock {
			err = errors.Join(err, lock.Close())
		}
	}()

	reason := markedDamage(dir, opts.fs)
	if reason == nil {
		var b *Backend
		if b, err = openDatabase(dir, opts, lock); err == nil {
			unlock = false
			return b, nil
		}
		if !isDamage(err) {
			return nil, err
		}
		reason = err
	}
	moved, err := quarantine(dir, opts)
	if err != nil {
		return nil, fmt.Errorf("quarantine (%w): %w", err, reason)
	}
	alarm := fmt.Errorf("state folder %s is damaged and was moved to %s; an empty one takes its place and is rebuilt from the changelog; the latest %d of these folders are kept: %w: %w",
		dir, moved, MaxQuarantined, state.ErrCorrupt, reason)
	opts.Logger.Error("state folder quarantined", "dir", dir, "moved_to", moved, "error", reason)
	opts.OnAlarm(alarm)
	return nil, &damageError{alarm}
}

// lockFolder locks the folder, waiting for another process that holds it.
func lockFolder(dir string, opts Options) (io.Closer, error) {
	deadline := time.Now().Add(opts.LockTimeout)
	for pause := firstLockPause; ; pause = min(2*pause, maxLockPause) {
		lock, err := opts.fs.Lock(opts.fs.PathJoin(dir, lockFile))
		if err == nil {
			return lock, nil
		}
		if !isLocked(err) {
			return nil, fmt.Errorf("lock: %w", err)
		}
		left := time.Until(deadline)
		if left <= 0 {
			return nil, fmt.Errorf("%w: %s is held by another process, waited %v for it: end that process, or give this one another folder (%w)",
				state.ErrLocked, dir, max(opts.LockTimeout, 0), err)
		}
		if pause == firstLockPause {
			opts.Logger.Warn("state folder is locked, waiting", "dir", dir, "timeout", opts.LockTimeout)
		}
		time.Sleep(min(pause, left))
	}
}

// isLocked tells an existing lock from a folder that cannot be locked.
func isLocked(err error) bool {
	return errors.Is(err, syscall.EAGAIN) ||
		strings.Contains(err.Error(), "lock held by current process") || // vfs on Unix
		strings.Contains(err.Error(), "file already locked") // vfs in memory
}

// isDamage decides whether a database that cannot be opened is to be replaced.
// The data can be rebuilt, so whatever is not known to be the surroundings'
// fault counts as damage: else a person would have to delete the folder.
func isDamage(err error) bool {
	var not *notDamage
	if errors.As(err, &not) {
		return false
	}
	if pebble.IsCorruptionError(err) || errors.Is(err, state.ErrCorrupt) || errors.Is(err, fs.ErrNotExist) {
		return true
	}
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno): // no room, no permission, too many files, ...
		return false
	case errors.Is(err, fs.ErrPermission):
		return false
	default:
		return true
	}
}

// notDamage is an error about a database that must be left alone: it is not
// ours to judge, or it is the disk that fails.
type notDamage struct{ error }

func (e *notDamage) Unwrap() error { return e.error }

// markedDamage returns why the folder was marked, nil when it was not.
func markedDamage(dir string, files vfs.FS) error {
	f, err := files.Open(files.PathJoin(dir, damageMarker))
	if err != nil {
		return nil
	}
	defer f.Close()
	const enough = 4096
	text, err := io.ReadAll(io.LimitReader(f, enough))
	if err != nil {
		text = []byte(err.Error())
	}
	return fmt.Errorf("damage was met while it was in use: %s", strings.TrimSpace(string(text)))
}

// markDamage is best effort: if the marker cannot be written the damage is
// found again.
func markDamage(dir string, files vfs.FS, reason error) error {
	f, err := files.Create(files.PathJoin(dir, damageMarker), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, reason.Error()+"\n")
	if serr := f.Sync(); err == nil {
		err = serr
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return syncDir(dir, files)
}

func syncDir(dir string, files vfs.FS) error {
	d, err := files.OpenDir(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// quarantine renames the folder, whose lock is held, and removes the oldest of
// those that were renamed before.
func quarantine(dir string, opts Options) (string, error) {
	files := opts.fs
	base := dir + quarantineInfix + opts.now().UTC().Format(quarantineLayout)
	name := base
	for n := 2; ; n++ {
		if _, err := files.Stat(name); err != nil {
			break
		}
		name = fmt.Sprintf("%s-%d", base, n)
	}
	if err := files.Rename(dir, name); err != nil {
		return "", err
	}
	parent := files.PathDir(dir)
	// The rename has to be there before the new folder is.
	if err := syncDir(parent, files); err != nil {
		return "", err
	}
	siblings, err := files.List(parent)
	if err != nil {
		return "", err
	}
	prefix := files.PathBase(dir) + quarantineInfix
	siblings = slices.DeleteFunc(siblings, func(s string) bool { return !strings.HasPrefix(s, prefix) })
	slices.SortFunc(siblings, compareQuarantined)
	for len(siblings) > MaxQuarantined {
		old := files.PathJoin(parent, siblings[0])
		siblings = siblings[1:]
		if err := files.RemoveAll(old); err != nil {
			opts.Logger.Warn("an old quarantined folder cannot be removed", "dir", old, "error", err)
			continue
		}
		opts.Logger.Info("an old quarantined folder was removed", "dir", old)
	}
	return name, nil
}

// compareQuarantined orders names by their time; the second of one moment has
// a longer name than the first, the tenth than the ninth.
func compareQuarantined(a, b string) int {
	ta, tb := quarantineTime(a), quarantineTime(b)
	if ta != tb {
		return strings.Compare(ta, tb)
	}
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

func quarantineTime(name string) string {
	i := strings.LastIndex(name, quarantineInfix)
	stamp := name[i+len(quarantineInfix):]
	return stamp[:min(len(stamp), len(quarantineLayout))]
}

// openDatabase opens the database in a folder whose lock is held.
func openDatabase(dir string, opts Options, lock io.Closer) (_ *Backend, err error) {
	b := &Backend{
		dir: dir, opts: opts, split: splitMemory(opts.MaxMemory), lock: lock,
		closing: make(chan struct{}), failed: make(chan struct{}),
		session: rand.Text(),
	}
	b.views.byID = map[state.ID]*view{}
	b.iterators.open = map[*iterator]struct{}{}
	b.gate.init()
	b.fs = newFailStop(opts.fs, dir, b.stop)
	b.alarm.init()
	b.cache = pebble.NewCache(b.split.cache)
	defer func() {
		if err != nil {
			b.cache.Unref()
		}
	}()
	temporary := opts.fs.PathJoin(dir, bulkDir)
	if err := opts.fs.RemoveAll(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := opts.fs.MkdirAll(temporary, 0o755); err != nil {
		return nil, err
	}
	b.pebbleOptions = b.options()
	defer func() {
		if err == nil {
			return
		}
		b.fs.release()
		if b.db != nil {
			_ = b.db.Close()
		}
		// It explains whatever else went wrong.
		if stopped := b.failure.Load(); stopped != nil {
			err = &notDamage{*stopped}
		}
	}()
	if b.db, err = openPebble(dir, b.pebbleOptions); err != nil {
		return nil, err
	}
	if err := b.checkFormat(); err != nil {
		return nil, err
	}
	if err := b.loadViews(); err != nil {
		return nil, err
	}
	if err := b.stopped(); err != nil {
		return nil, err
	}
	b.alarm.start(b.deliver)
	return b, nil
}

// deliver takes an alarm to those who have to know.
func (b *Backend) deliver(err error) {
	if b.corrupt.Load() {
		if merr := markDamage(b.dir, b.opts.fs, err); merr != nil {
			b.opts.Logger.Warn("the state folder cannot be marked as damaged", "dir", b.dir, "error", merr)
		}
	}
	b.opts.Logger.Error("state folder alarm", "dir", b.dir, "error", err)
	b.opts.OnAlarm(err)
}

// openPebble turns a panic over a damaged file into an error.
func openPebble(dir string, options *pebble.Options) (db *pebble.DB, err error) {
	defer func() {
		if r := recover(); r != nil {
			db, err = nil, fmt.Errorf("%w: panic: %v", state.ErrCorrupt, r)
		}
	}()
	db, err = pebble.Open(dir, options)
	if err != nil && strings.Contains(err.Error(), "unknown format major version") {
		err = &notDamage{fmt.Errorf("it was written by a newer version of this program: use that one, or remove the folder, it is rebuilt: %w", err)}
	}
	return db, err
}

// pebbleFormat is not the newest. Since FormatWALSyncChunks the log says how
// far it was synced, and a gap before that point counts as damage. We do not
// sync the log (see failStop), so that after a power failure such a gap is
// normal: the log ends there, and the changelog has the rest.
const pebbleFormat = pebble.FormatColumnarBlocks

func (b *Backend) options() *pebble.Options {
	o := &pebble.Options{
		Cache:              b.cache,
		EventListener:      b.listener(),
		FS:                 b.fs,
		FormatMajorVersion: pebbleFormat,
		Logger:             logger{b},
		MaxOpenFiles:       maxOpenFiles,
		MemTableSize:       b.split.memtable,
		// The gate stands in for both.
		MemTableStopWritesThreshold: unreachable,
		L0StopWritesThreshold:       unreachable,
		CompactionConcurrencyRange:  func() (int, int) { return 1, max(1, runtime.GOMAXPROCS(0)/2) },
		// The base level holds some memtables, so that small databases have
		// few levels.
		LBaseMaxBytes: max(64<<20, int64(b.split.memtable)),
	}
	for i := range o.Levels {
		l := &o.Levels[i]
		l.BlockSize = blockSize
		l.IndexBlockSize = indexBlockSize
		l.Compression = func() *sstable.CompressionProfile { return sstable.SnappyCompression }
		l.FilterPolicy = bloom.FilterPolicy(bloomBits)
		l.FilterType = pebble.TableFilter
	}
	o.EnsureDefaults()
	return o
}

// checkFormat makes sure that the database is ours and of a version that this
// program knows, and makes a new one ours.
func (b *Backend) checkFormat() error {
	value, closer, err := b.db.Get(formatKey)
	if err == nil {
		version, perr := parseFormatRecord(value)
		if err := errors.Join(perr, closer.Close()); err != nil {
			return err
		}
		if version > formatVersion {
			return &notDamage{fmt.Errorf("its layout has version %d, this program knows up to %d: use a newer program, or remove the folder, it is rebuilt", version, formatVersion)}
		}
		return nil
	}
	if !errors.Is(err, pebble.ErrNotFound) {
		return err
	}
	it, err := b.db.NewIter(nil)
	if err != nil {
		return err
	}
	occupied := it.First()
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return err
	}
	if occupied {
		return &notDamage{errors.New("it holds a Pebble database that is not a state folder: give another folder")}
	}
	if err := b.db.Set(formatKey, formatRecord(), pebble.Sync); err != nil {
		return err
	}
	// Restores write tables past the log: the record must be on the disk
	// before the first of them.
	return b.db.Flush()
}

// loadViews reads the registry and the tokens.
func (b *Backend) loadViews() error {
	it, err := b.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceRegistry}, UpperBound: []byte{spaceViews}})
	if err != nil {
		return err
	}
	highest := uint32(0)
	taken := map[uint32]state.ID{}
	for it.First(); it.Valid() && err == nil; it.Next() {
		var v *view
		if v, err = b.loadView(it.Key(), it.Value()); err == nil {
			if other, ok := taken[v.number]; ok {
				err = fmt.Errorf("views %s and %s have the same number %d: %w", other, v.id, v.number, state.ErrCorrupt)
			}
			taken[v.number] = v.id
			highest = max(highest, v.number)
			b.views.byID[v.id] = v
		}
	}
	if err := errors.Join(err, it.Error(), it.Close()); err != nil {
		return err
	}
	// Data without an entry should not exist; if it did, its number must not
	// be given away.
	it, err = b.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceViews}, UpperBound: []byte{spaceEnd}})
	if err != nil {
		return err
	}
	if it.Last() {
		if n, ok := parseViewKey(it.Key()); ok {
			highest = max(highest, n)
		}
	}
	b.views.next = highest + 1
	return errors.Join(it.Error(), it.Close())
}

func (b *Backend) loadView(key, value []byte) (*view, error) {
	id, number, err := parseRegistry(key, value)
	if err != nil {
		return nil, err
	}
	token, closer, err := b.db.Get(tokenKey(number))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, fmt.Errorf("view %s has no token: %w", id, state.ErrCorrupt)
	}
	if err != nil {
		return nil, err
	}
	v := newView(id)
	v.number = number
	v.setToken(state.Token(token))
	return v, closer.Close()
}
