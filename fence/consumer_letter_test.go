package fence

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/metric"
)

// badRecords are one of each kind, for one partition, among good ones.
func badRecords() (records []*kgo.Record, want map[string]Reason) {
	add := func(key, value string, reason Reason) {
		r := &kgo.Record{Topic: inTopic, Value: []byte(value), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("1")}, {Key: "h", Value: nil}}, Timestamp: time.UnixMilli(1_700_000_000_000)}
		if key != "" {
			r.Key = []byte(key)
		}
		if reason != "" {
			if want == nil {
				want = map[string]Reason{}
			}
			want[strconv.Itoa(len(records))] = reason
		}
		records = append(records, r)
	}
	big := strconv.FormatInt(math.MaxInt64, 10)
	add("a", "1", "")
	add("a", "no number", HandlerFailed)
	add("", "2", NoKey)
	add("a", "2", "")
	add("b", big, "")
	add("b", "1", NotApplicable) // overflow
	add("b", "-1", "")
	add("a", "panic", HandlerPanicked)
	add("a", "3", "")
	add("a", "1000", OutputFailed)
	add("a", "1001", HandlerPanicked) // in Output
	add("b", "1", "")
	return records, want
}

func (r *rig) letterConfig() ConsumerConfig {
	cfg := r.config()
	cfg.DeadLetterTopic = deadTopic
	cfg.Handle = func(m *Message) (Op, error) {
		if string(m.Value) == "panic" {
			panic("of the test")
		}
		return addValue(m)
	}
	cfg.Output = func(m *Message, after After) ([]Output, error) {
		switch string(m.Value) {
		case "1000":
			return nil, errors.New("no output for 1000")
		case "1001":
			panic("of the test")
		}
		return sumOf(m, after)
	}
	return cfg
}

