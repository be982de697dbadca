package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/state"
)

// FatalError is an error of the broker that no retry and no new client mends:
// a missing topic, a missing right, a record that the broker refuses.
type FatalError struct{ Err error }

func (e *FatalError) Error() string { return e.Err.Error() }
func (e *FatalError) Unwrap() error { return e.Err }

// ErrLineage marks the cases in which view and group contradict each other, so
// that a person has to decide.
var ErrLineage = errors.New("state and committed offsets do not belong together")

// troubleLimit is how long a worker rebuilds its client without success before it
// gives up. A success is a commit, or, where there is nothing to commit, that all
// tasks have run for calmTime.
const (
	troubleLimit = 5 * time.Minute
	calmTime     = 30 * time.Second
)

// calm ends a row of rebuilds when the client works and has nothing to commit.
func (w *Worker) calm() {
	if w.rebuilds > 0 && w.cfg.Clock.Now().Sub(w.rebuildAt) >= calmTime && w.Ready() {
		w.rebuilds = 0
	}
}

// trouble is the error table. It returns nil when the worker can go on.
//
//	error                          what happens
//	---------------------------    ----------------------------------------------
//	end of the context             stop
//	view refused us (fenced)       abort the batch; ask the group; claim again
//	view corrupt                   alarm; abort; drop the view; rebuild it
//	store unavailable              abort the batch; pause the task; claim again
//	                               with growing pauses; the member stays
//	store full, other store error  stop with the reason, nothing committed past it
//	user code, decoding            stop (the handler has had its say before)
//	fatal broker error             stop with the reason
//	producer fenced or expired,    drop all tasks, build a new client, claim again:
//	outcome unknown, anything else the stamps tell what was committed (C5)
func (w *Worker) trouble(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if list := failures(err); len(list) > 0 {
		return w.tasksTrouble(ctx, list, nil)
	}
	var fe *FatalError
	if errors.As(err, &fe) || errors.Is(err, ErrLineage) {
		return err
	}
	var te *task.Error
	if errors.As(err, &te) {
		return err
	}
	return w.rebuild(ctx, err)
}

// duplicateLimit is how long a worker waits for another member with its own
// process id to go: longer than a join of the group and a session with the
// defaults take.
const duplicateLimit = 2 * time.Minute

// refused is called when the group's leader does not admit this member. A
// member with the same process id and worker is as a rule this process before a
// crash: one that died while it joined stays in the group until the join is
// complete and a session has passed. So the worker asks again for a while; only
// one that stays is another process on a copied folder.
func (w *Worker) refused(ctx context.Context, e *assign.Error) error {
	if e.Code != assign.CodeDuplicate {
		return e
	}
	now := w.cfg.Clock.Now()
	if w.refusedSince.IsZero() {
		w.refusedSince = now
	}
	if now.Sub(w.refusedSince) > duplicateLimit {
		return e
	}
	return w.rebuild(ctx, e)
}

// failures are the errors of single tasks that err consists of; none if it is
// about something else.
func failures(err error) []*runnerError {
	switch e := err.(type) {
	case *runnerError:
		return []*runnerError{e}
	case interface{ Unwrap() []error }:
		var list []*runnerError
		for _, err := range e.Unwrap() {
			list = append(list, failures(err)...)
		}
		return list
	case interface{ Unwrap() error }:
		return failures(e.Unwrap())
	}
	return nil
}

// tasksTrouble handles the failures of several tasks, without that of done.
func (w *Worker) tasksTrouble(ctx context.Context, list []*runnerError, done *runner) error {
	for _, re := range list {
		if re.r == done {
			continue
		}
		if err := w.taskTrouble(ctx, re); err != nil || w.member == nil {
			return err
		}
	}
	return nil
}

// corruption counts how often the view of a task was found corrupt.
type corruption struct {
	since time.Time
	n     int
}

// A view may be rebuilt corruptLimit times within corruptSpan because it is
// corrupt. A disk that damages more than that is not mended by another rebuild.
const (
	corruptLimit = 3
	corruptSpan  = 10 * time.Minute
)

// corruptAgain says whether a corrupt view was rebuilt too often already.
func (w *Worker) corruptAgain(id topology.TaskID) bool {
	c := w.corrupted[id]
	return c.n >= corruptLimit && w.cfg.Clock.Now().Sub(c.since) <= corruptSpan
}

// corruptDropped counts a corrupt view that was dropped. One that could not be,
// because the store was away just then, is met again and counts once.
func (w *Worker) corruptDropped(id topology.TaskID) {
	now := w.cfg.Clock.Now()
	c := w.corrupted[id]
	if now.Sub(c.since) > corruptSpan {
		c = corruption{since: now}
	}
	c.n++
	w.corrupted[id] = c
}

