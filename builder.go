package weir

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"github.com/weirstreams/weir/internal/keyenc"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/serde"
)

// Builder collects the steps of a topology. It is used by one goroutine, from
// NewBuilder to Build; the topology that Build returns is for any number of
// them.
type Builder struct {
	graph   topology.Graph
	nodes   []*node
	sources map[string]*source
	// decoders are the nodes that decode what a source of the graph reads, by
	// the name of the source.
	decoders map[string][]*node
	stores   map[string]*storeDecl
	// named holds who took a name: of nodes, of repartition topics.
	named        map[string]string
	repartitions map[string]string
	counter      int
	// checks are done by Build, when everything is declared.
	checks []func()
	errs   []error
	built  bool
	late   []error // calls after Build
}

// NewBuilder returns an empty builder.
func NewBuilder() *Builder {
	return &Builder{sources: map[string]*source{}, decoders: map[string][]*node{}, stores: map[string]*storeDecl{},
		named: map[string]string{}, repartitions: map[string]string{}}
}

// source is a topic of the user's that is read.
type source struct {
	id     int
	name   string
	config sourceConfig
}

// Stream reads a topic as a stream of records. A topic that is read several
// times is consumed once, and each reader gets every record.
func (b *Builder) Stream[K, V any](t Topic[K, V], opts ...SourceOption) Stream[K, V] {
	op := fmt.Sprintf("Stream(%q)", t.name)
	var c sourceConfig
	for _, o := range opts {
		if o == nil {
			return b.failedStream[K, V](op, errNilOption)
		}
		o.applySource(&c)
	}
	return b.read(op, t, c)
}

// Table reads a topic as a table: each record is the new value of its key, and a
// tombstone deletes it. The table is kept in a store of the given name. Records
// are taken in the order of the topic, so a later one counts even if its
// timestamp is older. Records with a null key are dropped. An update whose value
// encodes to the same bytes and whose timestamp is not older than the stored one
// changes nothing and is not passed on (KIP-557).
func (b *Builder) Table[K, V any](name string, t Topic[K, V], opts ...TableOption) Table[K, V] {
	op := fmt.Sprintf("Table(%q)", name)
	var c sourceConfig
	sc := newStoreConfig()
	for _, o := range opts {
		if o == nil {
			b.fail(op, errNilOption)
			return Table[K, V]{b: b}
		}
		o.applyTable(&c, &sc)
	}
	s := b.read(op, t, c)
	if s.n == nil {
		return Table[K, V]{b: b}
	}
	return s.table(op, name, sc)
}

// read makes or finds the decoder of a topic.
func (b *Builder) read[K, V any](op string, t Topic[K, V], c sourceConfig) Stream[K, V] {
	if !b.open(op) {
		return Stream[K, V]{b: b}
	}
	if err := t.check(); err != nil {
		return b.failedStream[K, V](op, err)
	}
	if c.reset > Fail {
		return b.failedStream[K, V](op, fmt.Errorf("StartAt(%d) is no reset policy: use Earliest, Latest or Fail", c.reset))
	}
	src := b.sources[t.name]
	if src == nil {
		src = &source{name: b.generate("STREAM-SOURCE")}
		src.id = b.addGraphNode(topology.Node{Name: src.name, Kind: topology.SourceNode, Topic: t.name})
		b.sources[t.name] = src
	}
	if c.resetSet {
		if src.config.resetSet && src.config.reset != c.reset {
			return b.failedStream[K, V](op, fmt.Errorf("topic %q is read from %s here and from %s elsewhere: it is consumed once, so give StartAt once or the same each time",
				t.name, c.reset, src.config.reset))
		}
		src.config.reset, src.config.resetSet = c.reset, true
	}
	src.config.feedback = src.config.feedback || c.feedback
	g := &b.graph.Nodes[src.id]
	g.Reset, g.Feedback = topology.ResetPolicy(src.config.reset), src.config.feedback
	return b.decoder(src.id, t.key, t.value)
}

// decoder makes the node that turns the records of a source into typed ones, or
// finds the one with the same serdes.
func (b *Builder) decoder[K, V any](id int, key serde.Serde[K], value serde.Serde[V]) Stream[K, V] {
	name := b.graph.Nodes[id].Name
	s := Stream[K, V]{b: b, k: side[K]{serde: key}, v: side[V]{serde: value}}
	for _, n := range b.decoders[name] {
		if d, ok := n.decodes.(decoding[K, V]); ok && sameSerde(d.key, key) && sameSerde(d.value, value) {
			s.n = n
			return s
		}
	}
	n := &node{b: b, id: id, name: name, decodes: decoding[K, V]{key, value}, value: valuePassed}
	n.wire = func(w *wiring) any { return wireDecoder(w, n, key, value) }
	b.nodes = append(b.nodes, n)
	b.decoders[name] = append(b.decoders[name], n)
	s.n = n
	return s
}

// decoding is how a decoder decodes.
type decoding[K, V any] struct {
	key   serde.Serde[K]
	value serde.Serde[V]
}

// sameSerde says whether two serdes are certainly the same.
func sameSerde[T any](a, b serde.Serde[T]) bool {
	if a == nil || b == nil || reflect.TypeOf(a) != reflect.TypeOf(b) {
		return false
	}
	return reflect.ValueOf(a).Comparable() && a == b
}

// Build checks the topology and returns it, or all mistakes joined: each with
// the place in the program, the step and the fix. Build calls the constructor of
// each processor, to look at what it returns. After Build the builder takes no
// more steps.
func (b *Builder) Build() (*Topology, error) {
	if b.built {
		return nil, errors.New("Build: the builder was built before: make a new Builder for another topology")
	}
	for _, check := range b.checks {
		check()
	}
	b.built = true
	if len(b.errs) > 0 {
		return nil, errors.Join(b.errs...)
	}
	g, err := topology.New(b.graph)
	if err != nil {
		return nil, err
	}
	return &Topology{graph: g, b: b}, nil
}

// errNilOption is the mistake of a nil option.
var errNilOption = errors.New("an option is nil")

// open says whether the builder takes another step.
func (b *Builder) open(op string) bool {
	if b.built {
		b.late = append(b.late, fmt.Errorf("%s came after Build and has no effect: declare every step before", located(op)))
	}
	return !b.built
}

// fail notes a mistake of the step op.
func (b *Builder) fail(op string, err error) { b.failAt(located(op), err) }

func (b *Builder) failAt(step string, err error) {
	b.errs = append(b.errs, fmt.Errorf("%s: %w", step, err))
}

func (b *Builder) failedStream[K, V any](op string, err error) Stream[K, V] {
	b.fail(op, err)
	return Stream[K, V]{b: b}
}

// thisPackage is what the names of this package's functions begin with.
const thisPackage = "github.com/weirstreams/weir."

// located adds to the name of a step where the user's program calls it, as in
// "Filter (main.go:12)".
func located(op string) string {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		if !strings.HasPrefix(f.Function, thisPackage) || strings.HasSuffix(f.File, "_test.go") {
			if f.File == "" {
				return op
			}
			return fmt.Sprintf("%s (%s:%d)", op, filepath.Base(f.File), f.Line)
		}
		if !more {
			return op
		}
	}
}

// generate makes a name of the kind and the number of the step, as Kafka
// Streams does. Such names are for people: no topic and no store has one.
func (b *Builder) generate(kind string) string {
	for {
		name := fmt.Sprintf("%s-%010d", kind, b.counter)
		b.counter++
		if _, taken := b.named[name]; !taken {
			b.named[name] = "a step without a name of its own"
			return name
		}
	}
}

