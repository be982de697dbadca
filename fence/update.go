package fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/weirstreams/weir/internal/redisconn"
)

// State is a state as it is stored, with its fence.
type State struct {
	// Value is the state, and Exists whether there is one. Of a set it is the
	// number of its members.
	Value  []byte `json:"value"`
	Exists bool   `json:"exists"`
	// Kind is "" for a plain value, "sum", "list", "set", or "reducer", a name
	// and a version.
	Kind string `json:"kind"`
	// Fenced says that records of the key were applied; the fields below are
	// those of the last one.
	Fenced     bool   `json:"fenced"`
	Partition  int32  `json:"partition"`
	Partitions int    `json:"partitions"`
	Lineage    uint64 `json:"lineage"`
	Offset     int64  `json:"offset"`
}

// parseState takes apart what is stored for a state: see docs/formats/fence.md.
func parseState(text []byte) (State, error) {
	var s State
	head, value, exists := bytes.Cut(text, []byte("\n"))
	part := strings.SplitN(string(head), " ", 5)
	if len(part) < 4 {
		return s, fmt.Errorf("%w: the fence of a state is %.60q", ErrCorrupt, head)
	}
	p, err1 := strconv.ParseInt(part[0], 10, 32)
	n, err2 := strconv.Atoi(part[1])
	l, err3 := strconv.ParseUint(part[2], 10, 64)
	o, err4 := offsetOf(part[3])
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return s, fmt.Errorf("%w: the fence of a state is %.60q", ErrCorrupt, head)
	}
	if len(part) == 5 {
		s.Kind = part[4]
	}
	if exists {
		s.Value, s.Exists = value, true
	}
	s.Fenced, s.Partition, s.Partitions, s.Lineage, s.Offset = true, int32(p), n, l, o
	return s, nil
}

// Read reads the states of keys, for the owner of the partition and only while
// he is that: otherwise the error is ErrFenced or ErrRegressed, and the claim
// has ended. A state of an earlier lineage counts as missing. It takes one round
// trip unless there are many keys.
func (c *Claim) Read(ctx context.Context, keys [][]byte) ([]State, error) {
	if c.ended != nil {
		return nil, c.f.fail("read states of", c.partition, fmt.Errorf("%w: %w", ErrReleased, c.ended))
	}
	states, err := c.read(ctx, keys)
	return states, c.f.fail("read states of", c.partition, err)
}

func (c *Claim) read(ctx context.Context, keys [][]byte) ([]State, error) {
	states := make([]State, len(keys))
	lists := make([][]int, len(c.slots))
	loose := "0"
	for i, k := range keys {
		at, err := c.place(k)
		if err != nil {
			return nil, err
		}
		lists[at] = append(lists[at], i)
		if want, _ := c.f.CheckPartition(k, c.partition); want < 0 {
			loose = "1"
		}
	}
	var calls []redisconn.Call
	var parts [][]int
	for at, list := range lists {
		s := &c.slots[at]
		for part := range slices.Chunk(list, chunkRecords) {
			call := redisconn.Call{Script: readScript, Keys: []string{s.meta}, Args: []string{c.owner, formatOffset(s.position), strconv.Itoa(int(c.partition)), loose}}
			for _, i := range part {
				call.Keys = append(call.Keys, c.f.stateKey(s.slot, keys[i]))
			}
			calls, parts = append(calls, call), append(parts, part)
		}
	}
	replies, err := c.f.runAll(ctx, false, calls)
	if err != nil {
		return nil, err
	}
	for n := range replies {
		if r := &replies[n]; r.Status != statusOK {
			return nil, c.refused(r)
		}
	}
	for n := range replies {
		letters := replies[n].Str(0)
		list, err := replies[n].Optional(1)
		if err != nil || len(list) != len(parts[n]) || len(letters) != len(list) {
			return nil, errReply
		}
		for j, i := range parts[n] {
			if list[j] == nil {
				continue
			}
			if states[i], err = parseState([]byte(*list[j])); err != nil {
				return nil, fmt.Errorf("key %q: %w", keys[i], err)
			}
			switch letters[j] {
			case 'f':
				states[i].Fenced = false
			case 's':
				states[i] = State{}
			}
		}
	}
	return states, nil
}

// newer says that a record would change a state, which is at a place in c.slots:
// it is what the script decides.
func (c *Claim) newer(ctx context.Context, at int, s *State, offset int64, known map[segment][]entry) (bool, error) {
	slot := &c.slots[at]
	fresh := offset >= slot.position
	mine := s.Fenced && s.Partition == c.partition
	switch {
	case mine && offset <= s.Offset:
		return false, nil
	case fresh:
		return !s.Fenced || mine || s.Partitions <= c.f.opts.Partitions, nil
	case offset < c.begin:
		return false, nil
	}
	// It was applied, and the state is gone or comes from another partition, or
	// it was left out.
	if !c.f.opts.NoWindow && offset >= c.committed {
		kept, err := c.holds(ctx, slot, offset, known)
		if kept || err != nil {
			return false, err
		}
	}
	return !s.Fenced || mine, nil
}

