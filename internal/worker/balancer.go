package worker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/topology"
)

// balancerProtocol is the name under which the members of a group agree on
// this balancer. Consumers with any other are refused by the group's
// coordinator (INCONSISTENT_GROUP_PROTOCOL).
const balancerProtocol = "weir"

// subscriptionVersion is the version of ConsumerProtocolSubscription that
// carries owned partitions and generation (KIP-429, KIP-792).
const subscriptionVersion = 3

// balancer brings internal/assign into franz-go's group management: it says at
// a join who the member is and what it has, plans as the leader, and keeps
// what the leader said beside the partitions. One is for one client.
//
// It is cooperative (KIP-429). franz-go then keeps what a member has through a
// rebalance, revokes what the plan takes away before the member joins again,
// and makes it join again if that was anything. So the plan must not give a
// partition to a member while another one has it, and must take it from that
// one for the next round to come.
type balancer struct {
	userData func() assign.UserData
	tasks    func(counts map[string]int32) ([]assign.Task, error)
	assignor assign.Assignor

	mu struct {
		sync.Mutex
		last assign.Assignment
	}
}

var (
	_ kgo.GroupBalancer           = (*balancer)(nil)
	_ kgo.ConsumerBalancerBalance = (*balancer)(nil)
)

// newBalancer returns the balancer of one client. Both functions are called
// from the client's goroutines.
//
// userData says who the member is. Its Owned is not used: what the member has
// is what the client has, which has given up everything that was revoked.
//
// tasks returns the task table if the topics still have the partition counts
// that it was made for, and else an error that says which topic has changed
// and what to do; all members then get that error (an *assign.Error as it is)
// instead of tasks. Topics that are not in counts have not changed; with nil it
// must return the table.
func newBalancer(userData func() assign.UserData, tasks func(counts map[string]int32) ([]assign.Task, error)) *balancer {
	return &balancer{userData: userData, tasks: tasks, assignor: assign.Sticky{}}
}

// lastAssignment returns what the leader said last, the zero value before the
// first time. It is set before the client's OnPartitionsAssigned is called,
// which happens after each rebalance, also when nothing is added.
func (b *balancer) lastAssignment() assign.Assignment {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.last
}

func (b *balancer) remember(a assign.Assignment) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.last = a
}

// ProtocolName implements kgo.GroupBalancer.
func (*balancer) ProtocolName() string { return balancerProtocol }

// IsCooperative implements kgo.GroupBalancer.
func (*balancer) IsCooperative() bool { return true }

// JoinGroupMetadata implements kgo.GroupBalancer. current is empty after the
// member was thrown out of the group, when others may have its tasks.
func (b *balancer) JoinGroupMetadata(topics []string, current map[string][]int32, generation int32) []byte {
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Version = subscriptionVersion
	meta.Topics = topics
	meta.Generation = generation
	for topic, partitions := range current {
		owned := kmsg.NewConsumerMemberMetadataOwnedPartition()
		owned.Topic, owned.Partitions = topic, partitions
		meta.OwnedPartitions = append(meta.OwnedPartitions, owned)
	}
	slices.SortFunc(meta.OwnedPartitions, func(a, b kmsg.ConsumerMemberMetadataOwnedPartition) int {
		return strings.Compare(a.Topic, b.Topic)
	})
	data := b.userData()
	data.Owned = b.ownedTasks(current)
	meta.UserData = data.Encode()
	return meta.AppendTo(nil)
}

// ownedTasks returns the tasks of which the client has a partition. A claim
// for which the client has nothing to revoke would block the task for ever:
// nobody would start the rebalance that gives it away.
func (b *balancer) ownedTasks(current map[string][]int32) []topology.TaskID {
	if len(current) == 0 {
		return nil
	}
	tasks, err := b.tasks(nil)
	if err != nil {
		return nil // the partitions are claimed all the same
	}
	var owned []topology.TaskID
	for _, t := range tasks {
		if slices.ContainsFunc(t.Partitions, func(p assign.TopicPartition) bool {
			return slices.Contains(current[p.Topic], p.Partition)
		}) {
			owned = append(owned, t.ID)
		}
	}
	return owned
}

