package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirstreams/weir/internal/outbox"
	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/state"
)

// outboxFirst is the protocol of section O in docs/guarantees.md: a batch of one
// task is one APPLY of its writes, its outputs and its positions; then the outputs
// are produced; then, for several batches at once, the group's offsets are
// committed with the stamp. The view is the truth, and whoever claims it sends
// what the stamp does not cover.
type outboxFirst struct {
	w         *Worker
	limits    state.OutboxLimits
	task      task.Limits
	sent      int  // outputs since the last flush that was complete, and
	sentBytes int  // what they take
	stalled   bool // the last one was not
}

// Bounds of what is under way to a broker that does not take it: so many outputs,
// or so many bytes, and what the last batch has more. The client's buffer is
// larger (OutboxBuffer), so that it is not what the worker waits for, and after
// flushLimit the worker goes back to the group. What claims owe is read when
// there is room for it, and is at most one outbox more than maxSentBytes.
const (
	maxSent      = 4096
	maxSentBytes = 16 << 20
	flushLimit   = time.Second
)

// OutboxBuffer is how many outputs the client of a worker has to buffer that keeps
// them beside the state in a store: a producer whose buffer is full would wait for
// the broker. It is 0 for a worker that does not.
func OutboxBuffer(store state.Backend, exactlyOnce bool) int {
	if !UsesOutbox(store, exactlyOnce) {
		return 0
	}
	return maxSent + store.(state.Outbox).OutboxLimits().SegmentBytes/task.OutputOverhead
}

// segmentRoom is what a segment takes beside its outputs.
const segmentRoom = 1 << 10

// repartitionKeep is how long records of repartition topics are kept after they
// were processed: a store that has forgotten the last batches is repaired by
// reading their input again.
const repartitionKeep = 6 * time.Hour

// keepSamples is how many positions of a task are remembered within
// repartitionKeep, so that what is behind it can be deleted.
const keepSamples = 24

// box is what a worker knows of the outbox of a task.
type box struct {
	limits  *task.Limits
	ids     []bool           // by input: its records have ids
	out     []task.Output    // of the batch under way
	last    uint64           // batch in the view, 0 none
	gaps    []stamp.Gap      // of the claims
	unacked int              // batches in the view that the group's offsets do not cover
	pending []outbox.Segment // of former owners, still to be sent
	bytes   int              // that they take
	strays  int              // of them that need other numbers
	burn    []OffsetCommit   // what says that these numbers are used, before they are
	reach   []int64          // by input: how far this process has ever got, nil if nowhere
	lineage stamp.Lineage    // of reach
	touched time.Time        // when the token was compared last
	kept    []sample
}

// sample is where a task was at a time.
type sample struct {
	at        time.Time
	positions []int64
}

func newOutboxFirst(w *Worker) *outboxFirst {
	l := w.cfg.Store.(state.Outbox).OutboxLimits()
	p := &outboxFirst{w: w, limits: l, task: task.Limits{Keys: l.Keys, Bytes: l.Bytes, Outputs: l.SegmentBytes - segmentRoom}}
	// No store has a changelog.
	plans := slices.Clone(w.cfg.Plans)
	for i, plan := range plans {
		own := *plan
		own.Stores = slices.Clone(plan.Stores)
		for j := range own.Stores {
			own.Stores[j].Changelog = ""
		}
		plans[i] = &own
	}
	w.cfg.Plans = plans
	return p
}

// markOf reads the id of a record of a repartition topic.
func markOf(r *task.Record) (task.Mark, bool) {
	for _, h := range slices.Backward(r.Headers) {
		if h.Key == outbox.Header {
			id, err := outbox.ParseID(h.Value)
			return task.Mark{Task: id.Task, Lineage: id.Lineage, Seq: id.Seq, Index: id.Index}, err == nil
		}
	}
	return task.Mark{}, false
}

// stateful is true for all: also a task without stores has outputs to keep.
func (p *outboxFirst) stateful(*runner) bool { return true }

func (p *outboxFirst) mends() bool { return false }

// slot is where the segment of a batch is kept.
func (p *outboxFirst) slot(seq uint64) int { return int(seq % uint64(p.limits.Slots)) }

