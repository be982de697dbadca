package metric

import (
	"slices"
	"sync"
)

// Scope is a Sink for one owner, such as a worker or a task: it adds the owner's
// labels and closes all handles of the owner at once. It is safe for concurrent
// use.
type Scope struct {
	sink   Sink // never a Scope
	parent *Scope
	labels []Label

	mu struct {
		sync.Mutex
		open   map[Closer]struct{} // handles and inner scopes not yet closed
		closed bool
	}
}

var _ Sink = (*Scope)(nil)

// NewScope returns a scope of sink; nil is Discard. Each label is added to those
// metrics that have one of its name and were not given it by the caller.
//
// In a scope of a scope the labels of the inner one win, and closing the outer
// one closes the inner one. The outer one forgets what was closed, so it may
// live for ever and see any number of inner ones.
func NewScope(sink Sink, labels ...Label) *Scope {
	s := &Scope{labels: slices.Clone(labels)}
	s.mu.open = make(map[Closer]struct{})
	switch sink := sink.(type) {
	case nil:
		s.sink = Discard
	case *Scope:
		s.sink, s.parent = sink.sink, sink
		for _, l := range sink.labels {
			if !hasLabel(s.labels, l.Name) {
				s.labels = append(s.labels, l)
			}
		}
		sink.mu.Lock()
		defer sink.mu.Unlock()
		if s.mu.closed = sink.mu.closed; !s.mu.closed {
			sink.mu.open[s] = struct{}{}
		}
	default:
		s.sink = sink
	}
	return s
}

// Counter returns a handle that lives until it or the scope is closed.
func (s *Scope) Counter(name string, labels ...Label) Counter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return discardHandle{}
	}
	h := &scopeCounter{s.sink.Counter(name, s.add(name, labels)...), s}
	s.mu.open[h] = struct{}{}
	return h
}

// Gauge returns a handle that lives until it or the scope is closed.
func (s *Scope) Gauge(name string, labels ...Label) Gauge {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return discardHandle{}
	}
	h := &scopeGauge{s.sink.Gauge(name, s.add(name, labels)...), s}
	s.mu.open[h] = struct{}{}
	return h
}

// Histogram returns a handle that lives until it or the scope is closed.
func (s *Scope) Histogram(name string, labels ...Label) Histogram {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return discardHandle{}
	}
	h := &scopeHistogram{s.sink.Histogram(name, s.add(name, labels)...), s}
	s.mu.open[h] = struct{}{}
	return h
}

// Close closes the handles that the scope gave out and the scopes inside it.
// Handles asked of it afterwards discard: a straggler brings no series back.
// Closing again has no effect.
func (s *Scope) Close() {
	s.mu.Lock()
	open := s.mu.open
	s.mu.open, s.mu.closed = nil, true
	s.mu.Unlock()
	// Not under the lock: each of these takes it to be forgotten.
	for c := range open {
		c.Close()
	}
	if s.parent != nil {
		s.parent.forget(s)
	}
}

func (s *Scope) forget(c Closer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.open, c)
}

// The handles of a scope are those of its sink but for Close.
type (
	scopeCounter struct {
		Counter
		scope *Scope
	}
	scopeGauge struct {
		Gauge
		scope *Scope
	}
	scopeHistogram struct {
		Histogram
		scope *Scope
	}
)

func (h *scopeCounter) Close()   { h.scope.forget(h); h.Counter.Close() }
func (h *scopeGauge) Close()     { h.scope.forget(h); h.Gauge.Close() }
func (h *scopeHistogram) Close() { h.scope.forget(h); h.Histogram.Close() }

// add returns labels with the scope's own added.
func (s *Scope) add(name string, labels []Label) []Label {
	m, known := Lookup(name)
	if !known {
		return labels // the sink's affair
	}
	all := slices.Clip(labels)
	for _, l := range s.labels {
		if slices.Contains(m.Labels, l.Name) && !hasLabel(labels, l.Name) {
			all = append(all, l)
		}
	}
	return all
}

func hasLabel(labels []Label, name string) bool {
	return slices.ContainsFunc(labels, func(l Label) bool { return l.Name == name })
}
