package proof

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
)

// TestSituationA1: a changelog that ends with a transaction marker. The restore
// on an empty disk ends by position; by counting records it would wait for one
// that never comes.
func TestSituationA1(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		s.topics(2, "in", "out")
		top, table := s.counter()
		i := s.start(top).running()
		s.writeMany("in", 0, 100, 10)
		s.exactlyOnce(100)
		i.stop()

		changelog := s.name + "-counts-changelog"
		end, err := s.adm.ListEndOffsets(s.ctx, changelog)
		if err != nil {
			t.Fatal(err)
		}
		for p, records := range s.mustRead(t, s.ctx, changelog) {
			if n := len(records); n == 0 || records[n-1].Offset+1 >= end[changelog][int32(p)].Offset {
				t.Errorf("partition %d has %d records and ends with one: the test does not show what it should", p, n)
			}
		}
		i = s.start(top).running()
		if i.restored() == 0 {
			t.Error("nothing was restored")
		}
		want := map[string]int64{}
		for k := range 10 {
			want[fmt.Sprint("k", k)] = 10
		}
		wants(i, table, want)
	})
}

// TestSituationA3: a store on disk that is at the end of the changelog runs at
// once, without a restore.
func TestSituationA3(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		s.topics(2, "in", "out")
		top, table := s.counter()
		dir := t.TempDir()
		i := s.start(top, onDisk(dir)).running()
		s.writeMany("in", 0, 40, 4)
		s.exactlyOnce(40)
		i.stop()
		i = s.start(top, onDisk(dir)).running()
		if n := i.restored(); n != 0 {
			t.Errorf("%d records were restored although the store has them", n)
		}
		wants(i, table, map[string]int64{"k0": 10, "k1": 10, "k2": 10, "k3": 10})
	})
}

// TestSituationA4: the changelog exists and is empty, on the first start and on
// the next.
func TestSituationA4(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		s.topics(2, "in", "out")
		top, table := s.counter()
		for range 2 {
			i := s.start(top).running()
			wants(i, table, map[string]int64{})
			i.stop()
		}
		i := s.start(top).running()
		s.write("in", "a=1")
		wants(i, table, map[string]int64{"a": 1})
	})
}

// TestSituationA6: a store without a changelog has nothing to restore and runs
// at once, empty.
func TestSituationA6(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		s.topics(2, "in", "out")
		top, table := s.counter(weir.WithoutChangelog())
		i := s.start(top).running()
		s.write("in", "a=1", "a=2")
		wants(i, table, map[string]int64{"a": 2})
		i.stop()
		i = s.start(top).running()
		s.write("in", "a=3")
		wants(i, table, map[string]int64{"a": 1})
		details, err := s.adm.ListTopics(s.ctx, s.name+"-counts-changelog")
		if err != nil {
			t.Fatal(err)
		}
		if d := details[s.name+"-counts-changelog"]; d.Err == nil {
			t.Error("a changelog topic was made")
		}
	})
}

// TestSituationA7: records of an aborted transaction in the changelog do not
// stop a restore, and do not get into the store.
func TestSituationA7(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		s.topics(1, "in", "out")
		top, table := s.counter()
		i := s.start(top).running()
		s.write("in", "a=1", "b=1", "a=2")
		s.exactlyOnce(3)
		i.stop()

		cl := s.transactional("intruder")
		changelog := s.name + "-counts-changelog"
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"a", "uncommitted"} {
			value, _ := serde.Int64.Append(nil, 1000)
			if err := cl.ProduceSync(s.ctx, &kgo.Record{Topic: changelog, Key: []byte(key), Value: value}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if err := cl.EndTransaction(s.ctx, kgo.TryAbort); err != nil {
			t.Fatal(err)
		}
		// Behind it comes a batch of our own, so that it lies in the part that is
		// read.
		i = s.start(top).running()
		s.write("in", "b=2")
		wants(i, table, map[string]int64{"a": 2, "b": 2})
		i.stop()
		i = s.start(top).running()
		wants(i, table, map[string]int64{"a": 2, "b": 2})
	})
}

// transactional makes a client with a transactional id of this test.
func (s *situation) transactional(id string) *kgo.Client {
	s.t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.TransactionalID(s.name + "-" + id), kgo.TransactionTimeout(10 * time.Second),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil))}, s.options...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(cl.Close)
	return cl
}