// claim takes a task: compare token and stamp, write the token back, read what
// was not acknowledged. The numbers go up by more than the batches that a former
// owner may have sent, also one whose batches and claim the store has forgotten:
// so no number is ever given to two batches, and a reader may take what is not
// above the last one for a repetition.
func (p *outboxFirst) claim(ctx context.Context, r *runner, committed map[TopicPartition]Committed, bounds, _ map[TopicPartition]Bounds) error {
	w := p.w
	r.token = ""
	err := p.take(ctx, r, committed, bounds)
	if !errors.Is(err, ErrLineage) {
		return err
	}
	// Token and offsets were read one after the other. Another owner in between
	// makes them look as if they did not belong together.
	now, again := w.cfg.Store.Token(ctx, w.viewID(r))
	switch {
	case again != nil:
		return again
	case now != r.stored && now != r.token: // the latter is this claim's own
		return &state.FencedError{ID: w.viewID(r), Stored: now}
	}
	return err
}

func (p *outboxFirst) take(ctx context.Context, r *runner, committed map[TopicPartition]Committed, bounds map[TopicPartition]Bounds) error {
	w := p.w
	last, theirs, _, err := w.lastStamp(r, committed)
	if err != nil {
		return err
	}
	token, err := p.token(r)
	if err != nil {
		return err
	}
	verdict := stamp.DecideOutbox(token, last, len(r.plan.Stores) > 0)
	if token == nil && last == nil && len(theirs) > 0 && len(r.plan.Stores) > 0 {
		verdict = stamp.OtherProtocol // the state of a Java application is in its changelogs
	}
	w.cfg.Metrics.claimed(verdict.String())
	w.log.Info("task claimed", "task", r.spec.ID.String(), "verdict", verdict.String(), "epoch", epochOf(token)+1)
	next := stamp.Token{Outbox: true, Epoch: epochOf(token) + 1, Nonce: w.cfg.Nonce(), Wall: r.asOf}
	switch verdict {
	case stamp.FirstClaim, stamp.InStep, stamp.Ahead, stamp.Behind:
	default:
		return p.contradiction(verdict, r, token, last)
	}
	switch {
	case token != nil:
		next.Lineage = token.Lineage
	case last != nil:
		next.Lineage = last.Lineage
	default:
		next.Lineage = w.cfg.Lineage()
	}
	first := takenOver(next.Lineage, theirs)
	switch {
	case token != nil && token.Seq > 0:
		next.Times = token.Times
	case last != nil:
		next.Times = last.Times
	default:
		next.Times = first.Times
	}
	if token != nil && !token.Outbox {
		next.Last = token.Seq // else a store that loses it has nothing to lose
	}
	group, lost := committed, loss{}
	if token != nil && token.Outbox {
		// The positions of the view are the truth, wherever the group is.
		next.Last, next.Highs = token.Last, token.Highs
		if committed, lost, err = p.positions(r, token, committed, bounds, verdict); err != nil {
			return err
		}
	}
	if err := w.positions(r, committed, bounds, last); err != nil {
		return err
	}
	r.force = false // the end of the claim commits them
	top := uint64(0)
	if token != nil {
		top = token.Seq
	}
	if last != nil {
		top = max(top, last.Seq)
	}
	// Sent were at most Slots batches behind the top, by an owner whose claim or
	// batches were forgotten. Slots more are for strays.
	next.Seq = top + 2*uint64(p.limits.Slots)
	for i, topic := range r.plan.Inputs {
		if r.present[i] {
			next.Inputs = append(next.Inputs, stamp.Offset{Name: topic, Next: r.committed[i]})
		}
	}
	tok := next.Encode()
	view, err := w.cfg.Store.Claim(ctx, w.viewID(r), r.stored, tok)
	if err != nil {
		return err
	}
	r.view, r.token, r.decoded = view, tok, next
	if _, ok := view.(state.OutboxView); !ok {
		return &FatalError{fmt.Errorf("the store says that it keeps outputs, and its view is a %T", view)}
	}
	if lost.forgot {
		w.log.Error("the store has forgotten acknowledged batches; their input is processed again, and what they have put out may take effect twice",
			"task", r.spec.ID.String(), "records", lost.records, "batch", next.Last)
		w.cfg.Metrics.forgotten(r, lost.records)
	}
	b := &r.box
	b.reach = nil
	b.pending, b.strays, b.burn = nil, 0, nil
	if err := p.unsent(ctx, r, last, next); err != nil {
		p.letGo(r)
		return err
	}
	if b.strays > 0 {
		b.burn = p.burn(r, group, *last, next)
	}
	r.seq, r.nonce = next.Seq, next.Nonce
	b.gaps = nil
	if last != nil && last.Outbox {
		b.gaps = last.Gaps
	}
	b.gaps = stamp.Claimed(b.gaps, next.Last, next.Seq)
	r.stamp = stamp.Stamp{Lineage: next.Lineage, Seq: next.Seq, Nonce: next.Nonce, Times: next.Times}
	if last != nil {
		r.stamp.Inputs = last.Inputs
	} else {
		r.stamp.Inputs = first.Inputs
	}
	b.limits, b.ids = &p.task, make([]bool, len(r.plan.Inputs))
	for i, topic := range r.plan.Inputs {
		b.ids[i] = w.cfg.Sources[topic].Repartition
	}
	b.touched = w.cfg.Clock.Now()
	b.out, b.last, b.unacked = nil, next.Last, 0
	b.kept = p.past(r, last)
	return nil
}

