package assign

import (
	"slices"

	"github.com/weirstreams/weir/internal/topology"
)

// Sticky is the default assignor.
//
// Every process and every worker gets its exact share by capacity, rounded up
// or down: of the stateful tasks, so that no worker gets all of them, and of
// all tasks. Among the plans that are so balanced it takes one that moves the
// fewest tasks. A task that nobody has goes to a process with state for it, to
// the one where it is furthest if that has room; and a process that has too
// many gives up those first for which a process with room has state.
//
// It ends: what a member keeps in the first plan is part of a balanced plan,
// so the second one, made when the others were revoked, takes nothing away.
type Sticky struct{}

var _ Assignor = Sticky{}

// Assign implements Assignor.
func (Sticky) Assign(c Cluster, members []Member) (plan map[string]Assignment, followUp bool) {
	sorted := make([]*Member, len(members))
	for i := range members {
		sorted[i] = &members[i]
	}
	slices.SortFunc(sorted, compareMembers)
	c.Tasks = slices.Clone(c.Tasks) // from here on a task's index tells its place
	slices.SortFunc(c.Tasks, func(a, b Task) int { return a.ID.Compare(b.ID) })

	cl := collectClaims(&c, sorted)
	admitted, refused, winner := admit(sorted, &cl)
	plan = make(map[string]Assignment, len(members))
	for m, err := range refused {
		plan[m.ID] = Assignment{Version: Version, Generation: c.Generation, Error: err}
	}
	switch {
	case winner == nil:
		return plan, false
	case *winner != kind{Version, c.Topology}:
		// The leader does not know the tasks of those who have them. It will
		// learn of its own error and leave; until then they keep what they have.
		keep(c, admitted, &cl, plan)
	case c.Problem != nil:
		for _, m := range admitted {
			plan[m.ID] = Assignment{Version: Version, Generation: c.Generation, Error: c.Problem}
		}
		return plan, false
	default:
		followUp = place(c, admitted, &cl, plan)
	}

	hosts := hosts(sorted, plan)
	for id, a := range plan {
		a.FollowUp = followUp
		a.Hosts = hosts
		slices.SortFunc(a.Active, topology.TaskID.Compare)
		slices.SortFunc(a.Partitions, TopicPartition.Compare)
		plan[id] = a
	}
	return plan, followUp
}

// keep leaves everybody what is theirs.
func keep(c Cluster, members []*Member, cl *claims, plan map[string]Assignment) {
	for _, m := range members {
		a := Assignment{Version: Version, Generation: c.Generation}
		for _, p := range m.Partitions {
			if holder(cl.partitions[p]) == m {
				a.Partitions = append(a.Partitions, p)
			}
		}
		if len(a.Partitions) > 0 {
			a.Active = slices.Clone(m.UserData.Owned)
		}
		plan[m.ID] = a
	}
}

// place gives out the tasks and reports whether some had to be withheld.
func place(c Cluster, members []*Member, cl *claims, plan map[string]Assignment) (withheld bool) {
	for _, m := range members {
		plan[m.ID] = Assignment{Version: Version, Generation: c.Generation}
	}
	for task, m := range targets(c.Tasks, members, cl) {
		if m == nil {
			continue // there are no members
		}
		if !free(cl.tasks[task], m) {
			withheld = true
			continue
		}
		a := plan[m.ID]
		a.Active = append(a.Active, c.Tasks[task].ID)
		a.Partitions = append(a.Partitions, c.Tasks[task].Partitions...)
		plan[m.ID] = a
	}
	return withheld
}
