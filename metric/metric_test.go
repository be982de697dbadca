package metric_test

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirstreams/weir/metric"
)

// The table follows the rules that Prometheus and OpenTelemetry share: base
// units, the unit at the end of the name, counters in _total.
func TestTable(t *testing.T) {
	t.Parallel()
	nameRule := regexp.MustCompile(`^weir_[a-z]+(_[a-z]+)*$`)
	labelRule := regexp.MustCompile(`^[a-z]+$`)
	seen := map[string]bool{}
	for _, m := range metric.Metrics() {
		bad := func(why string) { t.Errorf("%s: %s", m.Name, why) }
		if seen[m.Name] {
			bad("declared twice")
		}
		seen[m.Name] = true
		if !nameRule.MatchString(m.Name) {
			bad("not a name of ours")
		}
		if m.Help == "" || !strings.HasSuffix(m.Help, ".") {
			bad("the help is not a sentence")
		}
		base, total := strings.CutSuffix(m.Name, "_total")
		if total != (m.Kind == metric.KindCounter) {
			bad("_total is for counters, and all of them")
		}
		for _, u := range []metric.Unit{metric.Seconds, metric.Bytes, metric.Ratio} {
			if (m.Unit == u) != strings.HasSuffix(base, "_"+string(u)) {
				bad("the name and the unit differ about " + string(u))
			}
		}
		if strings.Contains(m.Name, "milli") || strings.HasSuffix(base, "_ms") {
			bad("time is in seconds")
		}
		if (m.Kind == metric.KindHistogram) != (len(m.Buckets) > 0) {
			bad("buckets are for histograms, and all of them")
		}
		if !slices.IsSortedFunc(m.Buckets, func(a, b float64) int {
			if a < b {
				return -1
			}
			return 1
		}) {
			bad("the buckets do not rise")
		}
		if n := len(m.Labels); n >= 64 {
			bad("too many labels for Check")
		}
		for i, l := range m.Labels {
			if !labelRule.MatchString(l) || l == "le" || l == "quantile" || slices.Contains(m.Labels[:i], l) {
				bad("bad label " + l)
			}
		}
		if got, ok := metric.Lookup(m.Name); !ok || got.Help != m.Help {
			bad("Lookup does not find it")
		}
	}
	for _, name := range []string{
		"weir_records_in_total", "weir_records_out_total", "weir_records_dropped_total", "weir_dead_letters_total",
		"weir_commits_total", "weir_commit_latency_seconds", "weir_batch_records", "weir_aborts_total",
		"weir_restore_records_total", "weir_restore_remaining_records", "weir_store_keys", "weir_store_bytes",
		"weir_cache_hits_total", "weir_cache_misses_total", "weir_consumer_lag_records", "weir_tasks", "weir_app_state",
		"weir_rebalances_total", "weir_worker_busy_ratio", "weir_unflushed_bytes", "weir_claims_total",
	} {
		if !seen[name] {
			t.Errorf("dashboards rely on %s, which is gone", name)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	m, values, err := metric.Check(metric.KindCounter, metric.RecordsIn,
		[]metric.Label{metric.L("partition", "3"), metric.L("topic", "orders")})
	if err != nil || m.Name != metric.RecordsIn || !slices.Equal(values, []string{"orders", "3"}) {
		t.Errorf("got %q %q, %v, want the values in declared order", m.Name, values, err)
	}
	for _, c := range []struct {
		kind   metric.Kind
		name   string
		labels []metric.Label
		want   string
	}{
		{metric.KindCounter, "weir_nonsense_total", nil, `metric "weir_nonsense_total" is not declared in package metric`},
		{metric.KindGauge, metric.RecordsIn, nil, `metric "weir_records_in_total" is a counter, used as a gauge`},
		{metric.KindHistogram, metric.Tasks, nil, `metric "weir_tasks" is a gauge, used as a histogram`},
		{metric.KindCounter, metric.Commits, nil, `metric "weir_commits_total" needs the label "worker"`},
		{
			metric.KindCounter, metric.Commits, []metric.Label{metric.L("worker", "0"), metric.L("task", "0_0")},
			`metric "weir_commits_total" has no label "task", but ["worker"]`,
		},
		{
			metric.KindCounter, metric.Commits, []metric.Label{metric.L("worker", ""), metric.L("worker", "")},
			`metric "weir_commits_total" got the label "worker" twice`,
		},
	} {
		if _, _, err := metric.Check(c.kind, c.name, c.labels); err == nil || err.Error() != c.want {
			t.Errorf("%s %s %v:\n got %v\nwant %s", c.kind, c.name, c.labels, err, c.want)
		}
	}
}

// 250 ms belong into the bucket up to 250 ms. Fed in milliseconds, they would be
// in the last bucket, without bound.
func TestSituationJ5LatencyIsInSeconds(t *testing.T) {
	t.Parallel()
	var m metric.Memory
	worker := metric.L(metric.LabelWorker, "0")
	metric.ObserveDuration(m.Histogram(metric.CommitLatency, worker), 250*time.Millisecond)

	d, ok := m.Distribution(metric.CommitLatency, worker)
	if !ok || d.Count != 1 || d.Sum != 0.25 {
		t.Fatalf("got %+v, %v, want one observation of 0.25", d, ok)
	}
	desc, _ := metric.Lookup(metric.CommitLatency)
	for i, n := range d.Buckets {
		upTo := math.Inf(1)
		if i < len(desc.Buckets) {
			upTo = desc.Buckets[i]
		}
		if (n == 1) != (upTo == 0.25) {
			t.Errorf("%d observations in the bucket up to %g s", n, upTo)
		}
	}
}

func TestMemory(t *testing.T) {
	t.Parallel()
	var m metric.Memory
	orders, users := metric.L("topic", "orders"), metric.L("topic", "users")
	a, b := m.Counter(metric.RecordsOut, orders), m.Counter(metric.RecordsOut, orders)
	a.Add(2)
	b.Add(3)
	m.Counter(metric.RecordsOut, users).Add(10)
	for _, ignored := range []float64{-1, 0, math.NaN(), math.Inf(1)} {
		a.Add(ignored)
	}
	if v, ok := m.Value(metric.RecordsOut, orders); v != 5 || !ok {
		t.Errorf("two handles on one series: %g, %v, want 5", v, ok)
	}

	lag := m.Gauge(metric.ConsumerLag, orders, metric.L("partition", "0"))
	if v, ok := m.Value(metric.ConsumerLag, metric.L("partition", "0"), orders); v != 0 || !ok {
		t.Errorf("a gauge that was not set: %g, %v, want 0", v, ok)
	}
	lag.Set(7)
	lag.Set(4)
	m.Gauge(metric.ConsumerLag, orders, metric.L("partition", "1")).Set(1)
	if sum := m.Sum(metric.ConsumerLag, orders); sum != 5 {
		t.Errorf("lag of orders = %g, want 5", sum)
	}
	if sum := m.Sum(metric.ConsumerLag, users); sum != 0 {
		t.Errorf("lag of users = %g, want 0", sum)
	}

	h := m.Histogram(metric.BatchRecords, metric.L("worker", "0"))
	for _, v := range []float64{1, 3, 4, 1e9, math.NaN()} {
		h.Observe(v)
	}
	d, ok := m.Distribution(metric.BatchRecords, metric.L("worker", "0"))
	if !ok || d.Count != 4 || d.Buckets[0] != 1 || d.Buckets[1] != 2 || d.Buckets[len(d.Buckets)-1] != 1 {
		t.Errorf("distribution %+v, %v", d, ok)
	}

	const want = `weir_batch_records{worker="0"} count 4 sum 1.000000008e+09
weir_consumer_lag_records{topic="orders",partition="0"} 4
weir_consumer_lag_records{topic="orders",partition="1"} 1
weir_records_out_total{topic="orders"} 5
weir_records_out_total{topic="users"} 10
`
	if got := m.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}

	// The series lives as long as one handle is open; closing twice is not
	// closing for the other.
	a.Close()
	a.Close()
	if v, ok := m.Value(metric.RecordsOut, orders); v != 5 || !ok {
		t.Errorf("after one of two handles was closed: %g, %v, want 5", v, ok)
	}
	b.Close()
	if _, ok := m.Value(metric.RecordsOut, orders); ok {
		t.Error("the series outlived its handles")
	}
	b.Add(1) // harmless
	if m.Counter(metric.RecordsOut, orders); m.Sum(metric.RecordsOut, orders) != 0 {
		t.Error("a series that was resolved again did not start from nothing")
	}
}

func TestMemoryPanicsOnUndeclared(t *testing.T) {
	t.Parallel()
	var m metric.Memory
	for name, use := range map[string]func(){
		"name":           func() { m.Counter("weir_nonsense_total") },
		"kind":           func() { m.Gauge(metric.Commits, metric.L("worker", "0")) },
		"label":          func() { m.Histogram(metric.CommitLatency) },
		"read":           func() { m.Value("weir_nonsense_total") },
		"sum of kind":    func() { m.Sum(metric.CommitLatency) },
		"sum over label": func() { m.Sum(metric.Commits, metric.L("task", "0_0")) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			use()
		}()
	}
}

func TestScope(t *testing.T) {
	t.Parallel()
	var m metric.Memory
	worker := metric.NewScope(&m, metric.L("worker", "0"))
	task := metric.NewScope(worker, metric.L("task", "0_3"))

	worker.Counter(metric.Commits).Add(1)
	task.Counter(metric.CacheHits, metric.L("store", "s")).Add(2)
	// A label of the caller wins, one that the metric lacks is left out.
	task.Gauge(metric.StoreKeys, metric.L("store", "s"), metric.L("task", "0_4")).Set(3)
	task.Counter(metric.RecordsOut, metric.L("topic", "orders")).Add(4)
	metric.ObserveDuration(task.Histogram(metric.CommitLatency), time.Second)

	const want = `weir_cache_hits_total{task="0_3",store="s"} 2
weir_commit_latency_seconds{worker="0"} count 1 sum 1
weir_commits_total{worker="0"} 1
weir_records_out_total{topic="orders"} 4
weir_store_keys{task="0_4",store="s"} 3
`
	if got := m.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}

	task.Close()
	task.Close()
	if got := m.String(); got != "weir_commits_total{worker=\"0\"} 1\n" {
		t.Errorf("after the task's scope was closed:\n%s", got)
	}
	task.Counter(metric.CacheHits, metric.L("store", "s")).Add(1)
	task.Gauge(metric.StoreKeys, metric.L("store", "s")).Set(1)
	task.Histogram(metric.CommitLatency).Observe(1)
	if m.Len() != 1 {
		t.Errorf("a closed scope brought series back:\n%s", m.String())
	}
	worker.Close()
	if m.Len() != 0 {
		t.Errorf("after all scopes were closed:\n%s", m.String())
	}

	// The caller's slice of labels is not written to.
	labels := make([]metric.Label, 1, 2)
	labels[0] = metric.L("store", "s")
	s := metric.NewScope(&m, metric.L("task", "0_5"))
	s.Counter(metric.CacheHits, labels...)
	if spare := labels[:2][1]; spare != (metric.Label{}) {
		t.Errorf("the scope wrote %v behind the caller's labels", spare)
	}
}