// burn is the commit that says which numbers are used up, before outputs have
// them: the stamp as it was, with the number of the claim. A claim that the group
// refuses then has sent none, and one that the store forgets leaves a trace.
func (p *outboxFirst) burn(r *runner, group map[TopicPartition]Committed, last stamp.Stamp, next stamp.Token) []OffsetCommit {
	last.Seq, last.Nonce = next.Seq, next.Nonce
	metadata := last.Encode()
	var offsets []OffsetCommit
	for i, topic := range r.plan.Inputs {
		if !r.present[i] {
			continue
		}
		tp := TopicPartition{topic, r.spec.ID.Partition}
		at := group[tp].Offset
		if at < 0 {
			at = r.committed[i]
		}
		offsets = append(offsets, OffsetCommit{tp, at, -1, metadata})
	}
	return offsets
}

// token decodes what is stored. Damage is no reason to drop a view that nothing
// can rebuild.
func (p *outboxFirst) token(r *runner) (*stamp.Token, error) {
	if r.stored == "" {
		return nil, nil
	}
	t, err := stamp.DecodeToken(r.stored)
	switch {
	case errors.Is(err, stamp.ErrNewer):
		return nil, &FatalError{err}
	case err != nil:
		return nil, fmt.Errorf("%w: the token of task %s is damaged, and nothing but the store has this state. Restore the store from its backup, or reset the application's state: %w",
			ErrLineage, r.spec.ID, err)
	case r.foreign(&t):
		return nil, fmt.Errorf("%w: the view of task %s belongs to a subtopology that had this number in an earlier program. Go back to that program, or reset the application's state", ErrLineage, r.spec.ID)
	}
	return &t, nil
}

// loss is what a store has forgotten, as far as it is known.
type loss struct {
	forgot  bool
	records int64 // that are processed again
}

// positions lays those of the view over the offsets of the group, and finds out
// what a store that has forgotten batches makes the task process again.
func (p *outboxFirst) positions(r *runner, token *stamp.Token, committed map[TopicPartition]Committed, bounds map[TopicPartition]Bounds, verdict stamp.Verdict) (map[TopicPartition]Committed, loss, error) {
	lost := loss{forgot: verdict == stamp.Behind}
	list := map[TopicPartition]Committed{}
	for i, topic := range r.plan.Inputs {
		tp := TopicPartition{topic, r.spec.ID.Partition}
		c := committed[tp]
		at := slices.IndexFunc(token.Inputs, func(o stamp.Offset) bool { return o.Name == topic })
		if !r.present[i] || at < 0 {
			list[tp] = c
			continue
		}
		next := token.Inputs[at].Next
		reach := c.Offset
		if r.box.reach != nil && r.box.lineage == token.Lineage && r.box.reach[i] > next {
			// This process has done more than the view knows of.
			reach, lost.forgot = max(reach, r.box.reach[i]), true
		}
		lost.records += max(reach-next, 0)
		if lost.forgot && next < bounds[tp].Start {
			return nil, loss{}, fmt.Errorf("%w: the store has forgotten the last batches of task %s, and the input to process again is gone: %s[%d] begins at %d and the view is at %d. Restore a newer state of the store, or reset the application's state",
				ErrLineage, r.spec.ID, topic, tp.Partition, bounds[tp].Start, next)
		}
		list[tp] = Committed{Offset: next, LeaderEpoch: -1, Metadata: c.Metadata}
	}
	return list, lost, nil
}