func header(r *kgo.Record, key string) string {
	for _, h := range slices.Backward(r.Headers) {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// What cannot be applied goes to the dead-letter topic as it came, with where it
// came from and why, and the records around it are applied; also when the
// consumer dies before the letters are sent.
func TestConsumerDeadLetters(t *testing.T) {
	t.Parallel()
	for _, crash := range []step{"", stepApply, stepProduce} {
		t.Run("crash "+string(crash), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			records, want := badRecords()
			r.produce(records...)
			var m metric.Memory
			cfg := r.letterConfig()
			cfg.Metrics = &m
			if crash != "" {
				c := start(t, cfg, diesAt(crash, 1))
				if err := c.wait(); !errors.Is(err, errCrash) {
					t.Fatal(err)
				}
			}
			c := start(t, cfg)
			r.drained()
			for _, reason := range want {
				if n := m.Sum(metric.FenceDeadLetters, metric.L(metric.LabelTopic, inTopic), metric.L(metric.LabelReason, string(reason))); n < 1 {
					t.Errorf("%v dead letters counted for %q", n, reason)
				}
			}
			c.stop()
			got := map[string]Reason{}
			for _, l := range r.read(deadTopic) {
				offset := header(l, HeaderOffset)
				got[offset] = Reason(header(l, HeaderReason))
				n, err := strconv.Atoi(offset)
				if err != nil {
					t.Fatal(err)
				}
				from := records[n]
				if string(l.Key) != string(from.Key) || (l.Key == nil) != (from.Key == nil) || string(l.Value) != string(from.Value) || !l.Timestamp.Equal(from.Timestamp) {
					t.Errorf("dead letter of offset %d: %v, the record is %v", n, l, from)
				}
				if len(l.Headers) < 2 || l.Headers[0].Key != "h" || string(l.Headers[0].Value) != "1" || l.Headers[1].Key != "h" {
					t.Errorf("dead letter of offset %d: the original headers are not in front: %v", n, l.Headers)
				}
				if header(l, HeaderTopic) != inTopic || header(l, HeaderPartition) != "0" || header(l, HeaderVerdict) != "dlq" || header(l, HeaderTimestamp) != "1700000000000" {
					t.Errorf("dead letter of offset %d: headers %v", n, l.Headers)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("dead letters %v\nwant %v", got, want)
			}
			outs := map[string]bool{}
			for _, o := range r.read(outTopic) {
				outs[string(o.Value)] = true
			}
			top := strconv.FormatInt(math.MaxInt64, 10)
			for _, w := range []string{"in/0/0=1", "in/0/3=3", "in/0/4=" + top, "in/0/6=9223372036854775806", "in/0/8=6", "in/0/11=" + top} {
				if !outs[w] {
					t.Errorf("output %s is missing, there are %v", w, outs)
				}
				delete(outs, w)
			}
			if len(outs) > 0 {
				t.Errorf("outputs that nothing should have made: %v", outs)
			}
		})
	}
}

// The same for states that are computed on the client.
func TestConsumerDeadLettersOfCompute(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	records, want := badRecords()
	r.produce(records...)
	cfg := computed(r.letterConfig())
	inner := cfg.Compute
	cfg.Compute = func(m *Message, state []byte, exists bool) (Change, error) {
		if string(m.Value) == "panic" {
			panic("of the test")
		}
		if string(m.Key) == "b" && m.Offset == 5 {
			return Change{Value: make([]byte, MaxValue+1)}, nil
		}
		return inner(m, state, exists)
	}
	c := start(t, cfg)
	r.drained()
	c.stop()
	got := map[string]Reason{}
	for _, l := range r.read(deadTopic) {
		got[header(l, HeaderOffset)] = Reason(header(l, HeaderReason))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("dead letters %v\nwant %v", got, want)
	}
}

// Without a topic for dead letters the first record that cannot be applied ends
// the consumer, with all before it committed and nothing behind; the program
// that can process it goes on there.
func TestConsumerStops(t *testing.T) {
	t.Parallel()
	for _, form := range []struct {
		name string
		of   func(ConsumerConfig) ConsumerConfig
	}{{"handle", func(c ConsumerConfig) ConsumerConfig { return c }}, {"compute", computed}} {
		for name, bad := range map[string]struct {
			record *kgo.Record
			reason Reason
		}{
			"handler":       {&kgo.Record{Topic: inTopic, Key: []byte("a"), Value: []byte("x")}, HandlerFailed},
			"no key":        {&kgo.Record{Topic: inTopic, Value: []byte("1")}, NoKey},
			"not an output": {&kgo.Record{Topic: inTopic, Key: []byte("a"), Value: []byte("666")}, OutputFailed},
		} {
			t.Run(form.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 1)
				good := func(v string) *kgo.Record { return &kgo.Record{Topic: inTopic, Key: []byte("a"), Value: []byte(v)} }
				r.produce(good("1"), good("2"), bad.record, good("4"))
				cfg := form.of(r.config())
				cfg.Output = func(m *Message, after After) ([]Output, error) {
					if string(m.Value) == "666" {
						return nil, errors.New("not this one")
					}
					return sumOf(m, after)
				}
				for range 2 { // it does not get past it the second time either
					c := start(t, cfg)
					var e *MessageError
					if err := c.wait(); !errors.As(err, &e) || e.Topic != inTopic || e.Partition != 0 || e.Offset != 2 || e.Reason != bad.reason {
						t.Fatalf("Run returned %v", err)
					}
					g, err := r.broker.Group(testGroup)
					if err != nil {
						t.Fatal(err)
					}
					if o := g.Commits[inTopic][0].Offset; o != 2 {
						t.Fatalf("committed up to %d, want 2", o)
					}
				}
				// A new version knows what to do with it.
				if bad.reason == NoKey {
					cfg.DeadLetterTopic = deadTopic
				}
				if h := cfg.Handle; h != nil {
					cfg.Handle = func(m *Message) (Op, error) {
						if string(m.Value) == "x" {
							return Add(100), nil
						}
						return h(m)
					}
				}
				if f := cfg.Compute; f != nil {
					cfg.Compute = func(m *Message, state []byte, exists bool) (Change, error) {
						if string(m.Value) == "x" {
							old, err := DecodeInt(state)
							return Change{Value: strconv.AppendInt(nil, old+100, 10)}, err
						}
						return f(m, state, exists)
					}
				}
				cfg.Output = sumOf
				c := start(t, cfg)
				r.drained()
				c.stop()
				last := map[Reason]string{HandlerFailed: "in/0/3=107", NoKey: "in/0/3=7", OutputFailed: "in/0/3=673"}[bad.reason]
				outs := r.read(outTopic)
				if !slices.ContainsFunc(outs, func(o *kgo.Record) bool { return string(o.Value) == last }) {
					t.Errorf("no output %s", last)
				}
			})
		}
	}
}

