package weir

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/serde"
)

// Parts of errors that change with the source.
var (
	place      = regexp.MustCompile(` \([a-z_]+\.go:\d+\)`)
	stampBytes = regexp.MustCompile(`take \d+ bytes`)
)

func TestBuildErrors(t *testing.T) {
	t.Parallel()
	str := serde.String
	upper := func(k, _ string) string { return strings.ToUpper(k) }
	value := func(_, v string) string { return v }
	yes := func(_, _ string) bool { return true }
	first := func(a, _ string) string { return a }
	pair := func(k, v string) (string, string) { return k, v }
	update := func(_, v, _ string, _ bool) (string, bool) { return v, true }
	fold := func(_, v, a string) string { return a + v }
	empty := func() string { return "" }
	noKey, noValue := NewTopic[string, string]("in", nil, str), NewTopic[string, string]("in", str, nil)
	kv := func(name string, opts ...StoreOption) *KeyValueStore[string, string] {
		return NewKeyValueStore(name, str, str, opts...)
	}
	uncomparable := func() serde.Serde[string] {
		return uncomparableSerde{nil, str}
	}
	var noStore *KeyValueStore[string, string]
	longName := strings.Repeat("n", 201)

	for _, test := range []struct {
		name    string
		declare func(b *Builder)
		want    []string // the mistakes, without their places
	}{
		{"nothing", func(b *Builder) {}, []string{
			`the topology consumes nothing: begin with Builder.Stream or Builder.Table`}},

		// Serdes.
		{"key lost by SelectKey", func(b *Builder) { b.Stream(in).SelectKey(upper).GroupByKey().Count("n") }, []string{
			`Count("n"): the serde of the keys is not known, because SelectKey makes new keys: say .Serdes(...) behind that step`}},
		{"both lost by Map", func(b *Builder) {
			b.Stream(in).Map(func(k, v string) (string, int64) { return k, 1 }).Repartition("r")
		}, []string{
			`Repartition("r"): the serde of the keys is not known, because Map makes new keys: say .Serdes(...) behind that step`,
			`the serde of the values is not known, because Map makes values of another type: say .Serdes(...) behind that step`}},
		{"value lost by MapValues", func(b *Builder) {
			b.Stream(in).MapValues(func(_, _ string) int64 { return 1 }).GroupByKey().Reduce("n", func(a, b int64) int64 { return a + b })
		}, []string{
			`Reduce("n"): the serde of the values is not known, because MapValues makes values of another type: say .Serdes(...) behind that step`}},
		{"value lost by TryMapValues", func(b *Builder) {
			b.Stream(in).TryMapValues(func(_, _ string) (int64, error) { return 1, nil }).ToTable("t")
		}, []string{
			`ToTable("t"): the serde of the values is not known, because TryMapValues makes values of another type: say .Serdes(...) behind that step`}},
		{"lost by FlatMap", func(b *Builder) {
			b.Stream(in).FlatMap(func(_, _ string, _ func(string, string)) {}).GroupByKey().Count("n")
		}, []string{
			`Count("n"): the serde of the keys is not known, because FlatMap makes new keys: say .Serdes(...) behind that step`}},
		{"value lost before GroupBy", func(b *Builder) {
			b.Stream(in).MapValues(func(_, _ string) int64 { return 1 }).GroupBy("g", str, func(k string, _ int64) string { return k }).Count("n")
		}, []string{
			`GroupBy("g"): the serde of the values is not known, because MapValues makes values of another type: say .Serdes(...) behind that step`}},
		{"lost by Process", func(b *Builder) { b.Stream(in).Process("p", newLengths).GroupByKey().Count("n") }, []string{
			`Count("n"): the serde of the keys is not known, because Process("p") makes keys of another type: say .Serdes(...) behind that step`,
			`the serde of the values is not known, because Process("p") makes values of another type: say .Serdes(...) behind that step`}},
		{"lost by Merge", func(b *Builder) {
			b.Stream(in).Merge(b.Stream(NewTopic("in2", serde.JSON[string](), str))).GroupByKey().Count("n")
		}, []string{
			`Count("n"): the serde of the keys is not known, because Merge joins streams whose keys have different serdes (string and json(string)): say .Serdes(...) behind that step`}},
		{"lost before Merge", func(b *Builder) {
			b.Stream(in).Merge(b.Stream(in).SelectKey(upper)).GroupByKey().Count("n")
		}, []string{
			`Count("n"): the serde of the keys is not known, because SelectKey makes new keys: say .Serdes(...) behind that step`}},
		{"lost before Merge, first", func(b *Builder) {
			b.Stream(in).SelectKey(upper).Merge(b.Stream(in)).GroupByKey().Count("n")
		}, []string{
			`Count("n"): the serde of the keys is not known, because SelectKey makes new keys: say .Serdes(...) behind that step`}},
		{"serdes that cannot be compared", func(b *Builder) {
			b.Stream(NewTopic("a", uncomparable(), str)).Merge(b.Stream(NewTopic("b", uncomparable(), str))).GroupByKey().Count("n")
		}, []string{
			`Count("n"): the serde of the keys is not known, because Merge joins streams whose keys have different serdes (weir.uncomparableSerde and weir.uncomparableSerde): say .Serdes(...) behind that step`}},
		{"topic without serdes", func(b *Builder) {
			b.Stream(noKey)
			b.Table("t", noValue)
			b.Stream(in).To(noKey)
			b.Stream(in).To(NewTopic[string, string]("out", nil, nil))
		}, []string{
			`Stream("in"): topic "in" was declared without a serde for its keys: give NewTopic both`,
			`Table("t"): topic "in" was declared without a serde for its values: give NewTopic both`,
			`To("in"): topic "in" was declared without a serde for its keys: give NewTopic both`,
			`To("out"): topic "out" was declared without a serde for its keys and values: give NewTopic both`}},
		{"nil serdes", func(b *Builder) {
			s := b.Stream(in)
			s.Serdes(nil, str)
			s.Serdes(str, nil)
			s.GroupBy("g1", nil, upper)
			s.GroupByKey().Aggregate("a", nil, empty, fold)
			s.GroupByKey().Update("u", nil, update)
			tb := b.Table("t", in)
			tb.GroupBy("g2", nil, str, pair)
			tb.GroupBy("g3", str, nil, pair)
			tb.GroupBy("g4", str, str, pair).Aggregate("x", nil, empty, fold, fold)
			tb.GroupBy("g5", str, str, pair).Reduce("y", nil, first, first)
			s.Process("p", newEcho, NewKeyValueStore[string, string]("kv", nil, str))
		}, []string{
			`Serdes: the serde of the keys is nil: give both`,
			`Serdes: the serde of the values is nil: give both`,
			`GroupBy("g1"): the serde of the keys is nil`,
			`Aggregate("a"): the serde of the aggregate is nil`,
			`Update("u"): the serde of the aggregate is nil`,
			`Table.GroupBy("g2"): the serde of the keys is nil: give both`,
			`Table.GroupBy("g3"): the serde of the values is nil: give both`,
			`GroupedTable.Aggregate("x"): the serde of the aggregate is nil`,
			`GroupedTable.Reduce("y"): the serde of the aggregate is nil`,
			`Process("p"): store "kv" was declared without a serde for its keys: give NewKeyValueStore both`}},

		// Functions and options.
		{"nil functions", func(b *Builder) {
			s := b.Stream(in)
			s.Filter(nil)
			s.Map[string, string](nil)
			s.MapValues[string](nil)
			s.TryMapValues[string](nil)
			s.FlatMap[string, string](nil)
			s.SelectKey[string](nil)
			s.Peek(nil)
			s.ToEach(nil)
			s.GroupBy("g", str, nil)
			s.GroupByKey().Reduce("r", nil)
			s.GroupByKey().Aggregate("a", str, nil, fold)
			s.GroupByKey().Aggregate("a", str, empty, nil)
			s.GroupByKey().Update("u", str, nil)
			s.Split("s").Branch("b", nil)
			s.Process[string, string, *echo]("p", nil)
			tb := b.Table("t", in)
			tb.Filter(nil)
			tb.MapValues[string](nil)
			tb.GroupBy[string, string]("h", str, str, nil)
			g := tb.GroupBy("i", str, str, pair)
			g.Reduce("r", str, first, nil)
			g.Aggregate("a", str, empty, fold, nil)
		}, []string{
			`Filter: the function is nil`, `Map: the function is nil`, `MapValues: the function is nil`, `TryMapValues: the function is nil`,
			`FlatMap: the function is nil`, `SelectKey: the function is nil`, `Peek: the function is nil`, `ToEach: the function is nil`,
			`GroupBy("g"): the function is nil`, `Reduce("r"): the function is nil`, `Aggregate("a"): the function is nil`,
			`Aggregate("a"): the function is nil`, `Update("u"): the function is nil`, `Branch("b") of Split("s"): the function is nil`,
			`Process("p"): the function is nil`, `Table.Filter: the function is nil`, `Table.MapValues: the function is nil`,
			`Table.GroupBy("h"): the function is nil`, `GroupedTable.Reduce("r"): the function is nil`, `GroupedTable.Aggregate("a"): the function is nil`}},
		{"nil options", func(b *Builder) {
			s := b.Stream(in)
			b.Stream(in, nil)
			b.Table("t", in, nil)
			s.ToTable("u", nil)
			s.GroupByKey().Count("n", nil)
			b.Table("v", in).GroupBy("g", str, str, pair).Count("w", nil)
			s.Repartition("r", nil)
			s.Process("p", newEcho, kv("kv", nil))
			s.Process("q", newEcho, nil)
			s.Process("z", newEcho, noStore)
		}, []string{
			`Stream("in"): an option is nil`, `Table("t"): an option is nil`, `ToTable("u"): an option is nil`, `Count("n"): an option is nil`,
			`GroupedTable.Count("w"): an option is nil`, `Repartition("r"): an option is nil`, `Process("p"): store "kv": an option is nil`,
			`Process("q"): one of the stores is nil`, `Process("z"): one of the stores is nil`}},
		{"partitions and policies", func(b *Builder) {
			s := b.Stream(in, StartAt(Latest))
			s.Repartition("r", Partitions(0))
			s.Repartition("q", Partitions(1<<20+1))
			b.Stream(in, StartAt(ResetPolicy(9)))
			b.Stream(in)
			b.Table("t", in, StartAt(Fail))
		}, []string{
			`Repartition("r"): Partitions(0): the number must be from 1 to 1048576`,
			`Repartition("q"): Partitions(1048577): the number must be from 1 to 1048576`,
			`Stream("in"): StartAt(9) is no reset policy: use Earliest, Latest or Fail`,
			`Table("t"): topic "in" is read from Fail here and from Latest elsewhere: it is consumed once, so give StartAt once or the same each time`}},

		// Names.
		{"bad names", func(b *Builder) {
			s := b.Stream(NewTopic("no such topic", str, str))
			s.To(out) // behind a mistake: no further complaint
			s = b.Stream(in)
			s.To(NewTopic("..", str, str))
			s.Repartition("")
			s.GroupByKey().Count("a b")
			s.GroupByKey().Count(longName)
			s.GroupBy("ü", str, upper)
			s.Split("")
			s.Split("s").Branch("", yes)
			s.Process("p/q", newEcho)
			s.Process("p", newEcho, kv(""))
			s.Process("p2", newEcho, kv(longName))
		}, []string{
			`Stream("no such topic"): the topic cannot be used: the name "no such topic" has ' ' at byte 2: use ASCII letters, digits, '.', '_' and '-' only`,
			`To(".."): the topic cannot be used: the name ".." is reserved`,
			`Repartition(""): the name is empty`,
			`Count("a b"): store: the name "a b" has ' ' at byte 1: use ASCII letters, digits, '.', '_' and '-' only`,
			`Count("` + longName + `"): the store name "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"... has 201 bytes, more than 200`,
			`GroupBy("ü"): the name "ü" has 'ü' at byte 0: use ASCII letters, digits, '.', '_' and '-' only`,
			`Split(""): the name is empty`,
			`Branch("") of Split("s"): the name of the branch is empty`,
			`Process("p/q"): the name "p/q" has '/' at byte 1: use ASCII letters, digits, '.', '_' and '-' only`,
			`Process("p"): store: the name is empty`,
			`Process("p2"): the store name "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"... has 201 bytes, more than 200`}},
		{"duplicate names", func(b *Builder) {
			s := b.Stream(in)
			s.GroupByKey().Count("x")
			s.GroupByKey().Count("x")
			s.ToTable("x")
			s.Process("x", newEcho)
			s.Process("p", newEcho, kv("x"))
			s.Process("q", newEcho, kv("kv"))
			s.Process("r", newEcho, kv("kv"))
			s.Split("q")
			sp := s.Split("s")
			sp.Branch("b", yes)
			sp.Branch("b", yes)
			sp.Default("b")
			sp.Default("c")
			sp.Default("d")
			s.Repartition("g")
			s.GroupBy("g", str, upper)
			s.SelectKey(upper).Serdes(str, str).GroupByKey().Count("g")
			b.Table("t", in)
			b.Table("t", in)
			s.Process("STREAM-SINK-0000000000", newEcho)
			s.Process("v-repartition-sink", newEcho)
			s.Repartition("v")
		}, []string{
			`Count("x"): the name "x" of the store is taken by Count("x"): choose another`,
			`ToTable("x"): the name "x" of the store is taken by Count("x"): choose another`,
			`Process("x"): the name "x" of the step is taken by Count("x"): choose another`,
			`Process("p"): the name "x" of the store is taken by Count("x"): choose another`,
			`Process("r"): the name "kv" of the store is taken by NewKeyValueStore("kv"): choose another`,
			`Split("q"): the name "q" of the step is taken by Process("q"): choose another`,
			`Branch("b") of Split("s"): the name "s-b" of the step is taken by Branch("b") of Split("s"): choose another`,
			`Default("b") of Split("s"): the name "s-b" of the step is taken by Branch("b") of Split("s"): choose another`,
			`Default("d") of Split("s"): the split has a default branch already: use that one`,
			`GroupBy("g"): the name "g" of the repartition is taken by Repartition("g"): choose another`,
			`Count("g"): the name "g" of the repartition is taken by Repartition("g"): choose another`,
			`Table("t"): the name "t" of the store is taken by Table("t"): choose another`,
			`Repartition("v"): the name "v-repartition-sink" of the step is taken by Process("v-repartition-sink"): choose another`}},
		{"name of a generated step", func(b *Builder) { b.Stream(in).Process("STREAM-SOURCE-0000000000", newEcho) }, []string{
			`Process("STREAM-SOURCE-0000000000"): the name "STREAM-SOURCE-0000000000" of the step is taken by a step without a name of its own: choose another`}},

		// Shapes.
		{"merge with itself", func(b *Builder) {
			s := b.Stream(in)
			s.Merge(s)
			s.Merge(s.Filter(yes), b.Stream(in))
			f := s.Filter(yes)
			s.Merge(f, s.Peek(func(_, _ string) {}), f)
		}, []string{
			`Merge: a stream is merged with itself, which would double its records: merge different streams`,
			`Merge: a stream is merged with itself, which would double its records: merge different streams`,
			`Merge: a stream is merged with itself, which would double its records: merge different streams`}},
		{"streams of other builders", func(b *Builder) {
			s := b.Stream(in)
			s.Merge(NewBuilder().Stream(in))
			s.Merge(Stream[string, string]{})
		}, []string{
			`Merge: the streams are from different builders: declare both with one`,
			`Merge: one of the streams is not from a Builder`}},
		{"one mistake, one complaint", func(b *Builder) {
			s := b.Stream(in).Filter(nil)
			b.Stream(in).Merge(s)
			s.Peek(func(_, _ string) {}).Map(pair).MapValues(value).SelectKey(upper).Merge().Serdes(str, str).Repartition("").
				TryMapValues(func(_, v string) (string, error) { return v, nil }).
				FlatMap(func(_, _ string, _ func(string, string)) {}).Process("", newEcho).ToTable("").Filter(yes).MapValues(value).
				GroupBy("", str, str, pair).Count("").ToStream().GroupBy("", str, func(k string, _ int64) string { return k }).Count("")
			s.GroupByKey().Aggregate("", nil, nil, fold)
			s.GroupByKey().Reduce("", nil)
			s.Split("").Branch("", nil)
			s.Split("").Default("")
			s.To(noKey)
			s.ToEach(nil)
		}, []string{`Filter: the function is nil`}},
		{"loop", func(b *Builder) { b.Stream(in).Filter(yes).To(in) }, []string{
			`the topology writes topic "in", which it reads itself: STREAM-SOURCE-0000000000 -> STREAM-FILTER-0000000001 -> STREAM-SINK-0000000002 -> STREAM-SOURCE-0000000000; a record would go round for ever. ` +
				`Write to another topic, or say Feedback() where the topic is read, if something ends the loop`}},
		{"loop over two topics and a repartition", func(b *Builder) {
			b.Stream(in).Repartition("r").To(out)
			b.Stream(out).To(in)
		}, []string{
			`the topology writes topic "in", which it reads itself: STREAM-SOURCE-0000000000 -> r-repartition-sink -> r-repartition-source -> STREAM-SINK-0000000001 -> STREAM-SOURCE-0000000002 -> STREAM-SINK-0000000003 -> STREAM-SOURCE-0000000000; a record would go round for ever. ` +
				`Write to another topic, or say Feedback() where the topic is read, if something ends the loop`}},
		{"co-partitioning that can never hold", func(b *Builder) {
			b.Stream(in).Repartition("r", Partitions(4)).Merge(b.Stream(out).Repartition("s", Partitions(6))).GroupByKey().Count("n")
		}, []string{
			`Repartition("r") asks for 4 partitions and Repartition("s") for 6, but their keys meet in store "n", which takes the same number: ask for the same, or leave Partitions out of both`}},
		{"stamp too long", func(b *Builder) {
			for i := range 20 {
				b.Table(fmt.Sprintf("%0200d", i), in)
			}
		}, []string{
			`subtopology 0 (from source topic "in") has 20 stores and 1 source topics, of which the metadata of an offset commit would take N bytes; ` +
				`Kafka allows 4096: give stores shorter names, or cut the subtopology with Repartition`}},

		// Processors.
		{"constructors", func(b *Builder) {
			s := b.Stream(in)
			s.Process("nil", func() *echo { return nil })
			one := &script{}
			s.Process("one", func() *script { return one })
			s.Process("none", func() processorOfStrings { return nil })
			s.Process("panic", func() *echo { panic("no license") })
			s.Process("empty", func() *nothing { return &nothing{} })
			s.Process("value", func() nothing { return nothing{} })
		}, []string{
			`Process("nil"): the constructor returns nil`,
			`Process("one"): the constructor returns the same processor twice: tasks run at the same time, so each needs one of its own`,
			`Process("none"): the constructor returns nil`,
			`Process("panic"): the constructor panics: no license`}},
		{"stores that are not attached", func(b *Builder) {
			s, x, y := b.Stream(in), kv("x"), kv("y")
			s.Process("p", func() *holder {
				return &holder{Outer: x, inner: inner{y}, other: os.Stdin, own: &wrapped{KeyValueStore: y}}
			}, x)
			s.Process("q", func() holder { return holder{Outer: x, inner: inner{y}} })
		}, []string{
			`Process("p"): the processor uses store "y", which is not attached: pass it to Process as a last argument`,
			`Process("q"): the processor uses store "x", which is not attached: pass it to Process as a last argument`,
			`the processor uses store "y", which is not attached: pass it to Process as a last argument`}},
	} {
		b := NewBuilder()
		test.declare(b)
		top, err := b.Build()
		if err == nil {
			t.Errorf("%s: no error, want %q", test.name, test.want)
			continue
		}
		if top != nil {
			t.Errorf("%s: a topology with an error", test.name)
		}
		got := stampBytes.ReplaceAllString(place.ReplaceAllString(err.Error(), ""), "take N bytes")
		if want := strings.Join(test.want, "\n"); got != want {
			t.Errorf("%s:\ngot:\n%s\nwant:\n%s", test.name, got, want)
		}
	}
}

