package fence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/metric"
)

// states compares what is stored with a plain loop.
func (r *rig) states(topic string) {
	r.t.Helper()
	n, err := r.broker.Partitions(topic)
	if err != nil {
		r.t.Fatal(err)
	}
	f, err := Open(r.t.Context(), Options{URL: "redis://" + r.redis.Addr() + "/0?check=off&timeout=30s", Name: testGroup, Topic: topic, Partitions: int(n)})
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	sums := map[string]int64{}
	for _, m := range r.sent[topic] {
		if n, err := strconv.ParseInt(string(m.Value), 10, 64); err == nil && m.Key != nil {
			sums[string(m.Key)] += n
		}
	}
	for key, want := range sums {
		in, err := f.Inspect(r.t.Context(), []byte(key))
		if err != nil {
			r.t.Fatal(err)
		}
		if got, err := DecodeInt(in.State.Value); err != nil || got != want {
			r.t.Errorf("state of %s is %d (%v), a plain loop has %d", key, got, err, want)
		}
	}
}

// computed is the same consumer with states that are computed on the client.
func computed(cfg ConsumerConfig) ConsumerConfig {
	cfg.Handle = nil
	cfg.Compute = func(m *Message, state []byte, exists bool) (Change, error) {
		n, err := strconv.ParseInt(string(m.Value), 10, 64)
		if err != nil {
			return Change{}, err
		}
		old, err := DecodeInt(state)
		return Change{Value: strconv.AppendInt(nil, old+n, 10)}, err
	}
	return cfg
}

// A consumer that dies behind any of the steps, again and again, sends each
// output at least once and none that is wrong, and changes each state once.
func TestConsumerCrash(t *testing.T) {
	t.Parallel()
	for _, form := range []struct {
		name string
		of   func(ConsumerConfig) ConsumerConfig
	}{{"handle", func(c ConsumerConfig) ConsumerConfig { return c }}, {"compute", computed}} {
		for _, at := range []step{stepApply, stepProduce, stepFlush, stepCommit} {
			t.Run(form.name+"/"+string(at), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 3)
				r.numbers(inTopic, 1500, 20)
				cfg := form.of(r.config())
				cfg.MaxBatchRecords = 20
				const crashes = 6
				random := rand.New(rand.NewPCG(7, uint64(len(at))))
				for range crashes {
					c := start(t, cfg, diesAt(at, 1+random.IntN(3)))
					if err := c.wait(); !errors.Is(err, errCrash) {
						t.Fatalf("the consumer ended with %v before it crashed", err)
					}
				}
				c := start(t, cfg)
				r.drained()
				c.stop()
				repeated := r.check()
				r.states(inTopic)
				switch {
				case at == stepFlush && repeated == 0:
					t.Error("no output was sent twice: the crashes behind the flush were none")
				case at == stepCommit && repeated > 0:
					t.Errorf("%d outputs were sent twice, though all that was sent was committed", repeated)
				}
			})
		}
	}
}

// A consumer that was away while its partitions moved is refused when it comes
// back, and takes part again.
func TestConsumerZombie(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.numbers(inTopic, 200, 20)
	cfg := r.config()
	cfg.Kafka = append(cfg.Kafka, kgo.RebalanceTimeout(300*time.Millisecond), kgo.SessionTimeout(300*time.Millisecond))
	asleep, wake := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var m metric.Memory
	sleeper := cfg
	sleeper.Metrics = &m
	sleeper.Handle = func(msg *Message) (Op, error) {
		once.Do(func() { close(asleep); <-wake })
		return addValue(msg)
	}
	zombie := start(t, sleeper)
	<-asleep
	other := start(t, cfg)
	r.drained()
	close(wake)
	eventually(t, "the zombie is refused", func() bool { return r.logged("partition dropped: another owner has claimed it") > 0 })
	if n := m.Sum(metric.FenceRecords, metric.L(metric.LabelVerdict, "fence")); n == 0 {
		t.Error("the refusals are not counted")
	}
	r.numbers(inTopic, 300, 20)
	r.drained()
	eventually(t, "both have a partition", func() bool { return owned(zombie, Running) == 1 && owned(other, Running) == 1 })
	zombie.stop()
	other.stop()
	r.check()
	r.states(inTopic)
}

func owned(c *run, state PartitionState) int {
	n := 0
	for _, s := range c.c.Status() {
		if s.State == state {
			n++
		}
	}
	return n
}

