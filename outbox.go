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

// checkOutbox refuses a topology that does not fit into what Kafka and the store
// keep of a task.
func checkOutbox(t *topology.Topology, res *topology.Resolved, app string) error {
	if err := checkWriters(t, res); err != nil {
		return err
	}
	for _, s := range t.Subtopologies {
		var inputs []string
		for _, src := range s.Sources {
			inputs = append(inputs, src.Topic(app))
		}
		if size := stamp.MaxOutboxStampSize(inputs, []string{""}); size > stamp.MaxMetadataBytes {
			return fmt.Errorf("%w: subtopology %d has %d source topics, of which the metadata of an offset commit would take %d bytes under AtLeastOnce on a remote store; Kafka allows %d: cut the subtopology with Repartition, or choose ExactlyOnce",
				ErrTopics, s.ID, len(inputs), size, stamp.MaxMetadataBytes)
		}
	}
	return nil
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
