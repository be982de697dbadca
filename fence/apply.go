package fence

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirstreams/weir/internal/redisconn"
)

// Record is a record of the topic and what it does to the state of its key.
type Record struct {
	// Offset is its offset in the partition.
	Offset int64
	// Key is its key, serialised. A nil key has no state: DeadLetter.
	Key []byte
	// Op is what it does to the state. The zero Op is Keep.
	Op Op
	// Output is kept in the pending window in place of the state, when it is
	// not nil: for outputs that are no function of the record and the state
	// after it. A record that is read again gets it back.
	Output []byte
}

// Batch is some records of one partition, in their order. The same record may
// be in it twice.
type Batch struct {
	Records []Record
	// Next is the offset behind the batch; it may lie behind the last record
	// when transaction markers follow. Defaults to the one after the last
	// record.
	Next int64
	// Committed is the offset that the group has committed by now, up to which
	// the pending window is pruned; outputs of records before it must have been
	// sent. Negative or older ones prune nothing, and what is ahead of the batches
	// of this claim counts as their end.
	Committed int64
}

// Result is what became of a record.
type Result struct {
	// Verdict is the verdict.
	Verdict Verdict
	// State is the state after this very record, and Exists whether there is
	// one. For SetAdd and SetRemove it is what changed. With Reemit and an
	// Output it is empty, with Skip and DeadLetter always.
	State  []byte
	Exists bool
	// Output is Record.Output of the first time.
	Output []byte
	// Reason says why a record is a dead letter.
	Reason Reason
}

// Bounds of one call of the script.
const (
	chunkRecords = 256
	chunkBytes   = 256 << 10
	// pipelined is how many of these bytes are on their way at once.
	pipelined = 8 << 20
	// maxPrune is how many segments a call takes out of the window.
	maxPrune = 1000
	// What a record and an argument count for, besides their bytes.
	recordBytes, argBytes = 32, 16
)

// Apply applies a batch and returns what became of each record, in one round
// trip to each node unless it is large. All of a batch is applied or nothing
// counts: after an error produce and commit nothing of it. ErrUnavailable may be
// repeated with the same batch; what was carried out then comes as Reemit.
// ErrFenced and ErrRegressed end the claim. ErrRecord and ErrConflict name
// records that stand in the way; other parts of a batch may have been applied,
// when it is more than 256 records or 256 KiB or the partition reaches several
// slots, and then come as Reemit. A batch without records prunes the window, and
// tells whether the claim still holds.
func (c *Claim) Apply(ctx context.Context, b Batch) ([]Result, error) {
	if c.ended != nil {
		return nil, c.f.fail("apply a batch to", c.partition, fmt.Errorf("%w: %w", ErrReleased, c.ended))
	}
	begin := time.Now()
	results, err := c.apply(ctx, b)
	c.metrics.observe(results, time.Since(begin), err)
	if err != nil {
		return nil, c.f.fail("apply a batch to", c.partition, err)
	}
	c.gaps(&b)
	c.metrics.window.Set(float64(c.depth()))
	return results, nil
}

// plan is what one slot gets of a batch.
type plan struct {
	claim  *slotClaim
	chunks []*chunk
	cur    *chunk    // that records are added to
	prune  []segment // that are left to be pruned
	depth  int       // of the window, without what is pruned
	expect int       // about how many records a chunk gets
	failed bool
}

// chunk is one call of the script.
type chunk struct {
	call  redisconn.Call
	index []int     // of the records in the batch
	prune []segment // that it takes out of the window, as the script finds out by itself
	bytes int
	last  int64 // the offset behind the chunk
	// short says that the caller knows what the records leave, and that their
	// offsets rise.
	short bool
}

