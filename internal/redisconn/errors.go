package redisconn

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/rueidis"
	"github.com/sony/gobreaker/v2"
)

// Errors are the classes that errors of calls match. They are those of the
// package that connects, which is all that its callers see.
type Errors struct {
	// Unavailable: the server cannot serve the call now. Whether the call was
	// carried out is unknown when its reply was lost.
	Unavailable error
	// Full: the server has reached maxmemory and did nothing.
	Full error
	// Corrupt: a key holds something else than it should.
	Corrupt error
	// Replicas: the write was carried out, but too few replicas confirmed it.
	// It comes together with Unavailable.
	Replicas error
	// Unsuitable: the start-up check refused the server.
	Unsuitable error
}

// unavailable are the codes of replies that say that the server cannot serve
// the call now, and that it was not carried out.
var unavailable = map[string]string{
	"LOADING":     "the server loads its data",
	"BUSY":        "the server is busy with a script",
	"READONLY":    "the server is a replica: a failover is under way, or the address is that of a replica",
	"MISCONF":     "the server refuses writes because it cannot store them on its disk",
	"NOREPLICAS":  "the server refuses writes because it has too few replicas (min-replicas-to-write)",
	"MASTERDOWN":  "the server has lost its primary",
	"CLUSTERDOWN": "the cluster is down or does not cover all slots",
	"TRYAGAIN":    "the slot of the keys is being moved to another node",
	"MOVED":       "the slot of the keys has moved to another node",
	"ASK":         "the slot of the keys is being moved to another node",
	"UNBLOCKED":   "the server was demoted",
}

// code returns the code of an error reply. A server before 7.0 wraps errors
// that arise inside a script: "ERR Error running script (call to f_...):
// @user_script:7: OOM command not allowed ...". An EXEC that is refused itself
// says why behind its own code.
func code(msg string) string {
	const script = "@user_script"
	msg = strings.TrimPrefix(msg, "ERR ")
	msg = strings.TrimPrefix(msg, "EXECABORT Transaction discarded because of: ")
	if i := strings.LastIndex(msg, script); i >= 0 && strings.HasPrefix(msg, "Error running script") {
		msg = strings.TrimLeft(msg[i+len(script):], ": 0123456789-")
	}
	c, _, _ := strings.Cut(msg, " ")
	return c
}

// Classify turns an error of the driver into one of the classes of Errors. It
// returns nil for nil.
func (s *Server) Classify(ctx context.Context, err error) error {
	if err == nil || rueidis.IsRedisNil(err) {
		return nil
	}
	reply, ok := rueidis.IsRedisErr(err)
	if !ok {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, rueidis.ErrClosing):
			return fmt.Errorf("%w: the connection was closed", s.opts.Errors.Unavailable)
		}
		return fmt.Errorf("%w: %w", s.opts.Errors.Unavailable, err)
	}
	msg := reply.Error()
	c := code(msg)
	switch {
	case c == "OOM":
		return fmt.Errorf("%w: Redis has reached maxmemory: raise it, or remove data", s.opts.Errors.Full)
	case c == "WRONGTYPE":
		return fmt.Errorf("%w: a key holds another type of data", s.opts.Errors.Corrupt)
	case unavailable[c] != "":
		return fmt.Errorf("%w: %s (%s)", s.opts.Errors.Unavailable, unavailable[c], c)
	case strings.Contains(msg, "Script killed by user"):
		return fmt.Errorf("%w: the script was killed before it wrote anything", s.opts.Errors.Unavailable)
	case strings.Contains(msg, "max number of clients reached"):
		return fmt.Errorf("%w: the server has reached maxclients", s.opts.Errors.Unavailable)
	case c == "NOAUTH", c == "WRONGPASS", c == "NOPERM", strings.Contains(msg, "The user executing the script can't"):
		return fmt.Errorf("redis refuses the user: %s: see %s for the rights that are needed", msg, s.opts.Docs)
	}
	return fmt.Errorf("redis: %s", msg)
}

// refused is the error of a circuit breaker that is open.
func (s *Server) refused(err, last error) error {
	if errors.Is(err, gobreaker.ErrTooManyRequests) {
		return fmt.Errorf("%w: another call finds out whether it is back", s.opts.Errors.Unavailable)
	}
	if last == nil {
		return fmt.Errorf("%w: it failed %d times in a row", s.opts.Errors.Unavailable, BreakerFailures)
	}
	return fmt.Errorf("%w: not tried again for %v after: %s", s.opts.Errors.Unavailable, BreakerOpen, strings.TrimPrefix(last.Error(), s.opts.Errors.Unavailable.Error()+": "))
}
