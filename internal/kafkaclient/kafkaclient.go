// Package kafkaclient is what the Kafka clients of this module have in common.
package kafkaclient

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Log passes on what a client has to say, at a level below its own: what it
// retries by itself is not news for an operator.
type Log struct{ Logger *slog.Logger }

// Level implements kgo.Logger.
func (l Log) Level() kgo.LogLevel {
	if l.Logger.Enabled(context.Background(), slog.LevelDebug) {
		return kgo.LogLevelInfo
	}
	return kgo.LogLevelWarn
}

// Log implements kgo.Logger.
func (l Log) Log(level kgo.LogLevel, msg string, kv ...any) {
	at := slog.LevelDebug
	if level == kgo.LogLevelError {
		at = slog.LevelInfo
	}
	l.Logger.Log(context.Background(), at, "kafka client: "+msg, kv...)
}

// Held polls a client with kgo.BlockRebalanceOnPoll so that the group's callbacks
// are held back when it returns. A poll that was woken for records which the
// client has dropped meanwhile, because an assignment came in between, returns
// nothing at all and holds nothing back: the callbacks would run beside the
// caller. One whose context has ended already returns at once, and holds.
func Held(ctx context.Context, poll func(context.Context) kgo.Fetches) kgo.Fetches {
	fs := poll(ctx)
	if len(fs) > 0 {
		return fs
	}
	ended, cancel := context.WithDeadline(ctx, time.Time{})
	defer cancel()
	return poll(ended)
}

// Committed asks a group once for its offsets of partitions, -1 for those that it
// does not have, and calls visit with what it answers. It fails with
// kerr.UnstableOffsetCommit while one belongs to a transaction that is not
// decided. The partitions are named in the request: asked for all offsets that it
// has, a group says nothing of a partition whose first commit is in such a
// transaction.
func Committed(ctx context.Context, cl *kgo.Client, group string, partitions map[string][]int32, visit func(topic string, p *kmsg.OffsetFetchResponseGroupTopicPartition)) error {
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = group
	for topic, list := range partitions {
		t := kmsg.NewOffsetFetchRequestGroupTopic()
		t.Topic, t.Partitions = topic, list
		g.Topics = append(g.Topics, t)
	}
	req := kmsg.NewPtrOffsetFetchRequest()
	req.RequireStable = true
	req.Groups = append(req.Groups, g)
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return err
	}
	for _, g := range resp.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
			return fmt.Errorf("offsets of group %s: %w", g.Group, err)
		}
		for _, t := range g.Topics {
			for i := range t.Partitions {
				p := &t.Partitions[i]
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return fmt.Errorf("offset of %s[%d]: %w", t.Topic, p.Partition, err)
				}
				visit(t.Topic, p)
			}
		}
	}
	return nil
}
