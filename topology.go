package weir

import (
	"errors"
	"maps"
	"slices"

	"github.com/weirstreams/weir/internal/bridge"
	"github.com/weirstreams/weir/internal/keyenc"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
)

// Topology is what [Builder.Build] returns: the steps of a program, checked and
// cut into subtopologies at the repartition topics. Each subtopology runs as one
// task per partition of its source topics. A Topology is safe for concurrent use
// and may be run by several applications.
type Topology struct {
	graph *topology.Topology
	b     *Builder
}

// String describes the topology as Kafka Streams prints a TopologyDescription,
// for people and for the tools that read one. Names of repartition topics stand
// without the application.
func (t *Topology) String() string { return t.graph.String() }

// check returns the calls on the builder that came too late.
func (t *Topology) check() error { return errors.Join(t.b.late...) }

// plans returns what the runtime makes tasks of, one for each subtopology and at
// the index of its id.
func (t *Topology) plans(app string) []*task.Plan {
	plans := make([]*task.Plan, len(t.graph.Subtopologies))
	for i, s := range t.graph.Subtopologies {
		p := &task.Plan{Subtopology: s.ID}
		sources := make([][]*node, len(s.Sources))
		for j, src := range s.Sources {
			p.Inputs = append(p.Inputs, src.Topic(app))
			sources[j] = t.b.decoders[src.Node]
		}
		for _, st := range s.Stores {
			spec := task.StoreSpec{Name: st.Name, Timestamped: st.Timestamped}
			if st.Logged {
				spec.Changelog = keyenc.ChangelogTopic(app, st.Name)
			}
			p.Stores = append(p.Stores, spec)
		}
		p.Ahead = make([][]int, len(s.Sources))
		for j := range s.Sources {
			for k, st := range s.Stores {
				// Aggregations and tables keep timestamps, and go by the key of
				// the record. What the stores of processors are asked for nobody
				// knows.
				if st.Timestamped && slices.Contains(s.Keyed(j), st.Name) {
					p.Ahead[j] = append(p.Ahead[j], k)
				}
			}
		}
		p.New = func(c *task.Context) (task.Instance, error) { return newInstance(c, app, sources) }
		plans[i] = p
	}
	return plans
}

// unordered lists the stores that were declared with PointLookups, in order.
func (t *Topology) unordered() (names []string) {
	stores := t.stores()
	for _, name := range slices.Sorted(maps.Keys(stores)) {
		if stores[name].unordered {
			names = append(names, name)
		}
	}
	return names
}

// stores describes all stores by name.
func (t *Topology) stores() map[string]storeInfo {
	infos := map[string]storeInfo{}
	for _, s := range t.graph.Subtopologies {
		for _, st := range s.Stores {
			d := t.b.stores[st.Name]
			info := d.info
			info.subtopology, info.unordered = s.ID, d.unordered
			infos[st.Name] = info
		}
	}
	return infos
}

func init() {
	bridge.Topology = func(t any) (*topology.Topology, func(app string) []*task.Plan) {
		top := t.(*Topology)
		return top.graph, top.plans
	}
}
