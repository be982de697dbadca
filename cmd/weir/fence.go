package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/fence"
)

// redisEnv holds the URL of the server, which may have a password in it.
const redisEnv = "WEIR_FENCE_REDIS"

var partitioners = []fence.Partitioner{fence.Murmur2, fence.CRC32, fence.AnyPartition}

func partitionerNames() (names []string) {
	for _, p := range partitioners {
		names = append(names, p.Name())
	}
	return names
}

// fenceFlags are those of all commands about fences.
type fenceFlags struct {
	redis, name, topic, partitioner string
	kafka                           kafkaFlags
	partitions                      int
	json                            bool
	begin                           bool // states that are not there, rather than to fail
}

func newFence() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fence",
		Short: "Look at and repair states that a fenced consumer keeps in Redis",
		Long: `Look at, check and repair the states that consumers keep in Redis with package
fence. The URL of Redis is taken from ` + redisEnv + ` or --redis; a password in an
argument is seen by everybody on the machine.`,
	}
	cmd.AddCommand(newFenceInspect(), newFencePlan(), newFenceReconcile(), newFenceRewind())
	return cmd
}

func (f *fenceFlags) add(cmd *cobra.Command, brokers string) {
	fs := cmd.Flags()
	fs.StringVar(&f.redis, "redis", "", "`URL` of Redis (default: $"+redisEnv+")")
	fs.StringVar(&f.name, "name", fence.DefaultName, "`name` that the keys begin with; that of a Consumer is its group unless it was set")
	fs.StringVarP(&f.topic, "topic", "t", "", "`topic` of the records")
	fs.StringVar(&f.partitioner, "partitioner", fence.Murmur2.Name(), "partitioner of the producers: "+strings.Join(partitionerNames(), ", "))
	f.kafka.add(cmd, brokers)
	fs.BoolVar(&f.json, "json", false, "print JSON")
	fs.SortFlags = false
	must(cmd.RegisterFlagCompletionFunc("partitioner", cobra.FixedCompletions(partitionerNames(), cobra.ShellCompDirectiveNoFileComp)))
	for _, name := range []string{"redis", "name", "topic"} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
}

// check looks at the flags that all commands share.
func (f *fenceFlags) check(needBrokers bool) error {
	var errs []error
	bad := func(text string, args ...any) { errs = append(errs, fmt.Errorf(text, args...)) }
	if f.redis == "" {
		f.redis = os.Getenv(redisEnv)
	}
	if f.redis == "" {
		bad("no URL of Redis: set %s or --redis, as redis://localhost:6379/0", redisEnv)
	}
	if f.topic == "" {
		bad("--topic is empty: name the topic of the records")
	}
	if !slices.Contains(partitionerNames(), f.partitioner) {
		bad("--partitioner is %q: choose one of %s", f.partitioner, strings.Join(partitionerNames(), ", "))
	}
	if err := f.kafka.complete(); err != nil {
		errs = append(errs, err)
	} else if needBrokers && len(f.kafka.brokers) == 0 {
		bad("--brokers is empty: name the host:port of a broker of the topic")
	}
	return errors.Join(errs...)
}

// open opens the fence, and the topic when there are brokers.
func (f *fenceFlags) open(ctx context.Context) (*fence.Fence, *fence.KafkaSource, [16]byte, error) {
	var src *fence.KafkaSource
	var id [16]byte
	if len(f.kafka.brokers) > 0 {
		var err error
		if src, err = fence.NewKafkaSource(f.topic, f.kafka.options...); err != nil {
			return nil, nil, id, err
		}
		if f.partitions, id, err = src.Partitions(ctx); err != nil {
			src.Close()
			return nil, nil, id, err
		}
	}
	i := slices.Index(partitionerNames(), f.partitioner)
	fe, err := fence.Open(ctx, fence.Options{URL: f.redis, Name: f.name, Topic: f.topic, Partitions: f.partitions, Partitioner: partitioners[i], Existing: !f.begin})
	if err != nil {
		if src != nil {
			src.Close()
		}
		return nil, nil, id, err
	}
	return fe, src, id, nil
}

