package task

import "math"

// queue holds the buffered records of one input partition in offset order.
type queue struct {
	records       []Record
	head          int
	bytes         int
	next          int64 // offset after the last record taken or skipped; -1 unknown
	committed     int64 // next as of the last commit
	epoch         int32 // leader epoch of that record
	time          int64 // partition time: the largest timestamp taken, -1 unknown
	committedTime int64
	lag           int64 // records on the broker beyond what was fetched; -1 unknown
	idle          int64 // wall time ms at which idling ends; 0 when not idling
	moved         bool  // a record was taken since the last commit
	seen          int   // records from the head on that readAhead has looked at
}

func newQueue(next, time int64) queue {
	return queue{next: next, committed: next, epoch: -1, time: time, committedTime: time, lag: -1}
}

func (q *queue) len() int { return len(q.records) - q.head }

func (q *queue) add(r Record) {
	if q.head > 0 && len(q.records) == cap(q.records) && q.head >= len(q.records)/2 {
		n := copy(q.records, q.records[q.head:])
		clear(q.records[n:])
		q.records, q.head = q.records[:n], 0
	}
	q.records = append(q.records, r)
	q.bytes += r.Size()
}

// skipControl moves the position over transaction markers at the head.
func (q *queue) skipControl() {
	for q.len() > 0 && q.records[q.head].Control {
		q.next = q.records[q.head].Offset + 1
		q.drop()
	}
}

// take moves the position behind the record at the head.
func (q *queue) take() {
	r := &q.records[q.head]
	q.next, q.epoch, q.moved = r.Offset+1, r.LeaderEpoch, true
	q.drop()
	q.skipControl()
}

func (q *queue) drop() {
	r := &q.records[q.head]
	q.bytes -= r.Size()
	*r = Record{}
	q.head++
	q.seen = max(q.seen-1, 0)
	if q.head == len(q.records) {
		q.records, q.head = q.records[:0], 0
	}
}

// rewind drops what is buffered and goes back to the last commit.
func (q *queue) rewind() {
	q.next, q.time = q.committed, q.committedTime
	clear(q.records)
	q.records, q.head, q.bytes = q.records[:0], 0, 0
	q.lag, q.idle, q.moved, q.seen = -1, 0, false, 0
}

// choose returns the input whose head has the smallest timestamp, or -1. Only
// heads are compared: a late record hides behind an earlier offset.
func choose(qs []queue) int {
	best, at := -1, int64(math.MaxInt64)
	for i := range qs {
		if qs[i].len() == 0 {
			continue
		}
		if ts := qs[i].records[qs[i].head].Timestamp; best < 0 || ts < at {
			best, at = i, ts
		}
	}
	return best
}

// ready says whether the next record may be taken, given the wall time and
// how long to idle (KIP-353, KIP-695). A negative maxIdle takes what is there.
// With 0 an empty input blocks as long as the broker has, or may have, records
// for it. With T > 0 it blocks T longer after it was seen empty and caught up.
func ready(qs []queue, now, maxIdle int64) bool {
	if len(qs) == 1 {
		return qs[0].len() > 0
	}
	some, missing := false, false
	for i := range qs {
		if qs[i].len() > 0 {
			some = true
		} else {
			missing = true
		}
	}
	if !some {
		return false
	}
	if !missing {
		for i := range qs {
			qs[i].idle = 0
		}
		return true
	}
	if maxIdle < 0 {
		return true
	}
	ok := true
	for i := range qs {
		q := &qs[i]
		switch {
		case q.len() > 0:
		case q.lag != 0: // unknown, or records to be fetched
			q.idle = 0
			ok = false
		case maxIdle > 0:
			if q.idle == 0 {
				q.idle = now + maxIdle
			}
			if now < q.idle {
				ok = false
			}
		}
	}
	return ok
}