// deleteRecords moves the start of a partition. A real broker does so for topics
// that delete only, which a changelog is for a moment then.
func (s *situation) deleteRecords(topic string, partition int32, below int64) {
	s.t.Helper()
	set := func(policy string) {
		r, err := s.adm.AlterTopicConfigs(s.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "cleanup.policy", Value: &policy}}, topic)
		if err == nil {
			err = r[0].Err
		}
		if err != nil {
			s.t.Fatalf("set cleanup.policy of %s: %v", topic, err)
		}
	}
	if strings.HasSuffix(topic, "-changelog") {
		set("delete")
		defer set("compact")
	}
	waitUntil(s.t, s.ctx, "records are deleted", func() (bool, error) {
		var os kadm.Offsets
		os.Add(kadm.Offset{Topic: topic, Partition: partition, At: below})
		r, err := s.adm.DeleteRecords(s.ctx, os)
		if err == nil {
			err = r.Error()
		}
		return err == nil, err
	})
}

// TestSituationA8: the changelog does not reach back to where a store on disk
// stopped. The store is rebuilt from the first record that there is.
func TestSituationA8(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		s.topics(1, "in", "out")
		top, table := s.counter()
		old := t.TempDir()
		i := s.start(top, onDisk(old)).running()
		s.write("in", "a=1", "b=1", "gone=1")
		s.exactlyOnce(3)
		i.stop()
		// Another instance goes on.
		i = s.start(top).running()
		s.write("in", "a=2", "b=2", "gone=2")
		s.exactlyOnce(6)
		i.stop()
		records := s.all(s.name + "-counts-changelog")
		s.deleteRecords(s.name+"-counts-changelog", 0, records[3].Offset)
		i = s.start(top, onDisk(old)).running()
		wants(i, table, map[string]int64{"a": 2, "b": 2, "gone": 2})
		i.says("does not reach back")
		i.stop()
		// A key that only the old store has must not come back from it.
		i = s.start(top).running()
		s.write("in", "a=3", "b=3")
		wants(i, table, map[string]int64{"a": 3, "b": 3, "gone": 2})
		i.stop()
		records = s.all(s.name + "-counts-changelog")
		s.deleteRecords(s.name+"-counts-changelog", 0, records[len(records)-2].Offset)
		i = s.start(top, onDisk(old)).running()
		wants(i, table, map[string]int64{"a": 3, "b": 3})
	})
}

// TestSituationA12: what was restored stays restored when the task stops before
// its first commit.
func TestSituationA12(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		s.topics(1, "in", "out")
		top, table := s.counter()
		i := s.start(top).running()
		s.writeMany("in", 0, 200, 50)
		s.exactlyOnce(200)
		i.stop()
		dir := t.TempDir()
		i = s.start(top, onDisk(dir)).running()
		if i.restored() == 0 {
			t.Error("nothing was restored on an empty disk")
		}
		i.stop()
		i = s.start(top, onDisk(dir)).running()
		if n := i.restored(); n != 0 {
			t.Errorf("%d records were restored again", n)
		}
		s.write("in", "k0=more")
		waitUntil(t, s.ctx, "k0 is counted", func() (bool, error) {
			n, _, err := i.app.Read(table).Get(s.ctx, "k0")
			return n == 5, err
		})
	})
}

// TestSituationA15: the committed offset of an input is older than what the topic
// has. The policy of the topic decides; the application never idles.
func TestSituationA15(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		for _, policy := range []weir.ResetPolicy{weir.Earliest, weir.Latest, weir.Fail} {
			t.Run(policy.String(), func(t *testing.T) {
				s := newSituation(t, s.cluster)
				s.topics(1, "in", "out")
				top := s.build(func(b *weir.Builder) { b.Stream(s.str("in"), weir.StartAt(weir.Earliest)).To(s.str("out")) })
				i := s.start(top).running()
				s.write("in", "a=0")
				s.await("out", 1)
				i.stop()
				s.write("in", "a=1", "a=2", "a=3")
				s.deleteRecords(s.topicOf("in"), 0, 3)
				top = s.build(func(b *weir.Builder) { b.Stream(s.str("in"), weir.StartAt(policy)).To(s.str("out")) })
				i = s.start(top)
				if policy == weir.Fail {
					i.refuses(nil, s.topicOf("in"), "deleted before they were processed", "policy is Fail")
					return
				}
				i.running()
				i.says("input records are gone")
				want := "a=3"
				if policy == weir.Latest {
					s.write("in", "a=4")
					want = "a=4"
				}
				if r := s.await("out", 2)[1]; string(r.Key)+"="+string(r.Value) != want {
					t.Errorf("the next output is %s=%s, want %s", r.Key, r.Value, want)
				}
			})
		}
	})
}

