// Package demo is what `weir demo` does: it runs a topology that keeps the running
// average of movie ratings, on an embedded broker or a real Kafka, feeds it with
// ratings, and shows the averages.
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/cmd/weir/internal/ratings"
	"github.com/weirstreams/weir/query"
	"github.com/weirstreams/weir/weirprom"
)

// DefaultRate is how many ratings the generator makes per second.
const DefaultRate = 500

// Config says what to do. The caller has checked it.
type Config struct {
	Input  string         // a file, or ratings.Stdin; empty for the generator
	Format ratings.Format // of Input
	Rate   float64        // per second; 0 for no limit
	Seed   uint64         // of the generator

	Exit bool // stop when Input is processed, and print the result
	JSON bool // print it as JSON

	Brokers []string // of a real Kafka; empty for the embedded broker
	// KafkaOptions are how to reach the Brokers, which they include.
	KafkaOptions []kgo.Opt
	Partitions   int32  // of ratings; 0 for what it has, or 4
	Dir          string // keeps state and the embedded broker's data; empty for a temporary folder
	Store        string // one of StoreNames, or the URL of a Redis
	Workers      int    // 0 for the library's default

	Listen  string // host:port of the HTTP server; empty for none
	Metrics bool   // also serve /metrics
	Verbose bool   // show the log

	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string

	ownPatience time.Duration // of tests; 0 for ownPatience
}

// ErrInterrupted says that a run with Config.Exit was stopped before its end.
var ErrInterrupted = errors.New("interrupted before all ratings were processed: there is no result")

// demo is one run.
type demo struct {
	config  Config
	console *console
	log     *slog.Logger
	cluster *cluster
	app     *weir.App
	table   weir.Table[string, average]
	server  *query.Server // nil for none
	feeder  *feeder
	input   *input // nil for the generator

	// stops undo what was started, in the reverse order.
	stops []func() error
}

// Run runs the demo until ctx ends, it fails, or, with Config.Exit, the input is
// processed. It undoes everything that it has started. Without Config.Exit it
// returns nil when ctx ends.
func Run(ctx context.Context, c Config) error {
	d := &demo{config: c, console: newConsole(c.Stdout, c.Stderr, c.Getenv)}
	level := slog.LevelWarn
	if c.Verbose {
		level = slog.LevelInfo
	}
	d.log = slog.New(slog.NewTextHandler(d.console, &slog.HandlerOptions{Level: level}))

	results, err := d.run(ctx)
	for _, stop := range slices.Backward(d.stops) {
		err = errors.Join(err, stop())
	}
	switch {
	case err != nil:
		return err
	case c.Exit:
		return d.print(results)
	case c.Dir != "":
		d.console.print("stopped; another run with --dir %s goes on from here", c.Dir)
	case len(c.Brokers) > 0:
		d.console.print("stopped; another run goes on from here, with the topics that are on %s", d.cluster.name)
	default:
		d.console.print("stopped; nothing is left behind (--dir DIR keeps everything)")
	}
	return nil
}

func (d *demo) onStop(f func() error) { d.stops = append(d.stops, f) }

// run starts everything and returns when it has to stop.
func (d *demo) run(ctx context.Context) ([]ratings.Result, error) {
	c := &d.config
	if c.Input != "" {
		// First of all, so that a wrong file starts nothing.
		d.input = readInput(ctx, c.Input, c.Format, c.Stdin)
		d.onStop(func() error { d.input.close(); return nil })
		if err := d.input.wait(ctx); err != nil {
			return nil, d.ended(ctx, ctx, err)
		}
	}
	dir, err := d.folder()
	if err != nil {
		return nil, err
	}
	keep := ""
	if c.Dir != "" {
		keep = dir
	}
	if d.cluster, err = openCluster(c.Brokers, c.KafkaOptions, keep, d.log); err != nil {
		return nil, err
	}
	d.onStop(d.cluster.close)
	created, err := d.cluster.prepare(ctx, c.Partitions)
	if err != nil {
		return nil, d.ended(ctx, ctx, err)
	}
	if d.cluster.broker == nil && len(created) > 0 {
		d.console.print("created on %s: %s (a demo may; in production, topics are made with the replication and retention that they need)",
			d.cluster.name, strings.Join(created, ", "))
	}
	if err := d.newApp(ctx, dir); err != nil {
		return nil, err
	}
	if d.feeder, err = newFeeder(d.cluster, c.Rate); err != nil {
		return nil, err
	}
	d.onStop(func() error { d.feeder.close(); return nil })

	// From here on goroutines run. The first that fails ends the others.
	work := &work{}
	work.ctx, work.cancel = context.WithCancelCause(ctx)
	d.onStop(func() error { work.stop(); return nil })
	d.start(work)
	if d.server != nil {
		work.spawn(d.server.Run)
	}
	if err := d.app.WaitFor(work.ctx, weir.Running); err != nil {
		<-work.ctx.Done() // with the reason why the application ended
		return nil, d.ended(ctx, work.ctx, err)
	}
	d.sayContinued(work.ctx)
	if d.cluster.broker != nil {
		d.feeder.behind = d.behind
		work.spawn(d.trim)
	}
	var results []ratings.Result
	if c.Exit {
		results, err = d.toEnd(work)
	} else {
		err = d.live(work)
	}
	return results, d.ended(ctx, work.ctx, err)
}

