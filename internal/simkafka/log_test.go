package simkafka

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/worker"
)

func TestTransactionsShowAtTheirEnd(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, nil)
	tx := b.Transaction("x", time.Hour)
	_, err := b.Append(tp(0), kv("a=1")...)
	b.must(err)
	b.must(tx.Append(tp(0), kv("b=2")...))
	_, err = b.Append(tp(0), kv("c=3")...)
	b.must(err)

	b.want("log", b.log(tp(0)), "0:a=1 1:b=2? 2:c=3")
	b.want("read committed stops at the open transaction", b.committed(tp(0)), "0:a=1")
	b.wantBounds(tp(0), worker.Bounds{Start: 0, End: 1, High: 3})

	b.must(tx.Commit())
	b.want("log", b.log(tp(0)), "0:a=1 1:b=2 2:c=3 3:C")
	b.want("committed", b.committed(tp(0)), "0:a=1 1:b=2 2:c=3")
	b.wantBounds(tp(0), worker.Bounds{Start: 0, End: 4, High: 4})

	b.must(tx.Append(tp(0), kv("d=4", "e=5")...))
	b.must(tx.Abort())
	_, err = b.Append(tp(0), kv("f=6")...)
	b.must(err)
	b.want("log", b.log(tp(0)), "0:a=1 1:b=2 2:c=3 3:C 4:d=4! 5:e=5! 6:A 7:f=6")
	b.want("aborted records are left out", b.committed(tp(0)), "0:a=1 1:b=2 2:c=3 7:f=6")
}

func TestTheFirstOpenTransactionIsTheLastStableOffset(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, nil)
	x, y := b.Transaction("x", time.Hour), b.Transaction("y", time.Hour)
	b.must(x.Append(tp(0), kv("a=1")...))
	b.must(y.Append(tp(0), kv("b=2")...))
	b.must(y.Append(tp(1), kv("c=3")...))
	b.must(y.Commit())
	b.want("x is open before what y committed", b.committed(tp(0)), "")
	b.want("the other partition is not concerned", b.committed(tp(1)), "0:c=3")
	b.must(x.Abort())
	b.want("committed", b.committed(tp(0)), "1:b=2")
	b.want("log", b.log(tp(0)), "0:a=1! 1:b=2 2:C 3:A")
}

func TestAReaderSeesMarkersAndEndsByPosition(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		committedOnly bool
		want          string
		end           int64
	}{
		{true, "0:a=1 1:* 4:* 5:c=3", 6},
		{false, "0:a=1 1:* 2:b=2 3:b=3 4:* 5:c=3 6:d=4", 7},
	} {
		b := newBench(t, 1, nil)
		tx := b.Transaction("x", time.Hour)
		b.must(tx.Append(tp(0), kv("a=1")...))
		b.must(tx.Commit())
		b.must(tx.Append(tp(0), kv("b=2", "b=3")...))
		b.must(tx.Abort())
		_, err := b.Append(tp(0), kv("c=3")...)
		b.must(err)
		b.must(tx.Append(tp(0), kv("d=4")...))

		cl := b.Client(ClientConfig{Name: "r"})
		r, err := cl.Reader(context.Background(), c.committedOnly)
		b.must(err)
		r.Add(map[worker.TopicPartition]int64{tp(0): 0})
		var got []task.Record
		var end int64
		for { // one record at a time
			fetched, err := r.Poll(context.Background(), 1, 0)
			b.must(err)
			if len(fetched) == 0 {
				break
			}
			got, end = append(got, fetched[0].Records...), fetched[0].End
		}
		b.want("records", text(got), c.want)
		if end != c.end {
			t.Errorf("committed only %t: end %d, want %d", c.committedOnly, end, c.end)
		}
		bounds, err := r.Bounds(context.Background(), []worker.TopicPartition{tp(0)})
		b.must(err)
		if want := (worker.Bounds{End: c.end, High: 7}); bounds[tp(0)] != want {
			t.Errorf("bounds %+v, want %+v", bounds[tp(0)], want)
		}
	}
}

