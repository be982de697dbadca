package fence

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/rueidis"
)

// Inspection is what is known of a key, for a person.
type Inspection struct {
	Key []byte `json:"key"`
	// Slot is the slot of its state, and RedisKey where the state is.
	Slot     int    `json:"slot"`
	RedisKey string `json:"redis_key"`
	// Expected is the partition on which the key belongs, -1 for any.
	Expected int32 `json:"expected_partition"`
	State    State `json:"state"`
	// Partition is what is stored for the partition of the last record, or for
	// the expected one while there is none.
	Partition PartitionInfo `json:"partition"`
	// Pending are the offsets in the pending window of that partition and slot,
	// of all keys.
	Pending []int64 `json:"pending"`

	// asked is what is known of each partition, for Predict.
	asked map[int32]*asked
}

// PartitionInfo is what is stored for a partition in one of its slots.
type PartitionInfo struct {
	Partition int32 `json:"partition"`
	Slot      int   `json:"slot"`
	// Claimed says that somebody ever claimed it, or rewound it.
	Claimed bool   `json:"claimed"`
	Epoch   uint64 `json:"epoch"`
	// Position is the offset up to which records were applied.
	Position int64  `json:"position"`
	Lineage  uint64 `json:"lineage"`
	// Since is the oldest lineage whose states count.
	Since uint64 `json:"since"`
	// Committed is the offset that was last passed as committed: outputs before
	// it were sent.
	Committed int64 `json:"committed"`
	// Begin is the offset at which the lineage began.
	Begin int64 `json:"begin"`
	// Partitions is the number of partitions that the owner knows of.
	Partitions int    `json:"partitions"`
	TopicID    string `json:"topic_id"`
}

// Inspect reads the state of a key without a claim: it may change at any time.
func (f *Fence) Inspect(ctx context.Context, key []byte) (*Inspection, error) {
	if f.closed.Load() {
		return nil, ErrClosed
	}
	slot := f.slotOf(key)
	in := &Inspection{Key: slices.Clone(key), Slot: slot, RedisKey: f.stateKey(slot, key), Pending: []int64{}}
	in.Expected, _ = f.CheckPartition(key, 0)
	state, err := f.peek(ctx, slot, key)
	if err != nil {
		return nil, fmt.Errorf("inspect key %q: %w", key, err)
	}
	in.State = *state
	p := in.Expected
	if state.Fenced {
		p = state.Partition
	}
	in.asked = map[int32]*asked{}
	if p >= 0 {
		about, err := f.ask(ctx, in, p)
		if err != nil {
			return nil, fmt.Errorf("inspect key %q: %w", key, err)
		}
		in.Partition, in.Pending = about.info, about.pending
	}
	return in, nil
}

// asked is what is stored of a partition in a slot.
type asked struct {
	info    PartitionInfo
	pending []int64
}

func (f *Fence) ask(ctx context.Context, in *Inspection, partition int32) (*asked, error) {
	if about := in.asked[partition]; about != nil {
		return about, nil
	}
	info, err := f.info(ctx, partition, []int{in.Slot})
	if err != nil {
		return nil, err
	}
	about := &asked{info: info[0], pending: []int64{}}
	window := f.partitionKey(in.Slot, "w", partition)
	r, err := f.s.Do(ctx, f.s.Breaker(window), "LRANGE", []string{window}, "0", "-1")
	if err != nil {
		return nil, err
	}
	list, err := r.AsStrSlice()
	if err != nil {
		return nil, err
	}
	all, err := segments(list)
	if err != nil {
		return nil, err
	}
	for _, entries := range all {
		for _, e := range entries {
			if e.offset >= about.info.Committed {
				about.pending = append(about.pending, e.offset)
			}
		}
	}
	slices.Sort(about.pending)
	in.asked[partition] = about
	return about, nil
}

