// Package weirprom reports Weir's metrics to Prometheus.
//
//	registry := prometheus.NewRegistry()
//	sink, err := weirprom.New(registry)   // goes into the application's configuration
//	http.Handle("/metrics", weirprom.Handler(registry))
//
// The metrics, their units, labels and buckets are those of the table
// [metric.Metrics].
package weirprom

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weirstreams/weir/metric"
)

// Sink is a [metric.Sink] whose series are collected by Prometheus. A series
// appears when its first handle is resolved and vanishes when the last one is
// closed.
//
// It never fails: a measurement under a name, kind or label that is not
// declared is dropped and counted in weir_metrics_refused_total.
type Sink struct {
	reg      prometheus.Registerer
	families map[string]*family // by name; fixed after New
}

var _ metric.Sink = (*Sink)(nil)

// New registers all metrics of Weir with reg. It fails if reg holds one of them
// already. Applications in one process may share a Sink, and then their series
// add up; to tell them apart, give each a Sink of its own with
// [prometheus.WrapRegistererWith] and a label.
func New(reg prometheus.Registerer) (*Sink, error) {
	if reg == nil {
		return nil, errors.New("weirprom: no registerer given: use prometheus.NewRegistry() or prometheus.DefaultRegisterer")
	}
	s := &Sink{reg: reg, families: make(map[string]*family)}
	for _, m := range metric.Metrics() {
		f := newFamily(m)
		if err := reg.Register(f.vec); err != nil {
			s.Close()
			if errors.As(err, new(prometheus.AlreadyRegisteredError)) {
				err = errors.New("already registered: share one Sink, or wrap the registerer with a label for each")
			}
			return nil, fmt.Errorf("weirprom: register %s: %w", m.Name, err)
		}
		s.families[m.Name] = f
	}
	return s, nil
}

// Close takes all metrics out of the registerer, so that New works on it again.
// Handles stay safe to use. Closing again has no effect.
func (s *Sink) Close() {
	for _, f := range s.families {
		s.reg.Unregister(f.vec)
	}
}

// maxScrapes bounds how many scrapes a Handler answers at once.
const maxScrapes = 8

// Handler serves what g gathers in the formats that Prometheus reads. It is what
// promhttp has, with a bound: more than 8 scrapes at once are answered with 503.
func Handler(g prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})
}

// Counter returns a handle on a counter.
func (s *Sink) Counter(name string, labels ...metric.Label) metric.Counter {
	if h := s.resolve(metric.KindCounter, name, labels); h != nil {
		return (*counter)(h)
	}
	return metric.Discard.Counter(name)
}

// Gauge returns a handle on a gauge.
func (s *Sink) Gauge(name string, labels ...metric.Label) metric.Gauge {
	if h := s.resolve(metric.KindGauge, name, labels); h != nil {
		return (*gauge)(h)
	}
	return metric.Discard.Gauge(name)
}

// Histogram returns a handle on a histogram.
func (s *Sink) Histogram(name string, labels ...metric.Label) metric.Histogram {
	if h := s.resolve(metric.KindHistogram, name, labels); h != nil {
		return (*histogram)(h)
	}
	return metric.Discard.Histogram(name)
}

// resolve returns nil, and counts it, if what is asked for is not declared.
func (s *Sink) resolve(kind metric.Kind, name string, labels []metric.Label) *handle {
	m, values, err := metric.Check(kind, name, labels)
	if err != nil {
		// This handle is never closed: the count is of the whole process.
		s.families[metric.Refused].resolve([]string{validValue(name)}).counter.Add(1)
		return nil
	}
	for i, v := range values {
		values[i] = validValue(v)
	}
	return s.families[m.Name].resolve(values)
}

// validValue replaces what Prometheus does not take in a label's value.
func validValue(v string) string { return strings.ToValidUTF8(v, "\uFFFD") }

// family is one metric with all its series.
type family struct {
	vec interface {
		prometheus.Collector
		DeleteLabelValues(values ...string) bool
	}
	// with makes the handle on a series, and the series if it does not exist.
	with func(values []string) handle

	mu struct {
		sync.Mutex
		handles map[string]int // open ones by series
	}
}

func newFamily(m metric.Metric) *family {
	f := &family{}
	f.mu.handles = make(map[string]int)
	switch m.Kind {
	case metric.KindCounter:
		vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Name, Help: m.Help}, m.Labels)
		f.vec, f.with = vec, func(values []string) handle { return handle{counter: vec.WithLabelValues(values...)} }
	case metric.KindGauge:
		vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: m.Name, Help: m.Help}, m.Labels)
		f.vec, f.with = vec, func(values []string) handle { return handle{gauge: vec.WithLabelValues(values...)} }
	case metric.KindHistogram:
		vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: m.Name, Help: m.Help, Buckets: m.Buckets}, m.Labels)
		f.vec, f.with = vec, func(values []string) handle { return handle{histogram: vec.WithLabelValues(values...)} }
	default:
		panic("weirprom: metric " + m.Name + " has an unknown kind " + m.Kind.String())
	}
	return f
}

// seriesKey joins the values by a byte that none of them has: they are UTF-8.
func seriesKey(values []string) string { return strings.Join(values, "\xff") }

func (f *family) resolve(values []string) *handle {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.handles[seriesKey(values)]++
	h := f.with(values)
	h.family, h.values = f, values
	return &h
}

// handle is one handle on a series; of the first three fields one is set.
type handle struct {
	counter   prometheus.Counter
	gauge     prometheus.Gauge
	histogram prometheus.Observer

	family *family
	values []string
	closed bool // guarded by family.mu
}

// close takes the series away with its last handle. The count and the series
// change under one lock: else a handle resolved between the two would be on a
// series that is then deleted.
func (h *handle) close() {
	f := h.family
	f.mu.Lock()
	defer f.mu.Unlock()
	if h.closed {
		return
	}
	h.closed = true
	key := seriesKey(h.values)
	if f.mu.handles[key]--; f.mu.handles[key] == 0 {
		delete(f.mu.handles, key)
		f.vec.DeleteLabelValues(h.values...)
	}
}

type (
	counter   handle
	gauge     handle
	histogram handle
)

func (c *counter) Add(delta float64) {
	// Prometheus would panic on a negative one, and NaN and Inf would stay.
	if delta > 0 && !math.IsInf(delta, 1) {
		c.counter.Add(delta)
	}
}

func (g *gauge) Set(v float64) { g.gauge.Set(v) }

func (h *histogram) Observe(v float64) {
	if !math.IsNaN(v) {
		h.histogram.Observe(v)
	}
}

func (c *counter) Close()   { (*handle)(c).close() }
func (g *gauge) Close()     { (*handle)(g).close() }
func (h *histogram) Close() { (*handle)(h).close() }
