package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/internal/holes"
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

// Skip implements Reader.
func (r *reader) Skip(ctx context.Context, tp TopicPartition, from int64) (int64, error) {
	return holes.Skip(ctx, r.cl, tp.Topic, tp.Partition, from, r.committedOnly)
}
