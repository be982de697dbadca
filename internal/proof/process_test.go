package proof

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
	"sync"
	"syscall"
	"time"
)

// process is a child that runs the hash-chain application.
type process struct {
	cmd    *exec.Cmd
	name   string
	log    syncBuffer
	exited chan struct{} // closed when it has ended and mu.err is set

	mu struct {
		sync.Mutex
		state   string
		stopped bool
		failed  string
		err     error
		changed chan struct{} // closed and replaced at each change
	}
}

// startProcess starts a child.
func startProcess(name string, c childConfig) (*process, error) {
	config, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return startChild(name, childEnv+"="+string(config))
}

// startChild starts the test binary with a variable that makes it another
// program.
func startChild(name, env string) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(exe), name: name, exited: make(chan struct{})}
	p.mu.changed = make(chan struct{})
	p.cmd.Env = append(os.Environ(), env, "GORACE=halt_on_error=1")
	p.cmd.Stderr = &p.log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start child %s: %w", name, err)
	}
	go p.watch(out)
	return p, nil
}

// watch follows what the child says until it ends.
func (p *process) watch(out io.Reader) {
	for s := bufio.NewScanner(out); s.Scan(); {
		line := s.Text()
		p.change(func() {
			switch {
			case strings.HasPrefix(line, saysState):
				p.mu.state = strings.TrimPrefix(line, saysState)
			case line == saysStop:
				p.mu.stopped = true
			case strings.HasPrefix(line, saysFailed):
				p.mu.failed = strings.TrimPrefix(line, saysFailed)
			}
		})
	}
	err := p.cmd.Wait()
	p.change(func() { p.mu.err = err })
	close(p.exited)
}

func (p *process) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.mu.changed)
	p.mu.changed = make(chan struct{})
}

// await waits until the condition, which is called with mu held, is true. It is
// an error when the child ends before.
func (p *process) await(ctx context.Context, what string, condition func() bool) error {
	for {
		p.mu.Lock()
		ok, changed := condition(), p.mu.changed
		p.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-p.exited:
			return fmt.Errorf("child %s ended before it was %s: %w", p.name, what, p.ending())
		case <-ctx.Done():
			return fmt.Errorf("child %s is not %s in time: %w", p.name, what, context.Cause(ctx))
		}
	}
}

func (p *process) awaitRunning(ctx context.Context) error {
	return p.await(ctx, "running", func() bool { return p.mu.state == "Running" })
}

func (p *process) awaitStopped(ctx context.Context) error {
	return p.await(ctx, "stopped", func() bool { return p.mu.stopped })
}

// ending says how an ended child ended.
func (p *process) ending() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.failed != "" {
		return errors.New(p.mu.failed)
	}
	if p.mu.err == nil {
		return errors.New("cleanly")
	}
	return p.mu.err
}

// killed says whether an ended child was ended by SIGKILL.
func (p *process) killed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	var e *exec.ExitError
	if !errors.As(p.mu.err, &e) {
		return false
	}
	status, ok := e.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

func (p *process) alive() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// awaitKilled waits until the child has died of SIGKILL.
func (p *process) awaitKilled(ctx context.Context) error {
	select {
	case <-p.exited:
	case <-ctx.Done():
		return fmt.Errorf("child %s is not dead in time: %w", p.name, context.Cause(ctx))
	}
	if !p.killed() {
		return fmt.Errorf("child %s was to be killed and ended otherwise: %w", p.name, p.ending())
	}
	return nil
}

// kill ends the child at once, if it lives.
func (p *process) kill(ctx context.Context) error {
	if !p.alive() {
		return fmt.Errorf("child %s ended before it was killed: %w", p.name, p.ending())
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return p.awaitKilled(ctx)
}

// terminateLimit is how long a clean stop of a child may take.
const terminateLimit = time.Minute

// terminate stops the child cleanly.
func (p *process) terminate(ctx context.Context) error {
	if !p.alive() {
		return fmt.Errorf("child %s ended before it was stopped: %w", p.name, p.ending())
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, terminateLimit)
	defer cancel()
	select {
	case <-p.exited:
	case <-ctx.Done():
		return fmt.Errorf("child %s does not stop: %w", p.name, context.Cause(ctx))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.err != nil || p.mu.failed != "" {
		return fmt.Errorf("child %s did not stop cleanly: %s: %w", p.name, p.mu.failed, p.mu.err)
	}
	return nil
}

func (p *process) signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }
