package weir

import (
	"errors"
	"strings"
	"testing"

	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/state/memstore"
	"github.com/weirstreams/weir/state/pebblestore"
)

// A task whose token would have to name too many tasks is refused at the start.
func TestTooManyWriters(t *testing.T) {
	t.Parallel()
	graph, err := topology.New(topology.Graph{
		Nodes: []topology.Node{
			{Name: "in", Kind: topology.SourceNode, Topic: "in"},
			{Name: "to-by-key", Kind: topology.SinkNode, Parents: []int{0}, Topic: "by-key", Repartition: true},
			{Name: "by-key", Kind: topology.SourceNode, Topic: "by-key", Repartition: true},
			{Name: "count", Kind: topology.OperatorNode, Parents: []int{2}, Stores: []string{"count"}},
		},
		Stores:       []topology.Store{{Name: "count", Logged: true}},
		Repartitions: []topology.Repartition{{Name: "by-key", Partitions: 2}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for n, ok := range map[int32]bool{1: true, 1000: true, 1001: false} {
		res, err := graph.ResolvePartitions("app", map[string]int32{"in": n})
		if err != nil {
			t.Fatal(err)
		}
		err = checkWriters(graph, res)
		if ok != (err == nil) || err != nil && (!errors.Is(err, ErrTopics) || !strings.Contains(err.Error(), "1001 tasks write")) {
			t.Errorf("%d partitions: %v", n, err)
		}
	}
}

// Outboxes are for at least once on a store that is remote.
func TestUsesOutbox(t *testing.T) {
	t.Parallel()
	local, shared := memstore.New(), memstore.NewShared()
	disk, err := pebblestore.Open(t.TempDir(), pebblestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	for i, c := range []struct {
		config Config
		want   bool
	}{
		{Config{}, false}, {Config{Guarantee: AtLeastOnce}, false},
		{Config{Guarantee: AtLeastOnce, Store: local}, false}, {Config{Guarantee: AtLeastOnce, Store: disk}, false},
		{Config{Guarantee: AtLeastOnce, Store: shared}, true}, {Config{Store: shared}, false},
	} {
		if got := c.config.usesOutbox(); got != c.want {
			t.Errorf("%d: %t, want %t", i, got, c.want)
		}
	}
}
