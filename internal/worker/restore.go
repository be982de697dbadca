package worker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/state"
)

// RestoreProgress tells how far the restore of one store is.
type RestoreProgress struct {
	Task      topology.TaskID
	Store     string
	Records   int64 // replayed so far
	Bytes     int64
	Start     int64 // changelog positions: where the replay began, is, and ends
	Position  int64
	End       int64
	Rate      float64       // records per second since the start
	Remaining time.Duration // estimate; 0 when unknown or done
	Done      bool
}

// target is the replay of one changelog partition.
type target struct {
	store  task.StoreSpec
	tp     TopicPartition
	prefix []byte
	start  int64 // first offset that the changelog still has
	begin  int64 // where this replay began
	next   int64
	end    int64
	count  int64
	bytes  int64
	quiet  time.Time // since when nothing came
	ended  bool      // some transaction was committed in what was replayed
}

// restore is the replay of a task.
type restore struct {
	bulk    state.Bulk
	targets []target
	started time.Time
	report  time.Time
	pending int // bytes since the last checkpoint
	key     []byte
	val     []byte
}

// Bounds of a restore.
const (
	restorePoll       = 50_000 // records per poll
	restoreCheckpoint = 32 << 20
	restoreReport     = 2 * time.Second
	restoreQuiet      = 300 * time.Millisecond // without a record before the log is asked for its next one
	restoreQuantum    = 50 * time.Millisecond  // of replay between two polls of the group, however slow the store is
	restoreStride     = 16                     // records between two looks at the clock
)

// targets finds the changelogs of a task and where their replay has to end:
// at the stamped position (R4). Without a stamp that binds it is the end
// for a reader of this isolation: the high watermark under at least once, the
// last stable offset, read after a stable fetch of the group's offsets, when
// the offsets, or the store, are not in a stamp.
func (w *Worker) targets(r *runner, logs map[TopicPartition]Bounds) ([]target, error) {
	var list []target
	for _, s := range r.plan.Stores {
		if s.Changelog != "" {
			list = append(list, target{store: s, tp: TopicPartition{s.Changelog, r.spec.ID.Partition}, prefix: task.StorePrefix(s.Name)})
		}
	}
	for i := range list {
		t := &list[i]
		b, ok := logs[t.tp]
		if !ok {
			return nil, fmt.Errorf("the bounds of the changelog %s[%d] were not asked for", t.tp.Topic, t.tp.Partition)
		}
		t.start, t.end = b.Start, b.End
		if !w.cfg.ExactlyOnce {
			continue
		}
		at := slices.IndexFunc(r.stamp.Changelog, func(o stamp.Offset) bool { return o.Name == t.store.Name })
		if at < 0 {
			// Somebody else's changelog, or that of a store which was taken out
			// of the topology for a while: all that was committed counts. The
			// offsets are decided, but the marker of their transaction may not
			// have got to this log yet.
			if b.End < b.High {
				return nil, fmt.Errorf("changelog %s[%d]: %w", t.tp.Topic, t.tp.Partition, ErrUnstable)
			}
			continue
		}
		if t.end = r.stamp.Changelog[at].Next; t.end > b.High {
			return nil, fmt.Errorf("%w: the changelog %s[%d] ends at %d and the last commit wrote up to %d: the broker lost committed data, or the topic was created again",
				ErrLineage, t.tp.Topic, t.tp.Partition, b.High, t.end)
		}
	}
	return list, nil
}

// changelogBounds asks for the bounds of all changelogs of some tasks. The
// committed offsets have been fetched before, so what they cover is in them.
func (w *Worker) changelogBounds(ctx context.Context, runners []*runner) (map[TopicPartition]Bounds, error) {
	var tps []TopicPartition
	for _, r := range runners {
		for _, s := range r.plan.Stores {
			if s.Changelog != "" {
				tps = append(tps, TopicPartition{s.Changelog, r.spec.ID.Partition})
			}
		}
	}
	if len(tps) == 0 {
		return nil, nil
	}
	rd, err := w.restorer(ctx)
	if err != nil {
		return nil, err
	}
	bounds, err := rd.Bounds(ctx, tps)
	if err != nil {
		return nil, fmt.Errorf("ask for the bounds of the changelogs: %w", err)
	}
	return bounds, nil
}

