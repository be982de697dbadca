package pebblestore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/weirstreams/weir/state"
)

// filledDisk holds a closed database with tables of two levels and two views.
func filledDisk(t *testing.T) *vfs.MemFS {
	t.Helper()
	mem := vfs.NewMem()
	b := mustOpen(t, testDir, testOptions(mem))
	v := mustClaim(t, b, testID, "", "1")
	fillView(t, v, "1", "2")
	if err := b.db.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := b.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
		t.Fatal(err)
	}
	mustClaim(t, b, state.ID{Application: "app", Task: "0_1"}, "", "o1")
	mustApply(t, v, "2", "3", "k", "v")
	mustClose(t, b)
	return mem
}

func fillView(t *testing.T, v state.View, old, new state.Token) {
	t.Helper()
	var bt state.Batch
	for i := range 3000 {
		bt.Put(fmt.Appendf(nil, "key %05d", i), fmt.Appendf(nil, "value %d", i*7919))
	}
	if err := v.Apply(t.Context(), old, new, &bt); err != nil {
		t.Fatal(err)
	}
}

// oneFile returns the path of the largest file that match accepts.
func oneFile(t *testing.T, files vfs.FS, dir string, match func(string) bool) string {
	t.Helper()
	names, err := files.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	best, size := "", int64(-1)
	for _, n := range names {
		info, err := files.Stat(files.PathJoin(dir, n))
		if err != nil {
			t.Fatal(err)
		}
		if match(n) && info.Size() > size {
			best, size = n, info.Size()
		}
	}
	if best == "" {
		t.Fatalf("no such file in %v", names)
	}
	return files.PathJoin(dir, best)
}

func quarantined(t *testing.T, files vfs.FS, dir string) []string {
	t.Helper()
	names, err := files.List(files.PathDir(dir))
	if err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.Contains(n, quarantineInfix) })
	slices.Sort(names)
	return names
}

// Situation A21: damage on the disk used to make each start fail until a
// person deleted the folder.
func TestSituationA21DamageIsQuarantinedAtOpen(t *testing.T) {
	t.Parallel()
	isTable := func(n string) bool { return strings.HasSuffix(n, ".sst") }
	isManifest := func(n string) bool { return strings.HasPrefix(n, "MANIFEST") }
	isOptions := func(n string) bool { return strings.HasPrefix(n, "OPTIONS") }
	isMarker := func(n string) bool { return strings.HasPrefix(n, "marker.manifest") }
	change := func(match func(string) bool, f func([]byte) []byte) func(*testing.T, *vfs.MemFS) {
		return func(t *testing.T, mem *vfs.MemFS) {
			path := oneFile(t, mem, testDir, match)
			writeFile(t, mem, path, f(readFile(t, mem, path)))
		}
	}
	half := func(b []byte) []byte { return b[:len(b)/2] }
	zero := func(b []byte) []byte { return make([]byte, len(b)) }
	none := func([]byte) []byte { return nil }
	remove := func(match func(string) bool) func(*testing.T, *vfs.MemFS) {
		return func(t *testing.T, mem *vfs.MemFS) {
			if err := mem.Remove(oneFile(t, mem, testDir, match)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, damage := range map[string]func(*testing.T, *vfs.MemFS){
		"table truncated":    change(isTable, half),
		"table empty":        change(isTable, none),
		"table missing":      remove(isTable),
		"manifest truncated": change(isManifest, half),
		"manifest of zeros":  change(isManifest, zero),
		"manifest empty":     change(isManifest, none),
		"manifest missing":   remove(isManifest),
		"options garbage":    change(isOptions, func([]byte) []byte { return []byte("garbage\n[") }),
		"marker misnamed": func(t *testing.T, mem *vfs.MemFS) {
			path := oneFile(t, mem, testDir, isMarker)
			if err := mem.Rename(path, strings.Replace(path, "MANIFEST", "MANIPULATED", 1)); err != nil {
				t.Fatal(err)
			}
		},
		"format record": func(t *testing.T, mem *vfs.MemFS) {
			rewrite(t, mem, func(db *pebble.DB) error { return db.Set(formatKey, []byte("other magic"), pebble.Sync) })
		},
		"registry entry": func(t *testing.T, mem *vfs.MemFS) {
			rewrite(t, mem, func(db *pebble.DB) error { return db.Set(registryKey(testID), []byte("x"), pebble.Sync) })
		},
		"registry entry without a token": func(t *testing.T, mem *vfs.MemFS) {
			rewrite(t, mem, func(db *pebble.DB) error { return db.Delete(tokenKey(1), pebble.Sync) })
		},
		"two views with one number": func(t *testing.T, mem *vfs.MemFS) {
			rewrite(t, mem, func(db *pebble.DB) error {
				return db.Set(registryKey(state.ID{Application: "x", Task: "y"}), registryValue(1), pebble.Sync)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem := filledDisk(t)
			damage(t, mem)
			a := newAlarms()
			opts := testOptions(mem)
			opts.OnAlarm = a.on
			opts.now = func() time.Time { return time.Date(2026, 3, 4, 5, 6, 7, 0, time.FixedZone("", 3600)) }
			b := mustOpen(t, testDir, opts)
			// The alarm came before Open returned.
			if a.count() != 1 {
				t.Fatalf("%d alarms", a.count())
			}
			err := a.wait(t)
			const moved = testDir + ".corrupt-20260304T040607Z"
			if !errors.Is(err, state.ErrCorrupt) || !strings.Contains(err.Error(), moved) {
				t.Errorf("alarm %v, want ErrCorrupt and %s", err, moved)
			}
			if got := quarantined(t, mem, testDir); len(got) != 1 || "/"+got[0] != moved {
				t.Errorf("quarantined: %v", got)
			}
			if token, err := b.Token(t.Context(), testID); token != "" || err != nil {
				t.Errorf("token %q, error %v", token, err)
			}
			v := mustClaim(t, b, testID, "", "n1")
			mustApply(t, v, "n1", "n2", "k", "new")
			mustClose(t, b)
			b = mustOpen(t, testDir, opts)
			mustRead(t, mustClaim(t, b, testID, "n2", "n3"), "n3", "k", "new")
			mustClose(t, b)
			if n := a.count(); n != 1 {
				t.Errorf("%d alarms for one damage", n)
			}
		})
	}
}

// rewrite changes a closed database past the backend.
func rewrite(t *testing.T, mem *vfs.MemFS, f func(*pebble.DB) error) {
	t.Helper()
	db, err := pebble.Open(testDir, &pebble.Options{FS: mem, Logger: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := f(db); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Errorf(string, ...any)             {}
func (quiet) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// Damage that is met while the database is in use is an error for the reader,
// an alarm, and a quarantine at the next start.
func TestSituationA21DamageInUse(t *testing.T) {
	t.Parallel()
	mem := filledDisk(t)
	damageTables(t, mem, testDir)
	a := newAlarms()
	opts := testOptions(mem)
	opts.OnAlarm = a.on
	b := mustOpen(t, testDir, opts)
	v := mustClaim(t, b, testID, "3", "4")
	it := v.Iterate(t.Context(), "4", state.Range{})
	for it.Next() {
	}
	if !errors.Is(it.Err(), state.ErrCorrupt) || !strings.Contains(it.Err().Error(), testID.String()) {
		t.Errorf("Iterate ended with %v, want ErrCorrupt and the view", it.Err())
	}
	it.Close()
	if err := a.wait(t); !errors.Is(err, state.ErrCorrupt) {
		t.Errorf("alarm %v, want ErrCorrupt", err)
	}
	// Others are not concerned: the view can be dropped and made again.
	other := mustClaim(t, b, state.ID{Application: "app", Task: "0_1"}, "o1", "o2")
	mustApply(t, other, "o2", "o3", "k", "v")
	if err := b.Drop(t.Context(), testID); err != nil {
		t.Fatal(err)
	}
	v = mustClaim(t, b, testID, "", "n1")
	mustApply(t, v, "n1", "n2", "k", "v")
	mustRead(t, v, "n2", "k", "v")
	_ = b.Close()
	if a.count() != 1 {
		t.Errorf("%d alarms for one damage", a.count())
	}

	b = mustOpen(t, testDir, opts)
	if err := a.wait(t); !errors.Is(err, state.ErrCorrupt) || !strings.Contains(err.Error(), "while it was in use") {
		t.Errorf("alarm at the next start: %v", err)
	}
	if token, _ := b.Token(t.Context(), testID); token != "" {
		t.Errorf("token %q after the quarantine", token)
	}
	if got := quarantined(t, mem, testDir); len(got) != 1 {
		t.Errorf("quarantined: %v", got)
	}
	mustClose(t, b)
	mustClose(t, mustOpen(t, testDir, opts))
	if got := quarantined(t, mem, testDir); len(got) != 1 {
		t.Errorf("quarantined after one more start: %v", got)
	}
}

func TestOnlyTheLatestQuarantinedFoldersAreKept(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	// Folders of others stay, whatever they are called.
	for _, dir := range []string{"/state2" + quarantineInfix + "20200101T000000Z", "/other"} {
		if err := mem.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	opts := testOptions(mem)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	opts.now = func() time.Time { return now }
	for n := range 14 {
		mustClose(t, mustOpen(t, testDir, opts))
		if err := markDamage(testDir, mem, fmt.Errorf("damage %d", n)); err != nil {
			t.Fatal(err)
		}
		if n == 12 {
			now = now.Add(time.Second)
		}
	}
	mustClose(t, mustOpen(t, testDir, opts))
	got := slices.DeleteFunc(quarantined(t, mem, testDir), func(n string) bool { return strings.HasPrefix(n, "state2") })
	// The twelfth of the first second, and the first of the next.
	want := []string{"state.corrupt-20260101T000000Z-12", "state.corrupt-20260101T000001Z"}
	if len(got) > MaxQuarantined || !slices.Contains(got, want[1]) {
		t.Errorf("kept %v, want the latest %d, among them %s", got, MaxQuarantined, want[1])
	}
	for _, name := range got {
		if err := markedDamage("/"+name, mem); err == nil {
			t.Errorf("%s holds no reason", name)
		}
	}
	if _, err := mem.Stat("/state2" + quarantineInfix + "20200101T000000Z"); err != nil {
		t.Error("the quarantined folder of another store was removed")
	}
}

func TestQuarantinedFoldersOrderByTime(t *testing.T) {
	t.Parallel()
	want := []string{
		"s.corrupt-20251231T235959Z-3", "s.corrupt-20260101T000000Z", "s.corrupt-20260101T000000Z-2",
		"s.corrupt-20260101T000000Z-9", "s.corrupt-20260101T000000Z-10", "s.corrupt-20260101T000001Z",
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, compareQuarantined)
	if !slices.Equal(got, want) {
		t.Errorf("order %v", got)
	}
}

// What is not damage is not moved away.
func TestSurroundingsAreNoDamage(t *testing.T) {
	t.Parallel()
	t.Run("newer layout", func(t *testing.T) {
		t.Parallel()
		mem := filledDisk(t)
		rewrite(t, mem, func(db *pebble.DB) error {
			record := formatRecord()
			record[len(record)-1] = formatVersion + 1
			return db.Set(formatKey, record, pebble.Sync)
		})
		mustRefuse(t, mem, "newer program")
	})
	t.Run("newer database format", func(t *testing.T) {
		t.Parallel()
		mem := filledDisk(t)
		path := oneFile(t, mem, testDir, func(n string) bool { return strings.HasPrefix(n, "marker.format-version") })
		if err := mem.Rename(path, path[:len(path)-3]+"999"); err != nil {
			t.Fatal(err)
		}
		mustRefuse(t, mem, "newer version")
	})
	t.Run("database of another program", func(t *testing.T) {
		t.Parallel()
		mem := vfs.NewMem()
		rewrite(t, mem, func(db *pebble.DB) error { return db.Set([]byte("foreign"), nil, pebble.Sync) })
		mustRefuse(t, mem, "another folder")
	})
	t.Run("no room", func(t *testing.T) {
		t.Parallel()
		d := newDisk(filledDisk(t))
		d.failAfter(0)
		_, err := Open(testDir, testOptions(d.fs()))
		if !errors.Is(err, state.ErrFull) {
			t.Errorf("error %v, want ErrFull", err)
		}
		if got := quarantined(t, d.mem, testDir); len(got) != 0 {
			t.Errorf("quarantined: %v", got)
		}
		d.heal()
		b := mustOpen(t, testDir, testOptions(d.fs()))
		mustRead(t, mustClaim(t, b, testID, "3", "4"), "4", "k", "v")
	})
	t.Run("no permission", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir() + "/file"
		if err := os.WriteFile(dir, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, Options{}); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("error %v, want one that names the folder", err)
		}
	})
}

func mustRefuse(t *testing.T, mem *vfs.MemFS, want string) {
	t.Helper()
	b, err := Open(testDir, testOptions(mem))
	if err == nil {
		b.Close()
	}
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one that says %q", err, want)
	}
	if got := quarantined(t, mem, testDir); len(got) != 0 {
		t.Errorf("quarantined: %v", got)
	}
}

// Each point at which Open can run out of room: an error, and nothing is lost.
func TestOpenWithoutRoom(t *testing.T) {
	t.Parallel()
	for n := 0; ; n++ {
		mem := vfs.NewCrashableMem()
		b := mustOpen(t, testDir, testOptions(mem))
		v := mustClaim(t, b, testID, "", "1")
		mustApply(t, v, "1", "2", "k", "v")
		d := newDisk(mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: newRNG()}))
		mustClose(t, b)

		d.failAfter(n)
		b, err := Open(testDir, testOptions(d.fs()))
		if err == nil {
			// Later failures are another test's.
			met := d.met.Load()
			_ = b.Close()
			if !met {
				if n == 0 {
					t.Fatal("Open wrote nothing")
				}
				return
			}
			d.heal()
		} else if !errors.Is(err, state.ErrFull) {
			t.Fatalf("failure %d: %v, want ErrFull", n, err)
		}
		d.heal()
		opts := testOptions(d.fs())
		opts.OnAlarm = func(err error) { t.Errorf("failure %d: alarm %v", n, err) }
		b = mustOpen(t, testDir, opts)
		mustRead(t, mustClaim(t, b, testID, "2", "3"), "3", "k", "v")
		mustClose(t, b)
		if n > 300 {
			t.Fatal("Open did not end within 300 writes")
		}
	}
}

// Situation A22, in one process.
func TestSituationA22LockedByThisProcess(t *testing.T) {
	t.Parallel()
	for name, fs := range map[string]vfs.FS{"memory": vfs.NewMem(), "disk": vfs.Default} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := testDir
			if fs == vfs.Default {
				dir = t.TempDir()
			}
			b := mustOpen(t, dir, testOptions(fs))
			v := mustClaim(t, b, testID, "", "1")
			_, err := Open(dir, testOptions(fs))
			if !errors.Is(err, state.ErrLocked) || !strings.Contains(err.Error(), dir) {
				t.Errorf("error %v, want ErrLocked and the folder", err)
			}
			// The attempt did no harm to the owner.
			mustApply(t, v, "1", "2", "k", "v")

			// With patience it works, once the owner is gone.
			waiting := newLogSignal("locked, waiting")
			opts := testOptions(fs)
			opts.LockTimeout = time.Minute
			opts.Logger = slog.New(waiting)
			done := make(chan error, 1)
			var second *Backend
			go func() {
				var err error
				second, err = Open(dir, opts)
				done <- err
			}()
			<-waiting.seen
			mustClose(t, b)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			mustRead(t, mustClaim(t, second, testID, "2", "3"), "3", "k", "v")
			mustClose(t, second)
		})
	}
}

