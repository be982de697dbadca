package task

// ahead is the scratch of readAhead.
type ahead struct {
	arena   arena
	keys    [][]byte
	entries []*entry
}

// Bounds of one read-ahead: about how many keys are read, and which part of the
// cache they may take, as what is read must still be there when it is needed.
const (
	maxAhead      = 500
	maxAheadShare = 4 // a quarter
)

// readAhead makes sure that what the next records, limit of each input at most,
// will ask their stores for was read in one read with what the records behind
// them need: a task on a remote store waits for a round trip per some hundred
// keys and not for each. It only fills the cache: the order of records is not
// touched, and a key that it guessed wrong costs nothing but the read. Its
// failure is not reported: the get that needs the key meets it again, and knows
// the record.
func (t *Task) readAhead(limit int) {
	if t.storeErr != nil || t.plan.Ahead == nil && t.looker == nil {
		return
	}
	a := &t.ahead
	bytes := 0
	want := func(s *Store, key []byte) {
		if e, ok := s.entries[string(key)]; ok {
			e.used = true
			return
		}
		a.entries = append(a.entries, t.cache.add(s, key))
		a.keys = append(a.keys, a.arena.take(append(append(a.arena.tail(), s.prefix...), key...)))
		bytes += len(key) + entryOverhead
	}
	for qi := range t.queues {
		q := &t.queues[qi]
		var stores []int
		if t.plan.Ahead != nil {
			stores = t.plan.Ahead[t.inputs[qi]]
		}
		if len(stores) == 0 && t.looker == nil || q.seen >= min(limit, q.len()) {
			continue
		}
		for ; q.seen < q.len() && len(a.keys) < maxAhead && bytes <= t.cache.max/maxAheadShare; q.seen++ {
			r := &q.records[q.head+q.seen]
			if r.Control {
				continue
			}
			if r.Key != nil {
				for _, si := range stores {
					want(t.stores[si], r.Key)
				}
			}
			if t.looker != nil {
				t.looker.LookAhead(t.inputs[qi], r, want)
			}
		}
	}
	t.finishAhead()
}

// finishAhead reads the keys that were collected.
func (t *Task) finishAhead() {
	a := &t.ahead
	defer func() {
		clear(a.keys)
		clear(a.entries)
		a.keys, a.entries = a.keys[:0], a.entries[:0]
		a.arena.reset()
	}()
	// A single key gains nothing, and the get itself can tell of its failure.
	ok := len(a.keys) > 1
	if ok {
		ok = t.view.Read(t.ctx, t.token, a.keys, func(i int, v []byte) {
			e := a.entries[i]
			if e.gone { // evicted for one of the others
				return
			}
			e.has, e.oldKnown = v != nil, true
			e.val = append(e.val[:0], v...)
			t.cache.grew(e)
			e.store.misses++
		}) == nil
	}
	if !ok {
		for _, e := range a.entries {
			t.cache.remove(e)
		}
	}
}
