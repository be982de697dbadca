package fence

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// segment is what one call of the script has put into the pending window: its
// records from first to last, which are n.
type segment struct {
	first, last int64
	n           int
}

func (g segment) String() string {
	return strconv.FormatInt(g.first, 10) + "-" + strconv.FormatInt(g.last, 10) + "-" + strconv.Itoa(g.n)
}

func parseSegment(name string) (segment, error) {
	var g segment
	part := strings.Split(name, "-")
	if len(part) == 3 {
		var err1, err2, err3 error
		g.first, err1 = offsetOf(part[0])
		g.last, err2 = offsetOf(part[1])
		g.n, err3 = strconv.Atoi(part[2])
		if err1 == nil && err2 == nil && err3 == nil && g.first <= g.last && g.n > 0 {
			return g, nil
		}
	}
	return g, fmt.Errorf("%w: %q is no segment of a window", ErrCorrupt, name)
}

// pending are the segments of the window in a slot, in their order there.
type pending struct {
	list    []segment
	records int
	high    int64 // the largest of their last offsets so far
}

// add notes a segment. It may be known.
func (p *pending) add(g segment) {
	if g.first <= p.high && slices.Contains(p.list, g) {
		return
	}
	p.list = append(p.list, g)
	p.records += g.n
	p.high = max(p.high, g.last)
}

// done lists the segments that the script prunes: those in front of the first that
// holds something from an offset on.
func (p *pending) done(committed int64) []segment {
	n := slices.IndexFunc(p.list, func(g segment) bool { return g.last >= committed })
	if n < 0 {
		n = len(p.list)
	}
	return slices.Clone(p.list[:n])
}

// remove forgets segments, which are those in front.
func (p *pending) remove(list []segment) {
	for _, g := range list {
		if len(p.list) > 0 && p.list[0] == g {
			p.list = p.list[1:]
			p.records -= g.n
		}
	}
}

// entry is what a record in a segment has left: an "o" and its output, an "s" and
// the state after it, or "n" when there was none.
type entry struct {
	offset int64
	value  []byte
}

// entries takes a segment apart: what its records have left.
func (g segment) entries(texts []string) ([]entry, error) {
	if len(texts) != g.n {
		return nil, fmt.Errorf("%w: segment %v of a window holds %d records", ErrCorrupt, g, len(texts))
	}
	list := make([]entry, len(texts))
	for i, text := range texts {
		s, err := parseState([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("segment %v of a window: %w", g, err)
		}
		e := entry{s.Offset, []byte("n")}
		switch {
		case s.Kind == kindOutput:
			e.value = append([]byte("o"), s.Value...)
		case s.Exists:
			e.value = append([]byte("s"), s.Value...)
		}
		list[i] = e
	}
	return list, nil
}

// segments takes a window apart.
func segments(list []string) (map[segment][]entry, error) {
	all := map[segment][]entry{}
	for len(list) > 0 {
		g, err := parseSegment(list[0])
		if err != nil {
			return nil, err
		}
		n := min(1+g.n, len(list))
		if all[g], err = g.entries(list[1:n]); err != nil {
			return nil, err
		}
		list = list[n:]
	}
	return all, nil
}

// kindOutput is the kind of what a record has left in the window that has an
// output in place of a state. That of what a change of a set has left is
// "change".
const kindOutput = "output"
