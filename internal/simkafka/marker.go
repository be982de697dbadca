package simkafka

import (
	"fmt"
	"slices"

	"github.com/weirstreams/weir/internal/worker"
)

// marker is the end of a transaction on its way to one of the logs that it
// wrote to, or to the offsets that it committed. The coordinator has decided by
// then; the logs learn of it one by one and in any order.
type marker struct {
	producer int64
	commit   bool
	to       *partition       // nil for offsets
	offsets  []pendingOffsets // of the groups
}

func (m *marker) String() string {
	what := "abort"
	if m.commit {
		what = "commit"
	}
	if m.to == nil {
		return fmt.Sprintf("%s of producer %d for its offsets", what, m.producer)
	}
	return fmt.Sprintf("%s of producer %d for %s", what, m.producer, name(m.to.tp))
}

// HoldMarkers keeps the markers of transactions that end from now on, until
// Mark lets them arrive. Meanwhile a partition does not show what was committed,
// and a stable fetch waits for offsets. A producer that goes on waits for its
// own markers, as the coordinator makes it. HoldMarkers(false) lets all arrive.
func (c *Cluster) HoldMarkers(hold bool) {
	c.hold = hold
	if !hold {
		c.arrive(func(*marker) bool { return true })
	}
}

// Markers lists the markers that are held, the oldest first.
func (c *Cluster) Markers() []string {
	var list []string
	for i := range c.markers {
		list = append(list, c.markers[i].String())
	}
	return list
}

// Mark lets the i-th of the held markers arrive.
func (c *Cluster) Mark(i int) {
	m := c.markers[i]
	c.markers = slices.Delete(c.markers, i, i+1)
	c.write(&m)
}

// MarkOffsets lets the held markers of offsets arrive, before those of the logs,
// and returns how many there were.
func (c *Cluster) MarkOffsets() int {
	before := len(c.markers)
	c.arrive(func(m *marker) bool { return m.to == nil })
	return before - len(c.markers)
}

// mark sends a marker.
func (c *Cluster) mark(m marker) {
	if c.hold {
		c.markers = append(c.markers, m)
		c.changed()
		return
	}
	c.write(&m)
}

func (c *Cluster) write(m *marker) {
	if m.to != nil {
		m.to.mark(m.producer, m.commit, c.now().UnixMilli())
	}
	if m.commit {
		for _, o := range m.offsets {
			o.group.store(o.offsets)
		}
	}
	c.changed()
}

// arrive lets those of the held markers arrive that which says.
func (c *Cluster) arrive(which func(*marker) bool) {
	var rest []marker
	held := c.markers
	c.markers = nil
	for i := range held {
		if which(&held[i]) {
			c.write(&held[i])
		} else {
			rest = append(rest, held[i])
		}
	}
	c.markers = rest
}

// arriveOf waits for the markers of a producer.
func (c *Cluster) arriveOf(producer int64) {
	if len(c.markers) > 0 {
		c.arrive(func(m *marker) bool { return m.producer == producer })
	}
}

// undecided says whether a marker that is held decides an offset of the group.
func (c *Cluster) undecided(g *group, tp worker.TopicPartition) bool {
	return slices.ContainsFunc(c.markers, func(m marker) bool {
		return slices.ContainsFunc(m.offsets, func(o pendingOffsets) bool { return o.holds(g, tp) })
	})
}

// holds says whether the offsets are among those of a group for a partition.
func (o *pendingOffsets) holds(g *group, tp worker.TopicPartition) bool {
	return o.group == g && slices.ContainsFunc(o.offsets, func(c worker.OffsetCommit) bool { return c.TopicPartition == tp })
}
