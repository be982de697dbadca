package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirstreams/weir/internal/task"
)

// millis is the wall time in ms.
func (w *Worker) millis() int64 { return w.cfg.Clock.Now().UnixMilli() }

// buffered is what waits in the queues of the tasks.
func (w *Worker) buffered() (records, bytes int) {
	for _, r := range w.order {
		if r.phase != running {
			continue
		}
		for i := range r.plan.Inputs {
			n, b := r.t.Buffered(i)
			records, bytes = records+n, bytes+b
		}
	}
	return records, bytes
}

// pollLimit is how many records the next poll may bring. Backpressure is not
// to poll for more: MaxBufferedRecords and MaxBufferedBytes bound what waits.
// Partitions are paused only when what waits cannot be processed, because an
// input that others wait for has nothing.
func (w *Worker) pollLimit() int {
	records, bytes := w.buffered()
	full := records >= w.cfg.MaxBufferedRecords || bytes >= w.cfg.MaxBufferedBytes
	if !full {
		if len(w.paused) > 0 && records < w.cfg.MaxBufferedRecords/2 && bytes < w.cfg.MaxBufferedBytes/2 {
			var tps []TopicPartition
			for tp := range w.paused {
				tps = append(tps, tp)
			}
			clear(w.paused)
			w.member.Resume(tps)
		}
		if len(w.paused) > 0 {
			return pollWhilePaused
		}
		return max(w.cfg.MaxBufferedRecords-records, 1)
	}
	if w.progress {
		return 1
	}
	var tps []TopicPartition
	for _, r := range w.order {
		if r.phase != running {
			continue
		}
		for i, topic := range r.plan.Inputs {
			tp := TopicPartition{topic, r.spec.ID.Partition}
			if n, _ := r.t.Buffered(i); n > 0 && !w.paused[tp] {
				w.paused[tp] = true
				tps = append(tps, tp)
			}
		}
	}
	if len(tps) > 0 {
		w.member.Pause(tps)
	}
	return pollWhilePaused
}

// pollWait is how long the next poll may wait: not at all while there is work,
// else until the next thing is due.
func (w *Worker) pollWait() time.Duration {
	due := w.Due()
	if due.IsZero() {
		return maxPollWait
	}
	return max(min(maxPollWait, due.Sub(w.cfg.Clock.Now())), 0)
}

// Due is when the worker has something to do that nobody gives to it: now, or
// earlier, while there is work at hand, else when a commit, an APPLY, a
// punctuation or another try is due; the zero time when there is nothing. It is
// for the one who ticks.
func (w *Worker) Due() time.Time {
	now := w.cfg.Clock.Now()
	if w.member == nil && w.rebuildAt.After(now) {
		return w.rebuildAt
	}
	if w.member == nil || w.progress || w.waiting.Load() || len(w.assigned) > 0 {
		return now
	}
	var due time.Time
	until := func(t time.Time) {
		if due.IsZero() || t.Before(due) {
			due = t
		}
	}
	if !w.dirtyAt.IsZero() {
		until(w.dirtyAt.Add(w.cfg.CommitInterval))
	}
	if w.lagging {
		until(w.lagAt)
	}
	held := w.holdUntil.After(now)
	if held {
		until(w.holdUntil)
	}
	for _, r := range w.order {
		switch r.phase {
		case restoring:
			return now
		case running:
			if ms := r.t.NextWallClock(); ms > 0 && !held {
				until(time.UnixMilli(ms))
			}
			if !r.unflushed.IsZero() {
				until(r.unflushed.Add(w.cfg.FlushInterval))
			}
		case resending: // what waits to be committed is due then
		default:
			until(r.retryAt)
		}
	}
	return due
}

