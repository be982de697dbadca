package fence

import (
	"bytes"
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

// pending are the segments of the window in a slot, by their last offset.
type pending struct {
	list    []segment
	records int
}

func before(g segment, last int64) int {
	switch {
	case g.last < last:
		return -1
	case g.last > last:
		return 1
	}
	return 0
}

// add notes a segment. It may be known.
func (p *pending) add(g segment) {
	i, _ := slices.BinarySearchFunc(p.list, g.last, before)
	for ; i < len(p.list) && p.list[i].last == g.last; i++ {
		if p.list[i] == g {
			return
		}
	}
	p.list = slices.Insert(p.list, i, g)
	p.records += g.n
}

// done lists the segments that hold nothing from an offset on.
func (p *pending) done(committed int64) []segment {
	n, _ := slices.BinarySearchFunc(p.list, committed, before)
	return slices.Clone(p.list[:n])
}

// remove forgets segments.
func (p *pending) remove(list []segment) {
	for _, g := range list {
		if i := slices.Index(p.list, g); i >= 0 {
			p.list = slices.Delete(p.list, i, i+1)
			p.records -= g.n
		}
	}
}

// entry is a record in a segment: an "o" and its output, an "s" and the state
// after it, or "n" when there was none.
type entry struct {
	offset int64
	value  []byte
}

// entries takes a segment apart.
func entries(text []byte) ([]entry, error) {
	var list []entry
	for rest := text; len(rest) > 0; {
		head, after, ok := bytes.Cut(rest, []byte(":"))
		o, n, ok2 := strings.Cut(string(head), " ")
		offset, err1 := offsetOf(o)
		size, err2 := strconv.Atoi(n)
		if !ok || !ok2 || err1 != nil || err2 != nil || size < 1 || size > len(after) {
			return nil, fmt.Errorf("%w: a segment of a window is damaged at byte %d", ErrCorrupt, len(text)-len(rest))
		}
		list = append(list, entry{offset, after[:size:size]})
		rest = after[size:]
	}
	return list, nil
}
