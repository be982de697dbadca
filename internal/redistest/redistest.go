// Package redistest starts real servers for tests: one alone, with replicas,
// with a sentinel, or a cluster. The tests may kill, freeze and demote them.
// It needs the command redis-server.
package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirstreams/weir/internal/redisconn"
)

// WaitLimit bounds every wait for a server.
const WaitLimit = 30 * time.Second

// Eventually waits until ok says yes, and fails the test after WaitLimit.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(WaitLimit); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, WaitLimit)
		}
	}
}

// FreePort is a port that nobody listened on a moment ago.
func FreePort(t testing.TB) string {
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

// Server is a redis-server that the test may kill.
type Server struct {
	t    testing.TB
	Dir  string
	Port string
	Args []string
	Cmd  *exec.Cmd
}

// Start starts a server on a free port. Arguments are those of the
// command; without them nothing is persisted.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := &Server{t: t, Dir: t.TempDir(), Port: FreePort(t), Args: args}
	t.Cleanup(func() { s.Kill() })
	s.Start()
	return s
}

// Addr is host:port.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", s.Port) }

// Launch starts the process and does not wait for it.
func (s *Server) Launch() {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	args := append([]string{"--port", s.Port, "--bind", "127.0.0.1", "--dir", s.Dir, "--save", ""}, s.Args...)
	s.Cmd = exec.Command("redis-server", args...)
	s.Cmd.Stdout, s.Cmd.Stderr = log, log
	if err := s.Cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// Start starts the process again and waits until it answers.
func (s *Server) Start() {
	s.t.Helper()
	s.Launch()
	Eventually(s.t, "start of redis-server", func() bool {
		c, err := s.Dial()
		if err != nil {
			return false
		}
		defer c.Close()
		return c.Do(context.Background(), c.B().Ping().Build()).Error() == nil
	})
}

// Dial connects.
func (s *Server) Dial() (rueidis.Client, error) {
	return rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr()}, ForceSingleClient: true,
		DisableCache: true, DisableRetry: true, ClientSetInfo: rueidis.DisableClientSetInfo, ConnWriteTimeout: WaitLimit})
}

// Do sends a command on a connection of its own.
func (s *Server) Do(args ...string) rueidis.RedisResult {
	s.t.Helper()
	c, err := s.Dial()
	if err != nil {
		s.t.Fatalf("connect to redis-server: %v", err)
	}
	defer c.Close()
	return c.Do(context.Background(), c.B().Arbitrary(args...).Build())
}

// Must sends a command and fails the test when the answer is an error.
func (s *Server) Must(args ...string) rueidis.RedisResult {
	s.t.Helper()
	for attempt := 1; ; attempt++ {
		r, err := s.try(args...)
		if err == nil || rueidis.IsRedisNil(err) {
			return r
		}
		if _, answered := rueidis.IsRedisErr(err); answered || attempt == attempts {
			s.t.Fatalf("%v: %v", args, err)
		}
	}
}

// attempts is how often Must sends a command whose connection breaks. A
// sentinel that demotes a server closes all connections to it, whosever they
// are, and so does a replica that is promoted.
const attempts = 3

func (s *Server) try(args ...string) (rueidis.RedisResult, error) {
	c, err := s.Dial()
	if err != nil {
		return rueidis.RedisResult{}, err
	}
	defer c.Close()
	r := c.Do(context.Background(), c.B().Arbitrary(args...).Build())
	return r, r.Error()
}

// Text is the reply of a command that answers with a text.
func (s *Server) Text(args ...string) string {
	s.t.Helper()
	text, err := s.Must(args...).ToString()
	if err != nil {
		s.t.Fatal(err)
	}
	return text
}

// Info is a section of INFO by field.
func (s *Server) Info(section string) redisconn.Info {
	s.t.Helper()
	return redisconn.ParseInfo(s.Text("INFO", section))
}

// Keys are all keys of the server.
func (s *Server) Keys() []string {
	list, err := s.Must("KEYS", "*").AsStrSlice()
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// Kill ends the process as a crash would.
func (s *Server) Kill() {
	if s.Cmd == nil {
		return
	}
	s.Cmd.Process.Signal(syscall.SIGCONT)
	s.Cmd.Process.Kill()
	s.Cmd.Wait()
	s.Cmd = nil
}

// Freeze stops the process with its connections open; the returned function
// lets it go on.
func (s *Server) Freeze() (thaw func()) {
	s.t.Helper()
	if err := s.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	return func() { s.Cmd.Process.Signal(syscall.SIGCONT) }
}

// StartReplica starts a replica and waits until the primary sees it online.
func (s *Server) StartReplica(args ...string) *Server {
	s.t.Helper()
	r := Start(s.t, append([]string{"--replicaof", "127.0.0.1 " + s.Port}, args...)...)
	s.AwaitOnline(1)
	return r
}

// AwaitOnline waits until the primary sees n replicas online.
func (s *Server) AwaitOnline(n int) {
	s.t.Helper()
	Eventually(s.t, fmt.Sprintf("%d replicas online", n), func() bool {
		text, err := s.Must("INFO", "replication").ToString()
		if err != nil {
			s.t.Fatal(err)
		}
		return redisconn.ParseInfo(text).Online() >= n
	})
}

// CPU is the processor time that the server has used, in microseconds.
func (s *Server) CPU() float64 {
	s.t.Helper()
	in := s.Info("cpu")
	sum := 0.0
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		v, err := strconv.ParseFloat(in[name], 64)
		if err != nil {
			s.t.Fatal(err)
		}
		sum += v
	}
	return sum * 1e6
}

