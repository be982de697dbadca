package fence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/internal/holes"
	"github.com/weirstreams/weir/metric"
)

// Times of the loop.
const (
	pollMin      = time.Millisecond // a poll that does not wait would not hold back the group's callbacks
	pollMax      = time.Second      // without anything to do
	settleLimit  = 2 * time.Second  // for all outputs of a round, before it goes on with those that were answered
	callLimit    = 5 * time.Second  // for a question to Kafka
	roundLimit   = 30 * time.Second // to apply the batches of a round; one that takes longer is applied again
	lookInterval = 10 * time.Second // between two looks at the ends of partitions that bring no records
	stallLooks   = 3                // at a partition that has records and brings none
	topicTries   = 6                // for a topic that may have been created just now
	rejoinMin    = 500 * time.Millisecond
	rejoinMax    = 30 * time.Second
)

// step names a step of a round.
type step string

const (
	stepApply   step = "apply"
	stepProduce step = "produce"
	stepFlush   step = "flush"
	stepCommit  step = "commit"
)

// topic is one of the topics with its fence.
type topic struct {
	name  string
	facts topicFacts
	fence *Fence
	scope *metric.Scope
}

// part is a partition that the group has assigned.
type part struct {
	tp    topicPartition
	topic *topic
	state PartitionState
	claim *Claim
	asked bool // the group, whose the partition is; waits for its answer

	committed int64 // -1 for none
	begin     int64 // the first claim's start, -1 before it
	sent      int64 // outputs of records before it are sent: where the claim begins, then what it has committed
	next      int64 // what the next poll brings
	sought    bool  // nothing has come since the position was set

	held   []*Message
	behind int64 // the offset behind what is held; markers count
	acks   *acks // of outputs that are under way
	cancel context.CancelFunc
	work   *work
	to     int64 // the offset to commit: all before it was sent, and answered

	attempt int
	retry   time.Time
	err     error
	paused  bool
	end     int64 // -1 while it is not known
	seen    time.Time
	silent  int // looks at which it had records and brought none
	scope   *metric.Scope
	lag     metric.Gauge
}

// loop is one goroutine that owns the client and all partitions. Goroutines that
// it starts for a claim or a batch are waited for before it goes on.
type loop struct {
	c   *Consumer
	cfg *ConsumerConfig
	log *slog.Logger
	m   *member

	scope   *metric.Scope
	letters map[string]map[Reason]metric.Counter
	topics  map[string]*topic
	parts   map[topicPartition]*part
	kept    map[topicPartition]bool // whose counters of trouble are held

	rejoins int
	rejoin  time.Time // when the group may be asked again
	lookAt  time.Time
}

// newLoop opens the fences. It waits for Kafka and Redis.
func newLoop(ctx context.Context, c *Consumer) (*loop, error) {
	m, err := newMember(&c.cfg)
	if err != nil {
		return nil, err
	}
	l := &loop{c: c, cfg: &c.cfg, log: c.log, m: m, scope: metric.NewScope(c.cfg.Metrics), letters: map[string]map[Reason]metric.Counter{},
		topics: map[string]*topic{}, parts: map[topicPartition]*part{}, kept: map[topicPartition]bool{}}
	for _, name := range c.cfg.Topics {
		t := &topic{name: name, scope: metric.NewScope(l.scope, metric.L(metric.LabelTopic, name))}
		l.topics[name] = t
		if err := l.open(ctx, t); err != nil {
			l.close(err)
			return nil, err
		}
	}
	return l, nil
}

// open opens the fence of a topic for the partitions that it has now.
func (l *loop) open(ctx context.Context, t *topic) error {
	unknown, kafka := 0, false
	for attempt := 0; ; attempt++ {
		err := l.tryOpen(ctx, t)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			if unknown++; unknown == topicTries {
				return fmt.Errorf("topic %s: %w: create it", t.name, err)
			}
		} else if h := hopeless(err); h != nil {
			return h
		} else if !errors.Is(err, ErrUnavailable) && !errors.Is(err, errKafka) {
			return err
		}
		if k := errors.Is(err, errKafka); attempt == 0 || k != kafka {
			kafka = k
			l.log.Warn("the consumer waits for its services", "group", l.cfg.Group, "topic", t.name, "error", err)
		}
		if err := sleep(ctx, backoff(attempt)); err != nil {
			return err
		}
	}
}

