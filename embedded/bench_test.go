package embedded

import (
	"context"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	benchPartitions = 12
	benchValueBytes = 100
)

// benchBroker is a way to reach a cluster with a topic "bench".
type benchBroker struct {
	name string
	open func(b *testing.B) []kgo.Opt
}

func benchBrokers() []benchBroker {
	ours := func(opts func(b *testing.B) Options) func(b *testing.B) []kgo.Opt {
		return func(b *testing.B) []kgo.Opt {
			o := opts(b)
			o.Topics = []Topic{{Name: "bench", Partitions: benchPartitions}}
			br := open(b, o)
			if o.Listen != "" {
				return []kgo.Opt{kgo.SeedBrokers(br.Brokers()...)}
			}
			return br.ClientOptions()
		}
	}
	return []benchBroker{
		{"memory", ours(func(*testing.B) Options { return Options{} })},
		{"folder", ours(func(b *testing.B) Options { return Options{Dir: b.TempDir()} })},
		{"tcp", ours(func(*testing.B) Options { return Options{Listen: "127.0.0.1:0"} })},
		// The cluster without this package, to see what the frame check costs.
		{"bare", func(b *testing.B) []kgo.Opt {
			vn := new(kfake.VirtualNetwork)
			c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(1), kfake.ListenFn(vn.Listen), kfake.SeedTopics(benchPartitions, "bench"))
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(c.Close)
			return []kgo.Opt{kgo.SeedBrokers("localhost:1"), kgo.Dialer(vn.DialContext)}
		}},
	}
}

func benchClient(b *testing.B, opts []kgo.Opt, more ...kgo.Opt) *kgo.Client {
	b.Helper()
	cl, err := kgo.NewClient(append(opts, append(more, kgo.DefaultProduceTopic("bench"), kgo.MaxBufferedRecords(50_000))...)...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(cl.Close)
	return cl
}

// fill produces n records with 8-byte keys.
func fill(b *testing.B, cl *kgo.Client, n int) {
	b.Helper()
	value := make([]byte, benchValueBytes)
	failed := make(chan error, 1)
	promise := func(_ *kgo.Record, err error) {
		if err != nil {
			select {
			case failed <- err:
			default:
			}
		}
	}
	ctx := context.Background()
	for i := range n {
		cl.Produce(ctx, &kgo.Record{Key: fmt.Appendf(nil, "%08d", i%100_000), Value: value}, promise)
	}
	if err := cl.Flush(ctx); err != nil {
		b.Fatal(err)
	}
	select {
	case err := <-failed:
		b.Fatal(err)
	default:
	}
}

func BenchmarkProduce(b *testing.B) {
	for _, br := range benchBrokers() {
		b.Run(br.name, func(b *testing.B) {
			cl := benchClient(b, br.open(b))
			fill(b, cl, 1)
			b.SetBytes(benchValueBytes + 8)
			b.ResetTimer()
			fill(b, cl, b.N)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

func BenchmarkConsume(b *testing.B) {
	for _, br := range benchBrokers() {
		b.Run(br.name, func(b *testing.B) {
			opts := br.open(b)
			fill(b, benchClient(b, opts), b.N)
			b.SetBytes(benchValueBytes + 8)
			b.ResetTimer()
			cl := benchClient(b, opts, kgo.ConsumeTopics("bench"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
			for n := 0; n < b.N; {
				fs := cl.PollFetches(context.Background())
				if err := fs.Err(); err != nil {
					b.Fatal(err)
				}
				n += fs.NumRecords()
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

// BenchmarkTransaction is a transaction of one record.
func BenchmarkTransaction(b *testing.B) {
	for _, br := range benchBrokers() {
		b.Run(br.name, func(b *testing.B) {
			cl := benchClient(b, br.open(b), kgo.TransactionalID("bench"), kgo.ProducerLinger(0))
			ctx := context.Background()
			for b.Loop() {
				if err := transact(ctx, cl, kgo.TryCommit, &kgo.Record{Value: []byte("x")}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "transactions/s")
		})
	}
}

// BenchmarkOpenClose is the start and stop of a broker in memory, as in each
// test that uses one.
func BenchmarkOpenClose(b *testing.B) {
	for b.Loop() {
		br, err := Open(Options{Topics: []Topic{{Name: "bench", Partitions: benchPartitions}}})
		if err != nil {
			b.Fatal(err)
		}
		if err := br.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
