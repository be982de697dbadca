package fence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/internal/holes"
)

// KafkaSource reads a topic for Reconcile. It is not safe for concurrent use.
type KafkaSource struct {
	topic string
	cl    *kgo.Client
	adm   *kadm.Client
}

var _ Source = (*KafkaSource)(nil)

// NewKafkaSource returns a source. The options say how to connect: seed brokers,
// TLS, SASL; they must not name topics or a group.
func NewKafkaSource(topic string, opts ...kgo.Opt) (*KafkaSource, error) {
	opts = append(opts[:len(opts):len(opts)], kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()))
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("fence: client options: %w", err)
	}
	return &KafkaSource{topic: topic, cl: cl, adm: kadm.NewClient(cl)}, nil
}

// Close ends the connections.
func (s *KafkaSource) Close() { s.cl.Close() }

// Partitions returns the number of partitions of the topic and its id.
func (s *KafkaSource) Partitions(ctx context.Context) (int, [16]byte, error) {
	list, err := s.adm.ListTopics(ctx, s.topic)
	if err != nil {
		return 0, [16]byte{}, fmt.Errorf("ask for topic %s: %w", s.topic, err)
	}
	d := list[s.topic]
	if d.Err != nil {
		return 0, [16]byte{}, fmt.Errorf("topic %s: %w", s.topic, d.Err)
	}
	return len(d.Partitions), [16]byte(d.ID), nil
}

// Compacted says whether the topic is compacted, for Reconciliation.Compacted.
func (s *KafkaSource) Compacted(ctx context.Context) (bool, error) {
	configs, err := s.adm.DescribeTopicConfigs(ctx, s.topic)
	if err != nil {
		return false, fmt.Errorf("configuration of topic %s: %w", s.topic, err)
	}
	c, err := configs.On(s.topic, nil)
	if err == nil {
		err = c.Err
	}
	if err != nil {
		return false, fmt.Errorf("configuration of topic %s: %w", s.topic, err)
	}
	for _, e := range c.Configs {
		if e.Key == "cleanup.policy" {
			return strings.Contains(e.MaybeValue(), "compact"), nil
		}
	}
	return false, nil
}

// Committed returns the offsets that a group has committed, by partition.
func (s *KafkaSource) Committed(ctx context.Context, group string) (map[int32]int64, error) {
	offsets, err := s.adm.FetchOffsetsForTopics(ctx, group, s.topic)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return map[int32]int64{}, nil // it has not begun
	}
	if err != nil {
		return nil, fmt.Errorf("offsets of group %s: %w", group, err)
	}
	out := map[int32]int64{}
	for p, o := range offsets[s.topic] {
		if o.Err != nil {
			return nil, fmt.Errorf("offsets of group %s: partition %d: %w", group, p, o.Err)
		}
		if o.At >= 0 {
			out[p] = o.At
		}
	}
	return out, nil
}

// Bounds implements Source.
func (s *KafkaSource) Bounds(ctx context.Context, partition int32) (first, next int64, err error) {
	starts, err := s.adm.ListStartOffsets(ctx, s.topic)
	if err != nil {
		return 0, 0, fmt.Errorf("first offset of partition %d of topic %s: %w", partition, s.topic, err)
	}
	ends, err := s.adm.ListCommittedOffsets(ctx, s.topic)
	if err != nil {
		return 0, 0, fmt.Errorf("end of partition %d of topic %s: %w", partition, s.topic, err)
	}
	start, ok1 := starts.Lookup(s.topic, partition)
	end, ok2 := ends.Lookup(s.topic, partition)
	if !ok1 || !ok2 {
		return 0, 0, fmt.Errorf("topic %s has no partition %d", s.topic, partition)
	}
	if start.Err != nil {
		return 0, 0, fmt.Errorf("first offset of partition %d of topic %s: %w", partition, s.topic, start.Err)
	}
	if end.Err != nil {
		return 0, 0, fmt.Errorf("end of partition %d of topic %s: %w", partition, s.topic, end.Err)
	}
	return start.Offset, end.Offset, nil
}

const (
	sourceRecords = 10_000                 // of one poll
	sourceWait    = 500 * time.Millisecond // for records before holes are looked for
)

// Read implements Source.
func (s *KafkaSource) Read(ctx context.Context, partition int32, from, to int64, yield func(*Message) error) error {
	s.cl.AddConsumePartitions(map[string]map[int32]kgo.Offset{s.topic: {partition: kgo.NewOffset().At(from)}})
	defer s.cl.RemoveConsumePartitions(map[string][]int32{s.topic: {partition}})
	for at := from; at < to; {
		before := at
		poll, cancel := context.WithTimeout(ctx, sourceWait)
		fetches := s.cl.PollRecords(poll, sourceRecords)
		cancel()
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, e := range fetches.Errors() {
			if e.Topic == s.topic {
				return fmt.Errorf("read partition %d of topic %s: %w", e.Partition, e.Topic, e.Err)
			}
		}
		var failed error
		fetches.EachRecord(func(r *kgo.Record) {
			if failed != nil || r.Partition != partition || r.Offset < at || r.Offset >= to {
				if r.Partition == partition && r.Offset >= to {
					at = to
				}
				return
			}
			at = r.Offset + 1
			if !r.Attrs.IsControl() {
				failed = yield(messageOf(r))
			}
		})
		if failed != nil {
			return failed
		}
		if at == before {
			next, err := holes.Skip(ctx, s.cl, s.topic, partition, at, true)
			if err != nil {
				return fmt.Errorf("read partition %d of topic %s: %w", partition, s.topic, err)
			}
			at = max(at, next)
		}
	}
	return nil
}

func messageOf(r *kgo.Record) *Message {
	m := &Message{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, LeaderEpoch: r.LeaderEpoch, Time: r.Timestamp, Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, Header{h.Key, h.Value})
	}
	return m
}