// errStop ends a run without being a failure.
var errStop = errors.New("stop")

// ended returns the error of a run that err has ended. When that only says that
// inner, a context made of outer, has ended, the reason for it counts; and the
// end of outer itself is no failure.
func (d *demo) ended(outer, inner context.Context, err error) error {
	if err == nil {
		return nil
	}
	if inner.Err() != nil {
		err = context.Cause(inner)
	}
	if err == errStop || outer.Err() == context.Canceled && err == context.Cause(outer) {
		if d.config.Exit {
			return ErrInterrupted
		}
		return nil
	}
	return err
}

// work is the goroutines of a run.
type work struct {
	ctx    context.Context // ends with the run's own, or with the first failure as the cause
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
}

func (w *work) spawn(f func(context.Context) error) {
	w.wg.Go(func() {
		if err := f(w.ctx); err != nil && w.ctx.Err() == nil {
			w.cancel(err)
		}
	})
}

func (w *work) stop() {
	w.cancel(nil)
	w.wg.Wait()
}

// start runs the application. It stops before the rest does, and by a context of
// its own, so that the end of the run is a clean end for it.
func (d *demo) start(w *work) {
	ctx, stop := context.WithCancel(context.WithoutCancel(w.ctx))
	done := make(chan error, 1)
	w.spawn(func(context.Context) error {
		err := d.app.Run(ctx)
		if ctx.Err() != nil { // the end of the run
			done <- err
			return nil
		}
		done <- nil
		if err == nil {
			err = errors.New("the application ended by itself")
		}
		return err
	})
	d.onStop(func() error {
		stop()
		return <-done
	})
}

// folder returns where the run keeps its files.
func (d *demo) folder() (string, error) {
	if d.config.Dir != "" {
		// Offsets of one cluster mean nothing on another.
		kind := "embedded"
		if len(d.config.Brokers) > 0 {
			kind = "brokers"
		}
		return filepath.Join(d.config.Dir, kind), nil
	}
	dir, err := os.MkdirTemp("", "weir-demo-")
	if err != nil {
		return "", fmt.Errorf("make a temporary folder: %w", err)
	}
	d.onStop(func() error { return os.RemoveAll(dir) })
	return dir, nil
}

// newApp makes the application and the server for it.
func (d *demo) newApp(ctx context.Context, dir string) error {
	topology, table, err := newTopology()
	if err != nil {
		return err
	}
	d.table = table
	config := weir.Config{
		ApplicationID: applicationID, ClientOptions: d.cluster.options, Incarnation: d.cluster.incarnation(),
		Dir: dir, Workers: d.config.Workers, DeadLetterTopic: deadLetterTopic, OnError: d.onError,
		Logger: d.log,
	}
	if config.Store, err = d.store(ctx, dir); err != nil {
		return err
	}
	options := query.Options{Logger: d.log}
	if d.config.Metrics {
		registry := prometheus.NewRegistry()
		sink, err := weirprom.New(registry)
		if err != nil {
			return err
		}
		config.Metrics, options.Metrics = sink, weirprom.Handler(registry)
	}
	if d.app, err = weir.NewApp(topology, config); err != nil {
		return err
	}
	if d.config.Listen == "" {
		return nil
	}
	if d.server, err = query.Listen(d.app, d.config.Listen, options); err != nil {
		return err
	}
	d.onStop(d.server.Close)
	return nil
}

// onError puts records aside that cannot be processed, and says so.
func (d *demo) onError(e *weir.TaskError) weir.Decision {
	decision := deadLetter(e)
	if decision == weir.DeadLetter {
		d.console.print("record put aside in topic %s: %v", deadLetterTopic, e)
	}
	return decision
}

