package assign

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weirstreams/weir/internal/topology"
)

// TestRandomGroups changes the membership at random, also in the middle of a
// rebalance. Each round checks that no task has two owners and that whoever
// waits for a task waits for somebody who is about to revoke it; each time the
// group settles, within two rounds, that every task has one owner, that the
// shares are exact and that a further rebalance changes nothing.
func TestRandomGroups(t *testing.T) {
	t.Parallel()
	for seed := range uint64(120) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			g := randomGroup(t, seed)
			weighted := seed%4 == 3
			for range 12 {
				g.step(weighted)
				if g.rng.IntN(3) == 0 { // another change arrives in mid-rebalance
					g.rebalance()
					g.step(weighted)
				}
				g.settle()
			}
		})
	}
}

// step changes the membership.
func (g *simGroup) step(weighted bool) {
	switch n := g.rng.IntN(10); {
	case len(g.members) == 0 || n < 5:
		m := g.join(byte(1+g.rng.IntN(5)), g.freeWorker())
		if weighted {
			m.capacity = int32(1 + g.rng.IntN(4))
		}
	case n < 8: // one leaves or crashes
		g.leave(g.members[g.rng.IntN(len(g.members))])
	case n < 9: // a process crashes
		dead := g.members[g.rng.IntN(len(g.members))].process
		g.members = slices.DeleteFunc(g.members, func(m *simMember) bool { return m.process == dead })
	default: // one does not hear of a plan and comes to the next round with what it had
		g.rebalance(g.members[g.rng.IntN(len(g.members))])
	}
}

func (g *simGroup) freeWorker() int32 {
	g.next++
	return int32(g.next)
}

// TestMovement bounds what moves when one worker comes or goes. With tasks of
// one class it is the newcomer's share, and nothing but the tasks of the one
// who left. Where several shares have to be exact at once, those of stateful
// and stateless tasks or those of processes and workers, rounding can force an
// exchange on top.
func TestMovement(t *testing.T) {
	t.Parallel()
	const exchanged = 2
	for seed := range uint64(150) {
		g := randomGroup(t, seed)
		class := func(task Task) bool { return task.Stateful != g.tasks[0].Stateful }
		slack := 0
		if slices.ContainsFunc(g.tasks, class) {
			slack = exchanged
		}
		processes := []int{0, 1, 2, 3, 4}[seed%5] // 0: one for each worker
		for i := range 12 {
			process := byte(i + 1)
			if processes > 0 {
				process = byte(1 + g.rng.IntN(processes))
			}
			before := g.owners()
			g.join(process, g.freeWorker())
			g.settle()
			n, share := moved(before, g.owners(), g.members), (len(g.tasks)+len(g.members)-1)/len(g.members)
			if n > share+slack {
				t.Fatalf("seed %d: %d of %d tasks moved to make room for member %d, its share is %d", seed, n, len(g.tasks), len(g.members), share)
			}
		}
		for len(g.members) > 1 {
			before := g.owners()
			g.leave(g.members[g.rng.IntN(len(g.members))])
			g.settle()
			if n := moved(before, g.owners(), g.members); n > slack && (processes == 0 || n > exchanged) {
				t.Fatalf("seed %d: %d tasks moved between those who stayed", seed, n)
			}
		}
	}
}

// TestRestartOfAll: after all processes were down at once, each stateful task
// is back where its state is furthest.
func TestRestartOfAll(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		g := randomGroup(t, seed)
		for range 3 + g.rng.IntN(6) {
			g.join(byte(1+g.rng.IntN(4)), g.freeWorker())
			g.settle()
		}
		want := map[topology.TaskID]ProcessID{}
		for id, m := range g.owners() {
			want[id] = m.process
		}
		for _, m := range g.members {
			g.next++
			m.id, m.generation = fmt.Sprintf("new%03d", g.next), -1
			clear(m.held)
		}
		g.settle()
		for id, m := range g.owners() {
			if g.task(id).Stateful && m.process != want[id] {
				t.Errorf("seed %d: task %s came to process %s, its state is at %s", seed, id, m.process, want[id])
			}
		}
	}
}

