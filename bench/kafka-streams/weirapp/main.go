// Command weirapp is Weir's side of the comparison with Kafka Streams: the keyed
// count as a user would write it, with Weir's defaults except where the
// comparison fixes a setting for both sides.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/bench/kafka-streams/child"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/redisstore"
)

func main() {
	say := child.NewReporter(os.Stdout)
	if err := run(os.Args[1:], say); err != nil {
		say.Say(child.Event{Event: child.Failed, Error: err.Error()})
		fmt.Fprintln(os.Stderr, "weirapp:", err)
		os.Exit(1)
	}
	say.Say(child.Event{Event: child.Stopped})
}

func run(args []string, say *child.Reporter) (err error) {
	flags := flag.NewFlagSet("weirapp", flag.ContinueOnError)
	cfg := child.Bind(flags)
	cpuProfile := flags.String("cpuprofile", "", "write a CPU profile to `FILE`")
	memProfile := flags.String("memprofile", "", "write a profile of all allocations to `FILE` at the end")
	stateMemory := flags.Int64("max-state-memory", 0, "weir.Config.MaxStateMemory in `bytes`; 0 is the default")
	redis := flags.String("redis", "", "keep the state in the Redis at `URL` and not on disk")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	if *cpuProfile != "" {
		f, err := os.Create(*cpuProfile)
		if err != nil {
			return fmt.Errorf("profile: %w", err)
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return errors.Join(fmt.Errorf("profile: %w", err), f.Close())
		}
		defer func() {
			pprof.StopCPUProfile()
			err = errors.Join(err, f.Close())
		}()
	}
	say.Say(child.Event{Event: child.Started, Runtime: runtime.Version()})
	err = count(child.UntilEOF(context.Background(), os.Stdin), *cfg, *stateMemory, *redis, say)
	if err == nil && *memProfile != "" {
		err = writeAllocs(*memProfile)
	}
	return err
}

func count(ctx context.Context, cfg child.Config, stateMemory int64, redis string, say *child.Reporter) (err error) {
	var store state.Backend // nil is the one on disk
	if redis != "" {
		opts, err := redisstore.ParseURL(redis)
		if err != nil {
			return err
		}
		if store, err = redisstore.Open(ctx, opts); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, store.Close()) }()
	}
	in := weir.NewTopic(cfg.In, serde.String, serde.Bytes)
	out := weir.NewTopic(cfg.Out, serde.String, serde.Int64)

	b := weir.NewBuilder()
	b.Stream(in).GroupByKey().Count("counts").ToStream().To(out)
	topology, err := b.Build()
	if err != nil {
		return err
	}

	var restoring, running sync.Once
	var restored atomic.Int64
	app, err := weir.NewApp(topology, weir.Config{
		ApplicationID:  cfg.App,
		Brokers:        []string{cfg.Brokers},
		Dir:            cfg.Dir,
		Store:          store,
		Workers:        cfg.Workers,
		CommitInterval: cfg.Commit,
		MaxStateMemory: stateMemory,
		// Kafka Streams does not compress by default.
		ClientOptions: []kgo.Opt{kgo.ProducerBatchCompression(kgo.NoCompression())},
		OnRestore: func(p weir.RestoreProgress) {
			restoring.Do(func() { say.Say(child.Event{Event: child.Restoring}) })
			if p.Done && restored.Add(1) == int64(cfg.Partitions) {
				say.Say(child.Event{Event: child.Restored})
			}
		},
		OnState: func(s weir.State) {
			if s == weir.Running {
				running.Do(func() { say.Say(child.Event{Event: child.Running}) })
			}
		},
	})
	if err != nil {
		return err
	}
	return app.Run(ctx)
}

func writeAllocs(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	if err := pprof.Lookup("allocs").WriteTo(f, 0); err != nil {
		err = fmt.Errorf("profile: %w", err)
		return errors.Join(err, f.Close())
	}
	return f.Close()
}
