package pebblestore

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/weirstreams/weir/state"
)

// Figures per CPU second count the whole process, compactions included, from
// the first record to the closed database.

const benchKeys = 100_000

var benchID = state.ID{Application: "app", Task: "0_0"}

// benchKey spreads keys over the key space, so that neighbours are none.
func benchKey(dst []byte, i int) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(i)*0x9e3779b97f4a7c15)
}

func openBench(b *testing.B, memory int64) (*Backend, state.View) {
	b.Helper()
	s, err := Open(b.TempDir(), Options{MaxMemory: memory})
	if err != nil {
		b.Fatal(err)
	}
	v, err := s.Claim(b.Context(), benchID, "", "0")
	if err != nil {
		b.Fatal(err)
	}
	return s, v
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func closeBench(b *testing.B, s *Backend) {
	b.Helper()
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkApply writes batches of puts of an 8-byte key and a 16-byte value.
func BenchmarkApply(b *testing.B) {
	for _, size := range []int{1, 100, 20_000} {
		b.Run("puts="+strconv.Itoa(size), func(b *testing.B) {
			s, v := openBench(b, 256<<20)
			rng := rand.New(rand.NewPCG(1, 1))
			batches := make([]state.Batch, 8)
			for i := range batches {
				for range size {
					batches[i].Put(benchKey(nil, rng.IntN(benchKeys)), make([]byte, 16))
				}
			}
			token := state.Token("0")
			n := 0
			cpu := cpuTime(b)
			b.ReportAllocs()
			for b.Loop() {
				n++
				next := state.Token(strconv.Itoa(n))
				if err := v.Apply(b.Context(), token, next, &batches[n%len(batches)]); err != nil {
					b.Fatal(err)
				}
				token = next
			}
			records := float64(n) * float64(size)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/records, "ns/record")
			closeBench(b, s)
			b.ReportMetric(float64((cpuTime(b)-cpu).Nanoseconds())/records, "cpu-ns/record")
		})
	}
}

// BenchmarkRead gets 1000 keys at once of 100-byte values: hot, of a working
// set that is in the cache, cold, of a database many times the cache (the
// blocks are still in the operating system's cache), and absent ones.
func BenchmarkRead(b *testing.B) {
	for _, c := range []struct {
		name   string
		keys   int
		memory int64
		absent bool
	}{
		{"memtable", 50_000, 256 << 20, false},
		{"hot", 500_000, 256 << 20, false},
		{"cold", 2_000_000, 8 << 20, false},
		{"absent", 500_000, 256 << 20, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			s, v := openBench(b, c.memory)
			defer closeBench(b, s)
			token := fill(b, s, v, c.keys, c.name != "memtable")
			rng := rand.New(rand.NewPCG(2, 2))
			keys := make([][]byte, 1000)
			b.ReportAllocs()
			found := 0
			visit := func(_ int, value []byte) {
				if value != nil {
					found++
				}
			}
			n := 0
			for b.Loop() {
				n++
				b.StopTimer()
				for i := range keys {
					k := rng.IntN(c.keys)
					if c.absent {
						k += c.keys
					}
					keys[i] = benchKey(keys[i][:0], k)
				}
				b.StartTimer()
				if err := v.Read(b.Context(), token, keys, visit); err != nil {
					b.Fatal(err)
				}
			}
			if want := n * len(keys); found != want && !c.absent || found != 0 && c.absent {
				b.Fatalf("%d keys found", found)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n*len(keys)), "ns/key")
		})
	}
}

// fill puts keys with 100-byte values through Apply, in random order.
func fill(b *testing.B, s *Backend, v state.View, keys int, flush bool) state.Token {
	b.Helper()
	token := state.Token("0")
	value := make([]byte, 100)
	for i := 0; i < keys; {
		var bt state.Batch
		for ; i < keys && bt.Len() < 20_000; i++ {
			binary.BigEndian.PutUint64(value, uint64(i))
			bt.Put(benchKey(nil, i), append([]byte(nil), value...))
		}
		next := state.Token(strconv.Itoa(i))
		if err := v.Apply(b.Context(), token, next, &bt); err != nil {
			b.Fatal(err)
		}
		token = next
	}
	if flush {
		if err := s.db.Flush(); err != nil {
			b.Fatal(err)
		}
		if err := s.db.Compact(b.Context(), []byte{0}, []byte{0xff}, false); err != nil {
			b.Fatal(err)
		}
	}
	return token
}

func BenchmarkIterate(b *testing.B) {
	s, v := openBench(b, 256<<20)
	defer closeBench(b, s)
	token := fill(b, s, v, benchKeys, true)
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
		it.Close()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchKeys, "ns/entry")
}

// BenchmarkRestore takes three million records of an 8-byte key and a 16-byte
// value, in random order, with a checkpoint at every 32 MiB that are handed
// over, and one at the end only.
func BenchmarkRestore(b *testing.B) {
	const records = 3_000_000
	for _, distinct := range []int{100_000, records} {
		for _, checkpoint := range []int{32 << 20 / 24, records + 1} {
			b.Run(fmt.Sprintf("distinct=%d/checkpoint=%d", distinct, min(checkpoint, records)), func(b *testing.B) {
				var keys []byte
				rng := rand.New(rand.NewPCG(1, 1))
				for i := range records {
					k := i
					if distinct < records {
						k = rng.IntN(distinct)
					}
					keys = benchKey(keys, k)
				}
				value := make([]byte, 16)
				var cpu time.Duration
				for b.Loop() {
					b.StopTimer()
					s, v := openBench(b, 256<<20)
					before := cpuTime(b)
					b.StartTimer()
					bulk, err := v.Bulk(b.Context(), "0")
					if err != nil {
						b.Fatal(err)
					}
					for i := range records {
						binary.LittleEndian.PutUint64(value, uint64(i))
						if err := bulk.Put(keys[8*i:8*i+8], value); err != nil {
							b.Fatal(err)
						}
						if i%checkpoint == checkpoint-1 {
							if err := bulk.Checkpoint(b.Context(), state.Token(strconv.Itoa(i))); err != nil {
								b.Fatal(err)
							}
						}
					}
					if err := bulk.Checkpoint(b.Context(), "end"); err != nil {
						b.Fatal(err)
					}
					bulk.Close()
					b.StopTimer()
					closeBench(b, s)
					cpu += cpuTime(b) - before
					b.StartTimer()
				}
				b.ReportMetric(float64(b.N)*records/b.Elapsed().Seconds(), "records/s")
				b.ReportMetric(float64(b.N)*records/cpu.Seconds(), "records/cpu-s")
			})
		}
	}
}
