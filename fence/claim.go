package fence

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weirstreams/weir/internal/redisconn"
)

// Assignment is what a claim is made for: that the group has assigned a
// partition to this member, or that a Lease for it is held.
type Assignment struct {
	// Partition is the partition.
	Partition int32
	// Committed is the offset that the group has committed: of the first record
	// whose output may not have been sent. Negative when there is none.
	Committed int64
	// Begin is the offset to begin with when there is neither a committed one
	// nor anything in Redis: what the reset policy says. Not negative.
	Begin int64
	// TopicID is the id of the topic, so that a topic that was deleted and
	// created again is noticed. All zero leaves this out.
	TopicID [16]byte
}

// Claim is the right to change the states of a partition, until somebody else
// claims it. Its methods are not safe for concurrent use; different claims are.
type Claim struct {
	f         *Fence
	partition int32
	epoch     uint64
	owner     string // epoch and nonce, as stored
	lineage   uint64
	prefix    string // of the fences of the states
	begin     int64  // of the lineage
	start     int64
	regressed bool
	committed int64 // outputs before it were sent
	through   int64 // up to where this claim has applied
	slots     []slotClaim
	metrics   *claimMetrics
	ended     error
	last      int64 // offset of the last record, for the gaps; negative: none yet
}

// slotClaim is a claim in one of the slots that the partition can reach.
type slotClaim struct {
	slot     int
	meta     string
	window   string
	position int64 // the next offset that the slot expects
	pending  pending
}

// maxClaims is how often a claim is tried when others claim at the same time.
const maxClaims = 5

// meta is what is stored for a partition in a slot.
type meta struct {
	found                      bool
	owner, topic               string
	position, begin, committed int64
	doubt                      int64
	lineage, since             uint64
	count                      int
}

var metaFields = []string{"v", "owner", "topic", "pos", "begin", "committed", "lineage", "since", "count", "doubt"}

