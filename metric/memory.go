package metric

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Memory keeps all series in memory, for tests. Unlike other sinks it panics on
// a name, kind or label that is not declared, so that a test finds it. The zero
// value is ready to use. It is safe for concurrent use.
type Memory struct {
	mu struct {
		sync.Mutex
		series map[string]*series // by what String prints for it
	}
}

var _ Sink = (*Memory)(nil)

// Distribution is what a histogram holds.
type Distribution struct {
	Count uint64
	Sum   float64
	// Buckets holds, for each of the metric's buckets and for the last one
	// without bound, the observations that fell into it alone.
	Buckets []uint64
}

// series is guarded by its Memory's lock.
type series struct {
	metric  Metric
	values  []string // of metric.Labels
	key     string
	handles int
	value   float64
	dist    Distribution
}

// memoryHandle is one handle on a series.
type memoryHandle struct {
	m      *Memory
	s      *series
	closed bool // guarded by m.mu
}

// Counter returns a handle on a counter.
func (m *Memory) Counter(name string, labels ...Label) Counter {
	return m.resolve(KindCounter, name, labels)
}

// Gauge returns a handle on a gauge. The series is there, as 0, at once.
func (m *Memory) Gauge(name string, labels ...Label) Gauge {
	return m.resolve(KindGauge, name, labels)
}

// Histogram returns a handle on a histogram.
func (m *Memory) Histogram(name string, labels ...Label) Histogram {
	return m.resolve(KindHistogram, name, labels)
}

func (m *Memory) resolve(kind Kind, name string, labels []Label) *memoryHandle {
	d, values := mustCheck(kind, name, labels)
	key := seriesKey(d, values)
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.mu.series[key]
	if s == nil {
		s = &series{metric: d, values: values, key: key}
		if kind == KindHistogram {
			s.dist.Buckets = make([]uint64, len(d.Buckets)+1)
		}
		if m.mu.series == nil {
			m.mu.series = make(map[string]*series)
		}
		m.mu.series[key] = s
	}
	s.handles++
	return &memoryHandle{m: m, s: s}
}

func mustCheck(kind Kind, name string, labels []Label) (Metric, []string) {
	d, values, err := Check(kind, name, labels)
	if err != nil {
		panic(err.Error())
	}
	return d, values
}

// seriesKey writes a series as Prometheus does: name{label="value",...}.
func seriesKey(d Metric, values []string) string {
	if len(values) == 0 {
		return d.Name
	}
	var b strings.Builder
	b.WriteString(d.Name)
	sep := byte('{')
	for i, v := range values {
		b.WriteByte(sep)
		b.WriteString(d.Labels[i])
		b.WriteByte('=')
		b.WriteString(strconv.Quote(v))
		sep = ','
	}
	b.WriteByte('}')
	return b.String()
}

func (h *memoryHandle) Add(delta float64) {
	if !(delta > 0) || math.IsInf(delta, 1) {
		return
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	h.s.value += delta
}

func (h *memoryHandle) Set(v float64) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	h.s.value = v
}

func (h *memoryHandle) Observe(v float64) {
	if math.IsNaN(v) {
		return
	}
	i, _ := slices.BinarySearch(h.s.metric.Buckets, v) // first bound >= v
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	h.s.dist.Count++
	h.s.dist.Sum += v
	h.s.dist.Buckets[i]++
}

func (h *memoryHandle) Close() {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if h.closed {
		return
	}
	h.closed = true
	if h.s.handles--; h.s.handles == 0 {
		delete(h.m.mu.series, h.s.key)
	}
}

// Value returns the value of a counter or gauge, and false if there is no such
// series now.
func (m *Memory) Value(name string, labels ...Label) (float64, bool) {
	kind := KindCounter
	if d, ok := Lookup(name); ok && d.Kind == KindGauge {
		kind = KindGauge
	}
	s, ok := m.get(kind, name, labels)
	return s.value, ok
}

// Distribution returns what a histogram holds, and false if there is no such
// series now.
func (m *Memory) Distribution(name string, labels ...Label) (Distribution, bool) {
	s, ok := m.get(KindHistogram, name, labels)
	return s.dist, ok
}

// get returns a copy of a series.
func (m *Memory) get(kind Kind, name string, labels []Label) (series, bool) {
	key := seriesKey(mustCheck(kind, name, labels))
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.mu.series[key]
	if s == nil {
		return series{}, false
	}
	c := *s
	c.dist.Buckets = slices.Clone(s.dist.Buckets)
	return c, true
}

// Sum returns the sum over those series of a counter or gauge that have the
// given labels, whatever their others: 0 if there are none.
func (m *Memory) Sum(name string, labels ...Label) float64 {
	d, ok := Lookup(name)
	if !ok || d.Kind == KindHistogram {
		panic(fmt.Sprintf("metric %q is no declared counter or gauge", name))
	}
	want := make(map[int]string, len(labels)) // by place in d.Labels
	for _, l := range labels {
		i := slices.Index(d.Labels, l.Name)
		if i < 0 {
			panic(fmt.Sprintf("metric %q has no label %q, but %q", name, l.Name, d.Labels))
		}
		want[i] = l.Value
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var sum float64
	for _, s := range m.mu.series {
		match := s.metric.Name == name
		for i, v := range want {
			match = match && s.values[i] == v
		}
		if match {
			sum += s.value
		}
	}
	return sum
}

// Len returns the number of series.
func (m *Memory) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.mu.series)
}

// String lists all series, one a line, sorted: name{label="value",...} value,
// and count and sum for a histogram.
func (m *Memory) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(m.mu.series)) {
		switch s := m.mu.series[key]; s.metric.Kind {
		case KindHistogram:
			fmt.Fprintf(&b, "%s count %d sum %g\n", key, s.dist.Count, s.dist.Sum)
		default:
			fmt.Fprintf(&b, "%s %g\n", key, s.value)
		}
	}
	return b.String()
}
