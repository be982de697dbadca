package worker

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/internal/assign"
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
