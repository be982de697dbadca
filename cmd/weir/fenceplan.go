package main

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirstreams/weir/fence"
)

func newFencePlan() *cobra.Command {
	var l fence.Load
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Work out batches and concurrency of a fenced consumer",
		Long: `Work out how many records belong in a batch and how many partitions have to be
worked on at once, so that a rate is met with room to catch up, and how busy Redis
will be. Nothing is connected: the figures come from the flags. --round-trip is what
redis-cli --latency shows from where the consumer runs.`,
		Example: `  weir fence plan --rate 10000 --partitions 12 --round-trip 0.5ms
  weir fence plan --rate 300000 --partitions 48 --round-trip 1ms --nodes 3 --json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	fs := cmd.Flags()
	fs.Float64Var(&l.Rate, "rate", 0, "`records` a second at peak")
	fs.IntVar(&l.Partitions, "partitions", 0, "`number` of partitions of the topic")
	fs.DurationVar(&l.RoundTrip, "round-trip", 0, "`time` to Redis and back")
	fs.IntVar(&l.Nodes, "nodes", 1, "`number` of primaries that the states are spread over")
	fs.DurationVar(&l.ServerCost, "server-cost", fence.DefaultServerCost, "processor `time` of Redis for a record")
	fs.DurationVar(&l.CallCost, "call-cost", fence.DefaultCallCost, "processor `time` of Redis for a call")
	fs.DurationVar(&l.SendTime, "send-time", fence.DefaultSendTime, "`time` to send the outputs and commit")
	fs.BoolVar(&asJSON, "json", false, "print JSON")
	fs.SortFlags = false
	for _, name := range []string{"rate", "partitions", "round-trip", "nodes", "server-cost", "call-cost", "send-time"} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := fence.Plan(l)
		if err != nil && !errors.Is(err, fence.ErrLoad) {
			return &usageError{err, cmd.CommandPath()}
		}
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), s)
		}
		t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintf(t, "batch\t%d records of a partition\n", s.BatchRecords)
		fmt.Fprintf(t, "concurrency\t%d partitions at once\n", s.Concurrency)
		fmt.Fprintf(t, "utilisation\t%.0f %% of each redis-server\n", 100*s.Utilisation)
		fmt.Fprintf(t, "capacity\t%.0f records a second\n", s.Capacity)
		fmt.Fprintf(t, "latency\t%v from the poll to the commit\n", s.Latency.Round(10*time.Microsecond))
		fmt.Fprintf(t, "in flight\t%d records\n", s.InFlight)
		if err := t.Flush(); err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "\n%s\n", strings.Join(s.Reasons, "\n"))
		return err
	}
	return cmd
}
