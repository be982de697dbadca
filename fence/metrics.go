package fence

import (
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/weirstreams/weir/metric"
)

// fenceMetrics are those of the topic.
type fenceMetrics struct {
	roundTrip, batch, gap metric.Histogram
	full                  metric.Counter
}

func newFenceMetrics(scope *metric.Scope, o *Options) *fenceMetrics {
	scope.Gauge(metric.FenceWindowMaximum).Set(float64(o.MaxWindow))
	return &fenceMetrics{
		roundTrip: scope.Histogram(metric.FenceRoundTrip),
		batch:     scope.Histogram(metric.FenceBatchRecords),
		gap:       scope.Histogram(metric.FenceGap),
		full:      scope.Counter(metric.FenceFull),
	}
}

// breaker returns the function that counts open breakers.
func (f *Fence) breaker() func(key string, open bool) {
	gauge := f.scope.Gauge(metric.FenceBreakerOpen)
	gauge.Set(0)
	var mu struct {
		sync.Mutex
		open map[string]bool
	}
	mu.open = map[string]bool{}
	return func(key string, open bool) {
		mu.Lock()
		defer mu.Unlock()
		if open {
			mu.open[key] = true
		} else {
			delete(mu.open, key)
		}
		gauge.Set(float64(len(mu.open)))
	}
}

// claimMetrics are those of a partition while it is claimed.
type claimMetrics struct {
	scope                 *metric.Scope
	fence                 *fenceMetrics
	verdicts              [Fenced + 1]metric.Counter
	window                metric.Gauge
	regressed, conflicted metric.Counter
}

func newClaimMetrics(f *Fence, partition int32) *claimMetrics {
	scope := metric.NewScope(f.scope, metric.L(metric.LabelPartition, strconv.Itoa(int(partition))))
	m := &claimMetrics{scope: scope, fence: f.metrics, window: scope.Gauge(metric.FenceWindow),
		regressed: scope.Counter(metric.FenceRegressions), conflicted: scope.Counter(metric.FenceConflicts)}
	for v := Apply; v <= Fenced; v++ {
		m.verdicts[v] = scope.Counter(metric.FenceRecords, metric.L(metric.LabelVerdict, v.String()))
	}
	return m
}

func (m *claimMetrics) close() { m.scope.Close() }

func (m *claimMetrics) verdict(v Verdict, n int) {
	if n > 0 {
		m.verdicts[v].Add(float64(n))
	}
}

// observe counts a batch. What an error left undone is not counted.
func (m *claimMetrics) observe(results []Result, took time.Duration, err error) {
	if errors.Is(err, ErrConflict) {
		m.conflicted.Add(1)
	}
	if err != nil {
		return
	}
	metric.ObserveDuration(m.fence.roundTrip, took)
	m.fence.batch.Observe(float64(len(results)))
	var count [Fenced + 1]int
	for i := range results {
		count[results[i].Verdict]++
	}
	for v := Apply; v <= Fenced; v++ {
		m.verdict(v, count[v])
	}
}

// gaps observes the holes between the offsets of a batch.
func (c *Claim) gaps(b *Batch) {
	for i := range b.Records {
		o := b.Records[i].Offset
		if c.last >= 0 && o > c.last+1 {
			c.metrics.fence.gap.Observe(float64(o - c.last - 1))
		}
		c.last = max(c.last, o)
	}
}
