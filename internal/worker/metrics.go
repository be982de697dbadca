package worker

import (
	"strconv"
	"time"

	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/metric"
)

// Metrics reports what a worker does. A nil *Metrics reports nothing. It is
// used by the worker's goroutine and its callbacks only.
type Metrics struct {
	sink   metric.Sink
	scope  *metric.Scope
	in     map[TopicPartition]metric.Counter
	lags   map[TopicPartition]metric.Gauge
	out    map[string]metric.Counter
	byKey  map[string]metric.Counter
	states map[string]metric.Gauge
	runs   map[*runner]*runnerMetrics

	commits metric.Counter
	latency metric.Histogram
	batch   metric.Histogram
	rebal   metric.Counter
}

// runnerMetrics are the series of one task; they go with it.
type runnerMetrics struct {
	scope     *metric.Scope
	restored  map[string]metric.Counter
	bytes     map[string]metric.Counter
	remaining map[string]metric.Gauge
	drops     map[*task.DropCounter]metric.Counter
	dropped   map[*task.DropCounter]int64
	dead      map[deadKey]metric.Counter
	deadSeen  map[deadKey]int64
	hits      map[string]*delta
	misses    map[string]*delta
	unflushed metric.Gauge
}

type deadKey struct{ node, reason string }

// delta turns a running total into additions to a counter.
type delta struct {
	counter metric.Counter
	last    int64
}

func (d *delta) set(total int64) {
	d.counter.Add(float64(total - d.last))
	d.last = total
}

// NewMetrics returns the metrics of one worker. A nil sink reports nothing.
func NewMetrics(sink metric.Sink, worker int) *Metrics {
	if sink == nil {
		return nil
	}
	s := metric.NewScope(sink, metric.L(metric.LabelWorker, strconv.Itoa(worker)))
	return &Metrics{sink: sink, scope: s, in: map[TopicPartition]metric.Counter{}, lags: map[TopicPartition]metric.Gauge{},
		out: map[string]metric.Counter{}, byKey: map[string]metric.Counter{}, states: map[string]metric.Gauge{}, runs: map[*runner]*runnerMetrics{},
		commits: s.Counter(metric.Commits), latency: s.Histogram(metric.CommitLatency), batch: s.Histogram(metric.BatchRecords),
		rebal: s.Counter(metric.Rebalances)}
}

func (m *Metrics) close() {
	if m != nil {
		m.scope.Close()
	}
}

func (m *Metrics) recordsIn(tp TopicPartition, n int) {
	if m == nil {
		return
	}
	c := m.in[tp]
	if c == nil {
		c = m.scope.Counter(metric.RecordsIn, labelsOf(tp)...)
		m.in[tp] = c
	}
	c.Add(float64(n))
}

func labelsOf(tp TopicPartition) []metric.Label {
	return []metric.Label{metric.L(metric.LabelTopic, tp.Topic), metric.L(metric.LabelPartition, strconv.Itoa(int(tp.Partition)))}
}

func (m *Metrics) lag(tp TopicPartition, lag int64) {
	if m == nil {
		return
	}
	g := m.lags[tp]
	if g == nil {
		g = m.scope.Gauge(metric.ConsumerLag, labelsOf(tp)...)
		m.lags[tp] = g
	}
	g.Set(float64(lag))
}

func (m *Metrics) recordsOut(out []task.Output) {
	if m == nil {
		return
	}
	for i := 0; i < len(out); {
		topic, n := out[i].Topic, 0
		for ; i < len(out) && out[i].Topic == topic; i++ {
			n++
		}
		c := m.out[topic]
		if c == nil {
			c = m.scope.Counter(metric.RecordsOut, metric.L(metric.LabelTopic, topic))
			m.out[topic] = c
		}
		c.Add(float64(n))
	}
}

func (m *Metrics) count(name, label, value string) { m.add(name, label, value, 1) }

func (m *Metrics) add(name, label, value string, n float64) {
	if m == nil {
		return
	}
	c := m.byKey[name+"\x00"+value]
	if c == nil {
		c = m.scope.Counter(name, metric.L(label, value))
		m.byKey[name+"\x00"+value] = c
	}
	c.Add(n)
}

func (m *Metrics) aborted(reason string)  { m.count(metric.Aborts, metric.LabelReason, reason) }
func (m *Metrics) claimed(outcome string) { m.count(metric.Claims, metric.LabelOutcome, outcome) }
func (m *Metrics) reset(topic string)     { m.count(metric.Claims, metric.LabelOutcome, "reset "+topic) }

// forgotten counts that a store has forgotten batches of a task, and the records
// that are processed again; resent counts outputs that are sent again.
func (m *Metrics) forgotten(r *runner, records int64) {
	m.count(metric.StoreForgot, metric.LabelTask, r.spec.ID.String())
	m.add(metric.Reprocessed, metric.LabelTask, r.spec.ID.String(), float64(records))
}