// unsent reads the outputs that the stamp does not cover.
func (p *outboxFirst) unsent(ctx context.Context, r *runner, last *stamp.Stamp, next stamp.Token) error {
	known := func(seq uint64) bool { return last != nil && last.Acknowledged(seq) }
	if next.Last == 0 || known(next.Last) {
		return nil
	}
	segments, damaged := map[uint64]outbox.Segment{}, error(nil)
	err := r.view.(state.OutboxView).Segments(ctx, r.token, func(_ int, raw []byte) {
		h, err := outbox.DecodeHead(raw)
		if err == nil && (h.Lineage != next.Lineage || h.Seq > next.Last || known(h.Seq)) {
			return
		}
		var s outbox.Segment
		if err == nil {
			s, err = outbox.Decode(slices.Clone(raw))
		}
		if err != nil {
			damaged = err
			return
		}
		segments[s.Seq] = s
	})
	if err != nil {
		return err
	}
	b := &r.box
	for seq := next.Last; seq > 0 && !known(seq); {
		s, ok := segments[seq]
		if !ok && last != nil && last.Stray(seq) && slices.ContainsFunc(b.pending, func(s outbox.Segment) bool { return p.slot(s.Seq) == p.slot(seq) }) {
			break // a later batch has its slot; a fenced owner cannot have more under way than there are slots
		}
		if !ok {
			return errors.Join(fmt.Errorf("%w: the outputs of batch %d of task %s are not acknowledged, and the outbox does not have them: somebody has changed the store or the group's offsets. Restore the offsets, or reset the application's state",
				ErrLineage, seq, r.spec.ID), damaged)
		}
		delete(segments, seq)
		b.pending = append(b.pending, s)
		seq = s.Prev
	}
	slices.Reverse(b.pending)
	b.bytes = 0
	for i := range b.pending {
		s := &b.pending[i]
		b.bytes += s.Size()
		if b.strays == 0 && last != nil && last.Stray(s.Seq) {
			b.strays = len(b.pending) - i
		}
		if b.strays > 0 {
			// It and what follows it get numbers that nobody has seen.
			s.Seq, s.Nonce = next.Seq-uint64(len(b.pending)-1-i), next.Nonce
		}
	}
	return nil
}

// letGo gives the view of a claim back that came to nothing.
func (p *outboxFirst) letGo(r *runner) {
	if r.view != nil {
		if err := r.view.Close(); err != nil {
			p.w.log.Warn("view failed to close", "task", r.spec.ID.String(), "error", err)
		}
		r.view = nil
	}
	r.box.pending = nil
}

// room says whether another task may be claimed: what it owes has to be kept in
// memory until it is sent.
func (p *outboxFirst) room() bool {
	owed := p.sentBytes
	for _, r := range p.w.order {
		if len(r.box.pending) > 0 {
			owed += r.box.bytes
		}
	}
	return owed < maxSentBytes
}

