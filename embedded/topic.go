package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Topic is a topic to create.
type Topic struct {
	// Name is 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-', as in
	// Kafka.
	Name string

	// Partitions is the number of partitions, 1 to MaxPartitions.
	Partitions int32

	// Configs are topic settings by their Kafka names. See CreateTopic.
	Configs map[string]string
}

// Partition is the state of a partition at one moment.
type Partition struct {
	Leader      int32 // node id
	LeaderEpoch int32 // leader epoch: how often the leader has moved
	LogStart    int64 // offset of the first record that is kept
	LastStable  int64 // last stable offset: read_committed readers get no further
	End         int64 // high watermark: offset of the next record
	Bytes       int64 // size of what is kept
}

// maxTopicName is Kafka's limit for the length of a topic name.
const maxTopicName = 249

var legalTopicName = regexp.MustCompile(`^[a-zA-Z0-9._-]+$`)

// topicConfigs are the settings of a topic that the cluster knows, each with
// its check. It takes any other name too and ignores it.
var topicConfigs = map[string]func(string) bool{
	"cleanup.policy":      oneOf("delete", "compact", "compact,delete", "delete,compact"),
	"compression.type":    oneOf("producer"),
	"delete.retention.ms": integer(0),
	"max.message.bytes":   integer(0),
	// LogAppendTime would be ignored.
	"message.timestamp.type": oneOf("CreateTime"),
	"min.insync.replicas":    integer(1),
	"retention.bytes":        integer(-1),
	"retention.ms":           integer(-1),
	"segment.bytes":          integer(1),
	"segment.ms":             integer(1),
}

func oneOf(values ...string) func(string) bool {
	return func(v string) bool { return slices.Contains(values, v) }
}

func integer(least int64) func(string) bool {
	return func(v string) bool {
		n, err := strconv.ParseInt(v, 10, 64)
		return err == nil && n >= least
	}
}

func (t *Topic) check() error {
	switch {
	case t.Name == "" || t.Name == "." || t.Name == ".." || len(t.Name) > maxTopicName || !legalTopicName.MatchString(t.Name):
		return fmt.Errorf("topic name %q: want 1 to %d characters of a-z, A-Z, 0-9, '.', '_' and '-'", t.Name, maxTopicName)
	case t.Partitions < 1 || t.Partitions > MaxPartitions:
		return fmt.Errorf("topic %q: %d partitions: want 1 to %d", t.Name, t.Partitions, MaxPartitions)
	}
	for _, name := range slices.Sorted(maps.Keys(t.Configs)) {
		valid, known := topicConfigs[name]
		if !known {
			return fmt.Errorf("topic %q: setting %q: %w (it has %s)", t.Name, name, ErrUnsupported, strings.Join(slices.Sorted(maps.Keys(topicConfigs)), ", "))
		}
		if !valid(t.Configs[name]) {
			return fmt.Errorf("topic %q: setting %s=%q: %w", t.Name, name, t.Configs[name], ErrUnsupported)
		}
	}
	return nil
}

// CreateTopic creates a topic. It succeeds without a change when the topic
// exists with this partition count and each of these settings, and fails with
// ErrTopicDiffers when it exists and differs.
//
// Settings that the cluster would ignore are refused with ErrUnsupported; those
// it takes are the ones that DescribeConfigs lists. Of these min.insync.replicas
// and segment.ms have no effect. A topic is kept for ever unless it sets
// retention.ms or retention.bytes (DescribeConfigs shows Kafka's default of
// seven days), and neither these nor a cleanup.policy of compact do anything
// before Compact, Retain or Options.CleanupInterval.
//
// Topics that clients create are not checked in this way, as they are Kafka's
// own requests.
func (b *Broker) CreateTopic(ctx context.Context, name string, partitions int32, configs map[string]string) error {
	t := Topic{Name: name, Partitions: partitions, Configs: configs}
	if err := t.check(); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	return cmp.Or(b.createTopic(t), b.failure())
}

func (b *Broker) createTopic(t Topic) error {
	b.addName(t.Name)
	err := b.cluster.CreateTopic(t.Name, t.Partitions, t.Configs)
	switch {
	case errors.Is(err, kerr.TopicAlreadyExists):
		return b.compareTopic(t)
	case errors.Is(err, kerr.InvalidTopicException):
		return fmt.Errorf("create topic %q: another topic has this name but for '.' and '_', which Kafka does not tell apart in metric names: %w", t.Name, err)
	case err != nil:
		return fmt.Errorf("create topic %q: %w", t.Name, err)
	}
	return nil
}

