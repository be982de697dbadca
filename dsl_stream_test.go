package weir

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/serde"
)

// Every step with a plain record, a tombstone and a null key: what
// docs/operators.md says of it.
func TestStepsWithMissingKeysAndValues(t *testing.T) {
	t.Parallel()
	mark := func(k, v string) string { return k + v + "!" }
	for _, test := range []struct {
		name                     string
		declare                  func(s Stream[string, string])
		record, tombstone, noKey string
	}{
		{"To", func(s Stream[string, string]) { s.To(out) }, "k=v @7", "k=null @7", "null=v @7"},
		{"Filter that keeps", func(s Stream[string, string]) {
			s.Filter(func(k, v string) bool { return v == "v" }).To(out)
		}, "k=v @7", "k=null @7", "null=v @7"},
		{"Filter that does not", func(s Stream[string, string]) {
			s.Filter(func(k, v string) bool { return v != "v" }).To(out)
		}, "-", "k=null @7", "-"},
		{"Map", func(s Stream[string, string]) {
			s.Map(func(k, v string) (string, string) { return v, mark(k, v) }).To(out)
		}, "v=kv! @7", "- (dropped +1)", "v=v! @7"},
		{"MapValues", func(s Stream[string, string]) { s.MapValues(mark).To(out) }, "k=kv! @7", "k=null @7", "null=v! @7"},
		{"TryMapValues", func(s Stream[string, string]) {
			s.TryMapValues(func(k, v string) (string, error) { return mark(k, v), nil }).To(out)
		}, "k=kv! @7", "k=null @7", "null=v! @7"},
		{"FlatMap", func(s Stream[string, string]) {
			s.FlatMap(func(k, v string, emit func(string, string)) {
				emit(v, "1")
				emit(v, mark(k, v))
			}).To(out)
		}, "v=1 @7; v=kv! @7", "- (dropped +1)", "v=1 @7; v=v! @7"},
		{"SelectKey", func(s Stream[string, string]) { s.SelectKey(mark).To(out) }, "kv!=v @7", "- (dropped +1)", "v!=v @7"},
		{"Peek", func(s Stream[string, string]) { s.Peek(func(_, _ string) {}).To(out) }, "k=v @7", "k=null @7", "null=v @7"},
		{"Merge", func(s Stream[string, string]) { s.Merge(s.MapValues(mark)).To(out) },
			"k=kv! @7; k=v @7", "k=null @7; k=null @7", "null=v! @7; null=v @7"},
		{"Split", func(s Stream[string, string]) {
			sp := s.Split("split")
			sp.Branch("a", func(_, v string) bool { return v == "v" }).To(out)
			sp.Branch("b", func(_, v string) bool { return true }).To(out)
			sp.Default("c").To(out)
		}, "k=v @7", "k=null @7; k=null @7; k=null @7", "null=v @7"},
		{"Repartition", func(s Stream[string, string]) { s.Repartition("r").To(out) }, "k=v @7", "k=null @7", "null=v @7"},
		{"ToEach", func(s Stream[string, string]) {
			s.ToEach(func(_, _ string) Topic[string, string] { return out })
		}, "k=v @7", "- (dropped +1)", "null=v @7"},
		{"ToTable", func(s Stream[string, string]) { s.ToTable("t").ToStream().To(out) }, "k=v @7", "k=null @7", "- (dropped +1)"},
		{"ToTable by a new key", func(s Stream[string, string]) {
			s.SelectKey(mark).Serdes(serde.String, serde.String).ToTable("t").ToStream().To(out)
		}, "kv!=v @7", "- (dropped +1)", "v!=v @7"},
		{"ToTable behind Process", func(s Stream[string, string]) {
			s.Process("p", newEcho).ToTable("t").ToStream().To(out)
		}, "k=v @7", "k=null @7", "- (dropped +1)"},
		{"GroupByKey", func(s Stream[string, string]) {
			s.GroupByKey().Reduce("r", func(a, b string) string { return b }).ToStream().To(out)
		}, "k=v @7", "- (dropped +1)", "- (dropped +1)"},
		{"GroupBy", func(s Stream[string, string]) {
			s.GroupBy("g", serde.String, mark).Reduce("r", func(a, b string) string { return b }).ToStream().To(out)
		}, "kv!=v @7", "- (dropped +1)", "v!=v @7"},
		{"GroupByKey behind Process", func(s Stream[string, string]) {
			s.Process("p", newEcho).GroupByKey().Reduce("r", func(a, b string) string { return b }).ToStream().To(out)
		}, "k=v @7", "- (dropped +1)", "- (dropped +1)"},
		{"Process", func(s Stream[string, string]) { s.Process("p", newEcho).To(out) }, "k=v @7", "k=null @7", "null=v @7"},
		{"Table.ToStream", func(s Stream[string, string]) { s.b.Table("t", in).ToStream().To(out) }, "k=v @7", "k=null @7", "- (dropped +1)"},
	} {
		d := start(t, nil, func(b *Builder) { test.declare(b.Stream(in)) })
		for _, r := range []row{{"k=v @7", test.record}, {"k=null @7", test.tombstone}, {"null=v @7", test.noKey}} {
			t.Run(test.name, func(t *testing.T) {
				d.t = t
				d.rows(showStrings, []row{r})
			})
		}
	}
}

