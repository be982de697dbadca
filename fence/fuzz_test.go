package fence

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/alicebob/miniredis/v2"

	"github.com/weirstreams/weir/internal/redisconn"
)

// FuzzBatches drives the fence and the reference with the same batches, and
// compares verdicts, results, states, positions and windows. The records of a
// partition are a log: one that is read again is the same.
func FuzzBatches(f *testing.F) {
	m, err := miniredis.Run()
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(m.Close)
	seeds, err := filepath.Glob("testdata/fuzz/FuzzBatches/*")
	if err != nil || len(seeds) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		if len(program) > 120 {
			program = program[:120]
		}
		m.FlushAll()
		p := newPlayer(t, "redis://"+m.Addr()+"?check=off&timeout=30s", program)
		defer p.close()
		p.play()
	})
}

// player plays a program.
type player struct {
	t       *testing.T
	program []byte
	at      int
	url     string
	opts    Options
	fences  []*Fence
	ref     *reference
	kept    *reference
	shot    *scenario
	saved   []saved
	log     map[int32]map[int64]Record
	pairs   map[int32]*pair
	zombies []*pair
	group   map[int32]int64 // committed offsets
	safe    bool            // no operation that can fail
	seed    byte
	trace   []string
}

// pair is a claim on both sides.
type pair struct {
	p      int32
	claim  *Claim
	ref    *refClaim
	cursor int64
}

const fuzzPartitions = 2

func newPlayer(t *testing.T, url string, program []byte) *player {
	p := &player{t: t, program: program, url: url, log: map[int32]map[int64]Record{}, pairs: map[int32]*pair{}, group: map[int32]int64{}}
	mode := p.next()
	p.seed = p.next()
	p.opts = Options{URL: url, Topic: "t", Partitions: fuzzPartitions, NoWindow: mode&4 != 0, MaxWindow: 1000}
	p.safe = mode&2 != 0
	loose := mode&1 != 0
	if loose {
		p.opts.Partitioner, p.opts.Slots = AnyPartition, 1
		if p.safe {
			p.opts.Slots = 3
		}
	}
	p.ref = newReference(fuzzPartitions, loose, !p.opts.NoWindow)
	p.open(fuzzPartitions)
	for q := range int32(fuzzPartitions) {
		p.group[q] = -1
	}
	return p
}

func (p *player) open(partitions int) {
	o := p.opts
	o.Partitions = partitions
	f, err := Open(p.t.Context(), o)
	if err != nil {
		p.t.Fatal(err)
	}
	p.opts.Partitions, p.ref.partitions = partitions, partitions
	p.fences = append(p.fences, f)
	p.shot = &scenario{t: p.t, fences: map[string]*Fence{"": f}}
}

func (p *player) close() {
	for _, c := range append(slices.Collect(maps.Values(p.pairs)), p.zombies...) {
		c.claim.Release()
	}
	for _, f := range p.fences {
		f.Close()
	}
}

func (p *player) next() byte {
	if p.at >= len(p.program) {
		return 0
	}
	p.at++
	return p.program[p.at-1]
}

func (p *player) fence() *Fence { return p.fences[len(p.fences)-1] }

func (p *player) fatalf(format string, args ...any) {
	p.t.Helper()
	for _, line := range p.trace {
		p.t.Log(line)
	}
	p.t.Fatalf(format, args...)
}

func (p *player) note(format string, args ...any) {
	p.trace = append(p.trace, fmt.Sprintf(format, args...))
}

