//go:build unix

package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirstreams/weir/embedded"
)

// process is the program as a process of its own.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr output
	tmp            string // its folder for temporary files
}

func startProcess(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0], args...), tmp: t.TempDir()}
	p.cmd.Env = append(os.Environ(), asProgram+"=1", "TMPDIR="+p.tmp)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.cmd.Process.Kill(); p.cmd.Wait() })
	return p
}

func (p *process) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func (p *process) awaitTable(t *testing.T) {
	t.Helper()
	await(t, "a table", func() bool { return strings.Contains(p.stdout.String(), "\nmovie ") })
}

// left returns what is in the folder for temporary files.
func (p *process) left(t *testing.T) []os.DirEntry {
	t.Helper()
	entries, err := os.ReadDir(p.tmp)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func TestSignalStops(t *testing.T) {
	t.Parallel()
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			p := startProcess(t, "demo")
			p.awaitTable(t)
			if len(p.left(t)) != 1 {
				t.Errorf("while it runs there is not one temporary folder: %v", p.left(t))
			}
			// Some programs send a signal to the process and to its group.
			p.signal(t, s)
			p.signal(t, s)
			if err := p.cmd.Wait(); err != nil {
				t.Errorf("ended with %v\n%s", err, p.stderr.String())
			}
			if len(p.left(t)) != 0 {
				t.Errorf("left behind: %v", p.left(t))
			}
			if !strings.Contains(p.stderr.String(), "stopped; nothing is left behind") {
				t.Errorf("messages:\n%s", p.stderr.String())
			}
		})
	}
}

// A stop that takes too long, here because the broker is gone, ends with a
// second signal.
func TestSecondSignalKills(t *testing.T) {
	t.Parallel()
	b, err := embedded.Open(embedded.Options{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	p := startProcess(t, "demo", "--brokers", strings.Join(b.Brokers(), ","))
	p.awaitTable(t)
	if err := b.NetworkDown(true); err != nil {
		t.Fatal(err)
	}
	p.signal(t, os.Interrupt)
	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGINT {
				t.Errorf("ended with %v, not by the second signal\n%s", err, p.stderr.String())
			}
			return
		case <-time.After(2 * secondSignal):
			p.cmd.Process.Signal(os.Interrupt) // fails once the process has ended
		}
	}
}

// A reader that has seen enough ends the demo, which still cleans up.
func TestReaderGoesAway(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var stderr bytes.Buffer
	tmp := t.TempDir()
	cmd := exec.Command(os.Args[0], "demo", "--rate", "5000")
	cmd.Env = append(os.Environ(), asProgram+"=1", "TMPDIR="+tmp)
	cmd.Stdout, cmd.Stderr = w, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	w.Close()
	if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	r.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("ended with %v\n%s", err, stderr.String())
	}
	if entries, err := os.ReadDir(tmp); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}
