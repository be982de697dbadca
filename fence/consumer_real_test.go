//go:build integration

package fence

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/internal/redistest"
)

// A real is the Kafka at WEIR_KAFKA with topics of the test's own.
type real struct {
	t              *testing.T
	kafka          []kgo.Opt
	cl             *kgo.Client
	adm            *kadm.Client
	in, out, group string
	url            string
	log            *slog.Logger
	logged         func(string) int
	sent           []*kgo.Record
}

func newReal(t *testing.T, partitions int32, redisAddr string) *real {
	t.Helper()
	brokers := os.Getenv("WEIR_KAFKA")
	if brokers == "" {
		t.Fatal("WEIR_KAFKA is not set: start the services with scripts/services, or use make test-integration")
	}
	name := "fence-" + rand.Text()
	r := &real{t: t, kafka: []kgo.Opt{kgo.SeedBrokers(brokers)}, in: name + "-in", out: name + "-out", group: name, url: "redis://" + redisAddr + "/0?check=off&timeout=1s&dial_timeout=500ms"}
	r.log, r.logged = testLog(t)
	var err error
	if r.cl, err = kgo.NewClient(r.kafka...); err != nil {
		t.Fatal(err)
	}
	r.adm = kadm.NewClient(r.cl)
	for _, topic := range []string{r.in, r.out} {
		if _, err := r.adm.CreateTopic(t.Context(), partitions, 1, nil, topic); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		r.adm.DeleteTopics(ctx, r.in, r.out)
		r.adm.DeleteGroups(ctx, r.group)
		r.cl.Close()
	})
	return r
}

func (r *real) config() ConsumerConfig {
	return ConsumerConfig{
		Kafka:  append(slices.Clone(r.kafka), kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(300*time.Millisecond)),
		Group:  r.group,
		Topics: []string{r.in},
		Fence:  Options{URL: r.url},
		Handle: addValue,
		Output: func(m *Message, after After) ([]Output, error) {
			return []Output{{Topic: r.out, Key: m.Key, Value: fmt.Appendf(nil, "%d/%d=%s", m.Partition, m.Offset, after.State)}}, nil
		},
		Logger: r.log,
	}
}

func (r *real) numbers(n int) {
	r.t.Helper()
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = &kgo.Record{Topic: r.in, Key: fmt.Appendf(nil, "key-%d", (i*7)%41), Value: strconv.AppendInt(nil, int64(i%1000), 10)}
	}
	if err := r.cl.ProduceSync(r.t.Context(), records...).FirstErr(); err != nil {
		r.t.Fatal(err)
	}
	r.sent = append(r.sent, records...)
}

func (r *real) drained() {
	r.t.Helper()
	redistest.Eventually(r.t, "everything is committed", func() bool {
		ends, err := r.adm.ListEndOffsets(r.t.Context(), r.in)
		if err != nil {
			r.t.Fatal(err)
		}
		committed, err := r.adm.FetchOffsets(r.t.Context(), r.group)
		if err != nil {
			return false // a coordinator that is still loading
		}
		all := true
		ends.Each(func(o kadm.ListedOffset) {
			c, _ := committed.Lookup(o.Topic, o.Partition)
			all = all && (o.Offset == 0 || c.At == o.Offset)
		})
		return all
	})
}