// Somebody who claims a partition that is not his drives the owner out for as
// long as it takes to ask the group, and the owner does not claim on his own.
func TestConsumerFencedByStranger(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.numbers(inTopic, 100, 20)
	cfg := r.config()
	c := start(t, cfg)
	r.drained()
	f, err := Open(t.Context(), Options{URL: cfg.Fence.URL, Name: testGroup, Topic: inTopic, Partitions: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	group, err := r.broker.Group(testGroup)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := f.Claim(t.Context(), Assignment{Partition: 1, Committed: group.Commits[inTopic][1].Offset})
	if err != nil {
		t.Fatal(err)
	}
	joins, err := r.broker.Fault(embedded.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Group: testGroup, Observe: true, Count: -1})
	if err != nil {
		t.Fatal(err)
	}
	r.numbers(inTopic, 100, 20)
	r.drained()
	if joins.Hits() == 0 {
		t.Error("the partition was claimed again without asking the group")
	}
	r.numbers(inTopic, 100, 20)
	r.drained()
	for _, s := range c.c.Status() {
		if want := uint64(1 + 2*s.Partition); s.Epoch != want {
			t.Errorf("partition %d has epoch %d, want %d: it was claimed once for each assignment", s.Partition, s.Epoch, want)
		}
	}
	if _, err := stranger.Apply(t.Context(), Batch{Records: []Record{{Offset: 1 << 40, Key: []byte("x"), Op: Add(1)}}}); !errors.Is(err, ErrFenced) {
		t.Errorf("the stranger was not refused: %v", err)
	}
	c.stop()
	if repeated := r.check(); repeated > 0 {
		t.Errorf("%d outputs were sent twice", repeated)
	}
	r.states(inTopic)
}

// Members come and go while records come in. A partition moves only when its
// batch is committed, so nothing is sent twice.
func TestConsumerRebalance(t *testing.T) {
	t.Parallel()
	r := newRig(t, 6)
	cfg := r.config()
	cfg.MaxBatchRecords = 200
	var working atomic.Int64 // partitions that are worked on
	busy := make(map[topicPartition]*atomic.Int64)
	for p := range int32(6) {
		busy[topicPartition{inTopic, p}] = new(atomic.Int64)
	}
	cfg.Handle = func(m *Message) (Op, error) {
		working.Add(1)
		defer working.Add(-1)
		b := busy[topicPartition{m.Topic, m.Partition}]
		if b.Add(1) > 1 {
			t.Errorf("two work on partition %d at the same time", m.Partition)
		}
		defer b.Add(-1)
		return addValue(m)
	}
	r.numbers(inTopic, 2000, 100)
	a := start(t, cfg)
	eventually(t, "one has all", func() bool { return owned(a, Running) == 6 })
	r.numbers(inTopic, 2000, 100)
	b := start(t, cfg)
	r.numbers(inTopic, 2000, 100)
	eventually(t, "two share", func() bool { return owned(a, Running) == 3 && owned(b, Running) == 3 })
	r.numbers(inTopic, 2000, 100)
	c := start(t, cfg)
	eventually(t, "three share", func() bool { return owned(a, Running) == 2 && owned(b, Running) == 2 && owned(c, Running) == 2 })
	r.numbers(inTopic, 2000, 100)
	a.stop()
	r.numbers(inTopic, 2000, 100)
	eventually(t, "the others take over", func() bool { return owned(b, Running) == 3 && owned(c, Running) == 3 })
	r.drained()
	b.stop()
	c.stop()
	if repeated := r.check(); repeated > 0 {
		t.Errorf("%d outputs were sent twice, without any failure", repeated)
	}
	r.states(inTopic)
}

// While Redis is away nothing is skipped or committed and the member stays in
// the group; then it goes on by itself.
func TestConsumerRedisDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	r.numbers(inTopic, 300, 20)
	cfg := r.config()
	cfg.MaxBatchRecords = 200
	c := start(t, cfg)
	r.drained()
	before, err := r.broker.WaitGroup(t.Context(), testGroup, 1)
	if err != nil {
		t.Fatal(err)
	}
	r.redis.Close()
	r.numbers(inTopic, 900, 20)
	eventually(t, "a partition waits", func() bool { return owned(c, Waiting) > 0 })
	// Three times the session: the member stays.
	watch, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	<-watch.Done()
	after, err := r.broker.WaitGroup(t.Context(), testGroup, 1)
	if err != nil {
		t.Fatal(err)
	}
	if after.Generation != before.Generation || after.Members[0].ID != before.Members[0].ID {
		t.Errorf("the member left the group: %+v, before %+v", after, before)
	}
	for p, o := range before.Commits[inTopic] {
		if got := after.Commits[inTopic][p]; got != o {
			t.Errorf("partition %d is committed up to %d while Redis is away, before %d", p, got.Offset, o.Offset)
		}
	}
	if err := r.redis.Restart(); err != nil {
		t.Fatal(err)
	}
	r.drained()
	eventually(t, "all run", func() bool { return owned(c, Running) == 3 })
	c.stop()
	r.check()
	r.states(inTopic)
}

