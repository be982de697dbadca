package redisconn

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/rueidis"
)

var errAway = errors.New("away")

func connect(t *testing.T, m *miniredis.Miniredis) *Server {
	t.Helper()
	opts, err := Options{Addresses: []string{m.Addr()}, Namespace: "test", Check: CheckOff, Timeout: time.Second,
		Errors: Errors{Unavailable: errAway, Full: errors.New("full"), Corrupt: errors.New("corrupt"), Replicas: errors.New("replicas")}}.WithDefaults("test")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Connect(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// ask reads the key k.
func ask(p *Pinned) (string, error) {
	v := ""
	b := p.s.client.B()
	err := p.Do(context.Background(), p.s.Breaker("k"), Call{Script: &Script{Name: "ask"}},
		[]rueidis.Completed{b.Arbitrary("GET").Keys("k").Build()}, func(r []rueidis.RedisResult) (err error) {
			v, err = r[0].ToString()
			return err
		})
	return v, err
}

func mustBeClosed(t *testing.T, what string, p *Pinned) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		p.s.mu.Lock()
		_, open := p.s.mu.pinned[p]
		p.s.mu.Unlock()
		if !open {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%s: the connection is still there", what)
		}
	}
	if _, err := ask(p); !errors.Is(err, ErrUnpinned) || errors.Is(err, errAway) {
		t.Errorf("%s: %v, want ErrUnpinned", what, err)
	}
}

// What ends a pinned connection; its holder is told that nothing was sent.
func TestPinnedEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what string
		end  func(p *Pinned)
	}{
		{"released", func(p *Pinned) { p.Release() }},
		{"released twice", func(p *Pinned) { p.Release(); p.Release() }},
		{"idle", func(p *Pinned) {
			p.mu.Lock()
			p.mu.used = time.Now().Add(-PinnedIdle)
			p.mu.Unlock()
			p.expire()
		}},
		{"idle, and its timer is late", func(p *Pinned) {
			p.idle.Stop()
			p.mu.Lock()
			p.mu.used = time.Now().Add(-PinnedIdle - time.Second)
			p.mu.Unlock()
			if _, err := ask(p); !errors.Is(err, ErrUnpinned) {
				t.Errorf("used after the driver may have sent a PING: %v", err)
			}
		}},
		{"old", func(p *Pinned) {
			p.mu.Lock()
			p.mu.born = time.Now().Add(-PinnedAge - time.Second)
			p.mu.Unlock()
			_, _ = ask(p)
		}},
		{"an error of the holder", func(p *Pinned) {
			_ = p.Do(context.Background(), p.s.Breaker("k"), Call{}, []rueidis.Completed{p.s.client.B().Arbitrary("GET").Keys("k").Build()},
				func([]rueidis.RedisResult) error { return errors.New("not what I want") })
		}},
		{"the server is closed", func(p *Pinned) { p.s.Close() }},
	} {
		m := miniredis.RunT(t)
		if err := m.Set("k", "v"); err != nil {
			t.Fatal(err)
		}
		s := connect(t, m)
		p := s.Pin()
		if v, err := ask(p); err != nil || v != "v" {
			t.Fatalf("%s: %q, %v", c.what, v, err)
		}
		c.end(p)
		mustBeClosed(t, c.what, p)
	}
}

// A timer that fires although the connection was used just now lets it be.
func TestPinnedInUse(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	if err := m.Set("k", "v"); err != nil {
		t.Fatal(err)
	}
	p := connect(t, m).Pin()
	for range 3 {
		if _, err := ask(p); err != nil {
			t.Fatal(err)
		}
		p.expire()
	}
}

// The number of pinned connections is bounded, and each that ends makes room.
func TestPinnedBound(t *testing.T) {
	t.Parallel()
	s := connect(t, miniredis.RunT(t))
	var list []*Pinned
	for range MaxPinned {
		p := s.Pin()
		if p == nil {
			t.Fatalf("%d connections only", len(list))
		}
		list = append(list, p)
	}
	if s.Pin() != nil {
		t.Fatal("there is one more than MaxPinned")
	}
	list[7].Release()
	mustBeClosed(t, "released", list[7])
	if s.Pin() == nil {
		t.Error("there is no room again")
	}
}

