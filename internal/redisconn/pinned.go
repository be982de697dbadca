package redisconn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// Bounds of pinned connections.
const (
	// MaxPinned is how many connections of a Server may be pinned at once. Who
	// gets none has to do without.
	MaxPinned = 64
	// PinnedIdle is how long a pinned connection may be unused before it is
	// closed. It is shorter than keepAlive, after which the driver asks an idle
	// connection whether it is alive: a PING has no place in a transaction that
	// is open.
	PinnedIdle = 10 * time.Second
	// PinnedAge is how long one may be used. The driver leads new connections to
	// the primary that the sentinels or the cluster name; one that is never given
	// back could stay with a former primary for as long as that can be reached.
	PinnedAge = 30 * time.Second
)

// ErrUnpinned says that nothing was sent, because the connection is closed or
// was not to be had. It says nothing about the server.
var ErrUnpinned = errors.New("redis: no connection is pinned")

// ErrLost says that a pinned connection broke. Whether what was sent was carried
// out is not known. It comes together with Errors.Unavailable and is none for the
// breaker: a call on another connection is to follow, which says more. A server
// that does not answer in time gives Errors.Unavailable alone.
var ErrLost = errors.New("redis: the connection was lost")

// Pinned is a connection with one holder, so that the server can keep something
// for it from one round trip to the next: a key that it watches, a transaction
// that is open. It is opened by its first use, and closed for good by Release,
// by an error, when it is not used for PinnedIdle, after PinnedAge, and with its
// Server. The holder finds that out by ErrUnpinned. Methods may be called
// concurrently; Do makes one round trip after the other.
type Pinned struct {
	s    *Server
	gone atomic.Bool // it is to be closed
	idle *time.Timer // closes it

	mu struct {
		sync.Mutex
		client     rueidis.DedicatedClient // nil before the first use
		closed     bool
		born, used time.Time
	}
}

// Pin returns a connection, or nil when MaxPinned are pinned already or the
// server refused one a moment ago.
func (s *Server) Pin() *Pinned {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed || len(s.mu.pinned) >= MaxPinned || now.Before(s.mu.noPins) {
		return nil
	}
	p := &Pinned{s: s}
	p.mu.born, p.mu.used = now, now
	p.mu.Lock() // expire waits for the timer to be there
	p.idle = time.AfterFunc(PinnedIdle, p.expire)
	p.mu.Unlock()
	if s.mu.pinned == nil {
		s.mu.pinned = map[*Pinned]struct{}{}
	}
	s.mu.pinned[p] = struct{}{}
	return p
}

// Do sends commands, all for keys of one hash tag whose breaker is br, in one
// round trip. judge gets their replies and says whether all went well; it is not
// called when a reply is missing. call is what the round trip is to the hooks.
// Any error closes the connection.
func (p *Pinned) Do(ctx context.Context, br *Breaker, call Call, commands []rueidis.Completed, judge func([]rueidis.RedisResult) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := br.guard(func() error {
		if h := p.s.opts.Hooks.Before; h != nil {
			if err := h([]Call{call}); err != nil {
				return err
			}
		}
		results, err := p.send(ctx, commands)
		if err != nil {
			return err
		}
		if h := p.s.opts.Hooks.After; h != nil {
			if err := h([]Call{call}); err != nil {
				return err
			}
		}
		return judge(results)
	})
	if err != nil {
		p.Release()
	}
	return err
}

func (p *Pinned) send(ctx context.Context, commands []rueidis.Completed) ([]rueidis.RedisResult, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.mu.closed || p.gone.Load() || now.Sub(p.mu.born) > PinnedAge || now.Sub(p.mu.used) > PinnedIdle {
		return nil, ErrUnpinned // the timer may be late: a process was stopped for a while
	}
	if p.mu.client == nil {
		p.mu.client, _ = p.s.client.Dedicate()
	}
	results := p.mu.client.DoMulti(undone{ctx}, commands...)
	p.mu.used = now
	p.idle.Reset(PinnedIdle)
	if p.gone.Load() { // Release was called before that
		p.idle.Reset(0)
	}
	for i := range results {
		err := results[i].NonRedisError()
		if err == nil {
			continue
		}
		if _, answered := rueidis.IsRedisErr(err); answered {
			// It said no when the connection was opened: it has too many
			// clients. Others that are open already go on.
			p.s.refusePins(now)
			return nil, fmt.Errorf("%w: %w", ErrUnpinned, err)
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) && !IsContext(err) {
			err = fmt.Errorf("%w: %w", ErrLost, err)
		}
		return nil, p.s.Classify(ctx, err)
	}
	return results, nil
}

// refusePins keeps holders from asking for connections for a while.
func (s *Server) refusePins(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.noPins = now.Add(PinnedAge)
}

// undone is a context that is never done. The driver waits for the replies of
// one itself, with a timeout, as it does for those of all other calls; for
// another it would start two goroutines, which stay as long as the connection,
// and from then on a call without an end would have no timeout. The deadline
// counts nonetheless. It is for all calls on the driver's dedicated connections.
type undone struct{ context.Context }

// Done implements context.Context.
func (undone) Done() <-chan struct{} { return nil }

// Release closes the connection and does not wait for that. It is idempotent.
func (p *Pinned) Release() {
	if !p.gone.Swap(true) {
		p.idle.Reset(0)
	}
}

// expire is called by the timer.
func (p *Pinned) expire() {
	p.mu.Lock()
	left := PinnedIdle - time.Since(p.mu.used)
	if !p.mu.closed && !p.gone.Load() && left > 0 { // it was used just now
		p.idle.Reset(left)
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	p.close()
}

// close waits for the round trip under way and closes the connection.
func (p *Pinned) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return
	}
	p.mu.closed = true
	p.idle.Stop()
	if p.mu.client != nil {
		p.mu.client.Close()
	}
	p.s.mu.Lock()
	delete(p.s.mu.pinned, p)
	p.s.mu.Unlock()
}
