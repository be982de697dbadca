package simkafka

import (
	"errors"
	"testing"

	"github.com/weirstreams/weir/internal/worker"
)

func TestFaults(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	for _, c := range []struct {
		name    string
		fault   Fault
		err     error
		applied bool // at once
		late    bool // after Deliver
	}{
		{"none", Fault{}, nil, true, true},
		{"refused", Fault{Effect: Dropped, Err: refused}, refused, false, false},
		{"never arrived", Fault{Effect: Dropped}, ErrConnection, false, false},
		{"answer lost", Fault{Err: ErrConnection}, ErrConnection, true, true},
		{"arrives late", Fault{Effect: Late}, ErrConnection, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1, nil)
			w := b.start(1, "")
			b.settle(w)
			b.hook = func(call Call) Fault {
				if call.Op != CommitOffsets {
					return Fault{}
				}
				if call.Client != "p1" || call.Member == "" || len(call.Partitions) != 1 {
					t.Errorf("call %+v", call)
				}
				return c.fault
			}
			_, err := w.commit(at(0, 5, ""))
			if !errors.Is(err, c.err) {
				t.Errorf("error %v, want %v", err, c.err)
			}
			if applied := len(b.Committed("g")) > 0; applied != c.applied {
				t.Errorf("applied %t, want %t", applied, c.applied)
			}
			for range b.LateCalls() {
				b.must(b.Deliver(0))
			}
			if applied := len(b.Committed("g")) > 0; applied != c.late {
				t.Errorf("in the end applied %t, want %t", applied, c.late)
			}
		})
	}
}

func TestACallerDiesInACall(t *testing.T) {
	t.Parallel()
	for _, op := range []Op{Begin, Buffer, Flush, Produce, CommitOffsets, EndTransaction} {
		for _, applied := range []bool{false, true} {
			t.Run(string(op), func(t *testing.T) {
				b := newBench(t, 1, nil)
				w := b.start(1, "x")
				b.settle(w)
				b.hook = func(c Call) Fault {
					f := Fault{}
					if c.Op == op {
						f.Crash = true
						if !applied {
							f.Effect = Dropped
						}
					}
					return f
				}
				died := func() (c *Crashed) {
					defer func() { c, _ = recover().(*Crashed) }()
					if err := w.Begin(); err != nil {
						return nil
					}
					w.produce(0, "a=1")
					if err := w.Flush(ctx); err != nil {
						return nil
					}
					w.commit(at(0, 5, ""))
					return nil
				}()
				if died == nil || died.Call.Op != op {
					t.Fatalf("crash: %v", died)
				}
				if committed := b.committed(tp(0)) != ""; committed != (op == EndTransaction && applied) {
					t.Errorf("committed: %t", committed)
				}
				if _, err := w.Poll(ctx, 1, 0); err == nil {
					t.Error("the dead poll")
				}
				if _, err := w.client.Join(ctx, worker.MemberConfig{}); err == nil {
					t.Error("the dead join")
				}
			})
		}
	}
}

// Every call goes by the hook, by its name.
func TestTheHookSeesEveryCall(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, nil)
	seen := map[Op]bool{}
	b.hook = func(c Call) Fault { seen[c.Op] = true; return Fault{} }
	w := b.start(1, "x")
	b.settle(w)
	tps := []worker.TopicPartition{tp(0)}
	b.must(w.Begin())
	w.produce(0, "a=1")
	b.must(w.Flush(ctx))
	_, err := w.commit(at(0, 1, ""))
	b.must(err)
	b.must(w.Begin())
	w.produce(0, "a=1")
	b.must(w.Flush(ctx))
	b.must(w.Abort(ctx))
	_, err = w.Committed(ctx, tps)
	b.must(err)
	_, err = w.Bounds(ctx, tps)
	b.must(err)
	b.must(w.Confirm(ctx))
	w.Seek(map[worker.TopicPartition]int64{tp(0): 1})
	w.Pause(tps)
	w.Resume(tps)
	b.must(w.DeleteRecords(ctx, map[worker.TopicPartition]int64{tp(0): 1}))
	_, err = w.TopicFacts(ctx, []string{"t"})
	b.must(err)
	r, err := w.client.Reader(ctx, true)
	b.must(err)
	r.Add(map[worker.TopicPartition]int64{tp(0): 1})
	_, err = r.Poll(ctx, 1, 0)
	b.must(err)
	_, err = r.Bounds(ctx, tps)
	b.must(err)
	_, err = r.Skip(ctx, tp(0), 1)
	b.must(err)
	r.Remove(tps)
	r.Close()
	w.inPoll = true
	w.Close(ctx)
	for _, op := range []Op{Join, NewReader, Poll, Produce, CommitOffsets, EndTransaction, Abort, FetchCommitted, FetchBounds, Confirm,
		DeleteRecords, Describe, ReadPoll, ReadBounds, ReadSkip, Begin, Buffer, Flush, Seek, Pause, Resume, AllowRebalance, CloseMember,
		ReadAdd, ReadRemove, CloseReader} {
		if !seen[op] {
			t.Errorf("%s was not seen", op)
		}
	}
}