// claimed sends what the claimed tasks owe and commits their positions, so that
// the group knows the numbers that the claims have begun with before the first
// batch has one. A broker that does not take the outputs holds the tasks up, and
// not the worker.
func (p *outboxFirst) claimed(ctx context.Context, list []*runner) error {
	w := p.w
	if len(list) == 0 {
		return nil
	}
	var burn []OffsetCommit
	for _, r := range list {
		burn = append(burn, r.box.burn...)
	}
	if len(burn) > 0 {
		switch outcome, err := w.member.Commit(ctx, burn); outcome {
		case Done:
		case Aborted:
			p.refused(list, err)
			return nil
		default:
			return unknown(err)
		}
	}
	w.mu.Lock()
	for _, r := range list {
		r.phase = resending
	}
	w.mu.Unlock()
	for _, r := range list {
		n := len(r.box.pending)
		if n == 0 {
			continue
		}
		outputs := 0
		for i := range r.box.pending {
			outputs += len(r.box.pending[i].Outputs)
		}
		w.log.Info("outputs of the last batches are sent again", "task", r.spec.ID.String(), "batches", n, "outputs", outputs)
		w.cfg.Metrics.resent(r, outputs)
		if r.box.strays > 0 {
			w.log.Error("the store had forgotten a claim, and a fenced owner has applied batches; their outputs may take effect twice",
				"task", r.spec.ID.String(), "batches", r.box.strays)
			w.cfg.Metrics.forgotten(r, 0)
		}
	}
	since := w.dirtyAt
	_, err := p.acknowledge(ctx, w.cfg.Clock.Now())
	if w.dirtyAt.IsZero() {
		w.dirtyAt = since
	}
	return err
}

// refused lets claims go whose positions the group does not take: this may be no
// member any more, whose claims would fence the owner.
func (p *outboxFirst) refused(list []*runner, err error) {
	w := p.w
	w.log.Info("the group has refused the positions of claimed tasks; they are claimed again", "error", err)
	w.cfg.Metrics.aborted("rebalance")
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range list {
		p.letGo(r)
		r.phase, r.retryAt = fenced, w.cfg.Clock.Now().Add(claimRetry)
	}
}

// resend sends what claimed tasks owe, as far as there is room for it, and says
// whether that is all.
func (p *outboxFirst) resend(ctx context.Context) (bool, error) {
	for _, r := range p.w.order {
		for r.phase == resending && len(r.box.pending) > 0 {
			if p.crowded() {
				return false, nil
			}
			s := &r.box.pending[0]
			if err := p.send(ctx, s); err != nil {
				return false, err
			}
			*s = outbox.Segment{}
			r.box.pending = r.box.pending[1:]
			p.w.point(DuringResend)
		}
	}
	return true, nil
}

// crowded says that as much is under way as may be.
func (p *outboxFirst) crowded() bool { return p.sent >= maxSent || p.sentBytes >= maxSentBytes }

func unknown(err error) error {
	if err == nil {
		err = errors.New("the broker did not say whether it committed")
	}
	return fmt.Errorf("commit: outcome unknown: %w", err)
}

// send produces a segment. Its bytes stay with the records.
func (p *outboxFirst) send(ctx context.Context, s *outbox.Segment) error {
	if len(s.Outputs) == 0 {
		return nil
	}
	if err := p.w.begin(); err != nil {
		return err
	}
	out := s.Sent()
	p.sent += len(out)
	p.sentBytes += s.Size()
	p.w.member.Produce(ctx, out)
	p.w.cfg.Metrics.recordsOut(out)
	return nil
}

// stampOf completes the stamp of a task with what is known of its inputs and its
// outbox.
func (p *outboxFirst) stampOf(r *runner, s stamp.Stamp) stamp.Stamp {
	s.Outbox, s.Gaps, s.Last = true, r.box.gaps, r.box.last
	past, ok := p.oldest(r)
	if ok {
		s.PastAt = past.at.UnixMilli()
	}
	var inputs []stamp.Input
	for i, topic := range r.plan.Inputs {
		if !r.present[i] {
			continue
		}
		in := p.w.fact(topic)
		in.Topic, in.LeaderEpoch, in.Time = topic, -1, -1
		for _, have := range s.Inputs {
			if have.Topic == topic {
				in.LeaderEpoch, in.Time = have.LeaderEpoch, have.Time
			}
		}
		if ok {
			in.Past = past.positions[i]
		}
		inputs = append(inputs, in)
	}
	s.Inputs = inputs
	return s
}

