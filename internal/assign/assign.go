// Package assign decides which member of the group works on which task, and
// holds what members and leader tell each other for it: UserData goes to the
// leader with a join, an Assignment comes back with the sync. Byte layouts are
// in docs/formats/group.md.
//
// The package is pure: no clock, no randomness, no I/O, and the same input
// gives the same plan whatever the order of the members.
package assign

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/weirstreams/weir/internal/topology"
)

// TopicPartition is one partition of one input topic.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// Compare orders by topic, then by partition.
func (p TopicPartition) Compare(o TopicPartition) int {
	if c := strings.Compare(p.Topic, o.Topic); c != 0 {
		return c
	}
	return cmp.Compare(p.Partition, o.Partition)
}

// Task is a unit of assignment. Its partitions are co-partitioned inputs that
// are always given to one member together; no two tasks share a partition.
type Task struct {
	ID         topology.TaskID
	Stateful   bool
	Partitions []TopicPartition
}

// Topology is a fingerprint of what the members of a group have to agree
// about: the subtopologies with their operators, topics and stores, and the
// partition counts for which the tasks were laid out.
type Topology [8]byte

// String returns the fingerprint as 16 hexadecimal digits.
func (t Topology) String() string { return hex.EncodeToString(t[:]) }

// ProcessID is the random identity of a process, kept in its state folder.
type ProcessID [16]byte

// String returns the id as 32 hexadecimal digits.
func (p ProcessID) String() string { return hex.EncodeToString(p[:]) }

// LocalTask says that a process holds state of a task, be it that one of its
// members is active for it, or that one was.
type LocalTask struct {
	ID topology.TaskID
	// Position is the sum of the changelog positions (next offsets) of the
	// task's stores: the higher, the less there is to restore.
	Position int64
}

// UserData is what a member tells the leader at each join.
type UserData struct {
	// Version is the layout that the member speaks; the constant Version
	// except in what DecodeUserData found in a member of another release.
	Version   int
	ProcessID ProcessID
	// Worker is the number of the worker in its process. The members of a
	// process have different ones.
	Worker   int32
	Topology Topology
	// Owned are the tasks for which the member is still active.
	Owned []topology.TaskID
	// Address is the host:port at which the process answers queries, or "".
	Address string
	// Local is the state at hand in the member's process, that of Owned tasks
	// included: how far those are tells how far others lag behind. Members of
	// one process share it, so it is enough that one of them tells.
	Local []LocalTask
	// Capacity is the member's share of the tasks in proportion to the other
	// members'. Less than 1 counts as 1.
	Capacity int32
}

// Assignment is what the leader tells a member.
type Assignment struct {
	// Version is the layout that the leader wrote.
	Version int
	// Generation is the group generation that the plan was made for.
	Generation int32
	// Error is set when the member gets no tasks because it, or the group,
	// cannot work as it is.
	Error *Error
	// FollowUp says that tasks were withheld from their next owner until
	// those who still have them give them up, which starts another rebalance.
	FollowUp bool
	// Active and Standby are the member's own tasks, in ascending order.
	Active  []topology.TaskID
	Standby []topology.TaskID
	// Hosts says who serves which task, for queries. Tasks that are being
	// handed over have no active host.
	Hosts []Host

	// Partitions are those of the active tasks. They are not part of the
	// encoding: the group protocol has a place of its own for them.
	Partitions []TopicPartition
}

// Host is a process that answers queries, and the tasks of all its members.
type Host struct {
	Address string
	Active  []topology.TaskID
	Standby []topology.TaskID
}

// ErrorCode says what kind of Error it is. Codes are stable across releases.
type ErrorCode uint8

// The error codes. Unknown ones come from a leader of a newer release.
const (
	// CodeVersion: the member speaks another layout than the group.
	CodeVersion ErrorCode = iota + 1
	// CodeTopology: the member runs another topology than the group.
	CodeTopology
	// CodeDuplicate: another live member has the same process id and worker.
	CodeDuplicate
	// CodePartitions: an input topic has another partition count than it had
	// when the application was started.
	CodePartitions
	// CodeUnreadable: the member's or the leader's message is damaged.
	CodeUnreadable
)

// String returns the code as a word, for logs and machines.
func (c ErrorCode) String() string {
	switch c {
	case CodeVersion:
		return "version_mismatch"
	case CodeTopology:
		return "topology_mismatch"
	case CodeDuplicate:
		return "duplicate_member"
	case CodePartitions:
		return "partitions_changed"
	case CodeUnreadable:
		return "unreadable"
	}
	return fmt.Sprintf("code_%d", uint8(c))
}

// Error is why a member gets no tasks. Text says what is wrong, with whom, and
// what to do.
type Error struct {
	Code ErrorCode
	Text string
}

func (e *Error) Error() string { return e.Text }

// Member is a member of the group as the leader sees it.
type Member struct {
	// ID is the group protocol's member id.
	ID       string
	UserData UserData
	// Generation is the last one that the member took part in, -1 for none.
	// A claim of a lower generation than another's is a leftover.
	Generation int32
	// Partitions are those which the member still consumes.
	Partitions []TopicPartition
}

// Cluster is what the leader knows besides the members.
type Cluster struct {
	// Topology is the leader's own, and Tasks are its tasks.
	Topology Topology
	Tasks    []Task
	// Generation is the one that the plan is for.
	Generation int32
	// Problem, if set, is why the tasks cannot be given out at all. Each
	// member of the leader's topology gets it instead of tasks.
	Problem *Error
}

// Assignor makes the plan of a generation. An implementation is a pure
// function of its arguments, whatever the order of the members, and may be
// called from several goroutines. Neither argument is changed.
//
// The plan is cooperative: no task is given to a member while another one may
// still have it. followUp says that tasks were withheld for that reason; each
// of them is then missing from the plan of a member that claims it, which
// makes that member revoke it and start the next rebalance.
type Assignor interface {
	Assign(c Cluster, members []Member) (plan map[string]Assignment, followUp bool)
}

// compareMembers orders members by process, worker and member id: an order
// that outlives member ids, which are new after each restart.
func compareMembers(a, b *Member) int {
	if c := bytes.Compare(a.UserData.ProcessID[:], b.UserData.ProcessID[:]); c != 0 {
		return c
	}
	if c := cmp.Compare(a.UserData.Worker, b.UserData.Worker); c != 0 {
		return c
	}
	return strings.Compare(a.ID, b.ID)
}

// describe names a member for people.
func (m *Member) describe() string {
	s := fmt.Sprintf("member %q (process %s, worker %d", m.ID, m.UserData.ProcessID, m.UserData.Worker)
	if m.UserData.Address != "" {
		s += ", " + m.UserData.Address
	}
	return s + ")"
}

// hosts collects who serves what. Members without an address answer no
// queries.
func hosts(members []*Member, plan map[string]Assignment) []Host {
	byAddress := map[string]*Host{}
	for _, m := range members {
		a := plan[m.ID]
		if m.UserData.Address == "" || a.Error != nil {
			continue
		}
		h := byAddress[m.UserData.Address]
		if h == nil {
			h = &Host{Address: m.UserData.Address}
			byAddress[m.UserData.Address] = h
		}
		h.Active = append(h.Active, a.Active...)
		h.Standby = append(h.Standby, a.Standby...)
	}
	var list []Host
	for _, h := range byAddress {
		slices.SortFunc(h.Active, topology.TaskID.Compare)
		slices.SortFunc(h.Standby, topology.TaskID.Compare)
		list = append(list, *h)
	}
	slices.SortFunc(list, func(a, b Host) int { return strings.Compare(a.Address, b.Address) })
	return list
}
