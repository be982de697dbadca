package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirstreams/weir/cmd/weir/internal/demo"
	"github.com/weirstreams/weir/cmd/weir/internal/ratings"
	"github.com/weirstreams/weir/query"
)

// Limits of flags, so that a slip of the finger is an error and no surprise.
const (
	maxRate       = 10_000_000 // ratings per second
	maxPartitions = 1000
	maxWorkers    = 1000
)

// off turns --listen off.
const off = "off"

func newDemo() *cobra.Command {
	var c demo.Config
	var kafka kafkaFlags
	var format string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch the running averages of movie ratings",
		Long: `Run a topology exactly once and watch its result: movie ratings, keyed by user,
are grouped by movie, and the running average of each movie is kept in a store
that answers over HTTP:

  topic ratings -> by movie -> {count, sum, average} -> topic rating-averages

Without --brokers all of this runs in this process, with an embedded Kafka.
Without --dir its data is in memory and in a temporary folder that is removed at
the end; with it, the next run goes on where this one ends.

Without --input ratings are generated. A file of ratings may be MovieLens u.data
(user, movie, rating and time separated by tabs), MovieLens ratings.csv (with its
header), or JSON lines such as {"movie_id":362,"rating":10}; each also packed with
gzip. Lines that are no ratings go to the topic ratings-dead-letters.

With --exit the averages are printed when the whole input is processed: as a
table, or with --json as one object per movie in order of id, and nothing else on
the standard output:

  {"movie":"362","count":2,"sum":18,"average":9}

--brokers runs the same on a Kafka cluster; for TLS and SASL --command-config takes
the file of client settings that Kafka's own tools take. The topics ratings, rating-averages
and ratings-dead-letters are created if they are missing, as this is a demo.`,
		Example: `  weir demo
  weir demo --rate 20000 --store memory
  weir demo --store redis://localhost:6379/0
  weir demo --input u.data --exit
  zcat ratings.csv.gz | weir demo --input - --exit --json | jq .average
  weir demo --dir ./demo-data --input monday.jsonl --exit
  weir demo --dir ./demo-data --input tuesday.jsonl --exit     # averages of both
  weir demo --brokers localhost:9092 --listen 127.0.0.1:8080`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringVarP(&c.Input, "input", "i", "", "read ratings from this `file`, or - for the standard input")
	f.StringVar(&format, "format", ratings.Auto.String(), "`format` of --input: "+strings.Join(ratings.FormatNames(), ", "))
	f.BoolVar(&c.Exit, "exit", false, "stop when the input is processed, and print the result")
	f.BoolVar(&c.JSON, "json", false, "print the result of --exit as JSON lines")
	f.Float64Var(&c.Rate, "rate", demo.DefaultRate, "ratings per second; no limit with --input")
	f.Uint64Var(&c.Seed, "seed", 1, "choose another stream of generated ratings")
	kafka.add(cmd, "run on the Kafka cluster at `host:port[,...]`")
	f.Int32Var(&c.Partitions, "partitions", 0, "create the topic ratings with so many partitions (default 4)")
	f.StringVar(&c.Dir, "dir", "", "keep state and the embedded broker's data in this `folder`")
	f.StringVar(&c.Store, "store", demo.StoreDisk, "keep state in `store`: "+strings.Join(demo.StoreNames(), ", ")+", or a Redis URL")
	f.IntVar(&c.Workers, "workers", 0, "number of workers (default one per processor)")
	f.StringVar(&c.Listen, "listen", query.DefaultAddr, "answer HTTP queries at `host:port`, or off; off with --exit")
	f.BoolVar(&c.Metrics, "metrics", true, "serve metrics for Prometheus at /metrics, too")
	f.BoolVarP(&c.Verbose, "verbose", "v", false, "show the log on the standard error")
	f.SortFlags = false

	must(cmd.MarkFlagDirname("dir"))
	must(cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(ratings.FormatNames(), cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("store", cobra.FixedCompletions(demo.StoreNames(), cobra.ShellCompDirectiveNoFileComp)))
	for _, name := range []string{"rate", "seed", "partitions", "workers", "listen"} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}

	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		given := func(name string) bool { return cmd.Flags().Changed(name) }
		if err := complete(&c, &kafka, format, given); err != nil {
			return &usageError{err, cmd.CommandPath()}
		}
		c.Stdin, c.Stdout, c.Stderr, c.Getenv = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(), os.Getenv
		return demo.Run(cmd.Context(), c)
	}
	return cmd
}

// must is for the declaration of flags, which only a mistake in it can fail.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// complete checks the flags of the demo and fills in the defaults that depend on
// others. All that is wrong comes at once.
func complete(c *demo.Config, kafka *kafkaFlags, format string, given func(flag string) bool) error {
	var errs []error
	bad := func(text string, args ...any) { errs = append(errs, fmt.Errorf(text, args...)) }

	if given("input") && c.Input == "" {
		bad("--input is empty: name a file, or - for the standard input")
	}
	if !given("input") {
		for _, name := range []string{"exit", "json", "format"} {
			if given(name) && !(name == "json" && c.Exit) {
				bad("--%s needs --input: the generated ratings have no end and no format", name)
			}
		}
	} else if given("seed") {
		bad("--seed is for generated ratings: leave it out with --input")
	}
	if given("input") && c.JSON && !c.Exit {
		bad("--json needs --exit: it is how the result is printed")
	}
	var err error
	if c.Format, err = ratings.ParseFormat(format); err != nil {
		bad("--format: %w", err)
	}
	if !given("rate") && given("input") {
		c.Rate = 0
	} else if !(c.Rate > 0 && c.Rate <= maxRate) {
		bad("--rate is %v: choose a number above 0 and up to %d", c.Rate, maxRate)
	}
	if given("partitions") && (c.Partitions < 1 || c.Partitions > maxPartitions) {
		bad("--partitions is %d: choose a number from 1 to %d", c.Partitions, maxPartitions)
	}
	if given("workers") && (c.Workers < 1 || c.Workers > maxWorkers) {
		bad("--workers is %d: choose a number from 1 to %d", c.Workers, maxWorkers)
	}
	if err := demo.CheckStore(c.Store); err != nil {
		bad("--store is %w", err)
	}
	if given("dir") && c.Dir == "" {
		bad("--dir is empty: name a folder, or leave it out for a temporary one")
	}
	if given("brokers") && len(kafka.brokers) == 0 {
		bad("--brokers is empty: name the host:port of a broker, or leave it out for an embedded one")
	} else if err := kafka.complete(); err != nil {
		errs = append(errs, err)
	} else if given("command-config") && len(kafka.brokers) == 0 {
		bad("--command-config names no bootstrap.servers: add them, or give --brokers")
	}
	c.Brokers, c.KafkaOptions = kafka.brokers, kafka.options
	switch {
	case c.Listen == off, c.Exit && !given("listen"):
		c.Listen = ""
	default:
		if err := checkAddress(c.Listen, true); err != nil {
			bad("--listen: %w", err)
		}
	}
	return errors.Join(errs...)
}

// checkAddress checks host:port. Only a port to listen on may be 0, and only
// there the host may be left out.
func checkAddress(addr string, listen bool) error {
	host, port, err := net.SplitHostPort(addr)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil || !listen && (host == "" || n == 0) {
		return fmt.Errorf("%q is no address: write host:port, as 127.0.0.1:8080", addr)
	}
	return nil
}
