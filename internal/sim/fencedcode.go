package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/weirstreams/weir/fence"
)

// This plays package fence itself, with a model of what is around it: a topic, a
// group, and consumers that take a batch, apply it, write the outputs, and
// commit. Consumers die between any two of these steps, are paused while their
// partitions move, and go on as if nothing had happened; replies are lost; Redis
// goes back to what it was, each slot by itself.

// FenceWorld is the Redis of these plays.
type FenceWorld interface {
	// Open connects a consumer.
	Open() (*fence.Fence, error)
	// Reset forgets everything.
	Reset()
	// Save returns the way back to what the slot of a hash tag holds now.
	Save(slot int) func() error
	// Forget takes what keep does not want out of the pending window of a
	// partition.
	Forget(partition int32, keep func(offset int64) bool) error
}

// FenceFault is a mistake that the play has to find out.
type FenceFault int

// The mistakes.
const (
	// NoFault is the contract.
	NoFault FenceFault = iota
	// WindowOfOne keeps the output of the last record of each key and no other.
	WindowOfOne
	// CommitFirst commits before the outputs are written.
	CommitFirst
	// SkipForgotten reads on from the committed offset although Redis has
	// forgotten what came before.
	SkipForgotten
	// DuplicateOwners lets a consumer that was fenced claim again by itself,
	// and go on where it was.
	DuplicateOwners
)

// FenceSetup is the size of a play.
type FenceSetup struct {
	Partitions, Slots, Consumers, Records int
	Fault                                 FenceFault
}

// fencedRun is one play.
type fencedRun struct {
	FenceSetup
	rng       *rand.Rand
	world     FenceWorld
	logs      [][]fencedRecord // by partition
	committed []int64
	owner     []int // consumer by partition
	moves     []int // how often a partition was assigned
	consumers []*fencedConsumer
	saved     []func() error // of the slots
	written   map[string]int
	trace     []string
	regressed int
}

type fencedRecord struct {
	key, value string
}

// fencedConsumer is a process. What it believes may be out of date.
type fencedConsumer struct {
	id    int
	f     *fence.Fence
	parts map[int32]*fencedPart
}

// fencedPart is a partition as its consumer sees it.
type fencedPart struct {
	claim     *fence.Claim
	moves     int   // the assignment that it was claimed for
	at        int64 // the next record
	committed int64
	step      int // 0 take and apply, 1 write, 2 commit
	batch     fence.Batch
	results   []fence.Result
	fenced    bool // not to be claimed again before it is assigned anew
}

// PlayFenced plays one schedule and returns what happened and what is wrong.
func PlayFenced(seed uint64, world FenceWorld, s FenceSetup) (string, error) {
	r := &fencedRun{FenceSetup: s, rng: rand.New(rand.NewPCG(seed, 9)), world: world, written: map[string]int{},
		committed: make([]int64, s.Partitions), owner: make([]int, s.Partitions), moves: make([]int, s.Partitions), saved: make([]func() error, s.Slots)}
	world.Reset()
	defer func() {
		for _, c := range r.consumers {
			c.close()
		}
	}()
	err := r.play()
	return strings.Join(r.trace, "\n"), err
}

func (r *fencedRun) note(format string, args ...any) {
	r.trace = append(r.trace, fmt.Sprintf(format, args...))
}

func (c *fencedConsumer) close() {
	if c.f != nil {
		c.f.Close()
		c.f = nil
	}
}

func (r *fencedRun) play() error {
	r.logs = make([][]fencedRecord, r.Partitions)
	for i := range r.Records {
		key := fmt.Sprintf("k%d", r.rng.IntN(2*r.Partitions+2))
		p := fence.Murmur2.Partition([]byte(key), r.Partitions)
		r.logs[p] = append(r.logs[p], fencedRecord{key, fmt.Sprintf("%s.%d", key, i)})
	}
	for i := range r.Consumers {
		r.consumers = append(r.consumers, &fencedConsumer{id: i})
	}
	for p := range r.Partitions {
		r.committed[p] = -1
		r.assign(p)
	}
	for step := 0; !r.done(); step++ {
		if step > 200*r.Records+2000 {
			return errors.New("the consumers do not come to an end")
		}
		// The faults stop after some time, so that the end can be reached.
		if err := r.step(step < 10*r.Records); err != nil {
			return err
		}
	}
	return r.judge()
}

