package weir

import (
	"errors"

	"github.com/weirstreams/weir/internal/task"
)

// node is a step of a builder. Several nodes may stand for one node of the
// graph: a topic that is read with different serdes is one source.
type node struct {
	b        *Builder
	id       int // in the graph
	name     string
	children []*node

	// wire makes, for one task, the function that a parent calls to hand a
	// record to this node: a func(*rec[K, V]) error or func(*change[K, V])
	// error. The children are wired when it asks for them. Of a source it is a
	// func(*task.Record) error.
	wire func(w *wiring) any

	// sendsOld says that a table's changes carry the old values. derivedFrom is
	// the node that a table without a store gets its changes from.
	sendsOld    bool
	derivedFrom *node

	// decodes is the decoding[K, V] of a decoder.
	decodes any

	// value says whether the node looks at values of records.
	value valueUse
}

// valueUse says what a node does with the values of records.
type valueUse uint8

const (
	valueRead    valueUse = iota
	valuePassed           // handed on as it is
	valueIgnored          // not even handed on
)

// requireOld makes changes carry old values from the store downwards.
func (n *node) requireOld() {
	for ; n != nil; n = n.derivedFrom {
		n.sendsOld = true
	}
}

// needsValue says whether n or a node below looks at the values of records.
func (n *node) needsValue() bool {
	switch n.value {
	case valueIgnored:
		return false
	case valuePassed:
		for _, c := range n.children {
			if c.needsValue() {
				return true
			}
		}
		return false
	}
	return true
}

// wiring is the making of the steps of one task, from the sinks up. Types are
// asserted here and nowhere else: what comes out calls from step to step with
// typed pointers, and a record is never boxed.
type wiring struct {
	ctx      *task.Context
	app      string
	received map[*node]any
	closers  []func() error
	err      error

	// lookers are the functions of processors that look ahead, as
	// func(*rec[K, V], wanted); ahead are those of the sources in front of them.
	lookers map[*node]any
	ahead   map[*node]func(*task.Record, wanted)
}

// wanted takes a key that a processor will ask a store for.
type wanted func(s *task.Store, key []byte)

// lookAhead wires what the processors directly behind a source say of a record.
func lookAhead[K, V any](w *wiring, n *node, decode func(*rec[K, V], *task.Record) error) {
	var list []func(*rec[K, V], wanted)
	for _, c := range n.children {
		if f, ok := w.lookers[c].(func(*rec[K, V], wanted)); ok {
			list = append(list, f)
		}
	}
	if len(list) == 0 {
		return
	}
	out := new(rec[K, V])
	w.ahead[n] = func(r *task.Record, want wanted) {
		if decode(out, r) != nil {
			return // it fails again when its turn comes, and then counts
		}
		for _, f := range list {
			f(out, want)
		}
	}
}

// receiver returns the function that takes a T to a node, the same for all its
// parents.
func receiver[T any](w *wiring, n *node) func(*T) error {
	r, ok := w.received[n]
	if !ok {
		r = n.wire(w)
		w.received[n] = r
	}
	return r.(func(*T) error)
}

// children returns a function that takes a T to each child of a node, in the
// order of declaration.
func children[T any](w *wiring, n *node) func(*T) error {
	return fanOut[T](w, n.children)
}

func fanOut[T any](w *wiring, nodes []*node) func(*T) error {
	list := make([]func(*T) error, len(nodes))
	for i, c := range nodes {
		list[i] = receiver[T](w, c)
	}
	switch len(list) {
	case 0:
		return func(*T) error { return nil }
	case 1:
		return list[0]
	}
	return func(t *T) error {
		for _, f := range list {
			if err := f(t); err != nil {
				return err
			}
		}
		return nil
	}
}

// instance is the wired steps of one task.
type instance struct {
	inputs  []func(*task.Record) error
	closers []func() error
}

// lookingInstance has processors that look ahead.
type lookingInstance struct {
	*instance
	ahead [][]func(*task.Record, wanted) // by input
}

var (
	_ task.Instance = (*instance)(nil)
	_ task.Looker   = (*lookingInstance)(nil)
)

// LookAhead implements task.Looker.
func (i *lookingInstance) LookAhead(input int, r *task.Record, want func(*task.Store, []byte)) {
	for _, f := range i.ahead[input] {
		f(r, want)
	}
}

func (i *instance) Process(input int, r *task.Record) error { return i.inputs[input](r) }

// Close closes the processors, the last one made first. One that panics does
// not keep the others open.
func (i *instance) Close() (err error) {
	if len(i.closers) == 0 {
		return nil
	}
	last := len(i.closers) - 1
	c := i.closers[last]
	i.closers = i.closers[:last]
	defer func() { err = errors.Join(err, i.Close()) }()
	return c()
}

// newInstance wires the given sources, each a list of decoders of one topic.
// When it fails, or a processor panics, those made before are closed.
func newInstance(ctx *task.Context, app string, sources [][]*node) (_ task.Instance, err error) {
	w := &wiring{ctx: ctx, app: app, received: map[*node]any{}, lookers: map[*node]any{}, ahead: map[*node]func(*task.Record, wanted){}}
	done := false
	defer func() {
		if !done {
			err = errors.Join(err, (&instance{closers: w.closers}).Close())
		}
	}()
	inst := &instance{}
	for _, decoders := range sources {
		inst.inputs = append(inst.inputs, fanOut[task.Record](w, decoders))
		if w.err != nil {
			return nil, w.err
		}
	}
	inst.closers = w.closers
	done = true
	if len(w.ahead) == 0 {
		return inst, nil
	}
	looking := &lookingInstance{instance: inst, ahead: make([][]func(*task.Record, wanted), len(sources))}
	for i, decoders := range sources {
		for _, n := range decoders {
			if f := w.ahead[n]; f != nil {
				looking.ahead[i] = append(looking.ahead[i], f)
			}
		}
	}
	return looking, nil
}