// errKafka is Kafka that did not answer, or not with what was asked for.
var errKafka = errors.New("fence: Kafka is unavailable")

func (l *loop) tryOpen(ctx context.Context, t *topic) error {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	facts, err := l.m.facts(call, t.name)
	if err != nil {
		return fmt.Errorf("%w: ask for topic %s: %w", errKafka, t.name, err)
	}
	opts := l.cfg.Fence
	opts.Topic, opts.Partitions = t.name, facts.partitions
	f, err := Open(ctx, opts)
	if err != nil {
		return err
	}
	if t.fence != nil {
		t.fence.Close()
	}
	t.fence, t.facts = f, facts
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errCrash is what a test makes of a step.
var errCrash = errors.New("fence: crashed")

// close ends everything. After an error of a test's crash the group is not told.
func (l *loop) close(err error) {
	for _, p := range l.parts {
		l.drop(p)
	}
	l.m.close(!errors.Is(err, errCrash))
	for _, t := range l.topics {
		if t.fence != nil {
			t.fence.Close()
		}
	}
	l.scope.Close()
}

// run is the batch loop. The client holds the group's callbacks back from the
// end of a poll to AllowRebalance.
func (l *loop) run(ctx context.Context) error {
	// What is under way when ctx ends may go on for some time.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(l.cfg.ShutdownTimeout, cancel)
		context.AfterFunc(work, func() { timer.Stop() })
	})
	defer stop()
	for {
		// All that the client has, so that every partition gets its share; but
		// no more while there is something left of it.
		limit := -1
		if l.leftover() {
			limit = 1
		}
		fetches := l.m.poll(ctx, limit, l.wait())
		l.react()
		if ctx.Err() != nil {
			return l.finish(work)
		}
		if err := l.take(work, fetches); err != nil {
			return err
		}
		if err := l.process(work); err != nil {
			if !errors.Is(err, errCrash) {
				late, cancel := context.WithTimeout(work, l.cfg.ShutdownTimeout)
				l.finish(late)
				cancel()
			}
			return err
		}
		if err := l.claims(work); err != nil {
			return err
		}
		l.askGroup()
		l.resumeAll()
		if err := l.look(work); err != nil {
			return err
		}
		l.publish()
		l.m.cl.AllowRebalance()
	}
}

// wait is how long a poll may wait for records.
func (l *loop) wait() time.Duration {
	wait := l.c.idle
	now := time.Now()
	for _, p := range l.parts {
		switch {
		case p.acks != nil: // their answers end the wait
		case p.asked:
			wait = min(wait, l.rejoin.Sub(now))
		case p.state == Claiming, p.state == Waiting, len(p.held) > 0:
			wait = min(wait, p.retry.Sub(now))
		}
	}
	return max(wait, pollMin)
}

// leftover says that records are held that can be worked on.
func (l *loop) leftover() bool {
	for _, p := range l.parts {
		if p.state == Running && len(p.held) > 0 {
			return true
		}
	}
	return false
}

// react takes in what the group told.
func (l *loop) react() {
	for _, e := range l.m.told() {
		for _, tp := range e.tps {
			if p := l.parts[tp]; p != nil {
				l.log.Info("partition released", "topic", tp.topic, "partition", tp.partition, "committed", p.committed)
				l.drop(p)
			}
			t := l.topics[tp.topic]
			if !e.assigned || t == nil {
				continue
			}
			p := &part{tp: tp, topic: t, state: Claiming, committed: -1, begin: -1, end: -1, to: -1, paused: true}
			p.scope = metric.NewScope(t.scope, metric.L(metric.LabelPartition, strconv.Itoa(int(tp.partition))))
			l.parts[tp] = p
			l.keep(t, tp)
		}
		if !e.assigned {
			continue
		}
		// The group has answered: who is still a member has what it had. The claim
		// asks whether that is so now, and not only when the answer was given.
		for _, p := range l.parts {
			if p.asked {
				p.asked, p.state, p.retry = false, Claiming, time.Time{}
			}
		}
	}
}