func (b *Broker) compareTopic(t Topic) error {
	info, have := b.cluster.TopicInfo(t.Name), len(b.cluster.PartitionInfos(t.Name))
	if info == nil {
		return fmt.Errorf("create topic %q: it was deleted at the same time", t.Name)
	}
	if have != int(t.Partitions) {
		return fmt.Errorf("%w: topic %q has %d partitions, asked for %d: use that count, or delete the topic first", ErrTopicDiffers, t.Name, have, t.Partitions)
	}
	for _, name := range slices.Sorted(maps.Keys(t.Configs)) {
		want, got := t.Configs[name], "unset"
		if v := info.Configs[name]; v != nil {
			got = *v
		}
		if got != want {
			return fmt.Errorf("%w: topic %q has %s=%s, asked for %s: use that setting, or alter or delete the topic first", ErrTopicDiffers, t.Name, name, got, want)
		}
	}
	return nil
}

// AddPartitions raises the partition count of a topic to total. Keys move to
// other partitions by it, as in Kafka.
func (b *Broker) AddPartitions(ctx context.Context, name string, total int32) error {
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	have := int32(len(b.cluster.PartitionInfos(name)))
	switch {
	case have == 0:
		return fmt.Errorf("add partitions: %w: topic %q", ErrTopicUnknown, name)
	case total < have || total > MaxPartitions:
		return fmt.Errorf("add partitions: topic %q has %d partitions: want %d to %d, asked for %d", name, have, have, MaxPartitions, total)
	}
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	req := kmsg.NewPtrCreatePartitionsRequest()
	req.SetVersion(1)
	topic := kmsg.NewCreatePartitionsRequestTopic()
	topic.Topic, topic.Count = name, total
	req.Topics = append(req.Topics, topic)
	// The controller is the last node.
	resp, err := b.request(ctx, int32(len(b.net.nodes)-1), req)
	if err != nil {
		return fmt.Errorf("add partitions to topic %q: %w", name, err)
	}
	for _, t := range resp.(*kmsg.CreatePartitionsResponse).Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return fmt.Errorf("add partitions to topic %q: %w", name, err)
		}
	}
	return b.failure()
}

// DeleteTopic deletes a topic with its records and the offsets that groups
// have committed for it.
func (b *Broker) DeleteTopic(ctx context.Context, name string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	if err := b.cluster.DeleteTopic(name); err != nil {
		return fmt.Errorf("delete topic: %w: %q", ErrTopicUnknown, name)
	}
	return b.failure()
}

// DeleteRecords raises the log start of a partition to an offset, -1 for its
// end. With a folder, the records come back after a kill when others of their
// segment are still kept.
func (b *Broker) DeleteRecords(ctx context.Context, topic string, partition int32, before int64) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	err := b.cluster.DeleteRecords(topic, partition, before)
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return fmt.Errorf("delete records: %w: partition %d of topic %q", ErrTopicUnknown, partition, topic)
	case err != nil:
		return fmt.Errorf("delete records of partition %d of topic %q before offset %d: %w", partition, topic, before, err)
	}
	return b.failure()
}

// Partition returns the state of a partition.
func (b *Broker) Partition(topic string, partition int32) (Partition, error) {
	if err := b.enter(); err != nil {
		return Partition{}, err
	}
	defer b.leave()
	p := b.cluster.PartitionInfo(topic, partition)
	if p == nil {
		return Partition{}, fmt.Errorf("%w: partition %d of topic %q", ErrTopicUnknown, partition, topic)
	}
	return Partition{
		Leader:      p.Leader,
		LeaderEpoch: p.Epoch,
		LogStart:    p.LogStartOffset,
		LastStable:  p.LastStableOffset,
		End:         p.HighWatermark,
		Bytes:       p.NumBytes,
	}, nil
}

// Partitions returns the partition count of a topic.
func (b *Broker) Partitions(topic string) (int32, error) {
	if err := b.enter(); err != nil {
		return 0, err
	}
	defer b.leave()
	n := len(b.cluster.PartitionInfos(topic))
	if n == 0 {
		return 0, fmt.Errorf("%w: topic %q", ErrTopicUnknown, topic)
	}
	return int32(n), nil
}
