package simkafka

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirstreams/weir/internal/keyenc"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/worker"
)

var ctx = context.Background()

func TestANewProducerFencesTheOldAndAbortsItsTransaction(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, nil)
	old := b.start(1, "tx")
	b.settle(old)
	b.must(old.Begin())
	old.produce(0, "a=1")
	b.must(old.Flush(ctx))
	b.want("log", b.log(tp(0)), "0:a=1?")

	b.start(2, "tx")
	b.want("log", b.log(tp(0)), "0:a=1! 1:A")
	old.produce(0, "b=2")
	if err := old.Flush(ctx); !errors.Is(err, worker.ErrFenced) {
		t.Errorf("flush of a fenced producer: %v", err)
	}
	if o, err := old.commit(at(0, 7, "m")); o != worker.Unknown || !errors.Is(err, worker.ErrFenced) {
		t.Errorf("commit of a fenced producer: %v, %v", o, err)
	}
	if len(b.Committed("g")) > 0 {
		t.Errorf("offsets of a fenced producer: %v", b.Committed("g"))
	}
	b.want("log", b.log(tp(0)), "0:a=1! 1:A")
}

func TestATransactionTimesOut(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, nil)
	w := b.start(1, "tx")
	b.settle(w)
	b.must(w.Begin())
	b.pass(time.Minute) // nothing is open on the broker before the first record
	w.produce(0, "a=1")
	b.must(w.Flush(ctx))
	if due := b.NextTimeout(); !due.Equal(b.clock.now.Add(5 * time.Second)) {
		t.Errorf("next timeout at %v, it is %v", due, b.clock.now)
	}
	b.pass(5*time.Second - 1)
	b.want("log", b.log(tp(0)), "0:a=1?")
	b.pass(1)
	b.want("log", b.log(tp(0)), "0:a=1! 1:A")
	if o, err := w.commit(at(0, 1, "")); o != worker.Unknown || !errors.Is(err, worker.ErrFenced) {
		t.Errorf("commit after the timeout: %v, %v", o, err)
	}
}

func TestAForgottenProducerIsFenced(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, nil)
	w := b.start(1, "tx")
	b.must(w.Begin())
	w.produce(0, "a=1")
	b.must(w.Flush(ctx))
	if err := b.ExpireProducer("tx"); err == nil {
		t.Error("a producer with an open transaction expires")
	}
	b.must(w.Abort(ctx))
	b.must(b.ExpireProducer("tx"))
	b.must(w.Begin())
	w.produce(0, "a=1")
	if err := w.Flush(ctx); !errors.Is(err, worker.ErrFenced) {
		t.Errorf("flush: %v", err)
	}
}

func TestOffsetsCountWithTheirTransaction(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, nil)
	w := b.start(1, "tx")
	b.settle(w)
	other := b.start(2, "other")
	fetch := func() (map[worker.TopicPartition]worker.Committed, error) {
		return other.Committed(ctx, []worker.TopicPartition{tp(0)})
	}
	// The answer to the end is lost, and it is carried out late.
	b.hook = func(c Call) Fault {
		if c.Op == EndTransaction {
			return Fault{Effect: Late}
		}
		return Fault{}
	}
	b.must(w.Begin())
	w.produce(1, "a=1")
	o, err := w.commit(at(0, 5, "stamp"))
	if o != worker.Unknown || !errors.Is(err, ErrConnection) {
		t.Fatalf("commit without an answer: %v, %v", o, err)
	}
	if _, err := fetch(); !errors.Is(err, worker.ErrUnstable) {
		t.Fatalf("stable fetch while the transaction is open: %v", err)
	}
	if got, err := other.Committed(ctx, []worker.TopicPartition{tp(1)}); err != nil || got[tp(1)].Offset != -1 {
		t.Errorf("a partition without pending offsets: %v, %v", got, err)
	}
	b.want("pending offsets do not show", fmt.Sprint(b.Committed("g")), "map[]")
	b.must(b.Deliver(0))
	got, err := fetch()
	b.must(err)
	if want := (worker.Committed{Offset: 5, Metadata: "stamp"}); got[tp(0)] != want {
		t.Errorf("committed %+v, want %+v", got[tp(0)], want)
	}
	b.want("log", b.committed(tp(1)), "0:a=1")
}

