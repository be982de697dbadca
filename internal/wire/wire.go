// Package wire reads and writes what the binary records of the runtime are made
// of: those that are kept in a store or in Kafka, and whose layouts are in
// docs/formats. Integers of fixed width are big-endian, others are those of
// Protocol Buffers.
//
// The package is pure.
package wire

import (
	"encoding/binary"
	"hash/crc32"
	"math"
)

// Reader takes fields off the front of bytes. The first field that cannot be read
// makes it bad, and everything is zero from there on. The zero value has nothing
// to read.
type Reader struct {
	b   []byte
	bad bool
}

// NewReader returns a reader of b. What it returns without a copy is part of b.
func NewReader(b []byte) Reader { return Reader{b: b} }

// Bad says that something could not be read.
func (r *Reader) Bad() bool { return r.bad }

// Done says that everything was read, and nothing is left over.
func (r *Reader) Done() bool { return !r.bad && len(r.b) == 0 }

// Fail makes the reader bad, for a value that its field may not have.
func (r *Reader) Fail() { r.b, r.bad = nil, true }

// Take returns the next n bytes, without a copy.
func (r *Reader) Take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.Fail()
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

// Fixed fills dst.
func (r *Reader) Fixed(dst []byte) { copy(dst, r.Take(len(dst))) }

// Byte reads one byte.
func (r *Reader) Byte() byte {
	if b := r.Take(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

// Uint64 reads eight bytes.
func (r *Reader) Uint64() uint64 {
	if b := r.Take(8); len(b) == 8 {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// Uvarint reads a number of up to ten bytes.
func (r *Reader) Uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.Fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// Varint reads a zigzag number of up to ten bytes.
func (r *Reader) Varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.Fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// Int32 is Varint of a number that has to fit.
func (r *Reader) Int32() int32 {
	v := r.Varint()
	if v < math.MinInt32 || v > math.MaxInt32 {
		r.Fail()
		return 0
	}
	return int32(v)
}

// Uint32 is Uvarint of a number that has to fit.
func (r *Reader) Uint32() uint32 {
	v := r.Uvarint()
	if v > math.MaxUint32 {
		r.Fail()
		return 0
	}
	return uint32(v)
}

// Count reads the length of a list whose elements take at least size bytes, so
// that damage cannot make the caller allocate more than there is.
func (r *Reader) Count(size int) int {
	n := r.Uvarint()
	if n > uint64(len(r.b)/size) {
		r.Fail()
		return 0
	}
	return int(n)
}

// String reads what AppendString wrote.
func (r *Reader) String() string { return string(r.Take(r.Count(1))) }

// Optional reads what AppendOptional wrote, without a copy.
func (r *Reader) Optional() []byte {
	n := r.Uvarint()
	switch {
	case n == 0:
		return nil
	case n-1 > uint64(len(r.b)):
		r.Fail()
		return nil
	}
	return r.Take(int(n - 1))
}

// AppendString writes the length and the bytes.
func AppendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// AppendOptional writes 0 for nil, else the length and one, and the bytes.
func AppendOptional(b, v []byte) []byte {
	if v == nil {
		return append(b, 0)
	}
	return append(binary.AppendUvarint(b, uint64(len(v))+1), v...)
}

// ChecksumBytes is what a checksum takes.
const ChecksumBytes = crc32.Size

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Seal writes the checksum, CRC-32C of all of b but itself, at an offset of b.
func Seal(b []byte, at int) { binary.BigEndian.PutUint32(b[at:], checksum(b, at)) }

// Sealed says whether b has the checksum that Seal has written.
func Sealed(b []byte, at int) bool {
	return len(b) >= at+ChecksumBytes && binary.BigEndian.Uint32(b[at:]) == checksum(b, at)
}

func checksum(b []byte, at int) uint32 {
	return crc32.Update(crc32.Checksum(b[:at], castagnoli), castagnoli, b[at+ChecksumBytes:])
}
