//go:build integration

package fence

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/weirstreams/weir/internal/redistest"
)

// BenchmarkServerCost measures the processor time of redis-server for a record,
// in batches of several sizes, with 20,000 keys and the window pruned as a
// Consumer does, for Set. What a batch of one has more than the largest is
// DefaultCallCost; see also BenchmarkServer.
func BenchmarkServerCost(b *testing.B) {
	for _, n := range []int{1, 16, 100, 500} {
		b.Run(fmt.Sprintf("batch=%d", n), func(b *testing.B) {
			s := redistest.Start(b)
			f, err := Open(b.Context(), Options{URL: "redis://" + s.Addr() + "/0?check=off", Topic: "t", Partitions: 1})
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			c, err := f.Claim(b.Context(), Assignment{Committed: -1})
			if err != nil {
				b.Fatal(err)
			}
			value, next := make([]byte, 100), int64(0)
			before := s.CPU()
			for b.Loop() {
				batch := Batch{Committed: next}
				for range n {
					batch.Records = append(batch.Records, Record{Offset: next, Key: strconv.AppendInt(nil, next*7919%20_000, 10), Op: Set(value)})
					next++
				}
				if _, err := c.Apply(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((s.CPU()-before)/float64(next), "server-µs/record")
		})
	}
}
