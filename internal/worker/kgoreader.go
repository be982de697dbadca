package worker

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirstreams/weir/internal/task"
)

// Reader implements Broker.
func (k *Kafka) Reader(ctx context.Context, committedOnly bool) (Reader, error) {
	opts := append(k.common(), kgo.ConsumeResetOffset(kgo.NoResetOffset()))
	if committedOnly {
		opts = append(opts, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, &FatalError{fmt.Errorf("client options: %w", err)}
	}
	return &reader{cl: cl, adm: kadm.NewClient(cl), committedOnly: committedOnly}, nil
}

type reader struct {
	cl            *kgo.Client
	adm           *kadm.Client
	committedOnly bool
	records       []task.Record
	fetched       []Fetched
}

func (r *reader) Add(offsets map[TopicPartition]int64) {
	set := map[string]map[int32]kgo.Offset{}
	for tp, o := range offsets {
		if set[tp.Topic] == nil {
			set[tp.Topic] = map[int32]kgo.Offset{}
		}
		set[tp.Topic][tp.Partition] = kgo.NewOffset().At(o)
	}
	if len(set) > 0 {
		r.cl.AddConsumePartitions(set)
	}
}

func (r *reader) Remove(tps []TopicPartition) {
	if len(tps) > 0 {
		r.cl.RemoveConsumePartitions(unflatten(tps))
	}
}

func (r *reader) Poll(ctx context.Context, limit int, wait time.Duration) ([]Fetched, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	fs := r.cl.PollRecords(ctx, limit)
	var err error
	r.fetched, r.records, err = convert(fs, r.fetched[:0], r.records, r.committedOnly)
	return r.fetched, err
}

func (r *reader) Bounds(ctx context.Context, tps []TopicPartition) (map[TopicPartition]Bounds, error) {
	return bounds(ctx, r.adm, tps, r.committedOnly)
}

func (r *reader) Close() { r.cl.Close() }

// Layout of a record batch (KIP-98), up to what Skip needs.
const (
	batchBaseOffset      = 0
	batchLength          = 8
	batchAttributes      = 21
	batchLastOffsetDelta = 23
	batchRecordCount     = 57
	batchHeader          = 61
)

// Skip implements Reader with a fetch of its own: the client does not tell how
// far it read where there was no record to return.
func (r *reader) Skip(ctx context.Context, tp TopicPartition, from int64) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	meta, err := r.adm.ListTopics(ctx, tp.Topic)
	if err != nil {
		return from, err
	}
	d := meta[tp.Topic]
	part, ok := d.Partitions[tp.Partition]
	if d.Err != nil || !ok || part.Err != nil {
		return from, nil // the leader moves; the caller asks again
	}
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.SessionEpoch = 50, 1, 1<<20, -1
	if r.committedOnly {
		req.IsolationLevel = 1
	}
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = tp.Topic, [16]byte(d.ID)
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes = tp.Partition, from, 1<<20
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	raw, err := r.cl.Broker(int(part.Leader)).RetriableRequest(ctx, req)
	if err != nil {
		return from, err
	}
	resp := raw.(*kmsg.FetchResponse)
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return from, nil
	}
	got := resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(got.ErrorCode); err != nil {
		if kerr.IsRetriable(err) {
			return from, nil
		}
		return from, err
	}
	end := got.HighWatermark
	if r.committedOnly {
		end = got.LastStableOffset
	}
	return skipEmpty(got.RecordBatches, from, end), nil
}

// skipEmpty walks batches without records, as compaction leaves them, and
// markers.
func skipEmpty(b []byte, from, end int64) int64 {
	if len(b) == 0 {
		return max(from, end)
	}
	for len(b) >= batchHeader {
		size := int(binary.BigEndian.Uint32(b[batchLength:])) + batchLength + 4
		next := int64(binary.BigEndian.Uint64(b[batchBaseOffset:])) + int64(int32(binary.BigEndian.Uint32(b[batchLastOffsetDelta:]))) + 1
		control := binary.BigEndian.Uint16(b[batchAttributes:])&(1<<5) != 0
		if binary.BigEndian.Uint32(b[batchRecordCount:]) > 0 && !control {
			return from
		}
		from = max(from, next)
		if size > len(b) {
			break
		}
		b = b[size:]
	}
	return from
}
