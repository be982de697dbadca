package fence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/metric"
)

// testLimit bounds every wait of these tests.
const testLimit = 20 * time.Second

// eventually waits until ok says yes.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testLimit); ; {
		if ok() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// A rig is a broker and a Redis with some topics.
type rig struct {
	t      *testing.T
	broker *embedded.Broker
	redis  *miniredis.Miniredis
	client *kgo.Client // to produce
	sent   map[string][]*kgo.Record
	log    *slog.Logger
	logged func(text string) int
}

const (
	inTopic   = "in"
	outTopic  = "out"
	deadTopic = "dead"
	testGroup = "group"
)

func newRig(t *testing.T, partitions int32, more ...string) *rig {
	t.Helper()
	r := &rig{t: t, redis: miniredis.RunT(t), sent: map[string][]*kgo.Record{}}
	r.log, r.logged = testLog(t)
	var err error
	if r.broker, err = embedded.Open(embedded.Options{Brokers: 1}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.broker.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, topic := range append([]string{inTopic}, more...) {
		r.topic(topic, partitions)
	}
	r.topic(outTopic, 2)
	r.topic(deadTopic, 1)
	if r.client, err = kgo.NewClient(append(r.broker.ClientOptions(), kgo.MetadataMinAge(50*time.Millisecond), kgo.MetadataMaxAge(100*time.Millisecond))...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.client.Close)
	return r
}

func (r *rig) topic(name string, partitions int32) {
	r.t.Helper()
	if err := r.broker.CreateTopic(r.t.Context(), name, partitions, nil); err != nil {
		r.t.Fatal(err)
	}
}

// produce sends records.
func (r *rig) produce(records ...*kgo.Record) {
	r.t.Helper()
	if err := r.client.ProduceSync(r.t.Context(), records...).FirstErr(); err != nil {
		r.t.Fatal(err)
	}
	for _, rec := range records {
		r.sent[rec.Topic] = append(r.sent[rec.Topic], rec)
	}
}

// numbers sends n records over some keys: the values are numbers.
func (r *rig) numbers(topic string, n, keys int) {
	r.t.Helper()
	random := rand.New(rand.NewPCG(1, uint64(n)))
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = &kgo.Record{Topic: topic, Key: fmt.Appendf(nil, "key-%d", random.IntN(keys)), Value: strconv.AppendInt(nil, random.Int64N(1000), 10)}
	}
	r.produce(records...)
}

// config is that of a consumer that adds numbers and sends each sum.
func (r *rig) config() ConsumerConfig {
	return ConsumerConfig{
		Kafka: append(r.broker.ClientOptions(), kgo.MetadataMinAge(50*time.Millisecond), kgo.MetadataMaxAge(200*time.Millisecond), kgo.HeartbeatInterval(50*time.Millisecond),
			kgo.SessionTimeout(2*time.Second), kgo.RebalanceTimeout(5*time.Second)),
		Group:  testGroup,
		Topics: []string{inTopic},
		Fence:  Options{URL: "redis://" + r.redis.Addr() + "/0?check=off&timeout=30s"},
		Handle: addValue,
		Output: sumOf,
		Logger: r.log,
	}
}

func addValue(m *Message) (Op, error) {
	n, err := strconv.ParseInt(string(m.Value), 10, 64)
	return Add(n), err
}

// sumOf says which record it was, and the state behind it.
func sumOf(m *Message, after After) ([]Output, error) {
	return []Output{{Topic: outTopic, Key: m.Key, Value: fmt.Appendf(nil, "%s/%d/%d=%s", m.Topic, m.Partition, m.Offset, after.State),
		Headers: []Header{{"from", m.Value}}}}, nil
}

// testLog writes the log of the consumer into that of the test. The function
// says how many lines hold a text.
func testLog(t *testing.T) (*slog.Logger, func(text string) int) {
	w := &logWriter{t: t}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.t = nil
	})
	return slog.New(slog.NewTextHandler(w, nil)), func(text string) int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return strings.Count(w.all.String(), text)
	}
}

type logWriter struct {
	mu  sync.Mutex
	t   *testing.T
	all strings.Builder
}

func (w *logWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Write(p)
	if w.t != nil {
		w.t.Log(strings.TrimSpace(string(p)))
	}
	return len(p), nil
}