// metas reads what is stored for a partition in slots.
func (f *Fence) metas(ctx context.Context, partition int32, slots []int) ([]meta, error) {
	calls := make([]redisconn.Call, len(slots))
	for i, slot := range slots {
		calls[i] = redisconn.Call{Script: metaScript, Keys: []string{f.partitionKey(slot, "p", partition)}, Args: metaFields}
	}
	replies, err := f.runAll(ctx, false, calls)
	if err != nil {
		return nil, err
	}
	metas := make([]meta, len(slots))
	for i := range replies {
		if err := metas[i].parse(&replies[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", calls[i].Keys[0], err)
		}
	}
	return metas, nil
}

func (m *meta) parse(r *redisconn.Reply) error {
	if len(r.Values) != len(metaFields) {
		return fmt.Errorf("%w: unexpected reply of the script", ErrCorrupt)
	}
	if v := r.Str(0); v != "" && v != formatVersion {
		return fmt.Errorf("%w: it is of format %s, and this program knows format %s", ErrLayout, v, formatVersion)
	}
	m.owner, m.topic = r.Str(1), r.Str(2)
	if r.Str(3) == "" {
		if m.owner != "" {
			return fmt.Errorf("%w: it has an owner and no position", ErrCorrupt)
		}
		return nil
	}
	m.found, m.doubt = true, -1
	var errs [7]error
	if text := r.Str(9); text != "" {
		m.doubt, errs[6] = offsetOf(text)
	}
	m.position, errs[0] = offsetOf(r.Str(3))
	m.begin, errs[1] = offsetOf(r.Str(4))
	m.committed, errs[2] = offsetOf(r.Str(5))
	m.lineage, errs[3] = strconv.ParseUint(r.Str(6), 10, 64)
	m.since, errs[4] = strconv.ParseUint(r.Str(7), 10, 64)
	m.count, errs[5] = strconv.Atoi(r.Str(8))
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return nil
}

// runAll calls scripts whose keys have different tags, in as few round trips as
// can be.
func (f *Fence) runAll(ctx context.Context, wait bool, calls []redisconn.Call) ([]redisconn.Reply, error) {
	n := pipelinedCalls
	if wait && f.apart() {
		n = 1
	}
	var all []redisconn.Reply
	for part := range slices.Chunk(calls, n) {
		replies, err := f.run(ctx, part[0].Keys[0], wait, part...)
		if err != nil {
			return nil, err
		}
		all = append(all, replies...)
	}
	return all, nil
}

// pipelinedCalls is how many small calls are on their way at once.
const pipelinedCalls = 256

// epochOf takes the epoch out of the name of an owner; it is 0 when there is
// none.
func epochOf(owner string) uint64 {
	n, _, _ := strings.Cut(owner, " ")
	e, _ := strconv.ParseUint(n, 10, 64)
	return e
}

func newOwner(epoch uint64) string {
	var nonce [8]byte
	rand.Read(nonce[:])
	return strconv.FormatUint(epoch, 10) + " " + hex.EncodeToString(nonce[:])
}

func (f *Fence) checkPartition(p int32) error {
	if p < 0 || int(p) >= f.opts.Partitions {
		return fmt.Errorf("fence: topic %s has no partition %d, it has %d", f.opts.Topic, p, f.opts.Partitions)
	}
	return nil
}

func (f *Fence) fail(what string, partition int32, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s partition %d of topic %s: %w", what, partition, f.opts.Topic, err)
}

// Claim makes the caller the owner of a partition; a former owner is fenced
// from now on. Claim once when the group assigns the partition, and not again
// after ErrFenced until it is assigned anew: a member that was away too long
// would drive out the right one for ever. Read from Claim.Start on.
//
// It fails with ErrMissing, ErrTopicChanged and ErrPartitions when what is
// stored does not fit; then a person has to decide, and Rewind does what was
// decided.
func (f *Fence) Claim(ctx context.Context, a Assignment) (*Claim, error) {
	if err := f.checkPartition(a.Partition); err != nil {
		return nil, err
	}
	if a.Committed < 0 && a.Begin < 0 {
		return nil, fmt.Errorf("fence: claim of partition %d: neither a committed offset nor one to begin with", a.Partition)
	}
	c, err := f.claim(ctx, a)
	return c, f.fail("claim", a.Partition, err)
}

func (f *Fence) claim(ctx context.Context, a Assignment) (*Claim, error) {
	if err := f.same(ctx); err != nil {
		return nil, err
	}
	c := &Claim{f: f, partition: a.Partition, last: -1}
	for _, slot := range f.reach(a.Partition) {
		c.slots = append(c.slots, slotClaim{slot: slot, meta: f.partitionKey(slot, "p", a.Partition), window: f.partitionKey(slot, "w", a.Partition)})
	}
	for attempt := 1; ; attempt++ {
		err := c.take(ctx, a)
		if err == nil {
			break
		}
		if !errors.Is(err, ErrFenced) || attempt == maxClaims {
			return nil, err
		}
	}
	if c.regressed {
		f.opts.Logger.Error("redis has forgotten acknowledged writes, or the offset of the group was set ahead; the partition is read from where its outputs are known to be sent",
			"topic", f.opts.Topic, "partition", a.Partition, "position", c.position(), "start", c.start, "committed", a.Committed)
	}
	c.metrics = newClaimMetrics(f, a.Partition)
	if c.regressed {
		c.metrics.regressed.Add(1)
	}
	c.metrics.window.Set(float64(c.depth()))
	return c, nil
}

// begins is where a slot begins of which nothing is stored.
type begins struct {
	position, begin int64
	lineage, since  uint64
}

// take reads what is stored and replaces the owner in every slot. All is read
// before anything is written: so of two that claim at the same time one at least
// fails in some slot, and nobody has half of a partition and thinks it whole.
func (c *Claim) take(ctx context.Context, a Assignment) error {
	f := c.f
	slots := make([]int, len(c.slots))
	for i := range c.slots {
		slots[i] = c.slots[i].slot
	}
	metas, err := f.metas(ctx, a.Partition, slots)
	if err != nil {
		return err
	}
	var first *meta // of those that are stored
	epoch := uint64(0)
	for i := range metas {
		m := &metas[i]
		epoch = max(epoch, epochOf(m.owner))
		if !m.found {
			continue
		}
		if first == nil {
			first = m
		}
		if m.lineage != first.lineage {
			return fmt.Errorf("%w: the slots of the partition are of the lineages %d and %d, as after a rewind that was interrupted or forgotten: rewind it again", ErrCorrupt, first.lineage, m.lineage)
		}
		if err := c.fits(m, a); err != nil {
			return err
		}
	}
	if first == nil && a.Committed > 0 {
		return fmt.Errorf("%w: the group has committed offset %d: look whether server, database and name (%s) are the right ones; Rewind says where to begin, and if it is the beginning of the topic then the states are made again", ErrMissing, a.Committed, f.opts.Name)
	}
	none := begins{position: max(a.Begin, 0), begin: max(a.Begin, 0), lineage: 1, since: 1}
	if a.Committed == 0 {
		none.position, none.begin = 0, 0
	}
	sent := none.begin // outputs before it are known to be sent
	doubt := int64(-1)
	if first != nil {
		none = begins{position: first.begin, begin: first.begin, lineage: first.lineage, since: first.since}
		sent = none.begin // and not where the log begins or ends now
		position := int64(maxOffset)
		for i := range metas {
			switch m := &metas[i]; {
			case m.found:
				position, sent, doubt = min(position, m.position), max(sent, m.committed), max(doubt, m.doubt)
			case slices.Contains(reach(f.opts.Partitioner, int(a.Partition), first.count, f.slots), slots[i]):
				position = min(position, none.position) // it was there and is gone
			}
		}
		if a.Committed > position {
			doubt = a.Committed
		} else if a.Committed != doubt {
			doubt = -1
		}
		sent = startOf(a.Committed, sent, position, doubt)
	}
	c.epoch = epoch + 1
	c.owner = newOwner(c.epoch)
	topic, doubtful := "", ""
	if a.TopicID != ([16]byte{}) {
		topic = hex.EncodeToString(a.TopicID[:])
	}
	if doubt >= 0 {
		doubtful = formatOffset(doubt)
	}
	// A slot that the partition could not reach, because there were fewer
	// partitions, is told from one that is gone by the number of partitions
	// that is stored in the others. So those come last.
	for _, found := range []bool{false, true} {
		var calls []redisconn.Call
		var taken []*slotClaim
		for i := range c.slots {
			m, s := &metas[i], &c.slots[i]
			if m.found != found {
				continue
			}
			b := none
			if first != nil && !slices.Contains(reach(f.opts.Partitioner, int(a.Partition), first.count, f.slots), s.slot) {
				b.position = max(sent, none.begin)
			}
			taken = append(taken, s)
			calls = append(calls, redisconn.Call{Script: claimScript, Keys: []string{s.meta, s.window},
				Args: []string{m.owner, c.owner, formatVersion, strconv.Itoa(f.opts.Partitions), topic, formatOffset(sent), doubtful,
					formatOffset(b.position), formatOffset(b.begin), formatUint(b.lineage), formatUint(b.since)}})
		}
		replies, err := f.runAll(ctx, true, calls)
		if err != nil {
			return err
		}
		for i := range replies {
			if err := taken[i].taken(&replies[i]); err != nil {
				return err
			}
		}
	}
	c.committed = sent
	// The former owner may have applied more in between.
	c.start = max(startOf(a.Committed, sent, c.position(), doubt), none.begin)
	c.through, c.regressed = c.start, c.start < a.Committed
	c.lineage, c.begin = none.lineage, none.begin
	c.prefix = fmt.Sprintf("%d %d %d ", a.Partition, f.opts.Partitions, c.lineage)
	return nil
}

// startOf is where to read from: outputs before it are known to be sent, and
// records before it were applied. What the group has committed says so unless it
// is ahead of what was applied. Then Redis has forgotten, or somebody has set the
// offset ahead, or rewound only the fence; and it says nothing about the outputs
// of what is to be applied now, also later when that has caught up: until the
// group has committed something else it stays in doubt. What was passed as sent
// with the batches counts.
func startOf(committed, sent, position, doubt int64) int64 {
	if committed >= 0 && committed <= position && committed != doubt {
		return committed
	}
	return min(sent, position)
}

// taken takes the reply of the script apart.
func (s *slotClaim) taken(r *redisconn.Reply) error {
	if r.Status == statusFenced {
		return fmt.Errorf("%w: somebody else claims it at the same time", ErrFenced)
	}
	var err error
	if s.position, err = offsetOf(r.Str(0)); err != nil {
		return err
	}
	s.pending = pending{}
	for _, name := range r.List(1) {
		g, err := parseSegment(name)
		if err != nil {
			return err
		}
		s.pending.add(g)
	}
	return nil
}

// position is the offset before which all slots have applied all records.
func (c *Claim) position() int64 {
	p := c.slots[0].position
	for i := range c.slots {
		p = min(p, c.slots[i].position)
	}
	return p
}

func formatOffset(o int64) string { return strconv.FormatInt(o, 10) }

func formatUint(n uint64) string { return strconv.FormatUint(n, 10) }

func offsetOf(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%w: %q is no offset", ErrCorrupt, text)
	}
	return n, nil
}

