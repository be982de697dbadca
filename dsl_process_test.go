package weir

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state"
)

// script is a processor made of functions.
type script struct {
	stores  []*KeyValueStore[string, string]
	kv      []KeyValue[string, string]
	t       *Task
	out     *Emitter[string, string]
	init    func(p *script) error
	process func(p *script, r Record[string, string]) error
	close   func(p *script) error
}

func (p *script) Init(t *Task, out *Emitter[string, string]) error {
	p.t, p.out = t, out
	for _, s := range p.stores {
		p.kv = append(p.kv, s.Open(t))
	}
	if p.init != nil {
		return p.init(p)
	}
	return nil
}

func (p *script) Process(r Record[string, string]) error { return p.process(p, r) }

func (p *script) Close() error {
	if p.close != nil {
		return p.close(p)
	}
	return nil
}

// scripted starts a topology with one processor that has one store.
func scripted(t *testing.T, make func(p *script), onError ...func(*task.Error) task.Decision) *driver {
	t.Helper()
	return start(t, nil, func(b *Builder) {
		kv := NewKeyValueStore("kv", serde.String, serde.String)
		b.Stream(in).Process("script", func() *script {
			p := &script{stores: []*KeyValueStore[string, string]{kv}}
			make(p)
			return p
		}, kv).To(out)
	}, onError...)
}

func deadLetter(*task.Error) task.Decision { return task.DeadLetter }

func TestKeyValue(t *testing.T) {
	t.Parallel()
	d := scripted(t, func(p *script) {
		p.process = func(p *script, r Record[string, string]) error {
			kv := p.kv[0]
			switch {
			case r.Tombstone:
				return kv.Delete(r.Key)
			case r.Value == "?":
				v, found, err := kv.Get(r.Key)
				p.out.Emit(Record[string, string]{Key: r.Key, Value: fmt.Sprintf("%q,%t", v, found)})
				return err
			}
			return kv.Put(r.Key, r.Value)
		}
	})
	d.rows(showStrings, []row{
		{"a=? @1", `a="",false @1`},
		{"a=1 @2", "-"},
		{"a=? @3", `a="1",true @3`},
		{"a=2 @1", "-"},
		{"a=? @4", `a="2",true @4`},
		{"a=null @5", "-"},
		{"b=null @6", "-"},
		{"a=? @7", `a="",false @7`},
	})
	want := "[app-kv-changelog key=61 value=31 ts=2 app-kv-changelog key=61 value=32 ts=1 app-kv-changelog key=61 value=null ts=5 app-kv-changelog key=62 value=null ts=6]"
	if got := fmt.Sprint(shownAll(d.take("app-kv-changelog"), wire)); got != want {
		t.Errorf("changelog %s\nwant %s", got, want)
	}
}

// Filled with b=1, a=2, ab=3, é=4, c deleted: what each range yields, while the
// entries are uncommitted, then committed, then half of each.
func TestKeyValueRange(t *testing.T) {
	t.Parallel()
	ranges := map[string]struct {
		bounds Bounds[string]
		want   string
	}{
		"all":             {All[string](), "a=2 ab=3 b=1 é=4"},
		"zero":            {Bounds[string]{}, "a=2 ab=3 b=1 é=4"},
		"a to b":          {Between("a", "b"), "a=2 ab=3 b=1"},
		"a to a":          {Between("a", "a"), "a=2"},
		"b to a":          {Between("b", "a"), ""},
		"aa to az":        {Between("aa", "az"), "ab=3"},
		"up to b, back":   {Upto("b").Reverse(), "b=1 ab=3 a=2"},
		"up to nothing":   {Upto(""), ""},
		"from ab":         {From("ab"), "ab=3 b=1 é=4"},
		"prefix":          {Prefix("a"), "a=2 ab=3"},
		"prefix, back":    {Prefix("a").Reverse(), "ab=3 a=2"},
		"empty prefix":    {Prefix(""), "a=2 ab=3 b=1 é=4"},
		"prefix of bytes": {Prefix("\xc3"), "é=4"},
		"twice reversed":  {All[string]().Reverse().Reverse(), "a=2 ab=3 b=1 é=4"},
	}
	var name string
	d := scripted(t, func(p *script) {
		p.process = func(p *script, r Record[string, string]) error {
			kv := p.kv[0]
			if r.Key == "fill" {
				for _, e := range []string{"b1", "a2", "ab3", "é4", "c5"} {
					if err := kv.Put(e[:len(e)-1], e[len(e)-1:]); err != nil {
						return err
					}
				}
				if err := kv.Delete("c"); err != nil {
					return err
				}
			}
			if r.Key == "half" {
				for _, k := range []string{"ab", "é"} {
					v, _, err := kv.Get(k)
					if err := errors.Join(err, kv.Delete(k), kv.Put(k, v)); err != nil {
						return err
					}
				}
			}
			for name = range ranges {
				var got []string
				for k, v := range kv.Range(ranges[name].bounds) {
					got = append(got, k+"="+v)
				}
				if s := strings.Join(got, " "); s != ranges[name].want {
					t.Errorf("%s, %s: %s, want %s", r.Key, name, s, ranges[name].want)
				}
			}
			return nil
		}
	})
	d.rows(showStrings, []row{{"fill=x @1", "-"}, {"read=x @2", "-"}, {"half=x @3", "-"}})
}

