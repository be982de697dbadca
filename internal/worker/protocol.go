package worker

import (
	"context"

	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/state"
)

// protocol is the order in which a worker makes outputs, state and positions
// agree. There are two: changelogFirst, and outboxFirst for a remote store under
// at least once. All of it runs on the worker's goroutine.
type protocol interface {
	// stateful says whether a task has a view.
	stateful(r *runner) bool
	// claim takes a task whose stored token was read.
	claim(ctx context.Context, r *runner, committed map[TopicPartition]Committed, bounds, logs map[TopicPartition]Bounds) error
	// room says whether another task may be claimed in this round. claimed ends the
	// claims of one round.
	room() bool
	claimed(ctx context.Context, list []*runner) error
	// emit takes what a step of a task has put out. The slice is the caller's.
	emit(ctx context.Context, r *runner, out []task.Output) error
	// ready says whether the task may go on. stepped is called when it did, and
	// says whether the batch of the task has ended there.
	ready(r *runner) bool
	stepped(ctx context.Context, r *runner) (bool, error)
	// alone ends the batch of a task, for a punctuation that has to be the first
	// of its batch. It says whether it could.
	alone(ctx context.Context, r *runner) (bool, error)
	// owes says that something is to be committed although no task is dirty.
	owes() bool
	// yields says that the group may go on although something is under way.
	yields() bool
	// commit makes everything that was processed final, abort takes it back.
	commit(ctx context.Context) error
	abort(ctx context.Context) error
	// watch looks now and then whether the store still is what a task that has
	// nothing to do believes.
	watch(ctx context.Context) error
	// anew is told that the client is gone with all that was under way.
	anew()
	// mends says that a view which is damaged can be rebuilt.
	mends() bool
	// purgeable is the offset below which a repartition topic is not needed.
	purgeable(r *runner, input int) int64
}

// UsesOutbox says whether workers with a store keep the outputs beside the state,
// instead of writing changelogs.
func UsesOutbox(store state.Backend, exactlyOnce bool) bool {
	_, ok := store.(state.Outbox)
	return ok && !exactlyOnce && isRemote(store)
}

// isRemote says whether a store is behind a network.
func isRemote(store state.Backend) bool {
	r, ok := store.(state.Remote)
	return ok && r.Remote()
}

// changelogFirst is the protocol of section C in docs/guarantees.md: changelog and
// outputs, then offsets with their stamp, in one transaction where there are any,
// then the view.
type changelogFirst struct{ w *Worker }

func (p changelogFirst) stateful(r *runner) bool { return len(r.plan.Stores) > 0 }

func (p changelogFirst) claim(ctx context.Context, r *runner, committed map[TopicPartition]Committed, bounds, logs map[TopicPartition]Bounds) error {
	return p.w.claimOne(ctx, r, committed, bounds, logs)
}

func (p changelogFirst) room() bool { return true }

func (p changelogFirst) claimed(context.Context, []*runner) error { return nil }

func (p changelogFirst) emit(ctx context.Context, _ *runner, out []task.Output) error {
	if err := p.w.begin(); err != nil {
		return err
	}
	p.w.member.Produce(ctx, out)
	p.w.cfg.Metrics.recordsOut(out)
	return nil
}

func (p changelogFirst) ready(*runner) bool                             { return true }
func (p changelogFirst) stepped(context.Context, *runner) (bool, error) { return false, nil }
func (p changelogFirst) alone(context.Context, *runner) (bool, error)   { return true, nil }
func (p changelogFirst) owes() bool                                     { return false }
func (p changelogFirst) anew()                                          {}
func (p changelogFirst) yields() bool                                   { return false }
func (p changelogFirst) watch(context.Context) error                    { return nil }
func (p changelogFirst) commit(ctx context.Context) error               { return p.w.commitBatch(ctx) }
func (p changelogFirst) mends() bool                                    { return true }

// abort drops the batch of all tasks (C6: one transaction covers them).
// Nothing left the process, so it costs only the work.
func (p changelogFirst) abort(ctx context.Context) error { return p.w.abortBatch(ctx) }

func (p changelogFirst) purgeable(r *runner, input int) int64 { return r.committed[input] }
