package worker

import (
	"context"
	"fmt"
	"time"
)

const (
	// watchInterval is the pause between two looks at inputs that are silent.
	// One that has records at two looks in a row, and yet brought none to so
	// many polls, is not fetched any more.
	watchInterval = 10 * time.Second
	watchPolls    = 50
)

// watch finds inputs that the client has stopped to fetch. A task that runs and
// gets no record is nobody's error: nothing fails, the lag only grows. It has
// been seen of a client that was assigned its partitions while their positions
// were set: all ran, and nothing came. An error has the client rebuilt.
func (w *Worker) watch(ctx context.Context) error {
	now := w.cfg.Clock.Now()
	if now.Before(w.watchAt) {
		return nil
	}
	w.watchAt = now.Add(watchInterval)
	if err := w.proto.watch(ctx); err != nil {
		return err
	}
	var tps []TopicPartition
	for _, r := range w.order {
		if r.phase != running {
			continue
		}
		for i, topic := range r.plan.Inputs {
			tp := TopicPartition{topic, r.spec.ID.Partition}
			n, _ := r.t.Buffered(i)
			if !r.present[i] || n > 0 || w.paused[tp] || w.silent-r.heard[i] < watchPolls {
				r.stalled[i] = -1
				continue
			}
			tps = append(tps, tp)
		}
	}
	if len(tps) == 0 {
		return nil
	}
	bounds, err := w.member.Bounds(ctx, tps)
	if err != nil {
		return fmt.Errorf("ask for end offsets: %w", err)
	}
	for _, tp := range tps {
		s := w.slots[tp]
		r := w.mu.tasks[s.task]
		b, ok := bounds[tp]
		if r == nil || !ok {
			continue
		}
		next := r.fetchNext[s.input]
		if b.End <= next {
			r.stalled[s.input] = -1
			continue
		}
		if r.stalled[s.input] != next {
			r.stalled[s.input] = next // the second look decides
			continue
		}
		record, err := w.nextRecord(ctx, r, s.input)
		if err != nil {
			return err
		}
		if record < b.End {
			return fmt.Errorf("%s[%d] has records from %d on, and the client does not fetch them", tp.Topic, tp.Partition, record)
		}
		r.fetchNext[s.input] = record // compacted away
	}
	return nil
}
