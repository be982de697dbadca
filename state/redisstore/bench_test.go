//go:build integration

package redisstore

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/weirstreams/weir/internal/redistest"
	"github.com/weirstreams/weir/state"
)

const (
	benchKeys  = 100_000
	benchValue = 100
)

// BenchmarkApply writes batches of random keys of 100,000 with values of 100
// bytes. It reports the processor time of the server for each record; bench/redis
// compares that with plain writes.
func BenchmarkApply(b *testing.B) {
	for _, way := range []struct {
		name                   string
		unordered, scriptsOnly bool
	}{{"transactions", true, false}, {"scripts", true, true}, {"ordered", false, false}} {
		for _, n := range []int{1, 16, 128, 500, 2000} {
			b.Run(fmt.Sprintf("%s/batch=%d", way.name, n), func(b *testing.B) {
				s := redistest.Start(b)
				opts := serverOptions(s)
				opts.Unordered, opts.ScriptsOnly = way.unordered, way.scriptsOnly
				backend := mustOpen(b, opts)
				v, err := backend.Claim(b.Context(), view0, "", "t")
				if err != nil {
					b.Fatal(err)
				}
				token := state.Token("t")
				rng := rand.New(rand.NewPCG(1, 2))
				value := make([]byte, benchValue)
				seq := 0
				var batch state.Batch
				turn := func() {
					batch.Reset()
					for range n {
						batch.Put(fmt.Appendf(nil, "\x06countsuser-%08d", rng.IntN(benchKeys)), value)
					}
					seq++
					next := state.Token("t" + strconv.Itoa(seq))
					if err := v.Apply(b.Context(), token, next, &batch); err != nil {
						b.Fatal(err)
					}
					token = next
				}
				for range 3 * benchKeys / max(n, 16) { // most keys exist, as in a long run
					turn()
				}
				used := s.CPU()
				b.ReportAllocs()
				for b.Loop() {
					turn()
				}
				records := float64(b.N * n)
				b.ReportMetric((s.CPU()-used)/records, "server-us/record")
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/records, "ns/record")
			})
		}
	}
}

// BenchmarkRead reads batches of random keys.
func BenchmarkRead(b *testing.B) {
	for _, n := range []int{1, 16, 128, 500} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			s := redistest.Start(b)
			backend := mustOpen(b, serverOptions(s))
			v, err := backend.Claim(b.Context(), view0, "", "t")
			if err != nil {
				b.Fatal(err)
			}
			var batch state.Batch
			all := make([][]byte, benchKeys)
			for i := range all {
				all[i] = fmt.Appendf(nil, "\x06countsuser-%08d", i)
				batch.Put(all[i], make([]byte, benchValue))
			}
			if err := v.Apply(b.Context(), "t", "t1", &batch); err != nil {
				b.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			keys := make([][]byte, n)
			ours := s.CPU()
			b.ReportAllocs()
			for b.Loop() {
				for i := range keys {
					keys[i] = all[rng.IntN(benchKeys)]
				}
				if err := v.Read(b.Context(), "t1", keys, func(int, []byte) {}); err != nil {
					b.Fatal(err)
				}
			}
			records := float64(b.N * n)
			b.ReportMetric((s.CPU()-ours)/records, "server-us/record")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/records, "ns/record")
		})
	}
}

// BenchmarkClaim claims a view of 10,000 and of 1,000,000 keys: the time does
// not depend on them.
func BenchmarkClaim(b *testing.B) {
	for _, n := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			s := redistest.Start(b)
			backend := mustOpen(b, serverOptions(s))
			v, err := backend.Claim(b.Context(), view0, "", "t")
			if err != nil {
				b.Fatal(err)
			}
			bulk, err := v.Bulk(b.Context(), "t")
			if err != nil {
				b.Fatal(err)
			}
			for i := range n {
				if err := bulk.Put(fmt.Appendf(nil, "\x06countsuser-%08d", i), make([]byte, benchValue)); err != nil {
					b.Fatal(err)
				}
			}
			if err := bulk.Checkpoint(b.Context(), "t0"); err != nil {
				b.Fatal(err)
			}
			bulk.Close()
			token := state.Token("t0")
			seq := 0
			for b.Loop() {
				seq++
				next := state.Token("t" + strconv.Itoa(seq))
				if _, err := backend.Claim(b.Context(), view0, token, next); err != nil {
					b.Fatal(err)
				}
				token = next
			}
		})
	}
}