func (c *Claim) apply(ctx context.Context, b Batch) ([]Result, error) {
	if err := c.check(&b); err != nil {
		return nil, err
	}
	f := c.f
	// What is ahead of what this claim has applied says nothing; see startOf.
	c.committed = max(c.committed, min(b.Committed, c.through))
	results := make([]Result, len(b.Records))
	plans := make([]plan, len(c.slots))
	depth := c.depth()
	for i := range plans {
		s := &c.slots[i]
		plans[i] = plan{claim: s, prune: s.pending.done(c.committed)}
		for _, g := range plans[i].prune {
			depth -= g.n
		}
	}
	for i := range plans {
		plans[i].depth, plans[i].expect = depth, min(chunkRecords, len(b.Records)/len(plans)+1)
		// A window that holds much of what is committed is emptied first.
		for n := len(plans[i].prune); n > maxPrune && len(plans[i].prune) > 0; {
			c.open(&plans[i])
		}
	}
	loose := false
	for i := range b.Records {
		r := &b.Records[i]
		if r.Key == nil {
			results[i] = Result{Verdict: DeadLetter, Reason: NoKey}
			continue
		}
		want, ok := f.CheckPartition(r.Key, c.partition)
		if !ok {
			results[i] = Result{Verdict: DeadLetter, Reason: WrongPartition}
			continue
		}
		loose = loose || want < 0
		at, err := c.place(r.Key)
		if err != nil {
			return nil, err
		}
		c.add(&plans[at], i, r)
	}
	for i := range plans {
		c.close(&plans[i], &b, loose)
	}
	if err := c.send(ctx, plans, &b, results); err != nil {
		return nil, err
	}
	c.through = max(c.through, b.Next)
	return results, nil
}

// place is where the slot of a key is in c.slots. Those that a partition reaches
// are a progression.
func (c *Claim) place(key []byte) (int, error) {
	slot, first, i := c.f.slotOf(key), c.slots[0].slot, 0
	if len(c.slots) > 1 {
		i = (slot - first) / (c.slots[1].slot - first)
	}
	if i < 0 || i >= len(c.slots) || c.slots[i].slot != slot {
		return 0, fmt.Errorf("%w: key %q is not in a slot that the partition can reach: the partitioner is not the same everywhere", ErrLayout, key)
	}
	return i, nil
}

// apart says that calls for different slots cannot share a round trip: WAIT
// counts for one node only.
func (f *Fence) apart() bool { return f.s.IsCluster() && f.s.Options().WaitReplicas > 0 }

// check looks at a batch and fills in Next.
func (c *Claim) check(b *Batch) error {
	limit := MaxBatch
	if !c.f.opts.NoWindow {
		limit = min(limit, c.f.opts.MaxWindow)
	}
	if len(b.Records) > limit {
		return fmt.Errorf("fence: a batch of %d records, at most %d (MaxBatch, and Options.MaxWindow)", len(b.Records), limit)
	}
	last := int64(-1)
	for i := range b.Records {
		r := &b.Records[i]
		if r.Offset < 0 || r.Offset == maxOffset {
			return fmt.Errorf("fence: record %d of the batch has offset %d, which none has", i, r.Offset)
		}
		if r.Offset < last {
			return fmt.Errorf("fence: record %d of the batch has offset %d behind %d: records come in the order of the partition", i, r.Offset, last)
		}
		last = r.Offset
		if r.Op.err != nil {
			return fmt.Errorf("fence: record at offset %d: %s: %w", r.Offset, r.Op, r.Op.err)
		}
		if n := r.Op.size() + len(r.Output); n > MaxValue {
			return fmt.Errorf("fence: record at offset %d: %d bytes for Redis, at most %d", r.Offset, n, MaxValue)
		}
		if n := len(r.Op.args); n > MaxArgs {
			return fmt.Errorf("fence: record at offset %d: %s with %d members or arguments, at most %d", r.Offset, r.Op, n, MaxArgs)
		}
		if r.Op.code == 'r' {
			if _, ok := c.f.reducer(r.Op.args[0]); !ok {
				return fmt.Errorf("fence: record at offset %d: reducer %q is not in Options.Reducers", r.Offset, r.Op.args[0])
			}
		}
	}
	if b.Next == 0 {
		b.Next = last + 1
	}
	if b.Next <= last {
		return fmt.Errorf("fence: Next is %d and the last record has offset %d", b.Next, last)
	}
	return nil
}

