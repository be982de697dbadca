package weirprom

import (
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirstreams/weir/metric"
)

func newSink(t *testing.T) (*Sink, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	s, err := New(reg)
	if err != nil {
		t.Fatal(err)
	}
	return s, reg
}

// scrape returns the lines of a scrape that begin with weir_, or with # if
// comments are wanted.
func scrape(t *testing.T, g prometheus.Gatherer, comments bool) []string {
	t.Helper()
	w := httptest.NewRecorder()
	Handler(g).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") {
		t.Fatalf("scrape: %d %s: %s", w.Code, w.Header().Get("Content-Type"), w.Body)
	}
	var lines []string
	for line := range strings.Lines(w.Body.String()) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") == comments {
			lines = append(lines, line)
		}
	}
	return lines
}

// use resolves a handle on every metric of the table, measures once, and returns
// the handles. It leaves the labels of a scope to the scope.
func use(s metric.Sink, scoped ...string) []metric.Closer {
	var handles []metric.Closer
	for _, m := range metric.Metrics() {
		var labels []metric.Label
		for _, l := range m.Labels {
			if !slices.Contains(scoped, l) {
				labels = append(labels, metric.L(l, "v-"+l))
			}
		}
		slices.Reverse(labels) // the order of the caller does not matter
		switch m.Kind {
		case metric.KindCounter:
			h := s.Counter(m.Name, labels...)
			h.Add(2)
			handles = append(handles, h)
		case metric.KindGauge:
			h := s.Gauge(m.Name, labels...)
			h.Set(2)
			handles = append(handles, h)
		case metric.KindHistogram:
			h := s.Histogram(m.Name, labels...)
			h.Observe(2)
			handles = append(handles, h)
		}
	}
	return handles
}

// Every declared metric comes out with its name, help, kind and labels, and is
// gone when its handle is closed.
func TestScrapeHasTheWholeTable(t *testing.T) {
	t.Parallel()
	s, reg := newSink(t)
	if lines := scrape(t, reg, false); len(lines) != 0 {
		t.Errorf("before anything was resolved: %q", lines)
	}
	handles := use(s)
	lines, comments := scrape(t, reg, false), scrape(t, reg, true)
	for _, m := range metric.Metrics() {
		labels := make([]string, len(m.Labels))
		for i, l := range m.Labels {
			labels[i] = l + `="v-` + l + `"`
		}
		slices.Sort(labels)
		series := m.Name + "{" + strings.Join(labels, ",") + "} 2"
		if m.Kind == metric.KindHistogram {
			series = m.Name + "_sum{" + strings.Join(labels, ",") + "} 2"
		}
		for _, want := range []string{"# HELP " + m.Name + " " + m.Help, "# TYPE " + m.Name + " " + m.Kind.String()} {
			if !slices.Contains(comments, want) {
				t.Errorf("the scrape lacks %q", want)
			}
		}
		if !slices.Contains(lines, series) {
			t.Errorf("the scrape lacks %q", series)
		}
	}
	for _, h := range handles {
		h.Close()
	}
	if lines := scrape(t, reg, false); len(lines) != 0 {
		t.Errorf("after all handles were closed: %q", lines)
	}
}

// A commit of 250 ms is in the bucket up to 0.25 s and in none below.
func TestSituationJ5BucketsAreSeconds(t *testing.T) {
	t.Parallel()
	s, reg := newSink(t)
	metric.ObserveDuration(s.Histogram(metric.CommitLatency, metric.L("worker", "0")), 250*time.Millisecond)
	lines := scrape(t, reg, false)
	for le, n := range map[string]string{"0.1": "0", "0.25": "1", "0.5": "1", "+Inf": "1"} {
		want := `weir_commit_latency_seconds_bucket{worker="0",le="` + le + `"} ` + n
		if !slices.Contains(lines, want) {
			t.Errorf("the scrape lacks %s:\n%s", want, strings.Join(lines, "\n"))
		}
	}
	desc, _ := metric.Lookup(metric.CommitLatency)
	for _, bound := range desc.Buckets {
		prefix := `weir_commit_latency_seconds_bucket{worker="0",le="` + strconv.FormatFloat(bound, 'g', -1, 64) + `"} `
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, prefix) }) {
			t.Errorf("the declared bucket up to %g is missing", bound)
		}
	}
}

