package fence

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/weirstreams/weir/internal/redisconn"
)

// Rewinding says how a partition starts over.
type Rewinding struct {
	// Partition is the partition.
	Partition int32
	// Offset is where it goes on. It may also lie ahead, to leave records out.
	Offset int64
	// Keep leaves the states as they are, and the records from Offset on are
	// applied on top of them, though they may have been applied before: for
	// states that the same record does not change twice, such as those of Set.
	// Otherwise a state begins anew with the first record of its key from
	// Offset on; until then the old one is there to be read.
	Keep bool
	// TopicID is the id that the topic has now; see Assignment.
	TopicID [16]byte
}

// Rewind begins a new lineage of a partition: the deliberate change of what the
// fences say, after a topic was created anew, after states were lost, or to
// compute them again. The present owner is fenced, the pending window is
// dropped. The offset that the group has committed has to be set to Offset as
// well, while no member consumes the partition.
//
// When Rewind fails it may have happened in some of the slots; repeat it.
func (f *Fence) Rewind(ctx context.Context, r Rewinding) error {
	if err := f.checkPartition(r.Partition); err != nil {
		return err
	}
	if r.Offset < 0 {
		return fmt.Errorf("fence: rewind of partition %d to offset %d", r.Partition, r.Offset)
	}
	return f.fail("rewind", r.Partition, f.rewind(ctx, r))
}

func (f *Fence) rewind(ctx context.Context, r Rewinding) error {
	if err := f.same(ctx); err != nil {
		return err
	}
	slots := f.reach(r.Partition)
	metas, err := f.metas(ctx, r.Partition, slots)
	if err != nil {
		return err
	}
	epoch, lineage, since := uint64(0), uint64(0), uint64(1)
	for i := range metas {
		m := &metas[i]
		epoch, lineage, since = max(epoch, epochOf(m.owner)), max(lineage, m.lineage), max(since, m.since)
	}
	lineage++
	if !r.Keep {
		since = lineage
	}
	owner, topic := newOwner(epoch+1), ""
	if r.TopicID != ([16]byte{}) {
		topic = hex.EncodeToString(r.TopicID[:])
	}
	calls := make([]redisconn.Call, len(slots))
	for i, slot := range slots {
		calls[i] = redisconn.Call{Script: rewindScript, Keys: []string{f.partitionKey(slot, "p", r.Partition), f.partitionKey(slot, "w", r.Partition)},
			Args: []string{metas[i].owner, owner, formatVersion, strconv.Itoa(f.opts.Partitions), topic, formatOffset(r.Offset), formatUint(lineage), formatUint(since)}}
	}
	replies, err := f.runAll(ctx, true, calls)
	if err != nil {
		return err
	}
	for i := range replies {
		if replies[i].Status == statusFenced {
			return fmt.Errorf("%w: somebody claims it at the same time: stop the consumers", ErrFenced)
		}
	}
	return nil
}
