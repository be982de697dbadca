// Package topology turns the graph that a builder declares into what runs: the
// subtopologies with their sources and stores, the internal topics and their
// partition counts, a fingerprint for the group, and a description for people.
// It knows names and edges; what the operators do is none of its business.
//
// The package is pure: the same graph and the same partition counts give the
// same result on every member of a group.
package topology

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weirstreams/weir/internal/stamp"
)

// Kind says what a node does with records.
type Kind uint8

// A SourceNode reads a topic and has no parents. An OperatorNode hands records
// on; it is stateful when it has stores. A SinkNode writes a topic and has no
// children. Source and sink of a repartition topic are the two ends at which a
// graph is cut into subtopologies.
const (
	SourceNode Kind = iota + 1
	OperatorNode
	SinkNode
)

// ResetPolicy says where to start in a partition without a committed offset,
// and where to go on when the committed one is outside the log.
type ResetPolicy uint8

// Earliest starts at the first record, Latest behind the last one, and Fail
// stops with an error.
const (
	Earliest ResetPolicy = iota
	Latest
	Fail
)

// String returns the policy as it is called in the API.
func (p ResetPolicy) String() string {
	switch p {
	case Earliest:
		return "Earliest"
	case Latest:
		return "Latest"
	case Fail:
		return "Fail"
	}
	return fmt.Sprintf("ResetPolicy(%d)", uint8(p))
}

// Node is one node of a graph.
type Node struct {
	Name    string // unique in the graph
	Kind    Kind
	Parents []int // indexes of nodes
	// Topic is what a source reads or a sink writes: the name of a user's topic,
	// or with Repartition the logical name of a repartition topic, without
	// application and suffix. It is empty for a sink that chooses its topic per
	// record.
	Topic       string
	Repartition bool
	Reset       ResetPolicy // of a source
	// Feedback says that the source may read what the topology itself writes.
	Feedback bool
	// RekeysRecords says that the key of a record that leaves the node may be
	// another one than that of the record that came.
	RekeysRecords bool
	Stores        []string
}

// Store is a store that nodes name.
type Store struct {
	Name string
	// Logged stores have a changelog topic.
	Logged bool
	// Timestamped stores keep a timestamp in front of each value.
	Timestamped bool
}

// Repartition is a repartition topic by its logical name.
type Repartition struct {
	Name string
	// Partitions is the number of partitions that the user asked for, 0 to
	// derive it from the topics that feed the topic.
	Partitions int32
}

// Graph is what a builder declares. All lists are in order of declaration.
type Graph struct {
	Nodes        []Node
	Stores       []Store
	Repartitions []Repartition
}

// Topology is a checked graph, cut into subtopologies.
type Topology struct {
	// Subtopologies are numbered in the order in which their first nodes were
	// declared; each stands at the index of its ID.
	Subtopologies []*Subtopology
	Repartitions  []Repartition
	// Fingerprint is a hash of what the members of a group have to agree about:
	// the subtopologies with their sources, stores and repartition topics.
	// Operators without state are not in it, so a program that only changes
	// those can be rolled out instance by instance.
	Fingerprint [8]byte

	graph    Graph
	children [][]int
	writers  map[string][]int32 // repartition topic -> subtopologies that write it
}

// Subtopology is a part of a topology that runs as one task per partition.
type Subtopology struct {
	ID      int32
	Sources []Source
	Stores  []Store
	// Repartitions are the logical names of the repartition topics that the
	// subtopology writes.
	Repartitions []string
	// SinkTopics are the user's topics that it writes, as far as they are known
	// before a record chooses one.
	SinkTopics []string
	// Copartitioned are groups of indexes of Sources whose topics must have the
	// same number of partitions, because their keys meet in a store.
	Copartitioned [][]int

	nodes []int
	meet  []string       // for each group, a store in which the keys meet
	feeds map[string]int // for each store whose keys come from a source as they are, the index of such a source
	keyed [][]string     // for each source, the stores whose keys come from it as they are
}

// Source is an input of a subtopology.
type Source struct {
	Name        string // the user's topic, or the logical name of a repartition topic
	Repartition bool
	Reset       ResetPolicy
	Node        string
}