func TestValues(t *testing.T) {
	t.Parallel()
	s, reg := newSink(t)
	topic := metric.L("topic", "orders")
	a, b := s.Counter(metric.RecordsOut, topic), s.Counter(metric.RecordsOut, topic)
	a.Add(2)
	b.Add(3)
	for _, ignored := range []float64{-1, 0, math.NaN(), math.Inf(1)} {
		a.Add(ignored)
	}
	g := s.Gauge(metric.Tasks, metric.L("worker", "0"), metric.L("state", "running"))
	g.Set(7)
	g.Set(4)
	h := s.Histogram(metric.BatchRecords, metric.L("worker", "0"))
	h.Observe(5)
	h.Observe(math.NaN())
	expect := func(want ...string) {
		t.Helper()
		lines := scrape(t, reg, false)
		for _, w := range want {
			if !slices.Contains(lines, w) {
				t.Errorf("the scrape lacks %q:\n%s", w, strings.Join(lines, "\n"))
			}
		}
	}
	expect(`weir_records_out_total{topic="orders"} 5`, `weir_tasks{state="running",worker="0"} 4`,
		`weir_batch_records_count{worker="0"} 1`, `weir_batch_records_sum{worker="0"} 5`)

	// The series lives as long as one handle is open, however often another is
	// closed, and starts from nothing when it comes back.
	a.Close()
	a.Close()
	expect(`weir_records_out_total{topic="orders"} 5`)
	b.Close()
	b.Add(1) // harmless
	if lines := scrape(t, reg, false); slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, metric.RecordsOut) }) {
		t.Errorf("the series outlived its handles: %q", lines)
	}
	s.Counter(metric.RecordsOut, topic).Add(1)
	expect(`weir_records_out_total{topic="orders"} 1`)
}

// A mistake in the program costs its measurement and is visible, no more.
func TestUndeclaredIsRefusedAndCounted(t *testing.T) {
	t.Parallel()
	s, reg := newSink(t)
	s.Counter("weir_nonsense_total", metric.L("a", "b")).Add(1)
	s.Gauge(metric.Commits, metric.L("worker", "0")).Set(1)
	s.Histogram(metric.CommitLatency, metric.L("task", "0_0")).Observe(1)
	s.Counter("\xff").Add(1)
	s.Counter(metric.RecordsOut, metric.L("topic", "\xff")).Add(1)
	want := []string{
		`weir_metrics_refused_total{metric="weir_commit_latency_seconds"} 1`,
		`weir_metrics_refused_total{metric="weir_commits_total"} 1`,
		`weir_metrics_refused_total{metric="weir_nonsense_total"} 1`,
		`weir_metrics_refused_total{metric="` + "\uFFFD" + `"} 1`,
		`weir_records_out_total{topic="` + "\uFFFD" + `"} 1`,
	}
	if lines := scrape(t, reg, false); !slices.Equal(lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

func TestNewErrors(t *testing.T) {
	t.Parallel()
	if _, err := New(nil); err == nil || !strings.Contains(err.Error(), "no registerer") {
		t.Errorf("New(nil): %v", err)
	}
	s, reg := newSink(t)
	const want = "weirprom: register weir_records_in_total: already registered: share one Sink, or wrap the registerer with a label for each"
	if _, err := New(reg); err == nil || err.Error() != want {
		t.Errorf("a second sink on one registry:\n got %v\nwant %s", err, want)
	}
	// The failure took nothing away from the first.
	s.Counter(metric.Commits, metric.L("worker", "0")).Add(1)
	if lines := scrape(t, reg, false); !slices.Equal(lines, []string{`weir_commits_total{worker="0"} 1`}) {
		t.Errorf("after the failure: %q", lines)
	}

	// A metric of somebody else in the middle of the table: what was registered
	// before it is taken back.
	other := prometheus.NewRegistry()
	other.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: metric.Claims, Help: "not ours"}))
	if _, err := New(other); err == nil || !strings.Contains(err.Error(), "weirprom: register weir_claims_total: ") {
		t.Errorf("a name that is taken: %v", err)
	}
	first := newFamily(metric.Metrics()[0])
	if err := other.Register(first.vec); err != nil {
		t.Errorf("the failed New left something registered: %v", err)
	}

	s.Close()
	s.Close()
	if _, err := New(reg); err != nil {
		t.Errorf("after Close: %v", err)
	}
}