func TestLateRequestsOfAnEndedTransactionAreRefused(t *testing.T) {
	t.Parallel()
	for _, op := range []Op{Produce, CommitOffsets, EndTransaction} {
		t.Run(string(op), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1, nil)
			w := b.start(1, "tx")
			b.settle(w)
			b.hook = func(c Call) Fault {
				if c.Op == op {
					return Fault{Effect: Late}
				}
				return Fault{}
			}
			b.must(w.Begin())
			w.produce(0, "a=1")
			err := w.Flush(ctx)
			if op == Produce {
				if !errors.Is(err, ErrConnection) {
					t.Fatalf("flush: %v", err)
				}
			} else if o, err := w.commit(at(0, 5, "")); o != worker.Unknown {
				t.Fatalf("commit: %v, %v", o, err)
			}
			b.hook = nil
			if calls := b.LateCalls(); len(calls) != 1 || calls[0].Op != op {
				t.Fatalf("late calls: %v", calls)
			}
			b.start(1, "tx") // the same process with a new client
			if err := b.Deliver(0); !errors.Is(err, worker.ErrFenced) {
				t.Errorf("the late request: %v", err)
			}
			b.want("committed records", b.committed(tp(0)), "")
			b.want("offsets", fmt.Sprint(b.Committed("g")), "map[]")
		})
	}
}

// A produce request that comes late must not become part of the producer's next
// transaction (KIP-890).
func TestEachTransactionHasItsEpoch(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, nil)
	w := b.start(1, "tx")
	b.settle(w)
	b.hook = func(c Call) Fault {
		if c.Op == Produce {
			return Fault{Effect: Late}
		}
		return Fault{}
	}
	b.must(w.Begin())
	w.produce(0, "late=1")
	if err := w.Flush(ctx); err == nil {
		t.Fatal("flush without an answer succeeds")
	}
	b.hook = nil
	w.sent = true
	if err := w.Abort(ctx); !errors.Is(err, errNoTransaction) {
		t.Fatalf("abort of what never arrived: %v", err)
	}
	b.must(w.Begin())
	w.produce(0, "a=1")
	b.must(w.Flush(ctx))
	if o, err := w.commit(at(0, 1, "")); o != worker.Done {
		t.Fatalf("commit: %v, %v", o, err)
	}
	if err := b.Deliver(0); !errors.Is(err, worker.ErrFenced) {
		t.Errorf("the late request: %v", err)
	}
	b.want("log", b.log(tp(0)), "0:a=1 1:C")
}

func TestAbortDropsWhatWasProduced(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, nil)
	w := b.start(1, "tx")
	b.settle(w)
	b.must(w.Begin())
	if err := w.Begin(); err == nil {
		t.Error("a transaction begins in a transaction")
	}
	w.produce(0, "a=1")
	b.must(w.Flush(ctx))
	w.produce(0, "b=1") // not sent
	b.must(w.Abort(ctx))
	b.want("log", b.log(tp(0)), "0:a=1! 1:A")
	b.must(w.Begin())
	b.must(w.Abort(ctx))
	b.want("an empty transaction leaves nothing", b.log(tp(0)), "0:a=1! 1:A")
}

func TestAnAbortTakesPositionsBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, nil)
	b.SetOffsets("g", at(0, 1, ""))
	_, err := b.Append(tp(0), kv("a=1", "b=1", "c=1")...)
	b.must(err)
	w := b.start(1, "tx")
	b.settle(w)
	w.Resume([]worker.TopicPartition{tp(0)})
	b.want("from the committed offset", w.turn(), "0{1:b=1 2:c=1}")
	b.must(w.Begin())
	b.must(w.Abort(ctx))
	b.want("again", w.turn(), "0{1:b=1 2:c=1}")
}

func TestProducedIsTheEndOfAChangelog(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, nil)
	w := b.start(1, "tx")
	b.settle(w)
	b.must(w.Begin())
	w.Produce(ctx, []task.Output{
		{Topic: "t", Partition: 0, Key: []byte("k"), Store: 0}, {Topic: "t", Partition: 0, Key: []byte("k"), Store: 0},
		{Topic: "t", Partition: 1, Key: []byte("k"), Store: -1},
	})
	if got := w.Produced(tp(0)); got != -1 {
		t.Errorf("before the flush: %d", got)
	}
	b.must(w.Flush(ctx))
	if got := w.Produced(tp(0)); got != 2 {
		t.Errorf("changelog: %d, want 2", got)
	}
	if got := w.Produced(tp(1)); got != -1 {
		t.Errorf("no changelog: %d", got)
	}
	b.must(w.Abort(ctx))
	b.must(w.Begin())
	if got := w.Produced(tp(0)); got != -1 {
		t.Errorf("in the next transaction: %d", got)
	}
}

