package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/weirstreams/weir/internal/worker"
)

// Bounds of the time after the last fault.
const (
	progressLimit = 10 * time.Minute // until everything is processed
	progressSteps = 40_000           // rounds until then
	quietTime     = 3 * time.Second  // after that nothing more may come
)

// finish ends all faults and waits until everything is processed.
func (w *World) finish() {
	w.note("all faults end")
	w.calm = true
	w.storeDown, w.kafkaDown, w.noise = false, false, 0
	w.kafka.HoldMarkers(false)
	w.estrange(0, false)
	if w.shared != nil {
		w.shared.show(false)
	}
	for _, p := range w.procs {
		p.arms = nil
		w.resume(p)
	}
	if w.plan.irreparable() && w.broken {
		w.failsClosed()
		return
	}
	limit := w.now.Add(progressLimit)
	for i := range progressSteps {
		w.mend()
		if i%20 == 0 {
			switch {
			case len(w.kafka.LateCalls()) > 0:
				w.deliver(0)
			case w.shared != nil && len(w.shared.late) > 0:
				w.shared.redo(0)
			}
		}
		version := w.kafka.Version()
		w.round()
		switch {
		case w.err != nil:
			return
		case w.kafka.Version() != version:
			w.now = w.now.Add(5 * time.Millisecond)
			continue
		case w.allRun() && w.nothingLate() && w.oracle.complete():
			w.settle()
			return
		case w.now.After(limit):
			w.violate("no progress: %v after the last fault not everything is processed: %s\n%s", progressLimit, w.oracle.missing(), w.describe())
			return
		}
		w.now = w.due(w.now.Add(time.Second))
	}
	w.oracle.check()
	w.violate("no rest: %d rounds after the last fault not everything is processed: %s\n%s", progressSteps, w.oracle.missing(), w.describe())
}

func (w *World) nothingLate() bool {
	return len(w.kafka.LateCalls()) == 0 && (w.shared == nil || len(w.shared.late) == 0)
}

// settle checks what has to hold at the end, and that it stays so.
func (w *World) settle() {
	for range 2 {
		w.oracle.check()
		w.oracle.final()
		if w.err != nil {
			return
		}
		w.wait(quietTime)
	}
	w.oracle.check()
}

// mend does what operators do: they start what does not run, and put right what
// an instance complains of.
func (w *World) mend() {
	if w.broken && w.kept != nil {
		if !slices.ContainsFunc(w.procs, func(p *process) bool { return p.cond == failed }) && len(w.kafka.Group(application).Members) > 0 {
			return // nobody has noticed yet
		}
		for _, p := range w.procs {
			p.kill()
		}
		var offsets []worker.OffsetCommit
		for tp, c := range w.kept {
			offsets = append(offsets, worker.OffsetCommit{TopicPartition: tp, Offset: c.Offset, LeaderEpoch: c.LeaderEpoch, Metadata: c.Metadata})
		}
		w.note("the operator restores the offsets")
		w.kafka.SetOffsets(application, offsets...)
		w.kept, w.broken = nil, false
	}
	for _, id := range slices.SortedFunc(maps.Keys(w.foreign), byTask) {
		if slices.ContainsFunc(w.procs, func(p *process) bool { return p.cond == running && !p.parked }) {
			break // as long as nobody complains, nobody knows
		}
		w.note("the operator drops the foreign view %s", id.Task)
		w.shared.lose(id)
		delete(w.foreign, id)
	}
	someone := slices.ContainsFunc(w.procs, func(p *process) bool { return p.cond == running })
	for _, p := range w.procs {
		if p.cond != running && p.cond != absent && (len(w.foreign) == 0 || !someone) {
			p.start()
		}
	}
}

// allRun says whether each task runs on some instance.
func (w *World) allRun() bool {
	n := 0
	for _, p := range w.procs {
		for _, t := range p.states() {
			if t.State == "running" {
				n++
			}
		}
	}
	return n == len(w.tasks)
}

// irreparable says whether the steps break what cannot be put right.
func (p *Plan) irreparable() bool {
	return slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Kind == Grow || s.Kind == Recreate })
}

// failsClosed checks that an application whose topics do not fit any more stops
// with a reason and does nothing wrong before.
func (w *World) failsClosed() {
	for _, p := range w.procs {
		p.kill()
	}
	w.procs[0].start()
	w.wait(time.Minute)
	w.oracle.check()
	if p := w.procs[0]; w.err == nil && p.cond != failed {
		if w.oracle.complete() {
			return // nothing was committed before, so nothing contradicts
		}
		w.violate("an application whose topics were changed does not fail: %s", w.describe())
	}
}
