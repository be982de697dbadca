package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/weirstreams/weir/bench/figure"
	"github.com/weirstreams/weir/bench/kafka-streams/child"
	"github.com/weirstreams/weir/state"
)

// settings are what the runs are told; they go into the results as they are.
type settings struct {
	Records      int64         `json:"records"`
	Keys         int           `json:"keys"`
	ValueBytes   int           `json:"value_bytes"`
	Partitions   int           `json:"partitions"`
	Rounds       int           `json:"rounds"`
	Workers      int           `json:"workers"`
	Commit       time.Duration `json:"-"`
	CommitMS     int64         `json:"commit_ms"`
	Seed         uint64        `json:"seed"`
	JavaOptions  []string      `json:"java_options"`
	WeirOptions  []string      `json:"weir_options"`
	Restore      bool          `json:"restore"`
	PhaseTimeout time.Duration `json:"-"`
	Only         string        `json:"only,omitempty"`
	Bare         bool          `json:"bare"`
}

// side is one of the programs that are compared.
type side struct {
	key     string // in results and in the names of topics
	title   string
	command func(ctx context.Context, flags []string) *exec.Cmd
	// makesTopics is set when the program creates its changelog itself.
	makesTopics bool
	// keepsState is set when the state is not in the folder, but in the store of
	// the harness: there is nothing to restore.
	keepsState bool
}

// Phases of a run.
const (
	phaseCount   = "count"
	phaseRestore = "restore"
)

// pollInterval is the time between two looks at the committed offsets; it is
// also how precisely the end of a run is known.
const pollInterval = 25 * time.Millisecond

// probes is how many keys are looked at after a restore.
const probes = 1000

// harness runs the children one after the other.
type harness struct {
	settings  settings
	sides     []side
	cluster   *cluster
	broker    string        // host:port
	brokerPID int           // 0: unknown
	store     state.Backend // where the sides that keep their state have it; nil: there are none
	storePID  int
	dir       string
	id        string // of this run, in all names on the broker
	log       *slog.Logger

	in        *input
	runtimes  map[string]string // by side
	changelog map[string]int64  // application -> records in its changelog
}

func (h *harness) app(s side, round int) string {
	return fmt.Sprintf("bench-%s-%s-%d", h.id, s.key, round)
}

func outTopic(app string) string       { return app + "-out" }
func changelogTopic(app string) string { return app + "-counts-changelog" }

// run loads the input, counts it in each round with one side after the other,
// then lets the programs of the last round restore their state on empty disks,
// again as often as there are rounds. All that it makes on the broker is removed.
func (h *harness) run(ctx context.Context) (runs []run, err error) {
	s := h.settings
	topic := "bench-" + h.id + "-in"
	var live []string // applications that have something on the broker or on disk
	defer func() {
		ctx := context.WithoutCancel(ctx)
		for _, app := range live {
			err = errors.Join(err, h.remove(ctx, app))
		}
		err = errors.Join(err, h.cluster.deleteTopics(ctx, topic))
	}()
	if err := h.cluster.createTopic(ctx, topic, s.Partitions, nil); err != nil {
		return nil, err
	}
	began := time.Now()
	if h.in, err = h.cluster.load(ctx, topic, s); err != nil {
		return nil, err
	}
	h.log.Info("input loaded", "records", h.in.records, "seconds", seconds(time.Since(began)))

	for round := 1; round <= s.Rounds; round++ {
		for _, sd := range h.sides {
			app := h.app(sd, round)
			live = append(live, app)
			r, err := h.count(ctx, sd, round)
			if err == nil && round < s.Rounds {
				live = live[:len(live)-1]
				err = h.remove(ctx, app)
			}
			if err != nil {
				return runs, fmt.Errorf("%s, count, round %d: %w", sd.title, round, err)
			}
			runs = append(runs, r)
		}
	}
	if !s.Restore {
		return runs, nil
	}
	for round := 1; round <= s.Rounds; round++ {
		for _, sd := range h.sides {
			r, err := h.restore(ctx, sd, round)
			if err != nil {
				return runs, fmt.Errorf("%s, restore, round %d: %w", sd.title, round, err)
			}
			runs = append(runs, r)
		}
	}
	return runs, nil
}

