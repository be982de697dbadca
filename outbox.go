package weir

import (
	"fmt"
	"slices"

	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/internal/worker"
)

// usesOutbox says whether the outputs are kept beside the state, so that there
// are no changelogs.
func (c *Config) usesOutbox() bool {
	return worker.UsesOutbox(c.Store, c.Guarantee == ExactlyOnce)
}

// checkWriters refuses a topology of which one task reads internal topics that
// more tasks write than its token has room for.
func checkWriters(t *topology.Topology, res *topology.Resolved) error {
	for _, s := range t.Subtopologies {
		n := 0
		for _, src := range s.Sources {
			if !src.Repartition {
				continue
			}
			for _, w := range t.Subtopologies {
				if slices.Contains(w.Repartitions, src.Name) {
					n += int(res.Tasks[w.ID])
				}
			}
		}
		if n > stamp.MaxHighs {
			return fmt.Errorf("%w: a task of subtopology %d reads what %d tasks write to repartition topics, and AtLeastOnce on a remote store can tell apart %d at most: choose ExactlyOnce, or topics with fewer partitions",
				ErrTopics, s.ID, n, stamp.MaxHighs)
		}
	}
	return nil
}
