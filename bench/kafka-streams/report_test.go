package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/weirstreams/weir/bench/figure"
)

func testRuns() []run {
	m := func(side, phase string, round int, v float64) run {
		r := run{Side: side, Phase: phase, Round: round, Metrics: map[string]float64{}}
		r.set(maxRSS, v)
		return r
	}
	return []run{
		m("java", phaseCount, 1, 100), m("weir", phaseCount, 1, 50),
		m("java", phaseCount, 2, 200), m("weir", phaseCount, 2, 20),
		m("java", phaseRestore, 1, 300), m("weir", phaseRestore, 1, 30),
	}
}

// A ratio compares the two sides within a round: the ratio of the medians would
// be 35/150.
func TestSummariseRatiosAreTakenWithinARound(t *testing.T) {
	t.Parallel()
	rows := summarise(testRuns(), "java")
	if len(rows) != 2 {
		t.Fatalf("%d rows, want one per phase: %+v", len(rows), rows)
	}
	count := rows[0]
	if got, want := count.Sides["java"], (figure.Spread{Min: 100, Median: 150, Max: 200}); got != want || count.Phase != phaseCount {
		t.Errorf("java in phase %s: %v, want %v", count.Phase, got, want)
	}
	if got, want := count.Ratios["weir"], (figure.Spread{Min: 0.1, Median: 0.3, Max: 0.5}); got != want {
		t.Errorf("ratios %v, want %v", got, want)
	}
	if _, ok := count.Ratios["java"]; ok {
		t.Error("the base has a ratio to itself")
	}
	if got, want := rows[1].Ratios["weir"], (figure.Spread{Min: 0.1, Median: 0.1, Max: 0.1}); got != want || rows[1].Phase != phaseRestore {
		t.Errorf("phase %s: ratios %v, want %v", rows[1].Phase, got, want)
	}
}

func TestWriteTable(t *testing.T) {
	t.Parallel()
	r := results{Schema: 1, Summary: summarise(testRuns(), "java"), Runs: testRuns()}
	var b bytes.Buffer
	if err := r.writeTable(&b, []side{{key: "java", title: "Kafka Streams"}, {key: "weir", title: "Weir"}, {key: "bare", title: "bare loop"}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"count: median (min .. max)   Kafka Streams       Weir                  bare loop   Weir / Kafka Streams    bare loop / Kafka Streams\n" +
			"largest resident size, MiB   150 (100 .. 200)    35.0 (20.0 .. 50.0)   -           x0.30 (x0.10 .. x0.50)   -\n",
		"restore: median (min .. max)",
	} {
		if flat := strings.Join(strings.Fields(b.String()), " "); !strings.Contains(flat, strings.Join(strings.Fields(want), " ")) {
			t.Errorf("the table lacks\n%s\nit is\n%s", want, b.String())
		}
	}
}

func TestWriteJSON(t *testing.T) {
	t.Parallel()
	r := results{Schema: 1, Summary: summarise(testRuns(), "java"), Runs: testRuns()}
	var b bytes.Buffer
	if err := r.writeJSON(&b); err != nil {
		t.Fatal(err)
	}
	var back struct {
		Runs []struct {
			Side    string
			Metrics map[string]float64
		}
		Summary []struct{ Ratios map[string]map[string]float64 }
	}
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if len(back.Runs) != 6 || back.Runs[1].Side != "weir" || back.Runs[1].Metrics["max_rss_mib"] != 50 || back.Summary[0].Ratios["weir"]["median"] != 0.3 {
		t.Errorf("read back as %+v", back)
	}
}
