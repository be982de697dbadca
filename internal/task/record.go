package task

// Header is one record header. Keys may repeat and keep their order.
type Header struct {
	Key   string
	Value []byte
}

// Record is one input record as bytes. A nil Key or Value is a null one.
type Record struct {
	Offset      int64
	LeaderEpoch int32
	Timestamp   int64 // ms since the Unix epoch
	Key, Value  []byte
	Headers     []Header
	// Control marks a transaction marker: it moves the position and nothing
	// else.
	Control bool
}

// Size is the number of bytes that a record counts against a buffer bound.
func (r *Record) Size() int {
	n := len(r.Key) + len(r.Value) + recordOverhead
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// recordOverhead is what a record costs besides its bytes: the struct here and
// the one of the client that holds the bytes.
const recordOverhead = 160

// AnyPartition as the partition of an Output means: by the hash of the key, or
// any for a null key.
const AnyPartition = int32(-1)

// What an output, and each of its headers, may take in an outbox beside their
// bytes: lengths and numbers.
const (
	OutputOverhead = 64
	HeaderOverhead = 10
)

// Output is one record to be produced. Its bytes stay unchanged until the
// batch that made it was committed or aborted.
type Output struct {
	Topic      string
	Partition  int32
	Timestamp  int64
	Key, Value []byte
	Headers    []Header
	// Store is the index of the store whose changelog this is, or -1.
	Store int
}

// arena hands out byte slices that live until the batch ends. One growing
// allocation replaces one per key and value.
type arena struct {
	chunks [][]byte
	cur    int
	bytes  int
}

// arenaChunk is the size of one allocation of the arena.
const arenaChunk = 64 << 10

// arenaKeep is how many chunks an arena keeps between batches.
const arenaKeep = 64

type arenaMark struct{ cur, used, bytes int }

func (a *arena) mark() arenaMark {
	if len(a.chunks) == 0 {
		return arenaMark{}
	}
	return arenaMark{a.cur, len(a.chunks[a.cur]), a.bytes}
}

// rewind gives back all that was taken since the mark.
func (a *arena) rewind(m arenaMark) {
	if len(a.chunks) == 0 {
		return
	}
	for i := m.cur + 1; i <= a.cur; i++ {
		a.chunks[i] = a.chunks[i][:0]
	}
	a.cur, a.bytes = m.cur, m.bytes
	a.chunks[m.cur] = a.chunks[m.cur][:m.used]
}

// tail returns an empty slice at the end of the arena to append to.
func (a *arena) tail() []byte {
	if len(a.chunks) == 0 {
		a.chunks = append(a.chunks, make([]byte, 0, arenaChunk))
	}
	c := a.chunks[a.cur]
	if cap(c)-len(c) < arenaChunk/16 {
		a.cur++
		if a.cur == len(a.chunks) {
			a.chunks = append(a.chunks, make([]byte, 0, arenaChunk))
		}
		c = a.chunks[a.cur]
	}
	return c[len(c):len(c):cap(c)]
}

// take makes b, which was appended to tail, a part of the arena. A b that
// outgrew the chunk has memory of its own and stays there.
func (a *arena) take(b []byte) []byte {
	a.bytes += len(b)
	c := a.chunks[a.cur]
	if len(b) > 0 && cap(c)-len(c) >= len(b) {
		if t := c[len(c) : len(c)+1]; &t[0] == &b[0] {
			a.chunks[a.cur] = c[:len(c)+len(b)]
		}
	}
	return b[:len(b):len(b)]
}

func (a *arena) copy(b []byte) []byte {
	if b == nil {
		return nil
	}
	return a.take(append(a.tail(), b...))
}

// reset forgets everything handed out.
func (a *arena) reset() {
	if len(a.chunks) > arenaKeep {
		clear(a.chunks[arenaKeep:])
		a.chunks = a.chunks[:arenaKeep]
	}
	for i := range a.chunks {
		a.chunks[i] = a.chunks[i][:0]
	}
	a.cur, a.bytes = 0, 0
}