// emit keeps the outputs of a step until the APPLY.
func (p *outboxFirst) emit(_ context.Context, r *runner, out []task.Output) error {
	r.box.out = append(r.box.out, out...)
	return nil
}

// full says that the task has to wait: the ring has no slot for another batch
// before the group's offsets cover the oldest one, or too much is under way.
func (p *outboxFirst) full(r *runner) bool {
	return r.box.unacked >= p.limits.Slots || p.crowded()
}

// ready is false for a task that waits for a slot: what it has processed does not
// grow any more.
func (p *outboxFirst) ready(r *runner) bool { return !p.full(r) || !r.t.Full() }

// stepped ends a batch that has reached its limits.
func (p *outboxFirst) stepped(ctx context.Context, r *runner) (bool, error) {
	if !r.t.Full() || p.full(r) {
		return false, nil
	}
	return true, p.end(ctx, r)
}

func (p *outboxFirst) alone(ctx context.Context, r *runner) (bool, error) {
	if !r.t.Dirty() {
		return true, nil
	}
	if p.full(r) {
		return false, nil
	}
	return true, p.end(ctx, r)
}

// watch compares the tokens of tasks that have had no batch for a while. A store
// that has forgotten batches is found out by the next one, and where none comes
// nobody else would process their input again.
func (p *outboxFirst) watch(ctx context.Context) error {
	w := p.w
	now := w.cfg.Clock.Now()
	for _, r := range w.order {
		if r.phase != running || now.Sub(r.box.touched) < watchInterval {
			continue
		}
		r.box.touched = now
		switch tok, err := w.cfg.Store.Token(ctx, w.viewID(r)); {
		case err != nil:
			return &runnerError{r, fmt.Errorf("look at the token of task %s: %w", r.spec.ID, err)}
		case tok != r.token:
			return &runnerError{r, &state.FencedError{ID: w.viewID(r), Stored: tok}}
		}
	}
	return nil
}

// owes is also true for outputs that are on their way although no task is left
// that waits for them: as long as they are, the group has to wait.
func (p *outboxFirst) owes() bool {
	return p.w.inTxn || slices.ContainsFunc(p.w.order, p.waits)
}

// waits says whether a task waits for the group's offsets.
func (p *outboxFirst) waits(r *runner) bool {
	return r.phase == resending || r.phase == running && r.box.unacked > 0
}

// end ends the batch of a task: one APPLY with the writes, the outputs and the
// positions, and then the outputs are on their way.
func (p *outboxFirst) end(ctx context.Context, r *runner) error {
	w := p.w
	b := &r.box
	r.t.Seal(w.cfg.Nonce(), nil)
	seq, nonce := r.t.Sealed()
	s := outbox.Segment{Head: outbox.Head{Lineage: r.decoded.Lineage, Task: r.spec.ID, Seq: seq, Nonce: nonce, Prev: b.last}, Outputs: b.out}
	raw := s.Encode()
	positions := r.t.Positions(nil)
	w.point(BeforeApply)
	w.mu.Lock()
	r.t.Committed(nil)
	old, new, batch := r.t.Flush(w.millis())
	err := r.view.(state.OutboxView).ApplyOut(ctx, old, new, batch, p.slot(seq), raw)
	if err != nil {
		// The task is ahead of the view, or is not: nobody looks at it any more.
		r.phase = claiming
		w.mu.Unlock()
		return &runnerError{r, fmt.Errorf("apply batch %d to the view of task %s: %w", seq, r.spec.ID, err)}
	}
	r.t.Flushed(new)
	clear(b.out)
	b.out, b.last, b.lineage = b.out[:0], seq, r.decoded.Lineage
	b.unacked++
	r.token, r.seq, r.nonce = new, seq, nonce
	for _, at := range positions {
		r.committed[at.Input] = at.Next
	}
	b.reach = append(b.reach[:0], r.committed...)
	b.touched = w.cfg.Clock.Now()
	w.mu.Unlock()
	w.point(AfterApply)
	// What is sent is what was kept, byte for byte, and in memory of its own: the
	// task begins the next batch meanwhile.
	kept, err := outbox.Decode(raw)
	if err != nil {
		return fmt.Errorf("batch %d of task %s: %w", seq, r.spec.ID, err)
	}
	return p.send(ctx, &kept)
}

