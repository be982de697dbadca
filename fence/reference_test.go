package fence

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// reference is the contract of the fence written down as simply as it can be: maps,
// one thread, no Redis, nothing that is kept small. FuzzBatches compares the fence
// with it.
type reference struct {
	partitions int
	any        bool // a key may be on any partition
	windowed   bool
	states     map[string]*refState
	parts      map[int32]*refPart
	owners     *int // so far: they are told apart whatever is forgotten
}

// refState is what is known of a key.
type refState struct {
	value   []byte
	exists  bool
	kind    string // "", sum, list, set
	members map[string]bool

	partition  int32
	partitions int
	lineage    int
	offset     int64
}

// refPart is what is known of a partition.
type refPart struct {
	claimed   bool
	owner     int
	position  int64
	begin     int64
	committed int64 // outputs before it were sent
	doubt     int64
	lineage   int
	since     int
	window    map[int64]refOutput
}

type refOutput struct {
	output, state []byte
	exists        bool
}

type refClaim struct {
	partition  int32
	partitions int
	owner      int
	position   int64 // that was acknowledged
	start      int64
	through    int64
	committed  int64
}

type refResult struct {
	verdict Verdict
	refOutput
}

func newReference(partitions int, any, windowed bool) *reference {
	return &reference{partitions: partitions, any: any, windowed: windowed, states: map[string]*refState{}, parts: map[int32]*refPart{}, owners: new(int)}
}

// copied is what a snapshot of Redis is.
func (m *reference) copied() *reference {
	c := *m
	c.states, c.parts = map[string]*refState{}, map[int32]*refPart{}
	for k, s := range m.states {
		s := *s
		c.states[k] = &s
	}
	for p, part := range m.parts {
		part := *part
		part.window = maps.Clone(part.window)
		c.parts[p] = &part
	}
	return &c
}

func (m *reference) part(p int32) *refPart {
	if m.parts[p] == nil {
		m.parts[p] = &refPart{lineage: 1, since: 1, doubt: -1, window: map[int64]refOutput{}}
	}
	return m.parts[p]
}

func (m *reference) claim(p int32, partitions int, committed, begin int64) *refClaim {
	part := m.part(p)
	if !part.claimed {
		part.position, part.begin = begin, begin
		if committed == 0 {
			part.position, part.begin = 0, 0
		}
		part.committed = part.begin
		part.claimed = true
	}
	switch {
	case committed > part.position:
		part.doubt = committed
	case committed != part.doubt:
		part.doubt = -1
	}
	c := &refClaim{partition: p, partitions: partitions, start: min(part.committed, part.position)}
	if committed >= 0 && committed <= part.position && committed != part.doubt {
		c.start = committed
	}
	part.committed = max(part.committed, c.start)
	part.prune()
	c.committed = c.start
	c.start = max(c.start, part.begin)
	c.through = c.start
	c.position = part.position
	*m.owners++
	part.owner, c.owner = *m.owners, *m.owners
	return c
}

func (m *reference) rewind(p int32, offset int64, keep bool) {
	part := m.part(p)
	if part.claimed {
		part.lineage++
	}
	part.claimed = true
	*m.owners++
	part.owner = *m.owners
	if !keep {
		part.since = part.lineage
	}
	part.position, part.begin, part.committed, part.doubt = offset, offset, offset, -1
	part.window = map[int64]refOutput{}
}

// errRefused says that another one owns the partition, or that Redis has forgotten.
var errRefused = errors.New("refused")

func (part *refPart) prune() {
	for o := range part.window {
		if o < part.committed {
			delete(part.window, o)
		}
	}
}

// errRefBad says that a record cannot be applied, so that nothing was written.
var errRefBad = errors.New("bad record or conflict")

