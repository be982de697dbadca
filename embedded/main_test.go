package embedded

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if run := os.Getenv(childEnv); run != "" {
		os.Exit(childMain(run))
	}
	goleak.VerifyTestMain(m)
}

// testTimeout bounds every wait in the tests.
const testTimeout = 30 * time.Second

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

func open(t testing.TB, opts Options) *Broker {
	t.Helper()
	b, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return b
}

// client makes a client of the broker that is closed before the broker is.
func client(t testing.TB, b *Broker, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := newClient(b, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.CloseAllowingRebalance)
	return cl
}

func newClient(b *Broker, opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(append(b.ClientOptions(),
		kgo.MetadataMinAge(20*time.Millisecond),
		kgo.FetchMaxWait(50*time.Millisecond),
		kgo.ProducerLinger(0),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	), opts...)...)
}

func record(topic string, partition int32, key, value string) *kgo.Record {
	r := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(value)}
	if key != "" {
		r.Key = []byte(key)
	}
	return r
}

func produce(t testing.TB, cl *kgo.Client, rs ...*kgo.Record) {
	t.Helper()
	if err := cl.ProduceSync(testContext(t), rs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// read returns the "key=value" of all records of a partition from its start to
// its end, as a read_committed reader sees them.
func read(t testing.TB, b *Broker, topic string, partition int32) []string {
	t.Helper()
	values, err := readAll(testContext(t), b, topic, partition)
	if err != nil {
		t.Fatal(err)
	}
	return values
}

func readAll(ctx context.Context, b *Broker, topic string, partition int32) ([]string, error) {
	p, err := b.Partition(topic, partition)
	if err != nil {
		return nil, err
	}
	cl, err := newClient(b,
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().At(p.LogStart)}}),
	)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	var values []string
	for at := p.LogStart; at < p.LastStable; {
		fs := cl.PollFetches(ctx)
		if err := fs.Err0(); err != nil {
			return values, fmt.Errorf("at offset %d of %d: %w", at, p.LastStable, err)
		}
		var failed error
		fs.EachError(func(_ string, _ int32, err error) { failed = err })
		if failed != nil {
			return values, failed
		}
		fs.EachRecord(func(r *kgo.Record) {
			at = r.Offset + 1
			if !r.Attrs.IsControl() {
				values = append(values, string(r.Key)+"="+string(r.Value))
			}
		})
	}
	return values, nil
}

// transact runs one transaction of a producer.
func transact(ctx context.Context, cl *kgo.Client, commit kgo.TransactionEndTry, rs ...*kgo.Record) error {
	if err := cl.BeginTransaction(); err != nil {
		return err
	}
	if err := cl.ProduceSync(ctx, rs...).FirstErr(); err != nil {
		return err
	}
	return cl.EndTransaction(ctx, commit)
}