func TestKeyValueRangeWhileWriting(t *testing.T) {
	t.Parallel()
	d := scripted(t, func(p *script) {
		p.process = func(p *script, r Record[string, string]) error {
			kv := p.kv[0]
			for _, k := range []string{"a", "b", "c", "d"} {
				if err := kv.Put(k, k); err != nil {
					return err
				}
			}
			var seen []string
			for k := range kv.Range(All[string]()) {
				seen = append(seen, k)
				if k == "a" {
					for k2 := range kv.Range(From("c")) { // nested, left early
						seen = append(seen, "("+k2+")")
						break
					}
					if err := errors.Join(kv.Delete("b"), kv.Put("cc", "new"), kv.Put("0", "behind")); err != nil {
						return err
					}
				}
			}
			p.out.Emit(Record[string, string]{Key: r.Key, Value: strings.Join(seen, ",")})
			n, err := kv.ApproximateCount()
			if n < 0 {
				return fmt.Errorf("count %d", n)
			}
			return err
		}
	})
	d.rows(showStrings, []row{{"k=v @1", "k=a,(c),c,cc,d @1"}})
}

// Records as a processor sees them.
func TestRecord(t *testing.T) {
	t.Parallel()
	var got []string
	see := func(p *script, r Record[string, string]) error {
		got = append(got, fmt.Sprintf("%q %q %t %t %s %v %v %s %d", r.Key, r.Value, r.KeyNull, r.Tombstone,
			r.Time.Format(time.RFC3339Nano), r.Headers, r.Source, p.t.ID(), p.t.StreamTime().UnixMilli()))
		p.out.Emit(r)
		return nil
	}
	d := start(t, map[string]int32{"in": 2}, func(b *Builder) {
		b.Stream(in).Process("a", func() *script { return &script{process: see} }).
			Repartition("r").Process("b", func() *script { return &script{process: see} })
	})
	d.send("in", nil, []byte("v"), 1500)
	d.send("in", []byte("a"), nil, 2, task.Header{Key: "h", Value: []byte{1}})
	want := []string{
		`"" "v" true false 1970-01-01T00:00:01.5Z [] {in 0 0} 0_0 1500`,
		`"" "v" true false 1970-01-01T00:00:01.5Z [] {app-r-repartition 0 0} 1_0 1500`,
		`"a" "" false true 1970-01-01T00:00:00.002Z [{h [1]}] {in 0 1} 0_0 1500`,
		`"a" "" false true 1970-01-01T00:00:00.002Z [{h [1]}] {app-r-repartition 0 1} 1_0 1500`,
	}
	for i, w := range want {
		if i >= len(got) || got[i] != w {
			t.Errorf("record %d: got %q, want %q", i, got, w)
			break
		}
	}
	if d.tasks[1].ID().Partition != 1 {
		t.Errorf("task %s", d.tasks[1].ID())
	}
}

