package weir

import (
	"time"

	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/bridge"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/state"
)

// noBroker stands for the brokers of an application that has none.
const noBroker = "none"

func init() {
	bridge.NewRuntime = func(t, config any) (*bridge.Runtime, error) {
		c := config.(Config)
		c.Brokers = []string{noBroker}
		app, err := NewApp(t.(*Topology), c)
		if err != nil {
			return nil, err
		}
		id := app.config.ApplicationID
		return &bridge.Runtime{
			Application: id, Graph: app.topology.graph, DeadLetterTopic: app.config.DeadLetterTopic, TopicConfigs: app.config.TopicConfigs,
			Tasks: func(res *topology.Resolved) []assign.Task { return taskTable(id, app.topology.graph, res) },
			Worker: func(process assign.ProcessID, res *topology.Resolved, tasks []assign.Task, store state.Backend, life time.Duration) any {
				return app.workerConfig(0, 1, process, res, tasks, store, life)
			},
			Error: public,
		}, nil
	}
	bridge.Serdes = func(t any) (any, any) { return t.(interface{ serdes() (any, any) }).serdes() }
	bridge.ContentsOf = func(from any) bridge.Contents {
		return from.(interface{ contents() bridge.Contents }).contents()
	}
}

func (t Topic[K, V]) serdes() (key, value any) { return t.key, t.value }

func (t Table[K, V]) contents() bridge.Contents {
	if t.n == nil {
		return bridge.Contents{}
	}
	return bridge.Contents{
		Store: t.store,
		Key:   func(key any) ([]byte, error) { return t.k.serde.Append([]byte{}, key.(K)) },
		KeyOf: func(raw []byte) (any, error) { return t.k.serde.Decode(raw) },
		Value: func(key any, raw []byte) (any, int64, bool, error) { return t.view(key.(K), raw) },
	}
}

func (s *KeyValueStore[K, V]) contents() bridge.Contents {
	return bridge.Contents{
		Store: s.d.name,
		Key:   func(key any) ([]byte, error) { return s.key.Append([]byte{}, key.(K)) },
		KeyOf: func(raw []byte) (any, error) { return s.key.Decode(raw) },
		Value: func(_ any, raw []byte) (any, int64, bool, error) {
			v, err := s.value.Decode(raw)
			return v, -1, err == nil, err
		},
	}
}
