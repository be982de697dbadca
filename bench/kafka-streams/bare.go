package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/bench/kafka-streams/child"
)

// runBare is the child "bare": the same keyed count as one loop over one
// franz-go transaction session, with a Go map per partition, a changelog record
// and an output per input, and nothing else. It is the upper bound for a program
// in Go: it has no recovery, so that an aborted transaction ends it.
func runBare(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	flags := flag.NewFlagSet("bare", flag.ContinueOnError)
	cfg := child.Bind(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	say := child.NewReporter(stdout)
	say.Say(child.Event{Event: child.Started, Runtime: runtime.Version()})
	b := &bare{cfg: *cfg, changelog: changelogTopic(cfg.App), counts: make([]map[string]*int64, cfg.Partitions)}
	for i := range b.counts {
		b.counts[i] = map[string]*int64{}
	}
	say.Say(child.Event{Event: child.Restoring})
	if err := b.restore(ctx); err != nil {
		return err
	}
	say.Say(child.Event{Event: child.Restored})
	err := b.run(child.UntilEOF(ctx, stdin), func() { say.Say(child.Event{Event: child.Running}) })
	if err != nil {
		return err
	}
	say.Say(child.Event{Event: child.Stopped})
	return nil
}

type bare struct {
	cfg       child.Config
	changelog string
	counts    []map[string]*int64 // by partition
}

// restore fills the maps from the changelog.
func (b *bare) restore(ctx context.Context) error {
	c, err := openCluster([]string{b.cfg.Brokers})
	if err != nil {
		return err
	}
	defer c.close()
	return c.read(ctx, b.changelog, func(r *kgo.Record) error {
		n, err := decodeCount(r)
		if err != nil {
			return err
		}
		*b.at(r.Partition, r.Key) = n
		return nil
	})
}

func (b *bare) at(partition int32, key []byte) *int64 {
	m := b.counts[partition]
	n, known := m[string(key)]
	if !known {
		n = new(int64)
		m[string(key)] = n
	}
	return n
}

// run counts until ctx ends. Started is called when the group has assigned the
// partitions.
func (b *bare) run(ctx context.Context, started func()) error {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(b.cfg.Brokers),
		kgo.ConsumerGroup(b.cfg.App),
		kgo.TransactionalID(b.cfg.App),
		kgo.ConsumeTopics(b.cfg.In),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.MaxBufferedRecords(50_000),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			if len(parts) > 0 {
				started()
			}
		}),
	)
	if err != nil {
		return fmt.Errorf("open the session: %w", err)
	}
	defer session.Close()

	var producing error // written by promises, read after End has flushed
	promise := func(_ *kgo.Record, err error) {
		if err != nil && producing == nil {
			producing = err
		}
	}
	end := func() error {
		committed, err := session.End(context.WithoutCancel(ctx), kgo.TryCommit)
		if err := errors.Join(err, producing); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		if !committed {
			return errors.New("the transaction was aborted, and the bare loop has no recovery: run it again")
		}
		return nil
	}
	var due time.Time // of the open transaction; zero: none is open
	for {
		poll, cancel := ctx, context.CancelFunc(func() {})
		if !due.IsZero() {
			poll, cancel = context.WithDeadline(ctx, due)
		}
		fetches := session.PollRecords(poll, maxPoll)
		cancel()
		if err := fetches.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("poll: %w", err)
		}
		if n := fetches.NumRecords(); n > 0 {
			if due.IsZero() {
				if err := session.Begin(); err != nil {
					return fmt.Errorf("begin: %w", err)
				}
				due = time.Now().Add(b.cfg.Commit)
			}
			b.process(ctx, session, fetches, n, promise)
		}
		if !due.IsZero() && (ctx.Err() != nil || !time.Now().Before(due)) {
			if err := end(); err != nil {
				return err
			}
			due = time.Time{}
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// maxPoll bounds the records of a poll, and with it how late a commit can be.
const maxPoll = 10_000

// process counts n records. Keys are shared with the input, and one slab holds
// the outputs and one their values.
func (b *bare) process(ctx context.Context, session *kgo.GroupTransactSession, fetches kgo.Fetches, n int, promise func(*kgo.Record, error)) {
	out := make([]kgo.Record, 0, 2*n)
	values := make([]byte, 0, 8*n)
	for r := range fetches.RecordsAll() {
		count := b.at(r.Partition, r.Key)
		*count++
		values = binary.BigEndian.AppendUint64(values, uint64(*count))
		value := values[len(values)-8:]
		for _, topic := range [...]string{b.changelog, b.cfg.Out} {
			out = append(out, kgo.Record{Topic: topic, Partition: r.Partition, Key: r.Key, Value: value, Timestamp: r.Timestamp})
			session.Produce(context.WithoutCancel(ctx), &out[len(out)-1], promise)
		}
	}
}
