package worker

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/kafkaclient"
	"github.com/weirstreams/weir/internal/keyenc"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
)

// events records what a member hears of its group.
type events struct {
	assigned, revoked chan []TopicPartition
	waiting           chan struct{}
}

func newEvents() *events {
	return &events{make(chan []TopicPartition, 100), make(chan []TopicPartition, 100), make(chan struct{}, 100)}
}

func (e *events) Assigned(tps []TopicPartition, _ bool) { e.assigned <- tps }
func (e *events) Revoked(tps []TopicPartition) {
	if len(tps) > 0 {
		e.revoked <- tps
	}
}
func (e *events) Lost(tps []TopicPartition) { e.Revoked(tps) }
func (e *events) RebalanceWaiting()         { e.waiting <- struct{}{} }

// TestEmptyPollHoldsRebalance: also a poll that does not wait and finds nothing
// keeps the group's callbacks away until AllowRebalance. Else a revocation
// takes tasks from under a worker that is at work on them.
func TestEmptyPollHoldsRebalance(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	b, err := embedded.Open(embedded.Options{Topics: []embedded.Topic{{Name: "in", Partitions: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	tasks := []assign.Task{
		{ID: topology.TaskID{Partition: 0}, Partitions: []assign.TopicPartition{{Topic: "in", Partition: 0}}},
		{ID: topology.TaskID{Partition: 1}, Partitions: []assign.TopicPartition{{Topic: "in", Partition: 1}}},
	}
	k := &Kafka{Options: b.ClientOptions(), SessionTimeout: 10 * time.Second, HeartbeatInterval: 100 * time.Millisecond,
		RebalanceTimeout: 10 * time.Second, TransactionTimeout: 10 * time.Second, MaxBufferedOutputs: 100, MaxFetchBytes: 1 << 20,
		MaxRecordBytes: 1000, Logger: slog.New(slog.DiscardHandler)}
	join := func(n byte, e *events) Member {
		m, err := k.Join(ctx, MemberConfig{Group: "g", TransactionalID: string('a' + rune(n)), Topics: []string{"in"}, Listener: e,
			UserData: func() assign.UserData {
				return assign.UserData{Version: assign.Version, ProcessID: assign.ProcessID{n}, Capacity: 1}
			},
			Tasks: func(map[string]int32) ([]assign.Task, error) { return tasks, nil }})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	first := newEvents()
	m := join(1, first)
	defer m.Close(ctx)
	for have := 0; have < 2; {
		if _, err := m.Poll(ctx, 10, 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		m.AllowRebalance()
		select {
		case tps := <-first.assigned:
			have += len(tps)
		default:
		}
	}
	if _, err := m.Poll(ctx, 10, 0); err != nil {
		t.Fatal(err)
	}
	other := join(2, newEvents())
	defer other.Close(ctx)
	select {
	case <-first.waiting:
	case tps := <-first.revoked:
		t.Fatalf("%v were revoked before AllowRebalance", tps)
	case <-ctx.Done():
		t.Fatal("no rebalance")
	}
	m.AllowRebalance()
	select {
	case <-first.revoked:
	case <-ctx.Done():
		t.Fatal("nothing was revoked after AllowRebalance")
	}
}

// Behind a record that has failed nothing is sent until the next Begin: who drops
// repetitions by their numbers would take what has failed for one when it comes
// again.
func TestNothingFollowsAFailedRecord(t *testing.T) {
	t.Parallel()
	cl, err := kgo.NewClient(kgo.SeedBrokers("127.0.0.1:1"), kgo.MaxBufferedRecords(10))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	m := &member{kafka: &Kafka{}, cl: cl, produced: map[TopicPartition]*produceEnd{}}
	out := []task.Output{{Topic: "out", Partition: task.AnyPartition, Key: []byte("k"), Store: -1}}
	m.Produce(t.Context(), out)
	m.produceFailed(errors.New("refused"))
	m.Produce(t.Context(), out)
	if n := cl.BufferedProduceRecords(); n != 1 {
		t.Errorf("%d records are buffered, want 1", n)
	}
	if err := m.Begin(); err != nil {
		t.Fatal(err)
	}
	m.Produce(t.Context(), out)
	if n := cl.BufferedProduceRecords(); n != 2 {
		t.Errorf("%d records are buffered after Begin, want 2", n)
	}
}

// onBuffered is called for each record that the client takes.
type onBuffered func()

func (f onBuffered) OnProduceRecordBuffered(*kgo.Record) { f() }

// The same holds within one call of Produce, which may take thousands.
func TestNothingFollowsAFailureInMidCall(t *testing.T) {
	t.Parallel()
	m := &member{kafka: &Kafka{}, produced: map[TopicPartition]*produceEnd{}}
	n := 0
	hook := onBuffered(func() {
		if n++; n == 3 {
			m.produceFailed(errors.New("refused"))
		}
	})
	cl, err := kgo.NewClient(kgo.SeedBrokers("127.0.0.1:1"), kgo.MaxBufferedRecords(10), kgo.WithHooks(hook))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	m.cl = cl
	out := make([]task.Output, 8)
	for i := range out {
		out[i] = task.Output{Topic: "out", Partition: task.AnyPartition, Key: []byte("k"), Store: -1}
	}
	m.Produce(t.Context(), out)
	if n != 3 {
		t.Errorf("%d records were taken, want 3", n)
	}
}

// A record with a key goes by it, as with the Java client; one without goes by its
// id, to the same partition each time, and anywhere without an id.
func TestPlaces(t *testing.T) {
	t.Parallel()
	place := (&member{}).partitioner("out")
	id := []kgo.RecordHeader{{Key: "other", Value: []byte("x")}, {Key: task.HeaderID, Value: []byte("id 7")}}
	used := map[int]bool{}
	for range 200 {
		if p := place(&kgo.Record{Partition: -1, Headers: id}, 10); p != int(keyenc.Partition([]byte("id 7"), 10)) {
			t.Fatalf("partition %d", p)
		}
		if p := place(&kgo.Record{Partition: -1, Key: []byte("k"), Headers: id}, 10); p != int(keyenc.Partition([]byte("k"), 10)) {
			t.Fatalf("partition %d for a record with a key", p)
		}
		used[place(&kgo.Record{Partition: -1}, 10)] = true
	}
	if len(used) < 3 {
		t.Errorf("records without key and id go to %d partitions", len(used))
	}
	if p := place(&kgo.Record{Partition: 4, Headers: id}, 10); p != 4 {
		t.Errorf("partition %d for a record that has one", p)
	}
}

// A poll that brings nothing at all does not hold the group's callbacks back, and
// they would run beside the worker: it is followed by one that holds. Seen as a
// data race of Assigned with the claims, once in some hundred runs.
func TestEveryPollHoldsTheGroup(t *testing.T) {
	t.Parallel()
	record := kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: "t", Partitions: []kgo.FetchPartition{{Records: []*kgo.Record{{}}}}}}}}
	for name, c := range map[string]struct {
		first kgo.Fetches
		polls int
	}{
		"records":           {record, 1},
		"the time was over": {kgo.NewErrFetch(context.DeadlineExceeded), 1},
		"woken for nothing": {nil, 2},
	} {
		polls := 0
		fs := kafkaclient.Held(t.Context(), func(ctx context.Context) kgo.Fetches {
			polls++
			if polls == 1 {
				return c.first
			}
			// The client holds at once for a context that has ended.
			if ctx.Err() == nil {
				t.Errorf("%s: the second poll may wait", name)
			}
			return kgo.NewErrFetch(ctx.Err())
		})
		if polls != c.polls || len(fs) == 0 {
			t.Errorf("%s: %d polls, want %d; %d fetches", name, polls, c.polls, len(fs))
		}
		if _, _, err := convert(fs, nil, nil, false); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}

	// It is so: with an ended context the real client holds an assignment back.
	b, err := embedded.Open(embedded.Options{Topics: []embedded.Topic{{Name: "t", Partitions: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.NetworkDown(true); err != nil { // nothing is assigned before the poll
		t.Fatal(err)
	}
	assigned := make(chan struct{}, 1)
	cl, err := kgo.NewClient(append(b.ClientOptions(), kgo.ConsumerGroup("g"), kgo.ConsumeTopics("t"), kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { assigned <- struct{}{} }))...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.CloseAllowingRebalance()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	cl.PollRecords(ended, 1)
	if err := b.NetworkDown(false); err != nil {
		t.Fatal(err)
	}
	select {
	case <-assigned:
		t.Error("an assignment came beside the caller")
	case <-time.After(300 * time.Millisecond):
	}
	cl.AllowRebalance()
	select {
	case <-assigned:
	case <-time.After(30 * time.Second):
		t.Error("no assignment after AllowRebalance")
	}
}
