package embedded

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// groupPoll is how often WaitGroup looks.
const groupPoll = 5 * time.Millisecond

// States of a classic group (KIP-62), as Group.State has them.
const (
	GroupStable = "Stable"
	GroupEmpty  = "Empty"
)

// Group is the state of a consumer group at one moment.
type Group struct {
	Name       string
	State      string // "Stable", "Empty", "PreparingRebalance", "CompletingRebalance", ...
	Generation int32  // group generation
	Members    []Member
	Commits    map[string]map[int32]Commit // by topic and partition
}

// Member is a member of a group.
type Member struct {
	ID       string
	Instance string // group.instance.id, or ""
	ClientID string
	Topics   []string           // subscription
	Assigned map[string][]int32 // partitions by topic, as the leader sent them
}

// Commit is a committed offset.
type Commit struct {
	Offset      int64
	LeaderEpoch int32
	Metadata    string
}

// Group returns the state of a group. A group that does not exist is returned
// with an empty State.
func (b *Broker) Group(name string) (Group, error) {
	if err := b.enter(); err != nil {
		return Group{}, err
	}
	defer b.leave()
	return groupOf(name, b.cluster.GroupInfo(name)), nil
}

func groupOf(name string, info *kfake.GroupInfo) Group {
	g := Group{Name: name, Commits: make(map[string]map[int32]Commit)}
	if info == nil {
		return g
	}
	g.State, g.Generation = info.State, info.Epoch
	for _, m := range info.Members {
		member := Member{ID: m.MemberID, ClientID: m.ClientID, Topics: m.SubscribedTopics, Assigned: m.Assignment}
		if m.InstanceID != nil {
			member.Instance = *m.InstanceID
		}
		g.Members = append(g.Members, member)
	}
	for topic, parts := range info.Commits {
		g.Commits[topic] = make(map[int32]Commit, len(parts))
		for p, c := range parts {
			g.Commits[topic][p] = Commit{Offset: c.Offset, LeaderEpoch: c.LeaderEpoch, Metadata: c.Metadata}
		}
	}
	return g
}

// WaitGroup waits until a group is stable with this many members and returns
// it; with 0, until it has none. When ctx ends first, the error says what was
// missing.
func (b *Broker) WaitGroup(ctx context.Context, name string, members int) (Group, error) {
	tick := time.NewTicker(groupPoll)
	defer tick.Stop()
	for {
		g, err := b.Group(name)
		if err != nil {
			return g, err
		}
		if len(g.Members) == members && (members == 0 || g.State == GroupStable) {
			return g, nil
		}
		select {
		case <-ctx.Done():
			return g, fmt.Errorf("waiting for group %q to be stable with %d members: it is %q with %d: %w", name, members, g.State, len(g.Members), context.Cause(ctx))
		case <-b.life.Done():
			return g, ErrClosed
		case <-tick.C:
		}
	}
}
