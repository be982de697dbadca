package topology

import (
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// The scenarios declare a graph, a node a line in order of declaration:
//
//	source NAME topic=T | repartition=R [reset=latest|fail] [feedback]
//	op NAME <- PARENT ... [rekeys] [stores=A,B]
//	sink NAME <- PARENT [topic=T | repartition=R]
//	store NAME [unlogged] [timestamped]
//	repartition NAME [partitions=N]
//
// and ask about it:
//
//	describe                what String prints
//	cut                     subtopologies and what belongs to them
//	resolve [app=A] T=N...  partition counts
//	fingerprint
func TestScenarios(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var top *Topology
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "graph":
				var err error
				if top, err = New(parse(t, d)); err != nil {
					return err.Error() + "\n"
				}
				return "ok\n"
			case "describe":
				return top.String()
			case "cut":
				return cut(top)
			case "resolve":
				return resolve(t, top, d)
			case "fingerprint":
				return hex.EncodeToString(top.Fingerprint[:]) + "\n"
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

func parse(t *testing.T, d *datadriven.TestData) Graph {
	t.Helper()
	var g Graph
	index := map[string]int{}
	parents := map[string][]string{}
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		if len(words) < 2 {
			d.Fatalf(t, "bad line %q", line)
		}
		n, flags := Node{Name: words[1]}, map[string]string{}
		arrow := false
		for _, w := range words[2:] {
			name, value, _ := strings.Cut(w, "=")
			switch {
			case w == "<-":
				arrow = true
			case arrow && !strings.Contains(w, "=") && w != "rekeys":
				parents[n.Name] = append(parents[n.Name], w)
			default:
				flags[name] = value
			}
		}
		has := func(flag string) bool { _, ok := flags[flag]; return ok }
		switch words[0] {
		case "source", "op", "sink":
			n.Kind = map[string]Kind{"source": SourceNode, "op": OperatorNode, "sink": SinkNode}[words[0]]
			n.Topic, n.Repartition = flags["topic"]+flags["repartition"], has("repartition")
			n.Reset = map[string]ResetPolicy{"": Earliest, "latest": Latest, "fail": Fail}[flags["reset"]]
			n.Feedback, n.RekeysRecords = has("feedback"), has("rekeys")
			if has("stores") {
				n.Stores = strings.Split(flags["stores"], ",")
			}
			index[n.Name] = len(g.Nodes)
			g.Nodes = append(g.Nodes, n)
		case "store":
			g.Stores = append(g.Stores, Store{Name: n.Name, Logged: !has("unlogged"), Timestamped: has("timestamped")})
		case "repartition":
			count := 0
			if has("partitions") {
				var err error
				if count, err = strconv.Atoi(flags["partitions"]); err != nil {
					d.Fatalf(t, "%v", err)
				}
			}
			g.Repartitions = append(g.Repartitions, Repartition{Name: n.Name, Partitions: int32(count)})
		default:
			d.Fatalf(t, "bad line %q", line)
		}
	}
	for i := range g.Nodes {
		for _, p := range parents[g.Nodes[i].Name] {
			at, ok := index[p]
			if !ok {
				d.Fatalf(t, "no node %s", p)
			}
			g.Nodes[i].Parents = append(g.Nodes[i].Parents, at)
		}
	}
	return g
}

func cut(top *Topology) string {
	var b strings.Builder
	for _, s := range top.Subtopologies {
		fmt.Fprintf(&b, "%d:\n", s.ID)
		for i, src := range s.Sources {
			fmt.Fprintf(&b, "  source %d %s node=%s repartition=%t reset=%s\n", i, src.Name, src.Node, src.Repartition, src.Reset)
		}
		for _, st := range s.Stores {
			fmt.Fprintf(&b, "  store %s logged=%t timestamped=%t\n", st.Name, st.Logged, st.Timestamped)
		}
		if len(s.Repartitions) > 0 {
			fmt.Fprintf(&b, "  writes repartition %s\n", strings.Join(s.Repartitions, " "))
		}
		if len(s.SinkTopics) > 0 {
			fmt.Fprintf(&b, "  writes %s\n", strings.Join(s.SinkTopics, " "))
		}
		for _, group := range s.Copartitioned {
			fmt.Fprintf(&b, "  co-partitioned %d\n", group)
		}
	}
	read, written := top.UserTopics()
	fmt.Fprintf(&b, "reads %v, writes %v\n", read, written)
	return b.String()
}

func resolve(t *testing.T, top *Topology, d *datadriven.TestData) string {
	t.Helper()
	app, counts := "app", map[string]int32{}
	for _, arg := range d.CmdArgs {
		if arg.Key == "app" {
			app = arg.Vals[0]
			continue
		}
		n, err := strconv.Atoi(arg.Vals[0])
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		counts[arg.Key] = int32(n)
	}
	res, err := top.ResolvePartitions(app, counts)
	if err != nil {
		return err.Error() + "\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "tasks %d\n", res.Tasks)
	for _, topic := range slices.Sorted(maps.Keys(res.Partitions)) {
		fmt.Fprintf(&b, "reads %s: %d\n", topic, res.Partitions[topic])
	}
	for _, list := range [][]InternalTopic{res.Repartitions, res.Changelogs} {
		for _, x := range list {
			fmt.Fprintf(&b, "%s: %d, subtopology %d", x.Name, x.Partitions, x.Subtopology)
			if x.Store != "" {
				fmt.Fprintf(&b, ", store %s", x.Store)
			}
			for _, k := range slices.Sorted(maps.Keys(x.Config)) {
				fmt.Fprintf(&b, " %s=%s", k, x.Config[k])
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// A chain of diamonds has more ways through it than a number can count.
func TestDescribeManyWays(t *testing.T) {
	t.Parallel()
	g := Graph{Nodes: []Node{{Name: "s", Kind: SourceNode, Topic: "in"}}}
	for i := range 100 {
		at := len(g.Nodes) - 1
		g.Nodes = append(g.Nodes,
			Node{Name: fmt.Sprintf("l%d", i), Kind: OperatorNode, Parents: []int{at}},
			Node{Name: fmt.Sprintf("r%d", i), Kind: OperatorNode, Parents: []int{at}},
			Node{Name: fmt.Sprintf("m%d", i), Kind: OperatorNode, Parents: []int{at + 1, at + 2}})
	}
	top, err := New(g)
	if err != nil {
		t.Fatal(err)
	}
	if n := top.below()[0]; n != math.MaxUint64 {
		t.Errorf("%d ways", n)
	}
	if s := top.String(); !strings.Contains(s, "Source: s (topics: [in])\n      --> l0, r0\n") {
		t.Errorf("described as:\n%.200s", s)
	}
}

func TestResetPolicyString(t *testing.T) {
	t.Parallel()
	if got := fmt.Sprint(Earliest, Latest, Fail, ResetPolicy(9)); got != "Earliest Latest Fail ResetPolicy(9)" {
		t.Error(got)
	}
}

func TestTaskID(t *testing.T) {
	t.Parallel()
	for _, id := range []TaskID{{0, 0}, {0, 3}, {12, 345}, {math.MaxInt32, math.MaxInt32}} {
		got, err := ParseTaskID(id.String())
		if err != nil || got != id {
			t.Errorf("%s was read as %s, %v", id, got, err)
		}
	}
	for _, bad := range []string{"", "_", "1", "1_", "_1", "-1_0", "0_-1", "01_1", "1_1_1", "a_b", "1_99999999999", "+1_1", " 1_1"} {
		if id, err := ParseTaskID(bad); err == nil {
			t.Errorf("%q was read as %s", bad, id)
		}
	}
	order := []TaskID{{0, 0}, {0, 2}, {0, 10}, {1, 0}, {10, 0}}
	for i, a := range order {
		for j, b := range order {
			if got := a.Compare(b); (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("%s compared with %s: %d", a, b, got)
			}
		}
	}
}