func newFenceInspect() *cobra.Command {
	var f fenceFlags
	cmd := &cobra.Command{
		Use:   "inspect KEY",
		Short: "Show the state of a key with its fence",
		Long: `Show what Redis holds of a key: the state, the partition and offset of the record
that it comes from, the owner and position of that partition, the records that are
pending there, and what the next records would get as a verdict. Nothing is
changed.`,
		Example: `  weir fence inspect --topic orders --partitions 12 customer-4711
  weir fence inspect --topic orders --brokers localhost:9092 --json customer-4711`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f.add(cmd, "find the number of partitions at `host:port[,...]`")
	cmd.Flags().IntVar(&f.partitions, "partitions", 0, "`number` of partitions of the topic, in place of --brokers")
	encoded := cmd.Flags().Bool("base64", false, "KEY is in base64")
	must(cmd.RegisterFlagCompletionFunc("partitions", cobra.NoFileCompletions))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := f.check(false)
		if (len(f.kafka.brokers) == 0) == (f.partitions == 0) {
			err = errors.Join(err, errors.New("give either --brokers or --partitions: the fence has to know how many partitions the topic has"))
		}
		key := []byte(args[0])
		if *encoded {
			var kerr error
			if key, kerr = base64.StdEncoding.DecodeString(args[0]); kerr != nil {
				err = errors.Join(err, fmt.Errorf("KEY is no base64: %w", kerr))
			}
		}
		if err != nil {
			return &usageError{err, cmd.CommandPath()}
		}
		fe, src, _, err := f.open(cmd.Context())
		if err != nil {
			return err
		}
		defer fe.Close()
		if src != nil {
			defer src.Close()
		}
		in, err := fe.Inspect(cmd.Context(), key)
		if err != nil {
			return err
		}
		next, err := nextVerdicts(cmd.Context(), fe, in)
		if err != nil {
			return err
		}
		if f.json {
			return printJSON(cmd.OutOrStdout(), struct {
				*fence.Inspection
				Next []prediction `json:"next"`
			}{in, next})
		}
		return printInspection(cmd.OutOrStdout(), in, next)
	}
	return cmd
}

// prediction is what a record of the key would get.
type prediction struct {
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Verdict   string `json:"verdict"`
	Reason    string `json:"reason,omitempty"`
}

func (p prediction) String() string {
	s := fmt.Sprintf("offset %d: %s", p.Offset, p.Verdict)
	if p.Reason != "" {
		s += " (" + p.Reason + ")"
	}
	return s
}

// nextVerdicts are those of the last record of the key, should it be read again,
// and of the next one of its partition.
func nextVerdicts(ctx context.Context, fe *fence.Fence, in *fence.Inspection) ([]prediction, error) {
	list := []prediction{}
	if !in.Partition.Claimed {
		return list, nil
	}
	p := in.Partition.Partition
	offsets := []int64{in.Partition.Position}
	if in.State.Fenced && in.State.Offset < in.Partition.Position {
		offsets = []int64{in.State.Offset, in.Partition.Position}
	}
	for _, o := range offsets {
		v, reason, err := fe.Predict(ctx, in, p, o)
		if err != nil {
			return nil, err
		}
		list = append(list, prediction{p, o, v.String(), string(reason)})
	}
	return list, nil
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func printInspection(w io.Writer, in *fence.Inspection, next []prediction) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s\t"+format+"\n", append([]any{name}, args...)...)
	}
	row("key", "%q", in.Key)
	row("redis key", "%q", in.RedisKey)
	if in.Expected >= 0 {
		row("expected partition", "%d", in.Expected)
	} else {
		row("expected partition", "any")
	}
	switch {
	case !in.State.Fenced:
		row("state", "none, and no record was applied")
	case !in.State.Exists:
		row("state", "none: it was deleted")
	default:
		row("state", "%q", in.State.Value)
	}
	if in.State.Kind != "" {
		row("kind", "%s", in.State.Kind)
	}
	if in.State.Fenced {
		row("last record", "offset %d of partition %d (of %d)", in.State.Offset, in.State.Partition, in.State.Partitions)
	}
	if p := in.Partition; !p.Claimed && in.Expected < 0 && !in.State.Fenced {
		row("owner", "not known: the key may be on any partition")
	} else if p.Claimed {
		row("owner", "epoch %d, lineage %d from offset %d", p.Epoch, p.Lineage, p.Begin)
		row("position", "%d", p.Position)
		row("pending", "%s", summary(in.Pending))
	} else {
		row("owner", "nobody has claimed partition %d", p.Partition)
	}
	for _, p := range next {
		row("would get", "%s", p)
	}
	return t.Flush()
}