// A dead letter that cannot be written stops its partition: nothing is committed
// past it, the others go on, and it goes on by itself when the topic is there.
func TestConsumerDeadLetterTopicMissing(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.numbers(inTopic, 50, 20)
	before, err := r.broker.Partition(inTopic, 0)
	if err != nil {
		t.Fatal(err)
	}
	key := keyOn(t, 0, 2)
	r.produce(&kgo.Record{Topic: inTopic, Key: key, Value: []byte("no number")})
	cfg := r.config()
	cfg.DeadLetterTopic = "later"
	cfg.Kafka = append(cfg.Kafka, kgo.UnknownTopicRetries(1))
	c := start(t, cfg)
	eventually(t, "one waits and one runs", func() bool {
		return owned(c, Waiting) == 1 && r.logged("partition waits") > 0
	})
	r.numbers(inTopic, 50, 20)
	committed := func(p int32) int64 {
		g, err := r.broker.Group(testGroup)
		if err != nil {
			t.Fatal(err)
		}
		return g.Commits[inTopic][p].Offset
	}
	eventually(t, "the other one is drained", func() bool {
		info, err := r.broker.Partition(inTopic, 1)
		if err != nil {
			t.Fatal(err)
		}
		return committed(1) == info.End
	})
	if o := committed(0); o > before.End {
		t.Errorf("partition 0 is committed up to %d, past the dead letter at %d", o, before.End)
	}
	r.topic("later", 1)
	r.drained()
	c.stop()
	if l := r.read("later"); len(l) == 0 || string(l[0].Key) != string(key) {
		t.Errorf("dead letters: %v", l)
	}
	r.check()
}

// keyOn is a key that belongs on a partition.
func keyOn(t *testing.T, partition, n int) []byte {
	t.Helper()
	for i := range 1000 {
		key := fmt.Appendf(nil, "on-%d-%d", partition, i)
		if Murmur2.Partition(key, n) == partition {
			return key
		}
	}
	t.Fatal("no key")
	return nil
}