// TestSituationA16: a group without offsets, whose inputs start at their ends,
// takes over a changelog that is not empty: the restore has its own positions.
// When the application says that it runs, the positions at the ends are
// committed: a client that is rebuilt after that does not look for the ends anew.
func TestSituationA16(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		s.topics(2, "in", "out")
		changelog := s.name + "-counts-changelog"
		s.topic(t, changelog, 2, "cleanup.policy", "compact")
		want := map[string]int64{}
		for k := range 20 {
			key := fmt.Sprint("k", k)
			want[key] = int64(100 + k)
			value, _ := serde.Int64.Append(nil, want[key])
			if err := s.cl.ProduceSync(s.ctx, &kgo.Record{Topic: changelog, Key: []byte(key), Value: value}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		s.write("in", "k0=before")
		var table weir.Table[string, int64]
		top := s.build(func(b *weir.Builder) {
			table = b.Stream(s.str("in"), weir.StartAt(weir.Latest)).GroupByKey().Count("counts")
			table.ToStream().To(s.counts("out"))
		})
		i := s.start(top, func(c *weir.Config) { c.CommitInterval = 300 * time.Millisecond }).running()
		committed, err := s.adm.FetchOffsets(s.ctx, s.name)
		if err != nil {
			t.Fatal(err)
		}
		for p := range int32(2) {
			if _, ok := committed.Lookup(s.topicOf("in"), p); !ok {
				t.Errorf("the application runs, and where it began in partition %d is not committed", p)
			}
		}
		wants(i, table, want)
		s.write("in", "k0=after")
		want["k0"]++
		wants(i, table, want)
	})
}

// watchedBackend is a backend that counts the checkpoints of restores and can
// slow them down.
type watchedBackend struct {
	state.Backend
	checkpoints atomic.Int64
	slow        time.Duration // per record restored
}

func (b *watchedBackend) Claim(ctx context.Context, id state.ID, old, new state.Token) (state.View, error) {
	v, err := b.Backend.Claim(ctx, id, old, new)
	if err != nil {
		return nil, err
	}
	return &watchedView{v, b}, nil
}

type watchedView struct {
	state.View
	b *watchedBackend
}

func (v *watchedView) Bulk(ctx context.Context, old state.Token) (state.Bulk, error) {
	b, err := v.View.Bulk(ctx, old)
	if err != nil {
		return nil, err
	}
	return &watchedBulk{b, v.b}, nil
}

type watchedBulk struct {
	state.Bulk
	b *watchedBackend
}

func (b *watchedBulk) Put(key, value []byte) error {
	if b.b.slow > 0 {
		time.Sleep(b.b.slow) // a store that is slow, not a test that waits
	}
	return b.Bulk.Put(key, value)
}

func (b *watchedBulk) Checkpoint(ctx context.Context, new state.Token) error {
	b.b.checkpoints.Add(1)
	return b.Bulk.Checkpoint(ctx, new)
}

func (s *situation) watched(slow time.Duration) *watchedBackend {
	store := memstore.New()
	s.t.Cleanup(func() {
		if err := store.Close(); err != nil {
			s.t.Errorf("close the store: %v", err)
		}
	})
	return &watchedBackend{Backend: store, slow: slow}
}

// TestSituationA18: a long restore is stored in bounded steps, so that a kill in
// between costs one of them and memory does not grow with the changelog.
func TestSituationA18(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		s.topics(1, "in", "out")
		changelog := s.name + "-texts-changelog"
		s.topic(t, changelog, 1, "cleanup.policy", "compact")
		const records, size, step = 5_000, 20_000, 32 << 20
		value := []byte(strings.Repeat("v", size))
		for k := range records {
			s.cl.Produce(s.ctx, &kgo.Record{Topic: changelog, Key: fmt.Append(nil, "k", k), Value: value}, nil)
		}
		if err := s.cl.Flush(s.ctx); err != nil {
			t.Fatal(err)
		}
		var table weir.Table[string, string]
		top := s.build(func(b *weir.Builder) { table = b.Stream(s.str("in")).ToTable("texts") })
		store := s.watched(0)
		i := s.start(top, func(c *weir.Config) { c.Store = store }).running()
		if n := i.restored(); n != records {
			t.Errorf("%d records were restored, want %d", n, records)
		}
		if n, want := store.checkpoints.Load(), int64(records*size/step); n < want {
			t.Errorf("%d checkpoints of %d MB, want %d", n, records*size>>20, want)
		}
		v, found, err := i.app.Read(table).Get(s.ctx, fmt.Sprint("k", records-1))
		if err != nil || !found || v != string(value) {
			t.Errorf("the last key: found %v, %d bytes, %v", found, len(v), err)
		}
	})
}