func (w *Worker) restorer(ctx context.Context) (Reader, error) {
	if w.reader == nil {
		rd, err := w.cfg.Broker.Reader(ctx, w.cfg.ExactlyOnce)
		if err != nil {
			return nil, fmt.Errorf("client for restores: %w", err)
		}
		w.reader = rd
	}
	return w.reader, nil
}

func (w *Worker) startRestore(ctx context.Context, r *runner, targets []target) error {
	bulk, err := r.view.Bulk(ctx, r.token)
	if err != nil {
		return err
	}
	now := w.cfg.Clock.Now()
	re := &restore{bulk: bulk, targets: targets, started: now, report: now}
	add := map[TopicPartition]int64{}
	for i := range re.targets {
		t := &re.targets[i]
		t.begin, t.quiet = t.next, now
		if t.next < t.end {
			add[t.tp] = t.next
		}
		w.progressOf(r, t, now)
	}
	w.mu.Lock()
	r.restore, r.phase = re, restoring
	w.mu.Unlock()
	w.reader.Add(add)
	return nil
}

// restoreStep replays what a poll of the changelogs brings. The group's
// membership is kept meanwhile, since each round polls it as well.
func (w *Worker) restoreStep(ctx context.Context) error {
	byTP := map[TopicPartition]*runner{}
	active := false
	for _, r := range w.order {
		switch {
		case r.phase == restoring:
			for i := range r.restore.targets {
				byTP[r.restore.targets[i].tp] = r
			}
		case r.phase == running:
			active = true
		}
	}
	if len(byTP) == 0 {
		return nil
	}
	if len(w.unread) == 0 {
		wait := 20 * time.Millisecond
		if active {
			wait = time.Millisecond
		}
		fetched, err := w.reader.Poll(ctx, restorePoll, wait)
		if err != nil {
			return fmt.Errorf("read changelog: %w", err)
		}
		w.unread = append(w.unread, fetched...)
	}
	until := w.cfg.Clock.Now().Add(restoreQuantum)
	for len(w.unread) > 0 {
		f := &w.unread[0]
		if r := byTP[f.TopicPartition]; r != nil {
			if f.Err != nil {
				return fmt.Errorf("read changelog %s[%d]: %w", f.Topic, f.Partition, f.Err)
			}
			t := r.restore.target(f.TopicPartition)
			count, bytes := t.count, t.bytes
			if err := w.replay(r.restore, t, f, until); err != nil {
				return &runnerError{r, err}
			}
			w.cfg.Metrics.restored(r, t.store.Name, t.count-count, t.bytes-bytes, max(t.end-t.next, 0))
			if len(f.Records) > 0 {
				break
			}
		}
		w.unread = slices.Delete(w.unread, 0, 1)
	}
	now := w.cfg.Clock.Now()
	w.point(DuringRestore)
	for _, r := range slices.Clone(w.order) {
		if r.phase != restoring {
			continue
		}
		if err := w.settle(ctx, r, now); err != nil {
			return err
		}
	}
	return nil
}

func (re *restore) target(tp TopicPartition) *target {
	i := slices.IndexFunc(re.targets, func(t target) bool { return t.tp == tp })
	return &re.targets[i]
}

// replay puts records into the view, and takes those off f that it is done
// with: all of them, unless the time is over before. What lies beyond the end is
// not part of the last committed batch and is left out.
func (w *Worker) replay(re *restore, t *target, f *Fetched, until time.Time) error {
	now := w.cfg.Clock.Now()
	t.quiet = now
	for i := range f.Records {
		if i%restoreStride == restoreStride-1 {
			if now = w.cfg.Clock.Now(); now.After(until) {
				t.quiet, f.Records = now, f.Records[i:]
				return nil
			}
		}
		rec := &f.Records[i]
		if rec.Offset < t.next {
			continue
		}
		if rec.Offset >= t.end {
			t.next = t.end
			break
		}
		t.next = rec.Offset + 1
		if rec.Control {
			t.ended = t.ended || commits(rec.Key)
			continue
		}
		if rec.Key == nil {
			continue
		}
		t.count++
		n := len(rec.Key) + len(rec.Value)
		t.bytes += int64(n)
		re.pending += n
		re.key = append(append(re.key[:0], t.prefix...), rec.Key...)
		if rec.Value == nil {
			if err := re.bulk.Delete(re.key); err != nil {
				return err
			}
			continue
		}
		val := rec.Value
		if t.store.Timestamped {
			re.val = append(binary.BigEndian.AppendUint64(re.val[:0], uint64(max(rec.Timestamp, 0))), rec.Value...)
			val = re.val
		}
		if err := re.bulk.Put(re.key, val); err != nil {
			return err
		}
	}
	t.quiet, f.Records = now, nil
	return nil
}

