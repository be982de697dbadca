package assign

import (
	"slices"
	"strings"
	"testing"
)

func TestAdmission(t *testing.T) {
	t.Parallel()
	tasks := layout(func(int) bool { return true }, 2)
	old, next := Topology{0xaa}, Topology{0xbb}
	member := func(id string, worker int32, version int, fingerprint Topology, owned ...int32) Member {
		m := Member{ID: id, Generation: -1, UserData: UserData{Version: version, ProcessID: ProcessID{1}, Worker: worker, Topology: fingerprint}}
		for _, p := range owned {
			m.Generation = 4
			m.UserData.Owned = append(m.UserData.Owned, tasks[p].ID)
			m.Partitions = append(m.Partitions, tasks[p].Partitions...)
		}
		return m
	}
	unreadable := Member{ID: "u", Generation: 4, Partitions: tasks[0].Partitions}
	stale := member("a", 9, Version, next, 0)
	stale.Generation = 2

	for _, c := range []struct {
		name    string
		leader  Topology
		members []Member
		refused map[string]ErrorCode
		says    string // what each error contains, separated by |
	}{
		{
			"a newcomer with another topology", old,
			[]Member{member("a", 0, Version, next), member("b", 1, Version, next), member("c", 2, Version, old, 0)},
			map[string]ErrorCode{"a": CodeTopology, "b": CodeTopology},
			old.String() + "|" + next.String() + "|application id|worker 2",
		},
		{
			"nobody has tasks: most members", old,
			[]Member{member("a", 0, Version, next), member("b", 1, Version, old), member("c", 2, Version, old)},
			map[string]ErrorCode{"a": CodeTopology}, old.String(),
		},
		{
			"as many of each: smallest id", old,
			[]Member{member("b", 0, Version, next), member("a", 1, Version, old)},
			map[string]ErrorCode{"b": CodeTopology}, old.String(),
		},
		{
			"a stale claim is no claim", old,
			[]Member{stale, member("b", 1, Version, old, 0)},
			map[string]ErrorCode{"a": CodeTopology}, old.String(),
		},
		{
			"both have tasks: most members", old,
			[]Member{member("a", 0, Version, next, 0), member("b", 1, Version, old, 1), member("c", 2, Version, old)},
			map[string]ErrorCode{"a": CodeTopology}, old.String(),
		},
		{
			"another version", old,
			[]Member{member("a", 0, Version+1, old), member("b", 1, Version, old, 0)},
			map[string]ErrorCode{"a": CodeVersion}, "version 2|version 1|stop all members",
		},
		{
			"unreadable, although it has partitions", old,
			[]Member{unreadable, member("b", 1, Version, old)},
			map[string]ErrorCode{"u": CodeUnreadable}, "cannot be read",
		},
		{
			"nobody is readable", old,
			[]Member{unreadable},
			map[string]ErrorCode{"u": CodeUnreadable}, "cannot be read",
		},
		{
			"one process twice", old,
			[]Member{member("a", 0, Version, old), member("b", 0, Version, old), member("c", 1, Version, old)},
			map[string]ErrorCode{"b": CodeDuplicate}, "state folder was copied|\"a\"",
		},
		{
			"one process twice, the second has tasks", old,
			[]Member{member("a", 0, Version, old), member("b", 0, Version, old, 0)},
			map[string]ErrorCode{"a": CodeDuplicate}, "state folder was copied|\"b\"",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			plan, _ := Sticky{}.Assign(Cluster{Topology: c.leader, Tasks: tasks, Generation: 5}, c.members)
			if len(plan) != len(c.members) {
				t.Fatalf("plan for %d members, want %d", len(plan), len(c.members))
			}
			given := 0
			for id, a := range plan {
				given += len(a.Active)
				code := c.refused[id]
				switch {
				case code == 0 && a.Error != nil:
					t.Errorf("%s was refused: %v", id, a.Error)
				case code != 0 && (a.Error == nil || a.Error.Code != code || len(a.Active)+len(a.Partitions) > 0):
					t.Errorf("%s got %+v, want error %s and no tasks", id, a, code)
				case code != 0:
					for _, part := range strings.Split(c.says, "|") {
						if !strings.Contains(a.Error.Error(), part) {
							t.Errorf("the error of %s does not say %q: %s", id, part, a.Error)
						}
					}
				}
			}
			if given == 0 && len(c.refused) < len(c.members) && c.name != "both have tasks: most members" {
				t.Error("nobody got a task")
			}
		})
	}
}