// A key on a partition where it does not belong is a dead letter, unless the
// topic has got more partitions meanwhile: then the consumer looks again.
func TestConsumerPartitionsGrow(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.numbers(inTopic, 200, 40)
	cfg := r.config()
	cfg.DeadLetterTopic = deadTopic
	// The client does not find out by itself.
	cfg.Kafka = append(cfg.Kafka, kgo.MetadataMaxAge(time.Hour))
	c := start(t, cfg)
	r.drained()
	if err := r.broker.AddPartitions(t.Context(), inTopic, 5); err != nil {
		t.Fatal(err)
	}
	// The producer is new and knows all of them, so that keys change partitions
	// before the consumers notice.
	var err error
	if r.client, err = kgo.NewClient(r.broker.ClientOptions()...); err != nil {
		t.Fatal(err)
	}
	defer r.client.Close()
	r.numbers(inTopic, 300, 40)
	r.drained()
	eventually(t, "five partitions run", func() bool { return owned(c, Running) == 5 })
	r.numbers(inTopic, 300, 40)
	stray := keyOn(t, 3, 5)
	manual, err := kgo.NewClient(append(r.broker.ClientOptions(), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer manual.Close()
	if err := manual.ProduceSync(t.Context(), &kgo.Record{Topic: inTopic, Partition: 4, Key: stray, Value: []byte("1")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	r.drained()
	c.stop()
	r.states(inTopic)
	letters := r.read(deadTopic)
	if len(letters) != 1 || string(letters[0].Key) != string(stray) || header(letters[0], HeaderReason) != string(WrongPartition) {
		for _, l := range letters {
			t.Errorf("dead letter %s: %s, %s", l.Key, header(l, HeaderReason), header(l, HeaderError))
		}
		t.Fatalf("%d dead letters, want that of the key on the wrong partition", len(letters))
	}
}

// Transactions leave markers behind that are no records: what is committed goes
// past them, and records of aborted ones have no effect, also where a claim
// begins.
func TestConsumerMarkers(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	tx, err := kgo.NewClient(append(r.broker.ClientOptions(), kgo.TransactionalID("tx"))...)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Close()
	transaction := func(end kgo.TransactionEndTry) {
		t.Helper()
		if err := tx.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		rec := &kgo.Record{Topic: inTopic, Key: []byte("a"), Value: []byte("1")}
		if err := tx.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := tx.EndTransaction(t.Context(), end); err != nil {
			t.Fatal(err)
		}
		if end == kgo.TryCommit {
			r.sent[inTopic] = append(r.sent[inTopic], rec)
		}
	}
	transaction(kgo.TryAbort)
	transaction(kgo.TryCommit)
	c := start(t, r.config())
	r.drained() // up to the end, behind the marker
	transaction(kgo.TryCommit)
	transaction(kgo.TryAbort)
	r.drained()
	transaction(kgo.TryAbort)
	r.drained()
	c.stop()
	if repeated := r.check(); repeated > 0 {
		t.Errorf("%d outputs were sent twice", repeated)
	}
}

// What Output gets for a record is the same when it is read again, whatever the
// Op.
func TestConsumerAfter(t *testing.T) {
	t.Parallel()
	reducer := Reducer{Name: "last", Version: 1, Source: "return args[1], 'was ' .. (state or 'nothing')"}
	ops := map[string]func(v string) Op{
		"keep":   func(string) Op { return Keep() },
		"set":    func(v string) Op { return Set([]byte(v)) },
		"empty":  func(string) Op { return Set(nil) },
		"delete": func(string) Op { return Delete() },
		"add":    func(string) Op { return Add(3) },
		"sum":    func(string) Op { return Sum(3) },
		"append": func(v string) Op { return Append([]byte(v), 3) },
		"member": func(v string) Op { return SetAdd(v) },
		"reduce": func(v string) Op { return Reduce("last", v) },
	}
	show := func(m *Message, after After) ([]Output, error) {
		if after.Exists != (after.State != nil) || after.Output != nil && after.Exists {
			t.Errorf("after of %s: %+v", m.Key, after)
		}
		return []Output{{Topic: outTopic, Key: m.Key, Value: fmt.Appendf(nil, "%d %q %v %q", m.Offset, after.State, after.Exists, after.Output)}}, nil
	}
	for _, compute := range []bool{false, true} {
		t.Run(fmt.Sprint("compute ", compute), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			n := 0
			for name := range ops {
				for i := range 4 {
					r.produce(&kgo.Record{Topic: inTopic, Key: []byte(name), Value: strconv.AppendInt(nil, int64(i/2), 10)})
					n++
				}
			}
			cfg := r.config()
			cfg.Output = show
			cfg.Fence.Reducers = []Reducer{reducer}
			cfg.Handle = func(m *Message) (Op, error) { return ops[string(m.Key)](string(m.Value)), nil }
			if compute {
				cfg.Handle = nil
				cfg.Compute = func(m *Message, state []byte, exists bool) (Change, error) {
					switch m.Offset % 4 {
					case 0:
						return Change{Value: append(slices.Clone(state), m.Value...)}, nil
					case 1:
						return Change{Value: m.Value, Output: fmt.Appendf(nil, "of %s", state)}, nil
					case 2:
						return Change{Value: []byte{}, Output: []byte{}}, nil
					}
					return Change{}, nil
				}
			}
			crash := start(t, cfg, diesAt(stepFlush, 1))
			if err := crash.wait(); !errors.Is(err, errCrash) {
				t.Fatal(err)
			}
			first := len(r.read(outTopic))
			c := start(t, cfg)
			r.drained()
			c.stop()
			outs, distinct := r.read(outTopic), map[string]bool{}
			for _, o := range outs {
				distinct[string(o.Value)] = true
			}
			if len(distinct) != n || first == 0 || len(outs) != n+first {
				t.Errorf("%d records, %d outputs, of which %d differ; %d were sent before the crash", n, len(outs), len(distinct), first)
				for v := range distinct {
					t.Log(v)
				}
			}
		})
	}
}

// A consumer that is told to stop commits what is answered within its time, and
// nothing that is not.
func TestConsumerShutdown(t *testing.T) {
	t.Parallel()
	for _, answered := range []bool{true, false} {
		t.Run(fmt.Sprint("answered ", answered), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			var refused atomic.Int64
			release := make(chan struct{})
			if _, err := r.broker.Fault(faultOn(outTopic, &refused, release)); err != nil {
				t.Fatal(err)
			}
			r.numbers(inTopic, 10, 5)
			cfg := r.config()
			cfg.ShutdownTimeout = 500 * time.Millisecond
			if answered {
				cfg.ShutdownTimeout = testLimit
			}
			c := start(t, cfg)
			eventually(t, "outputs are under way", func() bool { return refused.Load() > 0 })
			c.cancel()
			if answered {
				close(release)
			}
			if err := c.wait(); err != nil {
				t.Fatal(err)
			}
			g, err := r.broker.Group(testGroup)
			if err != nil {
				t.Fatal(err)
			}
			want := int64(0)
			if answered {
				want = 10
			}
			if o := g.Commits[inTopic][0].Offset; o != want {
				t.Errorf("committed up to %d, want %d", o, want)
			}
			if len(g.Members) > 0 {
				t.Errorf("the group was not left: %v", g.Members)
			}
			if !answered {
				close(release)
				again := start(t, cfg)
				r.drained()
				again.stop()
			}
			r.check()
		})
	}
}

// Outputs that Kafka does not answer to hold up their partition and no other.
func TestConsumerSlowOutput(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.topic("slow", 1)
	var slow atomic.Int64
	release := make(chan struct{})
	if _, err := r.broker.Fault(faultOn("slow", &slow, release)); err != nil {
		t.Fatal(err)
	}
	cfg := r.config()
	cfg.Output = func(m *Message, after After) ([]Output, error) {
		out, err := sumOf(m, after)
		if m.Partition == 0 {
			out[0].Topic = "slow"
		}
		return out, err
	}
	r.numbers(inTopic, 100, 20)
	c := start(t, cfg)
	eventually(t, "one waits", func() bool { return owned(c, Waiting) == 1 })
	r.numbers(inTopic, 100, 20)
	eventually(t, "the other one is drained", func() bool {
		info, err := r.broker.Partition(inTopic, 1)
		if err != nil {
			t.Fatal(err)
		}
		g, err := r.broker.Group(testGroup)
		if err != nil {
			t.Fatal(err)
		}
		if o := g.Commits[inTopic][0].Offset; o != 0 {
			t.Fatalf("partition 0 is committed up to %d, and no output of it was answered", o)
		}
		return g.Commits[inTopic][1].Offset == info.End
	})
	close(release)
	r.drained()
	c.stop()
	got := map[string]int{}
	for _, o := range append(r.read(outTopic), r.read("slow")...) {
		got[string(o.Value)]++
	}
	for want := range r.wanted(inTopic) {
		if got[want] == 0 {
			t.Errorf("output %s is missing", want)
		}
		delete(got, want)
	}
	if len(got) > 0 {
		t.Errorf("outputs that nothing should have made: %v", got)
	}
}

// The consumer ends, with what to do, when a topic is not there, is another one
// than before, or the states do not fit.
func TestConsumerGivesUp(t *testing.T) {
	t.Parallel()
	t.Run("no topic", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, 1)
		cfg := r.config()
		cfg.Topics = []string{"nowhere"}
		if err := start(t, cfg).wait(); !errors.Is(err, kerr.UnknownTopicOrPartition) || !strings.Contains(err.Error(), "create it") {
			t.Errorf("Run returned %v", err)
		}
	})
	t.Run("topic created anew", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, 1)
		r.numbers(inTopic, 10, 5)
		c := start(t, r.config())
		r.drained()
		c.stop()
		if err := r.broker.DeleteTopic(t.Context(), inTopic); err != nil {
			t.Fatal(err)
		}
		r.topic(inTopic, 1)
		if err := start(t, r.config()).wait(); !errors.Is(err, ErrTopicChanged) {
			t.Errorf("Run returned %v", err)
		}
	})
	t.Run("another partitioner", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, 1)
		r.numbers(inTopic, 10, 5)
		c := start(t, r.config())
		r.drained()
		c.stop()
		cfg := r.config()
		cfg.Fence.Partitioner = CRC32
		if err := start(t, cfg).wait(); !errors.Is(err, ErrLayout) {
			t.Errorf("Run returned %v", err)
		}
	})
}

