// Package holes finds the next record of a partition behind offsets that have
// none: those of transaction markers, and those that compaction removed.
package holes

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Layout of a record batch (KIP-98), up to what Skip needs.
const (
	batchBaseOffset      = 0
	batchLength          = 8
	batchAttributes      = 21
	batchLastOffsetDelta = 23
	batchRecordCount     = 57
	batchHeader          = 61
)

// Skip returns the offset from on behind which no record is missed: that of the
// first batch with records, or the end of the partition; from itself when it is
// not known now. It makes a fetch of its own, because the client does not tell
// how far it read where there was no record to return.
func Skip(ctx context.Context, cl *kgo.Client, topic string, partition int32, from int64, committedOnly bool) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	meta, err := kadm.NewClient(cl).ListTopics(ctx, topic)
	if err != nil {
		return from, err
	}
	d := meta[topic]
	part, ok := d.Partitions[partition]
	if d.Err != nil || !ok || part.Err != nil {
		return from, nil // the leader moves; the caller asks again
	}
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.SessionEpoch = 50, 1, 1<<20, -1
	if committedOnly {
		req.IsolationLevel = 1
	}
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = topic, [16]byte(d.ID)
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes = partition, from, 1<<20
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	raw, err := cl.Broker(int(part.Leader)).RetriableRequest(ctx, req)
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
	if committedOnly {
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