// maxOffset is the largest number for an offset. A record has a smaller one, so
// that there is one behind it.
const maxOffset = math.MaxInt64

func (f *Fence) reducer(name string) (*Reducer, bool) {
	for i := range f.opts.Reducers {
		if f.opts.Reducers[i].Name == name {
			return &f.opts.Reducers[i], true
		}
	}
	return nil, false
}

// add puts a record into the plan of its slot.
func (c *Claim) add(p *plan, index int, r *Record) {
	size := recordBytes + len(r.Key) + len(r.Output) + r.Op.size() + argBytes*len(r.Op.args)
	if p.cur == nil || len(p.cur.index) == chunkRecords || len(p.cur.index) > 0 && p.cur.bytes+size > chunkBytes {
		c.open(p)
	}
	ch := p.cur
	again := len(ch.index) > 0 && r.Offset < ch.last // the same record once more
	ch.short = ch.short && (r.Op.code == 's' || r.Op.code == 'd') && r.Output == nil && !again
	ch.index = append(ch.index, index)
	ch.bytes += size
	ch.last = r.Offset + 1
}

// open begins a chunk.
func (c *Claim) open(p *plan) {
	n := min(len(p.prune), maxPrune)
	ch := &chunk{prune: p.prune[:n], short: true, last: p.claim.position}
	ch.index = make([]int, 0, p.expect)
	p.prune = p.prune[n:]
	p.chunks, p.cur = append(p.chunks, ch), ch
}

// close makes the calls, such that each slot moves to the end of the batch: also
// one that got no record, or it could not be told later what it has forgotten.
func (c *Claim) close(p *plan, b *Batch, loose bool) {
	if len(p.chunks) == 0 {
		c.open(p)
	}
	room := ""
	if !c.f.opts.NoWindow {
		// The window is one, over all slots.
		room = strconv.Itoa(max(0, c.f.opts.MaxWindow-p.depth))
	}
	position := p.claim.position
	for i, ch := range p.chunks {
		end := b.Next
		if i < len(p.chunks)-1 {
			// The next chunk may begin with the same offset once more.
			end = ch.last
		}
		args := make([]string, 0, argRecords+1+4*len(ch.index))
		args = append(args, c.owner, formatOffset(position), formatOffset(end), c.prefix, strconv.Itoa(c.f.opts.Partitions), room,
			strconv.FormatInt(c.f.opts.TTL.Milliseconds(), 10), formatOffset(c.committed), "", strconv.Itoa(maxPrune))
		if loose {
			args[argLoose] = "1"
		}
		keys := append(make([]string, 0, 2+len(ch.index)), p.claim.meta, p.claim.window)
		ch.call = redisconn.Call{Script: c.f.batch, Keys: keys, Args: args}
		if ch.short && len(ch.index) > 0 {
			c.encodeShort(ch, p, b.Records)
		} else {
			c.encode(ch, p, b.Records)
		}
		position = max(position, end)
	}
}

// Places in the arguments of the script.
const (
	argNew     = 2
	argLoose   = 8
	argRecords = 10
)

// encode writes the records into the call in the long form.
func (c *Claim) encode(ch *chunk, p *plan, records []Record) {
	a := append(ch.call.Args, "")
	keys := make(map[string]string, len(ch.index))
	for _, at := range ch.index {
		r := &records[at]
		place, ok := keys[string(r.Key)]
		if !ok {
			ch.call.Keys = append(ch.call.Keys, c.f.stateKey(p.claim.slot, r.Key))
			place = strconv.Itoa(len(ch.call.Keys))
			keys[string(r.Key)] = place
		}
		op := r.Op
		if op.code == 0 {
			op = Keep()
		}
		code := string(rune(op.code))
		if r.Output != nil {
			code += "+"
		}
		a = append(a, place, formatOffset(r.Offset), code)
		switch op.code {
		case '+', '-':
			a = append(a, strconv.Itoa(len(op.args)))
			a = append(a, op.args...)
		case 'r':
			red, _ := c.f.reducer(op.args[0])
			reads := red.Reads
			if reads == 0 {
				reads = red.Version
			}
			a = append(a, strconv.Itoa(len(op.args)+2), op.args[0], strconv.Itoa(red.Version), strconv.Itoa(reads))
			a = append(a, op.args[1:]...)
		default:
			a = append(a, op.args...)
		}
		if r.Output != nil {
			a = append(a, string(r.Output))
		}
	}
	ch.call.Args = a
}

