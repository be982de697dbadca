package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func closeBroker(t *testing.T, b *Broker) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

func reopen(t *testing.T, dir string) *Broker {
	t.Helper()
	b, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// mustOpen is Open for a broker that the test itself closes.
func mustOpen(t *testing.T, opts Options) *Broker {
	t.Helper()
	b, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRestart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made", "by", "open")
	topics := []Topic{{Name: "in.put-1", Partitions: 2, Configs: map[string]string{"segment.bytes": "1000"}}}
	var want []string
	for restart := range 3 {
		b := mustOpen(t, Options{Dir: dir, Topics: topics})
		cl, err := newClient(b, kgo.ConsumerGroup("g"), kgo.ConsumeTopics("in.put-1"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 30 {
			value := fmt.Sprintf("%d.%d", restart, i)
			produce(t, cl, record("in.put-1", 1, "k", value+strings.Repeat("x", 100)))
			want = append(want, "k="+value+strings.Repeat("x", 100))
		}
		// Nothing is delivered twice: the offsets are there too.
		for n := 0; n < 30; {
			fs := cl.PollFetches(testContext(t))
			if err := fs.Err(); err != nil {
				t.Fatal(err)
			}
			fs.EachRecord(func(r *kgo.Record) {
				if v := fmt.Sprintf("%d.%d", restart, n); !strings.HasPrefix(string(r.Value), v+"x") {
					t.Errorf("restart %d: delivered %.10q, want %s", restart, r.Value, v)
				}
				n++
			})
		}
		if err := cl.CommitUncommittedOffsets(testContext(t)); err != nil {
			t.Fatal(err)
		}
		cl.CloseAllowingRebalance()
		if got := read(t, b, "in.put-1", 1); !slices.Equal(got, want) {
			t.Errorf("restart %d: got %d records, want %d", restart, len(got), len(want))
		}
		if restart == 1 {
			if err := b.DeleteRecords(testContext(t), "in.put-1", 1, 7); err != nil {
				t.Fatal(err)
			}
			want = want[7:]
		}
		closeBroker(t, b)
	}
	b := reopen(t, dir)
	defer closeBroker(t, b)
	if p, err := b.Partition("in.put-1", 1); err != nil || p.LogStart != 7 || p.End != 90 {
		t.Errorf("partition is %+v, %v", p, err)
	}
	if err := b.CreateTopic(testContext(t), "in.put-1", 3, nil); !errors.Is(err, ErrTopicDiffers) {
		t.Errorf("other partition count after a restart: %v", err)
	}
}

// A transaction that is open when the broker is closed is aborted then; nobody
// waits for it after the restart.
func TestCloseAbortsOpenTransactions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := mustOpen(t, Options{Dir: dir, Topics: []Topic{{Name: "out", Partitions: 1}}})
	cl, err := newClient(b, kgo.TransactionalID("t"), kgo.TransactionTimeout(15*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if err := transact(testContext(t), cl, kgo.TryCommit, record("out", 0, "k", "1")); err != nil {
		t.Fatal(err)
	}
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	produce(t, cl, record("out", 0, "k", "open"))
	closeBroker(t, b)
	cl.Close()
	b = reopen(t, dir)
	defer closeBroker(t, b)
	if open, err := b.OpenTransactions(testContext(t)); err != nil || len(open) != 0 {
		t.Errorf("open are %v, %v", open, err)
	}
	if p, err := b.Partition("out", 0); err != nil || p.LastStable != p.End {
		t.Errorf("partition is %+v, %v", p, err)
	}
	if got := read(t, b, "out", 0); !slices.Equal(got, []string{"k=1"}) {
		t.Errorf("got %v", got)
	}
}

// When they cannot be aborted at the end, they are at the next start.
func TestCloseThatCannotAbort(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := mustOpen(t, Options{Dir: dir, Topics: []Topic{{Name: "out", Partitions: 1}}})
	cl, err := newClient(b, kgo.TransactionalID("t"), kgo.TransactionTimeout(15*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	produce(t, cl, record("out", 0, "k", "open"))
	refused, err := b.Fault(Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, TopLevel: true, Count: -1})
	if err != nil {
		t.Fatal(err)
	}
	closeBroker(t, b)
	if refused.Hits() == 0 {
		t.Error("Close did not try")
	}
	cl.Close()
	for range 2 {
		b = reopen(t, dir)
		produce(t, client(t, b), record("out", 0, "k", "after"))
		if p, err := b.Partition("out", 0); err != nil || p.LastStable != p.End {
			t.Errorf("partition is %+v, %v", p, err)
		}
		if got := read(t, b, "out", 0); slices.Contains(got, "k=open") || len(got) == 0 {
			t.Errorf("got %v", got)
		}
		closeBroker(t, b)
	}
}

func TestFolderRefused(t *testing.T) {
	t.Parallel()
	write := func(t *testing.T, path, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T, dir string)
		want    error
		text    string
	}{
		{"someone's files", func(t *testing.T, dir string) { write(t, filepath.Join(dir, "thesis.txt"), "") }, ErrFolderForeign, "thesis.txt"},
		{"newer format", func(t *testing.T, dir string) { write(t, filepath.Join(dir, formatName), `{"format":2}`) }, ErrFolderForeign, "format 2"},
		{"no format", func(t *testing.T, dir string) { write(t, filepath.Join(dir, formatName), `2`) }, ErrFolderForeign, formatName},
		{"a file", func(t *testing.T, dir string) { os.Remove(dir); write(t, dir, "") }, nil, "not a directory"},
		{"newer cluster", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, formatName), `{"format":1}`)
			write(t, filepath.Join(dir, dataName, "meta.json"), `{"version":2}`)
		}, ErrFolderForeign, "version 2"},
		{"meta is not JSON", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, formatName), `{"format":1}`)
			write(t, filepath.Join(dir, dataName, "meta.json"), `{`)
		}, ErrFolderCorrupt, "meta.json"},
		{"no topics", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, formatName), `{"format":1}`)
			write(t, filepath.Join(dir, dataName, "meta.json"), `{"version":1}`)
			write(t, filepath.Join(dir, dataName, partsName, "t-0", "0.dat"), "")
		}, ErrFolderCorrupt, "topics.json is missing"},
		{"no partition", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, formatName), `{"format":1}`)
			write(t, filepath.Join(dir, dataName, "meta.json"), `{"version":1}`)
			write(t, filepath.Join(dir, dataName, "topics.json"), `{"version":1}`)
			write(t, filepath.Join(dir, dataName, partsName, "what", "0.dat"), "")
		}, ErrFolderForeign, "what"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			tt.prepare(t, dir)
			for range 2 { // the first attempt holds no lock
				b, err := Open(Options{Dir: dir})
				if err == nil {
					b.Close()
					t.Fatal("opened")
				}
				if tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("error is %v, want %v with %q", err, tt.want, tt.text)
				}
			}
		})
	}
}