// fits compares what is stored with the topic.
func (c *Claim) fits(m *meta, a Assignment) error {
	if m.topic != "" && a.TopicID != ([16]byte{}) && m.topic != hex.EncodeToString(a.TopicID[:]) {
		return fmt.Errorf("%w: its id is %x and the fences are of %s: Rewind starts over", ErrTopicChanged, a.TopicID, m.topic)
	}
	if m.count > c.f.opts.Partitions {
		return fmt.Errorf("%w: %d, and it had %d", ErrPartitions, c.f.opts.Partitions, m.count)
	}
	return nil
}

// Partition is the partition of the claim.
func (c *Claim) Partition() int32 { return c.partition }

// Epoch is the fence epoch of the claim: each claim of a partition has a higher
// one than those before.
func (c *Claim) Epoch() uint64 { return c.epoch }

// Start is the offset from which to read: the committed one; an earlier one when
// Redis has forgotten writes or the group's offset was set ahead; the one that
// was last passed as committed when the group has none any more; and never one
// before the offset of the last Rewind. Reading from a later one loses records.
func (c *Claim) Start() int64 { return c.start }

// Regressed says that Start lies before what the group has committed: Redis has
// forgotten writes of the partition, or somebody has set the offset of the group
// ahead, or rewound the fence and not the group. Records from Start on are
// applied; those whose outputs were sent before are sent a second time.
func (c *Claim) Regressed() bool { return c.regressed }

// Pending is how many records the pending window holds. It counts those of a
// call until all of them are committed.
func (c *Claim) Pending() int { return c.depth() }

func (c *Claim) depth() int {
	n := 0
	for i := range c.slots {
		n += c.slots[i].pending.records
	}
	return n
}

// Release ends the claim for this process. Redis is not told: whoever claims
// next takes over. Releasing again has no effect.
func (c *Claim) Release() {
	if c.ended == nil {
		c.end(ErrReleased)
	}
}

func (c *Claim) end(err error) {
	c.ended = err
	c.metrics.close()
}

// refused turns the reply of a script that wrote nothing into an error, and
// ends the claim.
func (c *Claim) refused(r *redisconn.Reply) error {
	stored := epochOf(r.Str(0))
	var err error
	switch {
	case r.Status == statusFenced && stored >= c.epoch:
		err = fmt.Errorf("%w: epoch %d, and this is %d", ErrFenced, stored, c.epoch)
		c.metrics.verdict(Fenced, 1)
	case r.Status == statusFenced:
		err = fmt.Errorf("%w: the claim with epoch %d is gone, the stored one is %d", ErrRegressed, c.epoch, stored)
		c.metrics.regressed.Add(1)
	default:
		err = fmt.Errorf("%w: the partition stands at %s", ErrRegressed, r.Str(1))
		c.metrics.regressed.Add(1)
	}
	c.f.opts.Logger.Warn("the claim on a partition has ended", "topic", c.f.opts.Topic, "partition", c.partition, "epoch", c.epoch, "error", err)
	c.end(err)
	return err
}
