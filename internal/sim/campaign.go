package sim

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// Campaign plays many seeds of some scenarios.
type Campaign struct {
	Scenarios []*Scenario
	// First is the first seed; Seeds is how many are played, all scenarios
	// together. Each scenario gets its share by weight, at least one.
	First, Seeds uint64
	// Workers is how many are played at a time.
	Workers int
	Control Control
	// Progress is told now and then, from one goroutine at a time. Nil says
	// nothing.
	Progress func(played, all uint64, failures int)
}

// Tally is what came of a scenario.
type Tally struct {
	Scenario *Scenario
	Played   uint64
	Outputs  int
	Took     time.Duration // of all players together
	Failed   []uint64      // seeds, the smallest first
	Errors   map[uint64]error
}

// Report is what came of a campaign.
type Report struct {
	Tallies  []*Tally
	Coverage Coverage
	Took     time.Duration
}

// maxFailures is how many failures of a scenario are kept; no more is played
// then.
const maxFailures = 20

type job struct {
	tally *Tally
	seed  uint64
}

// Run plays the campaign.
func (c *Campaign) Run() (*Report, error) {
	began := time.Now()
	r := &Report{Coverage: Coverage{}}
	total := 0
	for _, s := range c.Scenarios {
		total += s.Weight
	}
	all := uint64(0)
	counts := make([]uint64, len(c.Scenarios))
	for i, s := range c.Scenarios {
		r.Tallies = append(r.Tallies, &Tally{Scenario: s, Errors: map[uint64]error{}})
		counts[i] = max(c.Seeds*uint64(s.Weight)/uint64(total), 1)
		all += counts[i]
	}
	jobs := make(chan job)
	var mu sync.Mutex
	var wg sync.WaitGroup
	played, failures := uint64(0), 0
	told := began
	for range max(c.Workers, 1) {
		player, err := NewPlayer()
		if err != nil {
			close(jobs)
			return nil, err
		}
		player.Control = c.Control
		wg.Go(func() {
			for j := range jobs {
				start := time.Now()
				res := player.Play(j.tally.Scenario.Plan(j.seed))
				took := time.Since(start)
				mu.Lock()
				t := j.tally
				t.Played++
				t.Outputs += res.Outputs
				t.Took += took
				if res.Err != nil {
					failures++
					t.Failed = append(t.Failed, j.seed)
					t.Errors[j.seed] = res.Err
				}
				r.Coverage.Merge(res.Coverage)
				if played++; c.Progress != nil && (time.Since(told) > progressInterval || played == all) {
					told = time.Now()
					c.Progress(played, all, failures)
				}
				mu.Unlock()
			}
		})
	}
	for i := range slices.Max(counts) {
		for s, t := range r.Tallies {
			mu.Lock()
			enough := len(t.Failed) >= maxFailures
			mu.Unlock()
			if i < counts[s] && !enough {
				jobs <- job{t, c.First + i}
			}
		}
	}
	close(jobs)
	wg.Wait()
	for _, t := range r.Tallies {
		slices.Sort(t.Failed)
	}
	r.Took = time.Since(began)
	return r, nil
}

// merge adds what came of other scenarios.
func (r *Report) merge(o *Report) {
	r.Tallies = append(r.Tallies, o.Tallies...)
	r.Coverage.Merge(o.Coverage)
	r.Took += o.Took
}

// progressInterval is the time between two calls of Progress.
const progressInterval = 5 * time.Second

// Write writes the summary: scenarios, then coverage.
func (r *Report) Write(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "scenario\tplayed\tfailed\toutputs\tms each\t")
	var played uint64
	failed := 0
	for _, t := range r.Tallies {
		played += t.Played
		failed += len(t.Failed)
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%.2f\t%s\n", t.Scenario.Name, t.Played, len(t.Failed), t.Outputs,
			float64(t.Took.Microseconds())/1000/float64(max(t.Played, 1)), t.Scenario.About)
	}
	_ = w.Flush()
	fmt.Fprintf(out, "%d schedules in %v, %.0f per second, %d failed\n\n", played, r.Took.Round(time.Millisecond), float64(played)/r.Took.Seconds(), failed)
	r.Coverage.Write(out)
}

// Write writes a table of await points and faults.
func (c Coverage) Write(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "await point\t")
	for _, f := range Faults {
		fmt.Fprintf(w, "%s\t", f)
	}
	fmt.Fprintln(w)
	for _, at := range Awaits() {
		fmt.Fprintf(w, "%s\t", at)
		for _, f := range Faults {
			switch n := c[at][f]; {
			case n > 0:
				fmt.Fprintf(w, "%d\t", n)
			case fits(at, f):
				fmt.Fprint(w, "0\t")
			default:
				fmt.Fprint(w, ".\t")
			}
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush()
}

// Empty lists the cells in which nothing has happened.
func (c Coverage) Empty() []string {
	var list []string
	for _, at := range Awaits() {
		for _, f := range Fits(at) {
			if c[at][f] == 0 {
				list = append(list, fmt.Sprintf("%s: %s", at, f))
			}
		}
	}
	return list
}

// Story plays a plan that fails, cuts it down, and tells what happens.
func (pl *Player) Story(p *Plan, limit int) string {
	short, res := pl.Minimise(p, limit)
	var b strings.Builder
	fmt.Fprintf(&b, "%v\n\n%d of %d steps are left of %s\nwhat happens:\n", res.Err, len(short.Steps), len(p.Steps), short)
	trace := pl.Trace
	pl.Trace = func(line string) { b.WriteString("  " + line + "\n") }
	pl.Play(short)
	pl.Trace = trace
	return b.String()
}