func TestEmitTimes(t *testing.T) {
	t.Parallel()
	d := scripted(t, func(p *script) {
		p.init = func(p *script) error {
			if !p.t.StreamTime().IsZero() || p.t.Partition() != 0 {
				return fmt.Errorf("stream time %s, partition %d", p.t.StreamTime(), p.t.Partition())
			}
			p.t.EveryWallClock(time.Second, func(now time.Time) error {
				p.out.Emit(Record[string, string]{Key: "tick", Value: "own", Time: now.Add(time.Millisecond)})
				p.out.Emit(Record[string, string]{Key: "tick", Value: "none", KeyNull: true})
				p.out.Emit(Record[string, string]{Key: "tick", Value: "none", Tombstone: true})
				return p.kv[0].Put("k", "v")
			})
			return nil
		}
		p.process = func(p *script, r Record[string, string]) error {
			p.out.Emit(Record[string, string]{Key: r.Key, Value: "same"})
			p.out.Emit(Record[string, string]{Key: r.Key, Value: "later", Time: r.Time.Add(time.Minute)})
			if r.Value == "old" {
				p.out.Emit(Record[string, string]{Key: r.Key, Time: time.UnixMilli(-1)})
			}
			return nil
		}
	}, deadLetter)
	d.rows(showStrings, []row{{"k=v @5", "k=same @5; k=later @60005"}})
	d.advance(1000)
	if got := fmt.Sprint(shownAll(d.take("out"), showStrings)); got != "[tick=own @1001 null=none @1000 tick=null @1000]" {
		t.Errorf("the clock made %s", got)
	}
	if got := fmt.Sprint(shownAll(d.take("app-kv-changelog"), showStrings)); got != "[k=v @1000]" {
		t.Errorf("changelog %s", got)
	}
	d.rows(showStrings, []row{{"k=old @5", "-"}})
	if got := d.deadLetters(); len(got) != 1 || !strings.HasPrefix(got[0], "script produce: the record was emitted with the time 1969-12-31") {
		t.Errorf("dead letters %q", got)
	}
}

// The store is one for all processors of a subtopology.
func TestSharedStore(t *testing.T) {
	t.Parallel()
	shared := NewKeyValueStore("shared", serde.String, serde.String)
	stores := []*KeyValueStore[string, string]{shared}
	d := start(t, nil, func(b *Builder) {
		b.Stream(in).Process("put", func() *script {
			return &script{stores: stores, process: func(p *script, r Record[string, string]) error { return p.kv[0].Put(r.Key, r.Value) }}
		}, shared)
		b.Stream(NewTopic("ask", serde.String, serde.String)).Process("get", func() *script {
			return &script{stores: stores, process: func(p *script, r Record[string, string]) error {
				v, _, err := p.kv[0].Get(r.Key)
				r.Value += v
				p.out.Emit(r)
				return err
			}}
		}, shared, shared).To(out)
	})
	if n := len(d.top.graph.Subtopologies); n != 1 {
		t.Errorf("%d subtopologies, want one", n)
	}
	d.rows(showStrings, []row{{"ask a=? @1", "a=? @1"}, {"a=1 @2", "-"}, {"ask a=? @3", "a=?1 @3"}})
}

