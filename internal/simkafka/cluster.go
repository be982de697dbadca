package simkafka

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/worker"
)

// Config is what a cluster is told.
type Config struct {
	// Clock is the time of the broker and of all clients. Required.
	Clock worker.Clock
	// HeartbeatAnswer is how long a process that was paused hears nothing of its
	// group when it goes on. Until then its polls bring records also where the group
	// has given the partitions to others.
	HeartbeatAnswer time.Duration
	// Random makes topic ids and decides how many of its buffered records a
	// producer sends before it is flushed. Nil numbers the topics and sends
	// everything with the flush.
	Random *rand.Rand
	// Hook sees each call and may spoil it. Nil lets all pass. It may let other
	// clients act before it returns, but not the one that calls.
	Hook func(Call) Fault
}

// Cluster is a simulated Kafka. It is used by one goroutine at a time.
type Cluster struct {
	cfg       Config
	topics    map[string]*topic
	groups    map[string]*group
	producers map[string]*producer
	nextID    int64 // of producers
	nextTopic uint64
	clients   []*Client
	late      []lateCall
	markers   []marker // that are held
	hold      bool
	version   uint64
}

// New returns an empty cluster.
func New(cfg Config) *Cluster {
	return &Cluster{cfg: cfg, topics: map[string]*topic{}, groups: map[string]*group{}, producers: map[string]*producer{}, nextID: 1000}
}

// Version changes with everything that happens in the cluster: appends, ends of
// transactions, commits, steps of groups, and moves of readers. When all clients
// were called and it is as before, nothing is left to be done.
func (c *Cluster) Version() uint64 { return c.version }

func (c *Cluster) changed() { c.version++ }

func (c *Cluster) now() time.Time { return c.cfg.Clock.Now() }

// Topic settings as Kafka calls them; others are taken and have no effect.
const (
	cleanupPolicy   = "cleanup.policy"
	retentionMillis = "retention.ms"
	deleteRetention = "delete.retention.ms"
	maxMessageBytes = "max.message.bytes"
)

// Kafka's defaults.
const (
	defaultRetention       = 7 * 24 * time.Hour
	defaultDeleteRetention = 24 * time.Hour
	defaultMaxMessageBytes = 1 << 20
)

type topic struct {
	name       string
	id         [16]byte
	partitions []*partition
	config     map[string]string

	compacted, deleted bool
	retention          time.Duration // negative: without end
	deleteRetention    time.Duration
	maxMessage         int
}

// CreateTopic makes a topic. The settings are Kafka's; without a cleanup.policy
// it is "delete".
func (c *Cluster) CreateTopic(name string, partitions int32, config map[string]string) error {
	if _, ok := c.topics[name]; ok {
		return fmt.Errorf("topic %s: TOPIC_ALREADY_EXISTS", name)
	}
	if partitions < 1 {
		return fmt.Errorf("topic %s: INVALID_PARTITIONS: %d", name, partitions)
	}
	t := &topic{name: name, config: config, retention: defaultRetention, deleteRetention: defaultDeleteRetention, maxMessage: defaultMaxMessageBytes}
	for _, p := range strings.Split(config[cleanupPolicy], ",") {
		switch strings.TrimSpace(p) {
		case "compact":
			t.compacted = true
		case "delete":
			t.deleted = true
		case "":
			t.deleted = !t.compacted
		default:
			return fmt.Errorf("topic %s: INVALID_CONFIG: %s=%q", name, cleanupPolicy, config[cleanupPolicy])
		}
	}
	for key, set := range map[string]func(ms int64){
		retentionMillis: func(ms int64) { t.retention = time.Duration(ms) * time.Millisecond },
		deleteRetention: func(ms int64) { t.deleteRetention = time.Duration(ms) * time.Millisecond },
		maxMessageBytes: func(n int64) { t.maxMessage = int(n) },
	} {
		text, ok := config[key]
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("topic %s: INVALID_CONFIG: %s=%q", name, key, text)
		}
		set(n)
	}
	c.nextTopic++
	binary.BigEndian.PutUint64(t.id[8:], c.nextTopic)
	if r := c.cfg.Random; r != nil {
		binary.BigEndian.PutUint64(t.id[:], r.Uint64()|1)
	}
	c.topics[name] = t
	c.grow(t, partitions)
	return nil
}

func (c *Cluster) grow(t *topic, partitions int32) {
	for n := int32(len(t.partitions)); n < partitions; n++ {
		t.partitions = append(t.partitions, &partition{topic: t, tp: worker.TopicPartition{Topic: t.name, Partition: n}, open: map[int64]int64{}})
	}
	c.changed()
}

// AddPartitions raises the number of partitions of a topic.
func (c *Cluster) AddPartitions(name string, partitions int32) error {
	t := c.topics[name]
	if t == nil {
		return errUnknownTopic(name)
	}
	c.grow(t, partitions)
	return nil
}

// DeleteTopic removes a topic with its records. Offsets that groups committed
// for it stay, as they do when the topic comes back at once.
func (c *Cluster) DeleteTopic(name string) {
	delete(c.topics, name)
	c.changed()
}

// Topics returns the partition counts of all topics.
func (c *Cluster) Topics() map[string]int32 {
	counts := map[string]int32{}
	for name, t := range c.topics {
		counts[name] = int32(len(t.partitions))
	}
	return counts
}

// TopicConfig returns the settings that a topic was made with, nil for an
// unknown one.
func (c *Cluster) TopicConfig(name string) map[string]string {
	if t := c.topics[name]; t != nil {
		return t.config
	}
	return nil
}