// record is that of the log.
func (p *player) record(q int32, offset int64) Record {
	if p.log[q] == nil {
		p.log[q] = map[int64]Record{}
	}
	if r, ok := p.log[q][offset]; ok {
		return r
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %d %d", p.seed, q, offset)
	x := h.Sum64()
	pick := func(n uint64) int { v := x % n; x /= n; return int(v) }
	r := Record{Offset: offset}
	for {
		r.Key = fmt.Appendf(nil, "k%d", pick(6))
		if p.ref.any || Murmur2.Partition(r.Key, p.opts.Partitions) == int(q) || pick(8) == 0 {
			break
		}
		h.Write([]byte{1})
		x = h.Sum64()
	}
	if pick(30) == 0 {
		r.Key = nil
	}
	n := int64(pick(7)) - 3
	switch choice := pick(16); {
	case p.safe && choice < 8:
		r.Op = Set(fmt.Appendf(nil, "v%d", n))
	case p.safe:
		r.Op = [...]Op{Keep(), Delete(), {}, Set(nil)}[choice%4]
	default:
		r.Op = [...]Op{Keep(), Delete(), Set(strconv.AppendInt(nil, n, 10)), Add(n), Add(n), Min(n), Max(n), AddFloat(float64(n) / 8),
			Sum(n), Append([]byte{byte('a' + choice)}, 2), SetAdd("x", strconv.Itoa(choice)), SetRemove("x"), Delete(),
			CompareAndSet(nil, []byte("1")), Add(1 << 62), Set([]byte(""))}[choice]
	}
	if pick(5) == 0 {
		r.Output = fmt.Appendf(nil, "out %d", offset)
	}
	p.log[q][offset] = r
	return r
}

// batch takes records of the log from the cursor on, with holes and repetitions.
func (p *player) batch(c *pair, shape byte) Batch {
	b := Batch{Committed: p.group[c.p]}
	o := c.cursor
	for range shape%5 + 1 {
		r := p.record(c.p, o)
		b.Records = append(b.Records, r)
		if shape&32 != 0 && o%3 == 0 {
			b.Records = append(b.Records, r)
		}
		o++
		if h := fnv.New32a(); shape&64 != 0 {
			fmt.Fprintf(h, "hole %d %d", c.p, o)
			o += int64(h.Sum32() % 2) // the same holes each time
		}
	}
	if shape&128 != 0 {
		b.Next = o + 2
	}
	return b
}

func (p *player) play() {
	for p.at < len(p.program) {
		code, shape := p.next(), p.next()
		q := int32(shape>>3) % int32(p.opts.Partitions)
		c := p.pairs[q]
		if c == nil || code%16 == 11 {
			p.claim(q)
			continue
		}
		switch code % 16 {
		case 0, 1, 2, 3:
			p.apply(c, p.batch(c, shape), shape&16 != 0)
		case 4, 5:
			if !slices.Contains(p.zombies, c) && c.cursor > p.group[q] {
				p.group[q] = c.cursor
			}
			p.note("commit %d of partition %d", p.group[q], q)
		case 6: // a crash: the next one begins with what is committed
			p.claim(q)
		case 7:
			if n := len(p.zombies); n > 0 {
				z := p.zombies[int(shape)%n]
				p.apply(z, p.batch(z, shape), false)
			}
		case 8:
			offset := int64(shape % 16)
			keep := shape&16 != 0
			p.note("rewind partition %d to %d, keep %t", q, offset, keep)
			if err := p.fence().Rewind(p.t.Context(), Rewinding{Partition: q, Offset: offset, Keep: keep}); err != nil {
				p.fatalf("rewind: %v", err)
			}
			p.ref.rewind(q, offset, keep)
			if shape&32 != 0 {
				p.group[q] = offset
			}
			p.claim(q)
		case 9: // the reply is lost, and the call is made again
			b := p.batch(c, shape)
			p.lose(c.claim.f)
			_, err := c.claim.Apply(p.t.Context(), b)
			c.claim.f.before.Store(nil)
			if errors.Is(err, ErrUnavailable) {
				// What the reference holds to be acknowledged was not.
				was := *c.ref
				if _, err := p.ref.apply(c.ref, b); err == nil {
					was.committed = c.ref.committed
				}
				*c.ref = was
			}
			p.apply(c, b, false)
		case 10:
			p.group[q] = [...]int64{-1, 0, c.cursor + 5, max(c.cursor-5, 0)}[shape%4]
			p.note("the group's offset of partition %d is set to %d", q, p.group[q])
			p.claim(q)
		case 12:
			if p.opts.Partitions == fuzzPartitions {
				p.note("more partitions")
				p.open(2 * fuzzPartitions)
				for n := int32(fuzzPartitions); n < 2*fuzzPartitions; n++ {
					p.group[n] = -1
				}
			}
		case 13:
			p.note("snapshot")
			p.kept, p.saved = p.ref.copied(), p.shot.dump()
		case 14:
			if p.kept != nil {
				p.note("restore")
				p.shot.flush()
				p.shot.load(p.saved)
				p.ref = p.kept.copied()
				p.ref.partitions = p.opts.Partitions
			}
		case 15:
			c.cursor = max(min(c.cursor, int64(shape%32)), c.ref.start)
		}
		p.compare()
	}
}

// lose loses the reply of the next batch.
func (p *player) lose(f *Fence) {
	hook := func(calls []redisconn.Call) error {
		if calls[0].Script != f.batch {
			return nil
		}
		f.before.Store(nil)
		replies, err := f.s.Run(p.t.Context(), f.s.Breaker(""), false, calls...)
		if err != nil {
			return err
		}
		for i := range replies {
			if replies[i].Status != statusOK {
				return nil // it is refused once more
			}
		}
		return fmt.Errorf("%w: the reply is lost", ErrUnavailable)
	}
	f.before.Store(&hook)
}

func (p *player) claim(q int32) {
	a := Assignment{Partition: q, Committed: p.group[q], Begin: 3}
	if part := p.ref.parts[q]; (part == nil || !part.claimed) && a.Committed > 0 {
		if _, err := p.fence().Claim(p.t.Context(), a); !errors.Is(err, ErrMissing) {
			p.fatalf("claim of a partition that is gone: %v", err)
		}
		p.group[q], a.Committed = -1, -1
	}
	c, err := p.fence().Claim(p.t.Context(), a)
	if err != nil {
		p.fatalf("claim: %v", err)
	}
	ref := p.ref.claim(q, p.opts.Partitions, a.Committed, a.Begin)
	p.note("claim partition %d of %d, committed %d: epoch %d start %d", q, p.opts.Partitions, a.Committed, c.Epoch(), c.Start())
	if c.Start() != ref.start || c.position() != ref.position {
		p.fatalf("claim starts at %d and stands at %d, want %d and %d", c.Start(), c.position(), ref.start, ref.position)
	}
	if old := p.pairs[q]; old != nil {
		p.zombies = append(p.zombies, old)
	}
	p.pairs[q] = &pair{p: q, claim: c, ref: ref, cursor: c.Start()}
}

func (p *player) apply(c *pair, b Batch, computed bool) {
	if c.claim.ended != nil {
		// Also when what Redis forgot has come back.
		if _, err := c.claim.Apply(p.t.Context(), b); !errors.Is(err, ErrReleased) {
			p.fatalf("%v, and the claim has ended", err)
		}
		return
	}
	var results []Result
	var err error
	refBatch := b
	if computed {
		refBatch.Records = slices.Clone(b.Records)
		for i := range refBatch.Records {
			refBatch.Records[i].Op = Op{code: 'u', args: []string{fmt.Sprintf("+%d", refBatch.Records[i].Offset)}}
			refBatch.Records[i].Output = nil
		}
		results, err = c.claim.Update(p.t.Context(), b, func(r *Record, state []byte, exists bool) (Change, error) {
			return Change{Value: fmt.Appendf(slices.Clone(state), "+%d", r.Offset)}, nil
		})
	} else {
		predicted := map[int]Verdict{}
		seen := map[string]bool{}
		for i := range b.Records {
			r := &b.Records[i]
			if seen[string(r.Key)] {
				continue
			}
			seen[string(r.Key)] = true
			in, err := c.claim.f.Inspect(p.t.Context(), r.Key)
			if err != nil {
				p.fatalf("inspect: %v", err)
			}
			about, err := c.claim.f.ask(p.t.Context(), in, c.p)
			if err != nil {
				p.fatalf("inspect: %v", err)
			}
			about.info.Committed = max(about.info.Committed, min(b.Committed, c.claim.through))
			if predicted[i], _, err = c.claim.f.Predict(p.t.Context(), in, c.p, r.Offset); err != nil {
				p.fatalf("predict: %v", err)
			}
		}
		results, err = c.claim.Apply(p.t.Context(), b)
		for i, v := range predicted {
			if err == nil && results[i].Verdict != v {
				p.fatalf("offset %d of partition %d, key %q: %s was predicted, it got %s", b.Records[i].Offset, c.p, b.Records[i].Key, v, results[i].Verdict)
			}
		}
	}
	p.note("apply to partition %d, computed %t, committed %d: %v -> %v %v", c.p, computed, b.Committed, brief(b.Records), briefResults(results), err)
	want, refErr := p.ref.apply(c.ref, refBatch)
	switch {
	case errors.Is(refErr, errRefused):
		if !errors.Is(err, ErrFenced) && !errors.Is(err, ErrRegressed) {
			p.fatalf("%v, want it refused", err)
		}
		return
	case errors.Is(refErr, errRefBad):
		if !errors.Is(err, ErrRecord) && !errors.Is(err, ErrConflict) {
			p.fatalf("%v, want it to be bad", err)
		}
		// It is left out, as a caller has to.
		c.cursor = b.Records[len(b.Records)-1].Offset + 1
		return
	case err != nil:
		p.fatalf("%v", err)
	}
	for i := range results {
		got, want := &results[i], &want[i]
		same := got.Verdict == want.verdict
		if got.Verdict.Emits() && same {
			same = string(got.Output) == string(want.output)
			if got.Verdict != Reemit || want.output == nil {
				same = same && got.Exists == want.exists && string(got.State) == string(want.state)
			}
		}
		if !same {
			p.fatalf("record %d, offset %d of partition %d, key %q %s: %+v, want %s %q %t %q", i, b.Records[i].Offset, c.p, b.Records[i].Key, b.Records[i].Op,
				got, want.verdict, want.state, want.exists, want.output)
		}
	}
	c.cursor = b.Records[len(b.Records)-1].Offset + 1
}

func brief(records []Record) (list []string) {
	for _, r := range records {
		list = append(list, fmt.Sprintf("%d %s %s", r.Offset, r.Key, r.Op))
	}
	return list
}

func briefResults(results []Result) (list []string) {
	for _, r := range results {
		list = append(list, fmt.Sprintf("%s %q", r.Verdict, r.State))
	}
	return list
}

// compare compares all that is stored.
func (p *player) compare() {
	ctx, f := p.t.Context(), p.fence()
	for k, want := range p.ref.states {
		in, err := f.Inspect(ctx, []byte(k))
		if err != nil {
			p.fatalf("inspect: %v", err)
		}
		s := &in.State
		if string(s.Value) != string(want.value) || s.Exists != want.exists || s.Kind != want.kind || s.Partition != want.partition ||
			s.Partitions != want.partitions || s.Lineage != uint64(want.lineage) || s.Offset != want.offset {
			p.fatalf("key %s: %+v, want %+v", k, s, want)
		}
		if s.Kind == "set" {
			key := f.prefixes[f.slotOf([]byte(k))] + "m" + k
			r, err := f.s.Do(ctx, f.s.Breaker(""), "SMEMBERS", []string{key})
			if err != nil {
				p.fatalf("members: %v", err)
			}
			members, err := r.AsStrSlice()
			slices.Sort(members)
			if err != nil || !slices.Equal(members, slices.Sorted(maps.Keys(want.members))) {
				p.fatalf("key %s: members %q, want %v, error %v", k, members, want.members, err)
			}
		}
	}
	for q, part := range p.ref.parts {
		if q < 0 || int(q) >= f.Partitions() || !part.claimed {
			continue
		}
		list, err := f.Describe(ctx, q)
		if err != nil {
			p.fatalf("describe: %v", err)
		}
		held := map[int64]string{}
		for _, in := range list {
			if !in.Claimed || in.Position != part.position || in.Committed != part.committed || in.Begin != part.begin || in.Lineage != uint64(part.lineage) || in.Since != uint64(part.since) {
				p.fatalf("partition %d: %+v, want %+v", q, in, part)
			}
			segments, err := windowOf(ctx, f, in.Slot, q)
			if err != nil {
				p.fatalf("window: %v", err)
			}
			for _, list := range segments {
				for _, e := range list {
					if e.offset >= part.committed {
						held[e.offset] = string(e.value)
					}
				}
			}
		}
		want := map[int64]string{}
		for o, v := range part.window {
			switch {
			case v.output != nil:
				want[o] = "o" + string(v.output)
			case v.exists:
				want[o] = "s" + string(v.state)
			default:
				want[o] = "n"
			}
		}
		if !maps.Equal(held, want) {
			p.fatalf("window of partition %d: %v, want %v", q, held, want)
		}
	}
}

// drawn makes a program of a number.
func drawn(seed int) []byte {
	h := fnv.New64a()
	program := make([]byte, 0, 128)
	for len(program) < 120 {
		fmt.Fprintf(h, "%d", seed)
		program = h.Sum(program)
	}
	return program
}

// TestManyBatches plays some programs that are drawn; WEIR_FENCE_PROGRAMS says
// how many.
func TestManyBatches(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	n := 15
	if text := os.Getenv("WEIR_FENCE_PROGRAMS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	for seed := range n {
		m.FlushAll()
		p := newPlayer(t, "redis://"+m.Addr()+"?check=off&timeout=30s", drawn(seed))
		p.note("program %d", seed)
		p.play()
		p.close()
	}
}