// commit ends all batches, waits until their outputs are acknowledged, and
// commits the positions.
func (p *outboxFirst) commit(ctx context.Context) error {
	w := p.w
	started := w.cfg.Clock.Now()
	for {
		waits := false
		for _, r := range w.order {
			switch {
			case r.phase != running || !r.t.Dirty():
			case p.full(r):
				waits = true // for the slots that this commit frees
			default:
				if err := p.end(ctx, r); err != nil {
					return err
				}
			}
		}
		done, err := p.acknowledge(ctx, started)
		if err != nil || !done || !waits {
			return err
		}
	}
}

// acknowledge makes the group's offsets cover what is in the views, and lets
// claimed tasks run whose outputs are there. It says whether the group has taken
// them.
func (p *outboxFirst) acknowledge(ctx context.Context, started time.Time) (bool, error) {
	w := p.w
	w.dirtyAt = time.Time{}
	if done, err := p.settle(ctx); err != nil || !done {
		return false, err
	}
	w.inTxn = false
	var batches, claims []*runner
	var offsets []OffsetCommit
	for _, r := range w.order {
		switch {
		case !p.waits(r):
		case r.phase == running:
			batches = append(batches, r)
			metadata := p.stampOf(r, r.t.Stamp(nil, w.fact)).Encode()
			for _, at := range r.t.CommittedPositions(nil) {
				offsets = append(offsets, OffsetCommit{TopicPartition{r.plan.Inputs[at.Input], r.spec.ID.Partition}, at.Next, at.LeaderEpoch, metadata})
			}
		default:
			claims = append(claims, r)
			metadata := p.stampOf(r, r.stamp).Encode()
			for i, topic := range r.plan.Inputs {
				if r.present[i] {
					offsets = append(offsets, OffsetCommit{TopicPartition{topic, r.spec.ID.Partition}, r.committed[i], -1, metadata})
				}
			}
		}
	}
	if len(offsets) == 0 {
		return true, nil
	}
	w.point(AfterFlush)
	w.point(BeforeCommit)
	outcome, err := w.member.Commit(ctx, offsets)
	switch outcome {
	case Done:
	case Aborted:
		if len(batches) > 0 {
			// The outputs are there and the state is; only the group does not know.
			w.log.Info("the group has refused the positions; they are committed again", "error", err)
			w.cfg.Metrics.aborted("rebalance")
			w.holdUntil = w.cfg.Clock.Now().Add(abortPause)
		}
		if len(claims) > 0 {
			p.refused(claims, err)
		}
		return false, nil
	default:
		return false, unknown(err)
	}
	w.point(AfterCommit)
	for _, r := range batches {
		r.box.unacked = 0
	}
	if len(batches) > 0 {
		now := w.cfg.Clock.Now()
		w.rebuilds = 0
		w.cfg.Metrics.committed(w.batchRecords, now.Sub(started))
		w.cfg.Metrics.tasks(w.order)
		w.log.Debug("committed", "tasks", len(batches), "records", w.batchRecords, "took", now.Sub(started))
		w.batchRecords = 0
	}
	for _, r := range claims {
		if err := w.start(ctx, r); err != nil {
			if err := w.claimFailed(ctx, r, err); err != nil {
				return false, err
			}
		}
	}
	if len(claims) > 0 {
		w.changed()
	}
	return true, nil
}

// settle sends what claims owe, waits a while until all outputs are acknowledged,
// and says whether they are. A broker that takes longer does not keep the worker
// from the group: the outputs are in the store, so whoever gets the tasks sends
// them as well.
func (p *outboxFirst) settle(ctx context.Context) (bool, error) {
	limited, cancel := context.WithTimeout(ctx, flushLimit)
	defer cancel()
	for {
		all, err := p.resend(ctx)
		if err != nil {
			return false, err
		}
		if p.w.inTxn {
			err := p.w.member.Flush(limited)
			p.stalled = err != nil && limited.Err() != nil && ctx.Err() == nil
			switch {
			case p.stalled:
				p.w.log.Warn("outputs are not acknowledged; their tasks wait", "outputs", p.sent, "bytes", p.sentBytes, "error", err)
				return false, nil
			case err != nil:
				return false, p.refusal(err)
			}
		}
		p.anew()
		if all {
			return true, nil
		}
	}
}

