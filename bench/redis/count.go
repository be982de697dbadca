package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/weirstreams/weir/bench/figure"
)

// comparison is the script that counts with each side in turn and checks every
// output, from the root of the repository.
const comparison = "bench/kafka-streams/run"

// Shape of the parts count and java.
const (
	countRounds  = 5
	countRecords = 3_000_000
	countKeys    = 100_000

	javaRounds  = 3
	javaRecords = 2_000_000
	javaKeys    = 1_000_000
)

// count compares the exactly-once keyed count with its state in Redis to the same
// with its state on disk.
func (b *bench) count(ctx context.Context) ([]row, error) {
	// Fewer records could be committed all at once, and there would be nothing to measure.
	records, keys := b.size(countRecords, 500_000), b.size(countKeys, 1000)
	s, err := b.compare(ctx, "weir,redis", countRounds, records, keys, false)
	if err != nil {
		return nil, err
	}
	b.note("count: %d records of %d keys, 100-byte values, 4 partitions, 2 workers, commit every 100 ms; every output was read back and is right", records, keys)
	var rows []row
	for _, c := range []struct {
		metric, title, unit string
		wanted              *bound
	}{
		{"records_per_second", "Redis / disk", "records/s", atLeast(0.7)},
		{"records_per_cpu_second", "Redis / disk", "records per CPU second of the process", nil},
		{"max_rss_mib", "Redis / disk, largest resident size of the process", "MiB", nil},
	} {
		r, err := s.row("count", "count", c.metric, "weir", "redis")
		if err != nil {
			return nil, err
		}
		r.Title, r.Unit = c.title, c.unit
		r.judge(c.wanted)
		rows = append(rows, r)
	}
	cpu, err := s.side("count", "redis_cpu_us_per_record", "redis")
	if err != nil {
		return nil, err
	}
	b.note("count: redis-server takes %s us of CPU per record, which is in none of the figures of the process", cpu.Cell(figure.Number))
	return rows, nil
}

// java compares the start of a process whose state is in Redis to that of Kafka
// Streams with an empty disk, which restores from its changelog.
func (b *bench) java(ctx context.Context) ([]row, error) {
	if b.quick {
		return nil, nil // it needs a JDK, and a minute
	}
	s, err := b.compare(ctx, "java,weir,redis", javaRounds, javaRecords, javaKeys, true)
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, c := range []struct{ base, title string }{
		{"java", "Redis / Kafka Streams that restores"},
		{"weir", "Redis / Weir on disk that restores"},
	} {
		r, err := s.row("java", "restore", "cold_start_seconds", c.base, "redis")
		if err != nil {
			return nil, err
		}
		r.Title, r.Unit = c.title, "s from start to running"
		r.judge(nil)
		rows = append(rows, r)
	}
	r, err := s.row("java", "count", "records_per_second", "weir", "redis")
	if err != nil {
		return nil, err
	}
	r.Title, r.Unit = "Redis / Weir on disk, the count before, with these many keys", "records/s"
	r.judge(nil)
	rows = append(rows, r)
	changelog, err := s.side("restore", "changelog_records", "java")
	if err != nil {
		return nil, err
	}
	b.note("java: %d inputs with %d possible keys; the changelog of Kafka Streams has %s records", javaRecords, javaKeys, figure.Number(changelog.Median))
	return rows, nil
}

// summary is what is read of the results of the comparison.
type summary struct {
	Summary []struct {
		Phase, Metric string
		Sides         map[string]figure.Spread
	}
	Runs []struct {
		Side, Phase string
		Round       int
		Metrics     map[string]float64
	}
}

// compare runs the comparison with a Redis of its own.
func (b *bench) compare(ctx context.Context, only string, rounds, records, keys int, restore bool) (s *summary, err error) {
	if _, err := os.Stat(comparison); err != nil {
		return nil, fmt.Errorf("this part is run from the root of the repository: %w", err)
	}
	server, err := startServer(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	file := filepath.Join(server.dir, "results.json")
	cmd := exec.CommandContext(ctx, comparison, "--only="+only, "--redis=redis://"+server.addr+"?check=off&point_lookups=counts",
		"--rounds="+strconv.Itoa(b.roundsOf(rounds)), "--records="+strconv.Itoa(records), "--keys="+strconv.Itoa(keys),
		"--restore="+strconv.FormatBool(restore), "--json="+file)
	// It has to clean up when this program is interrupted, and does so on the same signal.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopTimeout
	cmd.Env = append(os.Environ(), "WEIR_KAFKA="+b.brokers)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w", comparison, err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s = &summary{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

// side is a figure of a side over all rounds.
func (s *summary) side(phase, metric, side string) (figure.Spread, error) {
	for _, r := range s.Summary {
		if f, ok := r.Sides[side]; ok && r.Phase == phase && r.Metric == metric {
			return f, nil
		}
	}
	return figure.Spread{}, fmt.Errorf("the comparison has no %s of %s", metric, side)
}

// row compares a figure of two sides, round by round.
func (s *summary) row(part, phase, metric, base, side string) (row, error) {
	values := map[string][]float64{}
	for _, r := range s.Runs { // in the order of the rounds
		if v, ok := r.Metrics[metric]; ok && r.Phase == phase {
			values[r.Side] = append(values[r.Side], v)
		}
	}
	if len(values[side]) == 0 || len(values[side]) != len(values[base]) {
		return row{}, fmt.Errorf("the comparison has %d values of %s of %s and %d of %s", len(values[side]), metric, side, len(values[base]), base)
	}
	return newRow(part, "", "", values[side], values[base], nil), nil
}
