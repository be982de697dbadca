package task

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestIdleEnds: an input that has idled, and that nobody waits for any more, is
// no reason to call the task.
func TestIdleEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{MaxTaskIdle: 1000}, nil, []string{"a", "b"}, func(*Context, int, *Record) error { return nil })
	b.Add(0, Record{Timestamp: 1})
	b.SetLag(1, 0)
	if e, _ := b.Step(5000, 10); e.Records != 0 || b.NextWallClock() != 6000 {
		t.Fatalf("%d records, next at %d, want 0 and 6000", e.Records, b.NextWallClock())
	}
	if e, _ := b.Step(6000, 10); e.Records != 1 || b.NextWallClock() != 0 {
		t.Fatalf("%d records, next at %d, want 1 and never", e.Records, b.NextWallClock())
	}
}

// TestDeadLetterKeepsTime: a record that cannot be read does not move the
// stream time, nor the time of its partition. A wrong timestamp is what such a
// record has as often as not, and everything after it would be late.
func TestDeadLetterKeepsTime(t *testing.T) {
	t.Parallel()
	ticks := 0
	cfg := Config{DeadLetterTopic: "dlq", OnError: func(*Error) Decision { return DeadLetter }}
	b := newBench(t, cfg, nil, []string{"in"}, func(c *Context, _ int, r *Record) error {
		if r.Offset == 0 {
			c.Schedule(StreamTime, 1000, "tick", func(int64) error { ticks++; return nil })
		}
		if string(r.Value) == "bad" {
			return Classify(ClassDecode, errors.New("boom"))
		}
		return nil
	})
	b.Add(0, Record{Timestamp: 100}, Record{Offset: 1, Timestamp: 1 << 60, Value: []byte("bad")}, Record{Offset: 2, Timestamp: 200})
	if e, err := b.Step(0, 10); err != nil || e.Records != 3 || len(e.Outputs) != 1 {
		t.Fatalf("%d records, %d outputs, %v", e.Records, len(e.Outputs), err)
	}
	if b.streamTime != 200 || b.queues[0].time != 200 || ticks != 0 {
		t.Errorf("stream time %d, partition time %d, want 200; %d punctuations, want 0", b.streamTime, b.queues[0].time, ticks)
	}
	if p := b.Positions(nil)[0].Next; p != 3 {
		t.Errorf("position %d, want 3", p)
	}
}

// TestHandlerPanics: an error handler that panics stops the task, and not the
// process.
func TestHandlerPanics(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{OnError: func(*Error) Decision { panic("in the handler") }}, nil, []string{"in"},
		func(*Context, int, *Record) error { return errors.New("in the processor") })
	b.Add(0, Record{})
	_, err := b.Step(0, 1)
	var te *Error
	if !errors.As(err, &te) || te.Topic != "in" || !strings.Contains(err.Error(), "in the processor") || !strings.Contains(err.Error(), "in the handler") {
		t.Fatalf("got %v, want both", err)
	}
}

// TestEntriesThatWentAreForgotten: keys that are written and taken back again,
// by dead letters and aborts, leave nothing behind.
func TestEntriesThatWentAreForgotten(t *testing.T) {
	t.Parallel()
	cfg := Config{CacheBytes: 1 << 20, DeadLetterTopic: "dlq", OnError: func(*Error) Decision { return DeadLetter }}
	b := newBench(t, cfg, []StoreSpec{{Name: "s", Changelog: "log"}}, []string{"in"}, func(c *Context, _ int, r *Record) error {
		if err := c.Store("s").Put(fmt.Append(nil, "key", r.Offset), nil, 0); err != nil {
			return err
		}
		if r.Offset%100 != 0 {
			return errors.New("boom")
		}
		return nil
	})
	for i := range int64(20_000) {
		b.Add(0, Record{Offset: i})
		if _, err := b.Step(0, 10); err != nil {
			t.Fatal(err)
		}
		if i%1000 == 999 {
			b.commit()
			b.apply()
		}
	}
	if n := len(b.cache.ring); n > 2*len(b.Store("s").entries)+100 {
		t.Errorf("%d slots for %d entries", n, len(b.Store("s").entries))
	}
}

// TestSmallWritesCount: what a key costs in memory counts against the bounds,
// not only its bytes.
func TestSmallWritesCount(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{MaxBatchBytes: 100 * entryOverhead}, []StoreSpec{{Name: "s", Changelog: "log"}}, []string{"in"}, func(c *Context, _ int, r *Record) error {
		return c.Store("s").Put(fmt.Append(nil, r.Offset%1000), []byte("1"), 0)
	})
	for i := range int64(1000) {
		b.Add(0, Record{Offset: i})
	}
	if e, err := b.Step(0, 1000); err != nil || e.Records > 100 || e.Records < 50 || !b.Full() {
		t.Fatalf("%d records in a batch, %v, want somewhat less than 100", e.Records, err)
	}
	b.commit()
	if n := b.Unflushed(); n < 50*entryOverhead {
		t.Errorf("%d bytes unflushed", n)
	}
	b.apply()
	if n := b.Unflushed(); n != 0 {
		t.Errorf("%d bytes unflushed after the flush", n)
	}
}

// TestEveryInputIsCommitted: a batch commits the positions of all inputs of the
// task, those without progress too, so that each of them carries the stamp.
func TestEveryInputIsCommitted(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{MaxTaskIdle: -1}, nil, []string{"a", "b"}, func(*Context, int, *Record) error { return nil })
	b.Add(1, Record{Offset: 4})
	if _, err := b.Step(0, 1); err != nil {
		t.Fatal(err)
	}
	if got := b.Positions(nil); len(got) != 2 || got[0] != (Position{0, 0, -1}) || got[1] != (Position{1, 5, 0}) {
		t.Errorf("positions %v, want 0 and 5", got)
	}
}
