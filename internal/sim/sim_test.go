package sim

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

var (
	simSeed  = flag.Uint64("sim.seed", 0, "play this seed only, and tell what happens")
	simSeeds = flag.Uint64("sim.seeds", 0, "how many seeds are played, all scenarios together")
	simFirst = flag.Uint64("sim.first", 1, "the first seed")
	simLog   = flag.Bool("sim.log", false, "with -sim.seed, show what the workers log")
	simWhole = flag.Bool("sim.whole", false, "with -sim.seed, tell the whole plan and do not cut it down")
)

// quickSeeds is what a plain go test plays: some seconds.
const quickSeeds = 2400

// minimiseLimit bounds the plans that are played to cut one down.
const minimiseLimit = 400

// TestScenarios plays all scenarios, or one: -run TestScenarios/regress.
func TestScenarios(t *testing.T) {
	seeds := uint64(quickSeeds)
	if *simSeeds > 0 {
		seeds = *simSeeds
	}
	if *simSeed != 0 {
		for _, s := range Scenarios() {
			t.Run(s.Name, func(t *testing.T) { again(t, s, *simSeed) })
		}
		return
	}
	total := 0
	for _, s := range Scenarios() {
		total += s.Weight
	}
	whole := &Report{Coverage: Coverage{}}
	for _, s := range Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			c := Campaign{Scenarios: []*Scenario{s}, First: *simFirst, Seeds: seeds * uint64(s.Weight) / uint64(total), Workers: runtime.GOMAXPROCS(0)}
			if *simSeeds > 0 {
				began := time.Now()
				c.Progress = func(played, all uint64, failures int) {
					fmt.Printf("%s: %d of %d, %.0f per second, %d failed\n", s.Name, played, all, float64(played)/time.Since(began).Seconds(), failures)
				}
			}
			r, err := c.Run()
			if err != nil {
				t.Fatal(err)
			}
			whole.merge(r)
			tell(t, r)
		})
	}
	if len(whole.Tallies) < len(Scenarios()) {
		return // not all were asked for
	}
	var b strings.Builder
	whole.Write(&b)
	t.Log("\n" + b.String())
	if empty := whole.Coverage.Empty(); len(empty) > 0 && seeds >= quickSeeds {
		t.Errorf("nothing has happened in these cells of the table:\n%s", strings.Join(empty, "\n"))
	}
}

// tell reports the first failure of each scenario as a story.
func tell(t *testing.T, r *Report) {
	t.Helper()
	for _, tally := range r.Tallies {
		if len(tally.Failed) == 0 {
			continue
		}
		pl := player(t)
		seed := tally.Failed[0]
		t.Errorf("%d of %d seeds of scenario %s fail: %v\nagain with: go test ./internal/sim -run 'TestScenarios/^%s$' -sim.seed=%d\n%s",
			len(tally.Failed), tally.Played, tally.Scenario.Name, tally.Failed, tally.Scenario.Name, seed, pl.Story(tally.Scenario.Plan(seed), minimiseLimit))
	}
}

func player(t *testing.T) *Player {
	t.Helper()
	pl, err := NewPlayer()
	if err != nil {
		t.Fatal(err)
	}
	return pl
}

// again plays one seed and tells what happens.
func again(t *testing.T, s *Scenario, seed uint64) {
	pl := player(t)
	if *simLog {
		pl.Logger = slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
	}
	p := s.Plan(seed)
	if *simWhole {
		pl.Trace = func(line string) { fmt.Println(line) }
	}
	res := pl.Play(p)
	if res.Err == nil {
		t.Logf("%swent well: %d outputs in %v", p, res.Outputs, res.Ended)
		return
	}
	if *simWhole {
		t.Fatal(res.Err)
	}
	t.Fatal(pl.Story(p, minimiseLimit))
}

// The same seed does the same, to the last word.
func TestASeedRepeatsItself(t *testing.T) {
	t.Parallel()
	one, two := player(t), player(t)
	for _, s := range Scenarios() {
		for seed := range uint64(8) {
			var a, b []string
			one.Trace = func(line string) { a = append(a, line) }
			two.Trace = func(line string) { b = append(b, line) }
			one.Play(s.Plan(seed))
			two.Play(s.Plan(seed))
			if x, y := strings.Join(a, "\n"), strings.Join(b, "\n"); x != y {
				t.Fatalf("scenario %s, seed %d:\n%s", s.Name, seed, firstDifference(a, b))
			}
		}
	}
}

func firstDifference(a, b []string) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return strings.Join(a[max(i-5, 0):i], "\n") + "\n- " + a[i] + "\n+ " + b[i]
		}
	}
	return fmt.Sprintf("%d and %d lines", len(a), len(b))
}