func TestSkipFindsTheNextRecord(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, map[string]string{"cleanup.policy": "compact", "delete.retention.ms": "0"})
	tx := b.Transaction("x", time.Hour)
	b.must(tx.Append(tp(0), kv("a=1")...))
	b.must(tx.Append(tp(0), kv("a=2")...))
	b.must(tx.Commit())
	b.must(tx.Append(tp(0), kv("b=1")...))
	b.must(tx.Abort())
	b.Compact()
	b.want("log", b.log(tp(0)), "1:a=2 2:C 4:A")
	cl := b.Client(ClientConfig{Name: "r"})
	for _, c := range []struct {
		committedOnly bool
		from, want    int64
	}{{true, 0, 1}, {true, 1, 1}, {true, 2, 5}, {true, 5, 5}, {false, 3, 5}} {
		r, err := cl.Reader(context.Background(), c.committedOnly)
		b.must(err)
		got, err := r.Skip(context.Background(), tp(0), c.from)
		b.must(err)
		if got != c.want {
			t.Errorf("skip from %d: got %d, want %d", c.from, got, c.want)
		}
	}
}

func TestDeletedRecordsAreOutOfRange(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, nil)
	_, err := b.Append(tp(0), kv("a=1", "b=2", "c=3")...)
	b.must(err)
	cl := b.Client(ClientConfig{Name: "r"})
	r, err := cl.Reader(context.Background(), true)
	b.must(err)
	r.Add(map[worker.TopicPartition]int64{tp(0): 1})
	b.must(b.DeleteBelow(tp(0), 2))
	b.want("log", b.log(tp(0)), "2:c=3")
	b.wantBounds(tp(0), worker.Bounds{Start: 2, End: 3, High: 3})
	fetched, err := r.Poll(context.Background(), 10, 0)
	b.must(err)
	if len(fetched) != 1 || !errors.Is(fetched[0].Err, worker.ErrOutOfRange) {
		t.Errorf("poll below the start: %+v", fetched)
	}
	if err := b.DeleteBelow(tp(0), 4); err == nil {
		t.Error("records beyond the end can be deleted")
	}
	b.must(b.DeleteBelow(tp(0), 1)) // nothing to do
	b.wantBounds(tp(0), worker.Bounds{Start: 2, End: 3, High: 3})
}

func TestRetentionDropsTheOldHead(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, map[string]string{"retention.ms": "1000"})
	now := b.clock.now.UnixMilli()
	for _, ts := range []int64{now - 2000, now - 1500, now, now - 3000} {
		_, err := b.Append(tp(0), task.Record{Key: []byte("k"), Value: []byte("v"), Timestamp: ts})
		b.must(err)
	}
	b.Retain()
	b.want("only the head goes", b.log(tp(0)), "2:k=v 3:k=v")
	b.pass(2 * time.Second)
	tx := b.Transaction("x", time.Hour)
	b.must(tx.Append(tp(0), kv("old=1")...))
	b.Retain()
	b.want("an open transaction stays", b.log(tp(0)), "4:old=1?")
	b.wantBounds(tp(0), worker.Bounds{Start: 4, End: 4, High: 5})
}