// logSignal closes seen when a message contains a text.
type logSignal struct {
	text string
	seen chan struct{}
}

func newLogSignal(text string) *logSignal { return &logSignal{text, make(chan struct{})} }

func (s *logSignal) Enabled(context.Context, slog.Level) bool { return true }
func (s *logSignal) WithAttrs([]slog.Attr) slog.Handler       { return s }
func (s *logSignal) WithGroup(string) slog.Handler            { return s }
func (s *logSignal) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, s.text) {
		close(s.seen)
	}
	return nil
}

const childVariable = "WEIR_PEBBLESTORE_CHILD"

// Situation A22, with a process that dies: the folder is locked as long as it
// lives, and what it had acknowledged is there when it was killed.
func TestSituationA22KilledOwner(t *testing.T) {
	if dir := os.Getenv(childVariable); dir != "" {
		childOwner(t, dir)
		return
	}
	t.Parallel()
	dir := t.TempDir()
	child := exec.Command(os.Args[0], "-test.run=^TestSituationA22KilledOwner$")
	child.Env = append(os.Environ(), childVariable+"="+dir)
	child.Stderr = os.Stderr
	stdin, err := child.StdinPipe() // keeps the child waiting
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	acknowledged := ""
	for lines.Scan() && lines.Text() != "waiting" {
		if rest, ok := strings.CutPrefix(lines.Text(), "applied "); ok {
			acknowledged = rest
		}
	}
	if acknowledged == "" {
		t.Fatal("the child applied nothing")
	}
	opts := testOptions(nil)
	if _, err := Open(dir, opts); !errors.Is(err, state.ErrLocked) || !strings.Contains(err.Error(), dir) {
		t.Errorf("error %v, want ErrLocked and the folder", err)
	}
	waiting := newLogSignal("locked, waiting")
	opts.LockTimeout = time.Minute
	opts.Logger = slog.New(waiting)
	done := make(chan error, 1)
	var b *Backend
	go func() {
		var err error
		b, err = Open(dir, opts)
		done <- err
	}()
	<-waiting.seen
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // killed
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, b)
	token, err := b.Token(t.Context(), testID)
	if err != nil || string(token) != acknowledged {
		t.Fatalf("token %q, error %v, want %q: an acknowledged Apply is lost", token, err, acknowledged)
	}
	mustRead(t, mustClaim(t, b, testID, token, "next"), "next", "k", acknowledged)
}

func childOwner(t *testing.T, dir string) {
	b, err := Open(dir, testOptions(nil))
	if err != nil {
		t.Fatal(err)
	}
	v := mustClaim(t, b, testID, "", "0")
	for i := range 100 {
		token := fmt.Sprint(i + 1)
		mustApply(t, v, state.Token(fmt.Sprint(i)), state.Token(token), "k", token)
		fmt.Println("applied", token)
	}
	fmt.Println("waiting")
	_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
}