func TestDiscard(t *testing.T) {
	t.Parallel()
	for _, sink := range []metric.Sink{metric.Discard, metric.NewScope(nil)} {
		sink.Counter("anything").Add(1)
		sink.Gauge("anything").Set(1)
		sink.Histogram("anything").Observe(1)
		h := sink.Counter(metric.Commits)
		h.Close()
		h.Close()
	}
}

// A task that comes and goes a thousand times leaves no series behind.
func TestSituationJ3RebalancesLeaveNoSeries(t *testing.T) {
	t.Parallel()
	var m metric.Memory
	worker := metric.NewScope(&m, metric.L("worker", "0"))
	worker.Counter(metric.Commits).Add(1)
	for i := range 1000 {
		task := metric.NewScope(&m, metric.L("task", string(rune('a'+i%26))), metric.L("worker", "0"))
		task.Counter(metric.RestoreRecords, metric.L("store", "s")).Add(1)
		task.Gauge(metric.StoreBytes, metric.L("store", "s")).Set(1)
		task.Histogram(metric.CommitLatency).Observe(1)
		task.Counter(metric.Commits).Add(1)
		if m.Len() != 4 {
			t.Fatalf("rebalance %d: %d series, want 4:\n%s", i, m.Len(), m.String())
		}
		task.Close()
	}
	if v, _ := m.Value(metric.Commits, metric.L("worker", "0")); m.Len() != 1 || v != 1001 {
		t.Errorf("after all: %s", m.String())
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	var m metric.Memory
	held := m.Counter(metric.RecordsOut, metric.L("topic", "orders"))
	scope := metric.NewScope(&m)
	const workers, rounds = 4, 200
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range rounds {
				c := m.Counter(metric.RecordsOut, metric.L("topic", "orders"))
				c.Add(1)
				c.Close()
				scope.Gauge(metric.Tasks, metric.L("worker", "0"), metric.L("state", "running")).Set(1)
				_ = m.String()
			}
		})
	}
	wg.Go(scope.Close)
	wg.Wait()
	if got := m.Sum(metric.RecordsOut); got != workers*rounds || m.Len() != 1 {
		t.Errorf("%g records, want %d, in:\n%s", got, workers*rounds, m.String())
	}
	held.Close()
}

func TestKindString(t *testing.T) {
	t.Parallel()
	if got := metric.Kind(9).String(); got != "Kind(9)" {
		t.Errorf("got %s", got)
	}
}