// TestComebackPrefersItsOwnState: of what the others have to give up anyway, a
// returning process gets those tasks for which it has state.
func TestComebackPrefersItsOwnState(t *testing.T) {
	t.Parallel()
	g := newSimGroup(t, layout(func(int) bool { return true }, 30))
	for p := range byte(3) {
		g.join(p+1, 0)
	}
	g.settle()
	gone := g.members[1]
	had := map[topology.TaskID]bool{}
	for id := range gone.held {
		had[id] = true
	}
	g.leave(gone)
	g.settle()
	before := g.owners()
	back := g.join(2, 0)
	g.settle()
	for id := range back.held {
		if !had[id] {
			t.Errorf("the process that came back got %s, for which it has no state", id)
		}
	}
	if n := moved(before, g.owners(), g.members); n != 10 {
		t.Errorf("%d tasks moved, want 10", n)
	}
}

func TestHighestPositionWins(t *testing.T) {
	t.Parallel()
	tasks := layout(func(int) bool { return true }, 2)
	member := func(id string, process byte, position int64) Member {
		return Member{ID: id, Generation: -1, UserData: UserData{
			Version: Version, ProcessID: ProcessID{process}, Local: []LocalTask{{tasks[0].ID, position}},
		}}
	}
	for _, positions := range [][2]int64{{100, 99}, {99, 100}} {
		plan, _ := Sticky{}.Assign(Cluster{Tasks: tasks}, []Member{member("a", 1, positions[0]), member("b", 2, positions[1])})
		want := "a"
		if positions[1] > positions[0] {
			want = "b"
		}
		if got := plan[want].Active; !slices.Equal(got, ids(0, 0)) {
			t.Errorf("positions %v: %s got %v, want 0_0", positions, want, got)
		}
	}
}

// TestFewChoicesComeFirst: a process that alone has state for a task gets it,
// although another task would find the most there, too.
func TestFewChoicesComeFirst(t *testing.T) {
	t.Parallel()
	tasks := layout(func(int) bool { return true }, 2)
	member := func(id string, process byte, local ...LocalTask) Member {
		return Member{ID: id, Generation: -1, UserData: UserData{Version: Version, ProcessID: ProcessID{process}, Local: local}}
	}
	plan, _ := Sticky{}.Assign(Cluster{Tasks: tasks}, []Member{
		member("a", 1, LocalTask{tasks[0].ID, 100}, LocalTask{tasks[1].ID, 100}),
		member("b", 2, LocalTask{tasks[0].ID, 90}),
	})
	if !slices.Equal(plan["a"].Active, ids(0, 1)) || !slices.Equal(plan["b"].Active, ids(0, 0)) {
		t.Errorf("got %v and %v, want 0_1 and 0_0", plan["a"].Active, plan["b"].Active)
	}
}

// TestStatefulTasksStayRather: where it is all the same for the balance, a
// stateless task moves and not a stateful one.
func TestStatefulTasksStayRather(t *testing.T) {
	t.Parallel()
	g := newSimGroup(t, layout(func(sub int) bool { return sub == 0 }, 1, 3))
	first := g.join(1, 0)
	g.settle()
	second := g.join(2, 0)
	g.settle()
	if len(second.held) != 2 || !first.held[g.tasks[0].ID] {
		t.Errorf("got\n%s", g.describe())
	}
}

// TestStaleClaims: a member that was out of the group comes back still holding
// what was given to another one in the meantime.
func TestStaleClaims(t *testing.T) {
	t.Parallel()
	tasks := layout(func(int) bool { return true }, 1)
	member := func(id string, process byte, generation int32, holds bool) Member {
		m := Member{ID: id, Generation: generation, UserData: UserData{Version: Version, ProcessID: ProcessID{process}}}
		if holds {
			m.UserData.Owned, m.Partitions = ids(0, 0), tasks[0].Partitions
		}
		return m
	}
	for _, c := range []struct {
		name    string
		members []Member
		owner   string // "" when withheld
	}{
		{"the newest claim wins", []Member{member("zombie", 1, 5, true), member("owner", 2, 7, true)}, "owner"},
		{"whatever the order", []Member{member("owner", 2, 7, true), member("zombie", 1, 5, true)}, "owner"},
		{"equal claims block each other", []Member{member("x", 1, 7, true), member("y", 2, 7, true)}, ""},
		{"a lone claim is kept however old", []Member{member("x", 1, 1, true), member("y", 2, 7, false)}, "x"},
	} {
		plan, followUp := Sticky{}.Assign(Cluster{Tasks: tasks, Generation: 8}, c.members)
		owner := ""
		for id, a := range plan {
			if len(a.Active) > 0 {
				owner += id
			}
		}
		if owner != c.owner || followUp != (c.owner == "") {
			t.Errorf("%s: got owner %q, follow-up %v, want %q", c.name, owner, followUp, c.owner)
		}
	}
}

