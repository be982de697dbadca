package worker

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// pendingOffset leaves a transaction open that holds an offset of the group,
// whose member is as.
func (g *groupOf) pendingOffset(as Member, transactionalID string, timeout time.Duration) *kgo.Client {
	g.t.Helper()
	cl, err := kgo.NewClient(append(g.broker.ClientOptions(), kgo.TransactionalID(transactionalID), kgo.TransactionTimeout(timeout), kgo.DefaultProduceTopic("out"))...)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(cl.Close)
	if err := cl.BeginTransaction(); err != nil {
		g.t.Fatal(err)
	}
	if err := cl.ProduceSync(g.ctx, &kgo.Record{Value: []byte("v")}).FirstErr(); err != nil {
		g.t.Fatal(err)
	}
	id, epoch, err := cl.ProducerID(g.ctx)
	if err != nil {
		g.t.Fatal(err)
	}
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch = transactionalID, "g", id, epoch
	req.MemberID, req.Generation = as.(*member).cl.GroupMetadata()
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = transactionalID, id, epoch, "g"
	if resp, err := add.RequestWith(g.ctx, cl); err != nil || resp.ErrorCode != 0 {
		g.t.Fatal(err, kerr.ErrorForCode(resp.ErrorCode))
	}
	topic, p := kmsg.NewTxnOffsetCommitRequestTopic(), kmsg.NewTxnOffsetCommitRequestTopicPartition()
	topics, err := kadm.NewClient(cl).ListTopics(g.ctx, "in")
	if err != nil {
		g.t.Fatal(err)
	}
	topic.Topic, topic.TopicID, p.Offset = "in", topics["in"].ID, 7
	topic.Partitions = append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(g.ctx, cl)
	if err != nil {
		g.t.Fatal(err)
	}
	if err := kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode); err != nil {
		g.t.Fatal(err)
	}
	return cl
}

// assigned joins a member and waits until it has the partition.
func (g *groupOf) assigned(id byte) Member {
	g.t.Helper()
	h := newHolder()
	m := g.join(id, h)
	stop := g.poll(m, 10*time.Millisecond)
	g.until("the member has its partition", func() bool { held, _ := h.held(); return len(held) == 1 })
	stop()
	return m
}

// TestUnstableOffsetsDoNotHoldUp: an offset that somebody's open transaction
// holds is ErrUnstable soon, so that the worker goes on with its other tasks;
// when it is decided there is an answer.
func TestUnstableOffsetsDoNotHoldUp(t *testing.T) {
	t.Parallel()
	g := newGroupOf(t, 1)
	m := g.assigned(1)
	other := g.pendingOffset(m, "other", time.Minute)
	tp := TopicPartition{Topic: "in"}
	began := time.Now()
	if _, err := m.Committed(g.ctx, []TopicPartition{tp}); !errors.Is(err, ErrUnstable) {
		t.Fatalf("got %v, want ErrUnstable", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the answer took %v", took)
	}
	if err := other.EndTransaction(g.ctx, kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	g.until("the offset is decided", func() bool {
		found, err := m.Committed(g.ctx, []TopicPartition{tp})
		if err != nil && !errors.Is(err, ErrUnstable) {
			t.Fatal(err)
		}
		return err == nil && found[tp].Offset == 7
	})
}

// TestClaimEndsTheTransactionOfAPredecessor: a process that was killed in a
// transaction and starts again does not wait for its timeout.
func TestClaimEndsTheTransactionOfAPredecessor(t *testing.T) {
	t.Parallel()
	g := newGroupOf(t, 1)
	m := g.assigned(1)
	g.pendingOffset(m, "member-1", 10*time.Minute)
	tp := TopicPartition{Topic: "in"}
	g.until("the transaction is aborted", func() bool {
		found, err := m.Committed(g.ctx, []TopicPartition{tp})
		if err != nil && !errors.Is(err, ErrUnstable) {
			t.Fatal(err)
		}
		return err == nil && found[tp].Offset == -1
	})
}
