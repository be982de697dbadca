package sim

import (
	"slices"
	"strings"
)

// Minimise leaves out steps of a plan, and records of its steps, as long as it
// still fails, and returns what is left with its result. It plays at most limit
// plans.
func (pl *Player) Minimise(p *Plan, limit int) (*Plan, Result) {
	trace := pl.Trace
	pl.Trace = nil
	defer func() { pl.Trace = trace }()
	m := &minimiser{pl: pl, limit: limit, best: p, res: pl.Play(p)}
	if m.res.Err == nil {
		return m.best, m.res
	}
	for size := max(len(p.Steps)/2, 1); m.limit > 0; {
		shorter := m.dropSteps(size)
		switch {
		case size > 1:
			size /= 2
		case !shorter && !m.dropRecords():
			return m.best, m.res
		}
	}
	return m.best, m.res
}

// minimiser has the shortest plan so far that fails.
type minimiser struct {
	pl    *Player
	limit int
	best  *Plan
	res   Result
}

// try takes a plan if it fails.
func (m *minimiser) try(steps []Step) bool {
	p := *m.best
	p.Steps = steps
	m.limit--
	r := m.pl.Play(&p)
	if r.Err == nil {
		return false
	}
	m.best, m.res = &p, r
	return true
}

// dropSteps leaves out so many steps at a time.
func (m *minimiser) dropSteps(size int) (shorter bool) {
	for at := 0; at < len(m.best.Steps) && m.limit > 0; {
		steps := slices.Clone(m.best.Steps)
		if m.try(slices.Delete(steps, at, min(at+size, len(steps)))) {
			shorter = true
		} else {
			at += size
		}
	}
	return shorter
}

// dropRecords leaves out records of the steps that send.
func (m *minimiser) dropRecords() (fewer bool) {
	for i := range m.best.Steps {
		for at := 0; m.best.Steps[i].Kind == Send && m.limit > 0; {
			records := strings.Fields(m.best.Steps[i].What)
			if at >= len(records) || len(records) == 1 {
				break
			}
			steps := slices.Clone(m.best.Steps)
			steps[i].What = strings.Join(slices.Delete(records, at, at+1), " ")
			if m.try(steps) {
				fewer = true
			} else {
				at++
			}
		}
	}
	return fewer
}