// A leader that itself is refused does not know the tasks of the others. They
// keep what they have until it has left.
func TestForeignLeaderLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	tasks := layout(func(int) bool { return true }, 4)
	for name, leader := range map[string]UserData{
		"topology": {Version: Version, Topology: Topology{0xff}},
		"version":  {Version: Version, Topology: Topology{1}},
	} {
		owners := UserData{Version: Version, Topology: Topology{1}}
		code := CodeTopology
		if name == "version" {
			owners.Version, code = Version+1, CodeVersion
		}
		owner := func(id string, worker int32, generation int32, partitions ...int) Member {
			m := Member{ID: id, Generation: generation, UserData: owners}
			m.UserData.ProcessID, m.UserData.Worker = ProcessID{1}, worker
			for _, p := range partitions {
				m.UserData.Owned = append(m.UserData.Owned, tasks[p].ID)
				m.Partitions = append(m.Partitions, tasks[p].Partitions...)
			}
			return m
		}
		leader.ProcessID = ProcessID{2}
		members := []Member{
			{ID: "leader", Generation: -1, UserData: leader},
			owner("a", 0, 4, 0, 2), owner("b", 1, 4, 1), owner("c", 2, -1),
			owner("zombie", 3, 3, 1),
		}
		plan, followUp := Sticky{}.Assign(Cluster{
			Topology: leader.Topology, Tasks: layout(func(int) bool { return true }, 4, 4),
			Problem: &Error{CodePartitions, "the leader's own trouble"},
		}, members)
		if followUp {
			t.Errorf("%s: a follow-up is announced", name)
		}
		if e := plan["leader"].Error; e == nil || e.Code != code {
			t.Errorf("%s: the leader got %v", name, e)
		}
		if a := plan["zombie"]; a.Error != nil || len(a.Active)+len(a.Partitions) > 0 {
			t.Errorf("%s: a leftover was kept: %+v", name, a)
		}
		for _, m := range members[1:4] {
			a := plan[m.ID]
			if a.Error != nil || !slices.Equal(a.Active, m.UserData.Owned) || !slices.Equal(a.Partitions, m.Partitions) {
				t.Errorf("%s: %s got %+v, want %v", name, m.ID, a, m.UserData.Owned)
			}
		}
	}
}

func TestProblemReachesAllWhoShareIt(t *testing.T) {
	t.Parallel()
	tasks := layout(func(int) bool { return true }, 2)
	member := func(id string, worker int32, fingerprint Topology) Member {
		return Member{ID: id, Generation: -1, UserData: UserData{Version: Version, ProcessID: ProcessID{1}, Worker: worker, Topology: fingerprint}}
	}
	problem := &Error{CodePartitions, "topic t has 3 partitions now"}
	plan, followUp := Sticky{}.Assign(Cluster{Topology: Topology{1}, Tasks: tasks, Problem: problem},
		[]Member{member("a", 0, Topology{1}), member("b", 1, Topology{1}), member("c", 2, Topology{2})})
	if followUp || plan["a"].Error != problem || plan["b"].Error != problem || plan["c"].Error.Code != CodeTopology {
		t.Errorf("got %+v, follow-up %v", plan, followUp)
	}
	for id, a := range plan {
		if len(a.Active)+len(a.Partitions) > 0 {
			t.Errorf("%s got %+v", id, a)
		}
	}
}

// What a refused member still has is given to nobody before it has revoked it.
func TestRefusedMemberRevokesFirst(t *testing.T) {
	t.Parallel()
	tasks := layout(func(int) bool { return true }, 2)
	loser := Member{ID: "z", Generation: 4, Partitions: tasks[1].Partitions, UserData: UserData{
		Version: Version, ProcessID: ProcessID{2}, Topology: Topology{2}, Owned: ids(0, 0), // another task of that name
	}}
	winner := Member{ID: "a", Generation: 4, Partitions: tasks[0].Partitions, UserData: UserData{
		Version: Version, ProcessID: ProcessID{1}, Topology: Topology{1}, Owned: ids(0, 0),
	}}
	c := Cluster{Topology: Topology{1}, Tasks: tasks}
	plan, followUp := Sticky{}.Assign(c, []Member{loser, winner})
	if got := plan["a"].Active; !followUp || !slices.Equal(got, ids(0, 0)) {
		t.Errorf("first round: got %v, follow-up %v", got, followUp)
	}
	loser.Partitions = nil
	plan, followUp = Sticky{}.Assign(c, []Member{loser, winner})
	if got := plan["a"].Active; followUp || !slices.Equal(got, ids(0, 0, 0, 1)) {
		t.Errorf("second round: got %v, follow-up %v", got, followUp)
	}
}

func TestErrorCodesHaveNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for c := CodeVersion; c <= CodeUnreadable+1; c++ {
		if seen[c.String()] || (c <= CodeUnreadable) == strings.HasPrefix(c.String(), "code_") {
			t.Errorf("code %d is called %q", c, c)
		}
		seen[c.String()] = true
	}
}
