package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirstreams/weir/state/redisstore"
)

// Bounds of the waits for a server.
const (
	startTimeout = 30 * time.Second
	stopTimeout  = 30 * time.Second
	callTimeout  = 30 * time.Second
)

// server is a redis-server of this program: on a port of its own, with nothing
// persisted.
type server struct {
	addr string
	cmd  *exec.Cmd
	dir  string
	info rueidis.Client // of this program's questions, not of what is measured
}

// startServer starts a redis-server, which close ends.
func startServer(ctx context.Context) (*server, error) {
	dir, err := os.MkdirTemp("", "weir-bench-redis-*")
	if err != nil {
		return nil, fmt.Errorf("start redis-server: %w", err)
	}
	s := &server{dir: dir}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start redis-server (Debian, Ubuntu: apt-get install redis-server): %w", err), s.close())
	}
	return s, nil
}

func (s *server) start(ctx context.Context) error {
	// The port is free when the server asks for it, unless somebody is faster.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.addr = l.Addr().String()
	if err := l.Close(); err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--appendonly", "no")
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		s.cmd = nil
		return err
	}
	for end := time.Now().Add(startTimeout); ; {
		if s.info, err = dial(s.addr); err == nil {
			return nil
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			return fmt.Errorf("it does not answer: %w; its log:\n%s", err, text)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// close ends the server and removes what it has left.
func (s *server) close() error {
	if s.info != nil {
		s.info.Close()
	}
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(stopTimeout, func() { _ = s.cmd.Process.Kill() })
		_ = s.cmd.Wait() // the exit code of a signal says nothing
		late.Stop()
	}
	return os.RemoveAll(s.dir)
}

// dial opens a plain client of one connection, which one goroutine uses.
func dial(addr string) (rueidis.Client, error) {
	return rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true,
		DisableRetry: true, DisableAutoPipelining: true, PipelineMultiplex: -1,
		ClientSetInfo: rueidis.DisableClientSetInfo, ConnWriteTimeout: callTimeout})
}

// open opens the product on the server.
func (s *server) open(ctx context.Context, addr string, unordered bool) (*redisstore.Backend, error) {
	return redisstore.Open(ctx, s.options(addr, unordered))
}

func (s *server) options(addr string, unordered bool) redisstore.Options {
	return redisstore.Options{Addresses: []string{addr}, Unordered: unordered, Check: redisstore.CheckOff, Timeout: callTimeout}
}

// field reads a number of a section of INFO.
func (s *server) field(ctx context.Context, section, name string) (float64, error) {
	text, err := s.info.Do(ctx, s.info.B().Info().Section(section).Build()).ToString()
	if err != nil {
		return 0, fmt.Errorf("INFO %s: %w", section, err)
	}
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strconv.ParseFloat(strings.TrimSpace(v), 64)
		}
	}
	return 0, fmt.Errorf("INFO %s has no %s", section, name)
}

// cpu is the processor time that the server has used, in microseconds.
func (s *server) cpu(ctx context.Context) (float64, error) {
	user, err := s.field(ctx, "cpu", "used_cpu_user")
	if err != nil {
		return 0, err
	}
	system, err := s.field(ctx, "cpu", "used_cpu_sys")
	return (user + system) * 1e6, err
}

// memory is what the data of the server take, in bytes.
func (s *server) memory(ctx context.Context) (float64, error) {
	return s.field(ctx, "memory", "used_memory")
}

// serverVersion is the version of the redis-server that is started.
func serverVersion(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "redis-server", "--version").Output()
	if err != nil {
		return ""
	}
	for _, word := range strings.Fields(string(out)) {
		if v, ok := strings.CutPrefix(word, "v="); ok {
			return v
		}
	}
	return strings.TrimSpace(string(out))
}
