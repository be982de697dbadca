package weirtest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/metric"
	"github.com/weirstreams/weir/serde"
)

// TestSituationD2: the input was placed by another hash than the library's, and
// the disk is lost. The changelog had been hashed anew, so that most counts began
// at 1 again. The changelog partition is that of the task, and all go on.
func TestSituationD2(t *testing.T) {
	t.Parallel()
	const partitions = 3
	for _, kind := range []string{"lost", "disk"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c := newCounter(t, partitions, stores[kind](t))
			place := map[string]int32{} // without a look at any hash
			round := func() {
				t.Helper()
				for i := range 30 {
					key := fmt.Sprint("k", i)
					place[key] = int32(i) % partitions
					c.sent[key]++
					c.in.To(place[key]).Send(key, "")
				}
			}
			round()
			strangers := 0
			for key := range place {
				if _, found := c.Table(c.table).Get(key); !found { // it looks where the hash says
					strangers++
				}
			}
			if strangers == 0 {
				t.Fatal("all keys are where their hash says: the test does not show what it should")
			}
			for _, r := range c.Changelog("counts") {
				if r.Marker == "" && r.Partition != place[string(r.Key)] {
					t.Errorf("key %s is in changelog partition %d, and its task has partition %d", r.Key, r.Partition, place[string(r.Key)])
				}
			}
			c.Crash()
			c.Instance(0).DropState()
			c.Start()
			round()
			c.check()
			for i := range 30 {
				if n, _ := c.out.Last(fmt.Sprint("k", i)); n != 2 {
					t.Errorf("the count of k%d is %d, want 2", i, n)
				}
			}
		})
	}
}

// pass hands records on as they are.
type pass struct {
	weir.ProcessorDefaults
	out *weir.Emitter[string, string]
}

func (p *pass) Init(_ *weir.Task, out *weir.Emitter[string, string]) error {
	p.out = out
	return nil
}

func (p *pass) Process(r weir.Record[string, string]) error {
	p.out.Emit(r)
	return nil
}

// TestSituationD4: records without a key come to an aggregation by key. It
// panicked, or they went to any partition. They are dropped and counted, in front
// of a repartition topic or not, and the rest is as it should be.
func TestSituationD4(t *testing.T) {
	t.Parallel()
	for name, repartitioned := range map[string]bool{"by key": false, "repartitioned": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := weir.NewBuilder()
			s := b.Stream(countsIn)
			if repartitioned {
				s = s.Process("pass", func() *pass { return &pass{} })
			}
			s.GroupByKey().Count("counts").ToStream().To(countsOut)
			topology, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			d := New(t, topology, Options{Partitions: map[string]int32{"in": 3, "out": 3}})
			in := d.Input(countsIn)
			for range 5 {
				in.SendRecord(weir.Record[string, string]{KeyNull: true, Value: "x"})
				in.Send("a", "x")
			}
			if got := d.Output(countsOut).ReadKeyValues(); len(got) != 5 || got[4] != (KeyValue[string, int64]{Key: "a", Value: 5}) {
				t.Errorf("outputs %v, want 1 to 5 of a", got)
			}
			if n := d.Dropped("null-key"); n != 5 {
				t.Errorf("%d null keys are counted as dropped, want 5", n)
			}
		})
	}
}

// TestSituationD11: two input topics with partitions of the same numbers. Their
// positions were one in watermarks and commits. They are kept apart: each topic
// has its own position, and the order of their timestamps is kept.
func TestSituationD11(t *testing.T) {
	t.Parallel()
	left, right := weir.NewTopic("left", serde.String, serde.String), weir.NewTopic("right", serde.String, serde.String)
	topology := build(t, func(b *weir.Builder) { b.Stream(left).Merge(b.Stream(right)).To(chainOut) })
	d := New(t, topology, Options{Store: Memory()})
	l, r := d.Input(left), d.Input(right)
	at := func(s int) time.Time { return defaultStart.Add(time.Duration(s) * time.Second) }
	var want []string
	say := func(what string) {
		t.Helper()
		var got []string
		for _, rec := range d.Output(chainOut).All() {
			got = append(got, rec.Value)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: outputs %v, want %v", what, got, want)
		}
		committed := d.sim.Committed("test")
		for topic, prefix := range map[string]string{"left": "l", "right": "r"} {
			n := int64(0)
			for _, w := range want {
				if strings.HasPrefix(w, prefix) {
					n++
				}
			}
			if o := committed[partitionOf(topic, 0)].Offset; o != n {
				t.Errorf("%s: the position of %s is %d, want %d", what, topic, o, n)
			}
		}
	}
	// Seven records on one side, two on the other, with the same offsets.
	d.Batch(func() {
		for i := range 7 {
			l.SendAt("k", fmt.Sprint("l", i), at(10*i))
		}
		r.SendAt("k", "r0", at(15))
		r.SendAt("k", "r1", at(45))
	})
	want = []string{"l0", "l1", "r0", "l2", "l3", "l4", "r1", "l5", "l6"}
	say("both")
	d.Crash()
	d.Start()
	say("after a crash")
	r.SendAt("k", "r2", at(100))
	want = append(want, "r2")
	say("right alone")
	d.CrashAt(BeforeCommit)
	l.SendAt("k", "l7", at(101))
	d.Start()
	want = append(want, "l7")
	say("left alone")
	d.Restart()
	say("after a restart")
}

