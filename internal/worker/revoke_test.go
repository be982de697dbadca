package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
)

// holder records which partitions a member has, by what it hears.
type holder struct {
	mu struct {
		sync.Mutex
		has map[TopicPartition]bool
		n   int // revocations
	}
}

func newHolder() *holder {
	h := &holder{}
	h.mu.has = map[TopicPartition]bool{}
	return h
}

func (h *holder) Assigned(tps []TopicPartition, _ bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, tp := range tps {
		h.mu.has[tp] = true
	}
}

func (h *holder) Revoked(tps []TopicPartition) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, tp := range tps {
		delete(h.mu.has, tp)
	}
	if len(tps) > 0 {
		h.mu.n++
	}
}

func (h *holder) Lost(tps []TopicPartition) { h.Revoked(tps) }
func (h *holder) RebalanceWaiting()         {}

func (h *holder) held() (list []TopicPartition, revocations int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.SortedFunc(maps.Keys(h.mu.has), func(a, b TopicPartition) int { return int(a.Partition - b.Partition) }), h.mu.n
}

// groupOf is a broker with an input topic "in" whose partitions are tasks, and
// the members that join it.
type groupOf struct {
	t      *testing.T
	ctx    context.Context
	broker *embedded.Broker
	kafka  *Kafka
	tasks  []assign.Task
}

func newGroupOf(t *testing.T, partitions int32) *groupOf {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	b, err := embedded.Open(embedded.Options{Topics: []embedded.Topic{{Name: "in", Partitions: partitions}, {Name: "out", Partitions: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	g := &groupOf{t: t, ctx: ctx, broker: b, kafka: &Kafka{Options: b.ClientOptions(), SessionTimeout: 10 * time.Second,
		HeartbeatInterval: 50 * time.Millisecond, RebalanceTimeout: 10 * time.Second, TransactionTimeout: 10 * time.Second,
		MaxBufferedOutputs: 100, MaxFetchBytes: 1 << 20, MaxRecordBytes: 1000, Logger: slog.New(slog.DiscardHandler)}}
	for p := range partitions {
		g.tasks = append(g.tasks, assign.Task{ID: topology.TaskID{Partition: p}, Partitions: []assign.TopicPartition{{Topic: "in", Partition: p}}})
	}
	return g
}

// join adds a member that is closed when the test ends.
func (g *groupOf) join(id byte, l Listener) Member {
	g.t.Helper()
	m, err := g.kafka.Join(g.ctx, MemberConfig{Group: "g", TransactionalID: fmt.Sprint("member-", id), Topics: []string{"in"}, Listener: l,
		UserData: func() assign.UserData {
			return assign.UserData{Version: assign.Version, ProcessID: assign.ProcessID{id}, Capacity: 1}
		},
		Tasks: func(map[string]int32) ([]assign.Task, error) { return g.tasks, nil }})
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { m.Close(context.Background()) })
	return m
}

// poll polls until stop is called, and lets every rebalance go ahead.
func (g *groupOf) poll(m Member, wait time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(g.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if _, err := m.Poll(ctx, 10, wait); err != nil && ctx.Err() == nil {
				g.t.Errorf("poll: %v", err)
				return
			}
			m.AllowRebalance()
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	g.t.Cleanup(stop)
	return stop
}

func (g *groupOf) until(what string, ok func() bool) {
	g.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-g.ctx.Done():
			g.t.Fatalf("not in time: %s", what)
		}
	}
}

// TestEveryRevocationIsHeard: franz-go's transaction session tells of one
// revocation between two transactions and keeps quiet about the next. A worker
// that is idle through two rebalances would go on with a task that another
// member has by then, and commit for it.
func TestEveryRevocationIsHeard(t *testing.T) {
	t.Parallel()
	g := newGroupOf(t, 6)
	first := newHolder()
	m := g.join(1, first)
	g.poll(m, 30*time.Second) // idle: no transaction in between
	size := func() int {
		held, _ := first.held()
		return len(held)
	}
	g.until("the first member has all", func() bool { return size() == 6 })
	// Each further member takes some from the first.
	for i, want := range []int{3, 2} {
		l := newHolder()
		o := g.join(byte(2+i), l)
		g.poll(o, 50*time.Millisecond)
		g.until(fmt.Sprintf("%d members share the tasks", 2+i), func() bool {
			return len(m.Assignment().Partitions) == want && len(o.Assignment().Partitions) == want
		})
		g.until(fmt.Sprintf("the first member hears of revocation %d: it has %d tasks and the group says %d", 1+i, size(), want),
			func() bool { return size() == want })
	}
	held, n := first.held()
	if n < 2 {
		t.Errorf("%d revocations: the test does not show what it should", n)
	}
	for _, tp := range held {
		if !slices.Contains(m.Assignment().Partitions, assign.TopicPartition(tp)) {
			t.Errorf("the member has %v, which the group gave away", tp)
		}
	}
}

// TestExpelledMemberEndsItsTransaction: a member that the group has thrown out
// gets no heartbeat, for which the client waits at the end of a transaction.
// The client's group waits for AllowRebalance, which would come after it.
func TestExpelledMemberEndsItsTransaction(t *testing.T) {
	t.Parallel()
	g := newGroupOf(t, 1)
	l := newHolder()
	m := g.join(1, l)
	stop := g.poll(m, 20*time.Millisecond)
	g.until("the member has the task", func() bool {
		held, _ := l.held()
		return len(held) == 1
	})
	stop()
	cl, err := kgo.NewClient(g.broker.ClientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.ProduceSync(g.ctx, &kgo.Record{Topic: "in", Value: []byte("v")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	// The client asks for the heartbeat only when it has offsets to commit.
	in := TopicPartition{"in", 0}
	m.Seek(map[TopicPartition]int64{in: 0})
	m.Resume([]TopicPartition{in})
	g.until("the record is there", func() bool {
		fetched, err := m.Poll(g.ctx, 10, 20*time.Millisecond)
		return err == nil && len(fetched) > 0 && len(fetched[0].Records) > 0
	})
	if err := m.Begin(); err != nil {
		t.Fatal(err)
	}
	m.Produce(g.ctx, []task.Output{{Topic: "out", Partition: task.AnyPartition, Value: []byte("v"), Store: -1}})
	expelled, err := g.broker.Fault(embedded.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Code: kerr.UnknownMemberID.Code, Count: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer expelled.Remove()
	if err := expelled.Wait(g.ctx, 1); err != nil {
		t.Fatal(err)
	}
	outcome, err := m.Commit(g.ctx, []OffsetCommit{{in, 1, -1, "stamp"}})
	if g.ctx.Err() != nil {
		t.Fatal("the commit waits for ever")
	}
	if outcome != Unknown || !errors.Is(err, ErrNotMember) {
		t.Errorf("outcome %v, %v; want that it is unknown, since the member is expelled", outcome, err)
	}
}
