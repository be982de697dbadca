package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/weirstreams/weir/state"
)

var testID = state.ID{Application: "app", Task: "0_0"}

// alarms collects what OnAlarm gets.
type alarms struct {
	mu   sync.Mutex
	errs []error
	ch   chan error
}

func newAlarms() *alarms { return &alarms{ch: make(chan error, 100)} }

func (a *alarms) on(err error) {
	a.mu.Lock()
	a.errs = append(a.errs, err)
	a.mu.Unlock()
	a.ch <- err
}

func (a *alarms) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-a.ch:
		return err
	case <-time.After(30 * time.Second):
		t.Fatal("no alarm")
		return nil
	}
}

func (a *alarms) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.errs)
}

func mustClaim(t testing.TB, b *Backend, id state.ID, old, new state.Token) state.View {
	t.Helper()
	v, err := b.Claim(t.Context(), id, old, new)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func mustApply(t testing.TB, v state.View, old, new state.Token, kv ...string) {
	t.Helper()
	if err := v.Apply(t.Context(), old, new, puts(kv...)); err != nil {
		t.Fatal(err)
	}
}

func puts(kv ...string) *state.Batch {
	var b state.Batch
	for i := 0; i < len(kv); i += 2 {
		b.Put([]byte(kv[i]), []byte(kv[i+1]))
	}
	return &b
}

func mustRead(t testing.TB, v state.View, token state.Token, key, want string) {
	t.Helper()
	err := v.Read(t.Context(), token, [][]byte{[]byte(key)}, func(_ int, value []byte) {
		if string(value) != want {
			t.Errorf("%q = %q, want %q", key, value, want)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// spaceFS is a disk of which the test says how much is free.
type spaceFS struct {
	vfs.FS
	free atomic.Uint64
}

func (f *spaceFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: f.free.Load(), TotalBytes: 1 << 40}, nil
}

// With too little room writes are refused before anything happened, reading
// goes on, and when there is room again so does writing.
func TestDiskNearlyFull(t *testing.T) {
	t.Parallel()
	disk := &spaceFS{FS: vfs.NewMem()}
	disk.free.Store(1 << 30)
	a := newAlarms()
	opts := testOptions(disk)
	opts.MinFreeSpace, opts.OnAlarm = 1<<20, a.on
	b := mustOpen(t, testDir, opts)
	v := mustClaim(t, b, testID, "", "1")
	mustApply(t, v, "1", "2", "k", "before")

	disk.free.Store(1<<20 - 1)
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, state.ErrFull) || !strings.Contains(err.Error(), testDir) {
			t.Errorf("%s: error %v, want ErrFull and the folder", what, err)
		}
	}
	for range 3 {
		refused("Apply", v.Apply(t.Context(), "2", "3", puts("k", "refused")))
	}
	_, err := b.Claim(t.Context(), testID, "2", "3")
	refused("Claim", err)
	bulk, err := v.Bulk(t.Context(), "2")
	if err != nil {
		t.Fatal(err)
	}
	if err := bulk.Put([]byte("k"), []byte("restored")); err != nil {
		t.Fatal(err)
	}
	refused("Checkpoint", bulk.Checkpoint(t.Context(), "3"))
	mustRead(t, v, "2", "k", "before")
	if token, err := b.Token(t.Context(), testID); token != "2" || err != nil {
		t.Errorf("token %q, error %v", token, err)
	}
	refused("alarm", a.wait(t))

	// A refused checkpoint can be tried again: nothing of it is lost.
	disk.free.Store(1 << 20)
	if err := bulk.Checkpoint(t.Context(), "3"); err != nil {
		t.Fatal(err)
	}
	bulk.Close()
	mustRead(t, v, "3", "k", "restored")

	disk.free.Store(0)
	refused("Apply", v.Apply(t.Context(), "3", "4", puts("k", "refused")))
	refused("alarm", a.wait(t))
	// Dropping makes room, so it is not refused.
	if err := b.Drop(t.Context(), testID); err != nil {
		t.Fatal(err)
	}
	mustClose(t, b)
	if n := a.count(); n != 2 {
		t.Errorf("%d alarms for two times that the disk was full", n)
	}
}

// A write of the operating system fails: at each point of a load that turns
// logs over, flushes, compacts and ingests. The process lives, and after the
// restart the view is that of one write, whole. Those behind the last restore
// that the log did not get to the disk any more may be missing: the log is
// written behind Apply, and so a write may be acknowledged in the moment in
// which it fails.
func TestDiskFails(t *testing.T) {
	t.Parallel()
	for _, failure := range []syscall.Errno{syscall.ENOSPC, syscall.EIO} {
		t.Run(failure.Error(), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(uint64(failure), 1))
			for n := 0; n < 300; n += 1 + rng.IntN(25) {
				failUnderLoad(t, failure, n)
			}
		})
	}
}

