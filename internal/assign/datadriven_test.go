package assign

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/weirstreams/weir/internal/topology"
)

// TestStories runs the scenarios of testdata. With -rewrite the results are
// written anew; read the difference.
//
//	tasks             the topology, one subtopology a line: 0 stateful partitions=4
//	join p1/0         worker 0 of process 1 joins; capacity=2, topology=2, address=host:1
//	leave p1/0 …      the workers leave, or crash: the group cannot tell
//	                  the state of a process stays with it; lose=p1 loses it
//	rebalance         one round: who gets what, what is withheld from whom
//	settle            rounds until nothing is withheld
//
// Stateful tasks are printed with a star.
func TestStories(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		var g *simGroup
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if g != nil {
				g.t = t
			}
			switch d.Cmd {
			case "tasks":
				g = newSimGroup(t, parseTasks(t, d.Input))
				return fmt.Sprintf("%d tasks\n", len(g.tasks))
			case "join", "leave":
				for _, arg := range d.CmdArgs {
					var process byte
					var worker int32
					if _, err := fmt.Sscanf(arg.Key, "p%d/%d", &process, &worker); err != nil {
						continue
					}
					if d.Cmd == "join" {
						m := g.join(process, worker)
						d.MaybeScanArgs(t, "capacity", &m.capacity)
						var fingerprint int
						if d.MaybeScanArgs(t, "topology", &fingerprint) {
							m.topology = Topology{byte(fingerprint)}
						}
						continue
					}
					i := slices.IndexFunc(g.members, func(m *simMember) bool { return m.process[0] == process && m.worker == worker })
					g.leave(g.members[i])
				}
				var lost string
				if d.MaybeScanArgs(t, "lose", &lost) {
					var process byte
					if _, err := fmt.Sscanf(lost, "p%d", &process); err != nil {
						t.Fatal(err)
					}
					clear(g.local[ProcessID{process}])
				}
				return ""
			case "rebalance":
				before := g.owners()
				followUp := g.rebalance()
				return g.tell(before, followUp)
			case "settle":
				before, rounds := g.owners(), 1
				for g.rebalance() {
					rounds++
				}
				return g.tell(before, false) + fmt.Sprintf("rounds: %d\n", rounds)
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	})
}

func parseTasks(t *testing.T, input string) []Task {
	var tasks []Task
	for _, line := range strings.Split(input, "\n") {
		var sub, partitions int
		var class string
		if _, err := fmt.Sscanf(line, "%d %s partitions=%d", &sub, &class, &partitions); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		for p := range partitions {
			tasks = append(tasks, Task{
				ID: topology.TaskID{Subtopology: int32(sub), Partition: int32(p)}, Stateful: class == "stateful",
				Partitions: []TopicPartition{{fmt.Sprintf("left-%d", sub), int32(p)}, {fmt.Sprintf("right-%d", sub), int32(p)}},
			})
		}
	}
	return tasks
}

// tell describes the group after a change from the owners before.
func (g *simGroup) tell(before map[topology.TaskID]*simMember, followUp bool) string {
	var b strings.Builder
	after := g.owners()
	for _, m := range g.members {
		fmt.Fprintf(&b, "p%d/%d:", m.process[0], m.worker)
		if m.err != nil {
			fmt.Fprintf(&b, " %s: %s\n", m.err.Code, m.err)
			continue
		}
		for _, task := range g.tasks {
			if after[task.ID] != m {
				continue
			}
			b.WriteString(" ")
			if before[task.ID] != m {
				b.WriteString("+")
			}
			b.WriteString(task.ID.String())
			if task.Stateful {
				b.WriteString("*")
			}
		}
		b.WriteString("\n")
	}
	var free []string
	for _, task := range g.tasks {
		if after[task.ID] == nil {
			free = append(free, task.ID.String())
		}
	}
	if len(free) > 0 {
		fmt.Fprintf(&b, "nobody: %s\n", strings.Join(free, " "))
	}
	if n := moved(before, after, g.members); n > 0 {
		fmt.Fprintf(&b, "taken from the living: %d\n", n)
	}
	if followUp {
		b.WriteString("follow-up\n")
	}
	return b.String()
}
