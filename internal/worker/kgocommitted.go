package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirstreams/weir/internal/kafkaclient"
)

// stableRetry is the pause between two looks at offsets that belong to an open
// transaction, stableWait how long a claim looks before it lets the other tasks
// of the worker go on.
const (
	stableRetry = 20 * time.Millisecond
	stableWait  = 100 * time.Millisecond
)

// Committed implements Member (R1). Whoever claims holds the assignment, so the
// transaction that a dead process left open under this transactional id is ended
// first, instead of waiting for its timeout.
func (m *member) Committed(ctx context.Context, tps []TopicPartition) (map[TopicPartition]Committed, error) {
	if m.transactional {
		if _, _, err := m.cl.ProducerID(ctx); err != nil {
			return nil, producerErr(err)
		}
	}
	return m.committed(ctx, tps, stableWait)
}

// committed is Committed that waits for as long as it is told.
func (m *member) committed(ctx context.Context, tps []TopicPartition, wait time.Duration) (map[TopicPartition]Committed, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*m.kafka.TransactionTimeout+m.kafka.SessionTimeout)
	defer cancel()
	deadline := time.Now().Add(wait)
	for {
		list, err := m.offsets(ctx, tps)
		unstable := errors.Is(err, kerr.UnstableOffsetCommit)
		switch {
		case err == nil:
			return list, nil
		case unstable && time.Now().After(deadline):
			return nil, fmt.Errorf("%w: %w", ErrUnstable, err)
		case !unstable && !kerr.IsRetriable(err):
			return nil, fatal(err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (last answer: %w)", context.Cause(ctx), err)
		case <-time.After(stableRetry):
		}
	}
}

// offsets asks the group once.
func (m *member) offsets(ctx context.Context, tps []TopicPartition) (map[TopicPartition]Committed, error) {
	list := map[TopicPartition]Committed{}
	for _, tp := range tps {
		list[tp] = Committed{Offset: -1, LeaderEpoch: -1}
	}
	err := kafkaclient.Committed(ctx, m.cl, m.cfg.Group, unflatten(tps), func(topic string, p *kmsg.OffsetFetchResponseGroupTopicPartition) {
		c := Committed{Offset: p.Offset, LeaderEpoch: p.LeaderEpoch}
		if p.Metadata != nil {
			c.Metadata = *p.Metadata
		}
		list[TopicPartition{topic, p.Partition}] = c
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}
