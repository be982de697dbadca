package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
)

const (
	// settlePoll is the pause between two looks at how far the application is.
	settlePoll = 10 * time.Millisecond

	// scanLag is how far the application may be behind when the rest is read
	// along to find its last record.
	scanLag = 20_000

	// stillAfter is when an application that does not move is taken to be where
	// it can get without knowing more.
	stillAfter = 500 * time.Millisecond

	// ownPatience is how long a partition may be with no task of this instance:
	// longer than a rebalance, and then another instance has it.
	ownPatience = 20 * time.Second
)

// settler finds out when the application has processed what is in its topics.
type settler struct {
	app     *weir.App
	cluster *cluster
	// patience is how long a partition may be with no task of this instance.
	patience time.Duration
}

// settle returns when all ratings that are in the topic now, and at least up to
// the given ends of partitions, are processed and committed through both parts of
// the topology: what is read from the table then includes them.
//
// First the ratings, then the repartition topic: the records that come of a
// rating are in the same transaction as its offset, so when the ratings are done,
// all of theirs are there, and the ends of then cover them.
func (s *settler) settle(ctx context.Context, ends map[int32]int64) error {
	for _, topic := range []string{ratingsTopic, repartitionTopic} {
		now, err := s.ends(ctx, topic)
		if err != nil {
			return err
		}
		for p, end := range ends {
			now[p] = max(now[p], end)
		}
		ends = nil
		if err := s.reach(ctx, topic, now); err != nil {
			return err
		}
	}
	return nil
}

// ends returns where a read_committed reader of a topic gets to now.
func (s *settler) ends(ctx context.Context, topic string) (map[int32]int64, error) {
	cl, err := s.cluster.client()
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	listed, err := kadm.NewClient(cl).ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("look up the end of topic %s: %w", topic, err)
	}
	ends := map[int32]int64{}
	listed.Each(func(o kadm.ListedOffset) { ends[o.Partition] = o.Offset })
	return ends, nil
}

// reach returns when the application has processed the records of a topic below
// the given ends.
//
// A position stays behind the last record that was processed, and the end of a
// partition may be further: there are markers of transactions, and records of
// aborted ones, which no reader of committed records sees. So once the
// application is near, the rest is read along, and the last record in it counts.
func (s *settler) reach(ctx context.Context, topic string, ends map[int32]int64) error {
	if err := s.await(ctx, topic, ends, true); err != nil {
		return err
	}
	last, err := s.lastRecords(ctx, topic, ends)
	if err != nil {
		return err
	}
	return s.await(ctx, topic, last, false)
}

// await returns when the application has reached the targets, or, with near set,
// has come near or does not move.
func (s *settler) await(ctx context.Context, topic string, targets map[int32]int64, near bool) error {
	moved, owned, before := time.Now(), time.Now(), int64(-1)
	for {
		at := s.app.Position()[topic]
		var behind int64
		var missing []string
		for p, target := range targets {
			if next, ok := at[p]; ok {
				behind += max(target-next, 0)
			} else if target > 0 {
				missing = append(missing, fmt.Sprint(p))
			}
		}
		now := time.Now()
		switch {
		case len(missing) > 0:
			if now.Sub(owned) > s.patience {
				slices.Sort(missing)
				return fmt.Errorf("the tasks of partitions %s of topic %s are not on this instance: another demo runs on %s; stop it and run this again",
					strings.Join(missing, ", "), topic, s.cluster.name)
			}
			moved = now
		case behind == 0 || near && (behind <= scanLag || now.Sub(moved) > stillAfter):
			return nil
		default:
			owned = now
		}
		if behind != before {
			before, moved = behind, now
		}
		if err := sleep(ctx, settlePoll); err != nil {
			return err
		}
	}
}

// lastRecords returns, for each partition, the offset behind the last record
// below the given end that the application has not processed, or 0 if there is
// none.
func (s *settler) lastRecords(ctx context.Context, topic string, ends map[int32]int64) (map[int32]int64, error) {
	last, rest := map[int32]int64{}, map[int32]int64{} // rest: where to read on
	from := map[int32]kgo.Offset{}
	at := s.app.Position()[topic] // a partition that moves just now is read from its start
	for p, end := range ends {
		if next := at[p]; next < end {
			rest[p] = next
			from[p] = kgo.NewOffset().At(next)
		}
	}
	if len(rest) == 0 {
		return last, nil
	}
	// Markers are asked for too, as they may be all there is up to the end.
	cl, err := s.cluster.client(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), // what is gone was processed
		kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	for {
		at := s.app.Position()[topic]
		for p, next := range rest {
			if next >= ends[p] || at[p] >= ends[p] {
				delete(rest, p)
			}
		}
		if len(rest) == 0 {
			return last, nil
		}
		wait, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		fetches := cl.PollFetches(wait)
		cancel()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		for _, e := range fetches.Errors() {
			if !errors.Is(e.Err, context.DeadlineExceeded) {
				return nil, fmt.Errorf("read partition %d of topic %s: %w", e.Partition, topic, e.Err)
			}
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() && r.Offset < ends[r.Partition] {
				last[r.Partition] = max(last[r.Partition], r.Offset+1)
			}
			if _, ok := rest[r.Partition]; ok {
				rest[r.Partition] = max(rest[r.Partition], r.Offset+1)
			}
		})
	}
}
