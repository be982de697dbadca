package state

// Batch collects the writes of one Apply. Each key should occur once; when it
// occurs more often the last write wins. The zero value is ready to use, and
// Reset makes it ready again without giving up its memory.
//
// The slices given to Put and Delete are kept, not copied: they must stay
// unchanged until the Apply has returned.
type Batch struct {
	writes []Write
	bytes  int
}

// Write is one put or, with a nil Value, one delete.
type Write struct {
	Key   []byte
	Value []byte // nil deletes; an empty value is not nil
}

// Put sets a key. A nil value is stored as an empty one.
func (b *Batch) Put(key, value []byte) {
	if value == nil {
		value = []byte{}
	}
	b.writes = append(b.writes, Write{key, value})
	b.bytes += len(key) + len(value)
}

// Delete removes a key; removing an absent one is no error.
func (b *Batch) Delete(key []byte) {
	b.writes = append(b.writes, Write{Key: key})
	b.bytes += len(key)
}

// Writes returns the writes in the order in which they were made. The slice
// belongs to the batch.
func (b *Batch) Writes() []Write { return b.writes }

// Len is the number of writes.
func (b *Batch) Len() int { return len(b.writes) }

// Bytes is the sum of the lengths of keys and values.
func (b *Batch) Bytes() int { return b.bytes }

// Reset empties the batch and drops its references.
func (b *Batch) Reset() {
	clear(b.writes)
	b.writes, b.bytes = b.writes[:0], 0
}
