// Command kafka-streams compares Weir with the Java library kafka-streams in one
// run on one broker: the same keyed count, exactly-once, with state on disk, a
// changelog and an output per input, first by the one and then by the other, so
// that the figures that count are ratios. Use the script run beside it, which
// starts the broker and builds the programs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weirstreams/weir/bench/figure"
	"github.com/weirstreams/weir/bench/kafka-streams/child"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/redisstore"
)

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

// defaultJavaOptions bounds the heap. Left alone, the JVM lets it grow towards a
// quarter of the machine's memory, which would flatter Weir: with this bound the
// program is as fast and needs half the memory. What RocksDB takes comes on top.
const defaultJavaOptions = "-Xmx256m"

// errUsage is a mistake in the flags; it has been explained already.
var errUsage = errors.New("wrong usage")

// The sides, as results, topics and --only call them. The last is also the
// argument that turns this program into that child.
const (
	javaKey  = "java"
	weirKey  = "weir"
	redisKey = "redis"
	bareKey  = "bare"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := runMain(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(exitUsage)
	default:
		fmt.Fprintln(os.Stderr, "bench/kafka-streams:", err)
		os.Exit(exitFailure)
	}
}

func runMain(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == bareKey {
		err := runBare(ctx, args[1:], stdin, stdout)
		if err != nil {
			child.NewReporter(stdout).Say(child.Event{Event: child.Failed, Error: err.Error()})
		}
		return err
	}
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	return compare(ctx, o, stdout, stderr)
}

// options are the settings of the runs and what the script run fills in.
type options struct {
	settings
	broker     string
	java       string
	classPath  string
	weir       string
	redis      string
	cpuProfile string
	jsonFile   string
	dir        string
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("bench/kafka-streams/run", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Int64Var(&o.Records, "records", 3_000_000, "records in the input topic")
	fs.IntVar(&o.Keys, "keys", 100_000, "different keys")
	fs.IntVar(&o.ValueBytes, "value-bytes", 100, "size of a value")
	fs.IntVar(&o.Partitions, "partitions", 4, "partitions of each topic")
	fs.IntVar(&o.Rounds, "rounds", 3, "how often each side counts, and restores")
	fs.IntVar(&o.Workers, "workers", 2, "Kafka Streams' threads and Weir's workers; the bare loop has one")
	fs.DurationVar(&o.Commit, "commit-interval", 100*time.Millisecond, "commit interval")
	fs.Uint64Var(&o.Seed, "seed", 1, "seed of keys and values")
	fs.BoolVar(&o.Restore, "restore", true, "measure the restore on an empty disk as well")
	fs.BoolVar(&o.Bare, "bare", false, "also run a bare franz-go loop, the upper bound")
	fs.StringVar(&o.redis, "redis", "", "also run Weir with its state in the Redis at `URL`, which is emptied of what the runs put there")
	fs.StringVar(&o.Only, "only", "", "run only these sides, separated by commas: java, weir, redis, bare")
	fs.DurationVar(&o.PhaseTimeout, "timeout", 15*time.Minute, "limit for one count or one restore")
	fs.StringVar(&o.cpuProfile, "cpuprofile", "", "write a CPU profile of each Weir process to `FILE`; the next process overwrites it")
	fs.StringVar(&o.jsonFile, "json", "", "write the results to `FILE` as JSON")
	fs.StringVar(&o.dir, "dir", "", "make the folder for state in `DIR` and not in the system's folder for temporary files")
	fs.StringVar(&o.java, "java", "java", "the Java launcher")
	fs.StringVar(&o.classPath, "java-classpath", "", "class path of KeyedCount (set by the script)")
	fs.StringVar(&o.weir, "weir-app", "", "the program of bench/kafka-streams/weirapp (set by the script)")
	javaOptions := fs.String("java-options", defaultJavaOptions, "options for the JVM")
	weirOptions := fs.String("weir-options", "", "more flags for the Weir program, such as --memprofile=FILE")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return o, err
		}
		return o, errUsage // the flag package has said what is wrong
	}
	o.CommitMS = o.Commit.Milliseconds()
	o.JavaOptions, o.WeirOptions = strings.Fields(*javaOptions), strings.Fields(*weirOptions)
	o.broker = os.Getenv("WEIR_KAFKA")

	wrong := ""
	switch {
	case fs.NArg() > 0:
		wrong = "unexpected argument " + strconv.Quote(fs.Arg(0))
	case o.Records < 1 || o.Keys < 1 || o.ValueBytes < 1 || o.Partitions < 1 || o.Rounds < 1 || o.Workers < 1 || o.CommitMS < 1:
		wrong = "--records, --keys, --value-bytes, --partitions, --rounds, --workers and --commit-interval must be positive"
	case o.broker == "" || strings.Contains(o.broker, ","):
		wrong = "the environment variable WEIR_KAFKA must name one broker as host:port (scripts/services env prints it)"
	case o.Only != "" && slices.ContainsFunc(strings.Split(o.Only, ","), func(s string) bool {
		return !slices.Contains([]string{javaKey, weirKey, redisKey, bareKey}, s)
	}):
		wrong = "--only is a list of java, weir, redis and bare, not " + strconv.Quote(o.Only)
	case o.needs(redisKey) && o.redis == "":
		wrong = "--only=redis needs the URL of a Redis: --redis"
	case o.needs(javaKey) && o.classPath == "":
		wrong = "--java-classpath is missing: use the script bench/kafka-streams/run"
	case (o.needs(weirKey) || o.needs(redisKey)) && o.weir == "":
		wrong = "--weir-app is missing: use the script bench/kafka-streams/run"
	}
	if wrong != "" {
		fmt.Fprintln(stderr, "bench/kafka-streams:", wrong)
		return o, errUsage
	}
	return o, nil
}

