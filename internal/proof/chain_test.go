package proof

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state"
)

// The hash-chain topology. Each record is hashed with all that came before it
// of its key, twice: by the key of the input, and, behind a repartition topic,
// by the group that the key belongs to. So one record that is lost, doubled or
// out of its order changes every hash after it. A third store counts the ticks
// of a clock, whose batches have no input.
//
//	in -> links ("first") -> middle (repartition) -> steps ("second") -> out
//	                                              -> ticks ("ticks")  -> ticks

// Partition counts. They differ, so that tasks of the two subtopologies do not
// go together.
const (
	chainInPartitions     = 4
	chainMiddlePartitions = 3
	chainOutPartitions    = 2
	chainGroups           = 7
	tickInterval          = 100 * time.Millisecond
)

// poison marks the inputs that cannot be processed and become dead letters.
const poison = "poison"

// link is an element of the chain of an input key.
type link struct {
	Key  string `json:"key"`
	Seq  int64  `json:"seq"` // number of the input record, new for each
	N    int64  `json:"n"`   // number of the link in its chain, from 1
	Hash string `json:"hash"`
}

// step is an element of the chain of a group.
type step struct {
	N    int64  `json:"n"`
	Hash string `json:"hash"`
	From link   `json:"from"`
}

func (l link) after(key string, seq int64) link {
	return link{Key: key, Seq: seq, N: l.N + 1, Hash: chainHash(l.Hash, key, strconv.FormatInt(seq, 10))}
}

func (s step) after(l link) step {
	return step{N: s.N + 1, Hash: chainHash(s.Hash, l.Key, strconv.FormatInt(l.N, 10), l.Hash), From: l}
}

// chainHash hashes what came before with what comes now.
func chainHash(before string, now ...string) string {
	h := sha256.New()
	h.Write([]byte(before))
	for _, s := range now {
		h.Write([]byte{0})
		h.Write([]byte(s))
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// groupOf is the key behind the repartition: several input keys of different
// tasks meet in a group.
func groupOf(key string) string {
	h := fnv.New32a()
	h.Write([]byte(key))
	return "group-" + strconv.Itoa(int(h.Sum32()%chainGroups))
}

// chainNames are the topics of one run.
type chainNames struct {
	App, In, Out, Ticks, Dead string
}

func newChainNames(app string) chainNames {
	return chainNames{app, app + "-in", app + "-out", app + "-tick", app + "-dead"}
}

// views are those of all tasks.
func (n chainNames) views() (ids []state.ID) {
	for subtopology, partitions := range []int{chainInPartitions, chainMiddlePartitions} {
		for p := range partitions {
			ids = append(ids, state.ID{Application: n.App, Task: fmt.Sprintf("%d_%d", subtopology, p)})
		}
	}
	return ids
}

func (n chainNames) middle() string            { return n.App + "-middle-repartition" }
func (n chainNames) changelog(s string) string { return n.App + "-" + s + "-changelog" }

// chain is the topology with its readable tables.
type chain struct {
	topology *weir.Topology
	first    weir.Table[string, link]
	second   weir.Table[string, step]
}

// parseInput reads the value of an input record.
func parseInput(value string) (int64, error) {
	seq, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the value %q is no number", value)
	}
	return seq, nil
}

func newChain(n chainNames) (*chain, error) {
	var c chain
	b := weir.NewBuilder()
	in := weir.NewTopic(n.In, serde.String, serde.String)
	out := weir.NewTopic(n.Out, serde.String, serde.JSON[step]())
	ticks := weir.NewTopic(n.Ticks, serde.Int32, serde.Int64)

	c.first = b.Stream(in).
		TryMapValues(func(_, value string) (int64, error) { return parseInput(value) }).
		Serdes(serde.String, serde.Int64).
		GroupByKey().
		Update("first", serde.JSON[link](), func(key string, seq int64, old link, _ bool) (link, bool) {
			return old.after(key, seq), true
		})
	middle := c.first.ToStream().
		SelectKey(func(key string, _ link) string { return groupOf(key) }).
		Serdes(serde.String, serde.JSON[link]()).
		Repartition("middle", weir.Partitions(chainMiddlePartitions))

	c.second = middle.GroupByKey().
		Update("second", serde.JSON[step](), func(_ string, l link, old step, _ bool) (step, bool) {
			return old.after(l), true
		})
	c.second.ToStream().To(out)

	counts := weir.NewKeyValueStore("ticks", serde.Int32, serde.Int64)
	middle.Process("ticker", func() *ticker { return &ticker{counts: counts} }, counts).
		Serdes(serde.Int32, serde.Int64).
		To(ticks)

	var err error
	c.topology, err = b.Build()
	return &c, err
}

// ticker counts the ticks of the wall clock in each task.
type ticker struct {
	weir.ProcessorDefaults
	counts *weir.KeyValueStore[int32, int64]
	open   weir.KeyValue[int32, int64]
}

func (p *ticker) Init(t *weir.Task, out *weir.Emitter[int32, int64]) error {
	p.open = p.counts.Open(t)
	t.EveryWallClock(tickInterval, func(time.Time) error {
		n, _, err := p.open.Get(t.Partition())
		if err != nil {
			return err
		}
		out.Emit(weir.Record[int32, int64]{Key: t.Partition(), Value: n + 1})
		return p.open.Put(t.Partition(), n+1)
	})
	return nil
}

func (*ticker) Process(weir.Record[string, link]) error { return nil }
