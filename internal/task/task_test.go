package task

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestTimeOrder is Kafka Streams' PartitionGroupTest: only heads are compared,
// and a late record hides behind an earlier offset.
func TestTimeOrder(t *testing.T) {
	t.Parallel()
	var taken []string
	b := newBench(t, Config{}, nil, []string{"p1", "p2"}, nil)
	b.inst.(*instance).f = func(c *Context, input int, r *Record) error {
		taken = append(taken, fmt.Sprintf("p%d@%d stream %d", input+1, r.Timestamp, c.StreamTime()))
		return nil
	}
	next := []int64{0, 0}
	add := func(input int, ts ...int64) {
		for _, x := range ts {
			b.Add(input, Record{Offset: next[input], Timestamp: x})
			next[input]++
		}
	}
	step := func(n int) {
		if e, err := b.Step(0, n); err != nil || e.Records != n {
			t.Fatal(e.Records, err)
		}
	}
	add(0, 1, 3, 5)
	add(1, 2, 4, 6)
	step(2)
	add(0, 2, 4)
	b.SetLag(0, 0)
	b.SetLag(1, 0)
	step(6)
	want := []string{"p1@1 stream 1", "p2@2 stream 2", "p1@3 stream 3", "p2@4 stream 4", "p1@5 stream 5", "p1@2 stream 5", "p1@4 stream 5", "p2@6 stream 6"}
	if !slices.Equal(taken, want) {
		t.Fatalf("got  %v\nwant %v", taken, want)
	}
	if b.queues[0].time != 5 || b.queues[1].time != 6 {
		t.Fatalf("partition times %d and %d, want 5 and 6", b.queues[0].time, b.queues[1].time)
	}
}

// TestReadiness is the table of max.task.idle.ms (KIP-353, KIP-695) for a task
// with one empty input.
func TestReadiness(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		maxIdle int64
		lag     int64 // of the empty input
		both    bool  // both inputs have data
		none    bool  // none has
		at      []int64
		want    []bool
	}{
		{name: "no idling, lag unknown", maxIdle: -1, lag: -1, at: []int64{0}, want: []bool{true}},
		{name: "no idling, lag", maxIdle: -1, lag: 5, at: []int64{0}, want: []bool{true}},
		{name: "never fetched", maxIdle: 0, lag: -1, at: []int64{0, 1e9}, want: []bool{false, false}},
		{name: "on the broker", maxIdle: 0, lag: 3, at: []int64{0, 1e9}, want: []bool{false, false}},
		{name: "caught up", maxIdle: 0, lag: 0, at: []int64{0}, want: []bool{true}},
		{name: "caught up, idling", maxIdle: 100, lag: 0, at: []int64{1000, 1099, 1100}, want: []bool{false, false, true}},
		{name: "all have data", maxIdle: 100, lag: -1, both: true, at: []int64{0}, want: []bool{true}},
		{name: "none has data", maxIdle: -1, lag: 0, none: true, at: []int64{0}, want: []bool{false}},
	} {
		qs := []queue{newQueue(0, -1), newQueue(0, -1)}
		if !c.none {
			qs[0].add(Record{})
		}
		if c.both {
			qs[1].add(Record{})
		}
		qs[1].lag = c.lag
		for i, now := range c.at {
			if got := ready(qs, now, c.maxIdle); got != c.want[i] {
				t.Errorf("%s: ready at %d is %v, want %v", c.name, now, got, c.want[i])
			}
		}
	}
	qs := []queue{newQueue(0, -1), newQueue(0, -1)}
	qs[0].add(Record{})
	qs[1].lag = 0
	ready(qs, 1000, 100)
	qs[1].add(Record{})
	if !ready(qs, 1001, 100) || qs[1].idle != 0 {
		t.Error("data for all inputs does not end the idling")
	}
}

