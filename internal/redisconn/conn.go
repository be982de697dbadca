package redisconn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
	"github.com/sony/gobreaker/v2"
)

// The circuit breaker: after this many calls in a row that failed because the
// server was not there, calls fail at once for some time; then one of them is
// let through.
const (
	BreakerFailures = 3
	BreakerOpen     = time.Second
)

// Server is the connection to Redis, whatever it consists of.
type Server struct {
	opts   Options
	client rueidis.Client
	conns  conns

	mu struct {
		sync.Mutex
		breakers map[string]*Breaker
		pinned   map[*Pinned]struct{}
		noPins   time.Time // until then the server is not asked for one
		closed   bool
	}
}

// Connect connects to the servers that opts name. When they are not there the
// error is of the class Errors.Unavailable.
func Connect(ctx context.Context, opts Options) (*Server, error) {
	s := &Server{opts: opts}
	s.mu.breakers = map[string]*Breaker{}
	copts := opts.client()
	copts.DialCtxFn = s.conns.dial
	type result struct {
		client rueidis.Client
		err    error
	}
	// The driver connects without a context.
	done := make(chan result, 1)
	go func() {
		c, err := rueidis.NewClient(copts)
		done <- result{c, err}
	}()
	var r result
	select {
	case r = <-done:
	case <-ctx.Done():
		s.conns.closeAll() // ends what NewClient waits for
		if r = <-done; r.err == nil {
			r.client.Close()
		}
		return nil, ctx.Err()
	}
	if r.err != nil {
		if r.client != nil {
			r.client.Close()
		}
		s.conns.closeAll()
		return nil, fmt.Errorf("connect to %s: %w", opts, s.Classify(ctx, r.err))
	}
	s.client = r.client
	s.opts.Password, s.opts.TLS = "", nil // no longer needed here
	if o := s.opts.Sentinel; o != nil {
		s.opts.Sentinel = &Sentinel{Master: o.Master}
	}
	return s, nil
}

// Close closes all connections. Calls that are under way fail.
func (s *Server) Close() {
	s.mu.Lock()
	s.mu.closed = true
	pinned := slices.Collect(maps.Keys(s.mu.pinned))
	s.mu.Unlock()
	s.client.Close()
	s.conns.closeAll()
	for _, p := range pinned {
		p.close()
	}
}

func (s *Server) IsCluster() bool { return s.client.Mode() == rueidis.ClientModeCluster }

// Options are those of Connect, without the secrets.
func (s *Server) Options() *Options { return &s.opts }

// Client is the driver's client, for what is no call of a script.
func (s *Server) Client() rueidis.Client { return s.client }

// conns are the open connections, so that all can be closed at once: after a
// demotion the old ones lead to a replica, and a new one may lead elsewhere.
type conns struct {
	mu struct {
		sync.Mutex
		open   map[*conn]struct{}
		closed bool
	}
}

type conn struct {
	net.Conn
	owner *conns
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.owner.mu.Lock()
	delete(c.owner.mu.open, c)
	c.owner.mu.Unlock()
	return c.Conn.Close()
}

func (cs *conns) dial(ctx context.Context, addr string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network, config = "unix", nil
	}
	var nc net.Conn
	var err error
	if config != nil {
		nc, err = (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, network, addr)
	} else {
		nc, err = dialer.DialContext(ctx, network, addr)
	}
	if err != nil {
		return nil, err
	}
	c := &conn{nc, cs}
	cs.mu.Lock()
	if cs.mu.open == nil {
		cs.mu.open = map[*conn]struct{}{}
	}
	cs.mu.open[c] = struct{}{}
	closed := cs.mu.closed
	cs.mu.Unlock()
	if closed {
		c.Close()
		return nil, net.ErrClosed
	}
	return c, nil
}

// dropAll closes the connections that are open; new ones can be made.
func (cs *conns) dropAll() {
	cs.mu.Lock()
	var list []*conn
	for c := range cs.mu.open {
		list = append(list, c)
	}
	cs.mu.Unlock()
	for _, c := range list {
		c.Close()
	}
}

// closeAll closes the connections and lets nobody make another.
func (cs *conns) closeAll() {
	cs.mu.Lock()
	cs.mu.closed = true
	cs.mu.Unlock()
	cs.dropAll()
}

// Breaker is a circuit breaker with the error that it opened for.
type Breaker struct {
	s     *Server
	inner *gobreaker.TwoStepCircuitBreaker[struct{}]
	last  atomic.Pointer[error]
}

// IsOpen says that calls fail at once.
func (br *Breaker) IsOpen() bool { return br.inner.State() == gobreaker.StateOpen }