// New checks a graph and cuts it into subtopologies. The error holds all
// mistakes that were found. References from one part of the graph to another
// (parents, stores, repartition topics) must exist.
func New(g Graph) (*Topology, error) {
	t := &Topology{graph: g, Repartitions: g.Repartitions, children: make([][]int, len(g.Nodes)), writers: map[string][]int32{}}
	consumed := false
	for i := range g.Nodes {
		consumed = consumed || g.Nodes[i].Kind == SourceNode
		for _, p := range g.Nodes[i].Parents {
			t.children[p] = append(t.children[p], i)
		}
	}
	if !consumed {
		return nil, errors.New("the topology consumes nothing: begin with Builder.Stream or Builder.Table")
	}
	if err := t.findCycle(); err != nil {
		return nil, err
	}
	t.cut()
	var errs []error
	for _, s := range t.Subtopologies {
		errs = append(errs, t.checkGiven(s), t.checkStamp(s, ""))
	}
	t.Fingerprint = t.fingerprint()
	return t, errors.Join(errs...)
}

// cut forms the connected components over edges and shared stores.
func (t *Topology) cut() {
	g := t.graph
	sets := newSets(len(g.Nodes))
	owner := map[string]int{}
	for i := range g.Nodes {
		for _, p := range g.Nodes[i].Parents {
			sets.join(i, p)
		}
		for _, name := range g.Nodes[i].Stores {
			if first, ok := owner[name]; ok {
				sets.join(i, first)
			} else {
				owner[name] = i
			}
		}
	}
	byRoot := map[int]*Subtopology{}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		s := byRoot[sets.root(i)]
		if s == nil {
			s = &Subtopology{ID: int32(len(t.Subtopologies))}
			byRoot[sets.root(i)] = s
			t.Subtopologies = append(t.Subtopologies, s)
		}
		s.nodes = append(s.nodes, i)
		switch {
		case n.Kind == SourceNode:
			s.Sources = append(s.Sources, Source{Name: n.Topic, Repartition: n.Repartition, Reset: n.Reset, Node: n.Name})
		case n.Kind == SinkNode && n.Repartition:
			s.Repartitions = appendNew(s.Repartitions, n.Topic)
			t.writers[n.Topic] = append(t.writers[n.Topic], s.ID)
		case n.Kind == SinkNode && n.Topic != "":
			s.SinkTopics = appendNew(s.SinkTopics, n.Topic)
		}
	}
	for _, st := range g.Stores {
		if i, ok := owner[st.Name]; ok {
			s := byRoot[sets.root(i)]
			s.Stores = append(s.Stores, st)
		}
	}
	for _, s := range t.Subtopologies {
		t.copartition(s)
	}
}

// copartition finds the sources whose keys meet in a store: all those from
// which a record can get to a node with the store with its key unchanged.
// (Kafka Streams asks for it at joins only, and gives wrong results without a
// word where merged topics of different counts are aggregated.)
func (t *Topology) copartition(s *Subtopology) {
	at := map[int]int{} // node -> index of its source
	for _, i := range s.nodes {
		if t.graph.Nodes[i].Kind == SourceNode {
			at[i] = len(at)
		}
	}
	sets := newSets(len(s.Sources))
	s.keyed = make([][]string, len(s.Sources))
	first := map[string]int{} // store -> a source that feeds it
	meet := map[int]string{}  // source -> a store that it feeds
	for _, i := range s.nodes {
		if len(t.graph.Nodes[i].Stores) == 0 {
			continue
		}
		for _, src := range t.keyedBy(i) {
			for _, store := range t.graph.Nodes[i].Stores {
				s.keyed[at[src]] = appendNew(s.keyed[at[src]], store)
				if f, ok := first[store]; ok {
					sets.join(f, at[src])
				} else {
					first[store] = at[src]
				}
				if _, ok := meet[at[src]]; !ok {
					meet[at[src]] = store
				}
			}
		}
	}
	groups := map[int][]int{}
	for i := range s.Sources {
		groups[sets.root(i)] = append(groups[sets.root(i)], i)
	}
	for i := range s.Sources {
		if g := groups[i]; len(g) > 1 {
			s.Copartitioned = append(s.Copartitioned, g)
			s.meet = append(s.meet, meet[i])
		}
	}
	s.feeds = first
}

// Keyed returns the stores of operators that the records of a source, given by
// its index, reach with their keys unchanged.
func (s *Subtopology) Keyed(source int) []string { return s.keyed[source] }

// keyedBy returns the sources whose keys reach a node unchanged.
func (t *Topology) keyedBy(node int) []int {
	var sources []int
	seen := map[int]bool{node: true}
	next := append([]int(nil), t.graph.Nodes[node].Parents...)
	for len(next) > 0 {
		i := next[len(next)-1]
		next = next[:len(next)-1]
		if seen[i] {
			continue
		}
		seen[i] = true
		switch n := &t.graph.Nodes[i]; {
		case n.Kind == SourceNode:
			sources = append(sources, i)
		case !n.RekeysRecords:
			next = append(next, n.Parents...)
		}
	}
	return sources
}

// checkGiven finds co-partitioned topics with different given counts, which no
// broker can reconcile.
func (t *Topology) checkGiven(s *Subtopology) error {
	var errs []error
	for g, group := range s.Copartitioned {
		var first Repartition
		for _, i := range group {
			r := t.repartition(s.Sources[i])
			switch {
			case r.Partitions == 0:
			case first.Partitions == 0:
				first = r
			case r.Partitions != first.Partitions:
				errs = append(errs, fmt.Errorf("Repartition(%q) asks for %d partitions and Repartition(%q) for %d, but their keys meet in store %q, "+
					"which takes the same number: ask for the same, or leave Partitions out of both", first.Name, first.Partitions, r.Name, r.Partitions, s.meet[g]))
			}
		}
	}
	return errors.Join(errs...)
}

// repartition returns the declaration of a source's repartition topic, or the
// zero value.
func (t *Topology) repartition(s Source) Repartition {
	if s.Repartition {
		for _, r := range t.Repartitions {
			if r.Name == s.Name {
				return r
			}
		}
	}
	return Repartition{}
}

// checkStamp refuses a subtopology whose facts do not fit into the metadata of
// an offset commit.
func (t *Topology) checkStamp(s *Subtopology, app string) error {
	var stores, inputs []string
	for _, st := range s.Stores {
		if st.Logged {
			stores = append(stores, st.Name)
		}
	}
	for _, src := range s.Sources {
		inputs = append(inputs, src.Topic(app))
	}
	size := stamp.MaxStampSize(stores, inputs, []string{""})
	if size <= stamp.MaxMetadataBytes {
		return nil
	}
	return fmt.Errorf("subtopology %d (from source topic %q) has %d stores and %d source topics, of which the metadata of an offset commit would take %d bytes; "+
		"Kafka allows %d: give stores shorter names, or cut the subtopology with Repartition", s.ID, s.Sources[0].Name, len(stores), len(inputs), size, stamp.MaxMetadataBytes)
}

// findCycle looks for a way from a node back to itself, over edges and over
// topics that are both written and read.
func (t *Topology) findCycle() error {
	nodes := t.graph.Nodes
	next := func(i int) []int {
		n := &nodes[i]
		if n.Kind != SinkNode || n.Topic == "" {
			return t.children[i]
		}
		var out []int
		for j := range nodes {
			if m := &nodes[j]; m.Kind == SourceNode && m.Topic == n.Topic && m.Repartition == n.Repartition && !m.Feedback {
				out = append(out, j)
			}
		}
		return out
	}
	const (
		open = 1
		done = 2
	)
	state := make([]uint8, len(nodes))
	var path []int
	var visit func(i int) []int
	visit = func(i int) []int {
		switch state[i] {
		case done:
			return nil
		case open:
			for k, p := range path {
				if p == i {
					return append(append([]int(nil), path[k:]...), i)
				}
			}
		}
		state[i] = open
		path = append(path, i)
		for _, j := range next(i) {
			if cycle := visit(j); cycle != nil {
				return cycle
			}
		}
		path = path[:len(path)-1]
		state[i] = done
		return nil
	}
	for i := range nodes {
		if cycle := visit(i); cycle != nil {
			return t.cycleError(cycle)
		}
	}
	return nil
}

func (t *Topology) cycleError(cycle []int) error {
	var names []string
	topic := ""
	for _, i := range cycle {
		n := &t.graph.Nodes[i]
		names = append(names, n.Name)
		if n.Kind == SourceNode && !n.Repartition {
			topic = n.Topic
		}
	}
	way := strings.Join(names, " -> ")
	if topic == "" {
		return fmt.Errorf("the topology has a cycle: %s; a record would go round for ever", way)
	}
	return fmt.Errorf("the topology writes topic %q, which it reads itself: %s; a record would go round for ever. "+
		"Write to another topic, or say Feedback() where the topic is read, if something ends the loop", topic, way)
}

// appendNew adds s unless it is there.
func appendNew(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// sets are disjoint sets of the numbers 0 to n-1. The root of a set is its
// smallest member.
type sets []int

func newSets(n int) sets {
	s := make(sets, n)
	for i := range s {
		s[i] = i
	}
	return s
}

func (s sets) root(i int) int {
	for s[i] != i {
		s[i] = s[s[i]]
		i = s[i]
	}
	return i
}

func (s sets) join(a, b int) {
	a, b = s.root(a), s.root(b)
	s[max(a, b)] = min(a, b)
}