func (r *fencedRun) done() bool {
	for p, log := range r.logs {
		if max(r.committed[p], 0) < int64(len(log)) {
			return false
		}
	}
	return true
}

func (r *fencedRun) assign(p int) {
	r.owner[p] = r.rng.IntN(r.Consumers)
	r.moves[p]++
	r.note("partition %d is assigned to consumer %d", p, r.owner[p])
}

func (r *fencedRun) step(faults bool) error {
	if faults {
		switch n := r.rng.IntN(40); {
		case n == 0:
			c := r.consumers[r.rng.IntN(r.Consumers)]
			r.note("consumer %d dies", c.id)
			c.close()
			c.parts = nil
			for p := range r.Partitions {
				if r.owner[p] == c.id {
					r.assign(p)
				}
			}
		case n == 1:
			r.assign(r.rng.IntN(r.Partitions))
		case n == 2:
			slot := r.rng.IntN(r.Slots)
			r.saved[slot] = r.world.Save(slot)
			r.note("slot %d is copied", slot)
		case n == 3:
			slot := r.rng.IntN(r.Slots)
			if back := r.saved[slot]; back != nil {
				r.note("slot %d goes back to its copy", slot)
				r.regressed++
				return back()
			}
		}
	}
	c := r.consumers[r.rng.IntN(r.Consumers)]
	return r.turn(c, int32(r.rng.IntN(r.Partitions)), faults)
}

// turn lets a consumer take its next step with a partition. A consumer whose
// partition has moved goes on until it is refused, now and then it hears of it.
func (r *fencedRun) turn(c *fencedConsumer, p int32, faults bool) error {
	if c.f == nil {
		f, err := r.world.Open()
		if err != nil {
			return err
		}
		c.f, c.parts = f, map[int32]*fencedPart{}
	}
	part := c.parts[p]
	mine := r.owner[p] == c.id
	switch {
	case part == nil || mine && part.moves != r.moves[p]:
		if !mine {
			return nil
		}
		return r.claim(c, p)
	case part.fenced:
		if r.Fault == DuplicateOwners {
			return r.claim(c, p)
		}
		if mine {
			// The group confirms that it is the owner: a new assignment.
			r.moves[p]++
		}
		return nil
	case !mine && (!faults || r.rng.IntN(10) == 0):
		delete(c.parts, p)
		return nil
	}
	switch part.step {
	case 0:
		return r.apply(c, p, part, faults)
	case 1:
		if r.Fault == CommitFirst {
			r.commit(c, p, part)
		} else {
			r.write(c, p, part)
		}
		part.step = 2
	case 2:
		if r.Fault == CommitFirst {
			r.write(c, p, part)
		} else {
			r.commit(c, p, part)
		}
		part.batch, part.step = fence.Batch{}, 0
	}
	return nil
}

func (r *fencedRun) claim(c *fencedConsumer, p int32) error {
	a := fence.Assignment{Partition: p, Committed: r.committed[p]}
	claim, err := c.f.Claim(context.Background(), a)
	if errors.Is(err, fence.ErrMissing) || errors.Is(err, fence.ErrCorrupt) {
		// All that Redis knew of the partition is gone with a copy from before,
		// or one of its slots is of the time before such a rewind.
		r.note("consumer %d rewinds partition %d", c.id, p)
		return c.f.Rewind(context.Background(), fence.Rewinding{Partition: p})
	}
	if err != nil {
		return err
	}
	part := &fencedPart{claim: claim, moves: r.moves[p], at: claim.Start(), committed: r.committed[p]}
	if old := c.parts[p]; old != nil && r.Fault == DuplicateOwners {
		part.at = old.at
	}
	if r.Fault == SkipForgotten && a.Committed > part.at {
		part.at = a.Committed
	}
	c.parts[p] = part
	r.note("consumer %d claims partition %d with epoch %d and starts at %d, committed %d", c.id, p, claim.Epoch(), part.at, a.Committed)
	return nil
}

