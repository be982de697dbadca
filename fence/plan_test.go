package fence

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

func TestPlan(t *testing.T) {
	t.Parallel()
	const us, ms = time.Microsecond, time.Millisecond
	for _, tc := range []struct {
		name               string
		load               Load
		batch, concurrency int
		busy               float64
		capacity           float64
		latency            time.Duration
		inFlight           int
	}{
		// The batch of 16 takes 500+40+16*5+10000 us = 10.62 ms: 16 records in
		// that, and 150 a second are wanted, so 150*0.01062/16 = 0.1 partitions.
		{"little", Load{Rate: 100, Partitions: 4, RoundTrip: 500 * us}, 16, 1, 100 * (5e-6 + 40e-6/16), 16 / 0.01062, 10620 * us, 2},
		// 15,000 wanted with 4 partitions: each does 3750 a second, so a batch b
		// with (10.54 ms + b*5 us)*3750 <= b, b >= 40.28.
		{"batches grow", Load{Rate: 10_000, Partitions: 4, RoundTrip: 500 * us}, 41, 4, 10_000 * (5e-6 + 40e-6/41), 4 * 41 / 0.010745, 10745 * us, 108},
		// With partitions to spare the smallest batch does.
		{"partitions to spare", Load{Rate: 10_000, Partitions: 100, RoundTrip: 500 * us}, 16, 10, 10_000 * (5e-6 + 40e-6/16), 10 * 16 / 0.01062, 10620 * us, 107},
		// A server that is nearly full: 0.475 + 3.8/b <= 0.6, b >= 30.4, and the
		// capacity is the server's.
		{"the server is the limit", Load{Rate: 95_000, Partitions: 1000, RoundTrip: 500 * us}, 31, 50, 95_000 * (5e-6 + 40e-6/31), 0.6 / (5e-6 + 40e-6/31), 10695 * us, 1017},
		{"a cluster", Load{Rate: 190_000, Partitions: 1000, RoundTrip: 500 * us, Nodes: 2}, 31, 99, 95_000 * (5e-6 + 40e-6/31), 2 * 0.6 / (5e-6 + 40e-6/31), 10695 * us, 2033},
		{"own costs", Load{Rate: 1000, Partitions: 1, RoundTrip: ms, ServerCost: 10 * us, CallCost: 10 * us, SendTime: 8990 * us}, 16, 1, 1000 * (10e-6 + 10e-6/16), 0, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := Plan(tc.load)
			if err != nil {
				t.Fatal(err)
			}
			if tc.latency == 0 { // (10 ms + b*10 us)*1500 <= b
				tc.latency, tc.capacity, tc.inFlight = 10*ms+160*us, 16/0.01016, 11
			}
			if got.BatchRecords != tc.batch || got.Concurrency != tc.concurrency || got.Latency != tc.latency || got.InFlight != tc.inFlight {
				t.Errorf("got %+v", got)
			}
			if math.Abs(got.Utilisation-tc.busy) > 1e-9 || math.Abs(got.Capacity-tc.capacity) > 1e-6*tc.capacity {
				t.Errorf("utilisation %v and capacity %v, want %v and %v", got.Utilisation, got.Capacity, tc.busy, tc.capacity)
			}
			if got.Capacity < tc.load.Rate {
				t.Errorf("a capacity of %v for a rate of %v", got.Capacity, tc.load.Rate)
			}
			if len(got.Reasons) != 6 {
				t.Errorf("reasons: %q", got.Reasons)
			}
		})
	}
}

func TestPlanRefuses(t *testing.T) {
	t.Parallel()
	ok := Load{Rate: 1000, Partitions: 4, RoundTrip: time.Millisecond}
	for name, tc := range map[string]struct {
		change func(*Load)
		says   string
		load   bool
	}{
		"no rate":               {func(l *Load) { l.Rate = 0 }, "Rate is 0", false},
		"negative rate":         {func(l *Load) { l.Rate = -1 }, "Rate is -1", false},
		"not a number":          {func(l *Load) { l.Rate = math.NaN() }, "Rate is NaN", false},
		"infinite":              {func(l *Load) { l.Rate = math.Inf(1) }, "Rate is +Inf", false},
		"no partitions":         {func(l *Load) { l.Partitions = 0 }, "Partitions is 0", false},
		"no round trip":         {func(l *Load) { l.RoundTrip = 0 }, "RoundTrip is 0s", false},
		"round trip of minutes": {func(l *Load) { l.RoundTrip = time.Minute }, "RoundTrip is 1m0s", false},
		"negative cost":         {func(l *Load) { l.ServerCost = -1 }, "ServerCost is -1ns", false},
		"negative nodes":        {func(l *Load) { l.Nodes = -1 }, "Nodes is -1", false},
		"too much for a server": {func(l *Load) { l.Rate = 200_000 }, "use 2 primaries", true},
		"too few partitions":    {func(l *Load) { l.Rate, l.Partitions = 40_000, 1 }, "the topic has 1", true},
		"calls alone are too much": {func(l *Load) { l.Rate, l.ServerCost, l.Partitions = 49_999, 12*time.Microsecond, 10_000 },
			"busy for", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := ok
			tc.change(&l)
			_, err := Plan(l)
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("Plan: %v, want %q", err, tc.says)
			}
			if errors.Is(err, ErrLoad) != tc.load {
				t.Errorf("%v is ErrLoad: %v", err, !tc.load)
			}
		})
	}
}