// filled makes a folder with data: a log of several segments, a table with
// transactions, committed offsets.
func filled(t *testing.T) (dir string, want map[string][]string) {
	t.Helper()
	dir = t.TempDir()
	b := mustOpen(t, Options{Dir: dir, Topics: []Topic{
		{Name: "log", Partitions: 1, Configs: map[string]string{"segment.bytes": "500"}},
		{Name: "table", Partitions: 1, Configs: compacted},
	}})
	cl, err := newClient(b, kgo.TransactionalID("t"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		end := kgo.TryCommit
		if i%4 == 3 {
			end = kgo.TryAbort
		}
		if err := transact(testContext(t), cl, end, record("log", 0, "k", fmt.Sprint(i)), record("table", 0, fmt.Sprint("k", i%3), fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	for o := range int64(3) {
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		produce(t, cl, record("log", 0, "k", fmt.Sprint("offset", o)))
		if err := commitOffsetTo(testContext(t), b, cl, "log", o); err != nil {
			t.Fatal(err)
		}
		if err := cl.EndTransaction(testContext(t), kgo.TryCommit); err != nil {
			t.Fatal(err)
		}
	}
	cl.Close()
	want = map[string][]string{"log": read(t, b, "log", 0), "table": read(t, b, "table", 0)}
	closeBroker(t, b)
	return dir, want
}

func checkFilled(t *testing.T, dir string, want map[string][]string, offset int64) {
	t.Helper()
	for restart := range 2 {
		b := reopen(t, dir)
		for topic := range want {
			if got := read(t, b, topic, 0); !slices.Equal(got, want[topic]) {
				t.Errorf("restart %d: %s has %v, want %v", restart, topic, got, want[topic])
			}
		}
		if g, err := b.Group("g"); err != nil || g.Commits["log"][0].Offset != offset {
			t.Errorf("restart %d: group is %+v, %v, want offset %d", restart, g, err, offset)
		}
		closeBroker(t, b)
	}
}

// Recovery makes indexes that are the cluster's own but for nothing.
func TestFolderFormat(t *testing.T) {
	t.Parallel()
	dir, want := filled(t)
	paths, err := filepath.Glob(filepath.Join(dir, dataName, partsName, "*", "*"+indexExt))
	if err != nil || len(paths) < 4 {
		t.Fatalf("indexes are %v, %v", paths, err)
	}
	for _, path := range paths {
		original, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		headers, good, size, err := scanSegment(strings.TrimSuffix(path, indexExt)+segmentExt, 0)
		if err != nil || good != size {
			t.Fatalf("%s: %v, %d of %d bytes", path, err, good, size)
		}
		// The running maximum of the timestamps spans segments; the cluster
		// computes it anew when it loads them.
		made := makeIndex(headers)
		for _, idx := range [][]byte{original, made} {
			for i := 0; i < len(idx); i += indexEntrySize {
				clear(idx[i+6 : i+14])
				idx[i+1] = 0
			}
		}
		if !bytes.Equal(original, made) {
			t.Errorf("%s is\n%x, made\n%x", path, original, made)
		}
		// As if the kill came before any of it was written.
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	removeSnapshots(t, dir)
	checkFilled(t, dir, want, 2)
}

// removeSnapshots makes a cleanly closed folder one that was not.
func removeSnapshots(t *testing.T, dir string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, dataName, partsName, "*", snapshotNam))
	if err != nil || len(paths) == 0 {
		t.Fatalf("snapshots are %v, %v", paths, err)
	}
	for _, path := range paths {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

func lastSegment(t *testing.T, dir, partition string) string {
	t.Helper()
	names, err := segmentFiles(filepath.Join(dir, dataName, partsName, partition))
	if err != nil {
		t.Fatal(err)
	}
	last, at := "", -1
	for _, name := range names {
		var base int
		if _, err := fmt.Sscanf(name, "%d.dat", &base); err == nil && strings.HasSuffix(name, segmentExt) && base > at {
			last, at = name, base
		}
	}
	if at <= 0 {
		t.Fatalf("no second segment in %v", names)
	}
	return filepath.Join(dir, dataName, partsName, partition, last)
}

func appendTo(t *testing.T, path string, more []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(more); err != nil {
		t.Fatal(err)
	}
}

func change(t *testing.T, path string, fn func([]byte) []byte) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, fn(raw), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What a kill can leave of a write is cut off, and what comes after it is kept.
func TestTornFilesAreRepaired(t *testing.T) {
	t.Parallel()
	firstBatch := func(t *testing.T, path string) []byte {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return raw[:12+binary.BigEndian.Uint32(raw[8:])]
	}
	for _, tt := range []struct {
		name string
		tear func(t *testing.T, dir string)
	}{
		{"batch", func(t *testing.T, dir string) {
			path := lastSegment(t, dir, "log-0")
			b := slices.Clone(firstBatch(t, path))
			binary.BigEndian.PutUint64(b, 1000)
			appendTo(t, path, b[:len(b)-1])
		}},
		{"batch header", func(t *testing.T, dir string) {
			appendTo(t, lastSegment(t, dir, "log-0"), []byte{0, 0, 0, 0, 0, 0, 4, 0, 0})
		}},
		{"first batch of a segment", func(t *testing.T, dir string) {
			path := lastSegment(t, dir, "log-0")
			half := firstBatch(t, path)[:40]
			if err := os.WriteFile(filepath.Join(filepath.Dir(path), "4000.dat"), half, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"index behind its segment", func(t *testing.T, dir string) {
			path := strings.TrimSuffix(lastSegment(t, dir, "log-0"), segmentExt) + indexExt
			change(t, path, func(raw []byte) []byte { return raw[:len(raw)-indexEntrySize] })
			removeSnapshots(t, dir)
		}},
		{"half an index entry", func(t *testing.T, dir string) {
			path := strings.TrimSuffix(lastSegment(t, dir, "log-0"), segmentExt) + indexExt
			change(t, path, func(raw []byte) []byte { return raw[:len(raw)-4] })
			removeSnapshots(t, dir)
		}},
		{"damaged index", func(t *testing.T, dir string) {
			path := strings.TrimSuffix(lastSegment(t, dir, "log-0"), segmentExt) + indexExt
			change(t, path, func(raw []byte) []byte { raw[14] ^= 1; return raw })
			removeSnapshots(t, dir)
		}},
		{"log entry", func(t *testing.T, dir string) {
			appendTo(t, filepath.Join(dir, dataName, "groups.log"), []byte{200, 0, 0, 0, 1, 2, 3, 4, 1, 0, '{'})
			appendTo(t, filepath.Join(dir, dataName, "pids.log"), []byte{200, 0, 0})
		}},
		{"replaced file", func(t *testing.T, dir string) {
			for _, name := range []string{"data/topics.json.tmp", "data/partitions/log-0/snapshot.json.tmp", "format.json.tmp"} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte("{"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{"folder of a deleted topic", func(t *testing.T, dir string) {
			from := lastSegment(t, dir, "log-0")
			for _, p := range []string{"gone-0", "log-1"} {
				to := filepath.Join(dir, dataName, partsName, p)
				if err := os.MkdirAll(to, 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(to, "0.dat"), firstBatch(t, from), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir, want := filled(t)
			tt.tear(t, dir)
			b := reopen(t, dir)
			cl, err := newClient(b, kgo.TransactionalID("t2"))
			if err != nil {
				t.Fatal(err)
			}
			// Goes on as if nothing had been.
			if err := cl.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			produce(t, cl, record("log", 0, "k", "after"))
			if err := commitOffsetTo(testContext(t), b, cl, "log", 77); err != nil {
				t.Fatal(err)
			}
			if err := cl.EndTransaction(testContext(t), kgo.TryCommit); err != nil {
				t.Fatal(err)
			}
			cl.Close()
			for _, topic := range []string{"gone", "new"} {
				if err := b.CreateTopic(testContext(t), topic, 1, nil); err != nil {
					t.Fatal(err)
				}
				if got := read(t, b, topic, 0); len(got) != 0 {
					t.Errorf("a new topic %s has %v", topic, got)
				}
			}
			closeBroker(t, b)
			removeSnapshots(t, dir)
			want["log"] = append(want["log"], "k=after")
			checkFilled(t, dir, want, 77)
		})
	}
}

// What a kill cannot have done is not papered over.
func TestDamageIsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		damage     func(t *testing.T, dir string)
	}{
		{"a byte of a batch", "bad checksum", func(t *testing.T, dir string) {
			change(t, filepath.Join(dir, "data/partitions/log-0/0.dat"), func(raw []byte) []byte { raw[65] ^= 1; return raw })
		}},
		{"length of a batch", "has length -", func(t *testing.T, dir string) {
			change(t, filepath.Join(dir, "data/partitions/log-0/0.dat"), func(raw []byte) []byte { raw[8] = 0xff; return raw })
		}},
		{"format of a batch", "another format than 2", func(t *testing.T, dir string) {
			change(t, filepath.Join(dir, "data/partitions/log-0/0.dat"), func(raw []byte) []byte { raw[16] = 1; return raw })
		}},
		{"a hole", "later segments follow", func(t *testing.T, dir string) {
			change(t, filepath.Join(dir, "data/partitions/log-0/0.dat"), func(raw []byte) []byte { return raw[:len(raw)-3] })
		}},
		{"a batch twice", "want ", func(t *testing.T, dir string) {
			change(t, filepath.Join(dir, "data/partitions/table-0/0.dat"), func(raw []byte) []byte { return append(raw, raw...) })
		}},
		{"a byte of a log", "bad checksum", func(t *testing.T, dir string) {
			change(t, filepath.Join(dir, "data/groups.log"), func(raw []byte) []byte { raw[20] ^= 1; return raw })
		}},
		{"zeroes in a log", "has length 0", func(t *testing.T, dir string) {
			appendTo(t, filepath.Join(dir, "data/pids.log"), make([]byte, 64))
		}},
		{"topics", "topics.json", func(t *testing.T, dir string) {
			change(t, filepath.Join(dir, "data/topics.json"), func(raw []byte) []byte { return raw[:len(raw)-3] })
		}},
		{"foreign segment", "is no segment", func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "data/partitions/log-0/x.dat"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir, _ := filled(t)
			tt.damage(t, dir)
			b, err := Open(Options{Dir: dir})
			if err == nil {
				b.Close()
				t.Fatal("opened")
			}
			if !errors.Is(err, ErrFolderCorrupt) && !errors.Is(err, ErrFolderForeign) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error is %v, want one with %q", err, tt.text)
			}
		})
	}
}

// A compaction that was killed after it removed the old segments is undone.
func TestInterruptedCompactionIsUndone(t *testing.T) {
	t.Parallel()
	for _, removed := range []bool{true, false} {
		dir, want := filled(t)
		f, err := openFolder(dir, logTo(new(logBuffer)))
		if err != nil {
			t.Fatal(err)
		}
		p := partitionName{"table", 0}
		if err := f.saveSegments([]partitionName{p, {"table", 5}}); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(f.partitionDir(p), "0.dat")
		if removed {
			err = os.Remove(path)
		} else {
			// Some of the new ones are written, half.
			if err = os.Remove(path); err == nil {
				err = os.WriteFile(filepath.Join(f.partitionDir(p), "3.dat"), []byte("half a segment"), 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		f.unlock()
		checkFilled(t, dir, want, 2)
		if _, err := os.Stat(filepath.Join(dir, savedName)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the saved segments are still there: %v", err)
		}
	}
	// One that was killed while it saved them is not.
	dir, want := filled(t)
	if err := os.MkdirAll(filepath.Join(dir, savedTmp, "table-0"), 0o700); err != nil {
		t.Fatal(err)
	}
	checkFilled(t, dir, want, 2)
	b := reopen(t, dir)
	if err := b.Compact(testContext(t)); err != nil {
		t.Fatal(err)
	}
	closeBroker(t, b)
}

// A compaction that cannot write its result stops the broker, and the next
// start has everything.
func TestFailedCompactionIsUndone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := mustOpen(t, Options{Dir: dir, Topics: []Topic{{Name: "table", Partitions: 1, Configs: compacted}}})
	cl, err := newClient(b)
	if err != nil {
		t.Fatal(err)
	}
	produceTable(t, cl, "table", "a=1", "a=2", "b=1")
	cl.Close()
	want := read(t, b, "table", 0)
	// The first record that survives is the second; a folder stands where its
	// segment must be written.
	block := filepath.Join(b.folder.partitionDir(partitionName{"table", 0}), "1.dat")
	if err := os.Mkdir(block, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := b.Compact(testContext(t)); !errors.Is(err, ErrStorage) {
		t.Errorf("Compact: %v, want ErrStorage", err)
	}
	if _, err := b.Partition("table", 0); !errors.Is(err, ErrStorage) {
		t.Errorf("a broker that lost data answers: %v", err)
	}
	if err := b.Close(); !errors.Is(err, ErrStorage) {
		t.Errorf("Close: %v, want ErrStorage", err)
	}
	if err := os.Remove(block); err != nil {
		t.Fatal(err)
	}
	b = reopen(t, dir)
	defer closeBroker(t, b)
	if got := read(t, b, "table", 0); !slices.Equal(got, want) {
		t.Errorf("table has %v, want %v", got, want)
	}
	if err := b.Compact(testContext(t)); err != nil {
		t.Error(err)
	}
}

// The first write that fails stops the broker, before anything that it could
// not write is acknowledged.
func TestFailedWriteStopsTheBroker(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var log logBuffer
	b := mustOpen(t, Options{Dir: dir, Logger: logTo(&log), Topics: []Topic{{Name: "in", Partitions: 1}, {Name: "other", Partitions: 1}}})
	cl, err := newClient(b, kgo.DisableIdempotentWrite(), kgo.RecordRetries(0), kgo.RequestRetries(0), kgo.RecordDeliveryTimeout(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	produce(t, cl, record("other", 0, "", "1"))
	if err := os.MkdirAll(filepath.Join(b.folder.partitionDir(partitionName{"in", 0}), "0.dat"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(testContext(t), record("in", 0, "", "1")).FirstErr(); err == nil {
		t.Error("a record that was not written was acknowledged")
	}
	if err := b.CreateTopic(testContext(t), "more", 1, nil); !errors.Is(err, ErrStorage) {
		t.Errorf("CreateTopic: %v, want ErrStorage", err)
	}
	if !strings.Contains(log.String(), "embedded broker stopped answering") {
		t.Errorf("log is %s", log.String())
	}
	if err := b.Close(); !errors.Is(err, ErrStorage) {
		t.Errorf("Close: %v, want ErrStorage", err)
	}
	if err := os.RemoveAll(filepath.Join(dir, dataName, partsName, "in-0")); err != nil {
		t.Fatal(err)
	}
	b = reopen(t, dir)
	defer closeBroker(t, b)
	if got := read(t, b, "other", 0); !slices.Equal(got, []string{"=1"}) {
		t.Errorf("got %v", got)
	}
}

func FuzzScanLog(f *testing.F) {
	entry := func(body string) []byte {
		b := binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
		b = binary.LittleEndian.AppendUint32(b, crc32.Checksum([]byte(body), castagnoli))
		return append(b, body...)
	}
	whole := append(entry("\x01\x00{}"), entry("\x01\x00{\"a\":1}")...)
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		good, err := scanLog(raw)
		if err != nil {
			return
		}
		if good > len(raw) {
			t.Fatalf("%d of %d bytes are whole", good, len(raw))
		}
		if again, err := scanLog(raw[:good]); err != nil || again != good {
			t.Errorf("what was kept is %d bytes, of which %d are whole, %v", good, again, err)
		}
	})
}

func FuzzScanSegment(f *testing.F) {
	f.Add(bytes.Repeat([]byte{0}, 61))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 61})
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := filepath.Join(t.TempDir(), "0.dat")
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		headers, good, size, err := scanSegment(path, 0)
		if err == nil && (good > size || size != int64(len(raw)) || good > 0 != (len(headers) > 0)) {
			t.Errorf("%d batches in %d of %d bytes", len(headers), good, size)
		}
	})
}
