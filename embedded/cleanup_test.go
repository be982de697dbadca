package embedded

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var compacted = map[string]string{"cleanup.policy": "compact"}

// produceTable produces each record as a batch of its own, and one more at the
// end, since the last batch is never compacted.
func produceTable(t testing.TB, cl *kgo.Client, topic string, rs ...string) {
	t.Helper()
	for _, r := range append(rs, "end=") {
		key, value, _ := strings.Cut(r, "=")
		rec := record(topic, 0, key, value)
		if value == "deleted" {
			rec.Value = nil
		}
		produce(t, cl, rec)
	}
}

func TestCompact(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"", t.TempDir()} {
		t.Run("dir "+dir, func(t *testing.T) {
			b := open(t, Options{Dir: dir, Topics: []Topic{{Name: "table", Partitions: 1, Configs: compacted}, {Name: "log", Partitions: 1}}})
			cl := client(t, b)
			produceTable(t, cl, "table", "a=1", "b=1", "a=2", "c=1", "b=deleted")
			produceTable(t, cl, "log", "a=1", "a=2")
			if err := b.Compact(testContext(t)); err != nil {
				t.Fatal(err)
			}
			if got, want := read(t, b, "table", 0), []string{"a=2", "c=1", "b=", "end="}; !slices.Equal(got, want) {
				t.Errorf("table has %v, want %v", got, want)
			}
			if got, want := read(t, b, "log", 0), []string{"a=1", "a=2", "end="}; !slices.Equal(got, want) {
				t.Errorf("log has %v, want %v", got, want)
			}
			if p, err := b.Partition("table", 0); err != nil || p.LogStart != 2 || p.End != 6 {
				t.Errorf("partition is %+v, %v", p, err)
			}
		})
	}
}

// The bug of the cluster that Compact works around: the record of an open
// transaction replaces the committed one, and an abort leaves none. When this
// test fails, the cluster has learnt it.
func TestUpstreamCompactsOverOpenTransactions(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Topics: []Topic{{Name: "table", Partitions: 1, Configs: compacted}}})
	produceTable(t, client(t, b), "table", "a=committed")
	txn := client(t, b, kgo.TransactionalID("t"))
	if err := txn.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	produce(t, txn, record("table", 0, "a", "open"))
	produce(t, txn, record("table", 0, "z", "open"))
	b.cluster.Compact()
	if err := txn.EndTransaction(testContext(t), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	if got := read(t, b, "table", 0); slices.Contains(got, "a=committed") {
		t.Errorf("the committed value is still there: %v", got)
	}
}