// TestSituationE1: one value of a thousand cannot be decoded. The processor
// stopped for ever, whatever its policy said, or started again without end. The
// policy is obeyed: it stops with the place of the record and commits nothing of
// its batch, or there are 999 results and one dead letter with the bytes as they
// came and where they came from.
func TestSituationE1(t *testing.T) {
	t.Parallel()
	numbers := weir.NewTopic("in", serde.String, serde.Int64)
	run := func(opts Options) (*Driver, weir.Table[string, int64]) {
		b := weir.NewBuilder()
		table := b.Stream(numbers).GroupByKey().Count("counts")
		table.ToStream().To(countsOut)
		topology, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		d := New(t, topology, opts)
		d.Batch(func() {
			for i := range int64(1000) {
				value, err := serde.Int64.Append(nil, i)
				if err != nil {
					t.Fatal(err)
				}
				if i == 500 {
					value = value[:5]
				}
				d.Input(numbers).SendBytes([]byte("k"), value, weir.Header{Key: "h", Value: []byte("kept")})
			}
		})
		return d, table
	}
	outputs := func(d *Driver) (list []int64) {
		for _, r := range d.Output(countsOut).All() {
			list = append(list, r.Value)
		}
		return list
	}
	t.Run("stop", func(t *testing.T) {
		d, _ := run(Options{AllowFailure: true})
		in := d.Instance(0)
		for range 2 { // it stops there again, and nothing is lost or doubled in between
			var te *weir.TaskError
			if in.State() != Failed || !errors.As(in.Err(), &te) {
				t.Fatalf("the instance is %v: %v", in.State(), in.Err())
			}
			if te.Class != weir.DecodeError || te.Task != "0_0" || te.Topic != "in" || te.Partition != 0 || te.Offset != 500 {
				t.Errorf("error %+v, want one of decoding at in[0]@500", te)
			}
			if got := outputs(d); len(got) != 0 {
				t.Errorf("%d outputs, want none of the batch", len(got))
			}
			if at := d.sim.Committed("test")[partitionOf("in", 0)].Offset; at != 0 {
				t.Errorf("the offset %d is committed, want that of the beginning of the batch", at)
			}
			in.Start()
		}
	})
	t.Run("dead letter", func(t *testing.T) {
		d, table := run(Options{Config: weir.Config{DeadLetterTopic: "dead", OnError: func(*weir.TaskError) weir.Decision { return weir.DeadLetter }}})
		if got := outputs(d); !slices.Equal(got, upTo(999)) {
			t.Errorf("%d outputs, want 1 to 999", len(got))
		}
		if n, _ := d.Table(table).Get("k"); n != 999 {
			t.Errorf("the table has %d, want 999", n)
		}
		dead := slices.DeleteFunc(d.Raw("dead"), func(r RawRecord) bool { return r.Marker != "" })
		if len(dead) != 1 {
			t.Fatalf("%d dead letters, want 1", len(dead))
		}
		if r := dead[0]; string(r.Key) != "k" || string(r.Value) != "\x00\x00\x00\x00\x00" {
			t.Errorf("dead letter %q=%q, want the bytes as they came", r.Key, r.Value)
		}
		var got []string
		for _, h := range dead[0].Headers {
			got = append(got, h.Key+"="+string(h.Value))
		}
		want := []string{"h=kept", task.HeaderTopic + "=in", task.HeaderPartition + "=0", task.HeaderOffset + "=500",
			task.HeaderTimestamp + fmt.Sprint("=", defaultStart.UnixMilli()), task.HeaderTask + "=0_0", task.HeaderNode + "=STREAM-SOURCE-0000000000",
			task.HeaderClass + "=decode"}
		if len(got) != len(want)+1 || !slices.Equal(got[:len(want)], want) || !strings.HasPrefix(got[len(want)], task.HeaderError+"=value: ") {
			t.Errorf("headers %q, want %q and the text of the error", got, want)
		}
		if n := d.Metrics().Sum(metric.DeadLetters); n != 1 {
			t.Errorf("%v dead letters are counted, want 1", n)
		}
	})
}