// take reserves the name of a step. It is an error of op if the name is bad or
// taken.
func (b *Builder) take(names map[string]string, what, name, op string) bool {
	if err := keyenc.ValidName(name); err != nil {
		b.fail(op, err)
		return false
	}
	if by, ok := names[name]; ok {
		b.fail(op, fmt.Errorf("the name %q of the %s is taken by %s: choose another", name, what, by))
		return false
	}
	names[name] = located(op)
	return true
}

// addGraphNode adds a node whose name is known to be free.
func (b *Builder) addGraphNode(n topology.Node) int {
	b.graph.Nodes = append(b.graph.Nodes, n)
	return len(b.graph.Nodes) - 1
}

// addNode adds a step below its parents.
func (b *Builder) addNode(g topology.Node, parents ...*node) *node {
	n := &node{b: b, name: g.Name}
	for _, p := range parents {
		p.children = append(p.children, n)
		if !slices.Contains(g.Parents, p.id) {
			g.Parents = append(g.Parents, p.id)
		}
	}
	n.id = b.addGraphNode(g)
	b.nodes = append(b.nodes, n)
	return n
}

// addOperator adds a step without a name of its own.
func (b *Builder) addOperator(kind string, parents ...*node) *node {
	return b.addNode(topology.Node{Name: b.generate(kind), Kind: topology.OperatorNode}, parents...)
}

// addRekeying is addOperator for a step that may change keys.
func (b *Builder) addRekeying(kind string, parents ...*node) *node {
	return b.addNode(topology.Node{Name: b.generate(kind), Kind: topology.OperatorNode, RekeysRecords: true}, parents...)
}

// attach makes a store known and gives it to a node.
func (b *Builder) attach(n *node, s *storeDecl) {
	if b.stores[s.name] == nil {
		b.stores[s.name] = s
		b.graph.Stores = append(b.graph.Stores, topology.Store{Name: s.name, Logged: s.logged, Timestamped: s.timestamped})
	}
	g := &b.graph.Nodes[n.id]
	g.Stores = append(g.Stores, s.name)
}

// maxStoreName is what a store's name may have of the 249 bytes of the name of
// its changelog topic.
const maxStoreName = 200

// checkStore says what is wrong with the name of a store.
func (b *Builder) checkStore(s *storeDecl) error {
	if err := keyenc.ValidName(s.name); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	if len(s.name) > maxStoreName {
		return fmt.Errorf("the store name %.32q... has %d bytes, more than %d", s.name, len(s.name), maxStoreName)
	}
	if other := b.stores[s.name]; other != nil && other != s {
		return fmt.Errorf("the name %q of the store is taken by %s: choose another", s.name, other.by)
	}
	return nil
}

// wireDecoder makes the function that decodes a record of a source.
func wireDecoder[K, V any](w *wiring, n *node, key serde.Serde[K], value serde.Serde[V]) func(*task.Record) error {
	next := children[rec[K, V]](w, n)
	c, name := w.ctx, n.name
	// Bytes that every input is a value of need no decoding where nobody looks.
	skipValue := !n.needsValue() && (any(value) == any(serde.String) || any(value) == any(serde.Bytes))
	decode := func(out *rec[K, V], r *task.Record) (err error) {
		var noKey K
		var noValue V
		out.key, out.val = noKey, noValue
		out.meta = meta{keyNull: r.Key == nil, tombstone: r.Value == nil, ts: r.Timestamp, headers: r.Headers}
		if !out.keyNull {
			if out.key, err = key.Decode(r.Key); err != nil {
				return task.Classify(task.ClassDecode, fmt.Errorf("key: %w", err))
			}
		}
		if !out.tombstone && !skipValue {
			if out.val, err = value.Decode(r.Value); err != nil {
				return task.Classify(task.ClassDecode, fmt.Errorf("value: %w", err))
			}
		}
		return nil
	}
	lookAhead(w, n, decode)
	out := new(rec[K, V])
	return func(r *task.Record) error {
		c.Enter(name)
		if err := decode(out, r); err != nil {
			return err
		}
		return next(out)
	}
}
