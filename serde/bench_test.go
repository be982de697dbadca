package serde_test

import (
	"testing"

	"github.com/weirstreams/weir/serde"
)

func benchmark[T any](b *testing.B, s serde.Serde[T], v T) {
	src, err := s.Append(nil, v)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		var dst []byte
		for b.Loop() {
			if dst, err = s.Append(dst[:0], v); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Decode(src); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkString(b *testing.B)  { benchmark(b, serde.String, "user-0000012345") }
func BenchmarkBytes(b *testing.B)   { benchmark(b, serde.Bytes, make([]byte, 100)) }
func BenchmarkInt32(b *testing.B)   { benchmark(b, serde.Int32, 42) }
func BenchmarkInt64(b *testing.B)   { benchmark(b, serde.Int64, 42) }
func BenchmarkFloat64(b *testing.B) { benchmark(b, serde.Float64, 4.5) }
func BenchmarkBool(b *testing.B)    { benchmark(b, serde.Bool, true) }
func BenchmarkJSON(b *testing.B) {
	benchmark(b, serde.JSON[rating](), rating{Movie: "362", Stars: 4.5, Tags: []string{"a", "b"}})
}

// The scalars must not allocate: they run for each key and value.
func TestAllocations(t *testing.T) {
	dst := make([]byte, 0, 64)
	long, err := serde.Int64.Append(nil, 42)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(){
		"append string":  func() { dst, _ = serde.String.Append(dst[:0], "abc") },
		"append bytes":   func() { dst, _ = serde.Bytes.Append(dst[:0], long) },
		"append int32":   func() { dst, _ = serde.Int32.Append(dst[:0], 42) },
		"append int64":   func() { dst, _ = serde.Int64.Append(dst[:0], 42) },
		"append float64": func() { dst, _ = serde.Float64.Append(dst[:0], 42) },
		"append bool":    func() { dst, _ = serde.Bool.Append(dst[:0], true) },
		"decode int32":   func() { _, _ = serde.Int32.Decode(long[:4]) },
		"decode int64":   func() { _, _ = serde.Int64.Decode(long) },
		"decode float64": func() { _, _ = serde.Float64.Decode(long) },
		"decode bool":    func() { _, _ = serde.Bool.Decode(long[:1]) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
}
