package weir

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weirstreams/weir/internal/topology"
)

// Split divides a stream into named branches: a record goes to the first branch,
// in the order of declaration, whose predicate takes it, else to the default
// branch, if there is one. A tombstone has no value to show to a predicate and
// goes to every branch, since any of them may hold its key.
type Split[K, V any] struct {
	s        Stream[K, V] // the split step; n is nil behind a mistake
	name     string
	branches []branch[K, V]
	rest     *node
}

type branch[K, V any] struct {
	take func(K, V) bool
	n    *node
}

// Split begins the division of the stream. The branches are steps called
// <name>-<branch>.
func (s Stream[K, V]) Split(name string) *Split[K, V] {
	op := fmt.Sprintf("Split(%q)", name)
	sp := &Split[K, V]{s: Stream[K, V]{b: s.b}, name: name}
	if !s.ready(op) || !s.b.take(s.b.named, "step", name, op) {
		return sp
	}
	n := s.b.addNode(topology.Node{Name: name, Kind: topology.OperatorNode}, s.n)
	n.wire = func(w *wiring) any { return sp.wire(w, n) }
	sp.s = s
	sp.s.n = n
	return sp
}

// Branch returns the branch of the records that take returns true for and that no
// earlier branch took.
func (sp *Split[K, V]) Branch(name string, take func(K, V) bool) Stream[K, V] {
	op := fmt.Sprintf("Branch(%q) of Split(%q)", name, sp.name)
	if !sp.s.readyFunc(op, take == nil) {
		return Stream[K, V]{b: sp.s.b}
	}
	s := sp.add(op, name)
	if s.n != nil {
		sp.branches = append(sp.branches, branch[K, V]{take, s.n})
	}
	return s
}

// Default returns the branch of the records that no other branch takes, those
// that are declared later included. Without it these records go nowhere.
func (sp *Split[K, V]) Default(name string) Stream[K, V] {
	op := fmt.Sprintf("Default(%q) of Split(%q)", name, sp.name)
	if !sp.s.ready(op) {
		return Stream[K, V]{b: sp.s.b}
	}
	if sp.rest != nil {
		return sp.s.b.failedStream[K, V](op, errors.New("the split has a default branch already: use that one"))
	}
	s := sp.add(op, name)
	sp.rest = s.n
	return s
}

func (sp *Split[K, V]) add(op, name string) Stream[K, V] {
	full := sp.name + "-" + name
	if name == "" {
		return sp.s.b.failedStream[K, V](op, errors.New("the name of the branch is empty"))
	}
	if !sp.s.b.take(sp.s.b.named, "step", full, op) {
		return Stream[K, V]{b: sp.s.b}
	}
	s := sp.s
	n := s.b.addNode(topology.Node{Name: full, Kind: topology.OperatorNode}, s.n)
	n.value = valuePassed
	n.wire = func(w *wiring) any { return children[rec[K, V]](w, n) }
	s.n = n
	return s
}

func (sp *Split[K, V]) wire(w *wiring, n *node) func(*rec[K, V]) error {
	type wired struct {
		take func(K, V) bool
		next func(*rec[K, V]) error
	}
	var branches []wired
	for _, b := range sp.branches {
		branches = append(branches, wired{b.take, receiver[rec[K, V]](w, b.n)})
	}
	rest := fanOut[rec[K, V]](w, slices.DeleteFunc([]*node{sp.rest}, func(n *node) bool { return n == nil }))
	all := children[rec[K, V]](w, n)
	c, name := w.ctx, n.name
	return func(r *rec[K, V]) error {
		if r.tombstone {
			return all(r)
		}
		c.Enter(name)
		for i := range branches {
			if branches[i].take(r.key, r.val) {
				return branches[i].next(r)
			}
		}
		return rest(r)
	}
}