func TestCompactRefusesWithOpenTransaction(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Topics: []Topic{{Name: "table", Partitions: 1, Configs: compacted}}})
	produceTable(t, client(t, b), "table", "a=committed", "b=0", "b=1")
	ctx := testContext(t)
	txn := client(t, b, kgo.TransactionalID("the-writer"))
	if err := txn.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	produce(t, txn, record("table", 0, "a", "open"))
	produce(t, txn, record("table", 0, "z", "open"))

	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	err := b.Compact(short)
	if !errors.Is(err, ErrTransactionOpen) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Compact: %v, want ErrTransactionOpen and the deadline", err)
	}
	for _, part := range []string{`partition 0 of topic "table"`, "the-writer"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not name %s", err, part)
		}
	}
	if err := txn.EndTransaction(ctx, kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	if err := b.Compact(ctx); err != nil {
		t.Fatal(err)
	}
	if got, want := read(t, b, "table", 0), []string{"a=committed", "b=1", "end="}; !slices.Equal(got, want) {
		t.Errorf("table has %v, want %v", got, want)
	}
	// A transaction elsewhere is in no one's way.
	if err := b.CreateTopic(ctx, "log", 1, nil); err != nil {
		t.Fatal(err)
	}
	if err := txn.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	produce(t, txn, record("log", 0, "a", "open"))
	if err := b.Compact(ctx); err != nil {
		t.Errorf("with a transaction on another topic: %v", err)
	}
	if err := txn.EndTransaction(ctx, kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
}

// Writers that always have a transaction open somewhere: Compact makes its own
// quiet moment, and no value is lost by it.
func TestCompactUnderLoad(t *testing.T) {
	t.Parallel()
	const writers = 4
	for _, dir := range []string{"", t.TempDir()} {
		t.Run("dir "+dir, func(t *testing.T) {
			t.Parallel()
			b := open(t, Options{Dir: dir, Topics: []Topic{{Name: "table", Partitions: writers, Configs: compacted}}})
			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			var wg sync.WaitGroup
			committed := make([]int, writers)
			started := make(chan struct{}, writers)
			for w := range writers {
				cl := client(t, b, kgo.TransactionalID(fmt.Sprint("writer-", w)))
				wg.Go(func() {
					for i := 1; ctx.Err() == nil; i++ {
						if err := cl.BeginTransaction(); err != nil {
							t.Error(err)
							return
						}
						// Longer than the pause between two transactions, so
						// that at any time some are open.
						for j := range 5 {
							produce(t, cl, record("table", int32(w), "k", fmt.Sprintf("%d.%d", i, j)))
							time.Sleep(time.Millisecond)
						}
						end := kgo.TryCommit
						if i%3 == 0 {
							end = kgo.TryAbort
						}
						if err := cl.EndTransaction(testContext(t), end); err != nil {
							t.Error(err)
							return
						}
						if end == kgo.TryCommit {
							committed[w] = i
						}
						if i == 2 {
							started <- struct{}{}
						}
					}
				})
			}
			for range writers {
				<-started
			}
			for range 3 {
				if err := b.Compact(ctx); err != nil {
					t.Error(err)
				}
			}
			cancel()
			wg.Wait()
			for w := range writers {
				got := read(t, b, "table", int32(w))
				if want := fmt.Sprintf("k=%d.4", committed[w]); len(got) == 0 || got[len(got)-1] != want {
					t.Errorf("writer %d: last of %d values is not %s", w, len(got), want)
				}
			}
		})
	}
}

// Tombstones stay, however old they are by their own timestamp, and the
// settings are what they were.
func TestCompactKeepsTombstones(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Topics: []Topic{
		{Name: "set", Partitions: 1, Configs: map[string]string{"cleanup.policy": "compact", deleteRetention: "1000"}},
		{Name: "unset", Partitions: 1, Configs: compacted},
	}})
	cl := client(t, b)
	for _, topic := range []string{"set", "unset"} {
		produce(t, cl, record(topic, 0, "a", "1"))
		produce(t, cl, &kgo.Record{Topic: topic, Key: []byte("a"), Timestamp: time.Unix(1e9, 0)})
		produce(t, cl, record(topic, 0, "end", ""))
		for range 2 {
			if err := b.Compact(testContext(t)); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := read(t, b, topic, 0), []string{"a=", "end="}; !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", topic, got, want)
		}
	}
	for topic, want := range map[string]string{"set": "1000", "unset": ""} {
		info := b.cluster.TopicInfo(topic)
		got := ""
		if v := info.Configs[deleteRetention]; v != nil {
			got = *v
		}
		if got != want || info.Configs[savedDeleteRetention] != nil {
			t.Errorf("%s has settings %v", topic, info.Configs)
		}
	}
	// When they cannot be put back at once, the next compaction does not take
	// its own setting for the user's.
	if _, err := b.Fault(Fault{Keys: []kmsg.Key{kmsg.IncrementalAlterConfigs}, Code: kerr.InvalidRequest.Code, Count: 1,
		When: func(req kmsg.Request) bool {
			for _, c := range req.(*kmsg.IncrementalAlterConfigsRequest).Resources[0].Configs {
				if c.Name == savedDeleteRetention && c.Op == kmsg.IncrementalAlterConfigOpDelete {
					return true
				}
			}
			return false
		}}); err != nil {
		t.Fatal(err)
	}
	if err := b.Compact(testContext(t)); err == nil {
		t.Error("Compact hides that a setting was not put back")
	}
	if err := b.Compact(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if v := b.cluster.TopicInfo("set").Configs[deleteRetention]; v == nil || *v != "1000" {
		t.Errorf("settings are %v", b.cluster.TopicInfo("set").Configs)
	}
}