func (w *Worker) taskTrouble(ctx context.Context, re *runnerError) error {
	r := re.r
	reason := ""
	switch {
	case errors.Is(re.err, state.ErrCorrupt):
		reason = "corrupt"
	case errors.Is(re.err, state.ErrFenced):
		reason = "fenced"
	case errors.Is(re.err, state.ErrUnavailable):
		reason = "unavailable"
	default:
		return re.err
	}
	if reason == "corrupt" && !w.proto.mends() {
		return fmt.Errorf("%w: the view of task %s is damaged, and nothing but the store has this state. Restore the store from its backup, or reset the application's state: %w",
			ErrLineage, r.spec.ID, re.err)
	}
	// The abort makes the operators of all tasks anew, in which others may fail.
	err := w.abort(ctx)
	others := failures(err)
	if err != nil && len(others) == 0 {
		return w.rebuild(ctx, err)
	}
	w.cfg.Metrics.aborted(reason)
	switch reason {
	case "corrupt":
		if w.corruptAgain(r.spec.ID) {
			err := fmt.Errorf("the view of task %s is corrupt again, after %d rebuilds within %v: check the disk: %w", r.spec.ID, corruptLimit, corruptSpan, re.err)
			if te := (*task.Error)(nil); errors.As(re.err, &te) {
				at := *te // that is what users see
				at.Err = err
				return &at
			}
			return err
		}
		w.log.Error("stored state is corrupt; it is dropped and rebuilt from the changelog", "task", r.spec.ID.String(), "error", re.err)
		if err := w.cfg.Store.Drop(ctx, w.viewID(r)); errors.Is(err, state.ErrUnavailable) {
			w.setAside(ctx, r, err) // the damage will be met again
			return w.tasksTrouble(ctx, others, r)
		} else if err != nil {
			return fmt.Errorf("drop the corrupt view of task %s: %w", r.spec.ID, err)
		}
		w.corruptDropped(r.spec.ID)
	case "fenced":
		w.log.Warn("the view refused this owner; asking the group", "task", r.spec.ID.String(), "error", re.err)
	case "unavailable":
		w.setAside(ctx, r, re.err)
		return w.tasksTrouble(ctx, others, r)
	}
	w.mu.Lock()
	w.closeRunner(ctx, r)
	r.phase, r.retryAt = fenced, time.Time{}
	w.mu.Unlock()
	return w.tasksTrouble(ctx, others, r)
}

// Pauses between two tries at a store that is unavailable.
const (
	awayFirst = 100 * time.Millisecond
	awayMax   = time.Second
)

// setAside takes a task whose store is unavailable off its work until a claim
// succeeds: its partitions are paused and its writes are dropped; those that
// are committed are in the changelog. What became of a call that failed shows
// in the token then. The group goes on, and so do tasks without stores. The
// batch that the task was part of has been aborted.
func (w *Worker) setAside(ctx context.Context, r *runner, cause error) {
	back := min(awayFirst<<min(r.away, 10), awayMax)
	if r.away++; r.away == 1 {
		w.log.Warn("the store is unavailable; the task pauses and tries again", "task", r.spec.ID.String(), "error", cause)
	} else {
		w.log.Debug("the store is still unavailable", "task", r.spec.ID.String(), "error", cause, "retry_in", back)
	}
	// Closing must not wait for the store once more.
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	tps := r.partitions()
	w.mu.Lock()
	w.closeRunner(ctx, r)
	if r.phase != fenced {
		r.phase = claiming
	}
	r.unflushed, r.retryAt = time.Time{}, w.cfg.Clock.Now().Add(back)
	for _, tp := range tps {
		delete(w.paused, tp)
	}
	w.mu.Unlock()
	w.member.Pause(tps)
	w.changed()
}

// rebuild throws the client away with everything that depended on it.
func (w *Worker) rebuild(ctx context.Context, cause error) error {
	now := w.cfg.Clock.Now()
	if w.rebuilds == 0 {
		w.rebuildSince = now
	}
	w.rebuilds++
	if now.Sub(w.rebuildSince) > troubleLimit {
		return fmt.Errorf("%d clients in %v without success: %w", w.rebuilds, troubleLimit, cause)
	}
	back := min(50*time.Millisecond<<min(w.rebuilds-1, 10), maxRebuildGap)
	w.rebuildAt = now.Add(back)
	w.log.Warn("the client is rebuilt and all tasks are claimed again", "error", cause, "retry_in", back)
	w.cfg.Metrics.aborted("rebuild")
	w.inTxn, w.dirtyAt, w.progress, w.revoked = false, time.Time{}, false, false
	w.proto.anew()
	w.joined.Store(false)
	w.dropAll(false)
	if m := w.member; m != nil {
		w.member = nil
		m.AllowRebalance()
		m.Close(ctx)
	}
	return nil
}

// outOfRange follows the reset policy for a position that the log does not
// have any more: records are gone, which is an alarm in any case.
func (w *Worker) outOfRange(ctx context.Context, r *runner, input int) error {
	topic := r.plan.Inputs[input]
	tp := TopicPartition{topic, r.spec.ID.Partition}
	bounds, err := w.member.Bounds(ctx, []TopicPartition{tp})
	if err != nil {
		return fmt.Errorf("ask for the bounds of %s[%d]: %w", tp.Topic, tp.Partition, err)
	}
	next, err := w.resetTo(tp, r.fetchNext[input], bounds[tp])
	if err != nil {
		return err
	}
	r.fetchNext[input] = next
	r.t.Skip(input, next) // the policy is applied once
	w.member.Seek(map[TopicPartition]int64{tp: next})
	return nil
}
