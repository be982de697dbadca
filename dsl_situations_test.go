package weir

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/serde"
)

// A null key in a keyed aggregation is dropped and counted, by itself or in
// front of a repartition topic.
func TestSituationD4NullKey(t *testing.T) {
	t.Parallel()
	for name, declare := range map[string]func(b *Builder){
		"by key": func(b *Builder) { b.Stream(in).GroupByKey().Count("n").ToStream().To(outCounts) },
		"repartitioned": func(b *Builder) {
			b.Stream(in).Process("p", newEcho).GroupByKey().Count("n").ToStream().To(outCounts)
		},
	} {
		d := start(t, map[string]int32{"in": 3}, declare)
		d.rows(showCounts, []row{{"null=x @1", "- (dropped +1)"}, {"a=x @2", "a=1 @2"}})
		if n := d.drops(dropNullKey); n != 1 {
			t.Errorf("%s: %d null keys dropped, want 1", name, n)
		}
	}
}

func TestSituationD5DifferentPartitionCounts(t *testing.T) {
	t.Parallel()
	b := NewBuilder()
	b.Stream(in).Merge(b.Stream(NewTopic("in2", serde.String, serde.String))).GroupByKey().Count("n")
	top, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	_, err = top.graph.ResolvePartitions("app", map[string]int32{"in": 4, "in2": 6})
	if err == nil || !strings.Contains(err.Error(), `topic "in" (4 partitions) and topic "in2" (6 partitions)`) {
		t.Errorf("error %v", err)
	}
	if _, err = top.graph.ResolvePartitions("app", map[string]int32{"in": 6, "in2": 6}); err != nil {
		t.Error(err)
	}

	// A processor behind a changed key looks after its keys itself.
	key := func(k, _ string) string { return k }
	for name, change := range map[string]func(s Stream[string, string]) Stream[string, string]{
		"none":      func(s Stream[string, string]) Stream[string, string] { return s.Peek(func(_, _ string) {}) },
		"SelectKey": func(s Stream[string, string]) Stream[string, string] { return s.SelectKey(key) },
		"Map": func(s Stream[string, string]) Stream[string, string] {
			return s.Map(func(k, v string) (string, string) { return k, v })
		},
		"FlatMap": func(s Stream[string, string]) Stream[string, string] {
			return s.FlatMap(func(_, _ string, _ func(string, string)) {})
		},
		"Process": func(s Stream[string, string]) Stream[string, string] { return s.Process("other", newEcho) },
	} {
		b := NewBuilder()
		change(b.Stream(in).Merge(b.Stream(NewTopic("in2", serde.String, serde.String)))).
			Process("p", newEcho, NewKeyValueStore("kv", serde.String, serde.String))
		top, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		_, err = top.graph.ResolvePartitions("app", map[string]int32{"in": 4, "in2": 6})
		if (err != nil) != (name == "none") {
			t.Errorf("behind %s: %v", name, err)
		}
	}
}

func TestSituationD10MissingTopics(t *testing.T) {
	t.Parallel()
	b := NewBuilder()
	b.Stream(in)
	b.Stream(NewTopic("lost", serde.String, serde.String))
	b.Table("t", NewTopic("gone", serde.String, serde.String))
	top, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	_, err = top.graph.ResolvePartitions("app", map[string]int32{"in": 4})
	if err == nil || !strings.Contains(err.Error(), `"gone", "lost"`) {
		t.Errorf("error %v", err)
	}
}

// One record of a thousand cannot be decoded: 999 results and one dead letter
// with the original bytes and where they came from.
func TestSituationE1OneUndecodableValue(t *testing.T) {
	t.Parallel()
	d := start(t, nil, func(b *Builder) {
		b.Stream(NewTopic("in", serde.String, serde.JSON[point]())).GroupByKey().Count("n").ToStream().To(outCounts)
	}, deadLetter)
	for i := range 1000 {
		value := `{"X":1}`
		if i == 500 {
			value = `{"X":`
		}
		d.send("in", []byte("k"), []byte(value), int64(i), task.Header{Key: "h", Value: []byte("kept")})
	}
	out, dead := d.take("out"), d.take(driverDeadLetter)
	if len(out) != 999 || showCounts(out[998]) != "k=999 @999" {
		t.Fatalf("%d results", len(out))
	}
	if len(dead) != 1 || string(dead[0].Key) != "k" || string(dead[0].Value) != `{"X":` || dead[0].Timestamp != 500 {
		t.Fatalf("dead letters %v", shownAll(dead, wire))
	}
	h := fmt.Sprintf("%s", dead[0].Headers)
	for _, want := range []string{"{h kept}", "{weir-topic in}", "{weir-partition 0}", "{weir-offset 500}", "{weir-timestamp 500}",
		"{weir-node STREAM-SOURCE-0000000000}", "{weir-error-class decode}", "{weir-error value: decode json(weir.point): "} {
		if !strings.Contains(h, want) {
			t.Errorf("headers %s lack %s", h, want)
		}
	}
}

// An error of user code obeys the same policy as one of decoding, and stops the
// task if there is none.
func TestSituationE3ErrorInUserCode(t *testing.T) {
	t.Parallel()
	declare := func(b *Builder) {
		b.Stream(in).TryMapValues(func(_, v string) (string, error) {
			if v == "bad" {
				return "", errors.New("no such user")
			}
			return v, nil
		}).To(out)
	}
	d := start(t, nil, declare, deadLetter)
	d.rows(showStrings, []row{{"a=1 @1", "a=1 @1"}, {"a=bad @2", "-"}, {"a=3 @3", "a=3 @3"}})
	if got := d.deadLetters(); len(got) != 1 || got[0] != "STREAM-TRYMAPVALUES-0000000001 process: no such user" {
		t.Errorf("dead letters %q", got)
	}
	d = start(t, nil, declare)
	d.send("in", []byte("a"), []byte("bad"), 1)
	var e *task.Error
	if !errors.As(d.err, &e) || e.Topic != "in" || e.Offset != 0 || e.Node != "STREAM-TRYMAPVALUES-0000000001" {
		t.Errorf("error %v", d.err)
	}
}

func TestSituationG1DeleteThenIterate(t *testing.T) {
	t.Parallel()
	d := scripted(t, func(p *script) {
		p.process = func(p *script, r Record[string, string]) error {
			kv := p.kv[0]
			if r.Tombstone {
				if err := kv.Delete(r.Key); err != nil {
					return err
				}
			} else if err := kv.Put(r.Key, r.Value); err != nil {
				return err
			}
			var all []string
			for k, v := range kv.Range(All[string]()) {
				all = append(all, k+v)
			}
			p.out.Emit(Record[string, string]{Key: "all", Value: strings.Join(all, ",")})
			return nil
		}
	})
	d.rows(showStrings, []row{{"a=1 @1", "all=a1 @1"}, {"b=2 @2", "all=a1,b2 @2"}, {"a=null @3", "all=b2 @3"}, {"b=null @4", "all= @4"}})
}

func TestSituationH3FirstElementOfRange(t *testing.T) {
	t.Parallel()
	d := scripted(t, func(p *script) {
		p.process = func(p *script, r Record[string, string]) error {
			if r.Value != "?" {
				return p.kv[0].Put(r.Key, r.Value)
			}
			for k := range p.kv[0].Range(From(r.Key)) {
				p.out.Emit(Record[string, string]{Key: k})
				break
			}
			return nil
		}
	})
	d.rows(showStrings, []row{{"a=1 @1", "-"}, {"b=1 @1", "-"}, {"c=1 @1", "-"}, {"b=? @2", "b= @2"}, {"bb=? @2", "c= @2"}})
}
