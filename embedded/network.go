package embedded

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// maxConnections bounds the TCP connections that are held open at a time,
	// over all brokers. Each costs three goroutines.
	maxConnections = 4096

	// acceptBackoff is the pause after a failed accept, as when the process is
	// out of file descriptors.
	acceptBackoff = 50 * time.Millisecond

	// inProcessHost names a broker that has no port. The top-level domain is
	// reserved for names that never resolve (RFC 2606), so a client that was
	// built without ClientOptions fails at once, with this name in its error.
	inProcessHost = "weir-embedded.invalid"
)

// network is what the brokers listen on: one listener each, reached in the
// process through synchronous pipes, and over TCP when asked for.
//
// kfake brings a VirtualNetwork of its own. This one also takes TCP
// connections, puts the frame check in front of both, lets the broker talk to
// itself while clients are shut out, and can be cut.
type network struct {
	log   *slog.Logger
	gate  atomic.Pointer[gate]
	topic func(name string) // told each topic name that a client asks to create
	nodes []*listener
	wg    sync.WaitGroup // TCP accept loops

	mu struct {
		sync.Mutex
		conns map[*conn]struct{}
		tcp   int
	}
}

// newNetwork makes n listeners. With a listen address they hold TCP ports:
// n random ones for port 0, else n consecutive ones; a config makes them speak TLS.
func newNetwork(n int, listen string, config *tls.Config, log *slog.Logger, topic func(string)) (*network, error) {
	nw := &network{log: log, topic: topic}
	nw.mu.conns = make(map[*conn]struct{})
	for i := range n {
		l := &listener{
			nw:     nw,
			conns:  make(chan net.Conn),
			closed: make(chan struct{}),
			addr:   address(net.JoinHostPort(inProcessHost, strconv.Itoa(i+1))),
		}
		if listen != "" {
			tcp, err := listenTCP(listen, i)
			if err != nil {
				nw.close()
				return nil, err
			}
			l.addr = address(tcp.Addr().String())
			if l.tcp = tcp; config != nil {
				l.tcp = tls.NewListener(tcp, config)
			}
			nw.wg.Go(l.acceptTCP)
		}
		nw.nodes = append(nw.nodes, l)
	}
	return nw, nil
}

func listenTCP(listen string, i int) (net.Listener, error) {
	host, portText, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, fmt.Errorf("listen address %q: want host:port: %w", listen, err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil || port < 0 {
		return nil, fmt.Errorf("listen address %q: port must be a number from 0 to 65535", listen)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return nil, fmt.Errorf("listen address %q: name the host that clients connect to, such as 127.0.0.1: the broker tells clients its own address, and every interface is none (%w)", listen, ErrUnsupported)
	}
	if port != 0 {
		port += i
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("listen address %q: %w", listen, err)
	}
	return l, nil
}

// listenFunc hands the listeners to the cluster in order, one per call.
func (nw *network) listenFunc() func(string, string) (net.Listener, error) {
	next := 0
	return func(string, string) (net.Listener, error) {
		if next == len(nw.nodes) {
			return nil, errors.New("no listener left")
		}
		l := nw.nodes[next]
		next++
		return l, nil
	}
}

func (nw *network) addresses() []string {
	all := make([]string, len(nw.nodes))
	for i, l := range nw.nodes {
		all[i] = string(l.addr)
	}
	return all
}

// dial connects a client of this process to the broker at the address.
func (nw *network) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	for _, l := range nw.nodes {
		if string(l.addr) == addr {
			return l.dial(ctx, false)
		}
	}
	return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: address(addr), Err: errors.New("no broker of this embedded cluster has this address")}
}

// setDown cuts every connection of the node (all nodes if node is negative)
// and refuses new ones until it is called with false. It reports whether there
// is such a node.
func (nw *network) setDown(node int32, down bool) bool {
	var cut []*conn
	found := false
	nw.mu.Lock()
	for i, l := range nw.nodes {
		if node >= 0 && node != int32(i) {
			continue
		}
		found = true
		l.down = down
		if !down {
			continue
		}
		for c := range nw.mu.conns {
			if c.l == l && !c.internal {
				cut = append(cut, c)
			}
		}
	}
	nw.mu.Unlock()
	for _, c := range cut {
		c.Close()
	}
	return found
}

// close ends all listeners and waits for the accept loops.
func (nw *network) close() {
	for _, l := range nw.nodes {
		l.Close()
	}
	nw.wg.Wait()
}

// listener is one broker's end of the network. It implements net.Listener for
// the cluster.
type listener struct {
	nw     *network
	tcp    net.Listener // nil without TCP
	addr   address
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once

	down bool // guarded by nw.mu
}

var _ net.Listener = (*listener)(nil)

// Accept returns the next connection, from within the process or from TCP.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close stops accepting. Open connections stay.
func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		if l.tcp != nil {
			l.tcp.Close()
		}
	})
	return nil
}

// Addr is the address that clients are told.
func (l *listener) Addr() net.Addr { return l.addr }

// acceptTCP feeds TCP connections to Accept until the listener is closed. The
// cluster gives a listener up for good at its first error, so passing ones are
// waited out here.
func (l *listener) acceptTCP() {
	for {
		c, err := l.tcp.Accept()
		if err != nil {
			select {
			case <-l.closed:
				return
			case <-time.After(acceptBackoff):
				l.nw.log.Warn("accepting a connection failed", keyAddress, l.addr, keyError, err)
				continue
			}
		}
		g := l.adopt(c, true, false)
		if g == nil {
			c.Close()
			continue
		}
		select {
		case l.conns <- g:
		case <-l.closed:
			g.Close()
			return
		}
	}
}

// dial opens a connection within the process. An internal one is the broker's
// own: it works while clients are refused.
func (l *listener) dial(ctx context.Context, internal bool) (net.Conn, error) {
	client, server := net.Pipe()
	g := l.adopt(server, false, internal)
	if g == nil {
		client.Close()
		server.Close()
		return nil, l.refused()
	}
	select {
	case l.conns <- g:
		return client, nil
	case <-l.closed:
		g.Close()
		client.Close()
		return nil, l.refused()
	case <-ctx.Done():
		g.Close()
		client.Close()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: l.addr, Err: context.Cause(ctx)}
	}
}

// refused is what dialling a port without a listener gives, in the same shape,
// because clients tell dial errors from others by it.
func (l *listener) refused() error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: l.addr, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

// adopt wraps and registers a connection, or returns nil when the broker is
// down or full.
func (l *listener) adopt(c net.Conn, tcp, internal bool) *conn {
	nw := l.nw
	nw.mu.Lock()
	defer nw.mu.Unlock()
	if l.down && !internal || tcp && nw.mu.tcp >= maxConnections {
		return nil
	}
	g := &conn{Conn: c, l: l, tcp: tcp, internal: internal, done: make(chan struct{})}
	nw.mu.conns[g] = struct{}{}
	if tcp {
		nw.mu.tcp++
	}
	return g
}

func (nw *network) forget(c *conn) {
	nw.mu.Lock()
	defer nw.mu.Unlock()
	delete(nw.mu.conns, c)
	if c.tcp {
		nw.mu.tcp--
	}
}

// address is a net.Addr.
type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }
