package query

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirstreams/weir"
)

// slow holds lookups back until it is released or its request is cut.
type slow struct {
	fixed
	entered chan struct{}
	release chan struct{}
}

func (s *slow) Lookup(ctx context.Context, store, key string) (weir.Lookup, bool, error) {
	close(s.entered)
	select {
	case <-s.release:
	case <-ctx.Done():
	}
	return weir.Lookup{Key: key, Value: "late"}, true, ctx.Err()
}

func client(t *testing.T) *http.Client {
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

func start(t *testing.T, app source) (s *Server, stop context.CancelFunc, done chan error) {
	t.Helper()
	l, err := net.Listen("tcp", DefaultAddr)
	if err != nil {
		t.Fatal(err)
	}
	s = newServer(l, newHandler(app, Options{}))
	ctx, cancel := context.WithCancel(t.Context())
	done = make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(cancel)
	return s, cancel, done
}

// A request that is under way when the server stops gets its answer.
func TestGracefulStop(t *testing.T) {
	t.Parallel()
	app := &slow{entered: make(chan struct{}), release: make(chan struct{})}
	s, stop, done := start(t, app)
	answer := make(chan string, 1)
	go func() {
		r, err := client(t).Get(s.URL() + "/stores/s/1")
		if err != nil {
			answer <- err.Error()
			return
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		answer <- string(b)
	}()
	<-app.entered
	stop()
	// The port closes first, while the request is held.
	deadline := time.Now().Add(10 * time.Second)
	for {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			break
		}
		c.Close()
		if time.Now().After(deadline) {
			t.Fatal("the port is still open")
		}
	}
	close(app.release)
	if got := <-answer; !strings.Contains(got, `"late"`) {
		t.Errorf("the request under way got %q", got)
	}
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// A request that does not end does not keep the server from stopping.
func TestStopCutsWhatHangs(t *testing.T) {
	t.Parallel()
	app := &slow{entered: make(chan struct{}), release: make(chan struct{})}
	s, _, done := start(t, app)
	failed := make(chan error, 1)
	go func() {
		r, err := client(t).Get(s.URL() + "/stores/s/1")
		if err == nil {
			r.Body.Close()
		}
		failed <- err
	}()
	<-app.entered
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := <-failed; err == nil {
		t.Error("the request that hangs got an answer")
	}
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestCloseWithoutRun(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", DefaultAddr)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(l, newHandler(&fixed{}, Options{}))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = net.Listen("tcp", s.Addr()); err != nil {
		t.Fatalf("the port is still taken: %v", err)
	}
	l.Close()
	if err := s.Run(t.Context()); err != nil {
		t.Errorf("Run after Close: %v", err)
	}
}

func TestRunFailsWithItsListener(t *testing.T) {
	t.Parallel()
	s, _, done := start(t, &fixed{})
	s.listener.Close()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "serve queries") {
		t.Errorf("Run: %v", err)
	}
}

func TestListen(t *testing.T) {
	t.Parallel()
	s, err := Listen(nil, "", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !strings.HasPrefix(s.URL(), "http://127.0.0.1:") || strings.HasSuffix(s.URL(), ":0") || s.URL() != "http://"+s.Addr() {
		t.Errorf("it listens on %s, %s", s.Addr(), s.URL())
	}
	if _, err := Listen(nil, s.Addr(), Options{}); err == nil || !strings.Contains(err.Error(), "choose another host:port") {
		t.Errorf("a port that is taken: %v", err)
	}
	all, err := Listen(nil, ":0", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	_, port, err := net.SplitHostPort(all.Addr())
	if err != nil || all.URL() != "http://127.0.0.1:"+port {
		t.Errorf("it listens on %s, %s", all.Addr(), all.URL())
	}
}

// The check of the name works on the connection that the server really has.
func TestServerRefusesForeignHost(t *testing.T) {
	t.Parallel()
	s, _, _ := start(t, &fixed{})
	r, err := http.NewRequest("GET", s.URL()+"/stores", nil)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{"evil.example": 403, s.Addr(): 200} {
		r.Host = host
		resp, err := client(t).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("Host %s: %d, want %d", host, resp.StatusCode, want)
		}
	}
}
