package weirprom_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirstreams/weir/metric"
	"github.com/weirstreams/weir/weirprom"
)

// The sink goes into the application's configuration; here the measurements are
// made by hand.
func ExampleNew() {
	registry := prometheus.NewRegistry()
	sink, err := weirprom.New(registry)
	if err != nil {
		fmt.Println(err)
		return
	}
	worker := metric.NewScope(sink, metric.L(metric.LabelWorker, "0"))
	worker.Counter(metric.Commits).Add(1)
	metric.ObserveDuration(worker.Histogram(metric.CommitLatency), 250*time.Millisecond)

	w := httptest.NewRecorder()
	weirprom.Handler(registry).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.Contains(line, "commits_total") || strings.Contains(line, `le="0.25"`) {
			fmt.Print(line)
		}
	}
	// Output:
	// weir_commit_latency_seconds_bucket{worker="0",le="0.25"} 1
	// # HELP weir_commits_total Batches committed.
	// # TYPE weir_commits_total counter
	// weir_commits_total{worker="0"} 1
}