func failUnderLoad(t *testing.T, failure error, n int) {
	t.Helper()
	a := newAlarms()
	d := newDisk(vfs.NewCrashableMem())
	d.failure = failure
	opts := testOptions(d.fs())
	opts.OnAlarm = a.on
	b := mustOpen(t, testDir, opts)
	v := mustClaim(t, b, testID, "", "0")
	held := b.Committed(testID).Iterate(t.Context(), state.Range{}) // over the failure

	d.failAfter(n)
	// Values that do not compress, a third of a memtable in each Apply.
	random := rand.NewChaCha8([32]byte{byte(n)})
	value := make([]byte, 20_000)
	acknowledged, ingested, tried := 0, 0, 0
	var err error
	for err == nil {
		tried++
		if tried > 200 {
			t.Fatalf("failure %d: not met in 200 writes", n)
		}
		old, next := state.Token(fmt.Sprint(tried-1)), state.Token(fmt.Sprint(tried))
		random.Read(value)
		bt := puts("last", string(next))
		for i := range 10 {
			bt.Put(fmt.Appendf(nil, "%d", (tried*10+i)%70), append(fmt.Append(nil, tried, " "), value...))
		}
		if tried%5 == 0 {
			err = ingest(t, v, old, next, bt)
		} else {
			err = v.Apply(t.Context(), old, next, bt)
		}
		if err == nil {
			acknowledged = tried
			if tried%5 == 0 {
				ingested = tried
			}
		}
	}
	if want := errors.Is(failure, syscall.ENOSPC); errors.Is(err, state.ErrFull) != want || !errors.Is(err, failure) {
		t.Fatalf("failure %d: %v", n, err)
	}
	// A failure in the files of a restore, which are not the database's, does
	// no harm to others: only then the backend goes on.
	if b.stopped() != nil {
		if alarm := a.wait(t); !errors.Is(alarm, failure) {
			t.Errorf("failure %d: alarm %v", n, alarm)
		}
		for what, err := range map[string]error{
			"Apply": v.Apply(t.Context(), state.Token(fmt.Sprint(acknowledged)), "x", puts("k", "v")),
			"Drop":  b.Drop(t.Context(), testID),
			"Read":  v.Read(t.Context(), state.Token(fmt.Sprint(acknowledged)), [][]byte{[]byte("k")}, func(int, []byte) { t.Error("read") }),
			"Close": b.Close(),
		} {
			if !errors.Is(err, failure) && !errors.Is(err, state.ErrClosed) {
				t.Errorf("failure %d: %s after it: %v", n, what, err)
			}
		}
	}
	after := d.crashed(rand.New(rand.NewPCG(1, 1)), 100)
	_ = b.Close()
	held.Close()

	opts = testOptions(after.fs())
	opts.OnAlarm = func(err error) { t.Errorf("failure %d: alarm at the restart: %v", n, err) }
	b = mustOpen(t, testDir, opts)
	token, err := b.Token(t.Context(), testID)
	if err != nil {
		t.Fatal(err)
	}
	if at, err := strconv.Atoi(string(token)); err != nil || at < ingested || at > tried {
		t.Fatalf("failure %d: token %q, want %d to %d", n, token, ingested, tried)
	}
	v = mustClaim(t, b, testID, token, "again")
	if token != "0" {
		mustRead(t, v, "again", "last", string(token))
	}
	it := v.Iterate(t.Context(), "again", state.Range{})
	for it.Next() {
		if k := string(it.Key()); k != "last" {
			var at int
			if _, err := fmt.Sscanf(string(it.Value()[:10]), "%d ", &at); err != nil {
				t.Fatal(err)
			}
			var stored, slot int
			fmt.Sscan(string(token), &stored)
			fmt.Sscan(k, &slot)
			if want := stored - ((stored*10+9-slot)%70)/10; at != want && at >= 0 {
				t.Fatalf("failure %d: under token %s key %s is of write %d, want %d", n, token, k, at, want)
			}
		}
	}
	if it.Err() != nil {
		t.Fatal(it.Err())
	}
	it.Close()
	mustApply(t, v, "again", "and again", "k", "v")
	mustClose(t, b)
}

// ingest stores a batch through a restore.
func ingest(t *testing.T, v state.View, old, new state.Token, b *state.Batch) error {
	t.Helper()
	bulk, err := v.Bulk(t.Context(), old)
	if err != nil {
		return err
	}
	defer bulk.Close()
	for i := range 8 { // over the bound of a batch, with keys that are not kept
		if err := bulk.Put(fmt.Appendf(nil, "filler %d", i), make([]byte, bulkBatchBytes/7)); err != nil {
			return err
		}
	}
	for _, w := range b.Writes() {
		if err := bulk.Put(w.Key, w.Value); err != nil {
			return err
		}
	}
	for i := range 8 {
		if err := bulk.Delete(fmt.Appendf(nil, "filler %d", i)); err != nil {
			return err
		}
	}
	return bulk.Checkpoint(t.Context(), new)
}

// blockFS holds back the creation of tables until it is told.
type blockFS struct {
	vfs.FS
	blocked chan struct{} // one element for each that waits
	release chan struct{}
}