// Memory is what the data of the server take, in bytes.
func (s *Server) Memory() int64 {
	s.t.Helper()
	n, err := strconv.ParseInt(s.Info("memory")["used_memory"], 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// StartCluster starts a cluster of n primaries.
func StartCluster(t testing.TB, n int) []*Server {
	t.Helper()
	var nodes []*Server
	for range n {
		nodes = append(nodes, Start(t, "--cluster-enabled", "yes", "--cluster-port", FreePort(t), "--cluster-node-timeout", "2000"))
	}
	for i, node := range nodes {
		args := []string{"CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i * redisconn.Slots / n), strconv.Itoa((i+1)*redisconn.Slots/n - 1)}
		node.Must(args...)
		if i > 0 {
			node.Must("CLUSTER", "MEET", "127.0.0.1", nodes[0].Port, nodes[0].Args[3])
		}
	}
	for _, node := range nodes {
		Eventually(t, "forming the cluster", func() bool {
			text, err := node.Must("CLUSTER", "INFO").ToString()
			if err != nil {
				t.Fatal(err)
			}
			in := redisconn.ParseInfo(text)
			return in["cluster_state"] == "ok" && in["cluster_known_nodes"] == strconv.Itoa(n)
		})
	}
	return nodes
}

// NodeID is the name of a node in its cluster.
func (s *Server) NodeID() string {
	s.t.Helper()
	id, err := s.Must("CLUSTER", "MYID").ToString()
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

// StartSentinel starts a sentinel that watches a primary under the name "main"
// and acts alone.
func StartSentinel(t *testing.T, primary *Server) *Server {
	t.Helper()
	s := &Server{t: t, Dir: t.TempDir(), Port: FreePort(t)}
	conf := filepath.Join(s.Dir, "sentinel.conf")
	config := fmt.Sprintf("port %s\nbind 127.0.0.1\ndir %s\nsentinel monitor main 127.0.0.1 %s 1\nsentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n", s.Port, s.Dir, primary.Port)
	if err := os.WriteFile(conf, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Cmd = exec.Command("redis-server", conf, "--sentinel")
	if err := s.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	Eventually(t, "start of the sentinel", func() bool {
		c, err := s.Dial()
		if err != nil {
			return false
		}
		defer c.Close()
		return c.Do(context.Background(), c.B().Ping().Build()).Error() == nil
	})
	return s
}

// Proxy passes bytes on, and can lose the server's answers.
type Proxy struct {
	l  net.Listener
	wg sync.WaitGroup
	mu struct {
		sync.Mutex
		to    string
		conns []net.Conn
		cut   bool // drop what the server says, and the connection with it
	}
}

// StartProxy starts a proxy to an address.
func StartProxy(t testing.TB, to string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{l: l}
	p.mu.to = to
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.Drop()
		p.wg.Wait()
	})
	return p
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// Forward makes new connections lead to another server.
func (p *Proxy) Forward(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.to = to
}

// Drop closes all connections.
func (p *Proxy) Drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.mu.conns {
		c.Close()
	}
	p.mu.conns = nil
}

// Cut makes the proxy drop what the server says, and the connection with it.
func (p *Proxy) Cut(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.cut = on
}

func (p *Proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		to := p.mu.to
		p.mu.Unlock()
		s, err := net.Dial("tcp", to)
		if err != nil {
			c.Close()
			continue
		}
		p.mu.Lock()
		p.mu.conns = append(p.mu.conns, c, s)
		p.mu.Unlock()
		p.wg.Go(func() { p.pass(s, c, false) })
		p.wg.Go(func() { p.pass(c, s, true) })
	}
}

func (p *Proxy) pass(to, from net.Conn, answers bool) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		cut := p.mu.cut && answers
		p.mu.Unlock()
		if err != nil || cut {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// Namespace returns a namespace of the test's own on a server that others use
// as well. Its keys are removed when the test ends.
func Namespace(t testing.TB, addr string) string {
	t.Helper()
	namespace := fmt.Sprintf("test-%d-%d", os.Getpid(), time.Now().UnixNano())
	t.Cleanup(func() { removeAll(t, addr, namespace+":*") })
	return namespace
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