// uncomparableSerde holds something that == cannot compare.
type uncomparableSerde struct {
	_ []int
	serde.Serde[string]
}

type processorOfStrings = Processor[string, string, string, string]

// nothing is a processor without fields: all its instances may be at one address.
type nothing struct{ ProcessorDefaults }

func (nothing) Init(*Task, *Emitter[string, string]) error { return nil }
func (nothing) Process(Record[string, string]) error       { return nil }

type inner struct {
	store *KeyValueStore[string, string]
}

// holder holds stores in several places.
type holder struct {
	nothing
	Outer *KeyValueStore[string, string]
	inner inner
	None  *KeyValueStore[int64, int64]
	other *os.File
	own   *wrapped
}

// wrapped is a pointer that has the methods of a store and is none.
type wrapped struct {
	_ int
	*KeyValueStore[string, string]
}

// lengths is a processor that changes both types.
type lengths struct{ ProcessorDefaults }

func newLengths() *lengths { return &lengths{} }

func (*lengths) Init(*Task, *Emitter[int64, int64]) error { return nil }
func (*lengths) Process(Record[string, string]) error     { return nil }

// Errors say where in the program the step is, whether it has a name or not.
func TestBuildErrorPlace(t *testing.T) {
	t.Parallel()
	b := NewBuilder()
	s := b.Stream(in)
	s.Filter(nil)
	s.SelectKey(func(k, _ string) string { return k }).
		GroupByKey().
		Count("n")
	_, err := b.Build()
	source, readErr := os.ReadFile("dsl_build_test.go")
	if readErr != nil {
		t.Fatal(readErr)
	}
	line := func(text string) int {
		before, _, _ := strings.Cut(string(source), text)
		return strings.Count(before, "\n") + 1
	}
	at := line("	s.Filter(nil)\n	s.SelectKey")
	want := fmt.Sprintf("Filter (dsl_build_test.go:%d): the function is nil\n"+
		"Count(\"n\") (dsl_build_test.go:%d): the serde of the keys is not known, because SelectKey (dsl_build_test.go:%d) makes new keys: say .Serdes(...) behind that step", at, at+3, at+1)
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}