// commits says whether a transaction marker with this key is that of a commit:
// version and type, 16 bits each (KIP-98).
func commits(key []byte) bool { return len(key) >= 4 && key[2] == 0 && key[3] == 1 }

// stopReading takes changelogs off the reader, and drops what it has brought of
// them: a later restore of theirs may begin before it.
func (w *Worker) stopReading(targets []target) {
	var tps []TopicPartition
	for i := range targets {
		tps = append(tps, targets[i].tp)
	}
	w.reader.Remove(tps)
	w.unread = slices.DeleteFunc(w.unread, func(f Fetched) bool { return slices.Contains(tps, f.TopicPartition) })
}

// settle checkpoints a restore and ends it when all positions are reached. It
// ends by position, never by counting: markers and compaction leave holes.
func (w *Worker) settle(ctx context.Context, r *runner, now time.Time) error {
	re := r.restore
	done := true
	for i := range re.targets {
		t := &re.targets[i]
		if t.next < t.end && len(w.unread) == 0 && now.Sub(t.quiet) >= restoreQuiet {
			next, err := w.reader.Skip(ctx, t.tp, t.next)
			if err != nil {
				return fmt.Errorf("look into changelog %s[%d]: %w", t.tp.Topic, t.tp.Partition, err)
			}
			t.next, t.quiet = min(max(next, t.next), t.end), now
		}
		done = done && t.next >= t.end
	}
	if done {
		return w.finish(ctx, r, now)
	}
	if re.pending >= restoreCheckpoint {
		if err := re.checkpoint(ctx, w, r); err != nil {
			return &runnerError{r, err}
		}
	}
	if now.Sub(re.report) >= restoreReport {
		re.report = now
		for i := range re.targets {
			w.progressOf(r, &re.targets[i], now)
		}
	}
	return nil
}

// checkpoint stores how far the replay is, together with the contents.
func (re *restore) checkpoint(ctx context.Context, w *Worker, r *runner) error {
	next := r.decoded
	next.Restoring, next.Changelog = true, nil
	for _, t := range re.targets {
		next.Changelog = append(next.Changelog, stamp.Offset{Name: t.store.Name, Next: t.next})
	}
	if err := re.bulk.Checkpoint(ctx, next.Encode()); err != nil {
		return fmt.Errorf("checkpoint the restore of task %s: %w", r.spec.ID, err)
	}
	r.decoded, r.token, re.pending = next, next.Encode(), 0
	return nil
}

// close ends a restore that is not finished; its progress stays.
func (re *restore) close(ctx context.Context, w *Worker, r *runner) {
	if re.pending > 0 && ctx.Err() == nil {
		if err := re.checkpoint(ctx, w, r); err != nil {
			w.log.Warn("progress of the restore is lost", "task", r.spec.ID.String(), "error", err)
		}
	}
	if err := re.bulk.Close(); err != nil {
		w.log.Warn("restore failed to close", "task", r.spec.ID.String(), "error", err)
	}
	w.stopReading(re.targets)
}