// refusal says of an output that the broker does not take what that means: it is
// kept, and will be sent again.
func (p *outboxFirst) refusal(err error) error {
	if fe := (*FatalError)(nil); errors.As(err, &fe) {
		return &FatalError{fmt.Errorf("flush: %w. The state has the batch of this output already, so it is sent again at every start, and its task waits for it: let the topic take it as it is, or reset the application's state", err)}
	}
	return fmt.Errorf("flush: %w", err)
}

func (p *outboxFirst) yields() bool { return p.stalled }
func (p *outboxFirst) anew()        { p.sent, p.sentBytes, p.stalled = 0, 0, false }

// abort takes back what is not applied. What is stays, and so do its outputs.
func (p *outboxFirst) abort(context.Context) error {
	for _, r := range p.w.order {
		clear(r.box.out)
		r.box.out = r.box.out[:0]
	}
	return p.w.rewind()
}

// past is what a claim knows of where the task was earlier: what the stamp says
// of it, so that the hours go on from one owner to the next, or else where it is
// now. What lies behind the view is of no use, as it is no history of it.
func (p *outboxFirst) past(r *runner, last *stamp.Stamp) []sample {
	now := sample{p.w.cfg.Clock.Now(), slices.Clone(r.committed)}
	if last == nil || !last.Outbox || last.PastAt <= 0 || last.PastAt > now.at.UnixMilli() {
		return []sample{now}
	}
	then := sample{time.UnixMilli(last.PastAt), make([]int64, len(r.plan.Inputs))}
	for i, topic := range r.plan.Inputs {
		then.positions[i] = -1
		for _, in := range last.Inputs {
			if in.Topic == topic {
				then.positions[i] = in.Past
			}
		}
		if then.positions[i] > r.committed[i] {
			return []sample{now}
		}
	}
	return []sample{then, now}
}

// purgeable is where the task was repartitionKeep ago, or a while before that.
func (p *outboxFirst) purgeable(r *runner, input int) int64 {
	b, now := &r.box, p.w.cfg.Clock.Now()
	if now.Sub(b.kept[len(b.kept)-1].at) >= repartitionKeep/keepSamples {
		b.kept = append(b.kept, sample{now, slices.Clone(r.committed)})
	}
	old := 0
	for old+1 < len(b.kept) && now.Sub(b.kept[old+1].at) >= repartitionKeep {
		old++
	}
	b.kept = slices.Delete(b.kept, 0, old)
	if now.Sub(b.kept[0].at) < repartitionKeep {
		return 0
	}
	return b.kept[0].positions[input]
}

// oldest is the first sample that nothing was deleted by yet.
func (p *outboxFirst) oldest(r *runner) (sample, bool) {
	now := p.w.cfg.Clock.Now()
	for _, s := range r.box.kept {
		if now.Sub(s.at) < repartitionKeep {
			return s, true
		}
	}
	return sample{}, false
}

// contradiction is the error of the verdicts that only a person can resolve.
func (p *outboxFirst) contradiction(v stamp.Verdict, r *runner, token *stamp.Token, last *stamp.Stamp) error {
	switch v {
	case stamp.NoView:
		return fmt.Errorf("%w: the group has committed batch %d of task %s, and the store has nothing of the task: it was emptied, it is another one, or it has forgotten everything. Nothing else has this state. Restore the store, or reset the application's state",
			ErrLineage, last.Last, r.spec.ID)
	case stamp.OtherProtocol:
		return fmt.Errorf("%w: the state of task %s is kept with a changelog, or was when the group committed last, and now the outputs are to be kept beside it. To change over, run the application with ExactlyOnce on this store and stop it cleanly first, or reset the application's state",
			ErrLineage, r.spec.ID)
	}
	return contradiction(v, r, token, last)
}