// TestSituationE3: an error, and a panic, of user code and not of decoding. The
// dead-letter policy did not see it, and the task died. The policy covers both; of
// what the record has done before it failed, nothing stays.
func TestSituationE3(t *testing.T) {
	t.Parallel()
	b := weir.NewBuilder()
	table := b.Stream(chainIn).GroupByKey().Count("counts")
	table.ToStream().TryMapValues(func(k string, n int64) (string, error) {
		switch k {
		case "bad":
			return "", errors.New("no such user")
		case "worse":
			panic("out of cheese")
		}
		return fmt.Sprint(n), nil
	}).Serdes(serde.String, serde.String).To(chainOut)
	topology, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	dead := weir.NewTopic("dead", serde.String, serde.String)
	var classes []weir.ErrorClass
	d := New(t, topology, Options{Config: weir.Config{DeadLetterTopic: "dead", OnError: func(e *weir.TaskError) weir.Decision {
		classes = append(classes, e.Class)
		return weir.DeadLetter
	}}})
	in := d.Input(chainIn)
	for _, key := range []string{"a", "bad", "b", "worse", "a"} {
		in.Send(key, "v-"+key)
	}
	if got, want := d.Output(chainOut).ReadKeyValues(), []KeyValue[string, string]{{Key: "a", Value: "1"}, {Key: "b", Value: "1"}, {Key: "a", Value: "2"}}; !slices.Equal(got, want) {
		t.Errorf("outputs %v, want %v", got, want)
	}
	if got, want := d.Output(dead).ReadKeyValues(), []KeyValue[string, string]{{Key: "bad", Value: "v-bad"}, {Key: "worse", Value: "v-worse"}}; !slices.Equal(got, want) {
		t.Errorf("dead letters %v, want %v", got, want)
	}
	if want := []weir.ErrorClass{weir.ProcessError, weir.ProcessError}; !slices.Equal(classes, want) {
		t.Errorf("errors of the classes %v, want %v", classes, want)
	}
	got := map[string]int64{}
	for _, e := range d.Table(table).Entries() {
		got[e.Key] = e.Value
	}
	if want := map[string]int64{"a": 2, "b": 1}; !maps.Equal(got, want) {
		t.Errorf("the table has %v, want %v", got, want)
	}
}

// TestSituationE5: a dead letter is written in a transaction that aborts. It
// stayed, or was there twice. It belongs to the transaction, as all the rest.
func TestSituationE5(t *testing.T) {
	t.Parallel()
	for _, p := range []Point{AfterProcess, AfterFlush, BeforeCommit, AfterCommit} {
		b := weir.NewBuilder()
		b.Stream(chainIn).TryMapValues(func(_, v string) (string, error) {
			if v == "bad" {
				return "", errors.New("it is bad")
			}
			return v, nil
		}).To(chainOut)
		topology, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		dead := weir.NewTopic("dead", serde.String, serde.String)
		d := New(t, topology, Options{Config: weir.Config{DeadLetterTopic: "dead", OnError: func(*weir.TaskError) weir.Decision { return weir.DeadLetter }}})
		in := d.Input(chainIn)
		d.CrashAt(p)
		d.Batch(func() {
			in.Send("a", "1")
			in.Send("b", "bad")
			in.Send("c", "3")
		})
		if s := d.Instance(0).State(); s != Crashed {
			t.Fatalf("%s: the instance is %v", p, s)
		}
		d.Start()
		if got, want := d.Output(dead).ReadKeyValues(), []KeyValue[string, string]{{Key: "b", Value: "bad"}}; !slices.Equal(got, want) {
			t.Errorf("%s: dead letters %v, want %v", p, got, want)
		}
		if got, want := d.Output(chainOut).ReadKeyValues(), []KeyValue[string, string]{{Key: "a", Value: "1"}, {Key: "c", Value: "3"}}; !slices.Equal(got, want) {
			t.Errorf("%s: outputs %v, want %v", p, got, want)
		}
		aborted := map[string]int{}
		for _, topic := range []string{"dead", "out"} {
			for _, r := range d.Raw(topic) {
				if r.Aborted {
					aborted[topic]++
				}
			}
		}
		want := map[string]int{}
		if p == AfterFlush || p == BeforeCommit {
			want = map[string]int{"dead": 1, "out": 2}
		}
		if !maps.Equal(aborted, want) {
			t.Errorf("%s: aborted %v, want %v", p, aborted, want)
		}
	}
}
