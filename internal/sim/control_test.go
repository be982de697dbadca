package sim

import (
	"flag"
	"testing"
)

var controlLimit = flag.Int("sim.controls", 3000, "how many schedules a wrong design gets to be found out")

// Each design that is known to be wrong is found out.
func TestControls(t *testing.T) {
	t.Parallel()
	for _, c := range Controls() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			pl := player(t)
			n, plan, err := pl.Catch(c, *controlLimit)
			if plan == nil {
				t.Fatalf("%s is not found out in %d schedules of %v: %s", c.Name, n, c.In, c.Why)
			}
			t.Logf("%s is found out by schedule %d (%s, seed %d): %v", c.Name, n, plan.Scenario, plan.Seed, err)
		})
	}
}

// The fence by key with a window of one output loses outputs; with a window down
// to the committed offset it does not.
func TestFenceByKey(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); ; seed++ {
		if trace, err := PlayFence(seed, 1); err != nil {
			t.Logf("a window of one is found out by schedule %d: %v\n%s", seed, err, trace)
			break
		}
		if seed == uint64(*controlLimit) {
			t.Fatalf("a window of one is not found out in %d schedules", seed)
		}
	}
	for seed := range uint64(5000) {
		if trace, err := PlayFence(seed, 0); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, trace)
		}
	}
}