// remove deletes what an application has left on the broker and on disk.
func (h *harness) remove(ctx context.Context, app string) error {
	return errors.Join(
		h.cluster.deleteTopics(ctx, outTopic(app), changelogTopic(app)),
		h.cluster.deleteGroup(ctx, app),
		os.RemoveAll(filepath.Join(h.dir, app)),
		h.drop(ctx, app),
	)
}

// drop deletes what an application has in the store.
func (h *harness) drop(ctx context.Context, app string) error {
	if h.store == nil {
		return nil
	}
	var errs []error
	for p := range h.settings.Partitions {
		errs = append(errs, h.store.Drop(ctx, state.ID{Application: app, Task: fmt.Sprintf("0_%d", p)}))
	}
	return errors.Join(errs...)
}

// launch starts the program of a side with a state folder that is empty.
func (h *harness) launch(ctx context.Context, sd side, app string) (*process, error) {
	dir := filepath.Join(h.dir, app)
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("empty the state folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	cfg := child.Config{
		App: app, Brokers: h.broker, In: h.in.topic, Out: outTopic(app), Dir: dir,
		Partitions: h.settings.Partitions, Workers: h.settings.Workers, Commit: h.settings.Commit,
	}
	pids := servers{broker: h.brokerPID}
	if sd.keepsState {
		pids.store = h.storePID
	}
	return start(sd.command(ctx, cfg.Args()), pids, h.logPath(app))
}

func (h *harness) logPath(app string) string { return filepath.Join(h.dir, app+".log") }

