package memstore_test

import (
	"encoding/binary"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
)

const benchKeys = 100_000

func benchKey(i int) []byte {
	// Spread over the key space, so that neighbours are not neighbours.
	return binary.BigEndian.AppendUint64(nil, uint64(i)*0x9e3779b97f4a7c15)
}

func filled(b *testing.B) (state.View, state.Token) {
	v := claim(b, memstore.New())
	var bt state.Batch
	for i := range benchKeys {
		bt.Put(benchKey(i), make([]byte, 16))
	}
	apply(b, v, "0", "1", &bt)
	return v, "1"
}

func BenchmarkApply20k(b *testing.B) {
	v, token := filled(b)
	rng := rand.New(rand.NewPCG(1, 1))
	var bt state.Batch
	value := make([]byte, 16)
	for range 20_000 {
		bt.Put(benchKey(rng.IntN(benchKeys)), value)
	}
	b.ReportAllocs()
	n := 1
	for b.Loop() {
		n++
		next := state.Token(strconv.Itoa(n))
		apply(b, v, token, next, &bt)
		token = next
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(bt.Len()), "ns/record")
}

func BenchmarkRead(b *testing.B) {
	v, token := filled(b)
	rng := rand.New(rand.NewPCG(1, 1))
	keys := make([][]byte, 1000)
	for i := range keys {
		keys[i] = benchKey(rng.IntN(benchKeys))
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := v.Read(b.Context(), token, keys, func(int, []byte) {}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(keys)), "ns/key")
}

func BenchmarkIterate(b *testing.B) {
	v, token := filled(b)
	b.ReportAllocs()
	for b.Loop() {
		it := v.Iterate(b.Context(), token, state.Range{})
		n := 0
		for it.Next() {
			n++
		}
		if n != benchKeys || it.Err() != nil {
			b.Fatal(n, it.Err())
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchKeys, "ns/entry")
}

// BenchmarkBulk restores three million records of an 8-byte key and a 16-byte
// value in random order.
func BenchmarkBulk(b *testing.B) {
	for _, distinct := range []int{100_000, 3_000_000} {
		b.Run("distinct="+strconv.Itoa(distinct), func(b *testing.B) {
			const records = 3_000_000
			value := make([]byte, 16)
			b.ReportAllocs()
			for b.Loop() {
				v := claim(b, memstore.New())
				bulk, err := v.Bulk(b.Context(), "0")
				if err != nil {
					b.Fatal(err)
				}
				rng := rand.New(rand.NewPCG(1, 1))
				for i := range records {
					k := i
					if distinct < records {
						k = rng.IntN(distinct)
					}
					var key [8]byte
					binary.BigEndian.PutUint64(key[:], uint64(k)*0x9e3779b97f4a7c15)
					if err := bulk.Put(key[:], value); err != nil {
						b.Fatal(err)
					}
				}
				if err := bulk.Checkpoint(b.Context(), "1"); err != nil {
					b.Fatal(err)
				}
				bulk.Close()
			}
			b.ReportMetric(float64(b.N)*records/b.Elapsed().Seconds(), "records/s")
		})
	}
}