// ElectLeader raises the leader epoch of a partition: records appended from now
// on carry it.
func (c *Cluster) ElectLeader(tp worker.TopicPartition) error {
	p, err := c.partition(tp)
	if err != nil {
		return err
	}
	p.epoch++
	return nil
}

// errUnknownTopic is UNKNOWN_TOPIC_OR_PARTITION as a worker's client reports it.
func errUnknownTopic(name string) error {
	return &worker.FatalError{Err: fmt.Errorf("topic %s: UNKNOWN_TOPIC_OR_PARTITION: create the topic", name)}
}

func (c *Cluster) partition(tp worker.TopicPartition) (*partition, error) {
	t := c.topics[tp.Topic]
	if t == nil || tp.Partition < 0 || int(tp.Partition) >= len(t.partitions) {
		return nil, errUnknownTopic(name(tp))
	}
	return t.partitions[tp.Partition], nil
}

// sortedTopics returns the topics by name, or the named ones.
func (c *Cluster) sortedTopics(names []string) []*topic {
	var list []*topic
	for name, t := range c.topics {
		if len(names) == 0 || slices.Contains(names, name) {
			list = append(list, t)
		}
	}
	slices.SortFunc(list, func(a, b *topic) int { return strings.Compare(a.name, b.name) })
	return list
}

// Append writes records to a partition, outside of any transaction, and returns
// the offset of the first. Offset, LeaderEpoch and Control of the records do
// not count.
func (c *Cluster) Append(tp worker.TopicPartition, records ...task.Record) (int64, error) {
	p, err := c.partition(tp)
	if err != nil {
		return 0, err
	}
	for i := range records {
		if err := p.accepts(&records[i]); err != nil {
			return 0, err
		}
	}
	first := p.end
	for i := range records {
		p.append(&records[i], noProducer)
	}
	c.changed()
	return first, nil
}

// Entry is a record as a log holds it.
type Entry struct {
	task.Record
	// Producer is the id of the producer whose transaction the record, or the
	// marker, belongs to; -1 without a transaction.
	Producer int64
	// Commit says of a marker that it commits.
	Commit bool
	// Open says that the transaction is not decided, Aborted that it was
	// aborted.
	Open, Aborted bool
}

// Log returns everything that a partition holds, markers and aborted records
// among it.
func (c *Cluster) Log(tp worker.TopicPartition) ([]Entry, error) {
	p, err := c.partition(tp)
	if err != nil {
		return nil, err
	}
	var list []Entry
	for i := range p.entries {
		e := &p.entries[i]
		first, open := p.open[e.producer]
		list = append(list, Entry{Record: e.record(), Producer: e.producer, Commit: e.kind == commitMarker,
			Open: open && e.kind == data && e.offset >= first, Aborted: e.aborted})
	}
	return list, nil
}

// Decided calls visit with the records of a partition from an offset to the last
// stable one, without markers and without what was aborted, and returns where to
// go on from. The bytes are those of the log.
func (c *Cluster) Decided(tp worker.TopicPartition, from int64, visit func(offset int64, key, value []byte, headers []task.Header)) (int64, error) {
	p, err := c.partition(tp)
	if err != nil {
		return from, err
	}
	end := p.stable()
	for i := p.index(from); i < len(p.entries); i++ {
		e := &p.entries[i]
		if e.offset >= end {
			break
		}
		if e.kind == data && !e.aborted {
			visit(e.offset, e.key, e.value, e.headers)
		}
	}
	return max(from, end), nil
}

// ReadCommitted returns the records that a read-committed reader sees, without
// markers.
func (c *Cluster) ReadCommitted(tp worker.TopicPartition) ([]task.Record, error) {
	p, err := c.partition(tp)
	if err != nil {
		return nil, err
	}
	all, _ := p.read(p.start, true, int(p.end-p.start)+1, nil)
	return slices.DeleteFunc(all, func(r task.Record) bool { return r.Control }), nil
}

// Bounds returns the first offset, the last stable one and the high watermark of
// a partition.
func (c *Cluster) Bounds(tp worker.TopicPartition) (worker.Bounds, error) {
	p, err := c.partition(tp)
	if err != nil {
		return worker.Bounds{}, err
	}
	return worker.Bounds{Start: p.start, End: p.stable(), High: p.end}, nil
}

// DeleteBelow drops the records of a partition below an offset, as an
// operator's tool does.
func (c *Cluster) DeleteBelow(tp worker.TopicPartition, offset int64) error {
	p, err := c.partition(tp)
	if err != nil {
		return err
	}
	if offset > p.end {
		return fmt.Errorf("%s: OFFSET_OUT_OF_RANGE: %d is beyond the end %d", name(tp), offset, p.end)
	}
	p.truncateHead(offset)
	c.changed()
	return nil
}

// Compact runs the log cleaner once over the named topics, or all, as far as
// they are compacted.
func (c *Cluster) Compact(topics ...string) {
	now := c.now().UnixMilli()
	for _, t := range c.sortedTopics(topics) {
		if !t.compacted {
			continue
		}
		for _, p := range t.partitions {
			p.compact(now)
		}
	}
	c.changed()
}

// Retain applies the retention time to the named topics, or all, as far as
// their records are deleted by age.
func (c *Cluster) Retain(topics ...string) {
	now := c.now()
	for _, t := range c.sortedTopics(topics) {
		if !t.deleted || t.retention < 0 {
			continue
		}
		for _, p := range t.partitions {
			p.retain(now.Add(-t.retention).UnixMilli())
		}
	}
	c.changed()
}
