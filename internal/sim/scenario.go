package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/weirstreams/weir/internal/simkafka"
	"github.com/weirstreams/weir/internal/worker"
)

// Scenario is a family of plans.
type Scenario struct {
	Name string
	// About says what it is after.
	About string
	// Weight is its share of the seeds when all scenarios are played.
	Weight int
	make   func(g *gen)
}

// Plan makes the plan of a seed.
func (s *Scenario) Plan(seed uint64) *Plan {
	g := &gen{Rand: rand.New(rand.NewPCG(seed, hashName(s.Name))), p: &Plan{Scenario: s.Name, Seed: seed}}
	g.setup()
	s.make(g)
	return g.p
}

func hashName(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// gen makes a plan.
type gen struct {
	*rand.Rand
	p *Plan
}

func pick[T any](g *gen, list ...T) T { return list[g.IntN(len(list))] }

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// setup is the usual one.
func (g *gen) setup() {
	g.p.Setup = Setup{
		Instances: 1 + g.IntN(2), Partitions: 1 + int32(g.IntN(2)), Keys: 2 + g.IntN(4),
		Store:          pick(g, Shared, Shared, Lost, Kept, Lagging),
		Timers:         g.IntN(4) == 0,
		SmallCache:     g.IntN(2) == 0,
		Slow:           pick(g, 0, 0, 0, ms(7)),
		CommitInterval: pick(g, ms(5), ms(20), ms(100)),
		FlushInterval:  pick(g, 0, 0, ms(40), ms(500), ms(5000)),
		PurgeInterval:  pick(g, ms(200), 30*time.Second),
		SessionTimeout: pick(g, 5*time.Second, 15*time.Second), TransactionTimeout: pick(g, 5*time.Second, 20*time.Second),
		TombstoneLife: pick(g, 0, time.Minute, 24*time.Hour),
	}
}

// add adds a step.
func (g *gen) add(s Step) {
	s.ID = uint64(len(g.p.Steps)) + 1
	g.p.Steps = append(g.p.Steps, s)
}

// choice is one of several things that may come next.
type choice struct {
	weight int
	do     func()
}

// mix adds n steps, or groups of steps, by chance.
func (g *gen) mix(n int, choices ...choice) {
	total := 0
	for _, c := range choices {
		total += c.weight
	}
	for range n {
		at := g.IntN(total)
		for _, c := range choices {
			if at -= c.weight; at < 0 {
				c.do()
				break
			}
		}
	}
}

// send sends some records, and lets them be processed, wholly, partly or not yet.
func (g *gen) send() {
	var b strings.Builder
	for range 1 + g.IntN(6) {
		op := opPut
		switch g.IntN(10) {
		case 0:
			op = opSilent
		case 1:
			op = opMany
		case 2:
			op = opDelete
		}
		fmt.Fprintf(&b, " k%d%c", g.IntN(g.p.Setup.Keys), op)
	}
	g.add(Step{Kind: Send, What: strings.TrimSpace(b.String())})
}

func (g *gen) work() { g.add(Step{Kind: Work, N: 1 + g.IntN(12), D: ms(pick(g, 1, 5, 20, 60))}) }

// settle lets what was sent be processed, most of the time.
func (g *gen) settle() { g.add(Step{Kind: Wait, D: ms(200 + g.IntN(800))}) }

func (g *gen) wait() { g.add(Step{Kind: Wait, D: ms(pick(g, 50, 500, 3000, 9000, 20_000))}) }

// flow is what goes on in every scenario.
func (g *gen) flow() {
	g.send()
	if g.IntN(3) > 0 {
		g.work()
	} else {
		g.settle()
	}
}

// who is one of the instances.
func (g *gen) who() int { return g.IntN(maxInstances) }

// one is one of those that run at the beginning.
func (g *gen) one() int { return g.IntN(g.p.Setup.Instances) }

// arm lets something happen at an await point.
func (g *gen) arm(who int, at Await, do Fault) {
	nth := 1 + g.IntN(3)
	if at == "" {
		nth = 1 + g.IntN(120)
	}
	g.add(Step{Kind: Arm, Who: who, At: at, Nth: nth, Do: do, N: 1 + g.IntN(6)})
}

// armAny chooses point and fault, both from all that there are, so that rare
// points get their share.
func (g *gen) armAny(faults ...Fault) {
	all := Awaits()
	for {
		at := pick(g, all...)
		var both []Fault
		for _, f := range faults {
			if fits(at, f) {
				both = append(both, f)
			}
		}
		if len(both) > 0 {
			g.arm(g.one(), at, pick(g, both...))
			return
		}
	}
}

func (g *gen) start() { g.add(Step{Kind: Start, Who: g.who()}) }
func (g *gen) stop()  { g.add(Step{Kind: Stop, Who: g.who()}) }
func (g *gen) kill()  { g.add(Step{Kind: Kill, Who: g.who()}) }
func (g *gen) wake()  { g.add(Step{Kind: Go, Who: g.who()}) }

// again starts everybody that is not there.
func (g *gen) again() {
	for i := range g.p.Setup.Instances {
		g.add(Step{Kind: Start, Who: i})
	}
}

// churn lets instances come and go.
func (g *gen) churn() {
	g.mix(1, choice{2, g.start}, choice{1, g.stop}, choice{1, g.kill}, choice{1, func() { g.add(Step{Kind: Wipe, Who: g.who()}) }})
}

func (g *gen) compact() {
	g.add(Step{Kind: Compact})
	if g.IntN(2) == 0 {
		g.add(Step{Kind: Wait, D: pick(g, time.Second, 70*time.Second)})
		g.add(Step{Kind: Compact})
	}
}

func (g *gen) regress() {
	who := -1
	if g.IntN(3) == 0 {
		who = g.IntN(int(g.p.Setup.Partitions))
	}
	g.add(Step{Kind: Regress, Who: who, N: pick(g, 0, 1, 1, 2, 3, 5, 9)})
}

func (g *gen) deliver() { g.add(Step{Kind: Deliver, N: g.IntN(8)}) }
func (g *gen) redo()    { g.add(Step{Kind: Redo, N: g.IntN(8)}) }

func (g *gen) markers() {
	g.mix(1, choice{2, func() { g.add(Step{Kind: Markers, On: true}) }}, choice{4, func() { g.add(Step{Kind: Mark, N: g.IntN(9)}) }},
		choice{2, func() { g.add(Step{Kind: Mark, What: offsetMarkers}) }},
		choice{1, func() { g.add(Step{Kind: Markers}) }})
}

// outbox makes the setup one of a store that keeps outputs.
func (g *gen) outbox() {
	s := &g.p.Setup
	s.Outbox, s.AtLeastOnce, s.Store = true, true, Shared
}

// regressClaims lets the store forget the last claims of all views.
func (g *gen) regressClaims(n int) {
	for view := range 2 * g.p.Setup.Partitions {
		g.add(Step{Kind: Regress, Who: int(view), N: n, On: true})
	}
}

// strayClaims lets a former owner apply what others have fenced him from. Of two
// that claim that after him, one stands still until the group has given its tasks
// to the other, claims nevertheless, and the store forgets it.
func (g *gen) strayClaims() {
	order := g.Perm(maxInstances)
	former, owner, late := order[0], order[1], order[2]
	await := func(d time.Duration) { g.add(Step{Kind: Wait, D: d}) }
	for i := range maxInstances {
		g.add(Step{Kind: Kill, Who: i})
	}
	g.add(Step{Kind: Start, Who: former})
	await(9 * time.Second)
	g.flow()
	g.settle()
	g.add(Step{Kind: Arm, Who: former, At: Await(simkafka.Poll), Nth: 1, Do: Freeze})
	g.add(Step{Kind: Start, Who: owner})
	await(20 * time.Second)
	g.flow()
	g.settle()
	g.add(Step{Kind: Kill, Who: owner})
	g.regressClaims(1)
	g.add(Step{Kind: Arm, Who: former, At: pick(g, Await(worker.AfterApply), Await(simkafka.Buffer), Await(simkafka.CommitOffsets)), Nth: 1 + g.IntN(3), Do: Die})
	g.add(Step{Kind: Go, Who: former})
	g.work()
	g.add(Step{Kind: Kill, Who: former})
	g.add(Step{Kind: Start, Who: late})
	g.add(Step{Kind: Arm, Who: late, At: pick(g, StoreToken, StoreToken, Await(simkafka.FetchCommitted)), Nth: 1, Do: Freeze})
	await(20 * time.Second)
	g.add(Step{Kind: Start, Who: owner})
	g.add(Step{Kind: Arm, Who: owner, At: pick(g, Await(simkafka.Flush), Await(simkafka.Buffer), Await(worker.AfterFlush), Await(worker.BeforeCommit)), Nth: 1, Do: Stall})
	await(20 * time.Second)
	g.add(Step{Kind: Go, Who: late})
	g.regressClaims(1)
	g.add(Step{Kind: Go, Who: owner})
	g.send()
	g.work()
	g.again()
	g.flow()
}

// ofBatches are the await points between the APPLY of a batch and the commit of
// its positions, and those of the claims that repair what was left there.
var ofBatches = append(awaits(simkafka.Buffer, simkafka.Produce, simkafka.Flush, simkafka.CommitOffsets, simkafka.Confirm, simkafka.FetchCommitted),
	StoreApply, StoreOutbox, StoreClaim, StoreToken, StoreRead,
	Await(worker.BeforeApply), Await(worker.AfterApply), Await(worker.AfterFlush), Await(worker.BeforeCommit), Await(worker.AfterCommit), Await(worker.AfterClaim), Await(worker.DuringResend))

// Scenarios lists the families.
func Scenarios() []*Scenario { return scenarios }

// ByName finds a scenario.
func ByName(name string) *Scenario {
	for _, s := range scenarios {
		if s.Name == name {
			return s
		}
	}
	return nil
}

var scenarios = []*Scenario{
	{"grid", "each fault at each await point, one after another", 20, (*gen).grid},
	{"crash", "a process dies at each await point, and again while it recovers", 4, func(g *gen) {
		g.flow()
		g.mix(6+g.IntN(8), choice{3, g.flow}, choice{1, g.wait}, choice{2, g.churn}, choice{3, func() {
			g.armAny(Die, DieAfter)
			g.flow()
			g.again()
			if g.IntN(2) == 0 {
				g.armAny(Die, DieAfter)
			}
			g.settle()
			g.again()
		}}, choice{1, g.compact})
	}},
	{"crash-anywhere", "a process dies at its n-th await point, whichever that is, and its successors too", 3, func(g *gen) {
		g.mix(4+g.IntN(5), choice{2, g.flow}, choice{3, func() {
			g.arm(g.one(), "", pick(g, Die, DieAfter))
			g.flow()
			g.again()
			g.arm(g.one(), "", pick(g, Die, DieAfter))
			g.settle()
			g.again()
		}}, choice{1, g.churn}, choice{1, g.wait})
	}},
	{"zombie", "an instance stands still at each await point until another has taken over, and comes back late", 4, func(g *gen) {
		g.p.Setup.Instances = 2
		g.flow()
		g.mix(4+g.IntN(5), choice{3, func() {
			g.armAny(Freeze, Stall)
			g.flow()
			g.wait()
			if g.IntN(2) == 0 {
				g.flow()
			}
			g.wake()
			if g.IntN(3) == 0 {
				g.armAny(Freeze, Stall)
			}
			g.work()
		}}, choice{2, g.flow}, choice{1, g.wake}, choice{1, g.churn}, choice{1, g.wait}, choice{1, g.regress})
	}},
	{"late-claim", "an instance stands still between the steps of a claim, while others claim and commit", 3, func(g *gen) {
		g.p.Setup.Instances = 2
		if g.IntN(3) > 0 {
			g.p.Setup.Store = Shared
		}
		g.flow()
		g.mix(3+g.IntN(4), choice{4, func() {
			who := g.one()
			g.add(Step{Kind: pick(g, Stop, Kill), Who: who})
			g.flow()
			g.add(Step{Kind: Start, Who: who})
			g.arm(who, pick(g, Await(simkafka.FetchCommitted), Await(simkafka.FetchBounds), Await(simkafka.ReadBounds), StoreToken, StoreClaim, StoreClear,
				StoreBulk, Await(simkafka.ReadPoll), StoreCheckpoint, Await(worker.AfterClaim), Await(simkafka.Seek)), pick(g, Freeze, Stall))
			g.wait()
			g.flow()
			g.wait()
			g.flow()
			g.add(Step{Kind: Go, Who: who})
			g.flow()
		}}, choice{2, g.flow}, choice{1, g.regress}, choice{1, g.churn})
	}},
	{"rebalance", "tasks move while batches are open, and come back to an owner whose cache was warm", 3, func(g *gen) {
		g.p.Setup.Partitions = 2
		g.p.Setup.Slow = pick(g, 0, ms(7))
		g.flow()
		g.mix(8+g.IntN(8), choice{3, g.flow}, choice{3, func() {
			g.send()
			g.add(Step{Kind: Work, N: 1 + g.IntN(2), D: ms(1)})
			g.add(Step{Kind: pick(g, Start, Start, Stop), Who: g.who()})
			g.work()
		}}, choice{1, g.wait}, choice{1, g.wake}, choice{1, func() { g.armAny(Stall) }})
	}},
	{"regress", "the store forgets acknowledged writes before, during and after claims, and twice", 5, func(g *gen) {
		g.p.Setup.Store = Shared
		g.flow()
		g.mix(6+g.IntN(8), choice{4, g.flow}, choice{3, g.regress}, choice{2, func() { g.armAny(Forget) }}, choice{2, g.churn}, choice{1, g.wait},
			choice{1, func() { g.armAny(Freeze, Stall) }}, choice{1, g.wake}, choice{1, g.compact})
	}},
	{"unknown-outcome", "nobody learns what became of an APPLY or of the end of a transaction, and the first copy comes late", 4, func(g *gen) {
		if g.IntN(2) == 0 {
			g.p.Setup.Store = Shared
		}
		g.flow()
		g.mix(6+g.IntN(8), choice{4, g.flow}, choice{3, func() {
			g.arm(g.one(), pick(g, StoreApply, StoreClaim, StoreCheckpoint, Await(simkafka.EndTransaction), Await(simkafka.EndTransaction),
				Await(simkafka.CommitOffsets), Await(simkafka.Produce)), pick(g, LoseReply, Late, Late))
			g.flow()
		}}, choice{2, func() { g.armAny(LoseReply, Late, Refuse) }}, choice{2, g.deliver}, choice{2, g.redo}, choice{1, g.churn}, choice{1, g.wait},
			choice{1, func() { g.add(Step{Kind: Noise, N: pick(g, 0, 5, 30)}) }})
	}},
	{"markers", "the markers of a transaction arrive in any order, and an owner dies with one open", 3, func(g *gen) {
		g.flow()
		g.add(Step{Kind: Markers, On: true})
		g.mix(6+g.IntN(8), choice{4, g.flow}, choice{3, g.markers}, choice{2, func() {
			// The offsets are there, and the logs do not know yet, when another
			// takes over.
			who := g.one()
			g.add(Step{Kind: Start, Who: (who + 1) % maxInstances})
			g.settle()
			g.add(Step{Kind: Markers, On: true})
			g.flow()
			g.add(Step{Kind: pick(g, Stop, Kill), Who: who})
			g.add(Step{Kind: Mark, What: offsetMarkers})
			g.wait()
			g.flow()
		}}, choice{2, g.churn}, choice{1, g.wait}, choice{1, g.wake},
			choice{2, func() {
				g.arm(g.one(), pick(g, Await(simkafka.EndTransaction), Await(worker.AfterFlush), Await(worker.BeforeCommit), Await(worker.AfterCommit)),
					pick(g, Die, DieAfter, Late, Freeze))
				g.flow()
				g.again()
			}}, choice{1, func() { g.add(Step{Kind: Stranger, Who: g.IntN(2), On: g.IntN(2) == 0}) }}, choice{1, g.deliver},
			choice{1, g.compact})
	}},
	{"one-key", "one key many times in a batch, with zero, one and many outputs, and deleted and made again", 2, func(g *gen) {
		g.p.Setup.Keys = 1 + g.IntN(2)
		g.mix(8+g.IntN(8), choice{5, g.flow}, choice{2, func() { g.armAny(Die, DieAfter, Refuse, LoseReply) }}, choice{1, g.again}, choice{1, g.churn}, choice{1, g.compact})
	}},
	{"timers", "punctuations move the state without any input", 3, func(g *gen) {
		g.p.Setup.Timers = true
		g.flow()
		g.mix(6+g.IntN(8), choice{3, g.flow}, choice{3, g.wait}, choice{2, g.churn}, choice{2, func() { g.armAny(Die, DieAfter, Freeze, Stall, Refuse, LoseReply, Late, Forget) }},
			choice{1, g.wake}, choice{1, g.regress}, choice{1, g.deliver})
	}},
	{"compaction", "logs are compacted between a crash and the replay, and tombstones go", 2, func(g *gen) {
		g.p.Setup.TombstoneLife = pick(g, 0, time.Minute, time.Minute)
		g.p.Setup.Store = pick(g, Shared, Kept, Kept, Lagging)
		g.flow()
		g.mix(6+g.IntN(8), choice{3, g.flow}, choice{2, g.compact}, choice{2, g.churn}, choice{1, g.regress}, choice{2, func() {
			// One is away while the others go on, and comes back with an old view.
			who := g.one()
			g.add(Step{Kind: pick(g, Stop, Kill), Who: who})
			g.add(Step{Kind: Start, Who: (who + 1) % maxInstances})
			g.wait()
			g.flow()
			g.settle()
			g.add(Step{Kind: Compact})
			g.add(Step{Kind: Wait, D: pick(g, 25*time.Second, 70*time.Second)})
			g.add(Step{Kind: Compact})
			g.add(Step{Kind: Start, Who: who})
			g.add(Step{Kind: Stop, Who: (who + 1) % maxInstances})
			g.flow()
		}}, choice{1, func() { g.armAny(Die, DieAfter) }}, choice{2, func() {
			// One stands still in the middle of something until tombstones are gone.
			who := g.one()
			g.add(Step{Kind: Start, Who: who})
			g.arm(who, pick(g, slices.Concat(boundaries, ofRestores, storeWrites, []Await{StoreToken, Await(simkafka.FetchCommitted)})...), pick(g, Freeze, Stall))
			g.flow()
			g.add(Step{Kind: Start, Who: (who + 1) % maxInstances})
			g.wait()
			g.flow()
			g.settle()
			g.add(Step{Kind: Compact})
			g.add(Step{Kind: Wait, D: pick(g, 25*time.Second, 70*time.Second)})
			g.add(Step{Kind: Compact})
			g.add(Step{Kind: Go, Who: who})
			g.work()
			g.add(Step{Kind: Stop, Who: (who + 1) % maxInstances})
			g.flow()
		}})
	}},
	{"loss", "the store is emptied, shows another database, loses a view or a part of one", 4, func(g *gen) {
		g.p.Setup.Store = Shared
		g.flow()
		g.mix(6+g.IntN(8), choice{4, g.flow}, choice{1, func() { g.add(Step{Kind: Flush}) }},
			choice{1, func() { g.add(Step{Kind: LoseView, Who: g.IntN(2)}) }}, choice{2, func() { g.add(Step{Kind: LosePart, Who: g.IntN(2)}) }},
			choice{1, func() {
				g.add(Step{Kind: Database, On: true})
				g.flow()
				g.add(Step{Kind: Database})
			}}, choice{2, g.churn}, choice{1, g.wait}, choice{1, g.regress}, choice{1, func() { g.armAny(Die, DieAfter, Freeze, Refuse, Damaged) }}, choice{1, g.wake},
			choice{1, g.compact})
	}},
	{"foreign", "another application with the same name writes into the store", 1, func(g *gen) {
		g.p.Setup.Store = Shared
		g.flow()
		g.settle()
		g.mix(4+g.IntN(4), choice{3, g.flow}, choice{2, func() { g.add(Step{Kind: Foreign, Who: g.IntN(2)}) }}, choice{1, g.churn}, choice{1, g.regress}, choice{1, g.wait})
	}},
	{"refusals", "the store refuses: full, fenced, damaged, unavailable, at each of its calls", 3, func(g *gen) {
		g.flow()
		g.mix(6+g.IntN(8), choice{3, g.flow}, choice{4, func() {
			at := pick(g, append(append([]Await{}, storeWrites...), storeReads...)...)
			g.arm(g.one(), at, pick(g, Fits(at)...))
			g.flow()
			g.again()
		}}, choice{2, g.churn}, choice{1, g.wait}, choice{1, g.wake}, choice{1, g.redo}, choice{1, g.compact})
	}},
	{"outage", "the store is down while Kafka runs, and the reverse", 2, func(g *gen) {
		g.flow()
		g.mix(6+g.IntN(8), choice{3, g.flow}, choice{2, func() {
			g.add(Step{Kind: Down, What: pick(g, "store", "store", "broker"), On: true})
			g.flow()
			g.wait()
		}}, choice{2, func() { g.add(Step{Kind: Down, What: pick(g, "store", "broker")}) }}, choice{1, g.churn}, choice{1, g.wait}, choice{1, g.regress})
	}},
	{"offsets", "another tool sets offsets back, the group expires, a partition gets another leader", 1, func(g *gen) {
		// A task without a store has nothing that contradicts a group without
		// offsets. It begins anew, unless one with a store stops its process.
		what := pick(g, Rewind, Expire)
		elect := func() { g.add(Step{Kind: Elect, Who: g.IntN(2)}) }
		if what == Expire {
			g.p.Setup.Instances = 1
		}
		g.flow()
		g.settle()
		if what == Expire {
			g.mix(4+g.IntN(4), choice{3, g.flow}, choice{1, elect}, choice{1, g.wait})
		} else {
			g.mix(4+g.IntN(4), choice{3, g.flow}, choice{1, elect}, choice{1, g.churn})
		}
		for i := range maxInstances {
			g.add(Step{Kind: Stop, Who: i})
		}
		if g.IntN(3) == 0 {
			g.add(Step{Kind: Wait, D: time.Minute})
		}
		g.add(Step{Kind: what, Who: g.IntN(2), N: 1 + g.IntN(4)})
		g.again()
		g.flow()
		g.settle()
	}},
	{"topics", "a topic gets partitions, or is deleted and made again", 1, func(g *gen) {
		g.flow()
		g.settle()
		g.add(Step{Kind: pick(g, Grow, Recreate)})
		g.mix(2, choice{1, g.churn}, choice{1, g.flow})
	}},
	{"at-least-once", "no transactions: nothing is left out, whatever happens", 2, func(g *gen) {
		g.p.Setup.AtLeastOnce = true
		g.flow()
		g.mix(6+g.IntN(8), choice{4, g.flow}, choice{2, func() {
			g.armAny(Die, DieAfter, Freeze, Stall, Refuse, LoseReply)
			g.flow()
			g.again()
		}}, choice{2, g.churn}, choice{1, g.wait}, choice{1, g.wake})
	}},
	{"outbox", "at least once with outboxes: state once, outputs once but for repetitions with equal ids", 4, func(g *gen) {
		g.outbox()
		g.p.Setup.Timers = g.IntN(4) == 0
		faults := []Fault{Die, DieAfter, Freeze, Stall, Refuse, LoseReply, Late, Damaged, Full, Fenced}
		g.flow()
		g.mix(6+g.IntN(10), choice{5, g.flow}, choice{3, func() {
			g.armAny(faults...)
			g.flow()
			g.again()
			if g.IntN(2) == 0 {
				g.arm(g.one(), "", pick(g, Die, DieAfter, Freeze, Stall, Refuse, LoseReply, Late))
			}
		}}, choice{2, func() {
			g.arm(g.one(), pick(g, ofBatches...), pick(g, Die, DieAfter, Freeze, Stall, Refuse, LoseReply, Late))
			g.flow()
			g.again()
		}}, choice{2, g.churn}, choice{1, g.wait}, choice{1, g.wake}, choice{1, g.deliver}, choice{1, g.redo},
			choice{1, func() { g.add(Step{Kind: Noise, N: pick(g, 0, 5, 30)}) }},
			choice{1, func() { g.add(Step{Kind: Down, What: pick(g, "store", "broker"), On: g.IntN(2) == 0}) }})
	}},
	{"outbox-grid", "each fault at each await point that there is with outboxes", 8, func(g *gen) {
		g.outbox()
		g.grid()
		// Nothing can rebuild what is lost as a whole, or in part.
		g.p.Steps = slices.DeleteFunc(g.p.Steps, func(s Step) bool { return s.Kind == Flush || s.Kind == LosePart })
	}},
	{"outbox-forgets", "the same, and the store forgets what it has acknowledged: nothing is lost", 4, func(g *gen) {
		g.outbox()
		g.flow()
		g.mix(6+g.IntN(8), choice{4, g.flow}, choice{3, g.regress}, choice{2, func() { g.armAny(Forget) }}, choice{2, g.churn}, choice{1, g.wait},
			choice{2, func() { g.armAny(Freeze, Stall, Die, DieAfter, LoseReply, Late) }}, choice{1, g.wake}, choice{1, g.redo}, choice{1, g.deliver})
	}},
	{"outbox-claims", "the store goes back over one claim or several, to a former owner that stands still and goes on", 3, func(g *gen) {
		g.outbox()
		g.p.Setup.Instances, g.p.Setup.SessionTimeout = 2, 5*time.Second
		g.flow()
		g.mix(2+g.IntN(3), choice{4, func() {
			who := g.one()
			g.add(Step{Kind: Start, Who: who})
			g.settle()
			if g.IntN(2) == 0 {
				g.arm(who, Await(simkafka.Poll), Freeze)
			} else {
				g.arm(who, pick(g, ofBatches...), pick(g, Freeze, Stall))
			}
			g.flow()
			for range 1 + g.IntN(3) {
				other := (who + 1 + g.IntN(maxInstances-1)) % maxInstances
				g.add(Step{Kind: Start, Who: other})
				if g.IntN(3) == 0 {
					g.arm(other, pick(g, ofBatches...), pick(g, Die, DieAfter, Freeze, Stall))
				}
				g.add(Step{Kind: Wait, D: pick(g, 9*time.Second, 20*time.Second)})
				g.flow()
				g.add(Step{Kind: pick(g, Kill, Stop, Wait), Who: other})
			}
			if g.IntN(2) == 0 {
				g.send()
			}
			g.regressClaims(1 + g.IntN(3))
			if g.IntN(2) == 0 {
				g.send()
			}
			g.add(Step{Kind: Go, Who: who})
			g.work()
			if g.IntN(2) == 0 {
				g.again()
				g.wait()
			}
			g.wake()
			g.flow()
		}}, choice{1, g.strayClaims}, choice{1, g.flow}, choice{1, g.regress}, choice{1, g.wake}, choice{1, g.churn})
	}},
	{"everything", "all of it at once", 4, func(g *gen) {
		g.flow()
		g.mix(14+g.IntN(14), choice{8, g.flow}, choice{2, g.wait}, choice{2, g.churn}, choice{2, g.again}, choice{3, g.wake}, choice{1, g.compact},
			choice{1, g.regress}, choice{2, g.markers}, choice{1, g.deliver}, choice{1, g.redo},
			choice{4, func() { g.armAny(Faults...) }}, choice{1, func() { g.arm(g.one(), "", pick(g, Die, DieAfter, Freeze, Stall, Refuse, LoseReply, Late, Forget)) }},
			choice{1, func() { g.add(Step{Kind: Noise, N: pick(g, 0, 0, 10, 40)}) }},
			choice{1, func() { g.add(Step{Kind: pick(g, Flush, LoseView, LosePart), Who: g.IntN(2)}) }},
			choice{1, func() { g.add(Step{Kind: Down, What: pick(g, "store", "broker"), On: g.IntN(2) == 0}) }})
	}},
}