// Predict tells what a record of the key would get, on a partition and at an
// offset, from a claim with the present number of partitions: its verdict, and
// the reason of a dead letter. It is true as long as nothing changes. What
// Inspect has not read of the partition it reads.
func (f *Fence) Predict(ctx context.Context, in *Inspection, partition int32, offset int64) (Verdict, Reason, error) {
	if f.closed.Load() {
		return 0, "", ErrClosed
	}
	if err := f.checkPartition(partition); err != nil {
		return 0, "", err
	}
	if offset < 0 || offset == maxOffset {
		return 0, "", fmt.Errorf("fence: predict for offset %d, which no record has", offset)
	}
	if in.Key == nil {
		return DeadLetter, NoKey, nil
	}
	want, ok := f.CheckPartition(in.Key, partition)
	if !ok {
		return DeadLetter, WrongPartition, nil
	}
	about, err := f.ask(ctx, in, partition)
	if err != nil {
		return 0, "", fmt.Errorf("predict for key %q: %w", in.Key, err)
	}
	s, info := &in.State, &about.info
	position := info.Position
	if !info.Claimed {
		position = 0 // the claim will say
	}
	fresh := offset >= position
	mine := s.Fenced && s.Partition == partition && s.Lineage == info.Lineage
	other := s.Fenced && s.Partition != partition
	if other && want < 0 {
		from, err := f.ask(ctx, in, s.Partition)
		if err != nil {
			return 0, "", fmt.Errorf("predict for key %q: %w", in.Key, err)
		}
		other = s.Lineage >= from.info.Since
	}
	again := mine && offset <= s.Offset
	if !f.opts.NoWindow && (again || !fresh) && offset >= info.Committed {
		if _, kept := slices.BinarySearch(about.pending, offset); kept {
			return Reemit, "", nil
		}
	}
	switch {
	case again || !fresh && offset < info.Begin:
		return Skip, "", nil
	case other && s.Partitions > f.opts.Partitions:
		return DeadLetter, OldPartitions, nil
	case other && fresh:
		return Rebase, "", nil
	case other:
		return Skip, "", nil
	}
	return Apply, "", nil
}

// peek reads a state without a claim.
func (f *Fence) peek(ctx context.Context, slot int, key []byte) (*State, error) {
	// The breaker is that of the slot: one for each key would be without bound.
	r, err := f.s.Do(ctx, f.s.Breaker(f.prefixes[slot]), "GET", []string{f.stateKey(slot, key)})
	if err != nil {
		return nil, err
	}
	text, err := r.AsBytes()
	if rueidis.IsRedisNil(err) {
		return &State{}, nil
	}
	if err != nil {
		return nil, err
	}
	s, err := parseState(text)
	return &s, err
}

// peekAll reads the states of keys of one slot as peek does, and returns how many
// bytes they are. What is no string counts as missing, as it does for the fence.
func (f *Fence) peekAll(ctx context.Context, slot int, keys []string) ([]State, int, error) {
	stored := make([]string, len(keys))
	for i, key := range keys {
		stored[i] = f.prefixes[slot] + "s" + key
	}
	r, err := f.s.Do(ctx, f.s.Breaker(f.prefixes[slot]), "MGET", stored)
	if err != nil {
		return nil, 0, err
	}
	texts, err := r.ToArray()
	if err != nil {
		return nil, 0, err
	}
	if len(texts) != len(keys) {
		return nil, 0, errReply
	}
	states, size := make([]State, len(keys)), 0
	for i := range texts {
		text, err := texts[i].AsBytes()
		if rueidis.IsRedisNil(err) {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		size += len(text)
		if states[i], err = parseState(text); err != nil {
			return nil, 0, fmt.Errorf("key %q: %w", keys[i], err)
		}
	}
	return states, size, nil
}

// Describe reads what is stored for a partition, for each slot that it can
// reach.
func (f *Fence) Describe(ctx context.Context, partition int32) ([]PartitionInfo, error) {
	if err := f.checkPartition(partition); err != nil {
		return nil, err
	}
	list, err := f.info(ctx, partition, f.reach(partition))
	return list, f.fail("describe", partition, err)
}

func (f *Fence) info(ctx context.Context, partition int32, slots []int) ([]PartitionInfo, error) {
	metas, err := f.metas(ctx, partition, slots)
	if err != nil {
		return nil, err
	}
	list := make([]PartitionInfo, len(slots))
	for i := range metas {
		m := &metas[i]
		list[i] = PartitionInfo{Partition: partition, Slot: slots[i], Claimed: m.found, Epoch: epochOf(m.owner), Position: m.position,
			Lineage: m.lineage, Since: m.since, Committed: m.committed, Begin: m.begin, Partitions: m.count, TopicID: m.topic}
	}
	return list, nil
}