// holds looks for an offset in the window. known are the segments that were
// looked at.
func (c *Claim) holds(ctx context.Context, slot *slotClaim, offset int64, known map[segment][]entry) (bool, error) {
	for _, g := range slot.pending.list {
		if offset < g.first || offset > g.last {
			continue
		}
		list, ok := known[g]
		if !ok {
			var err error
			if list, err = c.f.segment(ctx, slot.window, g); err != nil {
				return false, err
			}
			known[g] = list
		}
		if slices.ContainsFunc(list, func(e entry) bool { return e.offset == offset }) {
			return true, nil
		}
	}
	return false, nil
}

// segment reads a segment of a window for its owner.
func (f *Fence) segment(ctx context.Context, window string, g segment) ([]entry, error) {
	br, name := f.s.Breaker(window), g.String()
	r, err := f.s.Do(ctx, br, "LPOS", []string{window}, name)
	if err != nil {
		return nil, err
	}
	at, err := r.AsInt64()
	if rueidis.IsRedisNil(err) {
		return nil, fmt.Errorf("%w: segment %s of the window is gone", ErrCorrupt, name)
	}
	if err != nil {
		return nil, err
	}
	if r, err = f.s.Do(ctx, br, "LRANGE", []string{window}, strconv.FormatInt(at, 10), strconv.FormatInt(at+int64(g.n), 10)); err != nil {
		return nil, err
	}
	list, err := r.AsStrSlice()
	if err != nil {
		return nil, err
	}
	if len(list) == 0 || list[0] != name {
		return nil, fmt.Errorf("%w: segment %s of the window has moved: another owner has the partition", ErrFenced, name)
	}
	return g.entries(list[1:])
}

// Change is what a function of Update makes of a state.
type Change struct {
	// Value is the new state. Nil removes it; an empty one is a state.
	Value []byte
	// Output is kept in the pending window when it is not nil. See
	// Record.Output.
	Output []byte
}

// retries is how often Update computes again.
const retries = 5

// Update is Apply for states that the caller computes from the old ones: it
// reads the states of the batch, calls compute for each record that is new, in
// order, with the state that those before it have left, and applies the results
// under the condition that each state is still the one that was read. Ops of the
// records are not looked at. It takes two round trips.
//
// compute must not keep state, and must have no effect of its own: it is called
// again when a state has changed in between, a few times, after which the error
// is ErrConflict. For records that were applied before it is not called. Its
// error ends Update before anything is written.
func (c *Claim) Update(ctx context.Context, b Batch, compute func(r *Record, state []byte, exists bool) (Change, error)) ([]Result, error) {
	for attempt := 1; ; attempt++ {
		prepared, err := c.prepare(ctx, b, compute)
		if err != nil {
			return nil, err
		}
		results, err := c.Apply(ctx, prepared)
		if !errors.Is(err, ErrConflict) || attempt == retries {
			return results, err
		}
	}
}

func (c *Claim) prepare(ctx context.Context, b Batch, compute func(*Record, []byte, bool) (Change, error)) (Batch, error) {
	var keys [][]byte
	index := map[string]int{}
	for i := range b.Records {
		k := b.Records[i].Key
		if k == nil {
			continue
		}
		if _, ok := c.f.CheckPartition(k, c.partition); !ok {
			continue
		}
		if _, ok := index[string(k)]; !ok {
			index[string(k)] = len(keys)
			keys = append(keys, k)
		}
	}
	states, err := c.Read(ctx, keys)
	if err != nil {
		return b, err
	}
	records, known := make([]Record, len(b.Records)), map[segment][]entry{}
	for i := range b.Records {
		r := &records[i]
		*r = b.Records[i]
		r.Op = Keep()
		n, ok := index[string(r.Key)]
		if r.Key == nil || !ok {
			continue
		}
		at, err := c.place(r.Key)
		if err != nil {
			return b, err
		}
		s := &states[n]
		newer, err := c.newer(ctx, at, s, r.Offset, known)
		if err != nil {
			return b, c.f.fail("read the window of", c.partition, err)
		}
		if !newer {
			continue
		}
		var base []byte
		if s.Exists {
			if base = s.Value; base == nil {
				base = []byte{}
			}
		}
		change, err := compute(r, s.Value, s.Exists)
		if err != nil {
			return b, fmt.Errorf("compute the state for offset %d of partition %d of topic %s: %w", r.Offset, c.partition, c.f.opts.Topic, err)
		}
		r.Op, r.Output = CompareAndSet(base, change.Value), change.Output
		s.Value, s.Exists = change.Value, change.Value != nil
		s.Fenced, s.Partition, s.Partitions, s.Offset = true, c.partition, c.f.opts.Partitions, r.Offset
	}
	b.Records = records
	return b, nil
}
