package wire

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// What is written is read, and each of the bytes that are missing is noticed.
func TestReader(t *testing.T) {
	t.Parallel()
	var b []byte
	b = append(b, 1, 2, 3, 7)
	b = binary.BigEndian.AppendUint64(b, 1<<60)
	b = binary.AppendUvarint(b, 1<<63)
	b = binary.AppendVarint(b, -1<<63)
	b = binary.AppendVarint(b, -1<<31)
	b = binary.AppendUvarint(b, 1<<32-1)
	b = AppendString(b, "abc")
	b = AppendOptional(b, nil)
	b = AppendOptional(b, []byte{})
	b = AppendOptional(b, []byte("x"))
	read := func(b []byte) bool {
		r := NewReader(b)
		var fixed [3]byte
		r.Fixed(fixed[:])
		ok := fixed == [3]byte{1, 2, 3} && r.Byte() == 7 && r.Uint64() == 1<<60 && r.Uvarint() == 1<<63 && r.Varint() == -1<<63 &&
			r.Int32() == -1<<31 && r.Uint32() == 1<<32-1 && r.String() == "abc" && r.Optional() == nil
		empty, x := r.Optional(), r.Optional()
		if r.Bad() == r.Done() && len(b) > 0 {
			t.Errorf("%d bytes: bad is %t and done is %t", len(b), r.Bad(), r.Done())
		}
		return ok && empty != nil && len(empty) == 0 && bytes.Equal(x, []byte("x")) && r.Done()
	}
	if !read(b) {
		t.Error("it is not read as it was written")
	}
	for n := range b {
		if read(b[:n]) {
			t.Errorf("%d of %d bytes are taken for all", n, len(b))
		}
	}
}

func TestReaderBounds(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func(r *Reader){
		"int32":    func(r *Reader) { r.Int32() },
		"uint32":   func(r *Reader) { r.Uint32() },
		"count":    func(r *Reader) { r.Count(1) },
		"string":   func(r *Reader) { _ = r.String() },
		"optional": func(r *Reader) { r.Optional() },
		"negative": func(r *Reader) { r.Take(-1) },
	} {
		r := NewReader(binary.AppendUvarint(nil, 1<<40))
		if read(&r); !r.Bad() || r.Done() || r.Byte() != 0 || r.Uvarint() != 0 {
			t.Errorf("%s: 1<<40 in front of nothing is taken", name)
		}
	}
	r := NewReader([]byte{2, 0, 0, 0})
	if n := r.Count(2); n != 0 || !r.Bad() {
		t.Errorf("a list of two that take two bytes each in three bytes has the length %d", n)
	}
}

func TestSeal(t *testing.T) {
	t.Parallel()
	b := append([]byte{9}, make([]byte, ChecksumBytes+3)...)
	Seal(b, 1)
	if !Sealed(b, 1) {
		t.Fatal("not sealed")
	}
	for i := range b {
		c := bytes.Clone(b)
		if c[i]++; Sealed(c, 1) {
			t.Errorf("byte %d was changed, and nobody notices", i)
		}
	}
	if Sealed(b[:4], 1) {
		t.Error("what is too short is sealed")
	}
}