// A broken connection is told from a server that is away, and does not open the
// breaker; a server that refuses another client keeps nobody from asking for one
// again and again.
func TestPinnedRefused(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	if err := m.Set("k", "v"); err != nil {
		t.Fatal(err)
	}
	s := connect(t, m)
	var full sync.Mutex
	hellos, refuse := 0, false
	m.Server().SetPreHook(func(p *server.Peer, cmd string, _ ...string) bool {
		full.Lock()
		defer full.Unlock()
		if strings.EqualFold(cmd, "HELLO") && refuse {
			hellos++
			p.WriteError("ERR max number of clients reached")
			return true
		}
		return false
	})
	for range 2 * BreakerFailures {
		p := s.Pin()
		if _, err := ask(p); err != nil {
			t.Fatal(err)
		}
		p.mu.Lock()
		s.conns.dropAll()
		p.mu.Unlock()
		if _, err := ask(p); !errors.Is(err, ErrLost) || !errors.Is(err, errAway) {
			t.Fatalf("a broken connection: %v", err)
		}
	}
	if s.Breaker("k").IsOpen() {
		t.Error("broken connections open the breaker")
	}
	full.Lock()
	refuse = true
	full.Unlock()
	p := s.Pin()
	if _, err := ask(p); !errors.Is(err, ErrUnpinned) {
		t.Fatalf("a server that is full: %v", err)
	}
	if s.Pin() != nil {
		t.Error("a server that is full is asked for another connection")
	}
	if hellos == 0 {
		t.Error("it was not asked")
	}
}

// A context that can be cancelled starts no goroutine for the connection, and its
// deadline counts.
func TestPinnedContext(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	s := connect(t, m)
	p := s.Pin()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if (undone{ctx}).Done() != nil {
		t.Error("the driver could wait for the context")
	}
	if _, ok := (undone{ctx}).Deadline(); !ok {
		t.Error("the deadline is lost")
	}
	cancel()
	err := p.Do(ctx, s.Breaker("k"), Call{}, nil, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
	if s.Breaker("k").IsOpen() {
		t.Error("the caller who gave up opens the breaker")
	}
}

// In a cluster a connection may have been used for a call that waits for
// replicas before it is pinned. A server that does not answer is given up in
// time nonetheless.
func TestPinnedBehindWait(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t) // which the driver takes for a cluster
	s := connect(t, m)
	s.opts.WaitReplicas, s.opts.WaitTimeout = 1, 10*time.Millisecond
	if !s.IsCluster() {
		t.Fatal("this is no cluster")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := s.Run(ctx, s.Breaker("k"), true, Call{Script: NewScript("ok", "return {'OK'}"), Keys: []string{"k"}})
	if !errors.Is(err, s.opts.Errors.Replicas) {
		t.Fatalf("a call that waits: %v", err)
	}
	dialed := func() int {
		s.conns.mu.Lock()
		defer s.conns.mu.Unlock()
		return len(s.conns.mu.open)
	}
	before := dialed()
	hang := make(chan struct{})
	defer close(hang)
	m.Server().SetPreHook(func(_ *server.Peer, cmd string, _ ...string) bool {
		if strings.EqualFold(cmd, "GET") {
			<-hang
		}
		return false
	})
	p := s.Pin()
	done := make(chan error, 1)
	go func() {
		_, err := ask(p)
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, errAway) || errors.Is(err, ErrLost) {
			t.Errorf("a server that does not answer: %v", err)
		}
	case <-time.After(5 * s.opts.Timeout):
		t.Error("a server that does not answer is waited for without an end")
		s.conns.dropAll()
		<-done
	}
	if dialed() > before {
		t.Error("another connection was pinned than the one that has waited: nothing is tested")
	}
}