func TestBuildOnce(t *testing.T) {
	t.Parallel()
	b := NewBuilder()
	s := b.Stream(in)
	tb := s.ToTable("t")
	g := s.GroupByKey()
	gt := tb.GroupBy("g", serde.String, serde.String, func(k, v string) (string, string) { return k, v })
	sp := s.Split("s")
	top, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	if err := top.check(); err != nil {
		t.Errorf("nothing came late: %v", err)
	}
	before := top.String()
	s.Filter(func(_, _ string) bool { return true }).To(out)
	s.GroupByKey().Count("m")
	tb.ToStream()
	g.Count("n")
	gt.Count("o")
	sp.Default("rest")
	b.Stream(out)
	b.Table("u", out)
	if _, err := b.Build(); err == nil || !strings.Contains(err.Error(), "was built before") {
		t.Errorf("second Build: %v", err)
	}
	if top.String() != before {
		t.Errorf("the topology changed:\n%s", top)
	}
	want := []string{"Filter", "GroupByKey", "ToStream", `Count("n")`, `GroupedTable.Count("o")`, `Default("rest") of Split("s")`, `Stream("out")`, `Table("u")`}
	got := strings.Split(place.ReplaceAllString(fmt.Sprint(top.check()), ""), "\n")
	for i, w := range want {
		if i >= len(got) || got[i] != w+" came after Build and has no effect: declare every step before" {
			t.Errorf("late calls %q, want one of %s", got, w)
			break
		}
	}
	if len(got) != len(want) {
		t.Errorf("late calls %q", got)
	}
}

