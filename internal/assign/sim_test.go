package assign

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/weirstreams/weir/internal/topology"
)

// simGroup is a model of a consumer group under the cooperative rules: members
// keep what they have through a rebalance, revoke what the plan takes from
// them and then rejoin.
type simGroup struct {
	t          *testing.T
	rng        *rand.Rand // nil: members sync in order
	assignor   Assignor
	topology   Topology
	tasks      []Task
	byID       map[topology.TaskID]Task
	generation int32
	members    []*simMember
	local      map[ProcessID]map[topology.TaskID]int64
	next       int // for member ids
}

type simMember struct {
	id         string
	process    ProcessID
	worker     int32
	capacity   int32
	topology   Topology
	version    int
	generation int32
	held       map[topology.TaskID]bool
	err        *Error
	last       Assignment
}

func newSimGroup(t *testing.T, tasks []Task) *simGroup {
	g := &simGroup{
		t: t, assignor: Sticky{}, topology: Topology{1}, tasks: tasks,
		byID:  map[topology.TaskID]Task{},
		local: map[ProcessID]map[topology.TaskID]int64{},
	}
	for _, task := range tasks {
		g.byID[task.ID] = task
	}
	return g
}

func (g *simGroup) join(process byte, worker int32) *simMember {
	g.next++
	m := &simMember{
		id: fmt.Sprintf("m%03d", g.next), process: ProcessID{process}, worker: worker, capacity: 1,
		topology: g.topology, version: Version, generation: -1, held: map[topology.TaskID]bool{},
	}
	g.members = append(g.members, m)
	if g.local[m.process] == nil {
		g.local[m.process] = map[topology.TaskID]int64{}
	}
	return m
}

func (g *simGroup) leave(m *simMember) {
	g.members = slices.DeleteFunc(g.members, func(o *simMember) bool { return o == m })
}

// joinGroup returns the members as the leader sees them.
func (g *simGroup) joinGroup() []Member {
	var list []Member
	for _, m := range g.members {
		ud := UserData{
			Version: m.version, ProcessID: m.process, Worker: m.worker, Topology: m.topology,
			Capacity: m.capacity, Address: fmt.Sprintf("host%d:1", m.process[0]),
		}
		for id := range m.held {
			ud.Owned = append(ud.Owned, id)
		}
		for id, position := range g.local[m.process] {
			ud.Local = append(ud.Local, LocalTask{id, position})
		}
		member := Member{ID: m.id, UserData: ud, Generation: m.generation}
		for _, task := range g.tasks {
			if m.held[task.ID] {
				member.Partitions = append(member.Partitions, task.Partitions...)
			}
		}
		slices.SortFunc(ud.Owned, topology.TaskID.Compare)
		list = append(list, member)
	}
	return list
}

func (g *simGroup) owners() map[topology.TaskID]*simMember {
	list := make(map[topology.TaskID]*simMember, len(g.tasks))
	for _, m := range g.members {
		for id := range m.held {
			list[id] = m
		}
	}
	return list
}

// rebalance runs one round and checks what must hold in each. Members that
// miss it do not hear of the plan and keep what they have.
func (g *simGroup) rebalance(miss ...*simMember) (followUp bool) {
	g.t.Helper()
	g.generation++
	members := g.joinGroup()
	c := Cluster{Topology: g.topology, Tasks: g.tasks, Generation: g.generation}
	plan, followUp := g.assignor.Assign(c, members)
	if len(plan) != len(g.members) {
		g.t.Fatalf("generation %d: plan for %d members, there are %d", g.generation, len(plan), len(g.members))
	}
	if g.rng != nil {
		g.rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		tasks := slices.Clone(g.tasks)
		g.rng.Shuffle(len(tasks), func(i, j int) { tasks[i], tasks[j] = tasks[j], tasks[i] })
		again, f := g.assignor.Assign(Cluster{Topology: g.topology, Tasks: tasks, Generation: g.generation}, members)
		if f != followUp || !reflect.DeepEqual(plan, again) {
			g.t.Fatalf("generation %d: another order of members gives another plan\n%v\n%v", g.generation, plan, again)
		}
	}

	given, lost := map[topology.TaskID]string{}, false
	for _, m := range g.members {
		a := plan[m.id]
		if a.Generation != g.generation || a.Version != Version || a.FollowUp != followUp {
			g.t.Fatalf("generation %d: %s got %+v", g.generation, m.id, a)
		}
		var partitions []TopicPartition
		for _, id := range a.Active {
			if other, twice := given[id]; twice {
				g.t.Fatalf("generation %d: task %s given to %s and %s", g.generation, id, other, m.id)
			}
			given[id] = m.id
			// Before anybody has revoked anything: whoever gets a task now must
			// be sure that no other live member has it.
			for _, o := range g.members {
				if o != m && o.held[id] && o.generation >= m.generation && !m.held[id] {
					g.t.Fatalf("generation %d: task %s given to %s while %s has it", g.generation, id, m.id, o.id)
				}
			}
			task := g.task(id)
			partitions = append(partitions, task.Partitions...)
		}
		slices.SortFunc(partitions, TopicPartition.Compare)
		if !slices.Equal(partitions, a.Partitions) {
			g.t.Fatalf("generation %d: %s got partitions %v for tasks %v", g.generation, m.id, a.Partitions, a.Active)
		}
		for id := range m.held {
			lost = lost || !slices.Contains(a.Active, id)
		}
	}
	if followUp && !lost {
		g.t.Fatalf("generation %d: tasks are withheld, but nobody has to revoke, so nobody will rejoin", g.generation)
	}

	for _, m := range g.members {
		if slices.Contains(miss, m) {
			continue
		}
		a := plan[m.id]
		m.last, m.err, m.generation = a, a.Error, g.generation
		clear(m.held)
		for _, id := range a.Active {
			m.held[id] = true
			if g.task(id).Stateful {
				g.local[m.process][id] = max(g.local[m.process][id], int64(g.generation)*10)
			}
		}
	}
	return followUp
}