// TestSituationA19: a restore that takes far longer than the session and the
// rebalance limit, while another member comes. Nobody is thrown out.
func TestSituationA19(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		s.topics(2, "in", "out")
		changelog := s.name + "-counts-changelog"
		s.topic(t, changelog, 2, "cleanup.policy", "compact")
		const records = 600
		want := map[string]int64{}
		for k := range records {
			key := fmt.Sprint("k", k)
			want[key] = int64(k)
			value, _ := serde.Int64.Append(nil, int64(k))
			s.cl.Produce(s.ctx, &kgo.Record{Topic: changelog, Key: []byte(key), Value: value}, nil)
		}
		if err := s.cl.Flush(s.ctx); err != nil {
			t.Fatal(err)
		}
		top, table := s.counter()
		slow := func(c *weir.Config) {
			c.Store = s.watched(10 * time.Millisecond) // three seconds for each of the two tasks
			c.SessionTimeout, c.HeartbeatInterval, c.RebalanceTimeout = time.Second, 100*time.Millisecond, time.Second
			c.MaxRecordTime = 10 * time.Second
		}
		first := s.start(top, slow)
		if err := first.app.WaitFor(s.ctx, weir.Restoring); err != nil {
			t.Fatal(err)
		}
		first.says("task claimed")
		second := s.start(top, slow)
		waitUntil(t, s.ctx, "the restore is complete on both", func() (bool, error) {
			got := map[string]int64{}
			for _, i := range []*instanceOf{first, second} {
				for e, err := range i.app.Read(table).Local().Range(s.ctx, weir.All[string]()) {
					if err != nil {
						return false, err
					}
					got[e.Key] = e.Value
				}
			}
			return len(got) == len(want), fmt.Errorf("%d keys of %d", len(got), len(want))
		})
		for _, i := range []*instanceOf{first, second} {
			for _, bad := range []string{"no longer a member", "the client is rebuilt", "group manage loop errored"} {
				if strings.Contains(i.log.String(), bad) {
					t.Errorf("a member was thrown out: the log says %q", bad)
				}
			}
		}
	})
}

// TestSituationA21: the store on disk is damaged. It is put aside and rebuilt
// from the changelog, with an alarm.
func TestSituationA21(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		s.topics(1, "in", "out")
		top, table := s.counter()
		dir := t.TempDir()
		i := s.start(top, onDisk(dir)).running()
		s.writeMany("in", 0, 100, 10)
		s.exactlyOnce(100)
		i.stop()
		damaged := 0
		err := filepath.WalkDir(filepath.Join(dir, s.name, "state"), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasPrefix(d.Name(), "MANIFEST") && filepath.Ext(path) != ".sst" {
				return err
			}
			damaged++
			return os.WriteFile(path, []byte("not what it was"), 0o644)
		})
		if err != nil || damaged == 0 {
			t.Fatalf("%d files damaged, %v", damaged, err)
		}
		i = s.start(top, onDisk(dir)).running()
		i.says("level=ERROR")
		s.writeMany("in", 100, 10, 10)
		want := map[string]int64{}
		for k := range 10 {
			want[fmt.Sprint("k", k)] = 11
		}
		wants(i, table, want)
		s.exactlyOnce(110)
	})
}

// TestSituationA22: the folder is still held by a process that is dying. The
// start waits for it; if it does not go, the error names the folder.
func TestSituationA22(t *testing.T) {
	onEmbedded(t, 1, func(t *testing.T, s *situation) {
		s.topics(1, "in", "out")
		top, table := s.counter()
		dir := t.TempDir()
		folder := filepath.Join(dir, s.name)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		lock := func() *os.File {
			f, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
			if err == nil {
				err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
			}
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
		f := lock()
		i := s.start(top, onDisk(dir))
		if err := i.app.WaitFor(s.ctx, weir.Starting); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(500*time.Millisecond, func() { f.Close() })
		defer timer.Stop()
		i.running()
		s.write("in", "a=1")
		wants(i, table, map[string]int64{"a": 1})
		i.stop()

		f = lock()
		defer f.Close()
		s.start(top, onDisk(dir)).refuses(weir.ErrConfig, folder, "in use by another process")
	})
}