// punctuated runs records at the given times and returns when punctuation
// came.
func punctuated(t *testing.T, interval int64, times ...int64) []string {
	var out []string
	b := newBench(t, Config{}, nil, []string{"in"}, nil)
	b.inst.(*instance).f = func(_ *Context, _ int, r *Record) error { out = append(out, fmt.Sprint(r.Timestamp)); return nil }
	b.context.Schedule(StreamTime, interval, "n", func(now int64) error { out = append(out, fmt.Sprint("P", now)); return nil })
	for i, ts := range times {
		b.Add(0, Record{Offset: int64(i), Timestamp: ts})
		if _, err := b.Step(0, 1); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// TestStreamTimePunctuation are the runs of Kafka Streams: after the record,
// once per crossing, on the grid.
func TestStreamTimePunctuation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   []int64
		want string
	}{
		{[]int64{3, 9, 10, 12, 13, 55, 59, 61, 30, 63}, "3 P3 9 10 P10 12 13 55 P55 59 61 P61 30 63"},
		{[]int64{25, 30, 35, 45}, "25 P25 30 P30 35 45 P45"},
	} {
		if got := strings.Join(punctuated(t, 10, c.in...), " "); got != c.want {
			t.Errorf("in %v: got %s, want %s", c.in, got, c.want)
		}
	}
}

// TestWallClockPunctuation: first after one interval, one late call for many.
func TestWallClockPunctuation(t *testing.T) {
	t.Parallel()
	var fired []int64
	b := newBench(t, Config{}, nil, []string{"in"}, nil)
	b.context.Schedule(WallClock, 100, "n", func(now int64) error { fired = append(fired, now); return nil })
	for _, now := range []int64{0, 50, 99, 100, 150, 199, 730, 799, 800} {
		if _, err := b.Punctuate(now); err != nil {
			t.Fatal(err)
		}
	}
	if want := []int64{100, 730, 800}; !slices.Equal(fired, want) {
		t.Fatalf("fired at %v, want %v", fired, want)
	}
	if due := b.NextWallClock(); due != 900 {
		t.Fatalf("next due at %d, want 900", due)
	}
}

// TestPunctuationResumes: after an abort the schedule goes on from the
// committed stream time instead of firing again at once.
func TestPunctuationResumes(t *testing.T) {
	t.Parallel()
	var fired []int64
	b := newBench(t, Config{}, nil, []string{"in"}, func(*Context, int, *Record) error { return nil })
	make := b.plan.New
	b.plan.New = func(c *Context) (Instance, error) {
		c.Schedule(StreamTime, 10, "n", func(now int64) error { fired = append(fired, now); return nil })
		return make(c)
	}
	b.start()
	b.Add(0, Record{Offset: 0, Timestamp: 13})
	b.Step(0, 1)
	b.Seal(1, nil)
	b.Committed(nil)
	b.Add(0, Record{Offset: 1, Timestamp: 25})
	b.Step(0, 1)
	if err := b.Abort(); err != nil {
		t.Fatal(err)
	}
	b.Add(0, Record{Offset: 1, Timestamp: 15})
	b.Step(0, 1)
	b.Add(0, Record{Offset: 2, Timestamp: 20})
	b.Step(0, 1)
	if want := []int64{13, 25, 20}; !slices.Equal(fired, want) {
		t.Fatalf("fired at %v, want %v", fired, want)
	}
}

