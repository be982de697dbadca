package assign

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirstreams/weir/internal/topology"
)

// claim says that a member may still be working on something.
type claim struct {
	member     *Member
	generation int32
}

// claims are what the members still have.
type claims struct {
	partitions map[TopicPartition][]claim
	tasks      [][]claim // by index in Cluster.Tasks
}

// collectClaims gathers who may still work on what. A member claims a task by
// any partition of it, since that is what it consumes, whatever it takes the
// task for; and by the task's id if it runs the same topology, since only then
// the id means the same.
func collectClaims(c *Cluster, members []*Member) claims {
	cl := claims{
		partitions: map[TopicPartition][]claim{},
		tasks:      make([][]claim, len(c.Tasks)),
	}
	for _, m := range members {
		for _, p := range m.Partitions {
			cl.partitions[p] = append(cl.partitions[p], claim{m, m.Generation})
		}
	}
	byID := make(map[topology.TaskID]int, len(c.Tasks))
	for i, t := range c.Tasks {
		byID[t.ID] = i
		for _, p := range t.Partitions {
			for _, claimed := range cl.partitions[p] {
				cl.add(i, claimed)
			}
		}
	}
	for _, m := range members {
		if kindOf(m) != (kind{Version, c.Topology}) {
			continue
		}
		for _, id := range m.UserData.Owned {
			if i, known := byID[id]; known {
				cl.add(i, claim{m, m.Generation})
			}
		}
	}
	return cl
}

func (cl *claims) add(task int, c claim) {
	if !slices.Contains(cl.tasks[task], c) {
		cl.tasks[task] = append(cl.tasks[task], c)
	}
}

// holder returns the member with the newest claim, nil without claims. A claim
// of a lower generation is a leftover: its member was out of the group while
// another one was given the task. Of equal ones the first counts.
func holder(list []claim) *Member {
	var newest claim
	for _, c := range list {
		if newest.member == nil || c.generation > newest.generation {
			newest = c
		}
	}
	return newest.member
}

// free reports whether the member may be given what the claims are about: no
// other member has a claim that is as new as its own. Two equally new claims
// block each other until both members have revoked.
func free(list []claim, m *Member) bool {
	mine, claimed := int32(0), false
	for _, c := range list {
		if c.member == m {
			mine, claimed = c.generation, true
		}
	}
	for _, c := range list {
		if c.member != m && !(claimed && c.generation < mine) {
			return false
		}
	}
	return true
}

// kind is what has to be the same for members to work in one group.
type kind struct {
	version  int
	topology Topology
}

func kindOf(m *Member) kind { return kind{m.UserData.Version, m.UserData.Topology} }

// elect returns the kind that the group runs: that of the members who have
// tasks, since they must not be thrown out by a newcomer. Of several, that of
// most members, then that of the smallest member id. It returns nil if no
// member could be read.
func elect(members []*Member, cl *claims) *kind {
	type votes struct {
		kind     kind
		owns     bool
		members  int
		smallest string
	}
	var list []*votes
	for _, m := range members {
		k := kindOf(m)
		if k.version == 0 {
			continue
		}
		i := slices.IndexFunc(list, func(v *votes) bool { return v.kind == k })
		if i < 0 {
			i = len(list)
			list = append(list, &votes{kind: k, smallest: m.ID})
		}
		v := list[i]
		v.members++
		v.smallest = min(v.smallest, m.ID)
		v.owns = v.owns || owns(m, cl)
	}
	if len(list) == 0 {
		return nil
	}
	best := slices.MaxFunc(list, func(a, b *votes) int {
		switch {
		case a.owns != b.owns:
			if a.owns {
				return 1
			}
			return -1
		case a.members != b.members:
			return a.members - b.members
		}
		return strings.Compare(b.smallest, a.smallest)
	})
	return &best.kind
}

// owns reports whether the member has something that nobody got since.
func owns(m *Member, cl *claims) bool {
	if len(m.Partitions) == 0 {
		return len(m.UserData.Owned) > 0
	}
	return slices.ContainsFunc(m.Partitions, func(p TopicPartition) bool {
		return !slices.ContainsFunc(cl.partitions[p], func(c claim) bool { return c.generation > m.Generation })
	})
}

// admit returns the members that run what the group runs, and an error for
// each of the others. The winner is nil if nobody could be read.
func admit(members []*Member, cl *claims) (admitted []*Member, refused map[*Member]*Error, winner *kind) {
	refused = map[*Member]*Error{}
	winner = elect(members, cl)
	for _, m := range members {
		if winner != nil && kindOf(m) == *winner {
			admitted = append(admitted, m)
		}
	}
	for _, m := range members {
		k := kindOf(m)
		switch {
		case k.version == 0:
			refused[m] = &Error{CodeUnreadable, fmt.Sprintf(
				"%s sent data to the group that cannot be read: another program uses the same group; give it another group id", m.describe())}
		case k.version != winner.version:
			refused[m] = &Error{CodeVersion, fmt.Sprintf(
				"%s speaks version %d of the group protocol, but the group works with version %d (%s): "+
					"releases with different versions cannot share a group; stop all members of the one before starting the other",
				m.describe(), k.version, winner.version, admitted[0].describe())}
		case k.topology != winner.topology:
			refused[m] = &Error{CodeTopology, fmt.Sprintf(
				"%s runs topology %s, but the group works on topology %s (%s): "+
					"all members of a group have to run the same topology, laid out for the same partition counts; "+
					"stop all members of the one before starting the other, or give one of them another application id",
				m.describe(), k.topology, winner.topology, admitted[0].describe())}
		}
	}

	// Two live members with the same process id and worker use the same
	// transactional id and would fence each other for ever. The one that has
	// tasks stays.
	first := map[workerKey]*Member{}
	for _, m := range admitted {
		key := workerKey{m.UserData.ProcessID, m.UserData.Worker}
		other := first[key]
		if other == nil {
			first[key] = m
			continue
		}
		keep, drop := other, m // members are in order of id
		if owns(m, cl) && !owns(other, cl) {
			keep, drop = m, other
		}
		first[key] = keep
		refused[drop] = &Error{CodeDuplicate, fmt.Sprintf(
			"%s has the same process id and worker as %s, which is alive: a state folder was copied or is shared; "+
				"give each instance a folder of its own, and remove the copied one",
			drop.describe(), keep.describe())}
	}
	admitted = slices.DeleteFunc(admitted, func(m *Member) bool { return refused[m] != nil })
	return admitted, refused, winner
}

type workerKey struct {
	process ProcessID
	worker  int32
}