// A group without offsets begins at the end when it is told to, and stays there
// when it dies before its first commit.
func TestConsumerStartsAtEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbers(inTopic, 10, 5)
	r.sent[inTopic] = nil
	cfg := r.config()
	cfg.StartAtEnd = true
	c := start(t, cfg, func(c *Consumer) {
		c.at = func(s step, _ []topicPartition) error { return errCrash }
	})
	eventually(t, "it is claimed", func() bool { return owned(c, Running) == 1 })
	r.produce(&kgo.Record{Topic: inTopic, Key: []byte("a"), Value: []byte("7")})
	if err := c.wait(); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	r.produce(&kgo.Record{Topic: inTopic, Key: []byte("a"), Value: []byte("8")})
	c = start(t, cfg)
	r.drained()
	c.stop()
	r.check()
}

func TestConsumerConfig(t *testing.T) {
	t.Parallel()
	good := ConsumerConfig{Kafka: []kgo.Opt{kgo.SeedBrokers("localhost:1")}, Group: "g", Topics: []string{"t"},
		Fence: Options{URL: "redis://localhost"}, Handle: addValue}
	for name, tc := range map[string]struct {
		change func(*ConsumerConfig)
		says   string
	}{
		"no group":           {func(c *ConsumerConfig) { c.Group = "" }, "Group is empty"},
		"no topics":          {func(c *ConsumerConfig) { c.Topics = nil }, "Topics is empty"},
		"a topic twice":      {func(c *ConsumerConfig) { c.Topics = []string{"t", "t"} }, "twice"},
		"letters come back":  {func(c *ConsumerConfig) { c.DeadLetterTopic = "t" }, "come back for ever"},
		"no handler":         {func(c *ConsumerConfig) { c.Handle = nil }, "Handle and Compute are nil"},
		"two handlers":       {func(c *ConsumerConfig) { c.Compute = computed(*c).Compute }, "both set"},
		"lost outputs":       {func(c *ConsumerConfig) { c.Fence.NoWindow, c.Output = true, sumOf }, "NoWindow"},
		"lost letters":       {func(c *ConsumerConfig) { c.Fence.NoWindow, c.DeadLetterTopic = true, "d" }, "NoWindow"},
		"fence's topic":      {func(c *ConsumerConfig) { c.Fence.Topic = "t" }, "filled in by the consumer"},
		"negative":           {func(c *ConsumerConfig) { c.MaxConcurrency = -1 }, "MaxConcurrency is negative"},
		"too many":           {func(c *ConsumerConfig) { c.MaxBatchRecords = MaxBatch + 1 }, "at most 100000"},
		"too large":          {func(c *ConsumerConfig) { c.MaxBatchBytes = 1 << 30 }, "MaxBatchBytes"},
		"negative time":      {func(c *ConsumerConfig) { c.ShutdownTimeout = -1 }, "ShutdownTimeout is negative"},
		"no URL":             {func(c *ConsumerConfig) { c.Fence.URL = "" }, "Options.URL"},
		"group is no name":   {func(c *ConsumerConfig) { c.Group = "a:b" }, "Fence.Name defaults to Group"},
		"options of a share": {func(c *ConsumerConfig) { c.Kafka = append(c.Kafka, kgo.ShareGroup("s")) }, "Kafka"},
		"transactions":       {func(c *ConsumerConfig) { c.Kafka = append(c.Kafka, kgo.TransactionalID("x")) }, "holds a kgo.TransactionalID"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := good
			cfg.Kafka = slices.Clone(good.Kafka)
			tc.change(&cfg)
			if _, err := NewConsumer(cfg); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("NewConsumer: %v, want %q", err, tc.says)
			}
		})
	}
	for _, o := range []kgo.Opt{kgo.DisableIdempotentWrite(), kgo.AllowIdempotentProduceCancellation(), kgo.InstanceID("i")} {
		cfg := good
		cfg.Kafka = append(slices.Clone(good.Kafka), o)
		if _, err := NewConsumer(cfg); err != nil {
			t.Errorf("a client without transactions: %v", err)
		}
	}
	c, err := NewConsumer(good)
	if err != nil {
		t.Fatal(err)
	}
	if c.cfg.Fence.Name != "g" || c.cfg.MaxBatchRecords != DefaultMaxBatchRecords || c.cfg.MaxConcurrency != DefaultMaxConcurrency ||
		c.cfg.MaxBatchBytes != DefaultMaxBatchBytes || c.cfg.ShutdownTimeout != DefaultShutdownTimeout {
		t.Errorf("defaults: %+v", c.cfg)
	}
	if len(c.Status()) != 0 {
		t.Errorf("status before Run: %v", c.Status())
	}
}

// faultOn refuses what is produced to a topic with an error that is retried,
// until release is closed.
func faultOn(topic string, hits *atomic.Int64, release <-chan struct{}) (f embedded.Fault) {
	f.Keys, f.Topic, f.Code, f.Count = []kmsg.Key{kmsg.Produce}, topic, kerr.NotEnoughReplicas.Code, -1
	f.When = func(kmsg.Request) bool {
		select {
		case <-release:
			return false
		default:
			hits.Add(1)
			return true
		}
	}
	return f
}
