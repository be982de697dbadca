package metric_test

import (
	"fmt"
	"time"

	"github.com/weirstreams/weir/metric"
)

// A task resolves its handles once, uses them on the hot path, and closes them
// together when it moves away.
func ExampleScope() {
	var sink metric.Memory
	task := metric.NewScope(&sink, metric.L(metric.LabelTask, "0_3"), metric.L(metric.LabelWorker, "1"))

	hits := task.Counter(metric.CacheHits, metric.L(metric.LabelStore, "averages"))
	latency := task.Histogram(metric.CommitLatency)
	hits.Add(1)
	hits.Add(1)
	metric.ObserveDuration(latency, 250*time.Millisecond)
	fmt.Print(sink.String())

	task.Close()
	fmt.Println(sink.Len(), "series left")
	// Output:
	// weir_cache_hits_total{task="0_3",store="averages"} 2
	// weir_commit_latency_seconds{worker="1"} count 1 sum 0.25
	// 0 series left
}