func TestPlacesAreThoseOfTheJavaClient(t *testing.T) {
	t.Parallel()
	b := newBench(t, 3, nil)
	w := b.start(1, "")
	var out []task.Output
	for _, k := range []string{"21", "foobar", "a-little-bit-long-string", "", "é"} {
		out = append(out, task.Output{Topic: "t", Partition: task.AnyPartition, Key: []byte(k), Store: -1})
	}
	for range 4 {
		out = append(out, task.Output{Topic: "t", Partition: task.AnyPartition, Value: []byte("v"), Store: -1})
	}
	w.Produce(ctx, out)
	b.must(w.Flush(ctx))
	nulls := 0
	for p := range int32(3) {
		list, err := b.ReadCommitted(tp(p))
		b.must(err)
		for _, r := range list {
			if r.Key == nil {
				nulls++
			} else if want := keyenc.Partition(r.Key, 3); want != p {
				t.Errorf("key %q is in partition %d, want %d", r.Key, p, want)
			}
		}
		if nulls < int(p)+1 {
			t.Errorf("null keys are not in partition %d", p)
		}
	}
	if nulls != 4 {
		t.Errorf("%d null keys, want 4", nulls)
	}
	w.Produce(ctx, []task.Output{{Topic: "nowhere", Partition: task.AnyPartition, Key: []byte("k")}})
	if err := w.Flush(ctx); !errors.As(err, new(*worker.FatalError)) {
		t.Errorf("unknown topic: %v", err)
	}
}

// With a source of chance a producer sends some of its records early, in order.
func TestRecordsAreSentEarly(t *testing.T) {
	t.Parallel()
	early := 0
	for seed := range uint64(20) {
		clock := &testClock{time.UnixMilli(1)}
		c := New(Config{Clock: clock, Random: rand.New(rand.NewPCG(seed, 0))})
		b := &bench{Cluster: c, t: t, clock: clock}
		b.must(c.CreateTopic("t", 2, nil))
		w := b.start(1, "tx")
		b.must(w.Begin())
		w.produce(0, "a=1", "b=1", "c=1")
		w.produce(1, "d=1")
		if b.log(tp(0)) != "" {
			early++
		}
		b.must(w.Flush(ctx))
		b.want("first partition", b.log(tp(0)), "0:a=1? 1:b=1? 2:c=1?")
		b.want("second partition", b.log(tp(1)), "0:d=1?")
	}
	if early == 0 || early == 20 {
		t.Errorf("early in %d of 20 runs", early)
	}
}

func TestWithoutTransactions(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, nil)
	w := b.start(1, "")
	b.settle(w)
	b.must(w.Begin())
	w.produce(0, "a=1")
	b.must(w.Flush(ctx))
	w.produce(0, "b=1")
	b.must(w.Abort(ctx)) // what is sent stays
	b.want("log", b.log(tp(0)), "0:a=1")
	b.must(w.Begin())
	if o, err := w.commit(at(0, 1, "m")); o != worker.Done {
		t.Fatalf("commit: %v, %v", o, err)
	}
	if got := b.Committed("g")[tp(0)]; got.Offset != 1 || got.Metadata != "m" {
		t.Errorf("committed %+v", got)
	}
}

// The log against a model: transactions of three producers in any order, read
// back by both kinds of readers.
func TestLogAgainstAModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		b := newBench(t, 1, nil)
		type record struct {
			offset int64
			txn    int // index in ended, -1 for none
			text   string
		}
		var all []record
		ended := map[int]bool{} // txn -> committed
		open := map[int]int{}   // producer -> txn
		var end int64
		txns := 0
		producers := []*Transaction{b.Transaction("a", time.Hour), b.Transaction("b", time.Hour), b.Transaction("c", time.Hour)}
		for range 40 {
			p := rng.IntN(4)
			text := fmt.Sprintf("k=%d", end)
			switch {
			case p == 3:
				_, err := b.Append(tp(0), kv(text)...)
				b.must(err)
				all = append(all, record{end, -1, text})
				end++
			case rng.IntN(3) > 0:
				b.must(producers[p].Append(tp(0), kv(text)...))
				if _, ok := open[p]; !ok {
					open[p] = txns
					txns++
				}
				all = append(all, record{end, open[p], text})
				end++
			default:
				txn, ok := open[p]
				if !ok {
					continue
				}
				delete(open, p)
				ended[txn] = rng.IntN(2) == 0
				if ended[txn] {
					b.must(producers[p].Commit())
				} else {
					b.must(producers[p].Abort())
				}
				end++
			}
		}
		want := ""
		for _, r := range all {
			committed, done := ended[r.txn]
			if r.txn >= 0 && !done {
				break
			}
			if r.txn < 0 || committed {
				want += fmt.Sprintf(" %d:%s", r.offset, r.text)
			}
		}
		if got := b.committed(tp(0)); got != "" && " "+got != want || got == "" && want != "" {
			t.Fatalf("seed %d: read committed\n got %s\nwant%s", seed, got, want)
		}
		stable := end
		for _, r := range all {
			if _, done := ended[r.txn]; r.txn >= 0 && !done {
				stable = min(stable, r.offset)
			}
		}
		b.wantBounds(tp(0), worker.Bounds{End: stable, High: end})
	}
}
