package pebblestore

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"

	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/statetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testDir = "/state"

// disk is a file system in memory that can crash and can fail.
type disk struct {
	mem *vfs.MemFS
	// left counts the writes until all fail; negative: none fails.
	left    atomic.Int64
	armed   atomic.Bool
	met     atomic.Bool
	failure error
}

func newDisk(mem *vfs.MemFS) *disk {
	return &disk{mem: mem, failure: syscall.ENOSPC}
}

func (d *disk) failAfter(n int) {
	d.left.Store(int64(n))
	d.met.Store(false)
	d.armed.Store(true)
}

func (d *disk) heal() { d.armed.Store(false) }

// MaybeError implements errorfs.Injector.
func (d *disk) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	switch op.Kind {
	case errorfs.OpFileClose, errorfs.OpLock, errorfs.OpRemove, errorfs.OpRemoveAll, errorfs.OpFilePreallocate:
		return nil // a full disk does not hinder these, or nobody looks
	}
	if op.Kind == errorfs.OpFileWrite {
		return nil // tornFile does these
	}
	return d.fail(fmt.Sprint(op.Kind), op.Path)
}

func (d *disk) String() string { return "disk" }

// fail returns the error of one operation that writes, nil when it succeeds.
func (d *disk) fail(op, path string) error {
	if !d.armed.Load() || d.left.Add(-1) >= 0 {
		return nil
	}
	d.met.Store(true)
	return &os.PathError{Op: op, Path: path, Err: d.failure}
}

func (d *disk) fs() vfs.FS { return &tornFS{errorfs.Wrap(d.mem, d), d} }

// tornFS lets a write that fails leave its first half behind, as the systems
// do.
type tornFS struct {
	vfs.FS
	d *disk
}

func (f *tornFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	if err != nil {
		return nil, err
	}
	return &tornFile{file, f.d, name}, nil
}

func (f *tornFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(old, name, c)
	if err != nil {
		return nil, err
	}
	return &tornFile{file, f.d, name}, nil
}

type tornFile struct {
	vfs.File
	d    *disk
	name string
}

func (f *tornFile) Write(p []byte) (int, error) {
	if err := f.d.fail("write", f.name); err != nil {
		n, _ := f.File.Write(p[:len(p)/2])
		return n, err
	}
	return f.File.Write(p)
}

// crashed returns the disk as it is after a crash now, at which each block and
// directory entry that was not synced survives with a probability.
func (d *disk) crashed(rng *rand.Rand, percent int) *disk {
	return newDisk(d.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}))
}

func testOptions(fs vfs.FS) Options {
	return Options{MaxMemory: MinMemory, MinFreeSpace: -1, LockTimeout: -1, fs: fs}
}