// What is from no builder has nobody to tell.
func TestZeroValuesPanic(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(){
		"To of a Stream":                   func() { Stream[string, string]{}.To(out) },
		"ToStream of a Table":              func() { Table[string, string]{}.ToStream() },
		`Count("n") of a Grouped`:          func() { Grouped[string, string]{}.Count("n") },
		`GroupedTable.Count("n") of a Gro`: func() { GroupedTable[string, string]{}.Count("n") },
	} {
		func() {
			defer func() {
				name = strings.Replace(name, "To of", `To("out") of`, 1)
				if got := fmt.Sprint(recover()); !strings.HasPrefix(got, "weir: "+name) {
					t.Errorf("panic %q, want %q", got, name)
				}
			}()
			use()
		}()
	}
}

func TestResetPolicies(t *testing.T) {
	t.Parallel()
	if topology.ResetPolicy(Earliest) != topology.Earliest || topology.ResetPolicy(Latest) != topology.Latest || topology.ResetPolicy(Fail) != topology.Fail {
		t.Error("the policies of the API are others than those of the graph")
	}
}

func TestMergeOfNothing(t *testing.T) {
	t.Parallel()
	s := NewBuilder().Stream(in)
	if m := s.Merge(); m.n != s.n {
		t.Error("a merge of one stream added a step")
	}
}