func (m *reference) apply(c *refClaim, b Batch) ([]refResult, error) {
	part := m.part(c.partition)
	if c.owner != part.owner || part.position < c.position {
		return nil, errRefused
	}
	next := b.Next
	if next == 0 && len(b.Records) > 0 {
		next = b.Records[len(b.Records)-1].Offset + 1
	}
	c.committed = max(c.committed, min(b.Committed, c.through))
	committed := max(part.committed, c.committed)
	states := map[string]*refState{}
	window := map[int64]refOutput{}
	results := make([]refResult, len(b.Records))
	failed := false
	for i := range b.Records {
		r, res := &b.Records[i], &results[i]
		if r.Key == nil || !m.any && Murmur2.Partition(r.Key, c.partitions) != int(c.partition) {
			res.verdict = DeadLetter
			continue
		}
		s := states[string(r.Key)]
		if s == nil {
			s = &refState{partition: -1}
			if old := m.states[string(r.Key)]; old != nil {
				*s = *old
			}
			states[string(r.Key)] = s
		}
		from := m.part(s.partition)
		if s.partition >= 0 && s.lineage < from.since && (m.any || s.partition == c.partition) {
			*s = refState{partition: -1} // of a lineage that does not count
		}
		mine := s.partition == c.partition && s.lineage == part.lineage
		other := s.partition >= 0 && s.partition != c.partition
		old := r.Offset < part.position
		applied := mine && r.Offset <= s.offset
		kept, isKept := window[r.Offset]
		if !isKept {
			kept, isKept = part.window[r.Offset]
		}
		switch {
		case m.windowed && (applied || old) && r.Offset >= committed && isKept:
			res.verdict, res.refOutput = Reemit, kept
			continue
		case applied, old && r.Offset < part.begin:
			res.verdict = Skip
			continue
		case other && s.partitions > c.partitions:
			res.verdict = DeadLetter
			continue
		case other && old:
			res.verdict = Skip
			continue
		case other:
			res.verdict = Rebase
		default:
			res.verdict = Apply
		}
		left, ok := s.change(r.Op)
		if !ok {
			failed = true
			continue
		}
		s.partition, s.partitions, s.lineage, s.offset = c.partition, c.partitions, part.lineage, r.Offset
		if r.Output != nil {
			res.output = r.Output
		}
		res.state, res.exists = left.state, left.exists
		if r.Output != nil {
			left = refOutput{output: r.Output}
		}
		window[r.Offset] = left
	}
	if failed {
		return nil, errRefBad
	}
	for k, s := range states {
		if s.partition >= 0 {
			m.states[k] = s
		}
	}
	for o, v := range window {
		if m.windowed {
			part.window[o] = v
		}
	}
	part.committed = committed
	part.prune()
	part.position = max(part.position, next)
	c.through, c.position = max(c.through, next), max(c.position, next)
	return results, nil
}

// change carries out an operation with other means than the script has.
func (s *refState) change(op Op) (refOutput, bool) {
	arg := func(i int) string { return op.args[i] }
	integer := func(text string) (int64, bool) {
		n, err := strconv.ParseInt(text, 10, 64)
		return n, err == nil && !strings.HasPrefix(text, "+")
	}
	set := func(v string, kind string) {
		s.value, s.exists, s.kind, s.members = []byte(v), true, kind, nil
	}
	left := func() (refOutput, bool) { return refOutput{state: slices.Clone(s.value), exists: s.exists}, true }
	drop := func() { s.value, s.exists, s.kind, s.members = nil, false, "", nil }
	switch op.code {
	case 0, 'k':
	case 's':
		set(arg(0), "")
	case 'u': // of Update
		set(string(s.value)+arg(0), "")
	case 'd':
		drop()
	case 'c':
		if s.exists != (arg(0) == "1") || s.exists && string(s.value) != arg(1) {
			return refOutput{}, false
		}
		drop()
		if arg(2) == "1" {
			set(arg(3), "")
		}
	case 'i', 'm', 'M':
		n, _ := integer(arg(0))
		if s.exists {
			old, ok := integer(string(s.value))
			if !ok || s.kind != "" {
				return refOutput{}, false
			}
			switch op.code {
			case 'm':
				n = min(n, old)
			case 'M':
				n = max(n, old)
			default:
				if n > 0 && old > math.MaxInt64-n || n < 0 && old < math.MinInt64-n {
					return refOutput{}, false
				}
				n += old
			}
		}
		set(strconv.FormatInt(n, 10), "")
	case 'I':
		n, _ := integer(arg(0))
		var sum, count int64
		if s.exists {
			var err error
			if sum, count, err = DecodeSum(s.value); err != nil || s.kind != "sum" {
				return refOutput{}, false
			}
		}
		if n > 0 && sum > math.MaxInt64-n || n < 0 && sum < math.MinInt64-n {
			return refOutput{}, false
		}
		set(fmt.Sprintf("%d %d", sum+n, count+1), "sum")
	case 'f':
		x, err := strconv.ParseFloat(arg(0), 64)
		if s.exists {
			old, err2 := strconv.ParseFloat(string(s.value), 64)
			if err != nil || err2 != nil || s.kind != "" {
				return refOutput{}, false
			}
			x += old
		}
		set(formatFloat(x+0), "")
	case 'a':
		if s.exists && s.kind != "list" {
			return refOutput{}, false
		}
		list, err := DecodeList(s.value)
		limit, _ := strconv.Atoi(arg(0))
		if err != nil {
			return refOutput{}, false
		}
		list = append(list, []byte(arg(1)))
		list = list[max(0, len(list)-limit):]
		var b bytes.Buffer
		for _, e := range list {
			fmt.Fprintf(&b, "%d:%s", len(e), e)
		}
		set(b.String(), "list")
	case '+', '-':
		if s.exists && s.kind != "set" {
			return refOutput{}, false
		}
		members, changed := map[string]bool{}, 0
		for k := range s.members {
			members[k] = true
		}
		for _, k := range op.args {
			if members[k] != (op.code == '+') {
				changed++
			}
			if op.code == '+' {
				members[k] = true
			} else {
				delete(members, k)
			}
		}
		set(strconv.Itoa(len(members)), "set")
		s.members = members
		return refOutput{state: fmt.Appendf(nil, "%d %d", changed, len(members)), exists: true}, true
	default:
		panic("the reference does not know " + op.String())
	}
	return left()
}