// A run is a consumer that runs.
type run struct {
	t      *testing.T
	c      *Consumer
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// diesAt lets a consumer die when it comes to a step for the n-th time.
func diesAt(at step, n int) func(*Consumer) {
	return func(c *Consumer) {
		c.at = func(s step, _ []topicPartition) error {
			if s != at {
				return nil
			}
			if n--; n > 0 {
				return nil
			}
			return errCrash
		}
	}
}

func start(t *testing.T, cfg ConsumerConfig, prepare ...func(c *Consumer)) *run {
	t.Helper()
	c, err := NewConsumer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.idle = time.Hour
	for _, f := range prepare {
		f(c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &run{t: t, c: c, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		if r.err = c.Run(ctx); r.err != nil {
			cfg.Logger.Error("the consumer has ended", "error", r.err)
		}
	}()
	t.Cleanup(func() { cancel(); <-r.done })
	return r
}

// wait waits for the end of the run.
func (r *run) wait() error {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(testLimit):
		r.t.Fatalf("the consumer does not end: %+v", r.c.Status())
	}
	return r.err
}

func (r *run) stop() {
	r.t.Helper()
	r.cancel()
	if err := r.wait(); err != nil {
		r.t.Fatalf("a clean stop returned %v", err)
	}
}

// drained waits until all that was sent to topics is committed.
func (r *rig) drained(topics ...string) {
	r.t.Helper()
	if len(topics) == 0 {
		topics = []string{inTopic}
	}
	eventually(r.t, "everything is committed", func() bool {
		g, err := r.broker.Group(testGroup)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, topic := range topics {
			n, err := r.broker.Partitions(topic)
			if err != nil {
				r.t.Fatal(err)
			}
			for p := range n {
				info, err := r.broker.Partition(topic, p)
				if err != nil {
					r.t.Fatal(err)
				}
				if info.End > 0 && g.Commits[topic][p].Offset < info.End {
					return false
				}
			}
		}
		return true
	})
}

// read returns all records of a topic, in the order of each partition.
func (r *rig) read(topic string) []*kgo.Record {
	r.t.Helper()
	n, err := r.broker.Partitions(topic)
	if err != nil {
		r.t.Fatal(err)
	}
	want := int64(0)
	for p := range n {
		info, err := r.broker.Partition(topic, p)
		if err != nil {
			r.t.Fatal(err)
		}
		want += info.End - info.LogStart
	}
	cl, err := kgo.NewClient(append(r.broker.ClientOptions(), kgo.ConsumeTopics(topic), kgo.FetchMaxWait(50*time.Millisecond))...)
	if err != nil {
		r.t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(r.t.Context(), testLimit)
	defer cancel()
	var list []*kgo.Record
	for int64(len(list)) < want {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			r.t.Fatalf("read %d of %d records of %s: %v", len(list), want, topic, err)
		}
		list = append(list, fetches.Records()...)
	}
	slices.SortStableFunc(list, func(a, b *kgo.Record) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	return list
}

// wanted are the outputs that a plain loop over what was sent makes.
func (r *rig) wanted(topics ...string) map[string]bool {
	want := map[string]bool{}
	for _, topic := range topics {
		sums := map[string]int64{}
		sent := slices.Clone(r.sent[topic])
		slices.SortFunc(sent, func(a, b *kgo.Record) int {
			return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
		})
		for _, m := range sent {
			n, err := strconv.ParseInt(string(m.Value), 10, 64)
			if err != nil || m.Key == nil {
				continue
			}
			sums[string(m.Key)] += n
			want[fmt.Sprintf("%s/%d/%d=%d", topic, m.Partition, m.Offset, sums[string(m.Key)])] = true
		}
	}
	return want
}

// check compares the outputs with those of a plain loop: each is there, none
// differs, and the states are right. It returns how many were sent more than
// once.
func (r *rig) check(topics ...string) (repeated int) {
	r.t.Helper()
	if len(topics) == 0 {
		topics = []string{inTopic}
	}
	want := r.wanted(topics...)
	got := map[string]bool{}
	for _, o := range r.read(outTopic) {
		if got[string(o.Value)] {
			repeated++
		}
		got[string(o.Value)] = true
	}
	if !maps.Equal(got, want) {
		missing, extra := 0, 0
		for v := range want {
			if !got[v] {
				if missing++; missing < 5 {
					r.t.Errorf("missing output %s", v)
				}
			}
		}
		for v := range got {
			if !want[v] {
				if extra++; extra < 5 {
					r.t.Errorf("wrong output %s", v)
				}
			}
		}
		r.t.Fatalf("%d outputs are missing and %d are wrong, of %d", missing, extra, len(want))
	}
	return repeated
}

func TestConsumer(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4)
	r.numbers(inTopic, 2000, 50)
	var m metric.Memory
	cfg := r.config()
	cfg.Metrics = &m
	c := start(t, cfg)
	r.numbers(inTopic, 1000, 50)
	r.drained()
	if v, ok := m.Value(metric.FenceConsumerLag, metric.L(metric.LabelTopic, inTopic), metric.L(metric.LabelPartition, "0")); !ok || v != 0 {
		eventually(t, "the lag is 0", func() bool {
			v, ok := m.Value(metric.FenceConsumerLag, metric.L(metric.LabelTopic, inTopic), metric.L(metric.LabelPartition, "0"))
			return ok && v == 0
		})
	}
	eventually(t, "four partitions run", func() bool {
		s := c.c.Status()
		return len(s) == 4 && !slices.ContainsFunc(s, func(p PartitionStatus) bool { return p.State != Running || p.Lag != 0 || p.Epoch != 1 })
	})
	if n := m.Sum(metric.FenceRecords, metric.L(metric.LabelVerdict, "apply")); n != 3000 {
		t.Errorf("%v records applied, want 3000", n)
	}
	c.stop()
	if n := m.Len(); n != 0 {
		t.Errorf("%d series are left behind:\n%s", n, m.String())
	}
	if repeated := r.check(); repeated > 0 {
		t.Errorf("%d outputs were sent twice, without any failure", repeated)
	}
	if err := c.c.Run(t.Context()); !errors.Is(err, ErrRunning) {
		t.Errorf("a second Run: %v", err)
	}
}
