package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/task"
)

// begin starts the transaction of the batch, if it has not begun.
func (w *Worker) begin() error {
	if w.inTxn {
		return nil
	}
	if err := w.member.Begin(); err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	w.inTxn = true
	return nil
}

// commitDue says that the batch has to end: by time, by size, or because the
// group waits for a rebalance.
func (w *Worker) commitDue() bool {
	if w.dirtyAt.IsZero() {
		return false
	}
	if w.waiting.Load() || w.cfg.Clock.Now().Sub(w.dirtyAt) >= w.cfg.CommitInterval {
		return true
	}
	// The shares of the tasks have a least size, so that many of them may be
	// more than the whole.
	total := 0
	for _, r := range w.order {
		if r.phase != running {
			continue
		}
		if r.t.Full() {
			return true
		}
		total += r.t.BatchBytes()
	}
	return total >= w.cfg.MaxBatchBytes
}

// abortPause is how long a worker whose commit the group has refused waits for an
// assignment before it tries again. Until it is told its place the next commit
// would be refused as well, and under at least once each try repeats its outputs.
const abortPause = 200 * time.Millisecond

// sealed is a task that takes part in a commit.
type sealed struct {
	r         *runner
	ends      []int64
	positions []task.Position
}

// commit makes what was processed final.
func (w *Worker) commit(ctx context.Context) error { return w.proto.commit(ctx) }

// abort takes the batches of all tasks back.
func (w *Worker) abort(ctx context.Context) error { return w.proto.abort(ctx) }

// commitBatch ends the batch of all tasks in one transaction: changelog deltas,
// flush, offsets with stamps, end. Only then are the writes part of the
// committed state (design: changelog first). It does nothing when there is
// nothing to commit.
func (w *Worker) commitBatch(ctx context.Context) error {
	started := w.cfg.Clock.Now()
	var batch []sealed
	for _, r := range w.order {
		if r.phase == running && r.t.Dirty() {
			batch = append(batch, sealed{r: r})
		}
	}
	w.dirtyAt = time.Time{}
	if len(batch) == 0 {
		if w.inTxn {
			return w.abortBatch(ctx)
		}
		return nil
	}
	if err := w.begin(); err != nil {
		return err
	}
	produce := func(out []task.Output) { w.member.Produce(ctx, out) }
	for i := range batch {
		batch[i].r.t.Seal(w.cfg.Nonce(), produce)
	}
	if err := w.member.Flush(ctx); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	w.point(AfterFlush)
	var offsets []OffsetCommit
	for i := range batch {
		s := &batch[i]
		for _, spec := range s.r.plan.Stores {
			end := int64(-1)
			if spec.Changelog != "" {
				end = w.member.Produced(TopicPartition{spec.Changelog, s.r.spec.ID.Partition})
			}
			s.ends = append(s.ends, end)
		}
		s.positions = s.r.t.Positions(nil)
		metadata := s.r.t.Stamp(s.ends, w.fact).Encode()
		for _, p := range s.positions {
			offsets = append(offsets, OffsetCommit{TopicPartition{s.r.plan.Inputs[p.Input], s.r.spec.ID.Partition}, p.Next, p.LeaderEpoch, metadata})
		}
	}
	w.point(BeforeCommit)
	asked := w.millis()
	outcome, err := w.member.Commit(ctx, offsets)
	switch {
	case outcome == Done:
	case outcome == Aborted:
		w.log.Info("transaction aborted by a rebalance; the batch will be processed again", "error", err)
		w.cfg.Metrics.aborted("rebalance")
		w.inTxn = false
		w.holdUntil = w.cfg.Clock.Now().Add(abortPause)
		return w.rewind()
	default:
		if err == nil {
			err = errors.New("the broker did not say whether it committed")
		}
		return fmt.Errorf("commit: outcome unknown: %w", err)
	}
	w.inTxn = false
	w.point(AfterCommit)
	now := w.cfg.Clock.Now()
	forced := false
	w.mu.Lock()
	for _, s := range batch {
		forced = forced || s.r.force
		s.r.force, s.r.asOf = false, asked
		s.r.t.Committed(s.ends)
		s.r.seq, s.r.nonce = s.r.t.Seq()
		for _, p := range s.positions {
			s.r.committed[p.Input] = p.Next
		}
		if s.r.view != nil && s.r.unflushed.IsZero() {
			s.r.unflushed = now
		}
	}
	w.mu.Unlock()
	if forced {
		w.changed()
	}
	w.rebuilds = 0
	w.cfg.Metrics.committed(w.batchRecords, now.Sub(started))
	w.cfg.Metrics.tasks(w.order)
	w.log.Debug("committed", "tasks", len(batch), "records", w.batchRecords, "took", now.Sub(started))
	w.batchRecords = 0
	return nil
}