// What a processor does wrong is an error with its name, not a loss.
func TestProcessorMisuse(t *testing.T) {
	t.Parallel()
	other := NewKeyValueStore("other", serde.String, serde.String)
	hidden := []*KeyValueStore[string, string]{other} // Build does not look into slices
	fail := serde.Func(func(dst []byte, v string) ([]byte, error) { return dst, errors.New("unwritable") },
		func([]byte) (string, error) { return "", errors.New("unreadable") })
	var kept *Emitter[string, string]
	for _, test := range []struct {
		name string
		p    script
		want string
	}{
		{"store that is not attached", script{stores: hidden}, `init of processor "p": store "other" is not attached to processor "p": pass it to Process as a last argument`},
		{"nil store", script{stores: []*KeyValueStore[string, string]{nil}}, `init of processor "p": store nil is not attached`},
		{"error", script{init: func(*script) error { return errors.New("no license") }}, `init of processor "p": no license`},
		{"panic", script{init: func(*script) error { panic("no license") }}, `node p: process error: panic: no license`},
		{"emit in Init", script{init: func(p *script) error { p.out.Emit(Record[string, string]{}); return nil }},
			`init of processor "p": processor "p" emitted a record outside of Process and punctuations`},
		{"interval", script{init: func(p *script) error { p.t.EveryStreamTime(time.Microsecond, nil); return nil }},
			`init of processor "p": EveryStreamTime of processor "p": the function is nil`},
		{"short interval", script{init: func(p *script) error {
			p.t.EveryWallClock(time.Microsecond, func(time.Time) error { return nil })
			return nil
		}}, `init of processor "p": EveryWallClock of processor "p": the interval 1µs is below a millisecond`},
		{"store opened late", script{process: func(p *script, _ Record[string, string]) error {
			kv := other.Open(p.t)
			for range kv.Range(All[string]()) {
				return nil
			}
			_, errCount := kv.ApproximateCount()
			_, _, errGet := kv.Get("k")
			if errGet == nil || errCount == nil || kv.Put("k", "v") == nil || kv.Delete("k") == nil {
				t.Error("a store that is not open took a call")
			}
			return nil
		}}, `store "other" is not attached to processor "p"`},
		{"emit from elsewhere", script{process: func(p *script, r Record[string, string]) error {
			if kept != nil {
				return nil
			}
			kept = p.out
			return nil
		}}, `processor "p" emitted a record outside of Process`},
		{"error of Process", script{process: func(p *script, r Record[string, string]) error {
			p.out.Emit(r)
			return errors.New("on second thoughts")
		}}, `node p, record in[0]@0: process error: on second thoughts`},
		{"error below", script{process: func(p *script, r Record[string, string]) error {
			r.Value = "poison"
			p.out.Emit(r)
			r.Value = "late" // what comes now is ignored
			p.out.Emit(r)
			return errors.New("not the first error")
		}}, `node STREAM-TRYMAPVALUES-0000000001, record in[0]@0: process error: poisoned`},
	} {
		kept = nil
		if test.p.process == nil {
			test.p.process = func(*script, Record[string, string]) error { return nil }
		}
		b := NewBuilder()
		b.Stream(in).Process("p", func() *script { p := test.p; return &p }).
			TryMapValues(func(_, v string) (string, error) {
				switch v {
				case "poison":
					return "", errors.New("poisoned")
				case "late":
					t.Errorf("%s: a record was emitted after a failed one", test.name)
				}
				return v, nil
			})
		top, err := b.Build()
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		res, err := top.graph.ResolvePartitions(driverApp, map[string]int32{"in": 1})
		if err != nil {
			t.Fatal(err)
		}
		d := &driver{t: t, top: top, res: res, offsets: map[string]int64{}}
		tk, err := d.newTask(nil, top.plans(driverApp)[0], 0)
		if err == nil {
			d.tasks = []*task.Task{tk}
			d.send("in", []byte("k"), []byte("v"), 1)
			if kept != nil {
				kept.Emit(Record[string, string]{Key: "k"})
				d.send("in", []byte("k"), []byte("v"), 1)
			}
			err = d.err
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %s", test.name, err, test.want)
		}
	}

	for name, use := range map[string]func(KeyValue[string, string]) error{
		"put": func(kv KeyValue[string, string]) error { return kv.Put("k", "v") },
		"get": func(kv KeyValue[string, string]) error { _, _, err := kv.Get("k"); return err },
		"delete": func(kv KeyValue[string, string]) error {
			return kv.Delete("k")
		},
		"range": func(kv KeyValue[string, string]) error {
			for range kv.Range(From("k")) {
				return errors.New("an entry")
			}
			return nil
		},
		"range to": func(kv KeyValue[string, string]) error {
			for range kv.Range(Upto("k")) {
				return errors.New("an entry")
			}
			return nil
		},
	} {
		bad := NewKeyValueStore("bad", fail, fail)
		d := start(t, nil, func(b *Builder) {
			b.Stream(in).Process("p", func() *script {
				return &script{stores: []*KeyValueStore[string, string]{bad},
					process: func(p *script, _ Record[string, string]) error { return use(p.kv[0]) }}
			}, bad)
		}, deadLetter)
		d.send("in", []byte("k"), []byte("v"), 1)
		// A key that cannot be encoded is an error like any other: it can be dead-lettered.
		if got := d.deadLetters(); len(got) != 1 || !strings.Contains(got[0], "unwritable") {
			t.Errorf("%s: dead letters %q, error %v", name, got, d.err)
		}
	}
}