// TestDeadLetterLeavesNoTrace: what a failing record did is undone, and the
// letter carries it as it came.
func TestDeadLetterLeavesNoTrace(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	cfg := Config{DeadLetterTopic: "dlq", OnError: func(e *Error) Decision {
		if e.Node != "counter" || e.Topic != "in" || e.Offset != 1 {
			t.Errorf("the error is at %s %s@%d", e.Node, e.Topic, e.Offset)
		}
		return DeadLetter
	}}
	for _, how := range []string{"error", "panic", "large output", "large store value"} {
		b := newBench(t, cfg, []StoreSpec{{Name: "s", Changelog: "log"}}, []string{"in"}, func(c *Context, _ int, r *Record) error {
			c.Enter("counter")
			s := c.Store("s")
			n, _, _ := s.Get([]byte("n"))
			if err := s.Put([]byte("n"), append(slices.Clone(n), 'x'), 1); err != nil {
				return err
			}
			if err := s.Put([]byte("other"), r.Value, 1); err != nil {
				return err
			}
			if err := c.Emit("out", AnyPartition, c.Keep(append(c.Buf(), "k"...)), nil, r.Timestamp, nil); err != nil {
				return err
			}
			if r.Offset != 1 {
				return nil
			}
			switch how {
			case "panic":
				panic(boom)
			case "large output":
				return c.Emit("out", AnyPartition, nil, make([]byte, 1<<20+1), 0, nil)
			case "large store value":
				return s.Put([]byte("big"), make([]byte, 1<<20), 0)
			}
			return boom
		})
		rec := Record{Key: []byte("key"), Value: []byte("value"), Timestamp: 5, Headers: []Header{{"h", []byte("1")}, {"h", nil}}}
		for i := range int64(3) {
			rec.Offset = i
			b.Add(0, rec)
		}
		e, err := b.Step(0, 10)
		if err != nil || e.Records != 3 || len(e.Outputs) != 3 {
			t.Fatalf("%s: %d records, %d outputs, %v", how, e.Records, len(e.Outputs), err)
		}
		dl := e.Outputs[1]
		if dl.Topic != "dlq" || string(dl.Key) != "key" || string(dl.Value) != "value" || dl.Timestamp != 5 ||
			!reflect.DeepEqual(dl.Headers[0], rec.Headers[0]) || dl.Headers[1].Key != "h" {
			t.Fatalf("%s: dead letter %+v", how, dl)
		}
		headers := map[string]string{}
		for _, h := range dl.Headers[2:] {
			headers[h.Key] = string(h.Value)
		}
		if headers[HeaderTopic] != "in" || headers[HeaderPartition] != "0" || headers[HeaderOffset] != "1" || headers[HeaderTimestamp] != "5" ||
			headers[HeaderTask] != "0_0" || headers[HeaderNode] != "counter" || headers[HeaderError] == "" || headers[HeaderClass] == "" {
			t.Fatalf("%s: headers %v", how, headers)
		}
		if n, _, _ := b.Store("s").Get([]byte("n")); string(n) != "xx" {
			t.Fatalf("%s: the store counts %q, want xx", how, n)
		}
		if _, ok, _ := b.Store("s").Get([]byte("big")); ok {
			t.Fatalf("%s: a value of the failed record stayed", how)
		}
		b.commit()
	}
}

// TestStoreReadError: a handler that dead-letters without a topic stops.
func TestDeadLetterWithoutTopic(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{OnError: func(*Error) Decision { return DeadLetter }}, nil, []string{"in"},
		func(*Context, int, *Record) error { return errors.New("boom") })
	b.Add(0, Record{})
	if _, err := b.Step(0, 1); err == nil || !strings.Contains(err.Error(), "no dead-letter topic") {
		t.Fatalf("got %v", err)
	}
}

// TestPositions: offsets committed are those processed, not those buffered,
// and markers at the head are passed over.
func TestPositions(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{}, nil, []string{"in"}, func(*Context, int, *Record) error { return nil })
	if b.Dirty() {
		t.Fatal("dirty before anything happened")
	}
	b.Add(0, Record{Offset: 3}, Record{Offset: 4, Control: true}, Record{Offset: 7}, Record{Offset: 8}, Record{Offset: 9, Control: true})
	b.Step(0, 1)
	at := func() int64 { return b.Positions(nil)[0].Next }
	if at() != 5 || !b.Dirty() {
		t.Fatalf("position %d, want 5 behind the marker", at())
	}
	b.Seal(1, nil)
	b.Committed(nil)
	if b.Dirty() {
		t.Fatal("dirty after the commit")
	}
	b.Step(0, 10)
	if at() != 10 {
		t.Fatalf("position %d, want 10", at())
	}
	if err := b.Abort(); err != nil || at() != 5 {
		t.Fatalf("position %d after the abort, want 5 (%v)", at(), err)
	}
	b.Add(0, Record{Offset: 4, Control: true}, Record{Offset: 7})
	if e, err := b.Step(0, 10); err != nil || e.Records != 1 || at() != 8 {
		t.Fatalf("%d records, position %d, %v", e.Records, at(), err)
	}
}

// TestFull: the batch bound stops the task until the commit.
func TestFull(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{MaxBatchBytes: 100}, nil, []string{"in"}, func(c *Context, _ int, r *Record) error {
		return c.Emit("out", 0, nil, c.Keep(append(c.Buf(), make([]byte, 40)...)), 0, nil)
	})
	for i := range int64(10) {
		b.Add(0, Record{Offset: i})
	}
	if e, err := b.Step(0, 100); err != nil || e.Records != 3 || !b.Full() {
		t.Fatalf("%d records in a batch of 100 bytes with 40 each, want 3", e.Records)
	}
	b.Seal(1, nil)
	b.Committed(nil)
	if e, _ := b.Step(0, 100); e.Records != 3 {
		t.Fatalf("%d records after the commit, want 3", e.Records)
	}
}