func (m *Metrics) resent(r *runner, outputs int) {
	m.add(metric.RecordsResent, metric.LabelTask, r.spec.ID.String(), float64(outputs))
}

func (m *Metrics) rebalanced() {
	if m != nil {
		m.rebal.Add(1)
	}
}

func (m *Metrics) committed(records int, took time.Duration) {
	if m == nil {
		return
	}
	m.commits.Add(1)
	m.batch.Observe(float64(records))
	metric.ObserveDuration(m.latency, took)
}

// tasks publishes what the tasks counted since the last call.
func (m *Metrics) tasks(order []*runner) {
	if m == nil {
		return
	}
	states := map[string]int{claiming.String(): 0, restoring.String(): 0, running.String(): 0, fenced.String(): 0, resending.String(): 0}
	for _, r := range order {
		states[r.phase.String()]++
		if r.t == nil {
			continue
		}
		rm := m.of(r)
		st := r.t.Stats()
		for _, d := range st.Drops {
			c := rm.drops[d]
			if c == nil {
				c = rm.scope.Counter(metric.RecordsDropped, metric.L(metric.LabelNode, d.Node), metric.L(metric.LabelReason, d.Reason))
				rm.drops[d] = c
			}
			c.Add(float64(d.N - rm.dropped[d]))
			rm.dropped[d] = d.N
		}
		for k, n := range st.DeadLetters {
			key := deadKey{k.Node, string(k.Class)}
			c := rm.dead[key]
			if c == nil {
				c = rm.scope.Counter(metric.DeadLetters, metric.L(metric.LabelNode, key.node), metric.L(metric.LabelReason, key.reason))
				rm.dead[key] = c
			}
			c.Add(float64(n - rm.deadSeen[key]))
			rm.deadSeen[key] = n
		}
		for _, s := range st.Stores {
			h, mi := rm.hits[s.Name], rm.misses[s.Name]
			if h == nil {
				h = &delta{counter: rm.scope.Counter(metric.CacheHits, metric.L(metric.LabelStore, s.Name))}
				mi = &delta{counter: rm.scope.Counter(metric.CacheMisses, metric.L(metric.LabelStore, s.Name))}
				rm.hits[s.Name], rm.misses[s.Name] = h, mi
			}
			h.set(s.Hits)
			mi.set(s.Misses)
		}
		rm.unflushed.Set(float64(r.t.Unflushed()))
	}
	for s, n := range states {
		g := m.states[s]
		if g == nil {
			g = m.scope.Gauge(metric.Tasks, metric.L(metric.LabelState, s))
			m.states[s] = g
		}
		g.Set(float64(n))
	}
}

func (m *Metrics) of(r *runner) *runnerMetrics {
	rm := m.runs[r]
	if rm == nil {
		scope := metric.NewScope(m.sink, metric.L(metric.LabelTask, r.spec.ID.String()))
		rm = &runnerMetrics{scope: scope, restored: map[string]metric.Counter{}, bytes: map[string]metric.Counter{},
			remaining: map[string]metric.Gauge{}, drops: map[*task.DropCounter]metric.Counter{}, dropped: map[*task.DropCounter]int64{},
			dead: map[deadKey]metric.Counter{}, deadSeen: map[deadKey]int64{}, hits: map[string]*delta{}, misses: map[string]*delta{},
			unflushed: scope.Gauge(metric.UnflushedBytes)}
		m.runs[r] = rm
	}
	return rm
}

func (m *Metrics) restored(r *runner, store string, records, bytes int64, remaining int64) {
	if m == nil {
		return
	}
	rm := m.of(r)
	c, b, g := rm.restored[store], rm.bytes[store], rm.remaining[store]
	if c == nil {
		l := metric.L(metric.LabelStore, store)
		c, b, g = rm.scope.Counter(metric.RestoreRecords, l), rm.scope.Counter(metric.RestoreBytes, l), rm.scope.Gauge(metric.RestoreRemaining, l)
		rm.restored[store], rm.bytes[store], rm.remaining[store] = c, b, g
	}
	c.Add(float64(records))
	b.Add(float64(bytes))
	g.Set(float64(remaining))
}

// forget ends the series of a task that leaves the worker.
func (m *Metrics) forget(r *runner) {
	if m == nil {
		return
	}
	if rm := m.runs[r]; rm != nil {
		rm.scope.Close()
		delete(m.runs, r)
	}
	for _, tp := range r.partitions() {
		if c := m.in[tp]; c != nil {
			c.Close()
			delete(m.in, tp)
		}
		if g := m.lags[tp]; g != nil {
			g.Close()
			delete(m.lags, tp)
		}
	}
}
