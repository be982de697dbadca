package simkafka

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirstreams/weir/internal/worker"
)

func TestARebalanceGoesInCooperativeRounds(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4, nil)
	x := b.start(1, "x")
	b.settle(x)
	b.want("alone", x.owns(), "0,1,2,3")
	if g := b.Group("g"); g.State != "stable" || g.Generation != 1 || len(g.Members) != 1 {
		t.Fatalf("group %+v", g)
	}

	y := b.start(2, "y")
	y.turn()
	b.want("the group waits for x", b.Group("g").State, "joining")
	x.turn() // joins; there is no plan yet without the leader, which is x itself
	b.want("x has heard", fmt.Sprint(x.heard), "[assigned 0,1,2,3 revoked 2,3]")
	b.want("what x kept was never revoked", x.owns(), "0,1")
	b.want("y waits for the next round", y.owns(), "")
	b.settle(x, y)
	b.want("y", y.owns(), "2,3")
	b.want("y has heard", fmt.Sprint(y.heard), "[assigned 2,3]")
	b.want("x has heard nothing more", fmt.Sprint(x.heard), "[assigned 0,1,2,3 revoked 2,3]")
	if g := b.Group("g"); g.Generation != 3 {
		t.Errorf("generation %d, want 3", g.Generation)
	}

	y.inPoll = true
	y.Close(ctx)
	b.settle(x)
	b.want("alone again", x.owns(), "0,1,2,3")
}

func TestCallbacksComeBetweenBatches(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, nil)
	x := b.start(1, "x")
	b.settle(x)
	y := b.start(2, "y")
	y.turn()
	x.poll() // in the middle of a batch
	x.poll()
	b.want("x keeps its partitions", x.owns(), "0,1")
	if x.waiting != 2 {
		t.Errorf("x was told %d times that the group waits, want 2", x.waiting)
	}
	b.must(x.Begin())
	x.produce(0, "a=1")
	if o, err := x.commit(at(0, 1, "")); o != worker.Done {
		t.Fatalf("a commit while the group waits: %v, %v", o, err)
	}
	b.settle(x, y)
	b.want("x", x.owns(), "0")
	b.want("y", y.owns(), "1")
}

func TestNewPartitionsArePaused(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, nil)
	_, err := b.Append(tp(0), kv("a=1")...)
	b.must(err)
	x := b.start(1, "x")
	b.want("nothing comes", x.turn(), "")
	x.Resume([]worker.TopicPartition{tp(0)})
	b.want("then it does", x.turn(), "0{0:a=1}")
	x.Pause([]worker.TopicPartition{tp(0)})
	_, err = b.Append(tp(0), kv("b=1")...)
	b.must(err)
	b.want("nothing again", x.turn(), "")
	x.Resume([]worker.TopicPartition{tp(0)})
	b.want("goes on", x.turn(), "0{1:b=1}")
}

// A member that saw partitions go aborts its next transaction, whatever its
// owner wants: the client cannot know what of it belonged to them.
func TestTheFirstCommitAfterARevocationAborts(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, nil)
	x, y := b.start(1, "x"), b.start(2, "y")
	b.settle(x)
	b.settle(x, y)
	b.must(x.Begin())
	x.produce(0, "a=1")
	if o, err := x.commit(at(0, 1, "stamp")); o != worker.Aborted || err != nil {
		t.Fatalf("first commit: %v, %v", o, err)
	}
	b.must(x.Begin())
	x.produce(0, "a=2")
	if o, err := x.commit(at(0, 1, "stamp")); o != worker.Done || err != nil {
		t.Fatalf("second commit: %v, %v", o, err)
	}
	b.want("committed", b.committed(tp(0)), "2:a=2")
	b.must(y.Begin())
	b.must(y.Abort(ctx))
}

