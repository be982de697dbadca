package sim

import (
	"slices"

	"github.com/weirstreams/weir/internal/simkafka"
	"github.com/weirstreams/weir/internal/worker"
)

// Await is a point at which an instance waits for somebody else, or could: a call
// to the broker or the store, or a boundary of the commit protocol.
type Await string

// The calls of the store.
const (
	StoreToken      Await = "store token"
	StoreClaim      Await = "store claim"
	StoreApply      Await = "store apply"
	StoreRead       Await = "store read"
	StoreIterate    Await = "store iterate"
	StoreClear      Await = "store clear"
	StoreBulk       Await = "store bulk"
	StoreCheckpoint Await = "store checkpoint"
	StoreDrop       Await = "store drop"
	StoreOutbox     Await = "store outbox"
	// StoreTokenWrite is between the two calls of a control that writes token and
	// data apart.
	StoreTokenWrite Await = "store token write"
)

var storeWrites = []Await{StoreClaim, StoreApply, StoreClear, StoreCheckpoint, StoreDrop}
var storeReads = []Await{StoreToken, StoreRead, StoreIterate, StoreBulk, StoreOutbox}

// Requests to the broker: those that change something there, and the others.
var kafkaWrites = awaits(simkafka.Join, simkafka.Produce, simkafka.CommitOffsets, simkafka.EndTransaction, simkafka.Abort, simkafka.DeleteRecords)
var kafkaReads = awaits(simkafka.NewReader, simkafka.Poll, simkafka.FetchCommitted, simkafka.FetchBounds, simkafka.Confirm, simkafka.Describe,
	simkafka.ReadPoll, simkafka.ReadBounds, simkafka.ReadSkip)

// Calls that stay within the client.
var kafkaLocal = awaits(simkafka.Begin, simkafka.Buffer, simkafka.Flush, simkafka.Seek, simkafka.Pause, simkafka.Resume, simkafka.AllowRebalance,
	simkafka.CloseMember, simkafka.ReadAdd, simkafka.ReadRemove, simkafka.CloseReader)

// The boundaries of the commit protocol.
var boundaries = awaits(worker.AfterProcess, worker.AfterFlush, worker.BeforeCommit, worker.AfterCommit, worker.BeforeApply, worker.AfterApply,
	worker.DuringRestore, worker.DuringRevoke, worker.AfterClaim, worker.DuringResend)

func awaits[S ~string](list ...S) []Await {
	var as []Await
	for _, s := range list {
		as = append(as, Await(s))
	}
	return as
}

// Fault is what happens to an instance at an await point.
type Fault string

const (
	noFault Fault = ""
	// Die ends the process before the call has an effect, DieAfter once it has.
	Die      Fault = "dies"
	DieAfter Fault = "dies after"
	// Freeze stops the process, as SIGSTOP does: no heartbeats. Stall stops only
	// its worker, as a slow disk or a long collection does. Both go on when they
	// are resumed.
	Freeze Fault = "freezes"
	Stall  Fault = "stalls"
	// Refuse answers the call with an error and without effect, LoseReply with an
	// error after the effect, and Late with an error before it: it comes later.
	Refuse    Fault = "refused"
	LoseReply Fault = "reply lost"
	Late      Fault = "late"
	// Forget lets the store go back to an earlier state right before the call.
	Forget Fault = "forgets"
	// Damaged and Full are errors of the store.
	Damaged Fault = "damaged"
	Full    Fault = "full"
	Fenced  Fault = "fenced"
)

// Faults lists the faults in the order of the coverage table.
var Faults = []Fault{Die, DieAfter, Freeze, Stall, Refuse, LoseReply, Late, Forget, Damaged, Full, Fenced}

// Fits says which faults exist at an await point.
func Fits(at Await) []Fault {
	has := func(list []Await) bool { return slices.Contains(list, at) }
	switch {
	case has(kafkaWrites):
		return []Fault{Die, DieAfter, Freeze, Stall, Refuse, LoseReply, Late}
	case has(kafkaReads):
		return []Fault{Die, DieAfter, Freeze, Stall, Refuse}
	case has(kafkaLocal):
		return []Fault{Die, Freeze, Stall}
	case at == StoreDrop:
		return []Fault{Die, DieAfter, Freeze, Stall, Refuse, LoseReply, Forget}
	case has(storeWrites):
		return []Fault{Die, DieAfter, Freeze, Stall, Refuse, LoseReply, Late, Forget, Damaged, Full, Fenced}
	case at == StoreToken:
		return []Fault{Die, DieAfter, Freeze, Stall, Refuse, Forget}
	case has(storeReads):
		return []Fault{Die, DieAfter, Freeze, Stall, Refuse, Forget, Damaged, Fenced}
	default:
		return []Fault{Die, Freeze, Stall, Forget}
	}
}

// fits says whether a fault exists at an await point.
func fits(at Await, f Fault) bool { return slices.Contains(fitting[at], f) }

// fitting is Fits, for all points.
var fitting = func() map[Await][]Fault {
	m := map[Await][]Fault{StoreTokenWrite: {Die, Freeze, Stall}}
	for _, at := range Awaits() {
		m[at] = Fits(at)
	}
	return m
}()

func isLocal(at Await) bool { return slices.Contains(kafkaLocal, at) }

// Awaits lists all await points in the order of the coverage table.
func Awaits() []Await {
	return slices.Concat(kafkaWrites, kafkaReads, kafkaLocal, boundaries, storeWrites, storeReads)
}

// Coverage counts the faults that have happened, by await point.
type Coverage map[Await]map[Fault]int

func (c Coverage) add(at Await, f Fault, n int) {
	if c[at] == nil {
		c[at] = map[Fault]int{}
	}
	c[at][f] += n
}

// Merge adds the counts of another one.
func (c Coverage) Merge(o Coverage) {
	for at, row := range o {
		for f, n := range row {
			c.add(at, f, n)
		}
	}
}
