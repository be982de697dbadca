//go:build unix

// Command idle measures what many tasks cost while no records come: it runs a
// keyed count on a topic with a partition for each task, waits until all tasks
// run, and then takes the CPU time of the process.
//
//	eval "$(scripts/services env)"
//	go run ./bench/idle --brokers "$WEIR_KAFKA" --tasks 1000
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/serde"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "idle:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("idle", flag.ContinueOnError)
	brokers := flags.String("brokers", os.Getenv("WEIR_KAFKA"), "`host:port[,...]` of a Kafka; defaults to WEIR_KAFKA")
	tasks := flags.Int("tasks", 1000, "number of tasks")
	workers := flags.Int("workers", 0, "number of workers; 0 is the library's default")
	settle := flags.Duration("settle", 10*time.Second, "pause between the start and the measurement")
	length := flags.Duration("for", 30*time.Second, "length of the measurement")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *brokers == "" {
		return errors.New("no broker: give --brokers or WEIR_KAFKA")
	}
	if *tasks < 1 || *length <= 0 {
		return errors.New("--tasks and --for must be positive")
	}
	seeds := strings.Split(*brokers, ",")
	name := fmt.Sprintf("weir-idle-%08x", rand.Uint32())
	cl, err := kgo.NewClient(kgo.SeedBrokers(seeds...))
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	if _, err := adm.CreateTopic(ctx, int32(*tasks), 1, nil, name); err != nil {
		return fmt.Errorf("create topic %s: %w", name, err)
	}
	defer func() {
		_, derr := adm.DeleteTopics(context.WithoutCancel(ctx), name, name+"-counts-changelog")
		err = errors.Join(err, derr)
	}()

	b := weir.NewBuilder()
	b.Stream(weir.NewTopic(name, serde.String, serde.String)).GroupByKey().Count("counts")
	topology, err := b.Build()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", name)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	app, err := weir.NewApp(topology, weir.Config{ApplicationID: name, Brokers: seeds, Dir: dir, Workers: *workers,
		StartTimeout: 5 * time.Minute})
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	begin := time.Now()
	go func() { done <- app.Run(ctx) }()
	defer func() { err = errors.Join(err, app.Close(), <-done) }()
	if err := app.WaitFor(ctx, weir.Running); err != nil {
		return err
	}
	for len(app.Position()[name]) < *tasks {
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	started := time.Since(begin)
	if err := pause(ctx, *settle); err != nil {
		return err
	}
	before, from := cpu(), time.Now()
	if err := pause(ctx, *length); err != nil {
		return err
	}
	used, wall := cpu()-before, time.Since(from)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fmt.Printf("%d idle tasks: %.2f %% of a core over %.0f s, %d MiB of Go's memory, %d goroutines; all ran %.1f s after the start\n",
		*tasks, 100*used.Seconds()/wall.Seconds(), wall.Seconds(), m.Sys>>20, runtime.NumGoroutine(), started.Seconds())
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// cpu returns the CPU time of the process so far, user and system.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