func (r *fencedRun) apply(c *fencedConsumer, p int32, part *fencedPart, faults bool) error {
	log := r.logs[p]
	if len(part.batch.Records) == 0 {
		end := min(part.at+1+r.rng.Int64N(6), int64(len(log)))
		for o := part.at; o < end; o++ {
			part.batch.Records = append(part.batch.Records, fence.Record{Offset: o, Key: []byte(log[o].key)})
		}
		if len(part.batch.Records) == 0 {
			return nil
		}
		if r.rng.IntN(8) == 0 { // a record that was fetched twice
			i := r.rng.IntN(len(part.batch.Records))
			part.batch.Records = slices.Insert(part.batch.Records, i, part.batch.Records[i])
		}
	}
	part.batch.Committed = part.committed
	results, err := part.claim.Update(context.Background(), part.batch, func(rec *fence.Record, state []byte, _ bool) (fence.Change, error) {
		next := hash(string(state), log[rec.Offset].value, 0)
		return fence.Change{Value: []byte(next)}, nil
	})
	r.note("consumer %d applies %d records of partition %d from %d: %s", c.id, len(part.batch.Records), p, part.batch.Records[0].Offset, verdicts(results, err))
	switch {
	case errors.Is(err, fence.ErrFenced), errors.Is(err, fence.ErrRegressed), errors.Is(err, fence.ErrReleased):
		part.fenced = true
		return nil
	case err != nil:
		return err
	}
	if faults && r.rng.IntN(10) == 0 {
		r.note("the reply is lost")
		return nil // the batch is applied again
	}
	if r.Fault == WindowOfOne {
		last := map[string]int64{}
		for _, rec := range part.batch.Records {
			last[string(rec.Key)] = rec.Offset
		}
		if err := r.world.Forget(p, func(o int64) bool { return o == last[log[o].key] }); err != nil {
			return err
		}
	}
	part.results, part.step = results, 1
	return nil
}

func verdicts(results []fence.Result, err error) string {
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, res := range results {
		b.WriteByte(res.Verdict.String()[0])
	}
	return b.String()
}

// write writes the outputs: what is a function of the record and the state.
func (r *fencedRun) write(c *fencedConsumer, p int32, part *fencedPart) {
	for i, res := range part.results {
		if res.Verdict.Emits() {
			o := part.batch.Records[i].Offset
			r.written[output(p, o, r.logs[p][o], string(res.State))]++
		}
	}
	r.note("consumer %d writes the outputs of partition %d", c.id, p)
}

func output(p int32, offset int64, rec fencedRecord, state string) string {
	return fmt.Sprintf("%d/%d %s %s", p, offset, rec.value, state)
}

// commit is refused when the group has given the partition to another member.
func (r *fencedRun) commit(c *fencedConsumer, p int32, part *fencedPart) {
	next := part.batch.Records[len(part.batch.Records)-1].Offset + 1
	if r.owner[p] != c.id || part.moves != r.moves[p] {
		r.note("consumer %d may not commit partition %d", c.id, p)
		delete(c.parts, p)
		return
	}
	part.at = next
	// The offset of the group does not go back while forgotten records are
	// applied again.
	r.committed[p] = max(r.committed[p], next)
	part.committed = r.committed[p]
	r.note("consumer %d commits %d of partition %d", c.id, r.committed[p], p)
}

// judge compares outputs and states with a plain loop over the records. That of
// repeated outputs is fine; another one is not.
func (r *fencedRun) judge() error {
	want := map[string]bool{}
	states := map[string]string{}
	for p, log := range r.logs {
		for o, rec := range log {
			states[rec.key] = hash(states[rec.key], rec.value, 0)
			out := output(int32(p), int64(o), rec, states[rec.key])
			want[out] = true
			if r.written[out] == 0 {
				return fmt.Errorf("the output of offset %d of partition %d was never written: %s", o, p, out)
			}
		}
	}
	for out := range r.written {
		if !want[out] {
			return fmt.Errorf("an output of a state that never was: %s", out)
		}
	}
	// Redis may have been set back behind the last commit: what it holds then is
	// an earlier state, and the position says so.
	f, err := r.world.Open()
	if err != nil {
		return err
	}
	defer f.Close()
	for key, state := range states {
		in, err := f.Inspect(context.Background(), []byte(key))
		if err != nil {
			return err
		}
		if got := string(in.State.Value); got != state {
			p := in.Expected
			if in.Partition.Position < r.committed[p] {
				continue
			}
			return fmt.Errorf("key %s has the state %q, want %q", key, got, state)
		}
	}
	return nil
}
