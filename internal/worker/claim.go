package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/state"
)

func (w *Worker) viewID(r *runner) state.ID {
	return state.ID{Application: w.cfg.Application, Task: r.spec.ID.String()}
}

// claimRetry is the pause between two tries at a claim that another owner or
// a locked folder stood in the way of.
const claimRetry = 200 * time.Millisecond

// claimLimit is how many tries in a row a claim gets.
const claimLimit = 50

// claim takes the tasks that the group assigned and those whose view refused
// us: read the token; fetch the committed offsets, stable; compare; write the
// token back with a higher epoch; then run, or restore first.
//
// The token comes before the offsets. A view holds only what was committed, so
// a token that was read first is never ahead of the stamp, however long this
// instance is held up in between while another owner commits and applies: that
// would look as if committed offsets had been lost. That the token has changed
// since is found out when it is written back.
func (w *Worker) claim(ctx context.Context) error {
	now := w.cfg.Clock.Now()
	for _, tp := range w.assigned {
		s, ok := w.slots[tp]
		if !ok || w.mu.tasks[s.task] != nil {
			continue
		}
		spec := w.specs[s.task]
		plan := w.cfg.Plans[spec.ID.Subtopology]
		r := &runner{spec: spec, plan: plan, present: make([]bool, len(plan.Inputs))}
		for _, p := range spec.Partitions {
			r.present[slices.Index(plan.Inputs, p.Topic)] = true
		}
		w.insert(r)
	}
	w.assigned = nil
	if w.fresh {
		w.fresh = false
		w.holdUntil = time.Time{}
		w.joined.Store(true)
		w.settled.Store(!w.followUp)
		w.cfg.Metrics.rebalanced()
		defer w.changed()
	}
	var due []*runner
	var tps []TopicPartition
	member := false
	for _, r := range w.order {
		if r.phase != claiming && r.phase != fenced || now.Before(r.retryAt) {
			continue
		}
		if r.phase == fenced && !member {
			// Only the group says who owns a task. A zombie learns it here.
			if err := w.member.Confirm(ctx); errors.Is(err, ErrNotMember) {
				w.log.Warn("no longer a member of the group; waiting to be assigned anew")
				r.retryAt = now.Add(claimRetry)
				continue
			} else if err != nil {
				return fmt.Errorf("confirm membership: %w", err)
			}
			member = true
		}
		due = append(due, r)
	}
	if len(due) == 0 {
		return nil
	}
	defer w.changed()
	due, err := w.readTokens(ctx, due)
	if err != nil || len(due) == 0 {
		return err
	}
	for _, r := range due {
		tps = append(tps, r.partitions()...)
	}
	if err := w.sameTopics(ctx, tps); err != nil {
		return err
	}
	asked := w.millis()
	committed, err := w.member.Committed(ctx, tps)
	if errors.Is(err, ErrUnstable) {
		for _, r := range due {
			r.retryAt = now.Add(claimRetry)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("fetch committed offsets: %w", err)
	}
	bounds, err := w.member.Bounds(ctx, tps)
	if err != nil {
		return fmt.Errorf("ask for the bounds of the inputs: %w", err)
	}
	// All at once: one question for a thousand tasks, not a thousand.
	logs, err := w.changelogBounds(ctx, due)
	if err != nil {
		return err
	}
	var claimed []*runner
	for _, r := range due {
		if !w.proto.room() {
			r.retryAt = now.Add(claimRetry)
			continue
		}
		r.asOf = asked
		if err := w.proto.claim(ctx, r, committed, bounds, logs); err != nil {
			if err := w.claimFailed(ctx, r, err); err != nil {
				return err
			}
			continue
		}
		if r.away > 0 {
			w.log.Info("the store is available again", "task", r.spec.ID.String(), "tries", r.away)
		}
		r.claims, r.away = 0, 0
		w.point(AfterClaim)
		claimed = append(claimed, r)
	}
	return w.proto.claimed(ctx, claimed)
}

// readTokens reads the tokens of the views of tasks, and returns those tasks of
// which it got it, or which have none.
func (w *Worker) readTokens(ctx context.Context, runners []*runner) ([]*runner, error) {
	var found []*runner
	for _, r := range runners {
		r.stored = ""
		if w.proto.stateful(r) {
			var err error
			if r.stored, err = w.cfg.Store.Token(ctx, w.viewID(r)); err != nil {
				if err := w.claimFailed(ctx, r, err); err != nil {
					return nil, err
				}
				continue
			}
		}
		found = append(found, r)
	}
	return found, nil
}

// claimFailed decides about a claim that has failed: it is tried again, unless
// an error is returned.
func (w *Worker) claimFailed(ctx context.Context, r *runner, err error) error {
	again := w.cfg.Clock.Now().Add(claimRetry)
	switch {
	case errors.Is(err, ErrUnstable):
		w.log.Info("a transaction that is not decided holds a task up", "task", r.spec.ID.String(), "error", err)
		r.retryAt = again
	case errors.Is(err, state.ErrUnavailable):
		w.setAside(ctx, r, err)
	case errors.Is(err, state.ErrCorrupt):
		return &runnerError{r, fmt.Errorf("claim task %s: %w", r.spec.ID, err)}
	case errors.Is(err, state.ErrFenced), errors.Is(err, state.ErrLocked):
		if r.claims++; r.claims >= claimLimit {
			return fmt.Errorf("claim of task %s refused %d times: %w", r.spec.ID, r.claims, err)
		}
		w.log.Warn("claim refused; trying again", "task", r.spec.ID.String(), "error", err)
		w.mu.Lock()
		w.closeRunner(ctx, r) // it may have been refused only as it began
		r.phase, r.retryAt = fenced, again
		w.mu.Unlock()
	default:
		return fmt.Errorf("claim task %s: %w", r.spec.ID, err)
	}
	return nil
}

// sameTopics refuses topics that are not those which the client was built for:
// its positions, and the ids in its stamps, are of the topics that it found then.
func (w *Worker) sameTopics(ctx context.Context, tps []TopicPartition) error {
	var topics []string
	for _, tp := range tps {
		if !slices.Contains(topics, tp.Topic) {
			topics = append(topics, tp.Topic)
		}
	}
	facts, err := w.member.TopicFacts(ctx, topics)
	if err != nil {
		return fmt.Errorf("describe topics: %w", err)
	}
	for _, t := range topics {
		if now, was := facts[t], w.facts[t]; now.ID != was.ID && now.ID != [16]byte{} && was.ID != [16]byte{} {
			return fmt.Errorf("%w: topic %s was deleted and created again while the application was running: its offsets mean other records now. Reset the application's state to start anew",
				ErrLineage, t)
		}
	}
	return nil
}

func (w *Worker) claimOne(ctx context.Context, r *runner, committed map[TopicPartition]Committed, bounds, logs map[TopicPartition]Bounds) error {
	last, theirs, any, err := w.lastStamp(r, committed)
	if err != nil {
		return err
	}
	if err := w.positions(r, committed, bounds, last); err != nil {
		return err
	}
	if len(r.plan.Stores) == 0 {
		if last != nil {
			r.stamp = *last
		} else {
			r.stamp = takenOver(w.cfg.Lineage(), theirs)
		}
		r.seq, r.nonce = r.stamp.Seq, r.stamp.Nonce
		w.cfg.Metrics.claimed("stateless")
		return w.start(ctx, r)
	}
	id, raw := w.viewID(r), r.stored
	var token *stamp.Token
	if raw != "" {
		t, err := stamp.DecodeToken(raw)
		switch {
		case err == nil:
			token = &t
		case errors.Is(err, stamp.ErrNewer):
			return &FatalError{err}
		default:
			w.log.Error("the token of the view is damaged; the view is dropped and rebuilt from the changelog", "task", r.spec.ID.String(), "error", err)
			if err := w.cfg.Store.Drop(ctx, id); err != nil {
				return err
			}
			raw = ""
		}
	}
	epoch := epochOf(token) + 1
	if token != nil && r.foreign(token) {
		if token.Outbox { // nothing but the store has this state
			return contradiction(stamp.OtherProtocol, r, token, last)
		}
		w.log.Warn("the view belongs to a subtopology that had this number in an earlier program; it is rebuilt", "task", r.spec.ID.String())
		token = nil
	}
	verdict := stamp.Decide(token, last)
	switch {
	case verdict == stamp.NoStamp && any:
		verdict = stamp.ForeignLineage
	case verdict == stamp.Ahead && !w.cfg.ExactlyOnce && token.Restoring && token.Seq <= last.Seq:
		// A replay does not end at the stamp here (R4), so one that was
		// interrupted may have come past it.
		verdict = stamp.Partial
	case verdict == stamp.ForeignLineage && token.Seq == 0:
		// A first claim that was interrupted before its first commit; another
		// instance has begun the task since. The view holds no batch.
		verdict = stamp.NoView
	}
	w.cfg.Metrics.claimed(verdict.String())
	w.log.Info("task claimed", "task", r.spec.ID.String(), "verdict", verdict.String(), "epoch", epoch)
	next := stamp.Token{Epoch: epoch, Wall: r.asOf}
	tail := false // the view has a part that a replay brings up to date
	switch verdict {
	case stamp.FirstClaim:
		next.Lineage = w.cfg.Lineage()
		if token != nil {
			next.Lineage = token.Lineage
		}
		first := takenOver(next.Lineage, theirs)
		last = &first
		r.force = true
	case stamp.InStep, stamp.Behind, stamp.Partial:
		next.Lineage, next.Seq, next.Nonce = last.Lineage, token.Seq, token.Nonce
		next.Changelog, next.Restoring = token.Changelog, token.Restoring
		// A claim does not make the contents younger (R7): as long as the replay
		// goes on, tombstones in front of it are lost at their time.
		next.Wall = token.Wall
		tail = true
	case stamp.NoView:
		next.Lineage = last.Lineage
	default:
		return contradiction(verdict, r, token, last)
	}
	r.stamp, r.seq, r.nonce = *last, last.Seq, last.Nonce
	r.blank = w.cfg.ExactlyOnce && !any
	targets, err := w.targets(r, logs)
	if err != nil {
		return err
	}
	if tail && verdict != stamp.InStep && len(targets) > 0 && w.millis()-token.Wall >= w.cfg.MaxViewAge.Milliseconds() {
		w.log.Warn("the view is older than tombstones are kept; it is rebuilt", "task", r.spec.ID.String(),
			"age", time.Duration(w.millis()-token.Wall)*time.Millisecond)
		tail = false
	}
	from := map[string]int64{}
	if tail {
		for _, o := range token.Changelog {
			from[o.Name] = o.Next
		}
		for _, t := range targets {
			if token.Restoring && from[t.store.Name] > t.end {
				return contradiction(stamp.Ahead, r, token, last) // the log has lost its end
			}
			if f, ok := from[t.store.Name]; !ok && (t.end > t.start || token.Restoring) || f < t.start && f < t.end {
				w.log.Warn("the changelog does not reach back to the view; it is rebuilt", "task", r.spec.ID.String(), "store", t.store.Name,
					"position", from[t.store.Name], "start", t.start)
				tail = false
			}
		}
	}
	need := false
	for i := range targets {
		t := &targets[i]
		t.next = t.start
		if tail {
			t.next = max(from[t.store.Name], 0)
		}
		need = need || t.next < t.end
	}
	if !tail {
		next.Changelog, next.Wall = nil, r.asOf
		for _, t := range targets {
			next.Changelog = append(next.Changelog, stamp.Offset{Name: t.store.Name, Next: t.start})
		}
	}
	next.Restoring = need
	if !need {
		w.inStep(r, &next)
	}
	clearing := raw != "" && !tail
	claimed := next
	if clearing {
		// Until it is cleared the view has contents that belong to no position.
		// Whoever finds it like that has to clear it too.
		claimed.Restoring, claimed.Changelog = true, nil
		next.Epoch++
	}
	r.decoded, r.token = next, next.Encode()
	tok := claimed.Encode()
	if r.view, err = w.cfg.Store.Claim(ctx, id, raw, tok); err != nil {
		return err
	}
	if clearing {
		if err := r.view.Clear(ctx, tok, r.token); err != nil {
			return err
		}
	}
	if !need {
		return w.start(ctx, r)
	}
	return w.startRestore(ctx, r, targets)
}

func epochOf(t *stamp.Token) uint64 {
	if t == nil {
		return 0
	}
	return t.Epoch
}

// foreign says that a view with this token was another subtopology's, which had
// the task's number: the numbers change with the program. Topics and stores
// belong to one subtopology, so one of them in common is enough.
func (r *runner) foreign(t *stamp.Token) bool {
	if len(t.Inputs) > 0 {
		return !slices.ContainsFunc(t.Inputs, func(o stamp.Offset) bool { return slices.Contains(r.plan.Inputs, o.Name) })
	}
	return len(t.Changelog) > 0 && !slices.ContainsFunc(t.Changelog, func(o stamp.Offset) bool {
		return slices.ContainsFunc(r.plan.Stores, func(s task.StoreSpec) bool { return s.Name == o.Name })
	})
}

// inStep makes a token say that the view holds the batch of the stamp.
func (w *Worker) inStep(r *runner, t *stamp.Token) {
	t.Seq, t.Nonce, t.Restoring, t.Times, t.Wall = r.stamp.Seq, r.stamp.Nonce, false, r.stamp.Times, r.asOf
	if len(r.stamp.Changelog) > 0 {
		t.Changelog = r.stamp.Changelog
	}
	t.Inputs = nil
	for i, topic := range r.plan.Inputs {
		if r.present[i] {
			t.Inputs = append(t.Inputs, stamp.Offset{Name: topic, Next: r.committed[i]})
		}
	}
}

// contradiction is the error of the verdicts that only a person can resolve.
func contradiction(v stamp.Verdict, r *runner, token *stamp.Token, last *stamp.Stamp) error {
	what := ""
	switch v {
	case stamp.NoStamp:
		return fmt.Errorf("%w: the store holds batch %d of task %s (lineage %s), and the group has no committed offsets: they expired or were deleted. Restore the group's offsets, or reset the application's state to start anew",
			ErrLineage, token.Seq, r.spec.ID, token.Lineage)
	case stamp.Ahead:
		what = "the committed offsets were set back, or the broker lost committed data"
	case stamp.ForeignLineage:
		what = "the offsets were changed by another tool, or the store belongs to another life of the application"
	case stamp.OtherBatch:
		what = "two writers have committed for this task"
	case stamp.OtherProtocol:
		return fmt.Errorf("%w: the state of task %s is, or was, kept together with its outputs and without a changelog (at least once on a remote store): there is nothing to rebuild it from under this guarantee. Go back to that one, or reset the application's state",
			ErrLineage, r.spec.ID)
	}
	at := "no stamp"
	if last != nil {
		at = fmt.Sprintf("batch %d of lineage %s", last.Seq, last.Lineage)
	}
	return fmt.Errorf("%w: the store holds batch %d of lineage %s, the group is at %s (%s): %s. Nothing was changed. Restore the offsets, or reset the application's state to rebuild it",
		ErrLineage, token.Seq, token.Lineage, at, v, what)
}

// lastStamp returns the newest stamp of a task's inputs, nil when there is
// none. any says that some input has a committed offset, stamped or not; theirs
// is what Kafka Streams says of the inputs that it has committed.
func (w *Worker) lastStamp(r *runner, committed map[TopicPartition]Committed) (last *stamp.Stamp, theirs []stamp.Input, any bool, err error) {
	var stamps []stamp.Stamp
	var bare []string
	for _, p := range r.spec.Partitions {
		c := committed[TopicPartition{p.Topic, p.Partition}]
		if c.Offset < 0 {
			continue
		}
		any = true
		s, ours, err := stamp.DecodeStamp(c.Metadata)
		if err != nil {
			return nil, nil, true, &FatalError{fmt.Errorf("committed offset of %s[%d]: %w", p.Topic, p.Partition, err)}
		}
		if ours {
			stamps = append(stamps, s)
			continue
		}
		bare = append(bare, fmt.Sprintf("%s[%d]", p.Topic, p.Partition))
		m, streams, err := stamp.DecodeStreamsMetadata(c.Metadata)
		if err != nil {
			w.log.Warn("the time of a partition is not taken over", "topic", p.Topic, "partition", p.Partition, "error", err)
		} else if streams {
			theirs = append(theirs, stamp.Input{Topic: p.Topic, Time: m.PartitionTime})
		}
	}
	if len(stamps) == 0 {
		return nil, theirs, any, nil
	}
	if len(bare) > 0 && w.proto.stateful(r) {
		// A commit puts the stamp on all inputs of the task.
		return nil, nil, true, fmt.Errorf("%w: the offset of %s was committed by another tool, while other inputs of task %s have those of this application: the state would miss records, or count them twice. Restore the offset with its metadata, or reset the application's state",
			ErrLineage, strings.Join(bare, ", "), r.spec.ID)
	}
	s, err := stamp.Latest(stamps)
	if err != nil {
		return nil, nil, true, fmt.Errorf("%w: %w", ErrLineage, err)
	}
	return &s, nil, true, nil
}

// takenOver is the stamp that a task begins with: nothing but a lineage, and
// the times of its partitions where Kafka Streams has kept them. Its stream time
// is the largest of them, as there.
func takenOver(l stamp.Lineage, theirs []stamp.Input) stamp.Stamp {
	s := stamp.Stamp{Lineage: l, Inputs: theirs}
	ms := int64(-1)
	for _, in := range theirs {
		ms = max(ms, in.Time)
	}
	if ms >= 0 {
		s.Times = []stamp.Time{{Millis: ms}}
	}
	return s
}

// positions finds where each input goes on: at the committed offset, or where
// the reset policy says. The next commit stores it, so that the policy is
// applied once.
func (w *Worker) positions(r *runner, committed map[TopicPartition]Committed, bounds map[TopicPartition]Bounds, last *stamp.Stamp) error {
	r.committed, r.fetchNext, r.gapSince = make([]int64, len(r.plan.Inputs)), make([]int64, len(r.plan.Inputs)), make([]time.Time, len(r.plan.Inputs))
	r.heard, r.stalled = make([]int64, len(r.plan.Inputs)), make([]int64, len(r.plan.Inputs))
	for i := range r.heard {
		r.heard[i], r.stalled[i] = w.silent, -1
	}
	r.force = false
	for i, topic := range r.plan.Inputs {
		r.committed[i], r.fetchNext[i] = -1, -1
		if !r.present[i] {
			continue
		}
		tp := TopicPartition{topic, r.spec.ID.Partition}
		if err := w.sameTopic(r, tp, last); err != nil {
			return err
		}
		c, b := committed[tp], bounds[tp]
		next := c.Offset
		switch {
		case next < 0 && w.cfg.ExactlyOnce && last != nil && len(r.plan.Stores) > 0 &&
			slices.ContainsFunc(last.Inputs, func(in stamp.Input) bool { return in.Topic == topic }):
			return fmt.Errorf("%w: the offset of %s[%d] was deleted, while other inputs of task %s have theirs: its records would be counted twice, or left out. Restore the offset with its metadata, or reset the application's state",
				ErrLineage, topic, tp.Partition, r.spec.ID)
		case next < 0:
			r.force = true
			switch w.cfg.Sources[topic].Reset {
			case topology.Latest:
				next = b.End
			case topology.Fail:
				return &FatalError{fmt.Errorf("topic %s has no committed offset for partition %d, and its reset policy is Fail: commit a start offset for group %s, or choose Earliest or Latest",
					topic, tp.Partition, w.cfg.Application)}
			default:
				next = b.Start
			}
		case next < b.Start || next > b.High:
			var err error
			if next, err = w.resetTo(tp, next, b); err != nil {
				return err
			}
			r.force = true
		}
		r.committed[i], r.fetchNext[i] = next, next
	}
	return nil
}

// sameTopic refuses an input whose topic is not the one that the offsets were
// committed for.
func (w *Worker) sameTopic(r *runner, tp TopicPartition, last *stamp.Stamp) error {
	if last == nil {
		return nil
	}
	f, known := w.facts[tp.Topic]
	for _, in := range last.Inputs {
		if in.Topic != tp.Topic || !known {
			continue
		}
		if in.ID != f.ID && in.ID != [16]byte{} && f.ID != [16]byte{} {
			return fmt.Errorf("%w: topic %s was deleted and created again since the last commit: its offsets mean other records now. Reset the application's state to start anew",
				ErrLineage, tp.Topic)
		}
		if in.Partitions != f.Partitions && in.Partitions != 0 && len(r.plan.Stores) > 0 {
			return fmt.Errorf("%w: topic %s had %d partitions at the last commit and has %d now: keys have moved and their state has not. Migrate the state to the new count, or restore the old topic",
				ErrLineage, tp.Topic, in.Partitions, f.Partitions)
		}
	}
	return nil
}

// resetTo follows the reset policy for a position outside the log.
func (w *Worker) resetTo(tp TopicPartition, at int64, b Bounds) (int64, error) {
	if at > b.High {
		// Offsets are only committed for records that were there.
		return 0, fmt.Errorf("%w: the position %d of %s[%d] is beyond the end of the log at %d: the broker lost committed records, or the topic was created again. Reset the application's state, or set the group's offsets on purpose",
			ErrLineage, at, tp.Topic, tp.Partition, b.High)
	}
	var next int64
	switch w.cfg.Sources[tp.Topic].Reset {
	case topology.Latest:
		next = b.End
	case topology.Earliest:
		next = b.Start
	default:
		return 0, &FatalError{fmt.Errorf("the position %d of %s[%d] is outside the log [%d, %d): records were deleted before they were processed, or the log was truncated; the topic's reset policy is Fail",
			at, tp.Topic, tp.Partition, b.Start, b.High)}
	}
	w.log.Error("input records are gone: the position is outside the log; going on by the reset policy", "topic", tp.Topic, "partition", tp.Partition,
		"position", at, "start", b.Start, "end", b.High, "next", next)
	w.cfg.Metrics.reset(tp.Topic)
	return next, nil
}

// start makes the task and lets its partitions flow.
func (w *Worker) start(ctx context.Context, r *runner) error {
	cache, batch := w.shares()
	cfg := task.Config{ID: r.spec.ID, Present: r.present, MaxTaskIdle: w.cfg.MaxTaskIdle.Milliseconds(),
		MaxRecordBytes: w.cfg.MaxRecordBytes, CacheBytes: cache, MaxBatchBytes: batch,
		ReadAhead: w.remote(), Limits: r.box.limits, Mark: markOf, Ids: r.box.ids, DeadLetterTopic: w.cfg.DeadLetterTopic, OnError: w.cfg.OnError}
	if w.cfg.MaxTaskIdle < 0 {
		cfg.MaxTaskIdle = -1
	}
	t, err := task.New(context.WithoutCancel(ctx), cfg, r.plan, task.State{View: r.view, Token: r.token, Decoded: r.decoded,
		Stamp: r.stamp, Positions: r.committed, Force: r.force}, w.millis())
	if err != nil {
		return err
	}
	w.mu.Lock()
	r.t, r.phase = t, running
	w.mu.Unlock()
	seek := map[TopicPartition]int64{}
	var tps []TopicPartition
	for i, topic := range r.plan.Inputs {
		if r.present[i] {
			tp := TopicPartition{topic, r.spec.ID.Partition}
			seek[tp] = r.fetchNext[i]
			tps = append(tps, tp)
			delete(w.paused, tp)
		}
	}
	w.member.Seek(seek)
	w.member.Resume(tps)
	if r.force && w.dirtyAt.IsZero() {
		w.dirtyAt = w.cfg.Clock.Now()
	}
	w.log.Info("task running", "task", r.spec.ID.String())
	return nil
}

// remote says whether the store is behind a network.
func (w *Worker) remote() bool {
	return isRemote(w.cfg.Store)
}

// minBatchBytes is the least share of MaxBatchBytes that a task gets.
const minBatchBytes = 1 << 20

// shares are the parts of CacheBytes and MaxBatchBytes of one task.
func (w *Worker) shares() (cache, batch int) {
	n := max(len(w.order), 1)
	return w.cfg.CacheBytes / n, max(w.cfg.MaxBatchBytes/n, minBatchBytes)
}

// share gives the running tasks their parts of the bounds of the worker. The
// caller holds mu.
func (w *Worker) share() {
	cache, batch := w.shares()
	for _, r := range w.order {
		if r.phase == running {
			r.t.SetLimits(cache, batch)
		}
	}
}
