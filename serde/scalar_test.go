package serde_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/weirstreams/weir/serde"
)

// vector is a value and the bytes that the serializers of kafka-clients 4.4.0
// made of it.
type vector[T any] struct {
	v   T
	hex string
}

func testVectors[T any](t *testing.T, s serde.Serde[T], same func(a, b T) bool, vectors []vector[T]) {
	t.Helper()
	t.Parallel()
	for _, c := range vectors {
		prefix := []byte("prefix")
		got, err := s.Append(prefix, c.v)
		if err != nil {
			t.Fatalf("Append(%v): %v", c.v, err)
		}
		if !bytes.HasPrefix(got, prefix) {
			t.Fatalf("Append(%v) lost what was in dst: %q", c.v, got)
		}
		got = got[len(prefix):]
		if h := hex.EncodeToString(got); h != c.hex {
			t.Errorf("Append(%v) = %s, want %s", c.v, h, c.hex)
		}
		back, err := s.Decode(got)
		if err != nil || !same(back, c.v) {
			t.Errorf("Decode(%s) = %v, %v, want %v", c.hex, back, err, c.v)
		}
	}
}

func equal[T comparable](a, b T) bool { return a == b }

// sameFloat tells zero from negative zero and takes all NaNs for one.
func sameFloat(a, b float64) bool {
	return math.Float64bits(a) == math.Float64bits(b) || (a != a && b != b)
}

func TestInt64IsKafkasLong(t *testing.T) {
	testVectors(t, serde.Int64, equal, []vector[int64]{
		{0, "0000000000000000"},
		{1, "0000000000000001"},
		{-1, "ffffffffffffffff"},
		{42, "000000000000002a"},
		{256, "0000000000000100"},
		{math.MaxInt64, "7fffffffffffffff"},
		{math.MinInt64, "8000000000000000"},
	})
}

func TestInt32IsKafkasInteger(t *testing.T) {
	testVectors(t, serde.Int32, equal, []vector[int32]{
		{0, "00000000"},
		{1, "00000001"},
		{-1, "ffffffff"},
		{42, "0000002a"},
		{256, "00000100"},
		{math.MaxInt32, "7fffffff"},
		{math.MinInt32, "80000000"},
	})
}

func TestFloat64IsKafkasDouble(t *testing.T) {
	testVectors(t, serde.Float64, sameFloat, []vector[float64]{
		{0, "0000000000000000"},
		{math.Copysign(0, -1), "8000000000000000"},
		{1, "3ff0000000000000"},
		{-1, "bff0000000000000"},
		{3.5, "400c000000000000"},
		{math.Pi, "400921fb54442d18"},
		{math.MaxFloat64, "7fefffffffffffff"},
		{math.SmallestNonzeroFloat64, "0000000000000001"},
		{math.Inf(1), "7ff0000000000000"},
		{math.Inf(-1), "fff0000000000000"},
		// Java writes one NaN whatever its bits; Go's own is ...01.
		{math.NaN(), "7ff8000000000000"},
		{math.Float64frombits(0xfff8000000000000), "7ff8000000000000"},
	})
}

func TestBoolIsKafkasBoolean(t *testing.T) {
	testVectors(t, serde.Bool, equal, []vector[bool]{{true, "01"}, {false, "00"}})
}

func TestStringIsKafkasString(t *testing.T) {
	testVectors(t, serde.String, equal, []vector[string]{
		{"", ""},
		{"abc", "616263"},
		{"é", "c3a9"},
		{"日本", "e697a5e69cac"},
		{"😀", "f09f9880"},
		{"a\x00b", "610062"},
		// Ours alone: not UTF-8, unchanged.
		{"\xff\xfea", "fffe61"},
	})
}

func TestBytes(t *testing.T) {
	testVectors(t, serde.Bytes, bytes.Equal, []vector[[]byte]{
		{nil, ""},
		{[]byte{}, ""},
		{[]byte{0, 0xff}, "00ff"},
	})
}

// A decoded value must live on when the caller reuses src.
func TestDecodeKeepsNothingOfSrc(t *testing.T) {
	t.Parallel()
	src := []byte("abc")
	b, err := serde.Bytes.Decode(src)
	if err != nil {
		t.Fatal(err)
	}
	s, err := serde.String.Decode(src)
	if err != nil {
		t.Fatal(err)
	}
	copy(src, "xyz")
	if string(b) != "abc" || s != "abc" {
		t.Errorf("after src was overwritten: bytes %q, string %q, want abc", b, s)
	}
	if b, err = serde.Bytes.Decode(nil); err != nil || b == nil || len(b) != 0 {
		t.Errorf("Bytes.Decode(nil) = %#v, %v, want an empty slice that is not nil", b, err)
	}
}

// Bytes order keys; this states where that order is not the one of the values.
func TestOrderOfNumbers(t *testing.T) {
	t.Parallel()
	enc := func(v int64) []byte {
		b, err := serde.Int64.Append(nil, v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if bytes.Compare(enc(1), enc(2)) >= 0 || bytes.Compare(enc(255), enc(256)) >= 0 {
		t.Error("positive numbers are not in order")
	}
	if bytes.Compare(enc(-1), enc(1)) <= 0 {
		t.Error("-1 sorts before 1: then these are not Kafka's bytes")
	}
}

func TestScalarDecodeErrors(t *testing.T) {
	t.Parallel()
	decode := func(name string, src string) error {
		var err error
		switch b := []byte(src); name {
		case "int32":
			_, err = serde.Int32.Decode(b)
		case "int64":
			_, err = serde.Int64.Decode(b)
		case "float64":
			_, err = serde.Float64.Decode(b)
		case "bool":
			_, err = serde.Bool.Decode(b)
		}
		return err
	}
	for _, c := range []struct{ serde, src, want string }{
		{"int32", "", `decode int32: want a length of 4: 0 bytes ""`},
		{"int32", "123", `decode int32: want a length of 4: 3 bytes "123"`},
		{"int32", "12345", `decode int32: want a length of 4: 5 bytes "12345"`},
		{"int64", "1234", `decode int64: want a length of 8: 4 bytes "1234"`},
		{"int64", "\x00\n\xff123456", `decode int64: want a length of 8: 9 bytes "\x00\n\xff123456"`},
		{"float64", "1", `decode float64: want a length of 8: 1 bytes "1"`},
		{"bool", "", `decode bool: want a length of 1: 0 bytes ""`},
		{"bool", "\x00\x00", `decode bool: want a length of 1: 2 bytes "\x00\x00"`},
		{"bool", "\x02", `decode bool: the byte is 2, want 0 or 1: 1 bytes "\x02"`},
		{"bool", "\xff", `decode bool: the byte is 255, want 0 or 1: 1 bytes "\xff"`},
		{
			"int64", strings.Repeat("x", 1<<20),
			`decode int64: want a length of 8: 1048576 bytes "` + strings.Repeat("x", 32) + `"...`,
		},
	} {
		if err := decode(c.serde, c.src); err == nil || err.Error() != c.want {
			t.Errorf("%s of %.20q:\n got %v\nwant %s", c.serde, c.src, err, c.want)
		}
	}
}

func TestNameOf(t *testing.T) {
	t.Parallel()
	type order struct{}
	for _, c := range []struct {
		serde any
		want  string
	}{
		{serde.String, "string"},
		{serde.Bytes, "bytes"},
		{serde.Int32, "int32"},
		{serde.Int64, "int64"},
		{serde.Float64, "float64"},
		{serde.Bool, "bool"},
		{serde.JSON[order](), "json(serde_test.order)"},
		{serde.JSON[map[string]int](), "json(map[string]int)"},
		{serde.Func[order](nil, nil), "func(serde_test.order)"},
		{foreign{}, "serde_test.foreign"},
		{nil, "none"},
	} {
		if got := serde.NameOf(c.serde); got != c.want {
			t.Errorf("NameOf(%T) = %q, want %q", c.serde, got, c.want)
		}
	}
}

// foreign is a serde without a String method.
type foreign struct{}

func (foreign) Append(dst []byte, _ int) ([]byte, error) { return dst, nil }
func (foreign) Decode([]byte) (int, error)               { return 0, nil }

var _ serde.Serde[int] = foreign{}

func TestFunc(t *testing.T) {
	t.Parallel()
	tooLong := errors.New("longer than 3")
	s := serde.Func(
		func(dst []byte, v string) ([]byte, error) {
			if len(v) > 3 {
				return append(dst, "half of it"...), tooLong
			}
			return append(dst, v...), nil
		},
		func(src []byte) (string, error) {
			if len(src) > 3 {
				return "half of it", tooLong
			}
			return string(src), nil
		})
	got, err := s.Append([]byte("x"), "abc")
	if err != nil || string(got) != "xabc" {
		t.Errorf("Append = %q, %v", got, err)
	}
	if v, err := s.Decode([]byte("abc")); err != nil || v != "abc" {
		t.Errorf("Decode = %q, %v", v, err)
	}

	got, err = s.Append([]byte("x"), "abcd")
	if !errors.Is(err, tooLong) || err.Error() != "encode func(string): longer than 3" {
		t.Errorf("Append of a bad value: %v", err)
	}
	if string(got) != "x" {
		t.Errorf("Append returned %q with its error, want dst unchanged", got)
	}
	v, err := s.Decode([]byte("abcd"))
	if !errors.Is(err, tooLong) || err.Error() != `decode func(string): longer than 3: 4 bytes "abcd"` {
		t.Errorf("Decode of bad input: %v", err)
	}
	if v != "" {
		t.Errorf("Decode returned %q with its error, want the zero value", v)
	}

	none := serde.Func[int](nil, nil)
	if got, err := none.Append([]byte("x"), 1); err == nil || string(got) != "x" {
		t.Errorf("Append without a function = %q, %v", got, err)
	}
	if _, err := none.Decode(nil); err == nil {
		t.Error("Decode without a function gave no error")
	}
}