func TestTwoApplications(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	for i, app := range []string{"a", "b"} {
		s, err := New(prometheus.WrapRegistererWith(prometheus.Labels{"app": app}, reg))
		if err != nil {
			t.Fatal(err)
		}
		s.Counter(metric.Commits, metric.L("worker", "0")).Add(float64(i + 1))
	}
	want := []string{`weir_commits_total{app="a",worker="0"} 1`, `weir_commits_total{app="b",worker="0"} 2`}
	if lines := scrape(t, reg, false); !slices.Equal(lines, want) {
		t.Errorf("got %q, want %q", lines, want)
	}
}

// A thousand rebalances, each with tasks that were not there before, leave no
// series, no bookkeeping and no memory behind.
func TestSituationJ3RebalancesLeaveNoSeries(t *testing.T) {
	s, reg := newSink(t)
	worker := metric.NewScope(s, metric.L("worker", "0"))
	worker.Counter(metric.Commits).Add(1)
	rebalance := func(i int) {
		for p := range 4 {
			task := metric.NewScope(worker, metric.L("task", strconv.Itoa(i)+"_"+strconv.Itoa(p)))
			use(task, "worker", "task")
			task.Close()
		}
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	rebalance(0)
	before := heap()
	for i := range 1000 {
		rebalance(i)
	}
	const slack = 512 << 10 // the series of 4,000 tasks take 20 MB, the bookkeeping alone 3 MB
	if after := heap(); after > before+slack {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
	// The worker's own series stays, with what the 4,004 tasks added to it.
	if lines := scrape(t, reg, false); !slices.Equal(lines, []string{`weir_commits_total{worker="0"} 8009`}) {
		t.Errorf("series left: %q", lines)
	}
	for name, f := range s.families {
		if n := len(f.mu.handles); n != 0 && name != metric.Commits {
			t.Errorf("%s still counts %d series", name, n)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	s, reg := newSink(t)
	held := s.Counter(metric.RecordsOut, metric.L("topic", "orders"))
	const workers, rounds = 4, 300
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				// A shared series that stays, and one that comes and goes.
				a := s.Counter(metric.RecordsOut, metric.L("topic", "orders"))
				b := s.Gauge(metric.WorkerBusy, metric.L("worker", "0"))
				a.Add(1)
				b.Set(float64(w))
				a.Close()
				b.Close()
				if i%50 == 0 {
					if _, err := reg.Gather(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if lines := scrape(t, reg, false); !slices.Equal(lines, []string{`weir_records_out_total{topic="orders"} 1200`}) {
		t.Errorf("got %q", lines)
	}
	held.Close()
}

// What one measurement costs.
func BenchmarkCounter(b *testing.B) {
	s, err := New(prometheus.NewRegistry())
	if err != nil {
		b.Fatal(err)
	}
	c := metric.NewScope(s).Counter(metric.RecordsOut, metric.L("topic", "orders"))
	b.ReportAllocs()
	for b.Loop() {
		c.Add(1)
	}
}

func BenchmarkHistogram(b *testing.B) {
	s, err := New(prometheus.NewRegistry())
	if err != nil {
		b.Fatal(err)
	}
	h := metric.NewScope(s).Histogram(metric.CommitLatency, metric.L("worker", "0"))
	b.ReportAllocs()
	for b.Loop() {
		h.Observe(0.25)
	}
}