// enqueue gives fetched records to their tasks.
func (w *Worker) enqueue(ctx context.Context, fetched []Fetched) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	brought := false
	defer func() {
		if !brought {
			w.silent++
		}
	}()
	for i := range fetched {
		f := &fetched[i]
		brought = brought || len(f.Records) > 0
		s, ok := w.slots[f.TopicPartition]
		if !ok {
			continue
		}
		r := w.mu.tasks[s.task]
		if r == nil || r.phase != running {
			if f.Err != nil && !errors.Is(f.Err, ErrOutOfRange) && (r != nil || slices.Contains(w.assigned, f.TopicPartition)) {
				// The client may have given the partition up: it does so when it
				// cannot fetch the committed offset as it joins, and a seek later
				// does not bring it back.
				return fmt.Errorf("fetch %s[%d]: %w", f.Topic, f.Partition, f.Err)
			}
			continue // paused; a late leftover of a fetch
		}
		if f.Err != nil {
			if errors.Is(f.Err, ErrOutOfRange) {
				if err := w.outOfRange(ctx, r, s.input); err != nil {
					return err
				}
				continue
			}
			return fmt.Errorf("fetch %s[%d]: %w", f.Topic, f.Partition, f.Err)
		}
		records := f.Records
		for len(records) > 0 && records[0].Offset < r.fetchNext[s.input] {
			records = records[1:] // a rewind of the client brought them again
		}
		if n := len(records); n > 0 {
			r.fetchNext[s.input], r.gapSince[s.input] = records[n-1].Offset+1, time.Time{}
			r.heard[s.input] = w.silent
			r.t.Add(s.input, records...)
			w.cfg.Metrics.recordsIn(f.TopicPartition, n)
		}
		if f.End >= 0 {
			lag := max(f.End-r.fetchNext[s.input], 0)
			r.t.SetLag(s.input, lag)
			w.cfg.Metrics.lag(f.TopicPartition, lag)
		}
	}
	return nil
}

// askLags finds the lag of inputs that others of their task wait for. A fetch
// that brings nothing tells the client's user nothing, so the broker is asked:
// at once where nothing is known, else from time to time.
func (w *Worker) askLags(ctx context.Context) error {
	now := w.cfg.Clock.Now()
	again := !now.Before(w.lagAt)
	var tps []TopicPartition
	var inputs []int
	for _, r := range w.order {
		if r.phase != running {
			continue
		}
		inputs = r.t.Waiting(inputs)
		for _, i := range inputs {
			if again || r.t.Lag(i) < 0 {
				tps = append(tps, TopicPartition{r.plan.Inputs[i], r.spec.ID.Partition})
			}
		}
	}
	if again {
		w.lagging = false
	}
	if len(tps) == 0 {
		return nil
	}
	bounds, err := w.member.Bounds(ctx, tps)
	if err != nil {
		return fmt.Errorf("ask for end offsets: %w", err)
	}
	if again {
		w.lagAt = now.Add(lagInterval)
	}
	for _, tp := range tps {
		b, ok := bounds[tp]
		if !ok {
			continue
		}
		s := w.slots[tp]
		r := w.mu.tasks[s.task]
		if r == nil || r.phase != running {
			continue
		}
		if b.End > r.fetchNext[s.input] {
			if err := w.passGap(ctx, r, s.input, now); err != nil {
				return err
			}
		}
		lag := max(b.End-r.fetchNext[s.input], 0)
		w.lagging = w.lagging || lag > 0
		r.t.SetLag(s.input, lag)
	}
	return nil
}

// passGap looks whether there is a record at all between the position of an
// input, of which nothing has come for a while, and its end. Where the last
// records of a log were compacted away none is, and the client says nothing of
// it.
func (w *Worker) passGap(ctx context.Context, r *runner, input int, now time.Time) error {
	if r.gapSince[input].IsZero() {
		r.gapSince[input] = now
	}
	if now.Sub(r.gapSince[input]) < restoreQuiet {
		return nil
	}
	next, err := w.nextRecord(ctx, r, input)
	if err != nil {
		return err
	}
	r.fetchNext[input], r.gapSince[input] = next, now
	return nil
}

// nextRecord asks the log of an input for the offset of the first record at its
// position or behind it, or its end.
func (w *Worker) nextRecord(ctx context.Context, r *runner, input int) (int64, error) {
	rd, err := w.restorer(ctx)
	if err != nil {
		return 0, err
	}
	tp := TopicPartition{r.plan.Inputs[input], r.spec.ID.Partition}
	next, err := rd.Skip(ctx, tp, r.fetchNext[input])
	if err != nil {
		return 0, fmt.Errorf("look into %s[%d]: %w", tp.Topic, tp.Partition, err)
	}
	return max(next, r.fetchNext[input]), nil
}