// check compares outputs and states with a plain loop.
func (r *real) check() (repeated int) {
	r.t.Helper()
	slices.SortFunc(r.sent, func(a, b *kgo.Record) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	sums, want := map[string]int64{}, map[string]bool{}
	for _, m := range r.sent {
		n, err := strconv.ParseInt(string(m.Value), 10, 64)
		if err != nil {
			r.t.Fatal(err)
		}
		sums[string(m.Key)] += n
		want[fmt.Sprintf("%d/%d=%d", m.Partition, m.Offset, sums[string(m.Key)])] = true
	}
	ends, err := r.adm.ListEndOffsets(r.t.Context(), r.out)
	if err != nil {
		r.t.Fatal(err)
	}
	left := int64(0)
	ends.Each(func(o kadm.ListedOffset) { left += o.Offset })
	cl, err := kgo.NewClient(append(slices.Clone(r.kafka), kgo.ConsumeTopics(r.out))...)
	if err != nil {
		r.t.Fatal(err)
	}
	defer cl.Close()
	got := map[string]bool{}
	for left > 0 {
		fetches := cl.PollFetches(r.t.Context())
		if err := fetches.Err(); err != nil {
			r.t.Fatal(err)
		}
		fetches.EachRecord(func(o *kgo.Record) {
			left--
			if got[string(o.Value)] {
				repeated++
			}
			got[string(o.Value)] = true
			if !want[string(o.Value)] {
				r.t.Errorf("wrong output %s", o.Value)
			}
		})
	}
	if len(got) != len(want) {
		r.t.Errorf("%d distinct outputs for %d records", len(got), len(want))
	}
	parts, err := r.adm.ListTopics(r.t.Context(), r.in)
	if err != nil {
		r.t.Fatal(err)
	}
	f := mustOpen(r.t, Options{URL: r.url, Name: r.group, Topic: r.in, Partitions: len(parts[r.in].Partitions)})
	for key, want := range sums {
		in, err := f.Inspect(r.t.Context(), []byte(key))
		if err != nil {
			r.t.Fatal(err)
		}
		if got, err := DecodeInt(in.State.Value); err != nil || got != want {
			r.t.Errorf("state of %s is %d (%v), a plain loop has %d", key, got, err, want)
		}
	}
	return repeated
}

// The consumer dies behind each of the steps, many times.
func TestRealConsumerCrash(t *testing.T) {
	t.Parallel()
	r := newReal(t, 4, redistest.Start(t).Addr())
	r.numbers(20_000)
	cfg := r.config()
	cfg.MaxBatchRecords = 50
	steps := []step{stepApply, stepProduce, stepFlush, stepCommit}
	for i := range 40 {
		c := start(t, cfg, diesAt(steps[i%len(steps)], 1+i/16))
		if err := c.wait(); !errors.Is(err, errCrash) {
			t.Fatalf("crash %d: the consumer ended with %v", i, err)
		}
	}
	c := start(t, cfg)
	r.drained()
	c.stop()
	if repeated := r.check(); repeated == 0 {
		t.Error("no output was sent twice: the crashes behind the flush were none")
	}
}

// Members come and go.
func TestRealConsumerRebalance(t *testing.T) {
	t.Parallel()
	r := newReal(t, 6, redistest.Start(t).Addr())
	cfg := r.config()
	cfg.MaxBatchRecords = 500
	r.numbers(3000)
	a := start(t, cfg)
	r.numbers(3000)
	b := start(t, cfg)
	share := func(want int, runs ...*run) {
		t.Helper()
		redistest.Eventually(t, fmt.Sprintf("%d members have %d partitions each", len(runs), want), func() bool {
			return !slices.ContainsFunc(runs, func(c *run) bool { return owned(c, Running) != want })
		})
	}
	share(3, a, b)
	r.numbers(3000)
	c := start(t, cfg)
	share(2, a, b, c)
	r.numbers(3000)
	b.stop()
	share(3, a, c)
	r.numbers(3000)
	r.drained()
	a.stop()
	c.stop()
	if repeated := r.check(); repeated > 0 {
		t.Errorf("%d outputs were sent twice, without any failure", repeated)
	}
}

// A redis-server that is killed and comes back with all it had is waited for.
func TestRealConsumerRedisRestart(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	r := newReal(t, 3, s.Addr())
	r.numbers(2000)
	c := start(t, r.config())
	r.drained()
	s.Kill()
	r.numbers(2000)
	redistest.Eventually(t, "a partition waits", func() bool { return owned(c, Waiting) > 0 })
	s.Start()
	r.drained()
	c.stop()
	if repeated := r.check(); repeated > 0 {
		t.Errorf("%d outputs were sent twice, and nothing was forgotten", repeated)
	}
}

// A failover to a replica that has not got the last writes is found out: the
// records are applied again, and nothing is skipped.
func TestRealConsumerFailoverForgets(t *testing.T) {
	t.Parallel()
	primary := redistest.Start(t)
	replica := primary.StartReplica()
	proxy := redistest.StartProxy(t, primary.Addr())
	r := newReal(t, 3, proxy.Addr())
	r.numbers(2000)
	c := start(t, r.config())
	r.drained()
	primary.Must("WAIT", "1", "5000")
	replica.Must("REPLICAOF", "NO", "ONE") // what comes from now on it does not get
	r.numbers(1500)
	r.drained()
	proxy.Forward(replica.Addr())
	proxy.Drop()
	r.numbers(1500)
	r.drained()
	if r.logged("redis has forgotten acknowledged writes") == 0 {
		t.Error("the failover went unnoticed")
	}
	c.stop()
	if repeated := r.check(); repeated < 1400 {
		t.Errorf("%d outputs were sent a second time, want those of about 1500 records", repeated)
	}
}

// A server that has lost everything ends the consumer.
func TestRealConsumerFlushed(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	r := newReal(t, 2, s.Addr())
	r.numbers(500)
	c := start(t, r.config())
	r.drained()
	s.Must("FLUSHALL")
	r.numbers(500)
	if err := c.wait(); !errors.Is(err, ErrMissing) {
		t.Errorf("Run returned %v, want ErrMissing", err)
	}
}

// A topic that is deleted and created again while it is read ends the consumer.
func TestConsumerTopicCreatedAnew(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbers(inTopic, 10, 5)
	c := start(t, r.config())
	r.drained()
	if err := r.broker.DeleteTopic(t.Context(), inTopic); err != nil {
		t.Fatal(err)
	}
	r.topic(inTopic, 1)
	if err := c.wait(); !errors.Is(err, ErrTopicChanged) {
		t.Errorf("Run returned %v", err)
	}
}
