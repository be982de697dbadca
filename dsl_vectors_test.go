package weir

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/serde"
)

// The tests of this file are what Kafka Streams 4.4.0 does, executed there, with
// the deliberate differences of docs/operators.md.

func TestTableGroupByCount(t *testing.T) {
	t.Parallel()
	d := start(t, nil, func(b *Builder) {
		b.Table("rows", in).
			GroupBy("by-letter", serde.String, serde.String, func(_ string, v string) (string, string) { return v[:1], v }).
			Count("letters").ToStream().To(outCounts)
	})
	d.rows(showCounts, []row{
		{"1=a1 @0", "a=1 @0"},
		{"2=a2 @1", "a=2 @1"},
		{"1=b1 @2", "a=1 @2; b=1 @2"},
		{"2=a9 @3", "a=1 @3"}, // one update: the key is the same
		{"1=null @4", "b=0 @4"},
		{"2=null @5", "a=0 @5"},
		{"9=null @6", "-"},
		{"3=a @1", "a=1 @5"}, // out of order: the timestamp stays at the largest
	})
}

// remove is Reduce or Update with a value that deletes.
func TestReduceAndDelete(t *testing.T) {
	t.Parallel()
	join := func(_, v, old string, found bool) (string, bool) {
		switch {
		case v == "del":
			return "", false
		case found:
			return old + "+" + v, true
		}
		return v, true
	}
	d := start(t, nil, func(b *Builder) {
		b.Stream(in).GroupByKey().Update("joined", serde.String, join).ToStream().To(out)
	})
	d.rows(showStrings, []row{
		{"a=1 @5", "a=1 @5"},
		{"a=2 @3", "a=1+2 @5"},
		{"a=null @9", "- (dropped +1)"},
		{"null=z @9", "- (dropped +1)"},
		{"a=del @10", "a=null @10"},
		{"a=3 @4", "a=3 @4"}, // anew, with a timestamp of its own
	})
	if k, v := d.drops(dropNullKey), d.drops(dropNullValue); k != 1 || v != 1 {
		t.Errorf("dropped %d null keys and %d null values, want 1 and 1", k, v)
	}
}

func TestReduce(t *testing.T) {
	t.Parallel()
	d := start(t, nil, func(b *Builder) {
		b.Stream(in).GroupByKey().Reduce("joined", func(a, b string) string { return a + "+" + b }).ToStream().To(out)
	})
	d.rows(showStrings, []row{
		{"a=1 @5", "a=1 @5"},
		{"a=2 @3", "a=1+2 @5"},
		{"a=null @9", "- (dropped +1)"},
		{"null=z @9", "- (dropped +1)"},
		{"b=x @1", "b=x @1"},
		{"a=3 @10", "a=1+2+3 @10"},
	})
}

func TestUpdateForwardsTombstones(t *testing.T) {
	t.Parallel()
	d := start(t, nil, func(b *Builder) {
		b.Stream(in).GroupByKey().Update("last", serde.String,
			func(_, v, _ string, _ bool) (string, bool) { return v, v != "del" }).ToStream().To(out)
	})
	d.rows(showStrings, []row{
		{"a=x @1", "a=x @1"},
		{"a=del @2", "a=null @2"},
		{"a=del @3", "a=null @3"}, // nothing was stored
		{"a=y @1", "a=y @1"},
	})
	want := []string{"a=x @1", "a=null @2", "a=y @1"} // the second deletion changes nothing
	if got := fmt.Sprint(shownAll(d.take("app-last-changelog"), showStrings)); got != fmt.Sprint(want) {
		t.Errorf("changelog %s, want %s", got, want)
	}
}

func shownAll(outputs []task.Output, show func(task.Output) string) []string {
	var all []string
	for _, o := range outputs {
		all = append(all, show(o))
	}
	return all
}

func TestTableFilter(t *testing.T) {
	t.Parallel()
	called := ""
	d := start(t, nil, func(b *Builder) {
		b.Table("rows", in).Filter(func(_, v string) bool { called += v + " "; return len(v) > 1 }).ToStream().To(out)
	})
	d.rows(showStrings, []row{
		{"a=1 @0", "a=null @0"},
		{"a=22 @1", "a=22 @1"},
		{"a=3 @2", "a=null @2"},
		{"a=4 @3", "a=null @3"},
		{"a=null @4", "a=null @4"},
		{"b=null @5", "b=null @5"},
	})
	if called != "1 22 3 4 " {
		t.Errorf("the predicate saw %q", called)
	}
}

