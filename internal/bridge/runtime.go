package bridge

import (
	"time"

	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/state"
)

// Runtime is an application without a broker, for package weirtest: what an App
// makes of its topology and configuration, in pieces.
type Runtime struct {
	Application     string
	Graph           *topology.Topology
	DeadLetterTopic string
	// TopicConfigs are the settings that are added to internal topics.
	TopicConfigs map[string]string
	// Tasks lists the tasks for the partition counts of res.
	Tasks func(res *topology.Resolved) []assign.Task
	// Worker returns the worker.Config of a process with one worker.
	Worker func(process assign.ProcessID, res *topology.Resolved, tasks []assign.Task, store state.Backend, tombstoneLife time.Duration) any
	// Error turns an error of the inside into the one that App.Run returns.
	Error func(error) error
}

// NewRuntime checks a *weir.Topology and a weir.Config as NewApp does. Package
// weir sets it when it is linked in.
var NewRuntime func(topology, config any) (*Runtime, error)

// Serdes returns the serdes of a weir.Topic[K, V]: a serde.Serde[K] and a
// serde.Serde[V].
var Serdes func(topic any) (key, value any)

// Contents is how the entries of a store are read as typed values.
type Contents struct {
	Store string
	// Key encodes a K; KeyOf decodes one.
	Key   func(key any) ([]byte, error)
	KeyOf func(raw []byte) (any, error)
	// Value makes a V of what is stored for a K. found is false when a derived
	// table does not have it. ts is the time of the value in ms, -1 where the
	// store keeps none.
	Value func(key any, raw []byte) (value any, ts int64, found bool, err error)
}

// ContentsOf returns how to read a weir.Table[K, V] or a
// *weir.KeyValueStore[K, V]. The store is "" for one behind a mistake.
var ContentsOf func(from any) Contents