// needs says whether a side takes part.
func (o options) needs(key string) bool {
	if o.Only != "" {
		return slices.Contains(strings.Split(o.Only, ","), key)
	}
	switch key {
	case bareKey:
		return o.Bare
	case redisKey:
		return o.redis != ""
	}
	return true
}

// sides returns those that take part, in the order in which they run.
func (o options) sides() ([]side, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the own program for the bare loop: %w", err)
	}
	weir := func(ctx context.Context, flags []string) *exec.Cmd {
		if o.cpuProfile != "" {
			flags = append(flags, "--cpuprofile="+o.cpuProfile)
		}
		return exec.CommandContext(ctx, o.weir, append(flags, o.WeirOptions...)...)
	}
	all := []side{
		{key: javaKey, title: "Kafka Streams", makesTopics: true, command: func(ctx context.Context, flags []string) *exec.Cmd {
			args := append([]string{"-cp", o.classPath, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"}, o.JavaOptions...)
			return exec.CommandContext(ctx, o.java, append(append(args, "KeyedCount"), flags...)...)
		}},
		{key: weirKey, title: "Weir", makesTopics: true, command: weir},
		{key: redisKey, title: "Weir on Redis", makesTopics: true, keepsState: true, command: func(ctx context.Context, flags []string) *exec.Cmd {
			return weir(ctx, append(flags, "--redis="+o.redis))
		}},
		{key: bareKey, title: "bare loop", command: func(ctx context.Context, flags []string) *exec.Cmd {
			return exec.CommandContext(ctx, self, append([]string{bareKey}, flags...)...)
		}},
	}
	var sides []side
	for _, sd := range all {
		if o.needs(sd.key) {
			sides = append(sides, sd)
		}
	}
	return sides, nil
}

// openStore opens the Redis of a URL, to clean it up, and finds its process. An
// empty URL is none.
func openStore(ctx context.Context, url string) (state.Backend, int, error) {
	if url == "" {
		return nil, 0, nil
	}
	opts, err := redisstore.ParseURL(url)
	if err != nil {
		return nil, 0, err
	}
	pid, err := listenerPID(opts.Addresses[0])
	if err != nil {
		return nil, 0, err
	}
	store, err := redisstore.Open(ctx, opts)
	if err != nil {
		return nil, 0, err
	}
	return store, pid, nil
}

// compare makes the runs and writes what they gave.
func compare(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	log := slog.New(slog.NewTextHandler(stderr, nil))
	sides, err := o.sides()
	if err != nil {
		return err
	}
	brokerPID, err := listenerPID(o.broker)
	if errors.Is(err, errNoListener) {
		log.Warn("the CPU time of the broker is not measured", "reason", err)
	} else if err != nil {
		return err
	}
	cluster, err := openCluster([]string{o.broker})
	if err != nil {
		return err
	}
	defer cluster.close()
	dir, err := os.MkdirTemp(o.dir, "weir-bench-*")
	if err != nil {
		return fmt.Errorf("make a folder for state: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	store, storePID, err := openStore(ctx, o.redis)
	if err != nil {
		return err
	}
	if store != nil {
		defer func() { err = errors.Join(err, store.Close()) }()
	}

	h := &harness{
		settings: o.settings, store: store, storePID: storePID, sides: sides, cluster: cluster, broker: o.broker, brokerPID: brokerPID, dir: dir,
		id: strconv.FormatInt(time.Now().UnixMilli(), 36), log: log,
		runtimes: map[string]string{}, changelog: map[string]int64{},
	}
	runs, err := h.run(ctx)
	if err != nil {
		return err
	}
	r := results{Schema: 1, Machine: figure.Inspect(ctx, h.runtimes), Settings: o.settings, Runs: runs, Summary: summarise(runs, sides[0].key)}
	if err := r.writeTable(stdout, sides); err != nil {
		return fmt.Errorf("print the results: %w", err)
	}
	if o.jsonFile == "" {
		return nil
	}
	f, err := os.Create(o.jsonFile)
	if err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return errors.Join(r.writeJSON(f), f.Close())
}
