package simkafka

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/worker"
)

// groupState is where a group is in a rebalance.
type groupState int

const (
	// empty: no members.
	empty groupState = iota
	// joining: waits until all members have joined the next generation
	// (PreparingRebalance).
	joining
	// syncing: all have joined; the leader makes the plan (CompletingRebalance).
	syncing
	// stable: the plan is there.
	stable
)

func (s groupState) String() string { return [...]string{"empty", "joining", "syncing", "stable"}[s] }

// group is a consumer group as its coordinator knows it.
type group struct {
	c          *Cluster
	name       string
	state      groupState
	generation int32
	members    []*seat // in order of their first join; the first is the leader
	since      time.Time
	offsets    map[worker.TopicPartition]worker.Committed
	numbered   int // member ids given out
}

// seat is a member as the coordinator knows it.
type seat struct {
	id     string
	member *Member
	seen   time.Time
	joined bool // the next generation
	// What the last join said.
	userData   []byte
	owned      []assign.TopicPartition
	generation int32
	// plan is what the leader said in this generation; nil before.
	plan *assign.Assignment
}

var (
	errUnknownMember     = errors.New("UNKNOWN_MEMBER_ID")
	errIllegalGeneration = errors.New("ILLEGAL_GENERATION")
	// ErrRebalancing refuses a member that has to join again.
	ErrRebalancing = errors.New("REBALANCE_IN_PROGRESS")
)

func (c *Cluster) group(name string) *group {
	g := c.groups[name]
	if g == nil {
		g = &group{c: c, name: name, offsets: map[worker.TopicPartition]worker.Committed{}}
		c.groups[name] = g
	}
	return g
}

func (g *group) seat(id string) *seat {
	for _, s := range g.members {
		if s.id == id {
			return s
		}
	}
	return nil
}

// rebalance calls for a new generation.
func (g *group) rebalance() {
	for _, s := range g.members {
		s.joined, s.plan = false, nil
	}
	g.state, g.since = joining, g.c.now()
	if len(g.members) == 0 {
		g.state = empty
	}
	g.c.changed()
}

// join is JoinGroup.
func (g *group) join(m *Member, userData []byte, owned []assign.TopicPartition, generation int32) *seat {
	s := g.seat(m.id)
	if s == nil {
		g.numbered++
		s = &seat{id: fmt.Sprintf("%s-%d", m.client.name, g.numbered), member: m}
		g.members = append(g.members, s)
	}
	if g.state != joining {
		g.rebalance()
	}
	s.joined, s.userData, s.owned, s.generation, s.seen = true, userData, owned, generation, g.c.now()
	g.c.changed()
	g.complete()
	return s
}

// complete starts the next generation when all members have joined.
func (g *group) complete() {
	if g.state != joining || slices.ContainsFunc(g.members, func(s *seat) bool { return !s.joined }) {
		return
	}
	g.generation++
	g.state, g.since = syncing, g.c.now()
	for _, s := range g.members {
		s.seen = g.c.now()
		// The answer finds a client that runs in the background; one that is
		// stopped reads it when it goes on.
		if s.member.client.running() {
			s.member.generation = g.generation
		}
	}
	g.c.changed()
}

// sync is SyncGroup of the leader.
func (g *group) sync(plan map[string]assign.Assignment) {
	for _, s := range g.members {
		a := plan[s.id]
		s.plan = &a
		s.seen = g.c.now()
	}
	g.state, g.since = stable, g.c.now()
	g.c.changed()
}

// remove takes a member out, because it left or because it is taken for dead.
func (g *group) remove(s *seat) {
	g.members = slices.DeleteFunc(g.members, func(o *seat) bool { return o == s })
	if g.state == joining && len(g.members) > 0 {
		g.c.changed()
		g.complete()
		return
	}
	g.rebalance()
}

// expire takes out who gave no sign of life, and who did not join in time.
func (g *group) expire(now time.Time) {
	for _, s := range slices.Clone(g.members) {
		cfg := s.member.client.cfg
		waits := g.state == joining && s.joined // its answer is the group's turn
		switch {
		case s.member.client.running():
			s.seen = now // heartbeats come from the background
		case !waits && now.Sub(s.seen) >= cfg.SessionTimeout:
			g.remove(s)
			continue
		}
		late := g.state == joining && !s.joined || g.state == syncing && s == g.members[0]
		if late && now.Sub(g.since) >= cfg.RebalanceTimeout {
			g.remove(s)
		}
	}
}

// next is when the next timeout of the group is due, the zero time for never.
func (g *group) next() time.Time {
	var due time.Time
	at := func(t time.Time) {
		if due.IsZero() || t.Before(due) {
			due = t
		}
	}
	for _, s := range g.members {
		cfg := s.member.client.cfg
		waits := g.state == joining && s.joined
		if !s.member.client.running() && !waits {
			at(s.seen.Add(cfg.SessionTimeout))
		}
		if g.state == joining && !s.joined || g.state == syncing && s == g.members[0] {
			at(g.since.Add(cfg.RebalanceTimeout))
		}
	}
	return due
}

// member checks a request that carries member and generation.
func (g *group) member(id string, generation int32) (*seat, error) {
	s := g.seat(id)
	switch {
	case s == nil:
		return nil, errUnknownMember
	case generation != g.generation:
		return nil, errIllegalGeneration
	}
	s.seen = g.c.now()
	return s, nil
}

// heartbeat is Heartbeat.
func (g *group) heartbeat(id string, generation int32) error {
	s, err := g.member(id, generation)
	switch {
	case err != nil:
		return err
	case g.state == joining && !s.joined:
		return ErrRebalancing
	}
	return nil
}

// store makes offsets the group's.
func (g *group) store(offsets []worker.OffsetCommit) {
	for _, o := range offsets {
		g.offsets[o.TopicPartition] = worker.Committed{Offset: o.Offset, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata}
	}
	g.c.changed()
}

// maxMetadata is offset.metadata.max.bytes.
const maxMetadata = 4096

// commitOffsets is OffsetCommit, or with a producer TxnOffsetCommit, whose
// offsets wait for the end of its transaction.
func (g *group) commitOffsets(memberID string, generation int32, offsets []worker.OffsetCommit, p *producer) error {
	if _, err := g.member(memberID, generation); err != nil {
		return err
	}
	if p == nil && g.state == syncing {
		return ErrRebalancing
	}
	for _, o := range offsets {
		if len(o.Metadata) > maxMetadata {
			return &worker.FatalError{Err: fmt.Errorf("OFFSET_METADATA_TOO_LARGE: %d bytes for %s", len(o.Metadata), name(o.TopicPartition))}
		}
	}
	if p == nil {
		g.store(offsets)
		return nil
	}
	g.c.begin(p)
	p.pending = append(p.pending, pendingOffsets{g, slices.Clone(offsets)})
	g.c.changed()
	return nil
}

// unstable says whether a transaction that is not decided holds an offset for
// the partition.
func (g *group) unstable(tp worker.TopicPartition) bool {
	for _, p := range g.c.producers {
		for i := range p.pending {
			if p.pending[i].holds(g, tp) {
				return true
			}
		}
	}
	return g.c.undecided(g, tp)
}

// Committed returns the offsets of a group without those that are pending.
func (c *Cluster) Committed(groupName string) map[worker.TopicPartition]worker.Committed {
	list := map[worker.TopicPartition]worker.Committed{}
	if g := c.groups[groupName]; g != nil {
		for tp, o := range g.offsets {
			list[tp] = o
		}
	}
	return list
}

// SetOffsets commits offsets of a group as an operator's tool does, without a
// member.
func (c *Cluster) SetOffsets(groupName string, offsets ...worker.OffsetCommit) {
	c.group(groupName).store(offsets)
}

// ExpireGroup makes the broker forget a group: its offsets and its generation.
// It refuses while there are members.
func (c *Cluster) ExpireGroup(groupName string) error {
	c.expire()
	if g := c.groups[groupName]; g != nil && len(g.members) > 0 {
		return fmt.Errorf("group %s: NON_EMPTY_GROUP", groupName)
	}
	delete(c.groups, groupName)
	c.changed()
	return nil
}

// GroupInfo describes a group.
type GroupInfo struct {
	State      string
	Generation int32
	Members    []string // ids, the leader first
}

// Group describes a group.
func (c *Cluster) Group(groupName string) GroupInfo {
	g := c.groups[groupName]
	if g == nil {
		return GroupInfo{State: empty.String()}
	}
	info := GroupInfo{State: g.state.String(), Generation: g.generation}
	for _, s := range g.members {
		info.Members = append(info.Members, s.id)
	}
	return info
}

func (c *Cluster) sortedGroups() []*group {
	list := make([]*group, 0, len(c.groups))
	for _, g := range c.groups {
		list = append(list, g)
	}
	slices.SortFunc(list, func(a, b *group) int { return strings.Compare(a.name, b.name) })
	return list
}

// expire lets all timeouts take effect that are due.
func (c *Cluster) expire() {
	now := c.now()
	c.expireTransactions(now)
	for _, g := range c.sortedGroups() {
		g.expire(now)
	}
}

// NextTimeout is when the next timeout of a transaction, a session or a
// rebalance is due, the zero time when none is.
func (c *Cluster) NextTimeout() time.Time {
	var due time.Time
	at := func(t time.Time) {
		if !t.IsZero() && (due.IsZero() || t.Before(due)) {
			due = t
		}
	}
	for _, p := range c.producers {
		if p.open {
			at(p.since.Add(p.timeout))
		}
	}
	for _, g := range c.groups {
		at(g.next())
	}
	return due
}
