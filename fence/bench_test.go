package fence

import (
	"fmt"
	"testing"

	"github.com/weirstreams/weir/internal/redisconn"
)

// BenchmarkClient measures what a record costs the client, without Redis: the
// calls are made, and their replies are not waited for.
func BenchmarkClient(b *testing.B) {
	f, _ := openMini(b, Options{Topic: "t", Partitions: 1})
	c := mustClaim(b, f, Assignment{Committed: -1})
	const batch = 500
	value := make([]byte, 100)
	for name, op := range map[string]func(i int) Op{
		"set": func(int) Op { return Set(value) },
		"add": func(i int) Op { return Add(int64(i)) },
	} {
		b.Run(name, func(b *testing.B) {
			var keys [batch][]byte
			for i := range keys {
				keys[i] = fmt.Appendf(nil, "user-%08d", i*7919)
			}
			sent := 0
			hook := func(calls []redisconn.Call) error {
				sent += len(calls)
				return ErrUnavailable
			}
			f.before.Store(&hook)
			defer f.before.Store(nil)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				records := make([]Record, batch)
				for i := range records {
					records[i] = Record{Offset: int64(n + i), Key: keys[i], Op: op(i)}
				}
				if _, err := c.apply(b.Context(), Batch{Records: records}); err != ErrUnavailable {
					b.Fatal(err)
				}
				n += batch
			}
			if sent == 0 {
				b.Fatal("nothing was sent")
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/record")
		})
	}
}

// BenchmarkMini measures whole batches on miniredis, which runs the script in
// the same process.
func BenchmarkMini(b *testing.B) {
	f, _ := openMini(b, Options{Topic: "t", Partitions: 1})
	c := mustClaim(b, f, Assignment{Committed: -1})
	const batch = 500
	n := int64(0)
	for b.Loop() {
		records := make([]Record, batch)
		for i := range records {
			records[i] = Record{Offset: n + int64(i), Key: fmt.Appendf(nil, "user-%08d", i), Op: Add(1)}
		}
		if _, err := c.Apply(b.Context(), Batch{Records: records, Committed: n}); err != nil {
			b.Fatal(err)
		}
		n += batch
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/record")
}