// ParseSyncAssignment implements kgo.GroupBalancer. What the leader says
// beside the partitions must not make the client leave and join again without
// end, so trouble with it becomes the Error of the last assignment, for the
// worker to act on.
func (b *balancer) ParseSyncAssignment(assignment []byte) (map[string][]int32, error) {
	meta := kmsg.NewConsumerMemberAssignment()
	if err := meta.ReadFrom(assignment); err != nil {
		return nil, fmt.Errorf("assignment by the group's leader: %w", err)
	}
	a, err := assign.DecodeAssignment(meta.UserData)
	if err != nil && !errors.Is(err, assign.ErrNewer) {
		a = assign.Assignment{Error: &assign.Error{
			Code: assign.CodeUnreadable,
			Text: err.Error() + ": another program works as a member of the group; give it another group id",
		}}
	}
	partitions := map[string][]int32{}
	if a.Error == nil {
		for _, t := range meta.Topics {
			partitions[t.Topic] = t.Partitions
			for _, p := range t.Partitions {
				a.Partitions = append(a.Partitions, assign.TopicPartition{Topic: t.Topic, Partition: p})
			}
		}
		slices.SortFunc(a.Partitions, assign.TopicPartition.Compare)
	}
	b.remember(a)
	return partitions, nil
}

// MemberBalancer implements kgo.GroupBalancer.
func (b *balancer) MemberBalancer(members []kmsg.JoinGroupResponseMember) (kgo.GroupMemberBalancer, map[string]struct{}, error) {
	c, err := kgo.NewConsumerBalancer(b, members)
	if err != nil {
		return nil, nil, fmt.Errorf("subscriptions of the group's members: %w", err)
	}
	return c, c.MemberTopics(), nil
}

// Balance implements kgo.ConsumerBalancerBalance: it plans as the leader.
func (b *balancer) Balance(members *kgo.ConsumerBalancer, counts map[string]int32) kgo.IntoSyncAssignment {
	cluster := assign.Cluster{Topology: b.userData().Topology, Generation: members.Info().Generation}
	tasks, err := b.tasks(balancerCounts(counts))
	if err == nil {
		err = balancerDisjoint(tasks)
	}
	cluster.Tasks = tasks
	if err != nil {
		cluster.Tasks = nil
		if !errors.As(err, &cluster.Problem) {
			cluster.Problem = &assign.Error{Code: assign.CodePartitions, Text: err.Error()}
		}
	}

	var list []assign.Member
	members.EachMember(func(m *kmsg.JoinGroupResponseMember, meta *kmsg.ConsumerMemberMetadata) {
		member := assign.Member{ID: m.MemberID, Generation: meta.Generation}
		// The head of a newer version is enough, and no version says what it is
		// when it cannot be read: the assignor refuses either.
		member.UserData, _ = assign.DecodeUserData(meta.UserData)
		for _, t := range meta.OwnedPartitions {
			for _, p := range t.Partitions {
				member.Partitions = append(member.Partitions, assign.TopicPartition{Topic: t.Topic, Partition: p})
			}
		}
		list = append(list, member)
	})
	plan, _ := b.assignor.Assign(cluster, list)
	return balancerPlan(plan)
}

// balancerCounts leaves out topics that the leader's metadata does not show. It
// may lag behind, and a topic that was deleted shows when it is read.
func balancerCounts(counts map[string]int32) map[string]int32 {
	known := make(map[string]int32, len(counts))
	for topic, n := range counts {
		if n > 0 {
			known[topic] = n
		}
	}
	return known
}

// balancerDisjoint refuses a table that would give one partition to two
// members.
func balancerDisjoint(tasks []assign.Task) error {
	taken := map[assign.TopicPartition]topology.TaskID{}
	for _, t := range tasks {
		for _, p := range t.Partitions {
			if other, twice := taken[p]; twice {
				return fmt.Errorf("tasks %s and %s share partition %d of topic %s: a topic must be read by one subtopology only", other, t.ID, p.Partition, p.Topic)
			}
			taken[p] = t.ID
		}
	}
	return nil
}

// balancerPlan is the assignments by member id.
type balancerPlan map[string]assign.Assignment

var _ kgo.IntoSyncAssignment = balancerPlan(nil)

// IntoSyncAssignment implements kgo.IntoSyncAssignment.
func (plan balancerPlan) IntoSyncAssignment() []kmsg.SyncGroupRequestGroupAssignment {
	list := make([]kmsg.SyncGroupRequestGroupAssignment, 0, len(plan))
	for id, a := range plan {
		meta := kmsg.NewConsumerMemberAssignment()
		meta.UserData = a.Encode()
		for _, p := range a.Partitions { // in order of topics
			last := len(meta.Topics) - 1
			if last < 0 || meta.Topics[last].Topic != p.Topic {
				t := kmsg.NewConsumerMemberAssignmentTopic()
				t.Topic = p.Topic
				meta.Topics = append(meta.Topics, t)
				last++
			}
			meta.Topics[last].Partitions = append(meta.Topics[last].Partitions, p.Partition)
		}
		s := kmsg.NewSyncGroupRequestGroupAssignment()
		s.MemberID, s.MemberAssignment = id, meta.AppendTo(nil)
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b kmsg.SyncGroupRequestGroupAssignment) int { return strings.Compare(a.MemberID, b.MemberID) })
	return list
}
