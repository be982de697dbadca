package sim

import (
	"slices"
	"time"

	"github.com/weirstreams/weir/internal/simkafka"
	"github.com/weirstreams/weir/internal/worker"
)

// cell is a cell of the coverage table.
type cell struct {
	at Await
	do Fault
}

// cells are all that there are.
var cells = func() []cell {
	var list []cell
	for _, at := range Awaits() {
		for _, f := range Fits(at) {
			list = append(list, cell{at, f})
		}
	}
	return list
}()

// Await points that are far from the usual way, by what leads to them.
var (
	ofClaims = append(awaits(simkafka.Join, simkafka.Describe, simkafka.NewReader, simkafka.FetchCommitted, simkafka.FetchBounds, simkafka.ReadBounds,
		simkafka.Seek, simkafka.Resume), Await(worker.AfterClaim), StoreToken, StoreClaim)
	ofRestores = append(awaits(simkafka.ReadAdd, simkafka.ReadPoll, simkafka.ReadRemove), Await(worker.DuringRestore), StoreBulk, StoreCheckpoint)
	ofRevokes  = awaits(worker.DuringRevoke)
	ofEnds     = awaits(simkafka.CloseMember, simkafka.CloseReader)
)

// grid leads to a cell. The seed says which, so that a run of as many seeds as
// there are cells comes to each.
func (g *gen) grid() {
	c := cells[g.p.Seed%uint64(len(cells))]
	s := &g.p.Setup
	if c.do == Forget || c.do == Late && slices.Contains(storeWrites, c.at) {
		s.Store = Shared
	}
	if c.at == StoreOutbox || c.at == Await(worker.DuringResend) || g.p.Setup.Outbox {
		g.outbox()
	}
	g.flow()
	g.settle()
	for nth := range 2 {
		g.lead(c, 1+g.IntN(nth+1))
		g.flow()
		g.wake()
		if g.IntN(2) == 0 {
			g.armAny(c.do)
		}
		g.wait()
		for i := range s.Instances {
			g.add(Step{Kind: Go, Who: i})
		}
		g.again()
		g.flow()
	}
}

// lead makes the steps that lead to a cell, the nth time that the point is come
// to from then on.
func (g *gen) lead(c cell, nth int) {
	s := &g.p.Setup
	who := g.one()
	arm := func(who int) {
		g.add(Step{Kind: Arm, Who: who, At: c.at, Nth: nth, Do: c.do, N: 1 + g.IntN(5)})
	}
	begin := func() {
		for i := range s.Instances {
			g.add(Step{Kind: pick(g, Kill, Stop), Who: i})
		}
	}
	// All of them, since nobody knows who gets the task.
	end := func() {
		for i := range s.Instances {
			g.add(Step{Kind: Start, Who: i})
			arm(i)
		}
		g.add(Step{Kind: Wait, D: 20 * time.Second})
	}
	switch at := c.at; {
	case at == StoreOutbox, at == Await(worker.DuringResend):
		// An owner dies before the group knows of its batch.
		for i := range s.Instances {
			g.add(Step{Kind: Arm, Who: i, At: pick(g, Await(worker.AfterApply), Await(simkafka.CommitOffsets)), Nth: 1 + g.IntN(2), Do: Die})
		}
		g.send()
		g.send()
		g.settle()
		begin()
		end()
	case slices.Contains(ofClaims, at):
		begin()
		end()
	case slices.Contains(ofRestores, at):
		s.TombstoneLife = 24 * time.Hour
		if s.Store == Shared {
			begin()
			g.add(Step{Kind: Regress, Who: -1, N: 2 + g.IntN(4)})
		} else {
			begin()
			for i := range s.Instances {
				g.add(Step{Kind: Wipe, Who: i})
			}
		}
		end()
	case at == Await(simkafka.ReadSkip):
		// Nothing is left behind the last record but a hole.
		s.TombstoneLife = 0
		if s.Store != Shared {
			s.Store = Lost
		}
		for k := range s.Keys {
			g.add(Step{Kind: Send, What: "k" + string(rune('0'+k)) + "p k" + string(rune('0'+k)) + "d"})
		}
		g.settle()
		begin()
		g.add(Step{Kind: Flush})
		for range 4 { // values, tombstones, and then their markers
			g.add(Step{Kind: Compact})
		}
		end()
	case at == StoreClear:
		s.TombstoneLife = 0
		s.Store = Shared
		for range 2 {
			g.send()
			g.settle()
		}
		begin()
		for p := range s.Partitions {
			g.add(Step{Kind: Regress, Who: int(p), N: 1})
		}
		end()
	case slices.Contains(ofRevokes, at):
		s.Partitions = 2
		for i := range maxInstances {
			if i != s.Instances-1 {
				g.add(Step{Kind: Stop, Who: i})
			}
		}
		g.settle()
		arm(s.Instances - 1)
		g.add(Step{Kind: Start, Who: s.Instances % maxInstances})
		g.settle()
	case slices.Contains(ofEnds, at):
		arm(who)
		g.send()
		g.add(Step{Kind: Stop, Who: who})
	case at == StoreDrop:
		s.Store, s.SmallCache = Shared, true
		for i := range s.Instances {
			arm(i)
		}
		for p := range s.Partitions {
			g.add(Step{Kind: LosePart, Who: int(p)})
		}
		g.flow()
	case at == Await(simkafka.Confirm), at == Await(simkafka.Pause):
		s.SmallCache = true
		first := map[Await]Fault{Await(simkafka.Confirm): Fenced, Await(simkafka.Pause): Refuse}[at]
		for i := range s.Instances {
			g.add(Step{Kind: Arm, Who: i, At: pick(g, StoreApply, StoreRead, StoreRead), Nth: 1 + g.IntN(3), Do: first})
			arm(i)
		}
		g.flow()
		g.flow()
	case at == Await(simkafka.Abort):
		// One task has sent something when the store fails another of the worker.
		s.Instances, s.SmallCache, s.CommitInterval = 1, true, ms(5)
		for i := range 3 {
			g.add(Step{Kind: Arm, At: StoreRead, Nth: 1 + i + g.IntN(3), Do: Fenced})
		}
		g.add(Step{Kind: Arm, At: c.at, Nth: 1, Do: c.do, N: 1})
		for range 12 {
			g.send()
			g.send()
			g.add(Step{Kind: Work, N: 2, D: ms(5)})
		}
	default:
		s.SmallCache = s.SmallCache || at == StoreRead
		s.Timers = s.Timers || at == StoreIterate
		if at == Await(simkafka.DeleteRecords) {
			s.PurgeInterval = ms(200)
		}
		for i := range s.Instances {
			arm(i)
		}
		g.flow()
	}
}
