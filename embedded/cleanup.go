package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// gateHold is how long Compact holds new transactions back at a time, so
	// that the open ones can end, and how long it then lets them run.
	gateHold = 500 * time.Millisecond

	// gatePoll is how often it looks whether they have ended.
	gatePoll = 2 * time.Millisecond

	// cleanupPatience bounds one run of Options.CleanupInterval: transactions
	// are held back once, and a long one is left to the next run.
	cleanupPatience = 2 * gateHold

	// deleteRetention is the topic setting that says how long a compacted
	// tombstone is kept, and savedDeleteRetention is where its value is kept
	// during a compaction. The cluster takes settings of any name.
	deleteRetention      = "delete.retention.ms"
	savedDeleteRetention = "weir.embedded.delete.retention.ms"
)

// Compact compacts every topic whose cleanup.policy has compact, and applies
// retention as Retain does. The last batch of a partition is never compacted.
// All other requests wait while it runs: about 0.4 s per million records.
//
// It runs in a moment in which no record of a compacted topic belongs to an
// open transaction. The cluster by itself would let the record of an open
// transaction replace the committed one of its key, and after an abort there
// would be none. When there is no such moment, new transactions are held back
// for up to half a second at a time while the open ones end. If ctx ends before
// that, the error is ErrTransactionOpen and names them.
//
// Tombstones are kept for ever. Kafka keeps them for delete.retention.ms after
// they were first compacted (KIP-534); the cluster would go by the timestamp of
// the record, and drop at once the deletions of a stream that is older than
// that, before a reader that is behind has seen them.
//
// With a folder, the old segments are kept until the new ones are written, so a
// kill in between loses nothing.
func (b *Broker) Compact(ctx context.Context) error {
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	select {
	case b.compacts <- struct{}{}:
		defer func() { <-b.compacts }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	restore, err := b.keepTombstones(ctx)
	if err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	err = b.compactWhenQuiet(ctx)
	// The settings are put back even when ctx has ended.
	end, stop := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer stop()
	if restoreErr := restore(end); restoreErr != nil {
		err = errors.Join(err, restoreErr)
	}
	if err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	return b.failure()
}

func (b *Broker) compactWhenQuiet(ctx context.Context) error {
	err := b.exclusive(ctx, b.compactHeld)
	for errors.Is(err, ErrTransactionOpen) {
		again := b.compactBehindGate(ctx)
		switch {
		case errors.Is(again, ErrTransactionOpen):
			err = again
		case again == nil || ctx.Err() == nil:
			return again
		}
		select {
		case <-time.After(gateHold):
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
	}
	return err
}

// compactBehindGate holds new transactions back until the open ones have ended
// and compacts then.
func (b *Broker) compactBehindGate(ctx context.Context) error {
	g := newGate()
	b.net.gate.Store(g)
	defer func() {
		b.net.gate.Store(nil)
		close(g.open)
	}()
	deadline := time.After(gateHold)
	tick := time.NewTicker(gatePoll)
	defer tick.Stop()
	var last error
	for {
		// A produce request that was past the gate when it shut may have begun
		// a transaction since the last look: it must be let through to its end.
		open, err := b.openTransactions(ctx)
		if err != nil {
			return cmp.Or(last, err)
		}
		producers := make([]int64, len(open))
		ids := make([]string, len(open))
		for i, t := range open {
			producers[i], ids[i] = t.ProducerID, t.TransactionalID
		}
		g.allow(producers)
		err = b.exclusive(ctx, b.compactHeld)
		switch {
		case errors.Is(err, ErrTransactionOpen):
		case err != nil && ctx.Err() != nil:
			return cmp.Or(last, err)
		default:
			return err
		}
		slices.Sort(ids)
		last = fmt.Errorf("%w (in a transaction: %s)", err, strings.Join(ids, ", "))
		select {
		case <-tick.C:
		case <-deadline:
			return last
		case <-ctx.Done():
			return last
		}
	}
}

// compactHeld compacts. It is called while the cluster is held still.
func (b *Broker) compactHeld() error {
	var compacted []partitionName
	for _, name := range b.topicNames() {
		if !compacts(b.cluster.TopicInfo(name)) {
			continue
		}
		for _, p := range b.cluster.PartitionInfos(name) {
			if p.LastStableOffset < p.HighWatermark {
				return fmt.Errorf("%w on partition %d of topic %q from offset %d", ErrTransactionOpen, p.Partition, name, p.LastStableOffset)
			}
			compacted = append(compacted, partitionName{name, p.Partition})
		}
	}
	if b.folder == nil {
		b.cluster.Compact()
		return nil
	}
	if err := b.folder.saveSegments(compacted); err != nil {
		return err
	}
	b.cluster.Compact()
	// What was saved stays for the next start if the new segments are not
	// whole.
	if err := b.failure(); err != nil {
		return err
	}
	// If it cannot be dropped, the next start would put the old segments in
	// the place of whatever is written from now on.
	if err := b.folder.dropSaved(); err != nil {
		err = fmt.Errorf("%w: %w", ErrStorage, err)
		b.fail(err)
		return err
	}
	return nil
}

func compacts(info *kfake.TopicInfo) bool {
	if info == nil {
		return false
	}
	policy := info.Configs["cleanup.policy"]
	return policy != nil && strings.Contains(*policy, "compact")
}

// Retain deletes the records that are past the retention.ms or retention.bytes
// of their topic, whole batches at a time, by their own timestamps. Open
// transactions do not hold it up. It is a no-op for topics that set neither.
func (b *Broker) Retain(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	b.cluster.ApplyRetention()
	return b.failure()
}

// cleanEvery is the goroutine of Options.CleanupInterval.
func (b *Broker) cleanEvery(interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-b.life.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(b.life, cleanupPatience)
		err := b.Compact(ctx)
		if errors.Is(err, ErrTransactionOpen) {
			b.log.Info("compaction put off", keyError, err)
			err = b.Retain(b.life)
		}
		cancel()
		if err != nil && b.life.Err() == nil {
			b.log.Warn("cleanup failed", keyError, err)
		}
	}
}

// keepTombstones makes compaction keep every tombstone, and returns what puts
// the settings back.
func (b *Broker) keepTombstones(ctx context.Context) (restore func(context.Context) error, err error) {
	var changes []settingChange
	for _, name := range b.topicNames() {
		info := b.cluster.TopicInfo(name)
		if !compacts(info) || info.Configs[savedDeleteRetention] != nil {
			continue
		}
		saved := ""
		if v := info.Configs[deleteRetention]; v != nil {
			saved = *v
		}
		changes = append(changes, settingChange{name, map[string]*string{
			deleteRetention:      new(strconv.FormatInt(math.MaxInt64, 10)),
			savedDeleteRetention: &saved,
		}})
	}
	return b.restoreTombstoneRetention, b.alterTopics(ctx, changes)
}

// restoreTombstoneRetention undoes keepTombstones, that of a killed process
// too.
func (b *Broker) restoreTombstoneRetention(ctx context.Context) error {
	var changes []settingChange
	for _, name := range b.topicNames() {
		info := b.cluster.TopicInfo(name)
		if info == nil || info.Configs[savedDeleteRetention] == nil {
			continue
		}
		before := info.Configs[savedDeleteRetention]
		if *before == "" {
			before = nil
		}
		changes = append(changes, settingChange{name, map[string]*string{
			deleteRetention:      before,
			savedDeleteRetention: nil,
		}})
	}
	return b.alterTopics(ctx, changes)
}

// settingChange sets settings of a topic, and unsets those that are nil.
type settingChange struct {
	topic string
	set   map[string]*string
}

func (b *Broker) alterTopics(ctx context.Context, changes []settingChange) error {
	if len(changes) == 0 {
		return nil
	}
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	for _, c := range changes {
		r := kmsg.NewIncrementalAlterConfigsRequestResource()
		r.ResourceType = kmsg.ConfigResourceTypeTopic
		r.ResourceName = c.topic
		for name, value := range c.set {
			s := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
			s.Name, s.Value = name, value
			s.Op = kmsg.IncrementalAlterConfigOpSet
			if value == nil {
				s.Op = kmsg.IncrementalAlterConfigOpDelete
			}
			r.Configs = append(r.Configs, s)
		}
		req.Resources = append(req.Resources, r)
	}
	resp, err := b.request(ctx, 0, req)
	if err != nil {
		return err
	}
	for _, r := range resp.(*kmsg.IncrementalAlterConfigsResponse).Resources {
		// A topic that was deleted meanwhile needs no setting.
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
			return fmt.Errorf("alter settings of topic %q: %w", r.ResourceName, err)
		}
	}
	return nil
}
