package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/task"
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

// troubleLimit is how long a worker rebuilds its client without one commit in
// between before it gives up.
const troubleLimit = 5 * time.Minute

// trouble is the error table. It returns nil when the worker can go on.
//
//	error                          what happens
//	---------------------------    ----------------------------------------------
//	end of the context             stop
//	view refused us (fenced)       abort the batch; ask the group; claim again
//	view corrupt                   alarm; abort; drop the view; rebuild it
//	store full, other store error  stop with the reason, nothing committed past it
//	user code, decoding            stop (the handler has had its say before)
//	fatal broker error             stop with the reason
//	producer fenced or expired,    drop all tasks, build a new client, claim again:
//	outcome unknown, anything else the stamps tell what was committed (rule 6)
func (w *Worker) trouble(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var re *runnerError
	if errors.As(err, &re) {
		return w.taskTrouble(ctx, re)
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

func (w *Worker) taskTrouble(ctx context.Context, re *runnerError) error {
	r := re.r
	fencedOut, corrupt := errors.Is(re.err, state.ErrFenced), errors.Is(re.err, state.ErrCorrupt)
	if !fencedOut && !corrupt {
		return re.err
	}
	if err := w.abort(ctx); err != nil && !errors.As(err, new(*runnerError)) {
		return w.rebuild(ctx, err)
	}
	w.cfg.Metrics.aborted(map[bool]string{true: "corrupt", false: "fenced"}[corrupt])
	if corrupt {
		w.log.Error("stored state is corrupt; it is dropped and rebuilt from the changelog", "task", r.spec.ID.String(), "error", re.err)
		if err := w.cfg.Store.Drop(ctx, w.viewID(r)); err != nil {
			return fmt.Errorf("drop the corrupt view of task %s: %w", r.spec.ID, err)
		}
	} else {
		w.log.Warn("the view refused this owner; asking the group", "task", r.spec.ID.String(), "error", re.err)
	}
	w.mu.Lock()
	w.closeRunner(ctx, r)
	r.phase, r.retryAt = fenced, time.Time{}
	w.mu.Unlock()
	return nil
}

// rebuild throws the client away with everything that depended on it.
func (w *Worker) rebuild(ctx context.Context, cause error) error {
	now := w.cfg.Clock.Now()
	if w.rebuilds == 0 {
		w.rebuildSince = now
	}
	w.rebuilds++
	if now.Sub(w.rebuildSince) > troubleLimit {
		return fmt.Errorf("%d clients in %v without a commit: %w", w.rebuilds, troubleLimit, cause)
	}
	back := min(50*time.Millisecond<<min(w.rebuilds-1, 10), maxRebuildGap)
	w.rebuildAt = now.Add(back)
	w.log.Warn("the client is rebuilt and all tasks are claimed again", "error", cause, "retry_in", back)
	w.cfg.Metrics.aborted("rebuild")
	w.inTxn, w.dirtyAt, w.progress, w.revoked = false, time.Time{}, false, false
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
	w.member.Seek(map[TopicPartition]int64{tp: next})
	return nil
}
