package fence

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// process does the steps of a round, for all partitions that have something to
// do, in this order and no other: apply in Redis, produce, flush, commit. Each
// step of a partition waits for the one before; a partition that fails one does
// not get to the next, and the others go on.
func (l *loop) process(ctx context.Context) error {
	stop, err := l.apply(ctx)
	if err != nil {
		return err
	}
	if err := l.flush(ctx); err != nil {
		return err
	}
	if err := l.commit(ctx); err != nil {
		return err
	}
	return stop
}

// apply applies what is held, and produces the outputs of what was applied.
func (l *loop) apply(ctx context.Context) (stop, err error) {
	now := time.Now()
	var due []*part
	for _, p := range l.parts {
		if p.claim != nil && p.acks == nil && p.to < 0 && !now.Before(p.retry) && (len(p.held) > 0 || p.behind > p.sent) {
			due = append(due, p)
		}
	}
	if len(due) == 0 {
		return nil, nil
	}
	round, cancel := context.WithTimeout(ctx, roundLimit)
	defer cancel()
	for _, p := range due {
		p.work = &work{cfg: l.cfg, fence: p.topic.fence, claim: p.claim, messages: p.held, next: p.behind, committed: p.sent}
	}
	l.each(due, func(p *part) { p.work.run(round) })
	if err := l.test(stepApply, due); err != nil {
		return nil, err
	}
	var sent []*part
	for _, p := range due {
		if p.claim == nil {
			continue // the topic has got more partitions
		}
		w := p.work
		if w.err != nil {
			if err := l.refused(p, w.err); err != nil && stop == nil {
				stop = err
			}
			continue
		}
		if w.wrong {
			// The partition is wrong for as many partitions as the topic had.
			grown, err := l.refresh(ctx, p.topic)
			if err != nil && !away(err) {
				return nil, err
			}
			if err != nil {
				l.hold(p, string(stepApply), err)
			}
			if err != nil || grown {
				continue
			}
		}
		if w.stop != nil && stop == nil {
			stop = w.stop
		}
		sent = append(sent, p)
	}
	for _, p := range sent {
		if p.claim == nil {
			continue
		}
		send, cancel := context.WithCancel(ctx)
		p.acks, p.cancel = l.m.produce(send, p.work.send), cancel
	}
	return stop, l.test(stepProduce, sent)
}

// refused goes on behind a batch that was not applied. It returns an error for
// what a person has to decide.
func (l *loop) refused(p *part, err error) error {
	switch {
	case errors.Is(err, ErrFenced):
		l.fenced(p, err)
	case errors.Is(err, ErrRegressed):
		l.regressed(p, err)
	case errors.Is(err, ErrLayout):
		return err
	default:
		l.hold(p, string(stepApply), err)
	}
	return nil
}

// flush waits until the outputs are answered. Those that take very long are
// waited for in later rounds, so that they do not hold up other partitions.
func (l *loop) flush(ctx context.Context) error {
	limit := time.NewTimer(settleLimit)
	defer limit.Stop()
	var sent []*part
	for _, p := range l.parts {
		if p.acks != nil {
			sent = append(sent, p)
		}
	}
	if len(sent) == 0 {
		return nil
	}
	for _, p := range sent {
		if errors.Is(p.err, errUnanswered) {
			continue // it was waited for before
		}
		select {
		case <-p.acks.done:
			continue
		case <-ctx.Done():
		case <-limit.C:
			limit.Reset(0) // for the others, too
		}
	}
	if err := l.test(stepFlush, sent); err != nil {
		return err
	}
	for _, p := range sent {
		switch {
		case !p.acks.settled():
			l.hold(p, string(stepFlush), errUnanswered)
			p.retry = time.Time{}
		case p.acks.err() != nil:
			err := p.acks.err()
			p.cancel()
			p.acks, p.cancel = nil, nil
			l.hold(p, string(stepProduce), err)
		default:
			p.cancel()
			p.acks, p.cancel, p.to = nil, nil, p.work.to
			for _, reason := range p.work.letters {
				l.letter(p.tp.topic, reason)
			}
		}
	}
	return nil
}

var errUnanswered = errors.New("the outputs are not acknowledged yet")

// commit commits what was sent and answered.
func (l *loop) commit(ctx context.Context) error {
	offsets := map[topicPartition]int64{}
	var parts []*part
	now := time.Now()
	for _, p := range l.parts {
		if p.to >= 0 && !now.Before(p.retry) {
			offsets[p.tp] = p.to
			parts = append(parts, p)
		}
	}
	if len(parts) == 0 {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, callLimit)
	failed := l.m.commit(call, offsets)
	cancel()
	for _, p := range parts {
		if err := failed[p.tp]; err != nil {
			if h := hopeless(err); h != nil {
				return h
			}
			// Also when the group does not know this member any more: then the
			// partition is taken away, and its new owner begins before the batch.
			l.hold(p, string(stepCommit), fmt.Errorf("commit: %w", err))
			continue
		}
		p.committed, p.sent = p.to, p.to
		if p.held = p.held[p.work.done:]; len(p.held) == 0 {
			p.held = nil
		}
		p.to, p.work = -1, nil
		l.going(p)
	}
	return l.test(stepCommit, parts)
}

// finish waits for what is under way and commits it.
func (l *loop) finish(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := l.flush(ctx); err != nil {
			return err
		}
		if err := l.commit(ctx); err != nil {
			return err
		}
		left := false
		for _, p := range l.parts {
			left = left || p.acks != nil || p.to >= 0
		}
		if !left {
			return nil
		}
		if sleep(ctx, pollMin) != nil {
			break
		}
	}
	l.log.Warn("stopped with outputs that Kafka has not answered; they are made again by the next owner", "group", l.cfg.Group)
	return nil
}

// test calls the function of a test.
func (l *loop) test(s step, parts []*part) error {
	if l.c.at == nil || len(parts) == 0 {
		return nil
	}
	tps := make([]topicPartition, len(parts))
	for i, p := range parts {
		tps[i] = p.tp
	}
	return l.c.at(s, tps)
}
