package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/bridge"
	"github.com/weirstreams/weir/serde"
)

// The topology reads inTopic, sends records by their key through a repartition
// topic, and there keeps for each key the last link of a chain, and a count.
const (
	application = "sim"
	inName      = "in"
	outName     = "out"
	byKeyName   = application + "-by-key-repartition"
	chainStore  = "last"
	countStore  = "count"
)

var (
	inTopic  = weir.NewTopic(inName, serde.String, serde.String)
	outTopic = weir.NewTopic(outName, serde.String, serde.String)
)

// What a record does, by the last letter of its value.
const (
	opPut    = 'p' // moves the chain on, one output
	opSilent = 'z' // moves it on without an output
	opMany   = 'm' // moves it on by three links, with an output each
	opDelete = 'd' // moves it on, one output, and begins a new chain
)

// manyLinks is how many outputs opMany has.
const manyLinks = 3

// tick is what a timer puts in the place of a record's value.
const tick = "tick"

// timerInterval is the interval of the timers.
const timerInterval = 700 * time.Millisecond

// hash is the next link of a chain. Salt differs from one attempt at a record to
// the next, as a random number or the time in user code does.
func hash(last, value string, salt uint64) string {
	h := uint64(14695981039346656037)
	add := func(s string) {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
		h = (h ^ '/') * 1099511628211
	}
	add(last)
	add(value)
	h = (h ^ salt) * 1099511628211
	h ^= h >> 29
	return strconv.FormatUint(h*0x9e3779b97f4a7c15, 36)
}

// link is the processor.
type link struct {
	weir.ProcessorDefaults
	shop *workload
	last weir.KeyValue[string, string]
	out  *weir.Emitter[string, string]
}

func (l *link) Init(t *weir.Task, out *weir.Emitter[string, string]) error {
	l.last, l.out = l.shop.store.Open(t), out
	if l.shop.timers {
		t.EveryWallClock(timerInterval, l.tick)
	}
	return nil
}

// emit moves a chain on.
func (l *link) emit(key, last, value string) string {
	l.shop.salt++
	next := hash(last, value, l.shop.salt)
	l.out.Emit(weir.Record[string, string]{Key: key, Value: value + "|" + strconv.FormatUint(l.shop.salt, 10) + "|" + next})
	return next
}

func (l *link) Process(r weir.Record[string, string]) error {
	l.shop.spend()
	last, _, err := l.last.Get(r.Key)
	if err != nil {
		return err
	}
	switch r.Value[len(r.Value)-1] {
	case opSilent:
		return l.last.Put(r.Key, hash(last, r.Value, 0))
	case opMany:
		for i := range manyLinks {
			last = l.emit(r.Key, last, part(r.Value, i))
		}
		return l.last.Put(r.Key, last)
	case opDelete:
		l.emit(r.Key, last, r.Value)
		return l.last.Delete(r.Key)
	default:
		return l.last.Put(r.Key, l.emit(r.Key, last, r.Value))
	}
}

// part is the value of the i-th output of opMany.
func part(value string, i int) string { return value + "/" + strconv.Itoa(i) }

// tick moves on all chains of the task.
func (l *link) tick(time.Time) error {
	type entry struct{ key, last string }
	var all []entry
	for k, v := range l.last.Range(weir.Bounds[string]{}) {
		all = append(all, entry{k, v})
	}
	for _, e := range all {
		if err := l.last.Put(e.key, l.emit(e.key, e.last, tick)); err != nil {
			return err
		}
	}
	return nil
}

// workload is the topology with what its processors need. One World at a time
// uses it.
type workload struct {
	topology *weir.Topology
	store    *weir.KeyValueStore[string, string]
	runtimes map[string]*bridge.Runtime // by configuration
	timers   bool
	salt     uint64
	spend    func() // the time that a record takes
}

func newWorkload() (*workload, error) {
	l := &workload{runtimes: map[string]*bridge.Runtime{}, store: weir.NewKeyValueStore(chainStore, serde.String, serde.String)}
	b := weir.NewBuilder()
	byKey := b.Stream(inTopic).
		SelectKey(func(_, v string) string { return keyOf(v) }).Serdes(serde.String, serde.String).
		Repartition("by-key")
	byKey.Process("link", func() *link { return &link{shop: l} }, l.store).To(outTopic)
	byKey.GroupByKey().Count(countStore)
	t, err := b.Build()
	if err != nil {
		return nil, fmt.Errorf("the topology of the simulation: %w", err)
	}
	l.topology = t
	return l, nil
}

// keyOf is the key of a record, "k3" of "k3.17p".
func keyOf(value string) string {
	key, _, _ := strings.Cut(value, ".")
	return key
}