// A consumer that starts while Redis and Kafka are away waits for them.
func TestConsumerStartsWithoutServices(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.numbers(inTopic, 100, 10)
	cfg := r.config()
	r.redis.Close()
	if err := r.broker.NetworkDown(true); err != nil {
		t.Fatal(err)
	}
	c := start(t, cfg)
	const waits = "the consumer waits for its services"
	eventually(t, "it waits for Kafka", func() bool { return r.logged(waits) == 1 })
	if err := r.broker.NetworkDown(false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it waits for Redis", func() bool { return r.logged(waits) == 2 })
	if err := r.redis.Restart(); err != nil {
		t.Fatal(err)
	}
	r.drained()
	c.stop()
	r.check()
}

// A client that has stopped to fetch, without an error, is built anew.
func TestConsumerStalled(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbers(inTopic, 10, 5)
	c := start(t, r.config(), func(c *Consumer) { c.idle, c.looks = 20*time.Millisecond, 50*time.Millisecond })
	r.drained()
	const anew = "the client is built anew"
	stop, err := r.broker.Control(kmsg.Fetch, func(call *embedded.Call) (kmsg.Response, error, bool) {
		req := call.Request.(*kmsg.FetchRequest)
		if req.SessionEpoch == -1 || r.logged(anew) > 0 {
			return nil, nil, false // the consumer's own question is no part of a session of the client
		}
		resp := call.Answer().(*kmsg.FetchResponse)
		resp.SessionID = req.SessionID
		return resp, nil, true
	})
	if err != nil {
		t.Fatal(err)
	}
	r.numbers(inTopic, 10, 5)
	eventually(t, anew, func() bool { return r.logged(anew) == 1 })
	stop()
	r.drained()
	c.stop()
	r.check()
	r.states(inTopic)
}

// Kafka that is away for some time is waited for.
func TestConsumerKafkaDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	r.numbers(inTopic, 300, 20)
	cfg := r.config()
	var once sync.Once
	down := make(chan struct{})
	c := start(t, cfg, func(c *Consumer) {
		c.at = func(s step, _ []topicPartition) error {
			if s == stepApply { // produce and commit find nobody
				once.Do(func() {
					if err := r.broker.NetworkDown(true); err != nil {
						t.Error(err)
					}
					close(down)
				})
			}
			return nil
		}
	})
	<-down
	eventually(t, "partitions wait", func() bool { return r.logged("partition waits") > 0 })
	if err := r.broker.NetworkDown(false); err != nil {
		t.Fatal(err)
	}
	r.numbers(inTopic, 300, 20)
	r.drained()
	c.stop()
	r.check()
	r.states(inTopic)
}