// With old values asked for, a filter knows what was there and says nothing of
// keys that neither were nor are in the table.
func TestTableFilterWithOldValues(t *testing.T) {
	t.Parallel()
	d := start(t, nil, func(b *Builder) {
		filtered := b.Table("rows", in).Filter(func(_, v string) bool { return len(v) > 1 })
		filtered.ToStream().To(out)
		filtered.GroupBy("all", serde.String, serde.String, func(_, v string) (string, string) { return "n", v }).Count("n")
	})
	d.rows(showStrings, []row{
		{"a=1 @0", "-"},
		{"a=22 @1", "a=22 @1"},
		{"a=3 @2", "a=null @2"},
		{"a=4 @3", "-"},
		{"a=null @4", "-"},
		{"b=null @5", "-"},
	})
	want := "[n=1 @1 n=0 @2]"
	if got := fmt.Sprint(shownAll(d.take("app-n-changelog"), showCounts)); got != want {
		t.Errorf("counted %s, want %s", got, want)
	}
}

func TestTableMapValues(t *testing.T) {
	t.Parallel()
	d := start(t, nil, func(b *Builder) {
		b.Table("rows", in).MapValues(func(_, v string) string { return "m" + v }).ToStream().To(out)
	})
	d.rows(showStrings, []row{
		{"a=1 @0", "a=m1 @0"},
		{"a=null @1", "a=null @1"},
		{"b=null @2", "b=null @2"},
		{"a=1 @0", "a=m1 @0"},
	})
}

// Kafka Streams calls the mapper with null; here a missing value passes it by.
func TestStreamMapValues(t *testing.T) {
	t.Parallel()
	d := start(t, nil, func(b *Builder) {
		b.Stream(in).MapValues(func(_, v string) string { return "m" + v }).To(out)
	})
	d.rows(showStrings, []row{
		{"a=null @0", "a=null @0"},
		{"null=x @1", "null=mx @1"},
	})
}

func TestToTable(t *testing.T) {
	t.Parallel()
	d := start(t, nil, func(b *Builder) { b.Stream(in).ToTable("rows").ToStream().To(out) })
	d.rows(showStrings, []row{
		{"a=1 @5", "a=1 @5"},
		{"a=null @6", "a=null @6"},
		{"null=x @7", "- (dropped +1)"},
		{"a=2 @3", "a=2 @3"},
		{"a=3 @1", "a=3 @1"}, // the later offset counts, though it is older
	})
}