func TestRetain(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Topics: []Topic{
		{Name: "short", Partitions: 1, Configs: map[string]string{"retention.ms": "3600000"}},
		{Name: "small", Partitions: 1, Configs: map[string]string{"retention.bytes": "0"}},
		{Name: "kept", Partitions: 1},
	}})
	cl := client(t, b)
	for _, topic := range []string{"short", "small", "kept"} {
		produce(t, cl, &kgo.Record{Topic: topic, Value: []byte("old"), Timestamp: time.Unix(1e9, 0)})
		produce(t, cl, &kgo.Record{Topic: topic, Value: []byte("new")})
	}
	if err := b.Retain(testContext(t)); err != nil {
		t.Fatal(err)
	}
	for topic, want := range map[string][]string{"short": {"=new"}, "small": nil, "kept": {"=old", "=new"}} {
		if got := read(t, b, topic, 0); !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", topic, got, want)
		}
	}
}

// Memory comes back: a topic with a bound does not hold more than a few
// segments.
func TestRetentionBoundsMemory(t *testing.T) {
	t.Parallel()
	const bound = 1 << 20
	b := open(t, Options{Topics: []Topic{{Name: "in", Partitions: 1, Configs: map[string]string{"retention.bytes": fmt.Sprint(bound)}}}})
	cl := client(t, b, kgo.ProducerBatchCompression(kgo.NoCompression()))
	value := strings.Repeat("x", 100<<10)
	for range 100 {
		produce(t, cl, record("in", 0, "", value))
	}
	if err := b.Retain(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if p, err := b.Partition("in", 0); err != nil || p.Bytes > bound || p.LogStart < 80 {
		t.Errorf("partition is %+v, %v", p, err)
	}
}

func TestCleanupInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, err := Open(Options{CleanupInterval: time.Minute, Topics: []Topic{
			{Name: "table", Partitions: 1, Configs: compacted},
			{Name: "short", Partitions: 1, Configs: map[string]string{"retention.ms": "1000"}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		cl, err := newClient(b)
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		txn, err := newClient(b, kgo.TransactionalID("t"), kgo.TransactionTimeout(10*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		defer txn.Close()
		produceTable(t, cl, "table", "a=1", "a=2")
		produceTable(t, cl, "short", "a=1")
		if err := txn.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		produce(t, txn, record("table", 0, "x", "open"))
		produce(t, txn, record("table", 0, "x", "open"))
		time.Sleep(70 * time.Second)
		// Retention does not wait for the transaction, compaction does.
		if p, _ := b.Partition("short", 0); p.LogStart != 2 {
			t.Errorf("short is %+v after a minute", p)
		}
		if p, _ := b.Partition("table", 0); p.LogStart != 0 {
			t.Errorf("table is %+v after a minute", p)
		}
		if err := txn.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if p, _ := b.Partition("table", 0); p.LogStart != 1 {
			t.Errorf("table is %+v after two minutes", p)
		}
	})
}

// kfake's own cleaner, which minds no transaction, never runs.
func TestClusterDoesNotCleanByItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, err := Open(Options{Topics: []Topic{{Name: "table", Partitions: 1, Configs: map[string]string{"cleanup.policy": "compact,delete", "retention.ms": "1000"}}}})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		cl, err := newClient(b)
		if err != nil {
			t.Fatal(err)
		}
		produceTable(t, cl, "table", "a=1", "a=2")
		cl.Close()
		time.Sleep(365 * 24 * time.Hour)
		if p, _ := b.Partition("table", 0); p.LogStart != 0 || p.End != 3 {
			t.Errorf("partition is %+v after a year", p)
		}
	})
}