// Breaker returns the breaker for calls on a key. One server has one breaker.
// In a cluster each key has its own, because its node may be down alone; so
// ask for a key that stands for all with its hash tag.
func (s *Server) Breaker(key string) *Breaker {
	if !s.IsCluster() {
		key = ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	br := s.mu.breakers[key]
	if br == nil {
		br = &Breaker{s: s}
		br.inner = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
			Name:        key,
			Timeout:     BreakerOpen,
			ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= BreakerFailures },
			IsSuccessful: func(err error) bool {
				return !errors.Is(err, s.opts.Errors.Unavailable) || errors.Is(err, s.opts.Errors.Replicas)
			},
			IsExcluded: func(err error) bool {
				return IsContext(err) && !errors.Is(err, s.opts.Errors.Unavailable) || errors.Is(err, ErrUnpinned) || errors.Is(err, ErrLost)
			},
			OnStateChange: func(name string, from, to gobreaker.State) {
				if f := s.opts.OnBreaker; f != nil && (to == gobreaker.StateOpen || to == gobreaker.StateClosed) {
					f(name, to == gobreaker.StateOpen)
				}
				switch {
				case from == gobreaker.StateClosed:
					last := ""
					if e := br.last.Load(); e != nil {
						last = (*e).Error()
					}
					s.opts.Logger.Warn("redis does not serve; calls fail at once until it is back", "key", name, "error", last)
				case to == gobreaker.StateClosed:
					s.opts.Logger.Info("redis serves again", "key", name)
				}
			},
		})
		s.mu.breakers[key] = br
	}
	return br
}

// IsContext says that the caller gave up. (The timeouts of package net say so
// of themselves as well.)
func IsContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// guard calls f unless the breaker is open, and tells the breaker how it went.
func (br *Breaker) guard(f func() error) error {
	s := br.s
	done, err := br.inner.Allow()
	if err != nil {
		var last error
		if e := br.last.Load(); e != nil {
			last = *e
		}
		return s.refused(err, last)
	}
	err = f()
	if errors.Is(err, s.opts.Errors.Unavailable) {
		br.last.Store(&err)
	}
	done(err)
	return err
}

// Call is one call of a script.
type Call struct {
	Script *Script
	Keys   []string
	Args   []string
}

// Reply is what a script returned.
type Reply struct {
	Status string
	Values []rueidis.RedisMessage // behind the status
}

// Str returns value i as a string; a missing one is "".
func (r *Reply) Str(i int) string {
	if i >= len(r.Values) {
		return ""
	}
	s, _ := r.Values[i].ToString()
	return s
}

// List returns value i as strings; missing elements are "".
func (r *Reply) List(i int) []string {
	if i >= len(r.Values) {
		return nil
	}
	s, _ := r.Values[i].AsStrSlice()
	return s
}

// Optional returns value i as strings; missing elements are nil.
func (r *Reply) Optional(i int) ([]*string, error) {
	if i >= len(r.Values) {
		return nil, errors.New("redis: the reply is too short")
	}
	list, err := r.Values[i].ToArray()
	if err != nil {
		return nil, err
	}
	out := make([]*string, len(list))
	for j := range list {
		if list[j].IsNil() {
			continue
		}
		s, err := list[j].ToString()
		if err != nil {
			return nil, err
		}
		out[j] = &s
	}
	return out, nil
}

// Run calls scripts, in one round trip, in order, all for keys of one hash tag, whose breaker is br. With
// wait the replicas have to confirm what was written. An error is that of the
// first call that failed; the others may have been carried out.
func (s *Server) Run(ctx context.Context, br *Breaker, wait bool, calls ...Call) ([]Reply, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	wait = wait && s.opts.WaitReplicas > 0
	var replies []Reply
	err := br.guard(func() error {
		if h := s.opts.Hooks.Before; h != nil {
			if err := h(calls); err != nil {
				return err
			}
		}
		results, err := s.send(ctx, wait, false, calls)
		if err == nil && anyNoScript(results) {
			// The script is unknown to this server: it is new, or was
			// restarted, or somebody flushed the scripts. All calls are made
			// again, with the source; each is safe to repeat.
			results, err = s.send(ctx, wait, true, calls)
		}
		if err != nil {
			return err
		}
		if h := s.opts.Hooks.After; h != nil {
			if err := h(calls); err != nil {
				return err
			}
		}
		replies, err = s.decode(ctx, results[:len(calls)])
		if err == nil && wait {
			err = s.Confirmed(ctx, results[len(calls)])
		}
		return err
	})
	return replies, err
}

func anyNoScript(results []rueidis.RedisResult) bool {
	for i := range results {
		if e, ok := rueidis.IsRedisErr(results[i].Error()); ok && e.IsNoScript() {
			return true
		}
	}
	return false
}

