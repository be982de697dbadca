package task

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/topology"
)

// Mark names an output of another task by what its id header says.
type Mark struct {
	Task    topology.TaskID
	Lineage stamp.Lineage
	Seq     uint64
	Index   uint32
}

// mark is the last output taken from one task.
type mark struct {
	now, committed Mark
	known          bool // committed counts
	dirty          bool
}

// seen knows, for one input, the last output taken from each task that writes
// it. The outputs of a task to a partition come in order, so what is not above
// that one is a repetition.
type seen struct {
	marks map[topology.TaskID]*mark
	drops *DropCounter
}

// dropRepeated is the reason of a record that is a repetition.
const dropRepeated = "repeated"

// newSeen fills in what a token says of a topic.
func (t *Task) newSeen(topic string, highs []stamp.High) *seen {
	s := &seen{marks: map[topology.TaskID]*mark{}, drops: t.context.Drops(topic, dropRepeated)}
	for _, h := range highs {
		if h.Topic == topic {
			id := topology.TaskID{Subtopology: h.Subtopology, Partition: h.Partition}
			m := Mark{id, h.Lineage, h.Seq, h.Index}
			s.marks[id] = &mark{now: m, committed: m, known: true}
		}
	}
	return s
}

// repeated says whether a record was taken before, and notes it otherwise. What
// has no id, or one that cannot be read, is new. A state that was reset begins
// another lineage, with which everything begins anew.
func (t *Task) repeated(input int, r *Record) (bool, error) {
	t.next = nil
	if t.seen == nil || t.seen[input] == nil {
		return false, nil
	}
	m, ok := t.cfg.Mark(r)
	if !ok {
		return false, nil
	}
	s := t.seen[input]
	have := s.marks[m.Task]
	if have == nil {
		if n := t.highs(); n >= stamp.MaxHighs {
			return false, fmt.Errorf("task %s: input %s has records of more than %d tasks", t.cfg.ID, t.plan.Inputs[input], stamp.MaxHighs)
		}
		have = &mark{}
		s.marks[m.Task] = have
	} else if (have.known || have.dirty) && have.now.Lineage == m.Lineage && !above(m, have.now) {
		s.drops.N++
		return true, nil
	}
	t.next, t.nextMark = have, m
	return false, nil
}

func above(m, than Mark) bool {
	return cmp.Or(cmp.Compare(m.Seq, than.Seq), cmp.Compare(m.Index, than.Index)) > 0
}

// taken notes the record that repeated has looked at last as processed.
func (t *Task) taken() {
	if t.next == nil {
		return
	}
	t.next.now, t.next.dirty = t.nextMark, true
	t.marked = append(t.marked, t.next)
	t.next = nil
}

func (t *Task) commitSeen() {
	for _, m := range t.marked {
		m.committed, m.known, m.dirty = m.now, true, false
	}
	t.marked, t.next = t.marked[:0], nil
}

func (t *Task) abortSeen() {
	for _, m := range t.marked {
		m.now, m.dirty = m.committed, false
	}
	t.marked, t.next = t.marked[:0], nil
	for _, s := range t.seen {
		if s == nil {
			continue
		}
		for id, m := range s.marks {
			if !m.known {
				delete(s.marks, id)
			}
		}
	}
}

// highs is the number of marks of all inputs.
func (t *Task) highs() int {
	n := 0
	for _, s := range t.seen {
		if s != nil {
			n += len(s.marks)
		}
	}
	return n
}

// committedHighs is what the token says of the inputs.
func (t *Task) committedHighs() []stamp.High {
	var list []stamp.High
	for i, s := range t.seen {
		if s == nil {
			continue
		}
		for id, m := range s.marks {
			if m.known {
				list = append(list, stamp.High{Topic: t.plan.Inputs[i], Subtopology: id.Subtopology, Partition: id.Partition,
					Lineage: m.committed.Lineage, Seq: m.committed.Seq, Index: m.committed.Index})
			}
		}
	}
	slices.SortFunc(list, func(a, b stamp.High) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Subtopology, b.Subtopology), cmp.Compare(a.Partition, b.Partition))
	})
	return list
}