func TestAMemberThatIsGoneTooLongIsReplaced(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, nil)
	x, y := b.start(1, "x"), b.start(2, "y")
	b.settle(x)
	b.settle(x, y)
	b.must(x.Begin())
	x.produce(0, "zombie=1")
	b.must(x.Flush(ctx))

	x.client.Pause()
	if due := b.NextTimeout(); !due.Equal(b.clock.now.Add(5 * time.Second)) {
		t.Errorf("next timeout %v, it is %v", due, b.clock.now)
	}
	b.pass(10*time.Second - 1)
	b.settle(y)
	b.want("not yet", y.owns(), "1")
	b.pass(1)
	b.settle(y)
	b.want("y has all", y.owns(), "0,1")

	x.client.Resume()
	if o, err := x.commit(at(0, 9, "zombie")); o != worker.Unknown || !errors.Is(err, worker.ErrFenced) {
		t.Errorf("commit of a zombie whose transaction timed out: %v, %v", o, err)
	}
	if err := x.Confirm(ctx); !errors.Is(err, worker.ErrNotMember) {
		t.Errorf("confirm: %v", err)
	}
	x.has = map[worker.TopicPartition]bool{}
	b.settle(x, y)
	b.want("x has heard", fmt.Sprint(x.heard[len(x.heard)-2:]), "[lost 0 assigned 1]")
	b.want("offsets", fmt.Sprint(b.Committed("g")), "map[]")
}

func TestAStaleMemberCommitsNothing(t *testing.T) {
	t.Parallel()
	for _, txn := range []bool{true, false} {
		t.Run(fmt.Sprintf("transactions %t", txn), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 2, nil)
			id := func(s string) string {
				if !txn {
					return ""
				}
				return s
			}
			x, y := b.start(1, id("x")), b.start(2, id("y"))
			b.settle(x)
			b.settle(x, y)
			b.must(x.Begin()) // takes the abort that follows a revocation
			b.must(x.Abort(ctx))

			// x is stopped before its commit, and the group goes on without it.
			x.client.Pause()
			b.pass(10 * time.Second)
			b.settle(y)
			x.client.Resume()
			b.must(x.Begin())
			x.produce(0, "zombie=1")
			if o, _ := x.commit(at(0, 9, "zombie")); o != worker.Aborted {
				t.Errorf("unknown member: %v, want Aborted", o)
			}

			// The generation passes while x is stopped in the middle of a batch.
			b.settle(x, y)
			z := b.start(3, id("z"))
			z.turn()
			x.turn() // joins
			x.client.Pause()
			b.settle(y, z)
			x.client.Resume()
			if g := b.Group("g").Generation; g == x.generation {
				t.Fatalf("x knows generation %d", g)
			}
			b.must(x.Begin())
			x.produce(0, "zombie=2")
			if o, _ := x.commit(at(0, 9, "zombie")); o != worker.Aborted {
				t.Errorf("old generation: %v, want Aborted", o)
			}
			b.want("offsets", fmt.Sprint(b.Committed("g")), "map[]")
			if txn {
				b.want("records", b.committed(tp(0)), "")
			}
		})
	}
}

func TestAMemberThatHoldsARebalanceUpIsTakenOut(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, nil)
	x := b.start(1, "x")
	b.settle(x)
	y := b.start(2, "y")
	y.turn()
	b.pass(30*time.Second - 1)
	x.poll()
	y.turn()
	b.want("y waits", y.owns(), "")
	b.pass(1)
	b.settle(y)
	b.want("y has all", y.owns(), "0,1")
}

// A leader that dies between join and plan holds the others up for a session.
func TestALeaderDiesBeforeThePlan(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, nil)
	x := b.start(1, "x")
	b.settle(x)
	y := b.start(2, "y")
	y.turn()
	b.hook = func(c Call) Fault {
		if c.Op == Poll && c.Client == "p2" {
			x.client.Crash()
		}
		return Fault{}
	}
	x.AllowRebalance()
	x.inPoll = true
	x.join(b.group("g"))
	b.want("all have joined", b.Group("g").State, "syncing")
	y.turn()
	b.hook = nil
	b.want("no plan", y.owns(), "")
	b.pass(10 * time.Second)
	b.settle(y)
	b.want("y", y.owns(), "0,1")
}

