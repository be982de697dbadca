package task

// undo is the savepoint of the record being processed: what its writes
// replaced, newest last. A dead letter plays it back, so that a record that
// failed leaves no trace. An abort of the batch needs none of it.
type undo struct {
	writes []undoWrite
	bytes  []byte
}

type undoWrite struct {
	e     *entry
	dirty bool // the batch had written the key before; prev, has and ts count
	has   bool
	ts    int64
	from  int
	to    int
}

func (u *undo) reset() {
	clear(u.writes)
	u.writes, u.bytes = u.writes[:0], u.bytes[:0]
}

// push notes the state of e before a write.
func (u *undo) push(e *entry) {
	w := undoWrite{e: e, dirty: e.dirty, has: e.has, ts: e.ts}
	if e.dirty {
		w.from = len(u.bytes)
		u.bytes = append(u.bytes, e.val...)
		w.to = len(u.bytes)
	}
	u.writes = append(u.writes, w)
}

// rollback restores every entry to what it was at the last reset.
func (u *undo) rollback() {
	for i := len(u.writes) - 1; i >= 0; i-- {
		w := &u.writes[i]
		e := w.e
		if w.dirty {
			e.val = append(e.val[:0], u.bytes[w.from:w.to]...)
			e.has, e.ts = w.has, w.ts
			continue
		}
		// The first write of the batch to this key came from this record, so
		// the key is the newest of its store's dirty ones.
		s := e.store
		s.dirty[len(s.dirty)-1] = nil
		s.dirty = s.dirty[:len(s.dirty)-1]
		s.clean(e)
	}
	u.reset()
}