func (w *Worker) finish(ctx context.Context, r *runner, now time.Time) error {
	re := r.restore
	if r.blank && slices.ContainsFunc(re.targets, func(t target) bool { return t.count > 0 && t.ended }) {
		// A transaction that writes to a changelog commits offsets too. Without
		// transactions it may be the changelog of a program that is taken over.
		return w.unblank(ctx, r)
	}
	if age := time.Duration(now.UnixMilli()-r.decoded.Wall) * time.Millisecond; w.cfg.MaxViewAge > 0 && age >= 2*w.cfg.MaxViewAge {
		// Tombstones may have gone in front of the replay, and their keys are in
		// the view. The next claim finds it too old to go on with.
		w.log.Warn("the restore took longer than tombstones are kept; it begins anew. Raise delete.retention.ms of the changelogs if that happens again",
			"task", r.spec.ID.String(), "age", age)
		w.claimAgain(ctx, r, time.Time{})
		return nil
	}
	next := r.decoded
	next.Changelog = nil
	for _, t := range re.targets {
		next.Changelog = append(next.Changelog, stamp.Offset{Name: t.store.Name, Next: t.next})
	}
	for _, o := range next.Changelog {
		at := slices.IndexFunc(r.stamp.Changelog, func(have stamp.Offset) bool { return have.Name == o.Name })
		switch {
		case at < 0:
			r.stamp.Changelog = append(r.stamp.Changelog, o)
		case !w.cfg.ExactlyOnce:
			r.stamp.Changelog[at] = o
		}
	}
	w.inStep(r, &next)
	tok := next.Encode()
	if err := re.bulk.Checkpoint(ctx, tok); err != nil {
		return &runnerError{r, fmt.Errorf("finish the restore of task %s: %w", r.spec.ID, err)}
	}
	if err := re.bulk.Close(); err != nil {
		return &runnerError{r, fmt.Errorf("finish the restore of task %s: %w", r.spec.ID, err)}
	}
	var records int64
	for i := range re.targets {
		t := &re.targets[i]
		records += t.count
		w.progressOf(r, t, now)
	}
	w.stopReading(re.targets)
	w.mu.Lock()
	r.decoded, r.token, r.restore = next, tok, nil
	w.mu.Unlock()
	w.log.Info("task restored", "task", r.spec.ID.String(), "records", records, "took", now.Sub(re.started))
	defer w.changed()
	return w.start(ctx, r)
}

// claimAgain takes a task back to before its claim.
func (w *Worker) claimAgain(ctx context.Context, r *runner, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closeRunner(ctx, r)
	r.phase, r.retryAt = claiming, at
}

// unblank looks again for the offsets of a task that had none at its claim and
// has committed changelogs. Another owner may have begun the task since, while
// this instance stood still; then it is claimed again. Else they are gone.
func (w *Worker) unblank(ctx context.Context, r *runner) error {
	committed, err := w.member.Committed(ctx, r.partitions())
	switch {
	case errors.Is(err, ErrUnstable):
		w.claimAgain(ctx, r, w.cfg.Clock.Now().Add(claimRetry))
		return nil
	case err != nil:
		return fmt.Errorf("fetch committed offsets: %w", err)
	}
	for _, c := range committed {
		if c.Offset >= 0 {
			w.claimAgain(ctx, r, time.Time{})
			return nil
		}
	}
	return fmt.Errorf("%w: the changelogs of task %s hold state, and the group has no committed offsets: they expired or were deleted. Restore the group's offsets, or reset the application's state to start anew",
		ErrLineage, r.spec.ID)
}

// progressOf reports one store to listener, log and metrics.
func (w *Worker) progressOf(r *runner, t *target, now time.Time) {
	p := RestoreProgress{Task: r.spec.ID, Store: t.store.Name, Records: t.count, Bytes: t.bytes,
		Start: t.begin, Position: t.next, End: t.end, Done: t.next >= t.end}
	if r.restore != nil {
		if took := now.Sub(r.restore.started).Seconds(); took > 0 {
			p.Rate = float64(t.count) / took
			if done := t.next - t.begin; done > 0 && !p.Done {
				p.Remaining = time.Duration(took / float64(done) * float64(t.end-t.next) * float64(time.Second))
			}
		}
	}
	w.cfg.Metrics.restored(r, t.store.Name, 0, 0, max(t.end-t.next, 0))
	if t.end > t.begin {
		w.log.Info("restore", "task", r.spec.ID.String(), "store", t.store.Name, "position", t.next, "end", t.end,
			"records", t.count, "rate", int64(p.Rate), "remaining", p.Remaining.Round(time.Second))
	}
	if w.cfg.Restore != nil {
		w.cfg.Restore(p)
	}
}