// count runs one side over the whole input. The measured window opens with the
// first commit that is seen and closes with the last, so that neither the start
// of the process nor the wait for the group is in it; its records are those
// committed in between.
func (h *harness) count(ctx context.Context, sd side, round int) (run, error) {
	app := h.app(sd, round)
	r := h.newRun(sd, phaseCount, round)
	if err := h.cluster.createTopic(ctx, outTopic(app), h.settings.Partitions, nil); err != nil {
		return r, err
	}
	if !sd.makesTopics {
		if err := h.cluster.createTopic(ctx, changelogTopic(app), h.settings.Partitions, map[string]string{"cleanup.policy": "compact"}); err != nil {
			return r, err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, h.settings.PhaseTimeout, errors.New("--timeout is over"))
	defer cancel()
	err := h.with(ctx, sd, app, func(p *process) error {
		first, before, err := h.follow(ctx, p, app, 1)
		if err != nil {
			return err
		}
		last, after, err := h.follow(ctx, p, app, h.in.records)
		if err != nil {
			return err
		}
		n := float64(after - before)
		cpu := (last.childCPU - first.childCPU).Seconds()
		if n == 0 || cpu == 0 {
			return errors.New("everything was committed at once: nothing to measure, raise --records")
		}
		r.set(recordsPerCPUSecond, n/cpu)
		r.set(recordsPerSecond, n/last.at.Sub(first.at).Seconds())
		r.set(startSeconds, first.at.Sub(p.started.at).Seconds())
		if h.brokerPID != 0 {
			r.set(brokerCPUPerRecord, (last.brokerCPU-first.brokerCPU).Seconds()/n*1e6)
		}
		if sd.keepsState {
			r.set(storeCPUPerRecord, (last.storeCPU-first.storeCPU).Seconds()/n*1e6)
		}
		return h.memory(p, &r)
	}, func(total time.Duration) {
		r.set(recordsPerTotalCPUSecond, float64(h.in.records)/total.Seconds())
	})
	if err != nil {
		return r, err
	}
	if err := h.verify(ctx, app); err != nil {
		return r, err
	}
	r.set(changelogRecords, float64(h.changelog[app]))
	h.log.Info("counted", r.attrs()...)
	return r, nil
}

// restore starts one side on an empty disk with the group and the changelog that
// it left, and adds probes to the input to see that the state is back.
func (h *harness) restore(ctx context.Context, sd side, round int) (run, error) {
	app := h.app(sd, h.settings.Rounds)
	r := h.newRun(sd, phaseRestore, round)
	records := float64(h.changelog[app])
	ctx, cancel := context.WithTimeoutCause(ctx, h.settings.PhaseTimeout, errors.New("--timeout is over"))
	defer cancel()
	err := h.with(ctx, sd, app, func(p *process) error {
		kinds := []string{child.Running}
		if !sd.keepsState {
			kinds = append(kinds, child.Restoring, child.Restored)
		}
		seen, err := p.await(ctx, kinds...)
		if err != nil {
			return err
		}
		from, to, running := seen[child.Restoring].at, seen[child.Restored].at, seen[child.Running].at
		if sd.keepsState {
			to = running
		} else {
			r.set(restoreRecordsPerSecond, records/to.at.Sub(from.at).Seconds())
			r.set(restoreSeconds, to.at.Sub(from.at).Seconds())
			r.set(restoreCPUSeconds, (to.childCPU - from.childCPU).Seconds())
		}
		r.set(coldStartSeconds, max(to.at.Sub(p.started.at), running.at.Sub(p.started.at)).Seconds())
		r.set(coldStartCPUSeconds, max(to.childCPU, running.childCPU).Seconds())
		if err := h.memory(p, &r); err != nil {
			return err
		}
		if err := h.cluster.probe(ctx, h.in, min(probes, h.settings.Keys)); err != nil {
			return err
		}
		_, _, err = h.follow(ctx, p, app, h.in.records)
		return err
	}, func(time.Duration) {})
	if err != nil {
		return r, err
	}
	r.set(changelogRecords, records)
	if err := h.verify(ctx, app); err != nil {
		return r, err
	}
	h.log.Info("restored", r.attrs()...)
	return r, nil
}

// with runs f beside a child and ends the child; total gets the CPU time of the
// child's whole life.
func (h *harness) with(ctx context.Context, sd side, app string, f func(*process) error, total func(time.Duration)) error {
	p, err := h.launch(ctx, sd, app)
	if err != nil {
		return err
	}
	hello, err := p.await(ctx, child.Started)
	if err == nil {
		h.runtimes[sd.key] = hello[child.Started].Runtime
		err = f(p)
	}
	if err != nil {
		p.kill()
		return h.explain(app, err)
	}
	cpu, last, err := p.stop()
	if err != nil {
		return h.explain(app, err)
	}
	total(cpu)
	if own := last.CPUSeconds; own > 0 && math.Abs(cpu.Seconds()-own) > maxClockGap*own {
		return fmt.Errorf("the child says that it used %.2f s of CPU time, the system %.2f s", own, cpu.Seconds())
	}
	return nil
}

// maxClockGap is how far a child's own figure for its CPU time may be from the
// system's, as a share of it: what it uses to end after it has said it.
const maxClockGap = 0.1

// explain adds the end of the child's standard error to an error.
func (h *harness) explain(app string, err error) error {
	if text := tail(h.logPath(app)); text != "" {
		return fmt.Errorf("%w; the child wrote:\n%s", err, text)
	}
	return err
}

// follow waits until an application has committed at least n inputs, and returns
// the clocks of that moment.
func (h *harness) follow(ctx context.Context, p *process, app string, n int64) (sample, int64, error) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		done, err := h.cluster.committed(ctx, app, h.in.topic)
		if err != nil {
			return sample{}, 0, err
		}
		if done >= n {
			s, err := p.sample()
			return s, done, err
		}
		if err := p.alive(); err != nil {
			return sample{}, 0, err
		}
		select {
		case <-ctx.Done():
			return sample{}, 0, fmt.Errorf("%d of %d inputs were committed: %w", done, n, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

func (h *harness) memory(p *process, r *run) error {
	rss, err := peakRSS(p.cmd.Process.Pid)
	if err != nil {
		return err
	}
	r.set(maxRSS, float64(rss)/(1<<20))
	return nil
}

// verify checks all that an application has written and remembers the size of
// its changelog.
func (h *harness) verify(ctx context.Context, app string) error {
	if err := h.cluster.verifyOutput(ctx, outTopic(app), h.in); err != nil {
		return fmt.Errorf("the output is wrong: %w", err)
	}
	n, err := h.cluster.verifyChangelog(ctx, changelogTopic(app), h.in)
	if err != nil {
		return fmt.Errorf("the changelog is wrong: %w", err)
	}
	h.changelog[app] = n
	return nil
}

func (h *harness) newRun(sd side, phase string, round int) run {
	return run{Side: sd.key, Phase: phase, Round: round, Load: figure.Load(), Metrics: map[string]float64{}}
}

func seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }
