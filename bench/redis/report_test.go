package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/weirstreams/weir/bench/figure"
)

// A ratio compares the two sides within a round: the ratio of the medians would
// be 35/150.
func TestRatiosAreTakenWithinARound(t *testing.T) {
	t.Parallel()
	r := newRow("writes", "ours / SET", "us", []float64{50, 20}, []float64{100, 200}, atMost(0.3))
	if want := (figure.Spread{Min: 0.1, Median: 0.3, Max: 0.5}); r.Ratio != want {
		t.Errorf("ratios %v, want %v", r.Ratio, want)
	}
	if r.Reached == nil || !*r.Reached {
		t.Error("0.3 is at most 0.3")
	}
	for _, tt := range []struct {
		b    *bound
		at   float64
		want bool
	}{{atMost(1), 1.01, false}, {atMost(1), 0.9, true}, {atLeast(150), 149, false}, {atLeast(150), 150, true}} {
		if got := tt.b.reached(tt.at); got != tt.want {
			t.Errorf("%v at %v: %t", tt.b, tt.at, got)
		}
	}
}

func TestWriteTable(t *testing.T) {
	t.Parallel()
	r := results{Schema: 1, Notes: []string{"a note"}, Rows: []row{
		newRow("writes", "ours / SET", "us", []float64{2}, []float64{1}, atMost(1)),
		newRow("memory", "ours / hash", "bytes", []float64{1}, []float64{4}, atMost(0.5)),
		newRow("memory", "string / hash", "bytes", []float64{2}, []float64{4}, nil),
	}}
	for i := range r.Rows {
		r.Rows[i].Load = "7.50"
	}
	var b bytes.Buffer
	if err := r.writeTable(&b); err != nil {
		t.Fatal(err)
	}
	flat := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{
		"a note writes: median (min .. max) ours theirs ratio wanted load " +
			"ours / SET, us 2.00 (2.00 .. 2.00) 1.00 (1.00 .. 1.00) x2.00 (x2.00 .. x2.00) <= 1.00, MISSED 7.50 memory:",
		"x0.25 (x0.25 .. x0.25) <= 0.50, reached 7.50 string / hash, bytes",
		"x0.50 (x0.50 .. x0.50) - 7.50",
	} {
		if !strings.Contains(flat, want) {
			t.Errorf("the table lacks %q; it is\n%s", want, b.String())
		}
	}
}

// What the comparison with Kafka Streams writes is read with its rounds.
func TestSummary(t *testing.T) {
	t.Parallel()
	const text = `{"runs":[
		{"side":"weir","phase":"count","round":1,"metrics":{"records_per_second":100}},
		{"side":"redis","phase":"count","round":1,"metrics":{"records_per_second":80,"redis_cpu_us_per_record":2}},
		{"side":"weir","phase":"count","round":2,"metrics":{"records_per_second":200}},
		{"side":"redis","phase":"count","round":2,"metrics":{"records_per_second":100,"redis_cpu_us_per_record":4}},
		{"side":"weir","phase":"restore","round":1,"metrics":{"records_per_second":1}}],
		"summary":[{"phase":"count","metric":"redis_cpu_us_per_record","sides":{"redis":{"min":2,"median":3,"max":4}}}]}`
	var s summary
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	r, err := s.row("count", "count", "records_per_second", "weir", "redis")
	if want := (figure.Spread{Min: 0.5, Median: 0.65, Max: 0.8}); err != nil || r.Ratio != want {
		t.Errorf("ratios %v, want %v, error %v", r.Ratio, want, err)
	}
	if f, err := s.side("count", "redis_cpu_us_per_record", "redis"); err != nil || f.Median != 3 {
		t.Errorf("%v, error %v", f, err)
	}
	if _, err := s.row("count", "restore", "records_per_second", "weir", "redis"); err == nil {
		t.Error("a side that has no values is compared")
	}
	if _, err := s.side("count", "no_such", "redis"); err == nil {
		t.Error("a figure that is not there is found")
	}
}