func (s *Server) send(ctx context.Context, wait, source bool, calls []Call) ([]rueidis.RedisResult, error) {
	cmds := make([]rueidis.Completed, 0, len(calls)+1)
	for _, c := range calls {
		verb, name := "EVALSHA", c.Script.sha
		if source {
			verb, name = "EVAL", c.Script.Source
		}
		cmds = append(cmds, s.client.B().Arbitrary(verb, name, strconv.Itoa(len(c.Keys))).Keys(c.Keys...).Args(c.Args...).Build())
	}
	if !wait {
		if len(cmds) == 1 {
			return []rueidis.RedisResult{s.client.Do(ctx, cmds[0])}, nil
		}
		return s.client.DoMulti(ctx, cmds...), nil
	}
	confirm, _ := s.WaitCommand() // Run asks for it only when it is wanted
	cmds = append(cmds, confirm)
	if !s.IsCluster() {
		return s.client.DoMulti(ctx, cmds...), nil
	}
	// WAIT counts for the writes of its own connection. A client of a cluster
	// that follows a redirection would send the script to one node and WAIT to
	// another; a dedicated connection is not redirected, but fails.
	var results []rueidis.RedisResult
	err := s.client.Dedicated(func(d rueidis.DedicatedClient) error {
		results = d.DoMulti(undone{ctx}, cmds...) // others will have the connection, pinned perhaps
		return nil
	})
	return results, s.Classify(ctx, err)
}

func (s *Server) decode(ctx context.Context, results []rueidis.RedisResult) ([]Reply, error) {
	replies := make([]Reply, len(results))
	for i := range results {
		if err := s.Failed(ctx, results[i]); err != nil {
			return nil, err
		}
		values, err := results[i].ToArray()
		if err != nil {
			return nil, fmt.Errorf("redis: unexpected reply of a script: %w", err)
		}
		if len(values) == 0 {
			return nil, errors.New("redis: empty reply of a script")
		}
		status, err := values[0].ToString()
		if err != nil {
			return nil, fmt.Errorf("redis: unexpected reply of a script: %w", err)
		}
		replies[i] = Reply{status, values[1:]}
	}
	return replies, nil
}

// Failed returns the class of the error of a result, nil when it has none.
func (s *Server) Failed(ctx context.Context, r rueidis.RedisResult) error {
	err := r.Error()
	if e, ok := rueidis.IsRedisErr(err); ok && code(e.Error()) == "READONLY" {
		// The connection leads to a replica. The name of the server may
		// already stand for another one.
		s.conns.dropAll()
	}
	return s.Classify(ctx, err)
}

// WaitCommand is the command that waits for Options.WaitReplicas, if there is
// to be one. It counts for what its own connection wrote.
func (s *Server) WaitCommand() (c rueidis.Completed, wanted bool) {
	if s.opts.WaitReplicas == 0 {
		return c, false
	}
	return s.client.B().Arbitrary("WAIT").Args(strconv.Itoa(s.opts.WaitReplicas),
		strconv.FormatInt(s.opts.WaitTimeout.Milliseconds(), 10)).Build(), true
}

// Confirmed judges the reply of a WaitCommand.
func (s *Server) Confirmed(ctx context.Context, r rueidis.RedisResult) error {
	if err := s.Failed(ctx, r); err != nil {
		return err
	}
	n, err := r.AsInt64()
	if err != nil {
		return fmt.Errorf("redis: unexpected reply of WAIT: %w", err)
	}
	if n < int64(s.opts.WaitReplicas) {
		return fmt.Errorf("%w: %w: %d of %d within %v", s.opts.Errors.Unavailable, s.opts.Errors.Replicas, n, s.opts.WaitReplicas, s.opts.WaitTimeout)
	}
	return nil
}

// Do sends one plain command. Its keys come first.
func (s *Server) Do(ctx context.Context, br *Breaker, verb string, keys []string, args ...string) (rueidis.RedisResult, error) {
	if err := ctx.Err(); err != nil {
		return rueidis.RedisResult{}, err
	}
	var r rueidis.RedisResult
	err := br.guard(func() error {
		calls := []Call{{&Script{Name: verb}, keys, args}}
		if h := s.opts.Hooks.Before; h != nil {
			if err := h(calls); err != nil {
				return err
			}
		}
		r = s.client.Do(ctx, s.client.B().Arbitrary(verb).Keys(keys...).Args(args...).Build())
		if h := s.opts.Hooks.After; h != nil {
			if err := h(calls); err != nil {
				return err
			}
		}
		return s.Failed(ctx, r)
	})
	return r, err
}