func TestCompaction(t *testing.T) {
	t.Parallel()
	config := map[string]string{"cleanup.policy": "compact", "delete.retention.ms": "60000"}
	appended := func(b *bench, words ...string) {
		_, err := b.Append(tp(0), kv(words...)...)
		b.must(err)
	}
	for _, c := range []struct {
		name string
		fill func(b *bench)
		want []string // after each pass, a minute apart
	}{
		{"the last value of a key stays at its offset", func(b *bench) {
			appended(b, "a=1", "b=1", "a=2", "a=3")
		}, []string{"1:b=1 3:a=3"}},
		{"a tombstone goes in the pass after its time", func(b *bench) {
			appended(b, "a=1", "b=1", "a")
		}, []string{"1:b=1 2:a", "1:b=1"}},
		{"a value after a tombstone replaces it", func(b *bench) {
			appended(b, "a=1", "a", "a=2")
		}, []string{"2:a=2"}},
		{"an open transaction replaces nothing", func(b *bench) {
			appended(b, "a=1", "a=2", "b=1")
			b.must(b.Transaction("x", time.Hour).Append(tp(0), kv("a=3")...))
			appended(b, "b=2")
		}, []string{"1:a=2 2:b=1 3:a=3? 4:b=2", "1:a=2 2:b=1 3:a=3? 4:b=2"}},
		{"an aborted record replaces nothing and goes", func(b *bench) {
			appended(b, "a=1")
			tx := b.Transaction("x", time.Hour)
			b.must(tx.Append(tp(0), kv("a=2")...))
			b.must(tx.Abort())
		}, []string{"0:a=1 2:A", "0:a=1"}},
		{"a marker stays as long as its records", func(b *bench) {
			tx := b.Transaction("x", time.Hour)
			b.must(tx.Append(tp(0), kv("a=1")...))
			b.must(tx.Commit())
			b.must(tx.Append(tp(0), kv("a=2", "b=1")...))
			b.must(tx.Commit())
		}, []string{"1:C 2:a=2 3:b=1 4:C", "2:a=2 3:b=1 4:C"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1, config)
			c.fill(b)
			before, err := b.Bounds(tp(0))
			b.must(err)
			for i, want := range c.want {
				b.Compact()
				if got := b.log(tp(0)); got != want {
					t.Errorf("pass %d: got %q, want %q", i+1, got, want)
				}
				b.pass(time.Minute)
			}
			b.wantBounds(tp(0), before)
		})
	}
}

func TestOnlyCompactedTopicsAreCompacted(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, nil)
	_, err := b.Append(tp(0), kv("a=1", "a=2")...)
	b.must(err)
	b.Compact()
	b.want("log", b.log(tp(0)), "0:a=1 1:a=2")
}

func TestARecordOverAHoleIsRead(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, map[string]string{"cleanup.policy": "compact"})
	_, err := b.Append(tp(0), kv("a=1", "a=2", "a=3", "b=1")...)
	b.must(err)
	b.Compact()
	w := b.start(1, "tx")
	b.settle(w)
	w.Seek(map[worker.TopicPartition]int64{tp(0): 1})
	w.Resume([]worker.TopicPartition{tp(0)})
	b.want("records", w.turn(), "0{2:a=3 3:b=1}")
}

func TestRecordsAreCheckedAndCopied(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, map[string]string{"cleanup.policy": "compact", "max.message.bytes": "300"})
	var fatal *worker.FatalError
	if _, err := b.Append(tp(0), task.Record{Value: []byte("v")}); !errors.As(err, &fatal) {
		t.Errorf("null key in a compacted topic: %v", err)
	}
	if _, err := b.Append(tp(0), task.Record{Key: []byte("k"), Value: make([]byte, 300)}); !errors.As(err, &fatal) {
		t.Errorf("large record: %v", err)
	}
	if _, err := b.Append(tp(1), kv("a=1")...); !errors.As(err, &fatal) {
		t.Errorf("unknown partition: %v", err)
	}
	r := kv("k=v")
	_, err := b.Append(tp(0), r...)
	b.must(err)
	r[0].Value[0] = 'x'
	b.want("log", b.log(tp(0)), "0:k=v")
}

func TestTopics(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, nil)
	for _, config := range []map[string]string{{"cleanup.policy": "shred"}, {"retention.ms": "a week"}} {
		if err := b.CreateTopic("bad", 1, config); err == nil {
			t.Errorf("%v is taken", config)
		}
	}
	if err := b.CreateTopic("t", 2, nil); err == nil {
		t.Error("a topic is created twice")
	}
	first, err := b.topicFacts([]string{"t"})
	b.must(err)
	b.DeleteTopic("t")
	b.must(b.CreateTopic("t", 2, nil))
	b.must(b.AddPartitions("t", 3))
	second, err := b.topicFacts([]string{"t"})
	b.must(err)
	if first["t"].ID == second["t"].ID || second["t"].Partitions != 3 {
		t.Errorf("created again: %v after %v", second, first)
	}
	b.must(b.ElectLeader(tp(0)))
	_, err = b.Append(tp(0), kv("a=1")...)
	b.must(err)
	list, err := b.ReadCommitted(tp(0))
	b.must(err)
	if list[0].LeaderEpoch != 1 {
		t.Errorf("leader epoch %d", list[0].LeaderEpoch)
	}
}
