package task

import (
	"encoding/binary"
	"errors"

	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/state"
)

// Position is the offset to commit of an input: that of the next record to
// process.
type Position struct {
	Input       int
	Next        int64
	LeaderEpoch int32
}

// Dirty says whether there is anything to commit.
func (t *Task) Dirty() bool {
	if t.force || t.emitted {
		return true
	}
	for i := range t.queues {
		if t.queues[i].moved {
			return true
		}
	}
	for _, s := range t.stores {
		if len(s.dirty) > 0 {
			return true
		}
	}
	return false
}

// sealChunk is how many changelog records Seal hands out at once.
const sealChunk = 256

// Seal ends the batch and numbers it. It hands the changelog records of the
// batch, the last write of each key, to produce, a few at a time: the slice is
// used again after each call, the bytes live until Committed or Abort.
func (t *Task) Seal(nonce uint64, produce func([]Output)) {
	t.sealedSeq, t.sealedNonce = t.seq+1, nonce
	for _, s := range t.stores {
		if s.Spec.Changelog == "" {
			continue
		}
		for _, e := range s.dirty {
			o := Output{Topic: s.Spec.Changelog, Partition: t.cfg.ID.Partition, Timestamp: e.ts, Store: s.Index,
				Key: t.arena.take(append(t.arena.tail(), e.key...))}
			if e.has {
				o.Value = e.val
				if s.Spec.Timestamped {
					o.Timestamp = int64(binary.BigEndian.Uint64(e.val))
					o.Value = e.val[tsLen:]
				}
			}
			if t.sealed = append(t.sealed, o); len(t.sealed) == sealChunk {
				t.handSealed(produce)
			}
		}
	}
	t.handSealed(produce)
}

func (t *Task) handSealed(produce func([]Output)) {
	if produce != nil && len(t.sealed) > 0 {
		produce(t.sealed)
	}
	clear(t.sealed)
	t.sealed = t.sealed[:0]
}

// Positions appends what the sealed batch commits: every input whose position
// is known, so that each of them carries the stamp.
func (t *Task) Positions(dst []Position) []Position {
	for qi := range t.queues {
		if q := &t.queues[qi]; q.next >= 0 {
			dst = append(dst, Position{t.inputs[qi], q.next, q.epoch})
		}
	}
	return dst
}

// CommittedPositions appends the positions of the last commit.
func (t *Task) CommittedPositions(dst []Position) []Position {
	for qi := range t.queues {
		if q := &t.queues[qi]; q.committed >= 0 {
			dst = append(dst, Position{t.inputs[qi], q.committed, q.epoch})
		}
	}
	return dst
}

// Sealed returns number and nonce of the batch that Seal has ended.
func (t *Task) Sealed() (seq, nonce uint64) { return t.sealedSeq, t.sealedNonce }

// Stamp describes the sealed batch. ends holds, by store, the changelog
// position after the batch, or -1 where the batch wrote nothing. facts
// completes what only the worker knows of an input.
func (t *Task) Stamp(ends []int64, facts func(topic string) stamp.Input) stamp.Stamp {
	s := stamp.Stamp{Lineage: t.lineage, Seq: t.sealedSeq, Nonce: t.sealedNonce, Times: t.clockTimes(clocks{t.streamTime, t.times})}
	for i, st := range t.stores {
		next := st.nextPos
		if i < len(ends) && ends[i] >= 0 {
			next = ends[i]
		}
		if st.Spec.Changelog != "" {
			s.Changelog = append(s.Changelog, stamp.Offset{Name: st.Spec.Name, Next: max(next, 0)})
		}
	}
	for qi := range t.queues {
		in := facts(t.plan.Inputs[t.inputs[qi]])
		in.Topic, in.Time = t.plan.Inputs[t.inputs[qi]], t.queues[qi].time
		in.LeaderEpoch = t.queues[qi].epoch
		s.Inputs = append(s.Inputs, in)
	}
	return s
}

func (t *Task) clockTimes(c clocks) []stamp.Time {
	times := []stamp.Time{{Name: "", Millis: c.stream}}
	for i, name := range t.plan.Times {
		times = append(times, stamp.Time{Name: name, Millis: c.times[i]})
	}
	return times
}

