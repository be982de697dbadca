package sim

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/weirstreams/weir/internal/simkafka"
	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/worker"
)

// stories are the plans that have found something wrong, or a simpler one of the
// kind, with what it was.
var stories = []struct {
	name  string
	story string
	seed  uint64 // where it takes a certain chance; else its place in the list
	setup Setup
	steps []Step
}{
	{
		name: "stale offsets",
		story: `An instance fetched the committed offsets for a claim and stood still. The group gave its task to another,
which claimed, committed and applied. The first went on with its old offsets, read the token of the shared view,
found the view ahead of what it took for the last commit, and stopped for good with the advice to reset the state.
So the token is read before the offsets.`,
		setup: Setup{Instances: 2, Partitions: 2, Keys: 2, Store: Shared, CommitInterval: ms(20), FlushInterval: ms(40)},
		steps: []Step{
			{Kind: Arm, Who: 1, At: Await(simkafka.FetchBounds), Nth: 1, Do: Freeze},
			{Kind: Wait, D: 9 * time.Second},
			{Kind: Send, What: "k0p k1p"},
			{Kind: Work, N: 7, D: ms(20)},
			{Kind: Go, Who: 1},
			{Kind: Wait, D: time.Second},
		},
	},
	{
		name: "a topic made again under a running application",
		story: `The repartition topic was deleted and made again while the application ran. One instance noticed and built
its client anew; the tasks went to the other, which still had the id that the topic had when its own client was
built. It compared the committed stamps with that, found nothing wrong, and went on at the old position, past
records of the new topic. So a claim asks for the ids again.`,
		setup: Setup{Instances: 2, Partitions: 2, Keys: 2, Store: Kept, CommitInterval: ms(5)},
		steps: []Step{
			{Kind: Send, What: "k0m"},
			{Kind: Wait, D: ms(312)},
			{Kind: Recreate},
			{Kind: Send, What: "k0d k0p k0p"},
			{Kind: Work, N: 5, D: ms(20)},
		},
	},
	{
		name: "offsets expired and the memory lost",
		story: `The application was away until the group's offsets had expired, and its state was in memory. It began with
the first record again, on top of the state that it restored from the changelog: everything counted twice. A
changelog with a committed transaction and no committed offsets contradict each other, so the application stops.`,
		setup: Setup{Instances: 1, Partitions: 2, Keys: 2, Store: Lost, CommitInterval: ms(20)},
		steps: []Step{
			{Kind: Send, What: "k1z k0p"},
			{Kind: Wait, D: ms(900)},
			{Kind: Stop},
			{Kind: Expire},
			{Kind: Start},
			{Kind: Wait, D: ms(700)},
		},
	},
	{
		name: "no offsets yet",
		story: `An instance asked for offsets before there were any, and stood still. Another began the task and committed.
The first restored the changelog, found committed writes in it and took its offsets for lost. So it asks again before
it says so.`,
		setup: Setup{Instances: 2, Partitions: 2, Keys: 2, Store: Kept, CommitInterval: ms(5)},
		steps: []Step{
			{Kind: Arm, Who: 0, At: Await(simkafka.FetchBounds), Nth: 1, Do: Freeze},
			{Kind: Arm, Who: 1, At: Await(simkafka.FetchBounds), Nth: 1, Do: Freeze},
			{Kind: Wait, D: 30 * time.Second},
			{Kind: Start, Who: 2},
			{Kind: Send, What: "k0p k1p"},
			{Kind: Wait, D: 20 * time.Second},
			{Kind: Go, Who: 0},
			{Kind: Go, Who: 1},
			{Kind: Wait, D: time.Second},
		},
	},
	{
		name: "damage met while the store is away",
		story: `A damaged view is dropped and rebuilt, at most three times in ten minutes. The drop failed, as the store was
away just then; the damage was met again, and again counted as a rebuild, until the worker gave up over a single
damage. Now a rebuild counts once the view was dropped.`,
		setup: Setup{Instances: 1, Partitions: 1, Keys: 2, Store: Shared, SmallCache: true, CommitInterval: ms(20)},
		steps: []Step{
			{Kind: Send, What: "k1p k0p"},
			{Kind: Wait, D: ms(400)},
			{Kind: Arm, At: StoreDrop, Nth: 1, Do: Refuse},
			{Kind: Arm, At: StoreDrop, Nth: 1, Do: Refuse},
			{Kind: Arm, At: StoreDrop, Nth: 1, Do: Refuse},
			{Kind: Arm, At: StoreDrop, Nth: 1, Do: Refuse},
			{Kind: LosePart},
			{Kind: Send, What: "k0p k1p"},
			{Kind: Wait, D: ms(300)},
			{Kind: Send, What: "k0p k1p"},
			{Kind: Wait, D: 2 * time.Second},
		},
	},
	{
		name: "an old batch applied late",
		story: `An instance committed a batch and stood still before it applied it to its own store. Another took over and
deleted a key; the log was compacted, and the tombstone was dropped in its time. The first went on and applied the
old batch with a token of that moment. When the task came back to it the view seemed a second old, its tail was
replayed, and the deleted key was still there. So a token has the time of the commit, not that of its writing.`,
		setup: Setup{Instances: 2, Partitions: 1, Keys: 2, Store: Kept, CommitInterval: ms(20), TombstoneLife: time.Minute, SessionTimeout: 5 * time.Second},
		steps: append([]Step{
			{Kind: Stop, Who: 1},
			{Kind: Send, What: "k0p k1p"},
			{Kind: Wait, D: time.Second},
			{Kind: Arm, Who: 0, At: Await(worker.BeforeApply), Nth: 1, Do: Freeze},
			{Kind: Send, What: "k1p"},
			{Kind: Wait, D: time.Second},
		}, deletedMeanwhile...),
	},
	{
		name: "a former owner behind two claims",
		story: `An instance without anything to do stood still. Two others claimed its task, one after the other, and had
batches. The store forgot all of that, and the first went on: it applied the next records with its old numbers, and
readers took the outputs for repetitions, since they were lower than those of the others. The next owner took them for
acknowledged for the same reason, and did not send them again: they were lost. The stamp knew the last claim only.
So it keeps the gaps that all claims have left in the numbers.`,
		setup: Setup{Instances: 2, Partitions: 2, Keys: 2, Store: Shared, Outbox: true, AtLeastOnce: true, CommitInterval: ms(5)},
		steps: []Step{
			{Kind: Arm, Who: 0, At: Await(simkafka.Poll), Nth: 3, Do: Freeze},
			{Kind: Wait, D: 9 * time.Second},
			{Kind: Send, What: "k0p"},
			{Kind: Stop, Who: 1},
			{Kind: Start, Who: 1},
			{Kind: Send, What: "k1p"},
			{Kind: Work, N: 4, D: ms(20)},
			{Kind: Send, What: "k0p k1p"},
			{Kind: Regress, Who: 0, N: 2, On: true},
			{Kind: Regress, Who: 1, N: 2, On: true},
			{Kind: Regress, Who: 2, N: 2, On: true},
			{Kind: Regress, Who: 3, N: 2, On: true},
		},
	},
	{
		name:  "a restore that stood still",
		story: `As before, but the instance stood still in the middle of a restore, of which the last step made the view new.`,
		setup: Setup{Instances: 2, Partitions: 1, Keys: 2, Store: Kept, CommitInterval: ms(20), TombstoneLife: time.Minute, SessionTimeout: 5 * time.Second},
		steps: append([]Step{
			{Kind: Stop, Who: 1},
			{Kind: Send, What: "k0p k1p"},
			{Kind: Wait, D: time.Second},
			{Kind: Stop, Who: 0},
			{Kind: Wipe, Who: 0},
			{Kind: Start, Who: 0},
			{Kind: Arm, Who: 0, At: Await(worker.DuringRestore), Nth: 1, Do: Freeze},
			{Kind: Wait, D: time.Second},
		}, deletedMeanwhile...),
	},
	{
		name: "an idle task and a store that forgot",
		story: `A store that kept the outputs beside the state forgot the last batches of a task, which then got no record any
more. The next batch would have been refused, and there was none: the input of the forgotten ones was never processed
again. So a task with nothing to do looks at its token now and then.`,
		setup: Setup{Instances: 2, Partitions: 2, Keys: 4, Store: Shared, Outbox: true, AtLeastOnce: true, SmallCache: true, CommitInterval: ms(20)},
		steps: []Step{
			{Kind: Send, What: "k1p"},
			{Kind: Work, N: 11, D: ms(20)},
			{Kind: Regress, Who: -1, N: 3},
		},
	},
	{
		name: "outputs under way and nobody who waits",
		story: `The outputs of a task with an outbox were under way when its session ended and the store, which had gone back,
refused all tasks of the worker. None was left that had something to commit, so nothing waited for the outputs, and as
long as they were under way the group had to wait: the worker never learned that it was no member any more. So outputs
under way are waited for in any case.`,
		setup: Setup{Instances: 1, Partitions: 2, Keys: 5, Store: Shared, Outbox: true, AtLeastOnce: true, CommitInterval: ms(20), SessionTimeout: 15 * time.Second},
		steps: []Step{
			{Kind: Send, What: "k3p k4p"},
			{Kind: Work, N: 8, D: ms(60)},
			{Kind: Arm, Who: 0, At: Await(simkafka.Buffer), Nth: 1, Do: Freeze},
			{Kind: Send, What: "k4p k1p"},
			{Kind: Work, N: 8, D: ms(20)},
			{Kind: Regress, Who: -1, N: 5},
			{Kind: Wait, D: 20 * time.Second},
		},
	},
	{
		name: "an output behind one that has failed",
		story: `The first of two outputs to a repartition topic failed and the second was written. Both came again, and the task
that reads the topic took the first one for a repetition, since it had a higher number already. So behind a record that
has failed a client writes none of its partition until it begins anew.`,
		setup: Setup{Instances: 1, Partitions: 1, Keys: 5, Store: Shared, Outbox: true, AtLeastOnce: true, CommitInterval: ms(20)},
		steps: []Step{
			{Kind: Arm, Who: 0, At: Await(simkafka.Produce), Nth: 1, Do: Refuse},
			{Kind: Send, What: "k3z k0p k1p k2p k3p"},
			{Kind: Wait, D: ms(500)},
			{Kind: Arm, Who: 0, At: Await(simkafka.Produce), Nth: 1, Do: Refuse},
			{Kind: Send, What: "k3z k0p k1p k2p k3p"},
			{Kind: Wait, D: ms(500)},
			{Kind: Arm, Who: 0, At: Await(simkafka.Produce), Nth: 1, Do: LoseReply},
			{Kind: Send, What: "k3m k0p k1m k2p k3p"},
			{Kind: Wait, D: ms(500)},
		},
	},
	{
		name: "a former owner behind more claims than a stamp remembers",
		story: `As with two claims, with more of them and a batch of each. A stamp that just drops the oldest of its gaps takes
what the former owner applies for acknowledged. So the two oldest become one.`,
		setup: Setup{Instances: 2, Partitions: 2, Keys: 2, Store: Shared, Outbox: true, AtLeastOnce: true, CommitInterval: ms(5)},
		steps: slices.Concat([]Step{
			{Kind: Arm, Who: 0, At: Await(simkafka.Poll), Nth: 3, Do: Freeze},
			{Kind: Wait, D: 9 * time.Second},
		}, slices.Repeat([]Step{
			{Kind: Send, What: "k0p k1p"},
			{Kind: Work, N: 8, D: ms(20)},
			{Kind: Stop, Who: 1},
			{Kind: Start, Who: 1},
			{Kind: Work, N: 8, D: ms(20)},
		}, stamp.MaxGaps+1), []Step{
			{Kind: Send, What: "k0p k1p"},
			{Kind: Regress, Who: 0, N: stamp.MaxGaps + 2, On: true},
			{Kind: Regress, Who: 1, N: stamp.MaxGaps + 2, On: true},
			{Kind: Regress, Who: 2, N: stamp.MaxGaps + 2, On: true},
			{Kind: Regress, Who: 3, N: stamp.MaxGaps + 2, On: true},
		}),
	},
	{
		name: "a record behind an open transaction",
		story: `A record was written late, after its transaction had been given up: the transaction stayed open until its
timeout. Behind it stood the next input of another task, a record without an output of its own. The simulation looked
for the last record that readers see, found one in front of the open transaction, which was processed, and ended: the
state lacked a record that nobody had been able to read yet. So nothing is complete while a transaction is open.`,
		seed:  43,
		setup: Setup{Instances: 2, Partitions: 2, Keys: 3, Store: Shared, CommitInterval: ms(5), FlushInterval: ms(40)},
		steps: []Step{
			{Kind: Arm, Who: 0, At: Await(simkafka.Produce), Nth: 3, Do: Late},
			{Kind: Send, What: "k0p k2p"},
			{Kind: Wait, D: ms(788)},
			{Kind: Send, What: "k2p k0z"},
			{Kind: Work, N: 3, D: ms(5)},
		},
	},
}

