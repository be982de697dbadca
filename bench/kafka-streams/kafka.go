package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// cluster is the broker that both sides work on, and what the harness does there.
type cluster struct {
	opts   []kgo.Opt // for every client
	client *kgo.Client
	adm    *kadm.Client
}

func openCluster(brokers []string, extra ...kgo.Opt) (*cluster, error) {
	opts := append([]kgo.Opt{kgo.SeedBrokers(brokers...)}, extra...)
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to %v: %w", brokers, err)
	}
	return &cluster{opts: slices.Clip(opts), client: client, adm: kadm.NewClient(client)}, nil
}

func (c *cluster) close() { c.client.Close() }

// createTopic creates a topic and returns when its partitions have leaders: the
// broker answers before its own view of the metadata has the topic.
func (c *cluster) createTopic(ctx context.Context, name string, partitions int, configs map[string]string) error {
	values := make(map[string]*string, len(configs))
	for k, v := range configs {
		values[k] = &v
	}
	if _, err := c.adm.CreateTopic(ctx, int32(partitions), 1, values, name); err != nil {
		return fmt.Errorf("create topic %q: %w", name, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, createTimeout, errors.New("its partitions have no leaders"))
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		led := 0
		if topics, err := c.adm.ListTopics(ctx, name); err == nil {
			for _, p := range topics[name].Partitions {
				if p.Err == nil && p.Leader >= 0 {
					led++
				}
			}
		}
		if led == partitions {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("create topic %q: %w", name, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// createTimeout bounds the wait for a new topic.
const createTimeout = 30 * time.Second

// deleteTopics deletes the topics that exist.
func (c *cluster) deleteTopics(ctx context.Context, names ...string) error {
	resps, err := c.adm.DeleteTopics(ctx, names...)
	if err != nil {
		return fmt.Errorf("delete topics: %w", err)
	}
	var errs []error
	for _, r := range resps.Sorted() {
		if r.Err != nil && !errors.Is(r.Err, kerr.UnknownTopicOrPartition) {
			errs = append(errs, fmt.Errorf("delete topic %q: %w", r.Topic, r.Err))
		}
	}
	return errors.Join(errs...)
}

// deleteGroup deletes a group if it exists. A program that was killed is a member
// until its session is over; its group stays, and the broker forgets it in time.
func (c *cluster) deleteGroup(ctx context.Context, group string) error {
	_, err := c.adm.DeleteGroup(ctx, group)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) && !errors.Is(err, kerr.NonEmptyGroup) {
		return fmt.Errorf("delete group %q: %w", group, err)
	}
	return nil
}

// committed returns how many records of topic a group has committed, over all
// partitions; 0 as well while the group or its coordinator is not there yet. The
// topic starts at offset 0 and holds no transactions, so offsets count records.
func (c *cluster) committed(ctx context.Context, group, topic string) (int64, error) {
	offsets, err := c.adm.FetchOffsets(ctx, group)
	if errors.Is(err, kerr.GroupIDNotFound) || kerr.IsRetriable(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("fetch the offsets of group %q: %w", group, err)
	}
	var n int64
	for _, o := range offsets[topic] {
		if o.Err != nil {
			return 0, fmt.Errorf("fetch the offset of group %q for %s/%d: %w", group, topic, o.Partition, o.Err)
		}
		n += max(o.At, 0)
	}
	return n, nil
}

// input is the topic that every run counts, and what the counts have to be.
type input struct {
	topic   string
	records int64
	counts  map[string]int64 // by key
}

// load fills the input topic: uniformly random keys, written in decimal, and
// random values, which no compression makes smaller. The batches are not
// compressed, so no side is charged for it.
func (c *cluster) load(ctx context.Context, topic string, s settings) (*input, error) {
	in := &input{topic: topic, counts: make(map[string]int64, s.Keys)}
	keys := make([]string, s.Keys)
	for i := range keys {
		keys[i] = strconv.Itoa(i)
	}
	rng := rand.New(rand.NewPCG(s.Seed, 0))
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], s.Seed)
	bytes := rand.NewChaCha8(seed)
	next := func() (string, []byte, error) {
		value := make([]byte, s.ValueBytes)
		_, err := bytes.Read(value)
		return keys[rng.IntN(len(keys))], value, err
	}
	return in, c.produce(ctx, in, s.Records, next)
}

// probe adds one record to each of the first n keys, for a look at the state
// that a process has restored: the next count of each key tells.
func (c *cluster) probe(ctx context.Context, in *input, n int) error {
	i := 0
	return c.produce(ctx, in, int64(n), func() (string, []byte, error) {
		i++
		return strconv.Itoa(i - 1), []byte("probe"), nil
	})
}

func (c *cluster) produce(ctx context.Context, in *input, n int64, next func() (string, []byte, error)) error {
	client, err := kgo.NewClient(append(c.opts,
		kgo.DefaultProduceTopic(in.topic),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerLinger(5*time.Millisecond),
	)...)
	if err != nil {
		return fmt.Errorf("load topic %q: %w", in.topic, err)
	}
	defer client.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for range n {
		if ctx.Err() != nil {
			break
		}
		key, value, err := next()
		if err != nil {
			return fmt.Errorf("load topic %q: make a record: %w", in.topic, err)
		}
		in.counts[key]++
		in.records++
		client.Produce(ctx, &kgo.Record{Key: []byte(key), Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				cancel(err)
			}
		})
	}
	if err := client.Flush(ctx); err != nil || ctx.Err() != nil {
		return fmt.Errorf("load topic %q: %w", in.topic, context.Cause(ctx))
	}
	return nil
}

