// Command redis measures what state in Redis costs, as ratios within one run:
//
//	go run ./bench/redis --parts=writes,latency,memory   # needs redis-server only
//	make bench-redis                                     # all parts, with a real Kafka
//
// It starts its own servers on free ports and ends them; of Kafka it uses topics
// and groups of its own, and removes them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weirstreams/weir/bench/figure"
)

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

// errUsage is a mistake in the flags; it has been explained already.
var errUsage = errors.New("wrong usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(exitUsage)
	default:
		fmt.Fprintln(os.Stderr, "bench/redis:", err)
		os.Exit(exitFailure)
	}
}

// part is one group of comparisons.
type part struct {
	name  string
	what  string
	kafka bool
	run   func(*bench, context.Context) ([]row, error)
}

var parts = []part{
	{"writes", "CPU of redis-server for writes, against pipelined SET", false, (*bench).writes},
	{"latency", "rate over round trips of 0.5 ms, against a script for each key", false, (*bench).latency},
	{"fence", "CPU and rate of package fence, against a script for each record", false, (*bench).fence},
	{"memory", "memory of redis-server, against a hash for each key", false, (*bench).memory},
	{"count", "exactly-once count, state in Redis against state on disk", true, (*bench).count},
	{"start", "start to first output, with many keys against few", true, (*bench).start},
	{"java", "start with the state in Redis against Kafka Streams, which restores", true, (*bench).java},
}

// bench is a run with its settings.
type bench struct {
	brokers string
	quick   bool
	rounds  int // 0: as many as the part needs
	keys    int // of the part start
	log     *slog.Logger
	notes   []string
}

// note adds a line to the results.
func (b *bench) note(format string, args ...any) {
	b.notes = append(b.notes, fmt.Sprintf(format, args...))
}

// size is a number of rounds, records or keys: full, or little with --quick.
func (b *bench) size(full, little int) int {
	if b.quick {
		return little
	}
	return full
}

// roundsOf is the number of rounds of a part.
func (b *bench) roundsOf(full int) int {
	if b.rounds > 0 {
		return b.rounds
	}
	return b.size(full, 1)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	b := bench{log: slog.New(slog.NewTextHandler(stderr, nil))}
	fs := flag.NewFlagSet("bench/redis", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var names []string
	usage := "run only these parts, separated by commas:"
	for _, p := range parts {
		names = append(names, p.name)
		usage += fmt.Sprintf("\n  %-8s %s", p.name, p.what)
	}
	only := fs.String("parts", strings.Join(names, ","), usage)
	fs.StringVar(&b.brokers, "brokers", os.Getenv("WEIR_KAFKA"), "`host:port` of the Kafka of the parts count, start and java; defaults to WEIR_KAFKA")
	fs.BoolVar(&b.quick, "quick", false, "do very little of everything, to see that it works")
	fs.IntVar(&b.rounds, "rounds", 0, "rounds of each part; 0 for what each needs")
	fs.IntVar(&b.keys, "keys", 0, "keys of the part start, 10,000,000 by default: they take 2 GiB of memory")
	file := fs.String("json", "", "write the results to `FILE` as JSON")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage // the flag package has said what is wrong
	}
	chosen := strings.Split(*only, ",")
	wrong := ""
	needsKafka := slices.ContainsFunc(parts, func(p part) bool { return p.kafka && slices.Contains(chosen, p.name) })
	unknown := slices.IndexFunc(chosen, func(s string) bool { return !slices.Contains(names, s) })
	switch {
	case fs.NArg() > 0:
		wrong = "unexpected argument " + strconv.Quote(fs.Arg(0))
	case unknown >= 0:
		wrong = fmt.Sprintf("--parts is a list of %s, not %q", strings.Join(names, ", "), *only)
	case b.rounds < 0 || b.keys < 0:
		wrong = "--rounds and --keys must not be negative"
	case needsKafka && (b.brokers == "" || strings.Contains(b.brokers, ",")):
		wrong = "these parts need one broker as host:port, from --brokers or WEIR_KAFKA (scripts/services env prints it)"
	}
	if wrong != "" {
		fmt.Fprintln(stderr, "bench/redis:", wrong)
		return errUsage
	}

	r := results{Schema: 1, Quick: b.quick}
	var failed error
	for _, p := range parts {
		if !slices.Contains(chosen, p.name) {
			continue
		}
		began := time.Now()
		b.log.Info("begin", "part", p.name, "load", figure.Load())
		rows, err := p.run(&b, ctx)
		if err != nil {
			failed = fmt.Errorf("part %s: %w", p.name, err)
			break // with what there is
		}
		b.log.Info("end", "part", p.name, "load", figure.Load(), "seconds", time.Since(began).Round(100*time.Millisecond).Seconds())
		for _, x := range rows {
			if b.quick {
				x.Wanted, x.Reached = "", nil
			}
			r.Rows = append(r.Rows, x)
		}
	}
	r.Notes = b.notes
	r.Machine = figure.Inspect(context.WithoutCancel(ctx), map[string]string{"redis-server": serverVersion(context.WithoutCancel(ctx))})
	if err := r.writeTable(stdout); err != nil {
		return errors.Join(failed, fmt.Errorf("print the results: %w", err))
	}
	if *file == "" {
		return failed
	}
	f, err := os.Create(*file)
	if err != nil {
		return errors.Join(failed, fmt.Errorf("write the results: %w", err))
	}
	return errors.Join(failed, r.writeJSON(f), f.Close())
}