// KIP-557: the same bytes again, no older than what is stored.
func TestTableWithoutChange(t *testing.T) {
	t.Parallel()
	d := start(t, nil, func(b *Builder) { b.Table("rows", in).ToStream().To(out) })
	d.rows(showStrings, []row{
		{"a=1 @5", "a=1 @5"},
		{"a=1 @5", "-"},
		{"a=1 @9", "-"},
		{"a=1 @4", "a=1 @4"}, // older
		{"a=1 @4", "-"},
		{"a=2 @4", "a=2 @4"},
		{"a=null @5", "a=null @5"},
		{"a=null @6", "a=null @6"}, // never held back
		{"a=2 @5", "a=2 @5"},
	})
	if n := d.drops(dropNoChange); n != 3 {
		t.Errorf("%d updates were held back, want 3", n)
	}
	want := "[a=1 @5 a=1 @4 a=2 @4 a=null @5 a=2 @5]"
	if got := fmt.Sprint(shownAll(d.take("app-rows-changelog"), showStrings)); got != want {
		t.Errorf("changelog %s, want %s", got, want)
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	d := start(t, nil, func(b *Builder) { b.Stream(in).GroupByKey().Count("n").ToStream().To(outCounts) })
	d.rows(showCounts, []row{
		{"a=x @5", "a=1 @5"},
		{"a=y @3", "a=2 @5"},
		{"a=null @9", "- (dropped +1)"},
		{"null=x @9", "- (dropped +1)"},
		{"b=x @1", "b=1 @1"},
		{"a=z @7", "a=3 @7"},
	})
}

// wire prints a record as bytes.
func wire(o task.Output) string {
	return fmt.Sprintf("%s key=%s value=%s ts=%d", o.Topic, hexOrNull(o.Key), hexOrNull(o.Value), o.Timestamp)
}

func hexOrNull(b []byte) string {
	if b == nil {
		return "null"
	}
	return hex.EncodeToString(b)
}

func (d *driver) expectWire(input string, want ...string) {
	d.t.Helper()
	d.log = nil
	topic, key, value, ts := parseInput(d.t, input)
	d.send(topic, key, value, ts)
	if d.err != nil {
		d.t.Fatal(d.err)
	}
	got := shownAll(d.log, wire)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		d.t.Errorf("%s:\n got %s\nwant %s", input, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

func TestWireGroupByKeyCount(t *testing.T) {
	t.Parallel()
	d := start(t, nil, func(b *Builder) {
		b.Stream(in).GroupBy("g", serde.String, func(_, v string) string { return v }).Count("c").ToStream().To(outCounts)
	})
	d.expectWire("a=x @5",
		"app-g-repartition key=78 value=78 ts=5",
		"out key=78 value=0000000000000001 ts=5",
		"app-c-changelog key=78 value=0000000000000001 ts=5")
	d.expectWire("b=x @3",
		"app-g-repartition key=78 value=78 ts=3",
		"out key=78 value=0000000000000002 ts=5",
		"app-c-changelog key=78 value=0000000000000002 ts=5")
}

func TestWireTableGroupBy(t *testing.T) {
	t.Parallel()
	d := start(t, nil, func(b *Builder) {
		b.Table("t", in).
			GroupBy("g", serde.String, serde.String, func(_, v string) (string, string) { return v[:1], v }).
			Aggregate("ag", serde.String, func() string { return "0" },
				func(_, v, a string) string { return a + "+" + v },
				func(_, v, a string) string { return a + "-" + v })
	})
	source := func(value string, ts int) string {
		return fmt.Sprintf("app-t-changelog key=41 value=%s ts=%d", value, ts)
	}
	d.expectWire("A=a1 @10",
		"app-g-repartition key=61 value=613101 ts=10", source("6131", 10),
		"app-ag-changelog key=61 value=302b6131 ts=10")
	d.expectWire("A=a2 @11",
		"app-g-repartition key=61 value=046132613102 ts=11", source("6132", 11),
		"app-ag-changelog key=61 value=302b61312d61312b6132 ts=11")
	d.expectWire("A=b1 @12",
		"app-g-repartition key=61 value=613200 ts=12",
		"app-g-repartition key=62 value=623101 ts=12", source("6231", 12),
		"app-ag-changelog key=61 value=302b61312d61312b61322d6132 ts=12",
		"app-ag-changelog key=62 value=302b6231 ts=12")
	d.expectWire("A=null @13",
		"app-g-repartition key=62 value=623100 ts=13", source("null", 13),
		"app-ag-changelog key=62 value=302b62312d6231 ts=13")
}

// What a table keeps locally: the timestamp in front of the value.
func TestWireLocalTable(t *testing.T) {
	t.Parallel()
	d := start(t, nil, func(b *Builder) { b.Table("t", in) })
	d.send("in", []byte("a"), []byte("1"), 10)
	raw, found, err := d.tasks[0].Store("t").GetCommitted([]byte("a"))
	if got := hex.EncodeToString(raw); got != "000000000000000a31" || !found || err != nil {
		t.Errorf("stored %s %t %v", got, found, err)
	}
}

// ticker emits a record at each punctuation, and every record that comes.
type ticker struct {
	ProcessorDefaults
	stream, wall time.Duration
	t            *Task
	out          *Emitter[string, string]
}

func (p *ticker) Init(t *Task, out *Emitter[string, string]) error {
	p.t, p.out = t, out
	if p.stream > 0 {
		t.EveryStreamTime(p.stream, func(now time.Time) error { return p.tick("P", now) })
	}
	if p.wall > 0 {
		t.EveryWallClock(p.wall, func(now time.Time) error { return p.tick("W", now) })
	}
	return nil
}

func (p *ticker) tick(key string, now time.Time) error {
	p.out.Emit(Record[string, string]{Key: key, Value: fmt.Sprintf("t%d/st%d", now.UnixMilli(), p.t.StreamTime().UnixMilli())})
	return nil
}

func (p *ticker) Process(r Record[string, string]) error {
	p.out.Emit(r)
	return nil
}

func TestStreamTimePunctuation(t *testing.T) {
	t.Parallel()
	begin := func() *driver {
		return start(t, nil, func(b *Builder) {
			b.Stream(in).Process("tick", func() *ticker { return &ticker{stream: 10 * time.Millisecond} }).To(out)
		})
	}
	d := begin()
	d.rows(showStrings, []row{
		{"a=x @3", "a=x @3; P=t3/st3 @3"},
		{"a=x @9", "a=x @9"},
		{"a=x @10", "a=x @10; P=t10/st10 @10"},
		{"a=x @12", "a=x @12"},
		{"a=x @13", "a=x @13"},
		{"a=x @55", "a=x @55; P=t55/st55 @55"},
		{"a=x @59", "a=x @59"},
		{"a=x @61", "a=x @61; P=t61/st61 @61"},
		{"a=x @30", "a=x @30"},
		{"a=x @63", "a=x @63"},
	})
	d.advance(100)
	if got := d.take("out"); len(got) > 0 {
		t.Errorf("the wall clock made %s", shownAll(got, showStrings))
	}
	begin().rows(showStrings, []row{
		{"a=x @25", "a=x @25; P=t25/st25 @25"},
		{"a=x @30", "a=x @30; P=t30/st30 @30"},
		{"a=x @35", "a=x @35"},
		{"a=x @45", "a=x @45; P=t45/st45 @45"},
	})
}

func TestWallClockPunctuation(t *testing.T) {
	t.Parallel()
	d := start(t, nil, func(b *Builder) {
		b.Stream(in).Process("tick", func() *ticker { return &ticker{wall: 10 * time.Millisecond} }).To(out)
	})
	d.rows(showStrings, []row{{"a=x @700", "a=x @700"}})
	for _, step := range []struct {
		ms   int64
		want string
	}{{9, "[]"}, {1, "[W=t10/st700 @10]"}, {5, "[]"}, {30, "[W=t45/st700 @45]"}, {4, "[]"}, {1, "[W=t50/st700 @50]"}} {
		d.advance(step.ms)
		if got := fmt.Sprint(shownAll(d.take("out"), showStrings)); got != step.want {
			t.Errorf("at %d: %s, want %s", d.now, got, step.want)
		}
	}
}

// Names of topics and stores, without generated ones.
func TestNames(t *testing.T) {
	t.Parallel()
	upper := func(k, _ string) string { return strings.ToUpper(k) }
	for _, test := range []struct {
		name    string
		declare func(b *Builder)
		want    string
	}{
		{"group by and count", func(b *Builder) {
			b.Stream(in).GroupBy("grp", serde.String, upper).Count("cnt")
		}, "app-cnt-changelog app-grp-repartition"},
		{"select key and count", func(b *Builder) {
			b.Stream(in).SelectKey(upper).Serdes(serde.String, serde.String).GroupByKey().Count("cnt")
		}, "app-cnt-changelog app-cnt-repartition"},
		{"select key, then count and reduce", func(b *Builder) {
			g := b.Stream(in).SelectKey(upper).Serdes(serde.String, serde.String).GroupByKey()
			g.Count("cnt")
			g.Reduce("red", func(a, _ string) string { return a })
		}, "app-cnt-changelog app-red-changelog app-cnt-repartition app-red-repartition"},
		{"two aggregations of one group", func(b *Builder) {
			g := b.Stream(in).GroupBy("grp", serde.String, upper)
			g.Count("cnt")
			g.Reduce("red", func(a, _ string) string { return a })
		}, "app-cnt-changelog app-red-changelog app-grp-repartition"},
		{"two aggregations of one table group", func(b *Builder) {
			g := b.Table("t", in).GroupBy("grp", serde.String, serde.String, func(k, v string) (string, string) { return v, k })
			g.Count("cnt")
			g.Reduce("red", serde.String, func(a, _ string) string { return a }, func(a, _ string) string { return a })
		}, "app-cnt-changelog app-red-changelog app-t-changelog app-grp-repartition"},
		{"repartition", func(b *Builder) { b.Stream(in).Repartition("rp").To(out) }, "app-rp-repartition"},
		{"to table by another key", func(b *Builder) {
			b.Stream(in).SelectKey(upper).Serdes(serde.String, serde.String).ToTable("t")
		}, "app-t-changelog app-t-repartition"},
		{"same name for group and store", func(b *Builder) {
			b.Stream(in).GroupBy("x", serde.String, upper).Count("x")
		}, "app-x-changelog app-x-repartition"},
		{"group without aggregation", func(b *Builder) {
			b.Stream(in).GroupBy("x", serde.String, upper)
		}, ""},
		{"no changelog", func(b *Builder) { b.Stream(in).GroupByKey().Count("x", WithoutChangelog()) }, ""},
	} {
		d := start(t, nil, test.declare)
		var got []string
		for _, topic := range append(d.res.Changelogs, d.res.Repartitions...) {
			got = append(got, topic.Name)
		}
		if s := strings.Join(got, " "); s != test.want {
			t.Errorf("%s: %s, want %s", test.name, s, test.want)
		}
	}
}
