package metric

import "testing"

// A scope that lives as long as the process keeps nothing of what was closed
// inside it, whichever way it was closed.
func TestSituationJ3ScopeForgetsWhatIsClosed(t *testing.T) {
	t.Parallel()
	var m Memory
	app := NewScope(&m)
	worker := NewScope(app, L(LabelWorker, "0"))
	for range 1000 {
		task := NewScope(worker, L(LabelTask, "0_3"))
		task.Counter(CacheHits, L(LabelStore, "s"))
		task.Gauge(StoreKeys, L(LabelStore, "s")).Close()
		task.Close()
		worker.Counter(Commits).Close()
		worker.Gauge(WorkerBusy).Close()
		worker.Histogram(CommitLatency).Close()
	}
	if n := len(app.mu.open) + len(worker.mu.open); n != 1 { // the worker in the app
		t.Errorf("%d things are still held, want 1", n)
	}
	if m.Len() != 0 {
		t.Errorf("series left:\n%s", m.String())
	}

	// The outer scope closes the inner ones, and no new one opens in it.
	task := NewScope(worker, L(LabelTask, "0_3"))
	task.Counter(CacheHits, L(LabelStore, "s"))
	app.Close()
	NewScope(worker, L(LabelTask, "0_4")).Counter(CacheHits, L(LabelStore, "s")).Add(1)
	task.Counter(CacheHits, L(LabelStore, "s")).Add(1)
	if m.Len() != 0 {
		t.Errorf("series of a closed application:\n%s", m.String())
	}
}