// A store that fails stops the task, even if the processor does not care.
func TestStoreErrorIsSticky(t *testing.T) {
	t.Parallel()
	unreadable := false
	value := serde.Func(func(dst []byte, v string) ([]byte, error) { return append(dst, v...), nil },
		func(src []byte) (string, error) {
			if unreadable {
				return "", errors.New("unreadable")
			}
			return string(src), nil
		})
	for name, use := range map[string]func(KeyValue[string, string]){
		"get": func(kv KeyValue[string, string]) { _, _, _ = kv.Get("k") },
		"range": func(kv KeyValue[string, string]) {
			for range kv.Range(All[string]()) {
				t.Error("an entry that cannot be decoded")
			}
		},
	} {
		unreadable = false
		kv := NewKeyValueStore("kv", serde.String, value)
		d := start(t, nil, func(b *Builder) {
			b.Stream(in).Process("p", func() *script {
				return &script{stores: []*KeyValueStore[string, string]{kv}, process: func(p *script, r Record[string, string]) error {
					if r.Value == "put" {
						return p.kv[0].Put(r.Key, r.Value)
					}
					unreadable = true
					use(p.kv[0])
					return nil
				}}
			}, kv)
		}, deadLetter)
		d.send("in", []byte("k"), []byte("put"), 1)
		d.send("in", []byte("k"), []byte("use"), 1)
		var e *task.Error
		if !errors.As(d.err, &e) || e.Class != task.ClassStore || e.Node != "p" || !strings.Contains(d.err.Error(), `decode a value in store "kv": `) {
			t.Errorf("%s: %v", name, d.err)
		}
	}

	d := scripted(t, func(p *script) {
		p.process = func(p *script, r Record[string, string]) error {
			for range p.kv[0].Range(All[string]()) {
			}
			return nil
		}
	}, deadLetter)
	if err := d.views[d.tasks[0].ID()].Apply(context.Background(), "another", "token", &state.Batch{}); err == nil {
		t.Fatal("a foreign token was accepted")
	}
	if err := d.views[d.tasks[0].ID()].Close(); err != nil {
		t.Fatal(err)
	}
	d.send("in", []byte("k"), []byte("v"), 1)
	var e *task.Error
	if !errors.As(d.err, &e) || e.Class != task.ClassStore {
		t.Errorf("range over a closed view: %v", d.err)
	}
}

// After an aborted batch processors are made anew, and closed ones can do
// nothing.
func TestAbortMakesProcessorsAnew(t *testing.T) {
	t.Parallel()
	var events []string
	made := 0
	d := scripted(t, func(p *script) {
		made++
		n := made
		note := func(what string) { events = append(events, fmt.Sprintf("%s %d", what, n)) }
		p.init = func(*script) error { note("init"); return nil }
		p.process = func(p *script, r Record[string, string]) error {
			v, _, err := p.kv[0].Get("k")
			note("process " + v)
			return errors.Join(err, p.kv[0].Put("k", r.Value))
		}
		p.close = func(p *script) error {
			note("close")
			p.out.Emit(Record[string, string]{Key: "late"})
			p.t.EveryWallClock(time.Second, func(time.Time) error { return nil })
			for range p.kv[0].Range(All[string]()) {
				t.Error("a closed store has entries")
			}
			if err := p.kv[0].Put("k", "late"); !errors.Is(err, errClosed) {
				t.Errorf("put at close: %v", err)
			}
			return nil
		}
	})
	d.send("in", []byte("k"), []byte("1"), 1)
	tk := d.tasks[0]
	tk.Add(0, task.Record{Offset: 1, Timestamp: 2, Key: []byte("k"), Value: []byte("2")})
	if _, err := tk.Step(0, 10); err != nil {
		t.Fatal(err)
	}
	if err := tk.Abort(); err != nil {
		t.Fatal(err)
	}
	d.send("in", []byte("k"), []byte("3"), 3)
	if err := tk.Close(); err != nil {
		t.Fatal(err)
	}
	// Build made the first two, to look at them.
	want := "init 3,process  3,process 1 3,close 3,init 4,process 1 4,close 4"
	if got := strings.Join(events, ","); got != want {
		t.Errorf("events %s, want %s", got, want)
	}
}