// deletedMeanwhile is what happens while instance 0 stands still.
var deletedMeanwhile = []Step{
	{Kind: Start, Who: 1},
	{Kind: Wait, D: 20 * time.Second},
	{Kind: Send, What: "k0d"},
	{Kind: Wait, D: time.Second},
	{Kind: Compact},
	{Kind: Wait, D: 70 * time.Second},
	{Kind: Compact},
	{Kind: Go, Who: 0},
	{Kind: Work, N: 3, D: ms(5)},
	{Kind: Stop, Who: 1},
	{Kind: Wait, D: 20 * time.Second},
	{Kind: Send, What: "k0p"},
}

func TestStories(t *testing.T) {
	t.Parallel()
	for i, s := range stories {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			p := &Plan{Scenario: s.name, Seed: cmp.Or(s.seed, uint64(i)), Setup: s.setup, Steps: s.steps}
			fill(&p.Setup)
			for n := range p.Steps {
				p.Steps[n].ID = uint64(n) + 1
			}
			pl := player(t)
			if res := pl.Play(p); res.Err != nil {
				t.Errorf("%s\n\n%s", s.story, pl.Story(p, minimiseLimit))
			}
		})
	}
}

// fill gives a setup what a story does not care about.
func fill(s *Setup) {
	for _, d := range []struct {
		d   *time.Duration
		def time.Duration
	}{{&s.SessionTimeout, 5 * time.Second}, {&s.TransactionTimeout, 20 * time.Second}, {&s.PurgeInterval, ms(200)}, {&s.TombstoneLife, 24 * time.Hour}} {
		if *d.d == 0 {
			*d.d = d.def
		}
	}
}