// summary shows a list of offsets that may be long.
func summary(offsets []int64) string {
	switch n := len(offsets); n {
	case 0:
		return "none"
	case 1:
		return fmt.Sprintf("offset %d", offsets[0])
	default:
		return fmt.Sprintf("%d records, offsets %d to %d", n, offsets[0], offsets[n-1])
	}
}

// States that reconcile can compute by itself.
var stateOps = map[string]func(*fence.Message) (fence.Op, error){
	"none": nil,
	"value": func(m *fence.Message) (fence.Op, error) {
		if m.Value == nil {
			return fence.Delete(), nil
		}
		return fence.Set(m.Value), nil
	},
	"count": func(*fence.Message) (fence.Op, error) { return fence.Add(1), nil },
}

var stateNames = []string{"none", "value", "count"}

func newFenceReconcile() *cobra.Command {
	var f fenceFlags
	var group, states string
	var sample float64
	var maxKeys int
	var repair bool
	cmd := &cobra.Command{
		Use:   "reconcile",
		Short: "Compare the states with the topic",
		Long: `Read the records that the fences claim to cover, and report every key whose state,
offset or partition is not what they make. Nothing is changed, and consumers may go
on meanwhile. The exit code is 1 when something differs.

What a record does to its state is known to the consumer alone. This command knows
--states value (the state is the value of the last record) and count (the number of
records); for others call fence.Reconcile with the function of the consumer. With
none only offsets and partitions are compared.

--repair starts the partitions whose keys differ over, from where they began: their
states are made again by the consumers, who also send the outputs of all these
records once more. It needs --group, and no member of the group may be running. A
partition is left alone when the topic does not hold all records that made its
states: some are lost or compacted away, or are in the partitions that their keys
had when there were fewer.`,
		Example: `  weir fence reconcile --topic orders --brokers localhost:9092 --sample 0.01
  weir fence reconcile --topic orders --brokers localhost:9092 --group billing --states count --json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f.add(cmd, "read the topic at `host:port[,...]`")
	fs := cmd.Flags()
	fs.StringVarP(&group, "group", "g", "", "compare positions with the offsets of this consumer `group`, too")
	fs.StringVar(&states, "states", "none", "what the states are: "+strings.Join(stateNames, ", "))
	fs.Float64Var(&sample, "sample", 1, "`share` of the keys to compare")
	fs.IntVar(&maxKeys, "max-keys", fence.DefaultMaxKeys, "compare at most so many keys: the sample is halved until they fit")
	fs.BoolVar(&repair, "repair", false, "start the partitions that differ over")
	must(cmd.RegisterFlagCompletionFunc("states", cobra.FixedCompletions(stateNames, cobra.ShellCompDirectiveNoFileComp)))
	for _, name := range []string{"group", "sample", "max-keys"} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		err := f.check(true)
		bad := func(text string, args ...any) { err = errors.Join(err, fmt.Errorf(text, args...)) }
		if _, ok := stateOps[states]; !ok {
			bad("--states is %q: choose one of %s", states, strings.Join(stateNames, ", "))
		}
		if !(sample > 0 && sample <= 1) {
			bad("--sample is %v: choose a share above 0 and up to 1", sample)
		}
		if maxKeys < 1 {
			bad("--max-keys is %d: choose a number above 0", maxKeys)
		}
		if repair && f.partitioner == fence.AnyPartition.Name() {
			bad("--repair with the partitioner %s: a key has records in several partitions, so start all of them over: weir fence rewind --all --first", f.partitioner)
		}
		if repair && group == "" {
			bad("--repair needs --group: its offsets are set back with the fences")
		}
		if err != nil {
			return &usageError{err, cmd.CommandPath()}
		}
		ctx := cmd.Context()
		fe, src, id, err := f.open(ctx)
		if err != nil {
			return err
		}
		defer fe.Close()
		defer src.Close()
		var committed map[int32]int64
		if group != "" {
			if committed, err = src.Committed(ctx, group); err != nil {
				return err
			}
		}
		compacted := false
		if repair || stateOps[states] != nil {
			if compacted, err = src.Compacted(ctx); err != nil {
				return err
			}
		}
		report, err := fe.Reconcile(ctx, fence.Reconciliation{Source: src, Op: stateOps[states], Committed: committed, Compacted: compacted, TopicID: id, Sample: sample, MaxKeys: maxKeys})
		if err != nil {
			return err
		}
		if f.json {
			err = printJSON(cmd.OutOrStdout(), report)
		} else {
			_, err = report.WriteTo(cmd.OutOrStdout())
		}
		if err != nil || report.Differing == 0 {
			return err
		}
		if !repair {
			return fmt.Errorf("%d differences", report.Differing)
		}
		return repairPartitions(ctx, &f, fe, src, id, group, report, cmd.ErrOrStderr())
	}
	return cmd
}

// repairPartitions starts over what differs, as far as the topic has it all.
func repairPartitions(ctx context.Context, f *fenceFlags, fe *fence.Fence, src *fence.KafkaSource, id [16]byte, group string, report *fence.Report, log io.Writer) error {
	var errs []error
	for _, p := range report.Partitions {
		if p.Differing == 0 {
			continue // a position is set right by the consumer that claims it
		}
		first, _, err := src.Bounds(ctx, p.Partition)
		if err != nil {
			return err
		}
		if !p.Complete || first > p.From {
			errs = append(errs, fmt.Errorf("partition %d: the topic, which begins at offset %d, does not hold all records that made the states: they cannot be made again from it", p.Partition, first))
			continue
		}
		if p.Elsewhere > 0 {
			errs = append(errs, fmt.Errorf("partition %d: %d records of its keys are in other partitions, from before the topic got more of them: its states cannot be made again from it alone", p.Partition, p.Elsewhere))
			continue
		}
		if err := rewindPartition(ctx, f.kafka.options, fe, group, fence.Rewinding{Partition: p.Partition, Offset: p.From, TopicID: id}); err != nil {
			return err
		}
		fmt.Fprintf(log, "partition %d starts over at offset %d\n", p.Partition, p.From)
	}
	return errors.Join(errs...)
}

// rewindPartition rewinds the fences of a partition and the offset of the group.
func rewindPartition(ctx context.Context, opts []kgo.Opt, fe *fence.Fence, group string, r fence.Rewinding) error {
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	groups, err := adm.DescribeGroups(ctx, group)
	if err != nil {
		return fmt.Errorf("describe group %s: %w", group, err)
	}
	g := groups[group]
	if g.Err != nil && !errors.Is(g.Err, kerr.GroupIDNotFound) {
		return fmt.Errorf("describe group %s: %w", group, g.Err)
	}
	if len(g.Members) > 0 {
		return fmt.Errorf("group %s has %d members: stop the consumers, or they would read on from where they are", group, len(g.Members))
	}
	if err := fe.Rewind(ctx, r); err != nil {
		return err
	}
	offsets := kadm.Offsets{}
	offsets.AddOffset(fe.Topic(), r.Partition, r.Offset, -1)
	if err := adm.CommitAllOffsets(ctx, group, offsets); err != nil {
		return fmt.Errorf("the fences of partition %d are at offset %d now, but the offset of group %s could not be set: run the command again: %w", r.Partition, r.Offset, group, err)
	}
	return nil
}

func newFenceRewind() *cobra.Command {
	var f fenceFlags
	var group string
	var partitions []int32
	var offset int64
	var keep bool
	cmd := &cobra.Command{
		Use:   "rewind",
		Short: "Start partitions over from an offset",
		Long: `Start a new lineage of partitions at an offset, and set the offset of the group to
it: after the topic was created anew, after Redis has lost the states, or to compute
them again. No member of the group may be running.

A state begins anew with the first record of its key from there on, and outputs are
sent again. Where nothing is stored --name must be given. With --keep the states
stay, and records that were applied before are applied on top of them once
more: only for states that the same record does not change twice.`,
		Example: `  weir fence rewind --topic orders --brokers localhost:9092 --group billing --partition 3 --offset 0
  weir fence rewind --topic orders --brokers localhost:9092 --group billing --all --first`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f.add(cmd, "brokers of the topic, `host:port[,...]`")
	var all, first bool
	fs := cmd.Flags()
	fs.StringVarP(&group, "group", "g", "", "consumer `group` whose offsets are set")
	fs.Int32SliceVarP(&partitions, "partition", "p", nil, "`partitions` to start over")
	fs.BoolVar(&all, "all", false, "start all partitions over")
	fs.Int64Var(&offset, "offset", -1, "`offset` to go on from")
	fs.BoolVar(&first, "first", false, "go on from the first record that the topic holds")
	fs.BoolVar(&keep, "keep", false, "keep the states")
	for _, name := range []string{"group", "partition", "offset"} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		err := f.check(true)
		bad := func(text string, args ...any) { err = errors.Join(err, fmt.Errorf(text, args...)) }
		if group == "" {
			bad("--group is empty: its offsets are set with the fences")
		}
		if all == (len(partitions) > 0) {
			bad("give either --partition or --all")
		}
		if first == (offset >= 0) {
			bad("give either --offset or --first")
		}
		if !all && !keep && f.partitioner == fence.AnyPartition.Name() {
			bad("with the partitioner %s a key has records in several partitions: give --all, or their states count records twice", f.partitioner)
		}
		if err != nil {
			return &usageError{err, cmd.CommandPath()}
		}
		f.begin = cmd.Flags().Changed("name")
		ctx := cmd.Context()
		fe, src, id, err := f.open(ctx)
		if err != nil {
			return err
		}
		defer fe.Close()
		defer src.Close()
		if all {
			for p := range fe.Partitions() {
				partitions = append(partitions, int32(p))
			}
		}
		type rewound struct {
			Partition int32 `json:"partition"`
			Offset    int64 `json:"offset"`
		}
		var todo []rewound
		for _, p := range partitions {
			at := offset
			low, high, err := src.Bounds(ctx, p)
			if err != nil {
				return err
			}
			if first {
				at = low
			}
			if at < low || at > high {
				return fmt.Errorf("offset %d of partition %d is outside of what the topic holds, %d to %d: nothing was changed", at, p, low, high)
			}
			todo = append(todo, rewound{p, at})
		}
		done := []rewound{}
		for _, r := range todo {
			if err = rewindPartition(ctx, f.kafka.options, fe, group, fence.Rewinding{Partition: r.Partition, Offset: r.Offset, Keep: keep, TopicID: id}); err != nil {
				break
			}
			done = append(done, r)
			if !f.json {
				fmt.Fprintf(cmd.OutOrStdout(), "partition %d starts over at offset %d\n", r.Partition, r.Offset)
			}
		}
		if f.json {
			err = errors.Join(printJSON(cmd.OutOrStdout(), done), err)
		}
		return err
	}
	return cmd
}