// Everything that was made is closed, whatever the others do.
func TestCloseAll(t *testing.T) {
	t.Parallel()
	var closed []string
	closer := func(name string, f func() error) func() *script {
		return func() *script {
			return &script{process: func(p *script, r Record[string, string]) error { p.out.Emit(r); return nil },
				close: func(*script) error { closed = append(closed, name); return f() }}
		}
	}
	fine := func() error { return nil }
	d := start(t, nil, func(b *Builder) {
		b.Stream(in).Process("a", closer("a", fine)).
			Process("b", closer("b", func() error { panic("stuck") })).
			Process("c", closer("c", func() error { return errors.New("dirty") }))
	})
	err := d.tasks[0].Close()
	if got := strings.Join(closed, ""); got != "abc" {
		t.Errorf("closed %s", got)
	}
	if err == nil || !strings.Contains(err.Error(), "stuck") {
		t.Errorf("error %v", err)
	}

	closed = nil
	b := NewBuilder()
	b.Stream(in).Process("bad", func() *script {
		return &script{init: func(*script) error { return errors.New("no license") }, close: func(*script) error { closed = append(closed, "bad"); return nil }}
	}).Process("below", closer("below", func() error { return errors.New("dirty") }))
	top, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	d = &driver{t: t, top: top}
	if d.res, err = top.graph.ResolvePartitions(driverApp, map[string]int32{"in": 1}); err != nil {
		t.Fatal(err)
	}
	_, err = d.newTask(nil, top.plans(driverApp)[0], 0)
	if got := strings.Join(closed, " "); got != "bad below" {
		t.Errorf("closed %q", got)
	}
	if err == nil || !strings.Contains(err.Error(), "no license") || !strings.Contains(err.Error(), `close processor "below": dirty`) {
		t.Errorf("error %v", err)
	}
}

// A dead letter takes back what the record did in stores and outputs.
func TestDeadLetterLeavesNoTrace(t *testing.T) {
	t.Parallel()
	d := scripted(t, func(p *script) {
		p.process = func(p *script, r Record[string, string]) error {
			p.out.Emit(r)
			if err := p.kv[0].Put(r.Key, r.Value); err != nil {
				return err
			}
			if r.Value == "bad" {
				panic("bad value")
			}
			return nil
		}
	}, deadLetter)
	d.rows(showStrings, []row{{"a=1 @1", "a=1 @1"}, {"a=bad @2", "-"}, {"b=bad @2", "-"}, {"c=1 @3", "c=1 @3"}})
	if got := fmt.Sprint(shownAll(d.take("app-kv-changelog"), showStrings)); got != "[a=1 @1 c=1 @3]" {
		t.Errorf("changelog %s", got)
	}
	if got := d.deadLetters(); len(got) != 2 || got[0] != "script process: panic: bad value" {
		t.Errorf("dead letters %q", got)
	}
}

// A store that was declared for point lookups has no order, whatever keeps it:
// what works on a disk would not work in Redis.
func TestRangeWithoutOrder(t *testing.T) {
	t.Parallel()
	store := NewKeyValueStore("unordered", serde.String, serde.String, PointLookups())
	d := start(t, nil, func(b *Builder) {
		b.Stream(in).Process("p", func() *script {
			return &script{stores: []*KeyValueStore[string, string]{store}, process: func(p *script, r Record[string, string]) error {
				if err := p.kv[0].Put(r.Key, r.Value); err != nil {
					return err
				}
				if v, found, err := p.kv[0].Get(r.Key); v != r.Value || !found || err != nil {
					t.Errorf("%q %v %v", v, found, err)
				}
				if r.Value == "range" {
					for range p.kv[0].Range(All[string]()) {
						t.Error("an entry")
					}
				}
				return nil
			}}
		}, store)
	})
	d.send("in", []byte("k"), []byte("v"), 1)
	if d.err != nil {
		t.Fatal(d.err)
	}
	d.send("in", []byte("k"), []byte("range"), 1)
	if !errors.Is(d.err, ErrUnordered) || !strings.Contains(d.err.Error(), `range over store "unordered"`) || !strings.Contains(d.err.Error(), "PointLookups") {
		t.Errorf("error %v", d.err)
	}
}
