package topology

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// String describes the topology as Kafka Streams prints a
// TopologyDescription: subtopologies in order of their ids, and in each of them
// the nodes with the most below them first. Repartition topics have their
// logical names, since there is no application yet.
func (t *Topology) String() string {
	below := t.below()
	var b strings.Builder
	b.WriteString("Topologies:\n ")
	for _, s := range t.Subtopologies {
		fmt.Fprintf(&b, "  Sub-topology: %d\n", s.ID)
		order := slices.Clone(s.nodes)
		t.bySize(order, below)
		for _, i := range order {
			fmt.Fprintf(&b, "    %s\n", t.describe(i, below))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (t *Topology) describe(i int, below []uint64) string {
	n := &t.graph.Nodes[i]
	topic := n.Topic
	if n.Repartition {
		topic += "-repartition"
	}
	in, out := "\n      <-- "+t.names(n.Parents, below), "\n      --> "+t.names(t.children[i], below)
	switch n.Kind {
	case SourceNode:
		return fmt.Sprintf("Source: %s (topics: [%s])%s", n.Name, topic, out)
	case SinkNode:
		if topic == "" {
			return fmt.Sprintf("Sink: %s (extractor class: chosen per record)%s", n.Name, in)
		}
		return fmt.Sprintf("Sink: %s (topic: %s)%s", n.Name, topic, in)
	default:
		return fmt.Sprintf("Processor: %s (stores: [%s])%s%s", n.Name, strings.Join(n.Stores, ", "), out, in)
	}
}

func (t *Topology) names(nodes []int, below []uint64) string {
	if len(nodes) == 0 {
		return "none"
	}
	order := slices.Clone(nodes)
	t.bySize(order, below)
	names := make([]string, len(order))
	for k, i := range order {
		names[k] = t.graph.Nodes[i].Name
	}
	return strings.Join(names, ", ")
}

func (t *Topology) bySize(nodes []int, below []uint64) {
	slices.SortFunc(nodes, func(a, b int) int {
		if c := cmp.Compare(below[b], below[a]); c != 0 {
			return c
		}
		return strings.Compare(t.graph.Nodes[a].Name, t.graph.Nodes[b].Name)
	})
}

// below counts, for each node, itself and all ways down from it, as Kafka
// Streams does. The counts stop at the largest number.
func (t *Topology) below() []uint64 {
	size := make([]uint64, len(t.graph.Nodes))
	var count func(i int) uint64
	count = func(i int) uint64 {
		if size[i] > 0 {
			return size[i]
		}
		n := uint64(1)
		for _, c := range t.children[i] {
			n = saturatingAdd(n, count(c))
		}
		size[i] = n
		return n
	}
	for i := range size {
		count(i)
	}
	return size
}

func saturatingAdd(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}