func TestADeadProcessIsNoticed(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, nil)
	x, y := b.start(1, "x"), b.start(2, "y")
	b.settle(x)
	b.settle(x, y)
	x.client.Crash()
	if _, err := x.Poll(ctx, 1, 0); err == nil {
		t.Error("a dead client polls")
	}
	b.pass(10 * time.Second)
	b.settle(y)
	b.want("y", y.owns(), "0,1")
}

func TestGroupsExpire(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, nil)
	x := b.start(1, "x")
	b.settle(x)
	b.SetOffsets("g", at(0, 3, "m"))
	if err := b.ExpireGroup("g"); err == nil {
		t.Error("a group with members expires")
	}
	x.inPoll = true
	x.Close(ctx)
	b.must(b.ExpireGroup("g"))
	if got := b.Committed("g"); len(got) != 0 {
		t.Errorf("offsets %v", got)
	}
	y := b.start(1, "x")
	b.settle(y)
	if g := b.Group("g"); g.Generation != 1 {
		t.Errorf("generation %d", g.Generation)
	}
}

func TestAnAssignmentWithAnErrorTakesEverything(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, nil)
	x := b.start(1, "x")
	b.settle(x)
	y := b.startOn(b.Client(ClientConfig{Name: "copy"}), 1, "x") // a copied state folder
	b.settle(x, y)
	if e := y.Assignment().Error; e == nil {
		t.Fatalf("y: %+v", y.Assignment())
	}
	b.want("x", x.owns(), "0")
	b.want("y", y.owns(), "")
}

func TestARecreatedTopicFailsTheFetch(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, nil)
	x := b.start(1, "x")
	b.settle(x)
	x.Resume([]worker.TopicPartition{tp(0)})
	b.DeleteTopic("t")
	b.must(b.CreateTopic("t", 1, nil))
	_, err := b.Append(tp(0), kv("a=1")...)
	b.must(err)
	b.want("fetch", x.turn(), "0!UNKNOWN_TOPIC_ID: the topic was created again")
}

// Members come, go, stall and die in any order: no partition has two live
// owners at any time, callbacks keep their place, and in the end each partition
// has one.
func TestGroupUnderChurn(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 2))
		b := newBench(t, 5, nil)
		var live []*fakeWorker
		next := byte(1)
		for range 60 {
			switch n := rng.IntN(10); {
			case n == 0 && len(live) < 4:
				live = append(live, b.start(next, fmt.Sprint(next)))
				next++
			case n == 1 && len(live) > 1:
				i := rng.IntN(len(live))
				w := live[i]
				live = append(live[:i], live[i+1:]...)
				if rng.IntN(2) == 0 {
					w.client.Crash()
					continue
				}
				w.AllowRebalance()
				w.inPoll = true
				w.Close(ctx)
			case n == 2:
				b.pass(time.Duration(rng.IntN(12)) * time.Second)
			case len(live) > 0:
				w := live[rng.IntN(len(live))]
				if rng.IntN(3) > 0 {
					w.AllowRebalance()
				}
				w.poll()
			}
			b.owners(live)
		}
		if len(live) == 0 {
			continue
		}
		for range 3 { // the dead are noticed, a dead leader in the round after
			b.pass(10 * time.Second)
			b.settle(live...)
		}
		total := 0
		for _, w := range live {
			total += len(w.has)
		}
		if total != 5 {
			t.Fatalf("seed %d: %d partitions have an owner, want 5", seed, total)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// owners checks those that are members: one that was taken out learns it late.
func (b *bench) owners(live []*fakeWorker) {
	b.t.Helper()
	var members []*fakeWorker
	for _, w := range live {
		if b.group("g").seat(w.id) != nil {
			members = append(members, w)
		}
	}
	b.disjoint(members...)
}
