package fence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirstreams/weir/metric"
)

// claims claims the partitions that wait for it, when their time has come.
func (l *loop) claims(ctx context.Context) error {
	now := time.Now()
	due := func(p *part) bool { return p.state == Claiming && !now.Before(p.retry) }
	for _, p := range l.parts {
		if due(p) && int(p.tp.partition) >= p.topic.facts.partitions {
			if _, err := l.refresh(ctx, p.topic); err != nil && !away(err) {
				return err
			}
		}
	}
	var list []*part
	var tps []topicPartition
	for _, p := range l.parts {
		if due(p) {
			list, tps = append(list, p), append(tps, p.tp)
		}
	}
	if len(list) == 0 {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	begins, err := l.positions(call, list, tps)
	if err != nil {
		if h := hopeless(err); h != nil {
			return h
		}
		for _, p := range list {
			l.claimLater(p, err)
		}
		return nil
	}
	errs := make(map[*part]*error, len(list))
	for _, p := range list {
		errs[p] = new(error)
	}
	l.each(list, func(p *part) {
		p.claim, *errs[p] = p.topic.fence.Claim(call, Assignment{Partition: p.tp.partition, Committed: p.committed,
			Begin: begins[p.tp], TopicID: p.topic.facts.id})
	})
	for _, p := range list {
		if p.state != Claiming {
			continue // its topic was opened anew
		}
		if err := l.claimed(ctx, p, *errs[p]); err != nil {
			return err
		}
	}
	return nil
}

// away says that Kafka or Redis did not answer, and will be asked again.
func away(err error) bool { return errors.Is(err, ErrUnavailable) || errors.Is(err, errKafka) }

// positions asks for what a claim needs: that this client is a member, what the
// group has committed, and where partitions begin.
func (l *loop) positions(ctx context.Context, due []*part, tps []topicPartition) (map[topicPartition]int64, error) {
	if err := l.m.confirm(ctx); err != nil {
		return nil, err
	}
	committed, err := l.m.committed(ctx, tps)
	if err != nil {
		return nil, err
	}
	begins := map[topicPartition]int64{}
	var fresh []topicPartition
	for _, p := range due {
		p.committed = committed[p.tp]
		switch {
		case p.committed >= 0:
		case p.begin >= 0:
			// Not where the log ends now: it was read from there.
			begins[p.tp] = p.begin
		default:
			fresh = append(fresh, p.tp)
		}
	}
	if len(fresh) > 0 {
		found, err := l.m.bound(ctx, fresh, l.cfg.StartAtEnd)
		if err != nil {
			return nil, err
		}
		for _, tp := range fresh {
			at, ok := found[tp]
			if !ok {
				return nil, fmt.Errorf("partition %d of topic %s has no leader to ask where it begins", tp.partition, tp.topic)
			}
			begins[tp] = at
		}
	}
	return begins, nil
}

// claimLater has a claim tried again.
func (l *loop) claimLater(p *part, err error) {
	if p.attempt == 0 {
		l.log.Warn("partition waits for its claim", "topic", p.tp.topic, "partition", p.tp.partition, "error", err)
	}
	p.err, p.retry = err, time.Now().Add(backoff(p.attempt))
	p.attempt++
}

// claimed goes on behind a claim. It returns an error for what a person has to
// decide.
func (l *loop) claimed(ctx context.Context, p *part, err error) error {
	switch {
	case err == nil:
	case errors.Is(err, ErrPartitions):
		// Another member knows of more partitions, or a broker of fewer.
		if _, again := l.refresh(ctx, p.topic); again != nil && !away(again) {
			return again
		}
		if p.attempt == topicTries {
			return err
		}
		l.claimLater(p, err)
		return nil
	case errors.Is(err, ErrMissing), errors.Is(err, ErrTopicChanged), errors.Is(err, ErrLayout), errors.Is(err, ErrCorrupt):
		return err
	default:
		// Also when others claim it at the same time.
		l.claimLater(p, err)
		return nil
	}
	start := p.claim.Start()
	if p.begin < 0 {
		p.begin = start
	}
	p.next, p.behind, p.sent, p.sought, p.to = start, start, start, true, -1
	p.state, p.err, p.attempt, p.retry = Running, nil, 0, time.Time{}
	l.m.seek(p.tp, start)
	l.resume(p)
	l.log.Info("partition claimed", "topic", p.tp.topic, "partition", p.tp.partition, "epoch", p.claim.Epoch(), "position", start,
		"committed", p.committed, "pending", p.claim.Pending())
	return nil
}

// fenced drops a partition that another owner has. It is not claimed again
// before the group was asked and says that it is this member's: of two that
// both think they own it the group confirms one, so they do not drive each other
// out for ever, and the partition does not stay without an owner.
func (l *loop) fenced(p *part, err error) {
	l.release(p)
	l.pause(p)
	p.state, p.err, p.asked = Dropped, err, true
	l.log.Warn("partition dropped: another owner has claimed it; the group is asked whose it is", "topic", p.tp.topic, "partition", p.tp.partition, "error", err)
}

// askGroup joins the group again for partitions that were dropped. The answer
// comes with the next assignment.
func (l *loop) askGroup() {
	wants := false
	for _, p := range l.parts {
		wants = wants || p.asked
	}
	now := time.Now()
	if !wants || now.Before(l.rejoin) {
		if !wants && now.After(l.rejoin) {
			l.rejoins = 0
		}
		return
	}
	l.m.cl.ForceRebalance()
	l.rejoin = now.Add(min(rejoinMin<<min(l.rejoins, 10), rejoinMax))
	l.rejoins++
}

// regressed has a partition claimed again whose writes Redis has forgotten, and
// read again from where Redis stands.
func (l *loop) regressed(p *part, err error) {
	l.release(p)
	l.pause(p)
	p.state, p.err, p.retry = Claiming, err, time.Time{}
}

// refresh looks whether a topic has got more partitions. If so its fence is
// opened for them, and its partitions are claimed again: a key may belong on
// another one now. The error is away when that is not known.
func (l *loop) refresh(ctx context.Context, t *topic) (grown bool, err error) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	facts, err := l.m.facts(call, t.name)
	switch {
	case err != nil:
		return false, fmt.Errorf("%w: ask for topic %s: %w", errKafka, t.name, err)
	case facts.id != t.facts.id:
		return false, fmt.Errorf("topic %s: %w: Rewind starts over", t.name, ErrTopicChanged)
	case facts.partitions <= t.facts.partitions:
		return false, nil
	}
	l.log.Info("topic has got more partitions", "topic", t.name, "before", t.facts.partitions, "partitions", facts.partitions)
	if err := l.tryOpen(ctx, t); err != nil {
		return false, err
	}
	l.m.cl.ForceMetadataRefresh() // so that the new ones are assigned soon
	for _, p := range l.parts {
		if p.topic == t && p.state != Stopped && !p.asked {
			l.release(p)
			l.pause(p)
			p.state, p.retry = Claiming, time.Time{}
		}
	}
	return true, nil
}

// letter counts a dead letter.
func (l *loop) letter(topic string, reason Reason) {
	if l.letters[topic] == nil {
		l.letters[topic] = map[Reason]metric.Counter{}
	}
	c := l.letters[topic][reason]
	if c == nil {
		c = l.topics[topic].scope.Counter(metric.FenceDeadLetters, metric.L(metric.LabelReason, string(reason)))
		l.letters[topic][reason] = c
	}
	c.Add(1)
}