// encodeShort writes the records into the call in the short form: the states as
// they will be stored. They and the keys are parts of one string each.
func (c *Claim) encodeShort(ch *chunk, p *plan, records []Record) {
	n := len(ch.index)
	head := c.f.stateKey(p.claim.slot, nil)
	sizeOfKeys, sizeOfStates := n*len(head), n*(len(c.prefix)+maxDigits+1)
	for _, at := range ch.index {
		sizeOfKeys += len(records[at].Key)
		sizeOfStates += records[at].Op.size()
	}
	var keys, states strings.Builder
	keys.Grow(sizeOfKeys)
	states.Grow(sizeOfStates)
	var digits [maxDigits]byte
	ends := make([]struct{ key, state int }, n)
	for i, at := range ch.index {
		r := &records[at]
		keys.WriteString(head)
		keys.Write(r.Key)
		states.WriteString(c.prefix)
		states.Write(strconv.AppendInt(digits[:0], r.Offset, 10))
		if r.Op.code == 's' {
			states.WriteByte('\n')
			states.WriteString(r.Op.args[0])
		}
		ends[i].key, ends[i].state = keys.Len(), states.Len()
	}
	a := append(ch.call.Args, segment{records[ch.index[0]].Offset, records[ch.index[n-1]].Offset, n}.String())
	k, allKeys, allStates := ch.call.Keys, keys.String(), states.String()
	key, state := 0, 0
	for _, end := range ends {
		k, a = append(k, allKeys[key:end.key]), append(a, allStates[state:end.state])
		key, state = end.key, end.state
	}
	ch.call.Keys, ch.call.Args = k, a
}

// maxDigits is how long an offset is at most.
const maxDigits = 19

// send makes the calls of all slots, in as few round trips as their size allows.
func (c *Claim) send(ctx context.Context, plans []plan, b *Batch, results []Result) error {
	var calls []redisconn.Call
	var chunks []*chunk
	var owners []*plan
	size := 0
	flush := func() error {
		if len(calls) == 0 {
			return nil
		}
		replies, err := c.f.run(ctx, owners[0].claim.meta, true, calls...)
		if err == nil {
			err = c.receive(replies, chunks, owners, b, results)
		}
		calls, chunks, owners, size = calls[:0], chunks[:0], owners[:0], 0
		return err
	}
	for i := range plans {
		p := &plans[i]
		for _, ch := range p.chunks {
			if size > 0 && size+ch.bytes > pipelined || len(owners) > 0 && owners[0] != p && c.f.apart() {
				if err := flush(); err != nil {
					return err
				}
			}
			calls, chunks, owners = append(calls, ch.call), append(chunks, ch), append(owners, p)
			size += ch.bytes
		}
	}
	return flush()
}

// receive looks at the replies. Of several errors that counts which ends the
// claim.
func (c *Claim) receive(replies []redisconn.Reply, chunks []*chunk, owners []*plan, b *Batch, results []Result) error {
	var bad RecordError
	var failed error
	fail := func(err error) {
		if failed == nil {
			failed = err
		}
	}
	var refusal *redisconn.Reply
	for i := range replies {
		r, ch, p := &replies[i], chunks[i], owners[i]
		switch r.Status {
		case statusOK:
			if err := c.decode(r, p.claim, ch, b, results); err != nil {
				return err
			}
			c.applied(p.claim, ch)
			continue
		case statusFenced:
			refusal = r
		case statusRegressed:
			// The chunks behind one that failed are refused as well, because the
			// position is not where they begin.
			if !p.failed && refusal == nil {
				refusal = r
			}
		case statusBad:
			for j := 0; j+1 < len(r.Values); j += 2 {
				n, err := strconv.Atoi(r.Str(j))
				if err != nil || n < 0 || n >= len(ch.index) {
					return errReply
				}
				at := ch.index[n]
				bad.Bad = append(bad.Bad, BadRecord{Index: at, Offset: b.Records[at].Offset, Reason: r.Str(j + 1)})
			}
		case statusConflict:
			n, err := strconv.Atoi(r.Str(0))
			if err != nil || n < 1 || n > len(ch.call.Keys) {
				return errReply
			}
			fail(&ConflictError{Keys: [][]byte{[]byte(ch.call.Keys[n-1][len(c.f.stateKey(p.claim.slot, nil)):])}})
		case statusFull:
			fail(fmt.Errorf("%w: it holds %d records, MaxWindow is %d", ErrWindowFull, c.depth(), c.f.opts.MaxWindow))
		case statusCorrupt:
			fail(fmt.Errorf("%w: the fence at %q cannot be read", ErrCorrupt, r.Str(0)))
		default:
			return errReply
		}
		p.failed = true
	}
	if refusal != nil {
		return c.refused(refusal)
	}
	if len(bad.Bad) > 0 {
		slices.SortFunc(bad.Bad, func(x, y BadRecord) int { return x.Index - y.Index })
		fail(&bad)
	}
	return failed
}

var errReply = fmt.Errorf("%w: unexpected reply of the script", ErrCorrupt)

// applied keeps the books on the window and the position.
func (c *Claim) applied(s *slotClaim, ch *chunk) {
	s.pending.remove(ch.prune)
	if n, err := strconv.ParseInt(ch.call.Args[argNew], 10, 64); err == nil {
		s.position = max(s.position, n)
	}
}

// decode takes the reply of a chunk apart: a letter for each record, and of those
// whose letter is a capital another one and a value.
func (c *Claim) decode(r *redisconn.Reply, s *slotClaim, ch *chunk, b *Batch, results []Result) error {
	letters, own, used, kinds := r.Str(0), r.Str(1), r.List(2), r.Str(3)
	const first = 4 // of the values
	if len(letters) != len(ch.index) || len(r.Values) != first+len(kinds) {
		return errReply
	}
	if own != "" {
		used = append(used, own)
	}
	for _, name := range used {
		// Also one that was written by a call whose reply was lost.
		g, err := parseSegment(name)
		if err != nil {
			return err
		}
		s.pending.add(g)
	}
	next := 0
	for j, at := range ch.index {
		rec, res := &b.Records[at], &results[at]
		switch letters[j] {
		case 'A', 'a':
			res.Verdict = Apply
		case 'B', 'b':
			res.Verdict = Rebase
		case 'R':
			res.Verdict = Reemit
		case 's':
			res.Verdict = Skip
			continue
		case 'd':
			res.Verdict, res.Reason = DeadLetter, OldPartitions
			continue
		default:
			return errReply
		}
		if res.Verdict != Reemit {
			res.Output = rec.Output
		}
		switch letters[j] {
		case 'a', 'b': // the caller knows it
			switch rec.Op.code {
			case 's':
				res.State, res.Exists = []byte(rec.Op.args[0]), true
			case 'c':
				if rec.Op.args[2] == "1" {
					res.State, res.Exists = []byte(rec.Op.args[3]), true
				}
			}
			continue
		}
		if next == len(kinds) {
			return errReply
		}
		switch kinds[next] {
		case 'o':
			res.Output = []byte(r.Str(first + next))
		case 's':
			res.State, res.Exists = []byte(r.Str(first+next)), true
		case 'n':
		default:
			return errReply
		}
		next++
	}
	return nil
}
