//go:build integration

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirstreams/weir/state/statetest"
)

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// redisServer is a redis-server that the test may kill.
type redisServer struct {
	t    testing.TB
	dir  string
	port string
	args []string
	cmd  *exec.Cmd
}

// startRedis starts a server on a free port. Arguments are those of the
// command; without them nothing is persisted.
func startRedis(t testing.TB, args ...string) *redisServer {
	t.Helper()
	s := &redisServer{t: t, dir: t.TempDir(), port: freePort(t), args: args}
	t.Cleanup(func() { s.kill() })
	s.start()
	return s
}

func (s *redisServer) addr() string { return net.JoinHostPort("127.0.0.1", s.port) }

func (s *redisServer) options() Options {
	return Options{Addresses: []string{s.addr()}, Check: CheckWarn, Timeout: time.Second}
}

// launch starts the process and does not wait for it.
func (s *redisServer) launch() {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	args := append([]string{"--port", s.port, "--bind", "127.0.0.1", "--dir", s.dir, "--save", ""}, s.args...)
	s.cmd = exec.Command("redis-server", args...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *redisServer) start() {
	s.t.Helper()
	s.launch()
	eventually(s.t, "start of redis-server", func() bool {
		c, err := s.dial()
		if err != nil {
			return false
		}
		defer c.Close()
		return c.Do(context.Background(), c.B().Ping().Build()).Error() == nil
	})
}

func (s *redisServer) dial() (rueidis.Client, error) {
	return rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.addr()}, ForceSingleClient: true,
		DisableCache: true, DisableRetry: true, ClientSetInfo: rueidis.DisableClientSetInfo, ConnWriteTimeout: waitLimit})
}

// do sends a command on a connection of its own.
func (s *redisServer) do(args ...string) rueidis.RedisResult {
	s.t.Helper()
	c, err := s.dial()
	if err != nil {
		s.t.Fatalf("connect to redis-server: %v", err)
	}
	defer c.Close()
	return c.Do(context.Background(), c.B().Arbitrary(args...).Build())
}

func (s *redisServer) must(args ...string) rueidis.RedisResult {
	s.t.Helper()
	r := s.do(args...)
	if err := r.Error(); err != nil && !rueidis.IsRedisNil(err) {
		s.t.Fatalf("%v: %v", args, err)
	}
	return r
}

// keys are all keys of the server.
func (s *redisServer) keys() []string {
	list, err := s.must("KEYS", "*").AsStrSlice()
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// kill ends the process as a crash would.
func (s *redisServer) kill() {
	if s.cmd == nil {
		return
	}
	s.cmd.Process.Signal(syscall.SIGCONT)
	s.cmd.Process.Kill()
	s.cmd.Wait()
	s.cmd = nil
}

// freeze stops the process with its connections open; the returned function
// lets it go on.
func (s *redisServer) freeze() (thaw func()) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	return func() { s.cmd.Process.Signal(syscall.SIGCONT) }
}

// startReplica starts a replica and waits until the primary sees it online.
func (s *redisServer) startReplica(args ...string) *redisServer {
	s.t.Helper()
	r := startRedis(s.t, append([]string{"--replicaof", "127.0.0.1 " + s.port}, args...)...)
	s.awaitOnline(1)
	return r
}

// awaitOnline waits until the primary sees n replicas online.
func (s *redisServer) awaitOnline(n int) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("%d replicas online", n), func() bool {
		text, err := s.must("INFO", "replication").ToString()
		if err != nil {
			s.t.Fatal(err)
		}
		return parseInfo(text).online() >= n
	})
}

// startCluster starts a cluster of n primaries.
func startCluster(t testing.TB, n int) []*redisServer {
	t.Helper()
	var nodes []*redisServer
	for range n {
		nodes = append(nodes, startRedis(t, "--cluster-enabled", "yes", "--cluster-port", freePort(t), "--cluster-node-timeout", "2000"))
	}
	for i, node := range nodes {
		args := []string{"CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i * slots / n), strconv.Itoa((i+1)*slots/n - 1)}
		node.must(args...)
		if i > 0 {
			node.must("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, nodes[0].args[3])
		}
	}
	for _, node := range nodes {
		eventually(t, "forming the cluster", func() bool {
			text, err := node.must("CLUSTER", "INFO").ToString()
			if err != nil {
				t.Fatal(err)
			}
			in := parseInfo(text)
			return in["cluster_state"] == "ok" && in["cluster_known_nodes"] == strconv.Itoa(n)
		})
	}
	return nodes
}

// nodeID is the name of a node in its cluster.
func (s *redisServer) nodeID() string {
	s.t.Helper()
	id, err := s.must("CLUSTER", "MYID").ToString()
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

// sharedRedis is the server of WEIR_REDIS, with a namespace of the test's own
// that is removed afterwards.
func sharedRedis(t testing.TB) Options {
	t.Helper()
	addr := os.Getenv("WEIR_REDIS")
	if addr == "" {
		t.Fatal("WEIR_REDIS is not set: use scripts/services run, or make test-integration")
	}
	namespace := fmt.Sprintf("test-%d-%d", os.Getpid(), time.Now().UnixNano())
	t.Cleanup(func() { removeAll(t, addr, namespace+":*") })
	return Options{Addresses: []string{addr}, Namespace: namespace, Check: CheckWarn}
}

func removeAll(t testing.TB, addr, pattern string) {
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true, ClientSetInfo: rueidis.DisableClientSetInfo})
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	for cursor := uint64(0); ; {
		page, err := c.Do(context.Background(), c.B().Scan().Cursor(cursor).Match(pattern).Count(1000).Build()).AsScanEntry()
		if err != nil {
			t.Error(err)
			return
		}
		if len(page.Elements) > 0 {
			if err := c.Do(context.Background(), c.B().Unlink().Key(page.Elements...).Build()).Error(); err != nil {
				t.Error(err)
			}
		}
		if cursor = page.Cursor; cursor == 0 {
			return
		}
	}
}

func TestConformanceRedis(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run("lost="+strconv.FormatBool(lost), func(t *testing.T) {
			statetest.Run(t, func(t *testing.T) statetest.Harness {
				opts := sharedRedis(t)
				if lost {
					opts.Buckets = 3
				}
				return harness(t, opts, lost)
			})
		})
	}
}

func TestConformanceCluster(t *testing.T) {
	nodes := startCluster(t, 3)
	n := 0
	statetest.Run(t, func(t *testing.T) statetest.Harness {
		n++
		opts := Options{Cluster: true, Namespace: "ns" + strconv.Itoa(n), Check: CheckWarn}
		for _, node := range nodes {
			opts.Addresses = append(opts.Addresses, node.addr())
		}
		return harness(t, opts, n%2 == 0)
	})
}

// mustBe checks the class of an error.
func mustBe(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: error %v, want %v", what, err, want)
	}
}