func (g *simGroup) task(id topology.TaskID) Task {
	return g.byID[id]
}

// settle rebalances until nothing is withheld and checks the stable plan.
func (g *simGroup) settle() {
	g.t.Helper()
	const limit = 2 // one round to revoke, one to give
	rounds := 1
	for g.rebalance() {
		if rounds++; rounds > limit {
			g.t.Fatalf("generation %d: still withholding after %d rounds with the same members", g.generation, limit)
		}
	}
	if len(g.members) == 0 {
		return
	}
	owners := g.owners()
	if len(owners) != len(g.tasks) {
		g.t.Fatalf("generation %d: %d of %d tasks have an owner", g.generation, len(owners), len(g.tasks))
	}
	before := g.describe()
	if g.rebalance() || g.describe() != before {
		g.t.Fatalf("a stable group moved tasks:\n%s\n%s", before, g.describe())
	}
	g.checkBalance()
}

// checkBalance demands that every member and every process has its exact share
// of the stateful tasks and of all tasks, rounded up or down. With equal
// capacities that is a difference of at most one.
func (g *simGroup) checkBalance() {
	g.t.Helper()
	for _, statefulOnly := range []bool{true, false} {
		count := func(m *simMember) (n int) {
			for id := range m.held {
				if !statefulOnly || g.task(id).Stateful {
					n++
				}
			}
			return n
		}
		total, capacity := 0, 0
		tasks, share := map[string]int{}, map[string]int{}
		for _, m := range g.members {
			for _, name := range []string{m.id, "process " + m.process.String()} {
				tasks[name] += count(m)
				share[name] += int(m.capacity)
			}
			total += count(m)
			capacity += int(m.capacity)
		}
		for name, n := range tasks {
			low := total * share[name] / capacity
			high := (total*share[name] + capacity - 1) / capacity
			if n < low || n > high {
				g.t.Fatalf("generation %d: %s has %d tasks (stateful only: %v), its share is %d to %d\n%s",
					g.generation, name, n, statefulOnly, low, high, g.describe())
			}
		}
	}
}

// describe prints who has what.
func (g *simGroup) describe() string {
	var b strings.Builder
	for _, m := range g.members {
		ids := make([]topology.TaskID, 0, len(m.held))
		for id := range m.held {
			ids = append(ids, id)
		}
		slices.SortFunc(ids, topology.TaskID.Compare)
		fmt.Fprintf(&b, "p%d/%d %s:", m.process[0], m.worker, m.id)
		for _, id := range ids {
			b.WriteString(" " + id.String())
			if g.task(id).Stateful {
				b.WriteString("*")
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// layout makes the tasks of a topology: a subtopology per count, each reading
// as many co-partitioned topics as its number modulo three, plus one.
func layout(stateful func(sub int) bool, partitions ...int) []Task {
	var tasks []Task
	for sub, n := range partitions {
		for p := range n {
			t := Task{ID: topology.TaskID{Subtopology: int32(sub), Partition: int32(p)}, Stateful: stateful(sub)}
			for topic := range sub%3 + 1 {
				t.Partitions = append(t.Partitions, TopicPartition{fmt.Sprintf("t%d-%d", sub, topic), int32(p)})
			}
			tasks = append(tasks, t)
		}
	}
	return tasks
}

// moved counts the tasks that changed from one live owner to another.
func moved(before, after map[topology.TaskID]*simMember, live []*simMember) int {
	n := 0
	for id, m := range before {
		if after[id] != m && slices.Contains(live, m) {
			n++
		}
	}
	return n
}

func randomGroup(t *testing.T, seed uint64) *simGroup {
	rng := rand.New(rand.NewPCG(seed, 1))
	counts := make([]int, 1+rng.IntN(4))
	kinds := make([]bool, len(counts))
	for i := range counts {
		counts[i], kinds[i] = 1+rng.IntN(20), rng.IntN(2) == 0
	}
	g := newSimGroup(t, layout(func(sub int) bool { return kinds[sub] }, counts...))
	g.rng = rng
	return g
}