func (f *blockFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasSuffix(name, ".sst") {
		select {
		case f.blocked <- struct{}{}:
		default:
		}
		<-f.release
	}
	return f.FS.Create(name, c)
}

// When the disk cannot keep up an Apply waits, in a place where the context
// and Close reach it.
func TestApplyWaitsForFlushes(t *testing.T) {
	t.Parallel()
	setup := func(t *testing.T) (*Backend, state.View, *blockFS, int) {
		f := &blockFS{FS: vfs.NewMem(), blocked: make(chan struct{}, 1), release: make(chan struct{})}
		close(f.release)
		b := mustOpen(t, testDir, testOptions(f))
		v := mustClaim(t, b, testID, "", "0")
		f.release = make(chan struct{})
		value := string(make([]byte, 50_000))
		// Fill memtables until an Apply does not come back at once. That
		// takes a wait, whose end is a matter of the gate, not of time: the
		// context is cancelled when the flush is stuck and memory is full.
		n := 0
		for {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				done <- v.Apply(ctx, state.Token(fmt.Sprint(n)), state.Token(fmt.Sprint(n+1)), puts(fmt.Sprint(n), value))
			}()
			if b.db.Metrics().MemTable.Size >= b.split.unflushed {
				<-f.blocked
				cancel()
			}
			err := <-done
			cancel()
			if errors.Is(err, context.Canceled) {
				return b, v, f, n
			}
			if err != nil {
				t.Fatal(err)
			}
			n++
			if n > 1000 {
				t.Fatal("no Apply had to wait")
			}
		}
	}
	t.Run("then goes on", func(t *testing.T) {
		t.Parallel()
		b, v, f, n := setup(t)
		if got := b.db.Metrics().MemTable.Size; got > b.split.unflushed+2*b.split.memtable {
			t.Errorf("memtables have %d bytes, the bound is %d", got, b.split.unflushed)
		}
		// Reading does not wait.
		mustRead(t, v, state.Token(fmt.Sprint(n)), "no such key", "")
		close(f.release)
		mustApply(t, v, state.Token(fmt.Sprint(n)), "end", "k", "v")
		mustRead(t, v, "end", "k", "v")
		mustClose(t, b)
	})
	t.Run("until Close", func(t *testing.T) {
		t.Parallel()
		b, v, f, n := setup(t)
		entered := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			close(entered)
			for { // some may pass before the gate looks again
				old, next := state.Token(fmt.Sprint(n)), state.Token(fmt.Sprint(n+1))
				if err := v.Apply(context.Background(), old, next, puts("k", "v")); err != nil {
					done <- err
					return
				}
				n++
			}
		}()
		<-entered
		closed := make(chan error, 1)
		go func() { closed <- b.Close() }()
		if err := <-done; !errors.Is(err, state.ErrClosed) {
			t.Errorf("a waiting Apply ended with %v", err)
		}
		close(f.release)
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// Pebble's Fatalf must not end the process.
func TestFatalIsNotFatal(t *testing.T) {
	t.Parallel()
	a := newAlarms()
	opts := testOptions(vfs.NewMem())
	opts.OnAlarm = a.on
	b := mustOpen(t, testDir, opts)
	v := mustClaim(t, b, testID, "", "1")
	mustApply(t, v, "1", "2", "k", "v")
	logger{b}.Fatalf("the %s is wrong", "manifest")
	err := v.Apply(t.Context(), "2", "3", puts("k", "w"))
	if err == nil || !strings.Contains(err.Error(), "the manifest is wrong") {
		t.Errorf("Apply after Fatalf: %v", err)
	}
	if err := a.wait(t); !strings.Contains(err.Error(), "the manifest is wrong") {
		t.Errorf("alarm: %v", err)
	}
	if s := b.Stats(); s.Failed == nil {
		t.Error("Stats does not tell of the failure")
	}
	if err := b.Close(); err == nil {
		t.Error("Close tells nothing of the failure")
	}
	b = mustOpen(t, testDir, opts)
	mustRead(t, mustClaim(t, b, testID, "2", "3"), "3", "k", "v")
}

// A panic inside of Pebble leaves its locks behind: the database is abandoned,
// the folder is not.
func TestPanicIsContained(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	b := mustOpen(t, testDir, testOptions(mem))
	v := mustClaim(t, b, testID, "", "1")
	mustApply(t, v, "1", "2", "k", "v")
	err := b.guard("test", testID, func() error { panic("impossible") })
	if err == nil || !strings.Contains(err.Error(), "impossible") {
		t.Errorf("guard returned %v", err)
	}
	if err := v.Apply(t.Context(), "2", "3", puts("k", "w")); err == nil {
		t.Error("Apply went on after a panic")
	}
	db := b.db // in this test it is well, and its goroutines must end
	if err := b.Close(); err == nil || !strings.Contains(err.Error(), "impossible") {
		t.Errorf("Close returned %v", err)
	}
	again := mustOpen(t, testDir, testOptions(mem))
	mustRead(t, mustClaim(t, again, testID, "2", "3"), "3", "k", "v")
	mustClose(t, again)
	_ = db.Close()
}
