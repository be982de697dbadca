package outbox

import (
	"encoding/binary"
	"math"
)

// reader takes fields off the front of b. Once bad, every field is zero.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) || r.bad {
		r.b, r.bad = nil, true
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) fixed(dst []byte) { copy(dst, r.take(len(dst))) }

func (r *reader) byte() byte {
	if b := r.take(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); len(b) == 8 {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.take(-1)
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.take(-1)
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) uint32() uint32 {
	v := r.uvarint()
	if v > math.MaxUint32 {
		r.take(-1)
		return 0
	}
	return uint32(v)
}

// count reads the length of a list whose elements take at least one byte.
func (r *reader) count() int {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.take(-1)
		return 0
	}
	return int(n)
}

// optional reads bytes that may be nil.
func (r *reader) optional() []byte {
	n := r.uvarint()
	switch {
	case n == 0:
		return nil
	case n-1 > uint64(len(r.b)):
		r.take(-1)
		return nil
	}
	return r.take(int(n - 1))
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendOptional writes 0 for nil, else the length and one, and the bytes.
func appendOptional(b, v []byte) []byte {
	if v == nil {
		return append(b, 0)
	}
	return append(binary.AppendUvarint(b, uint64(len(v))+1), v...)
}