// keep holds the counters of what ends a claim as long as the consumer runs. A
// claim's own are gone when it has ended, before anybody has read them. There is
// one of each for a partition of the topic, however often it comes and goes.
func (l *loop) keep(t *topic, tp topicPartition) {
	if l.kept[tp] {
		return
	}
	l.kept[tp] = true
	label := metric.L(metric.LabelPartition, strconv.Itoa(int(tp.partition)))
	t.scope.Counter(metric.FenceRecords, label, metric.L(metric.LabelVerdict, Fenced.String()))
	t.scope.Counter(metric.FenceRegressions, label)
}

// drop forgets a partition, with what is held of it and what waits to be sent.
func (l *loop) drop(p *part) {
	l.release(p)
	p.scope.Close()
	delete(l.parts, p.tp)
}

// release ends the claim.
func (l *loop) release(p *part) {
	if p.claim != nil {
		p.claim.Release()
		p.claim = nil
	}
	if p.cancel != nil {
		p.cancel() // outputs that have not been sent yet are not sent any more
		p.cancel = nil
	}
	p.held, p.acks, p.work, p.to, p.attempt = nil, nil, nil, -1, 0
}

// pause and resume keep the books on what the client fetches.
func (l *loop) pause(p *part) {
	if !p.paused {
		p.paused = true
		l.m.pause(p.tp)
	}
}

func (l *loop) resume(p *part) {
	if p.paused && p.state == Running {
		p.paused = false
		l.m.resume(p.tp)
	}
}

// resumeAll fetches again what waited and goes on. A partition that waits holds
// what a poll has brought and gets no more.
func (l *loop) resumeAll() {
	for _, p := range l.parts {
		l.resume(p)
	}
}

// take sorts the records of a poll by partition.
func (l *loop) take(ctx context.Context, fetches kgo.Fetches) error {
	var failed error
	again := map[*part]bool{} // those whose position was set again
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		p := l.parts[topicPartition{f.Topic, f.Partition}]
		if f.Err != nil && failed == nil {
			failed = l.fetchError(ctx, p, &f)
		}
		if p == nil || p.claim == nil || again[p] {
			return
		}
		if f.LastStableOffset >= 0 {
			p.end, p.seen, p.silent = f.LastStableOffset, time.Now(), 0
		}
		for _, r := range f.Records {
			if r.Offset < p.next {
				continue // from before the position was set
			}
			if p.sought && r.Offset > p.next {
				// Markers and compaction leave such holes. A position that got
				// lost on the way to the client would look the same, and would
				// skip records: the same answer twice tells.
				p.sought, again[p] = false, true
				l.m.seek(p.tp, p.next)
				return
			}
			p.sought, p.next = false, r.Offset+1
			p.behind = p.next
			if !r.Attrs.IsControl() {
				p.held = append(p.held, messageOf(r))
			}
		}
	})
	return failed
}

// fetchError sorts the errors of a poll. Those that the client retries by itself
// are nothing.
func (l *loop) fetchError(ctx context.Context, p *part, f *kgo.FetchTopicPartition) error {
	err := f.Err
	var loss *kgo.ErrDataLoss
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return nil
	case errors.Is(err, kgo.ErrClientClosed):
		return err
	case errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.InconsistentTopicID):
		if err := l.recreated(ctx, f.Topic); err != nil {
			return err
		}
	case p != nil && errors.Is(err, kerr.OffsetOutOfRange):
		l.halt(p, fmt.Errorf("the log does not hold offset %d any more, or not yet: records are lost to the retention of the topic, or another topic is meant; Rewind says where to go on: %w", p.next, err))
		return nil
	case p != nil && errors.As(err, &loss):
		l.halt(p, fmt.Errorf("the log was cut off at offset %d, below what was read: after an unclean election of a leader the offsets mean other records; Rewind says where to go on: %w", loss.ResetTo, err))
		return nil
	}
	if h := hopeless(err); h != nil {
		return h
	}
	l.log.Info("fetch failed", "topic", f.Topic, "partition", f.Partition, "error", err)
	return nil
}