// fact completes a stamp with what is known of an input topic.
func (w *Worker) fact(topic string) stamp.Input {
	f := w.facts[topic]
	return stamp.Input{ID: f.ID, Partitions: f.Partitions}
}

// abortBatch aborts the transaction of all tasks.
func (w *Worker) abortBatch(ctx context.Context) error {
	if w.inTxn {
		w.inTxn = false
		if err := w.member.Abort(ctx); err != nil {
			return fmt.Errorf("abort: %w", err)
		}
	}
	return w.rewind()
}

// rewind takes all running tasks back to their last commit. The error consists
// of those of single tasks.
func (w *Worker) rewind() error {
	w.dirtyAt, w.batchRecords, w.progress = time.Time{}, 0, false
	seek := map[TopicPartition]int64{}
	var failed []error
	w.mu.Lock()
	for _, r := range w.order {
		if r.phase != running {
			continue
		}
		if err := r.t.Abort(); err != nil {
			failed = append(failed, &runnerError{r, err})
		}
		for i, topic := range r.plan.Inputs {
			if r.present[i] {
				r.fetchNext[i] = r.committed[i]
				seek[TopicPartition{topic, r.spec.ID.Partition}] = r.committed[i]
			}
		}
	}
	w.mu.Unlock()
	if len(seek) > 0 {
		w.member.Seek(seek)
	}
	return errors.Join(failed...)
}

// emptyAbort takes the abort that the client has in store after a revocation,
// and puts its fetch positions back to where they were.
func (w *Worker) emptyAbort(ctx context.Context) error {
	if !w.cfg.ExactlyOnce {
		return nil
	}
	if err := w.member.Begin(); err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	if err := w.member.Abort(ctx); err != nil {
		return fmt.Errorf("abort: %w", err)
	}
	seek := map[TopicPartition]int64{}
	for _, r := range w.order {
		if r.phase != running {
			continue
		}
		for i, topic := range r.plan.Inputs {
			if r.present[i] {
				seek[TopicPartition{topic, r.spec.ID.Partition}] = r.fetchNext[i]
			}
		}
	}
	if len(seek) > 0 {
		w.member.Seek(seek)
	}
	return nil
}

// applyDue brings views up to date that have waited for FlushInterval, or all
// of them when their bytes reach MaxUnflushedBytes. No batch may be open.
func (w *Worker) applyDue(ctx context.Context, all bool) error {
	if !w.dirtyAt.IsZero() {
		return nil
	}
	total := 0
	for _, r := range w.order {
		if r.phase == running {
			total += r.t.Unflushed()
		}
	}
	all = all || total >= w.cfg.MaxUnflushedBytes
	now := w.cfg.Clock.Now()
	for _, r := range w.order {
		if r.phase != running || r.unflushed.IsZero() || !all && now.Sub(r.unflushed) < w.cfg.FlushInterval {
			continue
		}
		w.mu.Lock()
		err := w.apply(ctx, r)
		w.mu.Unlock()
		if err != nil {
			return &runnerError{r, err}
		}
	}
	return nil
}

// apply carries out the APPLY of everything committed that the view lacks.
func (w *Worker) apply(ctx context.Context, r *runner) error {
	r.unflushed = time.Time{}
	if r.view == nil || !r.t.Behind() {
		return nil
	}
	w.point(BeforeApply)
	old, new, b := r.t.Flush(r.asOf)
	if err := r.view.Apply(ctx, old, new, b); err != nil {
		return fmt.Errorf("apply batch %d to the view of task %s: %w", r.seq, r.spec.ID, err)
	}
	r.t.Flushed(new)
	w.point(AfterApply)
	return nil
}

// purge deletes processed records of repartition topics: nobody else reads
// them, and they are kept for ever otherwise.
func (w *Worker) purge(ctx context.Context) {
	w.purgeAt = w.cfg.Clock.Now().Add(w.cfg.PurgeInterval)
	below := map[TopicPartition]int64{}
	for _, r := range w.order {
		if r.phase != running {
			continue
		}
		for i, topic := range r.plan.Inputs {
			if !w.cfg.Sources[topic].Repartition || !r.present[i] {
				continue
			}
			if at := w.proto.purgeable(r, i); at > 0 {
				below[TopicPartition{topic, r.spec.ID.Partition}] = at
			}
		}
	}
	if len(below) == 0 {
		return
	}
	if err := w.member.DeleteRecords(ctx, below); err != nil {
		w.log.Warn("processed repartition records could not be deleted; they will be with the next try", "error", err)
	}
}
