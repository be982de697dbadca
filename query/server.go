package query

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/weirstreams/weir"
)

// DefaultAddr is where Listen listens unless it is told otherwise: on a free port
// that only this machine reaches.
const DefaultAddr = "127.0.0.1:0"

// Bounds of a server. A lookup takes microseconds, so these are for clients that
// are slow, gone or hostile.
const (
	readTimeout    = 10 * time.Second // of a whole request
	writeTimeout   = 30 * time.Second // of an answer, from the end of the request's header on
	idleTimeout    = 2 * time.Minute  // between two requests of a connection
	maxHeaderBytes = 64 << 10         // of a request, with the key in its path
	stopTimeout    = 2 * time.Second  // for the requests that a stop finds under way
)

// Server is an HTTP server for one application. Its methods are safe for
// concurrent use.
type Server struct {
	listener net.Listener
	http     *http.Server
}

// Listen opens addr, host:port, for a server that answers as [NewHandler] says.
// An empty addr means DefaultAddr, and port 0 a free one; a host other than a
// loopback one lets everybody read the state who reaches it. Connections are
// accepted from now on and answered by [Server.Run]; call that or
// [Server.Close].
func Listen(app *weir.App, addr string, o Options) (*Server, error) {
	l, err := net.Listen("tcp", cmp.Or(addr, DefaultAddr))
	if err != nil {
		return nil, fmt.Errorf("listen for queries: %w: choose another host:port, or port 0 for a free one", err)
	}
	return newServer(l, newHandler(app, o)), nil
}

func newServer(l net.Listener, h *handler) *Server {
	return &Server{listener: l, http: &http.Server{
		Handler:        h,
		ReadTimeout:    readTimeout,
		WriteTimeout:   writeTimeout,
		IdleTimeout:    idleTimeout,
		MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:       slog.NewLogLogger(h.log.Handler(), slog.LevelWarn),
	}}
}

// Addr returns the address that the server listens on, host:port with the port
// that was given or found.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// URL returns the address for clients on this machine, as
// "http://127.0.0.1:8080".
func (s *Server) URL() string {
	if a, ok := s.listener.Addr().(*net.TCPAddr); ok && a.IP.IsUnspecified() {
		return fmt.Sprintf("http://127.0.0.1:%d", a.Port)
	}
	return "http://" + s.Addr()
}

// Run answers requests until ctx ends or Close is called, lets those that are
// under way finish for up to two seconds, and returns nil. Any other end is an
// error. A server runs once.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		s.stop()
	}()
	err := s.http.Serve(s.listener)
	cancel()
	<-stopped
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve queries: %w", err)
}

func (s *Server) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		s.http.Close() // cuts what is left; it was told to end long ago
	}
}

// Close ends Run, as the end of its context does, and closes the port; it is
// idempotent, and serves to give up a server that never ran. It waits for the
// requests under way like Run.
func (s *Server) Close() error {
	s.stop()
	// A server that never ran does not know its listener.
	if err := s.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close the query server: %w", err)
	}
	return nil
}
