package worker

// Positions calls fn with the committed position of each input partition of the
// running tasks. What Read shows of a task afterwards includes all records below.
// Safe for any goroutine.
func (w *Worker) Positions(fn func(tp TopicPartition, next int64)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.mu.tasks {
		if r.phase != running {
			continue
		}
		for i, topic := range r.plan.Inputs {
			if r.present[i] {
				fn(TopicPartition{topic, r.spec.ID.Partition}, r.committed[i])
			}
		}
	}
}
