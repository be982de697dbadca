package pebblestore

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// failStop is the file system that the database sees. It does two things.
//
// It makes a commit reach the operating system without a sync. Pebble collects
// log records in a buffer of the process and writes them out when 32 KiB are
// full or a sync is asked for; so commits ask for a sync, and here the sync of
// a log file does nothing. A process that is killed loses nothing, a machine
// that loses power loses a suffix, which the changelog has. A log file is
// synced for good when it is closed, because the next one must not outlive it.
//
// And it turns the first failed write into a full stop. Pebble answers a full
// disk by ending the process: it panics while it holds locks when a log file
// cannot be written, calls Fatalf when the manifest cannot, and tries for ever to flush
// in Open. A library may
// not end its host. So the error is kept from Pebble: the disk is frozen as if
// the process had died at this moment, the caller's onFail is told, and what
// Pebble still writes goes to memory or nowhere, so that it stays consistent
// in itself until it is closed. The backend refuses every call from then on.
// Whoever opens the folder again finds what a crash would have left.
//
// Why freezing leaves nothing torn: operations are dropped only once frozen is
// set, and it is never unset. When Pebble relies on A having been done before
// B, then either A was done, or A was dropped and B is dropped too.
type failStop struct {
	vfs.FS
	dir string

	// onFail is called once, with the first error, by the goroutine that met
	// it. It must not block.
	onFail func(error)

	frozen atomic.Bool
	once   sync.Once

	// overlay takes the files made after the freeze: those of the last
	// flushes, bounded by the memtables, and empty logs.
	overlay *vfs.MemFS

	// closing ends the waiting of frozen compactions.
	closing chan struct{}
}

var _ vfs.FS = (*failStop)(nil)

func newFailStop(fs vfs.FS, dir string, onFail func(error)) *failStop {
	return &failStop{FS: fs, dir: dir, onFail: onFail, closing: make(chan struct{})}
}

// Categories that Pebble gives to the files it makes.
const (
	categoryCompaction = "pebble-compaction"
	categoryIngestion  = "pebble-ingestion"
)

// frozenRetryInterval slows compactions down that are tried again and again
// after the freeze.
const frozenRetryInterval = time.Second

// fail freezes the disk.
func (f *failStop) fail(op, name string, err error) {
	f.once.Do(func() {
		f.overlay = vfs.NewMem()
		// In memory this cannot fail.
		_ = f.overlay.MkdirAll(f.dir, 0o755)
		f.frozen.Store(true)
		f.onFail(fmt.Errorf("%s %s: %w", op, name, err))
	})
}

func (f *failStop) wrap(file vfs.File, name string) vfs.File {
	return &failStopFile{File: file, fs: f, name: name, wal: strings.HasSuffix(name, ".log"), table: strings.HasSuffix(name, ".sst")}
}

func (f *failStop) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if f.frozen.Load() {
		return f.createFrozen(name, category)
	}
	file, err := f.FS.Create(name, category)
	if err != nil {
		f.fail("create", name, err)
		return f.createFrozen(name, category)
	}
	return f.wrap(file, name), nil
}

func (f *failStop) createFrozen(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	switch category {
	case categoryCompaction, categoryIngestion:
		// May be as large as the disk: it has to fail, and it is retried.
		select {
		case <-f.closing:
		case <-time.After(frozenRetryInterval):
		}
		return nil, fmt.Errorf("create %s: the database has stopped after a failed write", name)
	default:
		return f.overlay.Create(name, category)
	}
}

func (f *failStop) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if f.frozen.Load() {
		return f.createFrozen(newname, category)
	}
	file, err := f.FS.ReuseForWrite(oldname, newname, category)
	if err != nil {
		f.fail("reuse", oldname, err)
		return f.createFrozen(newname, category)
	}
	return f.wrap(file, newname), nil
}

func (f *failStop) inOverlay(name string) bool {
	if !f.frozen.Load() {
		return false
	}
	_, err := f.overlay.Stat(name)
	return err == nil
}

func (f *failStop) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if f.inOverlay(name) {
		return f.overlay.Open(name, opts...)
	}
	return f.FS.Open(name, opts...)
}

func (f *failStop) OpenDir(name string) (vfs.File, error) {
	dir, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return f.wrap(dir, name), nil
}

func (f *failStop) Stat(name string) (vfs.FileInfo, error) {
	if f.inOverlay(name) {
		return f.overlay.Stat(name)
	}
	return f.FS.Stat(name)
}

func (f *failStop) Rename(oldname, newname string) error {
	if !f.frozen.Load() {
		err := f.FS.Rename(oldname, newname)
		if err == nil {
			return nil
		}
		f.fail("rename", oldname, err)
	}
	if f.inOverlay(oldname) {
		return f.overlay.Rename(oldname, newname)
	}
	return nil
}

// Link is used by ingestion only, which reports its failure.
func (f *failStop) Link(oldname, newname string) error {
	if f.frozen.Load() {
		return fmt.Errorf("link %s: the database has stopped after a failed write", oldname)
	}
	return f.FS.Link(oldname, newname)
}

// Remove drops what Pebble thinks obsolete. After the freeze it knows less than
// the disk: the manifest that made the file obsolete was not written.
func (f *failStop) Remove(name string) error {
	if !f.frozen.Load() {
		return f.FS.Remove(name)
	}
	if f.inOverlay(name) {
		return f.overlay.Remove(name)
	}
	return nil
}

// Lock does nothing: the backend holds the folder's lock itself, before the
// database is opened and until after it is closed.
func (f *failStop) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// Unwrap implements vfs.FS.
func (f *failStop) Unwrap() vfs.FS { return f.FS }

// release lets frozen compactions end, before the database is closed.
func (f *failStop) release() { close(f.closing) }

type failStopFile struct {
	vfs.File
	fs         *failStop
	name       string
	wal, table bool
}

// written decides what Pebble gets to know about an operation on a file: an
// error in a table is reported, because a flush can be repeated, into memory;
// any other is hidden.
func (f *failStopFile) written(op string, err error) error {
	if err == nil {
		return nil
	}
	f.fs.fail(op, f.name, err)
	return f.dropped()
}

// dropped is the result of an operation after the freeze.
func (f *failStopFile) dropped() error {
	if f.table {
		return fmt.Errorf("write %s: the database has stopped after a failed write", f.name)
	}
	return nil
}

func (f *failStopFile) Write(p []byte) (int, error) {
	if f.fs.frozen.Load() {
		return len(p), f.dropped()
	}
	n, err := f.File.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	if err = f.written("write", err); err != nil {
		return n, err
	}
	return len(p), nil
}

func (f *failStopFile) Sync() error {
	if f.wal {
		return nil
	}
	if f.fs.frozen.Load() {
		return f.dropped()
	}
	return f.written("sync", f.File.Sync())
}

func (f *failStopFile) SyncData() error {
	if f.wal {
		return nil
	}
	if f.fs.frozen.Load() {
		return f.dropped()
	}
	return f.written("sync", f.File.SyncData())
}

func (f *failStopFile) SyncTo(length int64) (bool, error) {
	if f.wal {
		return false, nil
	}
	if f.fs.frozen.Load() {
		return false, f.dropped()
	}
	full, err := f.File.SyncTo(length)
	return full, f.written("sync", err)
}

func (f *failStopFile) Close() error {
	if f.wal && !f.fs.frozen.Load() {
		if err := f.written("sync", f.File.SyncData()); err != nil {
			_ = f.File.Close()
			return err
		}
	}
	return f.File.Close()
}
