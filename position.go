package weir

import (
	"slices"

	"github.com/weirstreams/weir/internal/worker"
)

// Position says how far inputs have been processed: by topic and partition, the
// offset of the next record.
type Position map[string]map[int32]int64

// Position returns how far this instance is, for the input and repartition
// partitions of the tasks that run on it now. All records below are processed
// and committed: their outputs are visible to readers with isolation level
// read_committed, and readers of this App see what they did to the state.
//
// A position moves to the offset behind the last record that was processed. The
// end of a partition may be further: behind the markers and aborted records of
// transactions, which are not processed. Partitions of tasks that are being
// restored, or that other instances run, are left out; nothing is in it while
// the App does not run.
func (a *App) Position() Position {
	a.mu.Lock()
	workers := slices.Clone(a.mu.workers)
	a.mu.Unlock()
	p := Position{}
	for _, w := range workers {
		w.Positions(func(tp worker.TopicPartition, next int64) {
			if p[tp.Topic] == nil {
				p[tp.Topic] = map[int32]int64{}
			}
			p[tp.Topic][tp.Partition] = next
		})
	}
	return p
}