// copied is a copy of all that Redis holds.
func (r *rig) copied() (restore func()) {
	hashes, sets, lists, values := map[string]map[string]string{}, map[string][]string{}, map[string][]string{}, map[string]string{}
	for _, key := range r.redis.Keys() {
		switch kind := r.redis.DB(0).Type(key); kind {
		case "hash":
			fields, err := r.redis.HKeys(key)
			if err != nil {
				r.t.Fatal(err)
			}
			hashes[key] = map[string]string{}
			for _, f := range fields {
				hashes[key][f] = r.redis.HGet(key, f)
			}
		case "set":
			sets[key], _ = r.redis.Members(key)
		case "list":
			lists[key], _ = r.redis.List(key)
		case "string":
			values[key], _ = r.redis.Get(key)
		default:
			r.t.Fatalf("key %s is a %s", key, kind)
		}
	}
	return func() {
		r.redis.FlushAll()
		for key, fields := range hashes {
			for f, v := range fields {
				r.redis.HSet(key, f, v)
			}
		}
		for key, v := range values {
			if err := r.redis.Set(key, v); err != nil {
				r.t.Fatal(err)
			}
		}
		for key, members := range sets {
			if _, err := r.redis.SetAdd(key, members...); err != nil {
				r.t.Fatal(err)
			}
		}
		for key, list := range lists {
			if _, err := r.redis.Push(key, list...); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

// Redis that comes back with an old copy of its data is found out, the
// partitions are read again from where it stands, and the states are right.
func TestConsumerRegressed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	r.numbers(inTopic, 300, 20)
	var m metric.Memory
	cfg := r.config()
	cfg.Metrics = &m
	c := start(t, cfg)
	r.drained()
	restore := r.copied()
	r.numbers(inTopic, 600, 20)
	r.drained()
	restore()
	r.numbers(inTopic, 100, 20)
	r.drained()
	for p := range 3 {
		// Once when a batch is refused, once when the claim starts behind the commit.
		if n := m.Sum(metric.FenceRegressions, metric.L(metric.LabelPartition, strconv.Itoa(p))); n == 0 {
			t.Errorf("partition %d: no regression counted", p)
		}
	}
	c.stop()
	if repeated := r.check(); repeated < 500 {
		t.Errorf("%d outputs were sent a second time, want those of about 600 records", repeated)
	}
	r.states(inTopic)
}

// When the records that Redis has forgotten are gone from the log, the partition
// stops and nothing is skipped; the others go on.
func TestConsumerRegressedBehindTheLog(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.numbers(inTopic, 100, 20)
	c := start(t, r.config())
	r.drained()
	restore := r.copied()
	r.numbers(inTopic, 200, 20)
	r.drained()
	info, err := r.broker.Partition(inTopic, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.broker.DeleteRecords(t.Context(), inTopic, 0, info.End); err != nil {
		t.Fatal(err)
	}
	restore()
	r.numbers(inTopic, 100, 20)
	eventually(t, "one partition stops and the other one runs", func() bool { return owned(c, Stopped) == 1 && owned(c, Running) == 1 })
	var stopped PartitionStatus
	for _, s := range c.c.Status() {
		if s.State == Stopped {
			stopped = s
		}
	}
	if stopped.Partition != 0 || stopped.Error == "" {
		t.Errorf("stopped: %+v", stopped)
	}
	eventually(t, "the other one is drained", func() bool {
		g, err := r.broker.Group(testGroup)
		if err != nil {
			t.Fatal(err)
		}
		other, err := r.broker.Partition(inTopic, 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := g.Commits[inTopic][0].Offset; got != info.End {
			t.Fatalf("partition 0 is committed up to %d, it was %d when it stopped", got, info.End)
		}
		return g.Commits[inTopic][1].Offset == other.End
	})
	c.stop()
}

// Redis that has lost everything ends the consumer: to begin anew at the
// committed offset would make wrong states.
func TestConsumerFlushed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.numbers(inTopic, 100, 20)
	c := start(t, r.config())
	r.drained()
	r.redis.FlushAll()
	r.numbers(inTopic, 100, 20)
	if err := c.wait(); !errors.Is(err, ErrMissing) {
		t.Errorf("Run returned %v, want ErrMissing", err)
	}
}

// A pending window that is smaller than what was fetched is committed in
// between.
func TestConsumerWindowFull(t *testing.T) {
	t.Parallel()
	for _, room := range []int{1, 7} {
		t.Run(fmt.Sprint(room), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 2)
			r.numbers(inTopic, 200, 10)
			cfg := r.config()
			cfg.Fence.MaxWindow = room
			crash := start(t, cfg, func(c *Consumer) {
				n := 0
				c.at = func(s step, _ []topicPartition) error {
					if n++; n == 20 {
						return errCrash
					}
					return nil
				}
			})
			if err := crash.wait(); !errors.Is(err, errCrash) {
				t.Fatal(err)
			}
			c := start(t, cfg)
			r.drained()
			c.stop()
			r.check()
			r.states(inTopic)
		})
	}
}

// Topics have states of their own, also for equal keys.
func TestConsumerTopics(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, "second", "third")
	for _, topic := range []string{inTopic, "second", "third"} {
		r.numbers(topic, 200, 10)
	}
	cfg := r.config()
	cfg.Topics = []string{inTopic, "second", "third"}
	c := start(t, cfg)
	r.drained(cfg.Topics...)
	if s := c.c.Status(); len(s) != 6 || !slices.IsSortedFunc(s, func(a, b PartitionStatus) int {
		return slices.Compare([]string{a.Topic, fmt.Sprint(a.Partition)}, []string{b.Topic, fmt.Sprint(b.Partition)})
	}) {
		t.Errorf("status: %+v", s)
	}
	c.stop()
	if repeated := r.check(cfg.Topics...); repeated > 0 {
		t.Errorf("%d outputs were sent twice", repeated)
	}
	for _, topic := range cfg.Topics {
		r.states(topic)
	}
}
