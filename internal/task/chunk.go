package task

import (
	"errors"
	"fmt"
	"slices"
)

// Limits bound a batch that the store takes in one step, with its outputs. A
// task that has them ends its batches by itself: Full says when.
type Limits struct {
	Keys    int // written by the batch
	Bytes   int // of these keys and their values
	Outputs int // bytes that the outputs may take, with OutputOverhead for each
}

// ErrBatchTooLarge says that one record, or the punctuations that it causes,
// writes more than one batch may hold. It cannot be divided: state and outputs of
// a record change together.
var ErrBatchTooLarge = errors.New("one record exceeds a batch")

// limitShare is the part of the limits at which a batch is full. The rest is for
// the record that crosses it, so that records that write little never have to be
// taken back.
const limitShare = 2

// prefixExcess is how much longer the prefix of a store's keys may be than the
// entryOverhead that dirtyBytes counts for each key.
const prefixExcess = max(256-entryOverhead, 0)

// errCut says that a record did not fit behind those of its batch and was taken
// back: the batch has to end before it.
var errCut = errors.New("the batch is full")

// written is what the batch would take in the store.
func (t *Task) written() (keys, bytes int) {
	for _, s := range t.stores {
		keys += len(s.dirty)
		for _, e := range s.dirty {
			bytes += len(s.prefix) + len(e.key)
			if e.has {
				bytes += len(e.val)
			}
		}
	}
	return keys, bytes
}

// nearLimits says that the batch is so large that it ends here.
func (t *Task) nearLimits() bool {
	l := t.cfg.Limits
	if l == nil {
		return false
	}
	keys := 0
	for _, s := range t.stores {
		keys += len(s.dirty)
	}
	return t.cut || keys >= l.Keys/limitShare || t.dirtyBytes >= l.Bytes/limitShare || t.segmentBytes >= l.Outputs/limitShare
}

// overLimits returns what is beyond the limits, nil if nothing is.
func (t *Task) overLimits() error {
	l := t.cfg.Limits
	if l == nil {
		return nil
	}
	if t.segmentBytes > l.Outputs {
		return fmt.Errorf("%w: its outputs take %d bytes, and a batch of this store may have %d", ErrBatchTooLarge, t.segmentBytes, l.Outputs)
	}
	keys := 0
	for _, s := range t.stores {
		keys += len(s.dirty)
	}
	if keys <= l.Keys && t.dirtyBytes+keys*prefixExcess <= l.Bytes {
		return nil
	}
	keys, bytes := t.written()
	if keys > l.Keys || bytes > l.Bytes {
		return fmt.Errorf("%w: it writes %d keys and %d bytes, and a batch of this store may have %d and %d", ErrBatchTooLarge, keys, bytes, l.Keys, l.Bytes)
	}
	return nil
}

// fit checks a record, or a punctuation, after it is done. err is what it ended
// with. Behind others in the batch it has to fit, and to be without fault: else
// it is taken back, to be the first of the next batch, where it stands alone.
func (t *Task) fit(sp savepoint, err error) error {
	if t.cfg.Limits == nil || t.storeErr != nil {
		return err
	}
	over := t.overLimits()
	switch {
	case err == nil && over == nil:
		return nil
	case t.units > 0:
		t.restore(sp)
		t.cut, t.anew = true, true
		return errCut
	case err == nil:
		return t.located(Classify(ClassProcess, over), ClassProcess)
	}
	return err
}

// alone says that a record has to be the first of its batch: punctuations come
// with it, which belong to the same batch.
func (t *Task) alone(r *Record) bool {
	if t.cfg.Limits == nil || t.units == 0 {
		return false
	}
	for _, tm := range t.timers {
		if tm.clock == StreamTime && tm.due <= max(r.Timestamp, t.streamTime) {
			return true
		}
	}
	return false
}

// settle forgets a batch that has come to nothing, such as punctuations that wrote
// nothing: there is nothing to end before what comes next.
func (t *Task) settle() {
	if t.cfg.Limits != nil && t.units > 0 && !t.Dirty() {
		t.units, t.cut = 0, false
	}
}

// restart makes the operators anew where a record was taken back, as after an
// abort: what they have in memory of it must not stay. Wall-clock punctuations
// stay due when they were, since records may be taken back more often than that.
func (t *Task) restart() error {
	if !t.anew || t.cut {
		return nil
	}
	t.anew = false
	before := slices.DeleteFunc(slices.Clone(t.timers), func(tm *timer) bool { return tm.clock != WallClock })
	err := errors.Join(t.Close(), t.start())
	for _, tm := range t.timers {
		same := func(b *timer) bool { return b.clock == tm.clock && b.node == tm.node && b.interval == tm.interval }
		if i := slices.IndexFunc(before, same); i >= 0 {
			tm.due = before[i].due
			before = slices.Delete(before, i, i+1)
		}
	}
	return err
}