// Committed says that the sealed batch is committed: its writes are part of
// the committed state and wait for the backend.
func (t *Task) Committed(ends []int64) {
	for i, s := range t.stores {
		s.commit()
		if i < len(ends) && ends[i] >= 0 {
			s.nextPos = ends[i]
		}
	}
	for i := range t.queues {
		q := &t.queues[i]
		q.moved, q.committed, q.committedTime = false, q.next, q.time
	}
	t.seq, t.nonce = t.sealedSeq, t.sealedNonce
	t.force = false
	t.commitSeen()
	t.committed.stream = t.streamTime
	t.committed.times = append(t.committed.times[:0], t.times...)
	t.endBatch()
}

// Abort drops the batch: writes, outputs, buffered records and the operators
// themselves, which are made anew. Positions and clocks go back to the last
// commit. An error comes from user code that is closed or made anew; the batch
// is dropped in any case.
func (t *Task) Abort() error {
	for _, s := range t.stores {
		s.abort()
	}
	for qi := range t.queues {
		t.queues[qi].rewind()
	}
	t.storeErr, t.anew = nil, false
	t.undo.reset()
	t.abortSeen()
	t.endBatch()
	return errors.Join(t.Close(), t.start())
}

// Seq returns number and nonce of the last committed batch.
func (t *Task) Seq() (seq, nonce uint64) { return t.seq, t.nonce }

func (t *Task) endBatch() {
	clear(t.outputs)
	t.outputs, t.emitted = t.outputs[:0], false
	t.outputBytes, t.segmentBytes, t.dirtyBytes = 0, 0, 0
	t.units, t.cut = 0, false
	t.undo.reset()
	t.arena.reset()
}

// Unflushed is the number of bytes of committed writes that the backend does
// not have yet.
func (t *Task) Unflushed() int { return t.pendingBytes }

// Behind says that the backend's view is behind the last committed batch.
func (t *Task) Behind() bool { return t.view != nil && t.tok.Seq != t.seq }

// Flush prepares the APPLY of everything committed that the backend lacks,
// several batches in one where they have gathered. The batch in progress does
// not show. After the APPLY, Flushed.
func (t *Task) Flush(wall int64) (old, new state.Token, b *state.Batch) {
	t.flush.reset()
	for _, s := range t.stores {
		s.flush(&t.flush)
	}
	next := stamp.Token{Lineage: t.tok.Lineage, Epoch: t.tok.Epoch, Seq: t.seq, Nonce: t.nonce, Wall: wall, Times: t.clockTimes(t.committed)}
	for _, s := range t.stores {
		if s.Spec.Changelog != "" {
			next.Changelog = append(next.Changelog, stamp.Offset{Name: s.Spec.Name, Next: max(s.nextPos, 0)})
		}
	}
	for qi := range t.queues {
		next.Inputs = append(next.Inputs, stamp.Offset{Name: t.plan.Inputs[t.inputs[qi]], Next: max(t.queues[qi].committed, 0)})
	}
	if t.tok.Outbox {
		next.Outbox, next.Last, next.Highs = true, t.seq, t.committedHighs()
	}
	t.flushing = next
	return t.token, next.Encode(), &t.flush.batch
}

// Flushed says that the APPLY that Flush prepared was carried out.
func (t *Task) Flushed(token state.Token) {
	for _, s := range t.stores {
		s.flushed()
	}
	t.token, t.tok, t.pendingBytes = token, t.flushing, 0
	t.flush.reset()
}

// Stats is a snapshot of a task's counters since it was made.
type Stats struct {
	CacheBytes  int
	DeadLetters map[DeadLetterKey]int64 // not to be changed
	Drops       []*DropCounter
	Stores      []StoreStats
}

// DeadLetterKey says where a dead letter came from.
type DeadLetterKey struct {
	Node  string
	Class Class
}

// StoreStats counts how the reads of a store were answered.
type StoreStats struct {
	Name         string
	Hits, Misses int64 // of the cache
}

// Stats returns the counters.
func (t *Task) Stats() Stats {
	st := Stats{CacheBytes: t.cache.bytes, DeadLetters: t.deadLetters, Drops: t.drops}
	for _, s := range t.stores {
		st.Stores = append(st.Stores, StoreStats{s.Spec.Name, s.hits, s.misses})
	}
	return st
}