// recreated says that a topic is another one than at the start.
func (l *loop) recreated(ctx context.Context, name string) error {
	t := l.topics[name]
	if t == nil {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if facts, err := l.m.facts(call, name); err == nil && facts.id != t.facts.id {
		return fmt.Errorf("topic %s: %w: Rewind starts over", name, ErrTopicChanged)
	}
	return nil
}

// halt stops a partition for good, or until it is assigned anew.
func (l *loop) halt(p *part, err error) {
	l.log.Error("partition stopped", "topic", p.tp.topic, "partition", p.tp.partition, "error", err)
	l.release(p)
	p.state, p.err = Stopped, err
	l.pause(p)
}

// hold keeps a batch that could not be finished, to try again later. Nothing of
// it is committed.
func (l *loop) hold(p *part, what string, err error) {
	if p.attempt == 0 {
		l.log.Warn("partition waits", "topic", p.tp.topic, "partition", p.tp.partition, "step", what, "error", err)
	}
	p.state, p.err, p.retry = Waiting, err, time.Now().Add(backoff(p.attempt))
	p.attempt++
	l.pause(p)
}

// going marks a partition that moves again.
func (l *loop) going(p *part) {
	if p.state == Waiting {
		l.log.Info("partition goes on", "topic", p.tp.topic, "partition", p.tp.partition, "attempts", p.attempt)
	}
	p.state, p.err, p.attempt, p.retry = Running, nil, 0, time.Time{}
}

// publish shows how the partitions stand.
func (l *loop) publish() {
	list := make([]PartitionStatus, 0, len(l.parts))
	for _, p := range l.parts {
		s := PartitionStatus{Topic: p.tp.topic, Partition: p.tp.partition, State: p.state, Committed: p.committed, Lag: -1}
		if p.claim != nil {
			s.Epoch = p.claim.Epoch()
		}
		if p.err != nil {
			s.Error = p.err.Error()
		}
		if from := max(p.committed, p.begin); p.end >= 0 && from >= 0 {
			s.Lag = max(p.end-from, 0)
			if p.lag == nil {
				p.lag = p.scope.Gauge(metric.FenceConsumerLag)
			}
			p.lag.Set(float64(s.Lag))
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b PartitionStatus) int {
		if c := strings.Compare(a.Topic, b.Topic); c != 0 {
			return c
		}
		return int(a.Partition) - int(b.Partition)
	})
	l.c.mu.Lock()
	l.c.mu.status = list
	l.c.mu.Unlock()
}

// look asks for the ends of the partitions that have brought no records for some
// time: the lag of one that waits for Redis has to rise. And it finds those that
// have records which the client does not fetch: nothing fails then, only the lag
// grows, and the error has the client built anew.
func (l *loop) look(ctx context.Context) error {
	now := time.Now()
	if now.Before(l.lookAt) {
		return nil
	}
	l.lookAt = now.Add(l.c.looks)
	var tps []topicPartition
	for _, p := range l.parts {
		if now.Sub(p.seen) >= l.c.looks {
			tps = append(tps, p.tp)
		}
	}
	if len(tps) == 0 {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	ends, err := l.m.bound(call, tps, true)
	if err != nil {
		l.log.Debug("ends of partitions not known", "error", err)
		return nil
	}
	for tp, end := range ends {
		p := l.parts[tp]
		if p.end = end; p.state != Running || p.paused || len(p.held) > 0 || p.acks != nil || p.to >= 0 || end <= p.next {
			p.silent = 0
			continue
		}
		if p.silent++; p.silent == 1 {
			continue
		}
		next, err := holes.Skip(call, l.m.cl, tp.topic, tp.partition, p.next, true)
		switch {
		case err != nil:
			return nil // Kafka is away
		case next > p.next: // compacted away
			p.next, p.behind, p.silent = next, next, 0
		case p.silent > stallLooks:
			return fmt.Errorf("%w: partition %d of topic %s has records from %d on", errStalled, tp.partition, tp.topic, next)
		}
	}
	return nil
}

// errStalled is a client that has stopped to fetch.
var errStalled = errors.New("fence: the client does not fetch")

// each calls f for partitions, several at a time, and waits for all.
func (l *loop) each(parts []*part, f func(*part)) {
	slots := make(chan struct{}, l.cfg.MaxConcurrency)
	var all sync.WaitGroup
	for _, p := range parts {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			f(p)
		})
	}
	all.Wait()
}