// What the runtime is told about sources and stores.
func TestPlans(t *testing.T) {
	t.Parallel()
	b := NewBuilder()
	b.Stream(in, StartAt(Latest)).GroupBy("g", serde.String, func(_, v string) string { return v }).Count("n", WithoutChangelog())
	b.Table("t", out, StartAt(Fail), WithoutChangelog()).ToStream().To(NewTopic("audit", serde.String, serde.String))
	kv := NewKeyValueStore("kv", serde.String, serde.String)
	b.Stream(in).Process("p", newEcho, kv)
	b.Stream(NewTopic("retry", serde.String, serde.String), Feedback()).To(NewTopic("retry", serde.String, serde.String))
	top, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for i, p := range top.plans("app") {
		got += fmt.Sprintf("%d %v %+v\n", p.Subtopology, p.Inputs, p.Stores)
		if s := top.graph.Subtopologies[i]; s.ID != p.Subtopology || int(s.ID) != i {
			t.Errorf("plan %d is of subtopology %d", i, p.Subtopology)
		}
		for _, src := range top.graph.Subtopologies[i].Sources {
			got += fmt.Sprintf("  %s from %s\n", src.Name, src.Reset)
		}
	}
	want := `0 [in] [{Name:kv Changelog:app-kv-changelog Timestamped:false}]
  in from Latest
1 [app-g-repartition] [{Name:n Changelog: Timestamped:true}]
  g from Earliest
2 [out] [{Name:t Changelog: Timestamped:true}]
  out from Fail
3 [retry] []
  retry from Earliest
`
	if got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
	infos := top.stores()
	for name, sub := range map[string]int32{"n": 1, "t": 2, "kv": 0} {
		if infos[name].subtopology != sub || infos[name].name != name {
			t.Errorf("store %s: %+v", name, infos[name])
		}
	}
	if len(infos) != 3 || kv.Name() != "kv" || in.Name() != "in" {
		t.Errorf("%d stores", len(infos))
	}
}
