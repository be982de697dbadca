package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/weirstreams/weir/bench/kafka-streams/child"
)

// sample is what the clocks showed at one moment.
type sample struct {
	at        time.Time
	childCPU  time.Duration
	brokerCPU time.Duration // 0 when the broker's process is not ours to see
	storeCPU  time.Duration // 0 when the child has its state on disk
}

// servers are the processes that work for a child; 0 is none, or one that is
// not ours to see.
type servers struct{ broker, store int }

// read adds their clocks to a sample.
func (v servers) read(s *sample) (err error) {
	if v.broker != 0 {
		s.brokerCPU, err = cpuTime(v.broker)
	}
	if v.store != 0 && err == nil {
		s.storeCPU, err = cpuTime(v.store)
	}
	return err
}

// stamped is an event with the clocks at its arrival.
type stamped struct {
	child.Event
	at sample
}

// maxEvents is far more than a child ever says; the reader never waits for the
// harness.
const maxEvents = 64

// stopTimeout bounds the time that a child has to close everything.
const stopTimeout = time.Minute

// process is a running child.
type process struct {
	cmd     *exec.Cmd
	servers servers
	stdin   io.Closer
	stderr  *os.File
	events  chan stamped // closed after the last line of standard output
	started sample
}

// start starts a child whose standard error goes to the file logPath. The caller
// ends it with stop or kill.
func start(cmd *exec.Cmd, pids servers, logPath string) (*process, error) {
	p := &process{cmd: cmd, servers: pids, events: make(chan stamped, maxEvents)}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	if p.stderr, err = os.Create(logPath); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	p.stdin, cmd.Stderr = stdin, p.stderr
	p.started.at = time.Now()
	if err = p.servers.read(&p.started); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", cmd.Path, err), p.stderr.Close())
	}
	go p.follow(stdout)
	return p, nil
}

// follow stamps each line of the child as it comes. Its end closes events, for
// which stop and kill wait.
func (p *process) follow(stdout io.Reader) {
	defer close(p.events)
	// What breaks down here ends the run as a failure of the child does.
	fail := func(err error) { p.events <- stamped{Event: child.Event{Event: child.Failed, Error: err.Error()}} }
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var e stamped
		err := json.Unmarshal(lines.Bytes(), &e.Event)
		if err != nil {
			err = fmt.Errorf("it printed %q, which is no event: %w", lines.Text(), err)
		} else {
			e.at, err = p.sample()
		}
		if err != nil {
			fail(err)
			break
		}
		p.events <- e
	}
	if err := lines.Err(); err != nil {
		fail(err)
	}
	// A child that still prints must not block before it sees the order to stop.
	_, _ = io.Copy(io.Discard, stdout)
}

// sample reads the clocks.
func (p *process) sample() (sample, error) {
	s := sample{at: time.Now()}
	var err error
	if s.childCPU, err = cpuTime(p.cmd.Process.Pid); err != nil {
		return s, err
	}
	err = p.servers.read(&s)
	return s, err
}

// await returns the first event of each kind. It fails when the child fails or
// ends before it has said them all.
func (p *process) await(ctx context.Context, kinds ...string) (map[string]stamped, error) {
	seen := map[string]stamped{}
	for {
		missing := ""
		for _, kind := range kinds {
			if _, ok := seen[kind]; !ok {
				missing = kind
			}
		}
		if missing == "" {
			return seen, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the event %q: %w", missing, context.Cause(ctx))
		case e, ok := <-p.events:
			if err := check(e, ok); err != nil {
				return nil, fmt.Errorf("wait for the event %q: %w", missing, err)
			}
			if _, ok := seen[e.Event.Event]; !ok {
				seen[e.Event.Event] = e
			}
		}
	}
}

// check turns the end of the events and a child's own failure into an error.
func check(e stamped, ok bool) error {
	switch {
	case !ok:
		return errors.New("the child has ended")
	case e.Event.Event == child.Failed:
		return fmt.Errorf("the child failed: %s", e.Error)
	}
	return nil
}

// alive reports the failure of a child between two events.
func (p *process) alive() error {
	for {
		select {
		case e, ok := <-p.events:
			if err := check(e, ok); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// stop orders the child to stop, waits for it and returns the CPU time of its
// whole life and what it said at its end.
func (p *process) stop() (time.Duration, child.Event, error) {
	var last child.Event
	err := p.stdin.Close()
	late := time.AfterFunc(stopTimeout, func() { _ = p.cmd.Process.Kill() })
	for e := range p.events {
		err = errors.Join(err, check(e, true))
		last = e.Event
	}
	err = errors.Join(err, p.cmd.Wait())
	if !late.Stop() {
		err = errors.Join(err, fmt.Errorf("the child did not stop within %s and was killed", stopTimeout))
	}
	err = errors.Join(err, p.stderr.Close())
	if err == nil && last.Event != child.Stopped {
		err = fmt.Errorf("the child's last event is %q, not %q", last.Event, child.Stopped)
	}
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime(), last, err
}

// kill ends a child that is of no more use.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.stdin.Close()
	// Wait closes our end of the pipe, so that the reader ends even if the child
	// has left a process behind that holds the other one. What is lost of the
	// output is of no more use.
	_ = p.cmd.Wait()
	for range p.events {
		// Until the reader is gone.
	}
	_ = p.stderr.Close()
}

// maxTail is how much of a failed child's standard error an error shows.
const maxTail = 4 << 10

// tail returns the end of a log file.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(b[max(0, len(b)-maxTail):]))
}
