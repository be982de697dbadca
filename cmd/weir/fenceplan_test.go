package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weirstreams/weir/fence"
)

// The plan is that of the library, as text and as JSON; what cannot be carried is
// a failure that says what would, and nonsense is an error of usage.
func TestFencePlan(t *testing.T) {
	t.Parallel()
	flags := []string{"fence", "plan", "--rate", "10000", "--partitions", "12", "--round-trip", "500us"}
	want, err := fence.Plan(fence.Load{Rate: 10_000, Partitions: 12, RoundTrip: 500_000})
	if err != nil {
		t.Fatal(err)
	}
	r := weir(t, nil, append(flags, "--json")...)
	var got fence.Sizing
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || r.code != exitOK {
		t.Fatalf("%+v, %v", r, err)
	}
	if got.BatchRecords != want.BatchRecords || got.Concurrency != want.Concurrency || got.InFlight != want.InFlight || len(got.Reasons) != len(want.Reasons) {
		t.Errorf("%+v, want %+v", got, want)
	}
	r = weir(t, nil, flags...)
	for _, text := range append([]string{"partitions at once", "of each redis-server"}, want.Reasons...) {
		if r.code != exitOK || !strings.Contains(r.stdout, text) {
			t.Errorf("exit code %d, no %q in\n%s%s", r.code, text, r.stdout, r.stderr)
		}
	}
	weir(t, nil, "fence", "plan", "--rate", "100000000", "--partitions", "12", "--round-trip", "500us").wantFailure(t, "primaries")
	weir(t, nil, "fence", "plan").want(t, exitUsage, "", "Rate")
}