// process runs the tasks for a quantum of time, round robin.
func (w *Worker) process(ctx context.Context) error {
	w.progress = false
	if w.cfg.Clock.Now().Before(w.holdUntil) {
		return nil
	}
	if w.dirtyAt.IsZero() && w.proto.owes() {
		w.dirtyAt = w.cfg.Clock.Now()
	}
	if err := w.askLags(ctx); err != nil {
		return err
	}
	start := w.cfg.Clock.Now()
	for more := true; more; {
		more = false
		for _, r := range w.order {
			if r.phase != running || !w.proto.ready(r) {
				continue
			}
			before := w.cfg.Clock.Now()
			n, err := w.step(ctx, r, func() (task.Effects, error) { return r.t.Step(before.UnixMilli(), w.stepSize) })
			if err != nil {
				return err
			}
			ended, err := w.proto.stepped(ctx, r)
			if err != nil {
				return err
			}
			more = more || ended
			if n > 0 {
				more = true
				if err := w.pace(r, n, w.cfg.Clock.Now().Sub(before)); err != nil {
					return err
				}
			}
		}
		if more && (w.cfg.Clock.Now().Sub(start) >= quantum || w.waiting.Load() || w.commitDue()) {
			w.progress = true
			return nil
		}
	}
	return nil
}

// pace makes steps so long that they fit into the quantum, and refuses a
// record that takes so long that the group would lose its member over it.
func (w *Worker) pace(r *runner, n int, took time.Duration) error {
	switch {
	case took > quantum && n == 1 && took > w.cfg.MaxRecordTime:
		err := fmt.Errorf("task %s: one record took %v, more than MaxRecordTime (%v): the group takes the member for dead; make the processor faster or raise the limit",
			r.spec.ID, took.Round(time.Millisecond), w.cfg.MaxRecordTime)
		if again := fmt.Sprint(r.spec.ID, r.committed); w.slow != again {
			w.slow = again // the process may have been stopped meanwhile
			return err
		}
		return &FatalError{err}
	case took > quantum:
		w.stepSize = max(w.stepSize/4, 1)
	case took < quantum/4 && w.stepSize < maxStep:
		w.stepSize = min(w.stepSize*2, maxStep)
	}
	return nil
}

// step runs one step of a task and sends what came of it.
func (w *Worker) step(ctx context.Context, r *runner, f func() (task.Effects, error)) (int, error) {
	w.mu.Lock()
	e, err := f()
	dirty := r.t.Dirty()
	w.mu.Unlock()
	if err != nil {
		return 0, &runnerError{r, err}
	}
	w.batchRecords += e.Records
	if dirty && w.dirtyAt.IsZero() {
		w.dirtyAt = w.cfg.Clock.Now()
	}
	if len(e.Outputs) > 0 {
		if err := w.proto.emit(ctx, r, e.Outputs); err != nil {
			return 0, err
		}
	}
	if e.Records > 0 {
		w.point(AfterProcess)
	}
	return e.Records, nil
}

// punctuate runs the wall-clock punctuations that are due.
func (w *Worker) punctuate(ctx context.Context) error {
	now := w.millis()
	if w.cfg.Clock.Now().Before(w.holdUntil) {
		return nil
	}
	for _, r := range w.order {
		if r.phase != running {
			continue
		}
		if due := r.t.NextWallClock(); due == 0 || due > now {
			continue
		}
		if ok, err := w.proto.alone(ctx, r); err != nil {
			return err
		} else if !ok {
			continue
		}
		if _, err := w.step(ctx, r, func() (task.Effects, error) { return r.t.Punctuate(now) }); err != nil {
			return err
		}
	}
	return nil
}

// runnerError is an error of one task.
type runnerError struct {
	r   *runner
	err error
}

func (e *runnerError) Error() string { return e.err.Error() }
func (e *runnerError) Unwrap() error { return e.err }
