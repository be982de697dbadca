package simkafka

import (
	"context"
	"time"

	"github.com/weirstreams/weir/internal/worker"
)

// Reader implements worker.Reader.
type Reader struct {
	client        *Client
	committedOnly bool
	tps           []worker.TopicPartition
	pos           map[worker.TopicPartition]int64
	turn          int
	fetched       fetches
	closed        bool
}

var _ worker.Reader = (*Reader)(nil)

func (r *Reader) request(op Op, tps []worker.TopicPartition, apply func() error) error {
	return r.client.request(Call{Op: op, Partitions: tps}, func() error {
		if r.closed {
			return errClosed
		}
		return apply()
	})
}

// Add implements worker.Reader.
func (r *Reader) Add(offsets map[worker.TopicPartition]int64) {
	r.client.local(ReadAdd)
	for tp, o := range offsets {
		if _, ok := r.pos[tp]; !ok {
			r.tps = append(r.tps, tp)
		}
		r.pos[tp] = o
	}
	sorted(r.tps)
	r.client.cluster.changed()
}

// Remove implements worker.Reader.
func (r *Reader) Remove(tps []worker.TopicPartition) {
	r.client.local(ReadRemove, tps...)
	for _, tp := range tps {
		delete(r.pos, tp)
	}
	r.tps = r.tps[:0]
	for tp := range r.pos {
		r.tps = append(r.tps, tp)
	}
	sorted(r.tps)
	r.client.cluster.changed()
}

// Poll implements worker.Reader. It does not wait.
func (r *Reader) Poll(ctx context.Context, limit int, _ time.Duration) ([]worker.Fetched, error) {
	err := r.request(ReadPoll, nil, func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		r.turn++
		r.client.cluster.fetch(r.tps, r.turn, r.pos, r.committedOnly, limit, &r.fetched)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r.fetched.list, nil
}

// Bounds implements worker.Reader.
func (r *Reader) Bounds(_ context.Context, tps []worker.TopicPartition) (map[worker.TopicPartition]worker.Bounds, error) {
	return r.client.bounds(ReadBounds, tps, r.committedOnly)
}

// Skip implements worker.Reader.
func (r *Reader) Skip(_ context.Context, tp worker.TopicPartition, from int64) (next int64, err error) {
	err = r.request(ReadSkip, []worker.TopicPartition{tp}, func() error {
		p, err := r.client.cluster.partition(tp)
		if err != nil {
			return err
		}
		next = p.skip(from, r.committedOnly)
		return nil
	})
	if err != nil {
		return from, err
	}
	return next, nil
}

// Close implements worker.Reader.
func (r *Reader) Close() {
	r.client.local(CloseReader)
	r.closed = true
}