// behind returns how many ratings below the given ends of partitions the
// application has not processed.
func (d *demo) behind(ends map[int32]int64) (n int64) {
	at := d.app.Position()[ratingsTopic]
	for p, end := range ends {
		n += max(end-at[p], 0)
	}
	return n
}

// trimInterval is the pause between deletions of processed ratings.
const trimInterval = time.Second

// trim keeps a broker in memory from growing.
func (d *demo) trim(ctx context.Context) error {
	for {
		if err := sleep(ctx, trimInterval); err != nil {
			return err
		}
		if err := d.cluster.trim(ctx, d.app.Position()[ratingsTopic]); err != nil {
			return err
		}
	}
}

// greetPatience is how long a run waits for the whole table before it begins.
// Right after the start the group may still be giving the tasks out.
const greetPatience = 3 * time.Second

// sayContinued says what earlier runs have left.
func (d *demo) sayContinued(ctx context.Context) {
	results, err := d.results(ctx, greetPatience)
	if err != nil {
		return // other instances have a part of it
	}
	var n int64
	for _, r := range results {
		n += r.Count
	}
	if n > 0 {
		d.console.print("going on where an earlier run ended: %s of %s are in the averages, and new ones are added",
			counted(n, "rating"), counted(int64(len(results)), "movie"))
	}
}

// feed sends the input, or what the generator makes, and shows the bad lines.
func (d *demo) feed(ctx context.Context) error {
	if d.input == nil {
		return d.feeder.generate(ctx, ratings.NewGenerator(d.config.Seed))
	}
	shown := 0
	return d.feeder.file(ctx, d.input, func(e *ratings.LineError) {
		switch shown++; {
		case shown <= maxBadLines:
			d.console.print("%s: %v", d.input.name, e)
		case shown == maxBadLines+1:
			d.console.print("%s: further bad lines are only counted; all are in topic %s", d.input.name, deadLetterTopic)
		}
	})
}

// toEnd feeds the input, waits until it is processed, and returns the averages.
func (d *demo) toEnd(w *work) ([]ratings.Result, error) {
	if d.server != nil {
		d.console.print("serving %s/stores/%s/{movie}", d.server.URL(), storeName)
	}
	w.spawn(d.progress)
	if err := d.feed(w.ctx); err != nil {
		if sent, _ := d.feeder.sent(); sent > 0 && d.cluster.keeps && w.ctx.Err() == nil {
			err = fmt.Errorf("%w (the %s before it are in topic %s and stay there)", err, counted(sent, "rating"), ratingsTopic)
		}
		return nil, err
	}
	patience := cmp.Or(d.config.ownPatience, ownPatience)
	s := &settler{app: d.app, cluster: d.cluster, patience: patience}
	if err := s.settle(w.ctx, d.feeder.ends()); err != nil {
		return nil, err
	}
	return d.results(w.ctx, patience)
}

// progressInterval is the pause between two lines about a run that takes long.
const progressInterval = 5 * time.Second

// progress tells how far a run is.
func (d *demo) progress(ctx context.Context) error {
	for {
		if err := sleep(ctx, progressInterval); err != nil {
			return err
		}
		sent, bad := d.feeder.sent()
		done := max(sent-d.behind(d.feeder.ends()), 0)
		d.console.print("%s: %s read, %s processed, %s", d.input.name, counted(sent, "rating"), grouped(done), badLines(bad))
	}
}

// badLines says how many there were.
func badLines(n int64) string {
	if n == 0 {
		return "no bad lines"
	}
	return counted(n, "bad line") + " in topic " + deadLetterTopic
}

// results reads the whole table. It waits for tasks that are not on this instance
// or not ready, as in a rebalance.
func (d *demo) results(ctx context.Context, patience time.Duration) ([]ratings.Result, error) {
	deadline := time.Now().Add(patience)
	for {
		var results []ratings.Result
		err := error(nil)
		for e, rerr := range d.app.Read(d.table).Range(ctx, weir.All[string]()) {
			if err = rerr; err != nil {
				break
			}
			results = append(results, ratings.Result{Movie: e.Key, Count: e.Value.Count, Sum: e.Value.Sum})
		}
		if errors.Is(err, weir.ErrNotRunning) {
			<-ctx.Done() // with the reason why it ended
		}
		passing := errors.Is(err, weir.ErrRestoring) || errors.Is(err, weir.ErrNotOwner)
		if !passing || time.Now().After(deadline) {
			return results, err
		}
		if err := sleep(ctx, settlePoll); err != nil {
			return nil, err
		}
	}
}