func mustOpen(t testing.TB, dir string, opts Options) *Backend {
	t.Helper()
	b, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func mustClose(t testing.TB, b *Backend) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// memoryHarness runs the suite on a disk in memory.
func memoryHarness(percent func(*rand.Rand) int, loses bool) func(t *testing.T) statetest.Harness {
	return func(t *testing.T) statetest.Harness {
		rng := rand.New(rand.NewPCG(1, 2))
		d := newDisk(vfs.NewCrashableMem())
		b := mustOpen(t, testDir, testOptions(d.fs()))
		return statetest.Harness{
			Backend:     b,
			LocalViews:  true,
			Snapshots:   true,
			LosesSuffix: loses,
			Reopen: func(t *testing.T) state.Backend {
				t.Helper()
				mustClose(t, b)
				b = mustOpen(t, testDir, testOptions(d.fs()))
				return b
			},
			Crash: func(t *testing.T) state.Backend {
				t.Helper()
				after := d.crashed(rng, percent(rng))
				_ = b.Close()
				opts := testOptions(after.fs())
				opts.OnAlarm = func(err error) { t.Errorf("alarm after a crash: %v", err) }
				d, b = after, mustOpen(t, testDir, opts)
				return b
			},
			FailAfter: func(_ *testing.T, n int) func() bool {
				disk := d
				disk.failAfter(n)
				return disk.met.Load
			},
			Corrupt: func(t *testing.T) state.Backend {
				t.Helper()
				mustClose(t, b)
				damageTables(t, d.mem, testDir)
				b = mustOpen(t, testDir, testOptions(d.fs()))
				return b
			},
		}
	}
}

// The death of the process: all that was written is there, and the writes that
// the log had not handed to the system yet are not.
func TestConformanceKill(t *testing.T) {
	t.Parallel()
	statetest.Run(t, memoryHarness(func(*rand.Rand) int { return 100 }, true))
}

// Each Apply is handed to the system at once, without a later one, a Close or a
// flush that pushes it out.
func TestApplyReachesTheSystem(t *testing.T) {
	t.Parallel()
	d := newDisk(vfs.NewCrashableMem())
	b := mustOpen(t, testDir, testOptions(d.fs()))
	v := mustClaim(t, b, testID, "", "0")
	for i := range 20 {
		old, next := state.Token(fmt.Sprint(i)), state.Token(fmt.Sprint(i+1))
		mustApply(t, v, old, next, "k", string(next))
		eventually(t, fmt.Sprintf("a kill after Apply %d loses nothing", i+1), func() bool {
			after := mustOpen(t, testDir, testOptions(d.crashed(rand.New(rand.NewPCG(1, 1)), 100).fs()))
			defer mustClose(t, after)
			token, err := after.Token(t.Context(), testID)
			if err != nil {
				t.Fatal(err)
			}
			return token == next
		})
	}
}

// The death of the machine: what was not synced is there in parts.
func TestConformancePowerLoss(t *testing.T) {
	t.Parallel()
	statetest.Run(t, memoryHarness(func(rng *rand.Rand) int { return rng.IntN(101) }, true))
}

// A real disk, for what the one in memory may do otherwise.
func TestConformanceRealDisk(t *testing.T) {
	t.Parallel()
	statetest.Run(t, func(t *testing.T) statetest.Harness {
		dir := t.TempDir()
		opts := testOptions(vfs.Default)
		b := mustOpen(t, dir, opts)
		return statetest.Harness{
			Backend:    b,
			LocalViews: true,
			Snapshots:  true,
			Reopen: func(t *testing.T) state.Backend {
				t.Helper()
				mustClose(t, b)
				b = mustOpen(t, dir, opts)
				return b
			},
			Corrupt: func(t *testing.T) state.Backend {
				t.Helper()
				mustClose(t, b)
				damageTables(t, vfs.Default, dir)
				b = mustOpen(t, dir, opts)
				return b
			},
		}
	})
}

// damageTables flips a byte in the middle of each table that is larger than a
// few blocks: in data, not in the token, which is at the beginning and would be
// met at once.
func damageTables(t *testing.T, files vfs.FS, dir string) {
	t.Helper()
	names, err := files.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	damaged := 0
	for _, name := range names {
		path := files.PathJoin(dir, name)
		info, err := files.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, ".sst") && info.Size() > 2*blockSize {
			flip(t, files, path, int(info.Size()/2))
			damaged++
		}
	}
	if damaged == 0 {
		t.Fatal("there is no table to damage")
	}
}

func readFile(t *testing.T, files vfs.FS, path string) []byte {
	t.Helper()
	f, err := files.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, info.Size())
	if n, err := f.ReadAt(content, 0); n < len(content) {
		t.Fatal(err)
	}
	return content
}

func writeFile(t *testing.T, files vfs.FS, path string, content []byte) {
	t.Helper()
	f, err := files.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	// Write may change what it is given.
	if _, err := f.Write(append([]byte(nil), content...)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func flip(t *testing.T, files vfs.FS, path string, at int) {
	t.Helper()
	content := readFile(t, files, path)
	content[at] ^= 0x40
	writeFile(t, files, path, content)
}

// nopFile is a file that only exists to be embedded.
type nopFile struct{ vfs.File }

func (nopFile) Close() error { return nil }
