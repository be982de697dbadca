package simkafka

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/worker"
)

// noProducer is the producer of records outside of transactions.
const noProducer = int64(-1)

type kind uint8

const (
	data kind = iota
	commitMarker
	abortMarker
)

// entry is one record of a log. Offsets rise and may leave some out.
type entry struct {
	offset   int64
	epoch    int32
	kind     kind
	producer int64
	aborted  bool
	ts       int64
	// horizon is when compaction may drop a tombstone or a marker, in ms: set by
	// the pass that finds it to be all that is left (KIP-534). 0 before that.
	horizon    int64
	key, value []byte
	headers    []task.Header
}

func (e *entry) record() task.Record {
	return task.Record{Offset: e.offset, LeaderEpoch: e.epoch, Timestamp: e.ts, Key: e.key, Value: e.value, Headers: e.headers, Control: e.kind != data}
}

// name writes a partition as errors and logs do.
func name(tp worker.TopicPartition) string { return fmt.Sprintf("%s[%d]", tp.Topic, tp.Partition) }

// partition is one log.
type partition struct {
	topic   *topic
	tp      worker.TopicPartition
	epoch   int32 // of the leader
	entries []entry
	start   int64 // first offset that may be read
	end     int64 // high watermark
	// open holds the first offset of each transaction that is not decided.
	open map[int64]int64
}

// batchOverhead is what a batch with one record costs beside key and value, at
// most.
const batchOverhead = 100

// accepts says why the broker refuses a record.
func (p *partition) accepts(r *task.Record) error {
	n := len(r.Key) + len(r.Value) + batchOverhead
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value)
	}
	if n > p.topic.maxMessage {
		return &worker.FatalError{Err: fmt.Errorf("%s: MESSAGE_TOO_LARGE: %d bytes, the limit is %d: lower MaxRecordBytes", name(p.tp), n, p.topic.maxMessage)}
	}
	if r.Key == nil && p.topic.compacted {
		return &worker.FatalError{Err: fmt.Errorf("%s: INVALID_RECORD: a compacted topic needs a key", name(p.tp))}
	}
	return nil
}

// append copies a record to the end of the log.
func (p *partition) append(r *task.Record, producer int64) {
	e := entry{offset: p.end, epoch: p.epoch, producer: producer, ts: r.Timestamp, key: bytes.Clone(r.Key), value: bytes.Clone(r.Value)}
	for _, h := range r.Headers {
		e.headers = append(e.headers, task.Header{Key: h.Key, Value: bytes.Clone(h.Value)})
	}
	if producer != noProducer {
		if _, ok := p.open[producer]; !ok {
			p.open[producer] = p.end
		}
	}
	p.entries = append(p.entries, e)
	p.end++
}

// mark writes the marker that ends a producer's transaction here.
func (p *partition) mark(producer int64, commit bool, ts int64) {
	k, key := commitMarker, []byte{0, 0, 0, 1}
	if !commit {
		k, key = abortMarker, []byte{0, 0, 0, 0}
		if first, ok := p.open[producer]; ok {
			for i := p.index(first); i < len(p.entries); i++ {
				if e := &p.entries[i]; e.producer == producer && e.kind == data {
					e.aborted = true
				}
			}
		}
	}
	delete(p.open, producer)
	p.entries = append(p.entries, entry{offset: p.end, epoch: p.epoch, kind: k, producer: producer, ts: ts, key: key})
	p.end++
}

// index is the place of the first entry at or after an offset.
func (p *partition) index(offset int64) int {
	i, _ := slices.BinarySearchFunc(p.entries, offset, func(e entry, o int64) int {
		switch {
		case e.offset < o:
			return -1
		case e.offset > o:
			return 1
		}
		return 0
	})
	return i
}

// stable is the last stable offset: where the first open transaction begins.
func (p *partition) stable() int64 {
	lso := p.end
	for _, first := range p.open {
		lso = min(lso, first)
	}
	return lso
}

// readEnd is the end for a reader.
func (p *partition) readEnd(committedOnly bool) int64 {
	if committedOnly {
		return p.stable()
	}
	return p.end
}

// read appends up to limit records from an offset on, and returns where to go on
// from. Aborted records are passed over by a reader of what is committed.
func (p *partition) read(from int64, committedOnly bool, limit int, to []task.Record) ([]task.Record, int64) {
	end := p.readEnd(committedOnly)
	for i := p.index(from); i < len(p.entries) && limit > 0; i++ {
		e := &p.entries[i]
		if e.offset >= end {
			break
		}
		from = e.offset + 1
		if e.aborted && committedOnly {
			continue
		}
		to = append(to, e.record())
		limit--
	}
	return to, from
}

// skip is the offset of the first record at or after from that is data for a
// reader, or its end.
func (p *partition) skip(from int64, committedOnly bool) int64 {
	end := p.readEnd(committedOnly)
	for i := p.index(from); i < len(p.entries) && p.entries[i].offset < end; i++ {
		if e := &p.entries[i]; e.kind == data && !(e.aborted && committedOnly) {
			return e.offset
		}
	}
	return max(from, end)
}

// truncateHead drops what is below an offset.
func (p *partition) truncateHead(offset int64) {
	if offset <= p.start {
		return
	}
	p.start = offset
	p.entries = slices.Delete(p.entries, 0, p.index(offset))
}

// retain drops the records at the head that are older than before. An open
// transaction stays whole.
func (p *partition) retain(before int64) {
	offset, stable := p.start, p.stable()
	for i := range p.entries {
		e := &p.entries[i]
		if e.offset >= stable || e.ts >= before {
			break
		}
		offset = e.offset + 1
	}
	p.truncateHead(offset)
}

// compact is one pass of the log cleaner. Only what is below the last stable
// offset counts: a transaction that is not decided replaces nothing.
func (p *partition) compact(now int64) {
	stable := p.stable()
	last := map[string]int64{} // offset of the last value of each key
	for i := range p.entries {
		if e := &p.entries[i]; e.kind == data && !e.aborted && e.key != nil && e.offset < stable {
			last[string(e.key)] = e.offset
		}
	}
	// due says whether a tombstone or a marker, which is all that is left, may
	// go, and sets its time when it is seen first.
	due := func(e *entry) bool {
		if e.horizon == 0 {
			e.horizon = now + p.topic.deleteRetention.Milliseconds()
			return false
		}
		return now >= e.horizon
	}
	goes := make([]bool, len(p.entries))
	kept := map[int64]bool{} // producers of whose running transaction a record stays
	for i := range p.entries {
		e := &p.entries[i]
		switch {
		case e.offset >= stable:
		case e.kind == data:
			goes[i] = e.aborted || e.key == nil || last[string(e.key)] != e.offset || e.value == nil && due(e)
			kept[e.producer] = kept[e.producer] || !goes[i]
		default: // a marker stays as long as a record of its transaction does
			goes[i] = !kept[e.producer] && due(e)
			kept[e.producer] = false
		}
	}
	left := p.entries[:0]
	for i := range p.entries {
		if !goes[i] {
			left = append(left, p.entries[i])
		}
	}
	clear(p.entries[len(left):])
	p.entries = left
}