// echo emits what comes.
type echo struct {
	ProcessorDefaults
	out *Emitter[string, string]
}

func newEcho() *echo { return &echo{} }

func (e *echo) Init(_ *Task, out *Emitter[string, string]) error {
	e.out = out
	return nil
}

func (e *echo) Process(r Record[string, string]) error {
	e.out.Emit(r)
	return nil
}

func TestSplit(t *testing.T) {
	t.Parallel()
	topic := func(name string) Topic[string, string] { return NewTopic(name, serde.String, serde.String) }
	asked := ""
	d := start(t, nil, func(b *Builder) {
		sp := b.Stream(in).Split("size")
		sp.Branch("big", func(_, v string) bool { asked += "b"; return len(v) > 3 }).To(topic("big"))
		sp.Default("rest").To(topic("rest"))
		sp.Branch("middle", func(_, v string) bool { asked += "m"; return len(v) > 1 }).To(topic("middle"))
		nowhere := b.Stream(in).Split("other")
		nowhere.Branch("none", func(_, _ string) bool { return false }).To(topic("none"))
	})
	for _, v := range []string{"1", "22", "4444"} {
		d.send("in", []byte("k"), []byte(v), 1)
	}
	for name, want := range map[string]string{"big": "[k=4444 @1]", "middle": "[k=22 @1]", "rest": "[k=1 @1]", "none": "[]"} {
		if got := fmt.Sprint(shownAll(d.take(name), showStrings)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if asked != "bmbmb" {
		t.Errorf("the predicates were asked in the order %q", asked)
	}
	d.send("in", []byte("k"), nil, 2)
	for _, name := range []string{"big", "middle", "rest", "none"} {
		if got := fmt.Sprint(shownAll(d.take(name), showStrings)); got != "[k=null @2]" {
			t.Errorf("the tombstone made %s on %s", got, name)
		}
	}
}

func TestToEach(t *testing.T) {
	t.Parallel()
	numbers := NewTopic("numbers", serde.String, serde.Int64)
	other := NewTopic("other", serde.String, serde.Func(
		func(dst []byte, v int64) ([]byte, error) { return fmt.Appendf(dst, "%d", v), nil },
		func(src []byte) (int64, error) { return 0, errors.New("unused") }))
	d := start(t, nil, func(b *Builder) {
		b.Stream(in).MapValues(func(_, v string) int64 { return int64(len(v)) }).ToEach(func(k string, n int64) Topic[string, int64] {
			switch {
			case k == "bad":
				return NewTopic("no such/name", serde.String, serde.Int64)
			case k == "none":
				return Topic[string, int64]{}
			case n > 2:
				return other
			}
			return numbers
		})
	}, func(*task.Error) task.Decision { return task.DeadLetter })
	for _, k := range []string{"a", "bad", "none"} {
		d.send("in", []byte(k), []byte("12"), 1)
	}
	d.send("in", []byte("b"), []byte("1234"), 1)
	if got := fmt.Sprint(shownAll(d.take("numbers"), showCounts), shownAll(d.take("other"), showStrings)); got != "[a=2 @1] [b=4 @1]" {
		t.Errorf("got %s", got)
	}
	if got := d.deadLetters(); !slices.Equal(got, []string{
		`STREAM-SINK-0000000002 produce: the topic cannot be used: the name "no such/name" has ' ' at byte 2: use ASCII letters, digits, '.', '_' and '-' only`,
		`STREAM-SINK-0000000002 produce: the topic cannot be used: the name is empty`}) {
		t.Errorf("dead letters %q", got)
	}
}

// deadLetters returns node, class and text of the dead letters since the last call.
func (d *driver) deadLetters() []string {
	var all []string
	for _, o := range d.take(driverDeadLetter) {
		h := map[string]string{}
		for _, x := range o.Headers {
			h[x.Key] = string(x.Value)
		}
		all = append(all, h[task.HeaderNode]+" "+h[task.HeaderClass]+": "+h[task.HeaderError])
	}
	return all
}

func TestHeadersTravel(t *testing.T) {
	t.Parallel()
	var seen []Header
	d := start(t, nil, func(b *Builder) {
		s := b.Stream(in).
			Filter(func(_, _ string) bool { return true }).
			Map(func(k, v string) (string, string) { return k, v }).
			MapValues(func(_, v string) string { return v }).
			TryMapValues(func(_, v string) (string, error) { return v, nil }).
			FlatMap(func(k, v string, emit func(string, string)) { emit(k, v) }).
			SelectKey(func(k, _ string) string { return k }).
			Serdes(serde.String, serde.String).
			Repartition("r").
			Process("p", func() *headerAdder { return &headerAdder{seen: &seen} })
		s.GroupByKey().Count("n").MapValues(func(_ string, n int64) int64 { return n }).
			Filter(func(string, int64) bool { return true }).ToStream().To(outCounts)
	})
	d.send("in", []byte("k"), []byte("v"), 1, task.Header{Key: "a", Value: []byte("1")}, task.Header{Key: "n"})
	got := fmt.Sprint(d.take("out")[0].Headers)
	if want := fmt.Sprint([]task.Header{{Key: "a", Value: []byte("1")}, {Key: "n"}, {Key: "b", Value: []byte("2")}}); got != want {
		t.Errorf("headers %s, want %s", got, want)
	}
	if seen[1].Value != nil {
		t.Errorf("a null value came as %q", seen[1].Value)
	}
}

type headerAdder struct {
	echo
	seen *[]Header
}

func (p *headerAdder) Process(r Record[string, string]) error {
	*p.seen = slices.Clone(r.Headers)
	r.Headers = append(r.Headers, Header{"b", []byte("2")})
	p.out.Emit(r)
	return nil
}

// A record goes to the end of one child before the next child gets it, and a
// step that is reached by two ways gets it twice.
func TestOrderAndDiamond(t *testing.T) {
	t.Parallel()
	var trace []string
	note := func(name string) func(string, string) {
		return func(_, v string) { trace = append(trace, name+v) }
	}
	d := start(t, nil, func(b *Builder) {
		s := b.Stream(in)
		left := s.MapValues(func(_, v string) string { return v + "l" }).Peek(note("left "))
		right := s.MapValues(func(_, v string) string { return v + "r" }).Peek(note("right "))
		left.Merge(right).Peek(note("both ")).
			FlatMap(func(k, v string, emit func(string, string)) {
				emit(k, v+"1")
				emit(k, v+"2")
			}).Peek(note("flat ")).To(out)
		b.Stream(in).Peek(note("again ")) // read twice, consumed once
	})
	d.rows(showStrings, []row{{"k=v @1", "k=vl1 @1; k=vl2 @1; k=vr1 @1; k=vr2 @1"}})
	want := "left vl,both vl,flat vl1,flat vl2,right vr,both vr,flat vr1,flat vr2,again v"
	if got := strings.Join(trace, ","); got != want {
		t.Errorf("order %s, want %s", got, want)
	}
	if n := len(d.top.graph.Subtopologies[0].Sources); n != 1 {
		t.Errorf("%d sources, want one for the topic", n)
	}
}

// One topic, decoded in two ways.
func TestTopicWithTwoTypes(t *testing.T) {
	t.Parallel()
	d := start(t, nil, func(b *Builder) {
		b.Stream(in).To(out)
		b.Stream(NewTopic("in", serde.String, serde.Bytes)).
			MapValues(func(_ string, v []byte) string { return fmt.Sprint(len(v)) }).To(out)
		b.Table("t", in).ToStream().MapValues(func(_, v string) string { return "t" + v }).To(out)
	})
	d.rows(showStrings, []row{{"k=abc @1", "k=abc @1; k=tabc @1; k=3 @1"}})
}

// Partitions: by the key where the stream is written, and each task counts its
// own.
func TestRepartitionByKey(t *testing.T) {
	t.Parallel()
	d := start(t, map[string]int32{"in": 3}, func(b *Builder) {
		b.Stream(in).GroupBy("g", serde.String, func(_, v string) string { return v }).Count("n").ToStream().To(outCounts)
	})
	for i := range 60 {
		d.send("in", fmt.Appendf(nil, "k%d", i), fmt.Appendf(nil, "v%d", i%7), int64(i))
	}
	last := map[string]string{}
	for _, o := range d.take("out") {
		last[string(o.Key)] = showCounts(o)
	}
	for i := range 7 {
		n := 60 / 7
		if i < 60%7 {
			n++
		}
		k := fmt.Sprintf("v%d", i)
		if got, want := last[k], fmt.Sprintf("%s=%d @%d", k, n, i+7*(n-1)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	used := map[topology.TaskID]bool{}
	for _, tk := range d.tasks {
		for i := range 7 {
			if st := tk.Store("n"); st != nil {
				if _, ok, err := st.GetCommitted(fmt.Appendf(nil, "v%d", i)); ok && err == nil {
					used[tk.ID()] = true
				}
			}
		}
	}
	if len(used) < 2 {
		t.Errorf("all keys are in the tasks %v", used)
	}
}

// failures are what user code can do wrong, and who is blamed for it.
func TestErrorsNameTheStep(t *testing.T) {
	t.Parallel()
	errBoom := errors.New("boom")
	boom := func(string, string) string { panic("boom") }
	brittle := serde.Func(
		func(dst []byte, v string) ([]byte, error) { return dst, errBoom },
		func(src []byte) (string, error) { return "", errBoom })
	brittleTopic := NewTopic("in", serde.String, brittle)
	pass := func(_, v string) string { return v }
	for _, test := range []struct {
		name    string
		declare func(b *Builder)
		want    string
	}{
		{"value", func(b *Builder) { b.Stream(brittleTopic).To(brittleTopic2) },
			"STREAM-SOURCE-0000000000 decode: value: decode func(string): boom"},
		{"key", func(b *Builder) { b.Stream(NewTopic("in", brittle, serde.String)).Peek(func(_, _ string) {}) },
			"STREAM-SOURCE-0000000000 decode: key: decode func(string): boom"},
		{"panic", func(b *Builder) { b.Stream(in).MapValues(pass).MapValues(boom).MapValues(pass).To(out) },
			"STREAM-MAPVALUES-0000000002 process: panic: boom"},
		{"error", func(b *Builder) {
			b.Stream(in).TryMapValues(func(_, _ string) (string, error) { return "", errBoom }).To(out)
		}, "STREAM-TRYMAPVALUES-0000000001 process: boom"},
		{"panic behind emit", func(b *Builder) {
			b.Stream(in).FlatMap(func(k, v string, emit func(string, string)) {
				emit(k, v)
				panic("late")
			}).MapValues(pass).To(out)
		}, "STREAM-FLATMAP-0000000001 process: panic: late"},
		{"error below FlatMap", func(b *Builder) {
			b.Stream(in).FlatMap(func(k, v string, emit func(string, string)) {
				emit(k, v)
				emit(k, v)
			}).TryMapValues(func(_, _ string) (string, error) { return "", errBoom }).To(out)
		}, "STREAM-TRYMAPVALUES-0000000002 process: boom"},
		{"encode for a sink", func(b *Builder) { b.Stream(in).To(brittleTopic2) },
			"STREAM-SINK-0000000001 produce: value of a record for topic elsewhere: encode func(string): boom"},
		{"encode key for a sink", func(b *Builder) { b.Stream(in).To(NewTopic("out", brittle, serde.String)) },
			"STREAM-SINK-0000000001 produce: key of a record for topic out: encode func(string): boom"},
		{"encode for a store", func(b *Builder) {
			b.Stream(in).Serdes(serde.String, brittle).GroupByKey().Reduce("r", func(a, _ string) string { return a })
		}, "r produce: value for store \"r\": encode func(string): boom"},
		{"encode key for a store", func(b *Builder) {
			b.Stream(in).Serdes(brittle, serde.String).GroupByKey().Count("r")
		}, "r produce: key for store \"r\": encode func(string): boom"},
		{"serde that does not append", func(b *Builder) {
			b.Stream(in).Serdes(serde.String, serde.Func(
				func(_ []byte, v string) ([]byte, error) { return []byte(v), nil },
				func(src []byte) (string, error) { return string(src), nil })).ToTable("t")
		}, "t produce: value for store \"t\": Append of the serde func(string) does not append to the slice it is given"},
		{"aggregate", func(b *Builder) {
			b.Stream(in).GroupByKey().Aggregate("r", serde.String, func() string { return "" }, func(_, _, _ string) string { panic("boom") })
		}, "r process: panic: boom"},
		{"regroup", func(b *Builder) {
			b.Table("t", in).GroupBy("g", serde.String, serde.String, func(_, _ string) (string, string) { panic("boom") }).Count("r")
		}, "g-repartition-sink process: panic: boom"},
		{"encode key of a group", func(b *Builder) {
			b.Table("t", in).GroupBy("g", brittle, serde.String, func(k, v string) (string, string) { return k, v }).Count("r")
		}, "g-repartition-sink produce: key of a record for topic app-g-repartition: encode func(string): boom"},
		{"encode value of a group", func(b *Builder) {
			b.Table("t", in).GroupBy("g", serde.String, brittle, func(k, v string) (string, string) { return k, v }).Count("r")
		}, "g-repartition-sink produce: value of a record for topic app-g-repartition: encode func(string): boom"},
		{"table filter", func(b *Builder) {
			b.Table("t", in).Filter(func(_, _ string) bool { panic("boom") }).ToStream().To(out)
		}, "TABLE-FILTER-0000000001 process: panic: boom"},
		{"table map", func(b *Builder) { b.Table("t", in).MapValues(boom).ToStream().To(out) },
			"TABLE-MAPVALUES-0000000001 process: panic: boom"},
		{"split", func(b *Builder) {
			b.Stream(in).Split("s").Branch("b", func(_, _ string) bool { panic("boom") })
		}, "s process: panic: boom"},
	} {
		d := start(t, nil, test.declare, func(*task.Error) task.Decision { return task.DeadLetter })
		d.send("in", []byte("k"), []byte("v"), 1)
		if d.err != nil {
			t.Errorf("%s: %v", test.name, d.err)
			continue
		}
		got := d.deadLetters()
		if len(got) != 1 || !strings.HasPrefix(got[0], test.want) {
			t.Errorf("%s: dead letters %q, want %q", test.name, got, test.want)
		}
		if len(d.log) > 0 {
			t.Errorf("%s: the failed record left %v", test.name, shownAll(d.log, wire))
		}
	}
}

var brittleTopic2 = NewTopic("elsewhere", serde.String, serde.Func(
	func(dst []byte, v string) ([]byte, error) { return dst, errors.New("boom") },
	func(src []byte) (string, error) { return "", nil }))

// What cannot be decoded although this program or an earlier one wrote it stops
// the task: a dead letter would lose the state of the key without a word.
func TestUndecodableStateStops(t *testing.T) {
	t.Parallel()
	good := true
	fickle := serde.Func(
		func(dst []byte, v string) ([]byte, error) { return append(dst, v...), nil },
		func(src []byte) (string, error) {
			if good {
				return string(src), nil
			}
			return "", errors.New("not today")
		})
	first := func(a, _ string) string { return a }
	for _, test := range []struct {
		name    string
		declare func(s Stream[string, string])
	}{
		{"Reduce", func(s Stream[string, string]) { s.GroupByKey().Reduce("x", first) }},
		{"ToTable with old values", func(s Stream[string, string]) {
			s.ToTable("x").GroupBy("g", serde.String, serde.String, func(k, v string) (string, string) { return k, v }).Count("n")
		}},
		{"GroupedTable.Reduce", func(s Stream[string, string]) {
			s.b.Table("t", in).GroupBy("g", serde.String, serde.String, func(k, v string) (string, string) { return k, v }).
				Reduce("x", fickle, first, first)
		}},
	} {
		good = true
		d := start(t, nil, func(b *Builder) { test.declare(b.Stream(in).Serdes(serde.String, fickle)) },
			func(*task.Error) task.Decision { return task.DeadLetter })
		d.send("in", []byte("k"), []byte("1"), 1)
		good = false
		d.send("in", []byte("k"), []byte("2"), 2)
		var e *task.Error
		if !errors.As(d.err, &e) || e.Class != task.ClassStore || !strings.Contains(d.err.Error(), `decode a value in store "x"`) {
			t.Errorf("%s: %v", test.name, d.err)
		}
	}
}

func TestFlatMapEmitsTooLate(t *testing.T) {
	t.Parallel()
	var kept func(string, string)
	d := start(t, nil, func(b *Builder) {
		b.Stream(in).FlatMap(func(k, v string, emit func(string, string)) { kept = emit }).To(out)
	})
	d.send("in", []byte("k"), []byte("v"), 1)
	kept("k", "lost")
	d.send("in", []byte("k"), []byte("v"), 1)
	if d.err == nil || !errors.Is(d.err, errLateEmit) {
		t.Errorf("error %v", d.err)
	}
}

// Aggregates that functions change in place are not shared with what is passed
// on as the old value.
func TestAggregateInPlace(t *testing.T) {
	t.Parallel()
	type set = map[string]int
	d := start(t, nil, func(b *Builder) {
		b.Stream(in).GroupByKey().
			Aggregate("sets", serde.JSON[set](), func() set { return set{} }, func(_, v string, s set) set {
				s[v]++
				return s
			}).
			GroupBy("by-size", serde.Int64, serde.String, func(k string, s set) (int64, string) { return int64(len(s)), k }).
			Count("sizes").ToStream().To(NewTopic("out", serde.Int64, serde.Int64))
	})
	d.rows(show(serde.Int64, serde.Int64), []row{
		{"a=x @1", "1=1 @1"},
		{"b=x @2", "1=2 @2"},
		{"a=x @3", "1=2 @3"},
		{"a=y @4", "1=1 @4; 2=1 @4"},
		{"b=y @5", "1=0 @5; 2=2 @5"},
	})
}

func TestGroupedTableAggregateInPlace(t *testing.T) {
	t.Parallel()
	type set = map[string]int
	change := func(by int) func(string, string, set) set {
		return func(_, v string, s set) set {
			if s[v] += by; s[v] == 0 {
				delete(s, v)
			}
			return s
		}
	}
	d := start(t, nil, func(b *Builder) {
		b.Table("rows", in).
			GroupBy("by-letter", serde.String, serde.String, func(_, v string) (string, string) { return v[:1], v }).
			Aggregate("sets", serde.JSON[set](), func() set { return set{} }, change(1), change(-1)).
			GroupBy("by-size", serde.Int64, serde.String, func(k string, s set) (int64, string) { return int64(len(s)), k }).
			Count("sizes").ToStream().To(NewTopic("out", serde.Int64, serde.Int64))
	})
	d.rows(show(serde.Int64, serde.Int64), []row{
		{"1=a @1", "1=1 @1"},
		{"2=ab @2", "1=0 @2; 2=1 @2"},
		{"3=b @3", "1=1 @3"},
		{"2=b @4", "2=0 @4; 1=2 @4; 1=2 @4"},
		{"3=null @5", "1=2 @5"},
	})
}

func TestGroupedTableReduce(t *testing.T) {
	t.Parallel()
	add := func(a, b int64) int64 { return a + b }
	sub := func(a, b int64) int64 { return a - b }
	d := start(t, nil, func(b *Builder) {
		b.Table("t", in).
			GroupBy("g", serde.String, serde.Int64, func(_, v string) (string, int64) { return v[:1], int64(len(v)) }).
			Reduce("sum", serde.Int64, add, sub).
			Filter(func(_ string, n int64) bool { return n > 0 }).ToStream().To(outCounts)
	})
	d.rows(showCounts, []row{
		{"1=aa @1", "a=2 @1"},
		{"2=aaa @2", "a=5 @2"},
		{"1=a @3", "a=4 @3"},
		{"2=bbb @4", "a=1 @4; b=3 @4"},
		{"1=null @5", "a=null @5"}, // 0 is stored and filtered
		{"3=aa @2", "a=2 @5"},
	})
	// Taken away from an aggregate that is not there, as after a lost store.
	d.deliver("app-g-repartition", []byte("z"), []byte{0, 0, 0, 0, 0, 0, 0, 9, 0}, 9, nil)
	d.settle()
	if got := d.shown(showCounts, d.drops("")); got != "z=null @9" {
		t.Errorf("got %s", got)
	}
	// What no program of ours writes.
	before := d.drops("")
	d.deliver("app-g-repartition", nil, []byte{0}, 9, nil)
	d.deliver("app-g-repartition", []byte("z"), nil, 9, nil)
	d.settle()
	if n := d.drops("") - before; n != 2 || d.err != nil {
		t.Errorf("dropped %d, error %v", n, d.err)
	}
	d.deliver("app-g-repartition", []byte("z"), []byte{7}, 9, nil)
	d.settle()
	var e *task.Error
	if !errors.As(d.err, &e) || e.Class != task.ClassDecode || e.Node != "g-repartition-source" {
		t.Errorf("error %v", d.err)
	}
}

// An empty value is a value, all the way.
func TestEmptyIsNotNull(t *testing.T) {
	t.Parallel()
	lazy := serde.Func(func(_ []byte, v string) ([]byte, error) { return nil, nil }, func([]byte) (string, error) { return "", nil })
	d := start(t, nil, func(b *Builder) {
		b.Stream(in).Repartition("r").ToTable("t").ToStream().To(out)
		b.Stream(in).To(NewTopic("lazy", lazy, lazy))
		b.Table("u", in).GroupBy("g", serde.String, serde.String, func(k, v string) (string, string) { return k, v }).
			Reduce("x", serde.String, func(a, b string) string { return "" }, func(a, b string) string { return "" })
	})
	d.send("in", []byte{}, []byte{}, 1)
	d.send("in", []byte{}, []byte{}, 0)
	for _, topic := range []string{"app-r-repartition", "app-t-changelog", "app-u-changelog", "app-x-changelog", "out", "lazy"} {
		got := d.take(topic)
		if len(got) != 2 {
			t.Errorf("%d records on %s, want 2", len(got), topic)
		}
		for _, o := range got {
			if o.Key == nil || len(o.Key) > 0 || o.Value == nil || len(o.Value) > 0 {
				t.Errorf("%s has %s", topic, wire(o))
			}
		}
	}
}

// Values that nobody looks at are not decoded, if nothing can be wrong with them.
func TestCountDecodesNoStrings(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		declare func(s Stream[string, string])
		needs   bool
	}{
		{"count", func(s Stream[string, string]) { s.GroupByKey().Count("n") }, false},
		{"count of a merge", func(s Stream[string, string]) {
			s.Merge(s.b.Stream(NewTopic("in2", serde.String, serde.String))).GroupByKey().Count("n")
		}, false},
		{"nothing", func(s Stream[string, string]) {}, false},
		{"filter", func(s Stream[string, string]) {
			s.Filter(func(_, _ string) bool { return true }).GroupByKey().Count("n")
		}, true},
		{"count and sink", func(s Stream[string, string]) { s.GroupByKey().Count("n"); s.To(out) }, true},
		{"repartition", func(s Stream[string, string]) { s.Repartition("r").GroupByKey().Count("n") }, true},
	} {
		s := NewBuilder().Stream(in)
		test.declare(s)
		if got := s.n.needsValue(); got != test.needs {
			t.Errorf("%s: %t, want %t", test.name, got, test.needs)
		}
	}
	d := start(t, nil, func(b *Builder) {
		b.Stream(NewTopic("in", serde.String, serde.Int64)).GroupByKey().Count("n")
	}, func(*task.Error) task.Decision { return task.DeadLetter })
	d.send("in", []byte("k"), []byte("not eight bytes"), 1)
	if got := d.deadLetters(); len(got) != 1 {
		t.Errorf("an undecodable value that nobody looks at: %q", got)
	}
}