// errShort says that a topic gave out no record for longer than readStall before
// its end was reached.
var errShort = errors.New("no more records came before the end of the topic")

// readStall bounds the wait for the next records of a topic that is known to
// hold more.
const readStall = 30 * time.Second

// read hands every committed record of a topic to f, in order within a
// partition, up to the last stable offsets at the time of the call. What it
// hands out is valid during the call only.
func (c *cluster) read(ctx context.Context, topic string, f func(*kgo.Record) error) error {
	ends, err := c.adm.ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("read topic %q: find its end: %w", topic, err)
	}
	starts, err := c.adm.ListStartOffsets(ctx, topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return fmt.Errorf("read topic %q: find its start: %w", topic, err)
	}
	left := map[int32]int64{} // partition -> offset to reach
	from := map[int32]kgo.Offset{}
	ends.Each(func(o kadm.ListedOffset) {
		if start, _ := starts.Lookup(topic, o.Partition); o.Offset > start.Offset {
			left[o.Partition] = o.Offset
			from[o.Partition] = kgo.NewOffset().At(start.Offset)
		}
	})
	if len(left) == 0 {
		return nil
	}
	client, err := kgo.NewClient(append(c.opts,
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // a transaction's marker is the last thing of a partition
	)...)
	if err != nil {
		return fmt.Errorf("read topic %q: %w", topic, err)
	}
	defer client.Close()
	for len(left) > 0 {
		poll, cancel := context.WithTimeoutCause(ctx, readStall, errShort)
		fetches := client.PollFetches(poll)
		cause := context.Cause(poll)
		cancel()
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("read topic %q: %w", topic, errors.Join(err, cause))
		}
		for r := range fetches.RecordsAll() {
			end, wanted := left[r.Partition]
			if !wanted || r.Offset >= end {
				continue
			}
			if !r.Attrs.IsControl() {
				if err := f(r); err != nil {
					return fmt.Errorf("topic %q, partition %d, offset %d: %w", topic, r.Partition, r.Offset, err)
				}
			}
			if r.Offset+1 >= end {
				delete(left, r.Partition)
			}
		}
	}
	return nil
}