// TestClaimByTaskID: a member of the same topology can claim a task without a
// partition of it.
func TestClaimByTaskID(t *testing.T) {
	t.Parallel()
	tasks := layout(func(int) bool { return true }, 2)
	busy := Member{ID: "busy", Generation: 3, Partitions: tasks[1].Partitions, UserData: UserData{
		Version: Version, ProcessID: ProcessID{2}, Owned: ids(0, 0, 0, 1),
	}}
	idle := Member{ID: "idle", Generation: -1, UserData: UserData{Version: Version, ProcessID: ProcessID{1}}}
	plan, followUp := Sticky{}.Assign(Cluster{Tasks: tasks}, []Member{busy, idle})
	if len(plan["idle"].Active) > 0 || len(plan["busy"].Active) != 1 || !followUp {
		t.Errorf("got %+v, follow-up %v", plan, followUp)
	}
}

// TestClaimByOnePartition: a member that has one of two co-partitioned inputs
// still blocks the task.
func TestClaimByOnePartition(t *testing.T) {
	t.Parallel()
	tasks := []Task{{ID: topology.TaskID{}, Partitions: []TopicPartition{{"a", 0}, {"b", 0}}}}
	half := Member{ID: "half", Generation: 3, Partitions: tasks[0].Partitions[1:], UserData: UserData{
		Version: Version, ProcessID: ProcessID{2}, Topology: Topology{9},
	}}
	whole := Member{ID: "whole", Generation: -1, UserData: UserData{Version: Version, ProcessID: ProcessID{1}}}
	other := Member{ID: "x", Generation: 3, Partitions: []TopicPartition{{"c", 0}}, UserData: UserData{Version: Version, ProcessID: ProcessID{3}}}
	plan, followUp := Sticky{}.Assign(Cluster{Tasks: tasks}, []Member{half, whole, other})
	if plan["half"].Error == nil || len(plan["whole"].Active)+len(plan["x"].Active) != 0 || !followUp {
		t.Errorf("got %+v, follow-up %v", plan, followUp)
	}
}

func TestNobodyIsAsked(t *testing.T) {
	t.Parallel()
	plan, followUp := Sticky{}.Assign(Cluster{Tasks: layout(func(int) bool { return true }, 3)}, nil)
	if len(plan) != 0 || followUp {
		t.Errorf("got %v, %v", plan, followUp)
	}
}

func TestHosts(t *testing.T) {
	t.Parallel()
	tasks := layout(func(int) bool { return true }, 6)
	var members []Member
	for i, address := range []string{"b:1", "b:1", "a:1", ""} {
		m := Member{ID: fmt.Sprint(i), Generation: -1, UserData: UserData{Version: Version, Worker: int32(i), Address: address}}
		copy(m.UserData.ProcessID[:], address)
		members = append(members, m)
	}
	plan, _ := Sticky{}.Assign(Cluster{Tasks: tasks}, members)
	want := []Host{
		{Address: "a:1", Active: plan["2"].Active},
		{Address: "b:1", Active: append(slices.Clone(plan["0"].Active), plan["1"].Active...)},
	}
	slices.SortFunc(want[1].Active, topology.TaskID.Compare)
	for id, a := range plan {
		if fmt.Sprint(a.Hosts) != fmt.Sprint(want) {
			t.Errorf("member %s got hosts %v, want %v", id, a.Hosts, want)
		}
	}
}
