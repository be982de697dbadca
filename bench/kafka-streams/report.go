package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/weirstreams/weir/bench/figure"
)

// run is what one process did in one phase of one round.
type run struct {
	Side    string             `json:"side"`
	Phase   string             `json:"phase"`
	Round   int                `json:"round"`
	Load    string             `json:"load_average_before,omitempty"`
	Metrics map[string]float64 `json:"metrics"`
}

func (r run) set(m metric, v float64) { r.Metrics[m.key] = v }

// attrs is the run as attributes of a log line.
func (r run) attrs() []any {
	attrs := []any{"side", r.Side, "round", r.Round, "load", r.Load}
	for _, m := range metrics {
		if v, ok := r.Metrics[m.key]; ok {
			attrs = append(attrs, m.key, figure.Number(v))
		}
	}
	return attrs
}

// metric is one line of the table.
type metric struct {
	phase string
	key   string // in the JSON results
	title string
}

// What is measured. In the window from the first commit to the last:
var (
	recordsPerCPUSecond = metric{phaseCount, "records_per_cpu_second", "records per CPU second"}
	recordsPerSecond    = metric{phaseCount, "records_per_second", "records per second"}
	brokerCPUPerRecord  = metric{phaseCount, "broker_cpu_us_per_record", "broker CPU, us per record"}
	storeCPUPerRecord   = metric{phaseCount, "redis_cpu_us_per_record", "CPU of Redis, us per record"}
)

// Over the whole life of the process:
var (
	recordsPerTotalCPUSecond = metric{phaseCount, "records_per_process_cpu_second", "records per CPU second, start and stop included"}
	startSeconds             = metric{phaseCount, "start_seconds", "start to first commit, s"}
	maxRSS                   = metric{"", "max_rss_mib", "largest resident size, MiB"}
	changelogRecords         = metric{"", "changelog_records", "records in the changelog"}
)

// At a start on an empty disk, between the first and the last record of the
// changelog, and from the start of the process until it processes input:
var (
	restoreRecordsPerSecond = metric{phaseRestore, "restore_records_per_second", "changelog records per second"}
	restoreSeconds          = metric{phaseRestore, "restore_seconds", "restore, s"}
	restoreCPUSeconds       = metric{phaseRestore, "restore_cpu_seconds", "restore, CPU s"}
	coldStartSeconds        = metric{phaseRestore, "cold_start_seconds", "start to running, s"}
	coldStartCPUSeconds     = metric{phaseRestore, "cold_start_cpu_seconds", "start to running, CPU s"}
)

// metrics is the order of the table.
var metrics = []metric{
	recordsPerCPUSecond, recordsPerTotalCPUSecond, recordsPerSecond, maxRSS, brokerCPUPerRecord, storeCPUPerRecord, startSeconds, changelogRecords,
	restoreRecordsPerSecond, restoreSeconds, restoreCPUSeconds, coldStartSeconds, coldStartCPUSeconds,
}

// row is a metric over all rounds of a phase, and per round in relation to the
// first side.
type row struct {
	Phase  string                   `json:"phase"`
	Metric string                   `json:"metric"`
	Sides  map[string]figure.Spread `json:"sides"`
	Ratios map[string]figure.Spread `json:"ratios,omitempty"` // side -> side / base, round by round

	title string
}

// summarise makes a row of each metric that was measured. The base is the side
// that the others are compared with.
func summarise(runs []run, base string) []row {
	var rows []row
	for _, phase := range []string{phaseCount, phaseRestore} {
		for _, m := range metrics {
			if m.phase != "" && m.phase != phase {
				continue
			}
			values, ratios := map[string][]float64{}, map[string][]float64{}
			of := map[int]float64{} // round -> value of the base
			for _, r := range runs {
				if v, ok := r.Metrics[m.key]; ok && r.Phase == phase && r.Side == base {
					of[r.Round] = v
				}
			}
			for _, r := range runs {
				v, ok := r.Metrics[m.key]
				if !ok || r.Phase != phase {
					continue
				}
				values[r.Side] = append(values[r.Side], v)
				if b := of[r.Round]; b != 0 && r.Side != base {
					ratios[r.Side] = append(ratios[r.Side], v/b)
				}
			}
			if len(values) == 0 {
				continue
			}
			rw := row{Phase: phase, Metric: m.key, Sides: map[string]figure.Spread{}, Ratios: map[string]figure.Spread{}, title: m.title}
			for s, v := range values {
				rw.Sides[s] = figure.NewSpread(v)
			}
			for s, v := range ratios {
				rw.Ratios[s] = figure.NewSpread(v)
			}
			rows = append(rows, rw)
		}
	}
	return rows
}

// results is the content of the file of --json.
type results struct {
	Schema   int            `json:"schema"` // 1
	Machine  figure.Machine `json:"machine"`
	Settings settings       `json:"settings"`
	Runs     []run          `json:"runs"`
	Summary  []row          `json:"summary"`
}

func (r results) writeJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// writeTable prints the results for people. Base comes first of sides.
func (r results) writeTable(w io.Writer, sides []side) error {
	s := r.Settings
	r.Machine.Write(w)
	fmt.Fprintf(w, "keyed count, exactly-once, changelog, one output per input: %d records, %d keys, %d-byte values, %d partitions, %d workers, commit every %d ms, %d rounds, seed %d\n",
		s.Records, s.Keys, s.ValueBytes, s.Partitions, s.Workers, s.CommitMS, s.Rounds, s.Seed)
	fmt.Fprintf(w, "options of the JVM: %s\n", cmp.Or(strings.Join(s.JavaOptions, " "), "none"))
	fmt.Fprintln(w, "every output and every changelog was read back and is right")

	base, others := sides[0], sides[1:]
	phase := ""
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, rw := range r.Summary {
		if rw.Phase != phase {
			phase = rw.Phase
			fmt.Fprintf(tw, "\n%s: median (min .. max)", phase)
			for _, sd := range sides {
				fmt.Fprintf(tw, "\t%s", sd.title)
			}
			for _, sd := range others {
				fmt.Fprintf(tw, "\t%s / %s", sd.title, base.title)
			}
			fmt.Fprintln(tw)
		}
		fmt.Fprint(tw, rw.title)
		for _, sd := range sides {
			fmt.Fprintf(tw, "\t%s", cell(rw.Sides, sd.key, figure.Number))
		}
		for _, sd := range others {
			fmt.Fprintf(tw, "\t%s", cell(rw.Ratios, sd.key, figure.Ratio))
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}

func cell(spreads map[string]figure.Spread, key string, format func(float64) string) string {
	s, ok := spreads[key]
	if !ok {
		return "-"
	}
	return s.Cell(format)
}
