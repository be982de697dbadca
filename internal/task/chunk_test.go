package task

import (
	"errors"
	"testing"
)

var errBad = errors.New("bad")

func newLimited(t *testing.T) *bench {
	return newBench(t, Config{Limits: &Limits{Keys: 100, Bytes: 1 << 20, Outputs: 1 << 20}, DeadLetterTopic: "dead",
		OnError: func(*Error) Decision { return DeadLetter }}, nil, []string{"in"}, nil)
}

// A punctuation that has done nothing is no batch that has to end before the next
// one, which may fail: it is asked about, and the task goes on.
func TestPunctuationBehindAnIdleOne(t *testing.T) {
	t.Parallel()
	b := newLimited(t)
	b.context.Schedule(WallClock, 100, "idle", func(int64) error { return nil })
	b.context.Schedule(WallClock, 100, "bad", func(int64) error { return errBad })
	for range 2 {
		e, err := b.Punctuate(100)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(e.Outputs); n > 0 && e.Outputs[0].Topic != "dead" {
			t.Fatalf("%d outputs, the first to %s", n, e.Outputs[0].Topic)
		}
	}
	if n := b.Stats().DeadLetters[DeadLetterKey{"bad", ClassPunctuate}]; n != 1 {
		t.Errorf("%d dead letters, want 1", n)
	}
}

// Records that are taken back have the operators made anew. Wall-clock
// punctuations come at their time all the same, however often that is.
func TestWallClockOutlivesRecordsTakenBack(t *testing.T) {
	t.Parallel()
	b := newLimited(t)
	fired := 0
	process := func(_ *Context, _ int, r *Record) error {
		if r.Offset%2 == 1 {
			return errBad
		}
		return nil
	}
	b.plan.New = func(c *Context) (Instance, error) {
		c.Schedule(WallClock, 100, "n", func(int64) error { fired++; return nil })
		return &instance{c, process}, nil
	}
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	offset := int64(0)
	for now := int64(0); now < 1000; now += 50 {
		b.Add(0, Record{Offset: offset, Timestamp: now}, Record{Offset: offset + 1, Timestamp: now})
		offset += 2
		for range 3 {
			if _, err := b.Step(now, 10); err != nil {
				t.Fatal(err)
			}
			b.Seal(1, nil)
			b.Committed(nil)
		}
		if _, err := b.Punctuate(now); err != nil {
			t.Fatal(err)
		}
	}
	if n := b.Stats().DeadLetters[DeadLetterKey{"", ClassProcess}]; n != 20 {
		t.Errorf("%d dead letters, want 20", n)
	}
	if fired != 9 {
		t.Errorf("the punctuation came %d times, want 9", fired)
	}
}
