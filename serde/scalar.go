package serde

import (
	"encoding/binary"
	"fmt"
	"math"
)

// The serdes whose bytes are those of Kafka's Java serializers. They do not
// allocate beyond the value that Decode returns and beyond the growth of dst.
var (
	// String is UTF-8 without a length, as Kafka's StringSerializer. Bytes that
	// are not valid UTF-8 pass through unchanged both ways, and no input is an
	// error; Kafka's Java deserializer would put U+FFFD in their place.
	String Serde[string] = stringSerde{}

	// Bytes is the bytes themselves, as Kafka's ByteArraySerializer. Decode
	// returns a copy, never nil. A nil slice encodes as an empty value, not as
	// null.
	Bytes Serde[[]byte] = bytesSerde{}

	// Int32 is 4 bytes, big-endian two's complement, as Kafka's
	// IntegerSerializer.
	Int32 Serde[int32] = int32Serde{}

	// Int64 is 8 bytes, big-endian two's complement, as Kafka's LongSerializer.
	Int64 Serde[int64] = int64Serde{}

	// Float64 is 8 bytes, the big-endian bits of an IEEE 754 double, as Kafka's
	// DoubleSerializer. Like it, Append writes every NaN as 7ff8000000000000,
	// so that a NaN has one partition and one key. Zero and negative zero stay
	// two keys.
	Float64 Serde[float64] = float64Serde{}

	// Bool is one byte, 1 or 0, as Kafka's BooleanSerializer. Decode refuses
	// every other byte.
	Bool Serde[bool] = boolSerde{}
)

// javaNaN holds the bits of the one NaN that Java's Double.doubleToLongBits
// knows. Go's math.NaN has others.
const javaNaN = 0x7ff8000000000000

type stringSerde struct{}

func (stringSerde) Append(dst []byte, v string) ([]byte, error) { return append(dst, v...), nil }
func (stringSerde) Decode(src []byte) (string, error)           { return string(src), nil }
func (stringSerde) String() string                              { return "string" }

type bytesSerde struct{}

func (bytesSerde) Append(dst []byte, v []byte) ([]byte, error) { return append(dst, v...), nil }
func (bytesSerde) Decode(src []byte) ([]byte, error) {
	return append(make([]byte, 0, len(src)), src...), nil
}
func (bytesSerde) String() string { return "bytes" }

type int32Serde struct{}

func (int32Serde) Append(dst []byte, v int32) ([]byte, error) {
	return binary.BigEndian.AppendUint32(dst, uint32(v)), nil
}

func (s int32Serde) Decode(src []byte) (int32, error) {
	if len(src) != 4 {
		return 0, wrongLength(s.String(), 4, src)
	}
	return int32(binary.BigEndian.Uint32(src)), nil
}

func (int32Serde) String() string { return "int32" }

type int64Serde struct{}

func (int64Serde) Append(dst []byte, v int64) ([]byte, error) {
	return binary.BigEndian.AppendUint64(dst, uint64(v)), nil
}

func (s int64Serde) Decode(src []byte) (int64, error) {
	if len(src) != 8 {
		return 0, wrongLength(s.String(), 8, src)
	}
	return int64(binary.BigEndian.Uint64(src)), nil
}

func (int64Serde) String() string { return "int64" }

type float64Serde struct{}

func (float64Serde) Append(dst []byte, v float64) ([]byte, error) {
	bits := math.Float64bits(v)
	if v != v {
		bits = javaNaN
	}
	return binary.BigEndian.AppendUint64(dst, bits), nil
}

func (s float64Serde) Decode(src []byte) (float64, error) {
	if len(src) != 8 {
		return 0, wrongLength(s.String(), 8, src)
	}
	return math.Float64frombits(binary.BigEndian.Uint64(src)), nil
}

func (float64Serde) String() string { return "float64" }

type boolSerde struct{}

func (boolSerde) Append(dst []byte, v bool) ([]byte, error) {
	if v {
		return append(dst, 1), nil
	}
	return append(dst, 0), nil
}

func (s boolSerde) Decode(src []byte) (bool, error) {
	if len(src) != 1 {
		return false, wrongLength(s.String(), 1, src)
	}
	if src[0] > 1 {
		return false, decodeError(s.String(), fmt.Sprintf("the byte is %d, want 0 or 1", src[0]), src, nil)
	}
	return src[0] == 1, nil
}

func (boolSerde) String() string { return "bool" }
