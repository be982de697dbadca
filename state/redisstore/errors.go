package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/rueidis"
	"github.com/sony/gobreaker/v2"

	"github.com/weirstreams/weir/state"
)

var (
	// ErrReplicas says that a write was carried out, but that fewer replicas
	// than Options.WaitReplicas confirmed it in time: a failover now may lose
	// it. It comes together with state.ErrUnavailable; the same call again
	// recognises the write and waits anew.
	ErrReplicas = errors.New("redisstore: too few replicas confirmed the write")
	// ErrUnordered says that a range was asked for of keys that are kept
	// without order (Options.PointLookups, Options.Unordered).
	ErrUnordered = errors.New("redisstore: the keys are not kept in order")
	// ErrUnsuitable says that the start-up check refused the server.
	ErrUnsuitable = errors.New("redisstore: the server is not suitable")
)

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
	"TRYAGAIN":    "the slot of the view is being moved to another node",
	"MOVED":       "the slot of the view has moved to another node",
	"ASK":         "the slot of the view is being moved to another node",
	"UNBLOCKED":   "the server was demoted",
}

// code returns the code of an error reply. A server before 7.0 wraps errors
// that arise inside a script: "ERR Error running script (call to f_...):
// @user_script:7: OOM command not allowed ...".
func code(msg string) string {
	const script = "@user_script"
	msg = strings.TrimPrefix(msg, "ERR ")
	if i := strings.LastIndex(msg, script); i >= 0 && strings.HasPrefix(msg, "Error running script") {
		msg = strings.TrimLeft(msg[i+len(script):], ": 0123456789-")
	}
	c, _, _ := strings.Cut(msg, " ")
	return c
}

// classify turns an error of the client into one of the classes of package
// state. It returns nil for nil.
func classify(ctx context.Context, err error) error {
	if err == nil || rueidis.IsRedisNil(err) {
		return nil
	}
	reply, ok := rueidis.IsRedisErr(err)
	if !ok {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, rueidis.ErrClosing):
			return fmt.Errorf("%w: the connection was closed", state.ErrUnavailable)
		}
		return fmt.Errorf("%w: %w", state.ErrUnavailable, err)
	}
	msg := reply.Error()
	c := code(msg)
	switch {
	case c == "OOM":
		return fmt.Errorf("%w: Redis has reached maxmemory: raise it, or remove data", state.ErrFull)
	case c == "WRONGTYPE":
		return fmt.Errorf("%w: a key of the view holds another type of data", state.ErrCorrupt)
	case unavailable[c] != "":
		return fmt.Errorf("%w: %s (%s)", state.ErrUnavailable, unavailable[c], c)
	case strings.Contains(msg, "Script killed by user"):
		return fmt.Errorf("%w: the script was killed before it wrote anything", state.ErrUnavailable)
	case strings.Contains(msg, "max number of clients reached"):
		return fmt.Errorf("%w: the server has reached maxclients", state.ErrUnavailable)
	case c == "NOAUTH", c == "WRONGPASS", c == "NOPERM", strings.Contains(msg, "The user executing the script can't"):
		return fmt.Errorf("redis refuses the user: %s: see docs/formats/redis.md for the rights that are needed", msg)
	}
	return fmt.Errorf("redis: %s", msg)
}

// refused is the error of a circuit breaker that is open.
func refused(err, last error) error {
	if errors.Is(err, gobreaker.ErrTooManyRequests) {
		return fmt.Errorf("%w: another call finds out whether it is back", state.ErrUnavailable)
	}
	if last == nil {
		return fmt.Errorf("%w: it failed %d times in a row", state.ErrUnavailable, breakerFailures)
	}
	return fmt.Errorf("%w: not tried again for %v after: %s", state.ErrUnavailable, breakerOpen, strings.TrimPrefix(last.Error(), state.ErrUnavailable.Error()+": "))
}

func corrupt(key string) error {
	return fmt.Errorf("%w: key %q is gone or lacks its mark: it was deleted or overwritten by somebody else", state.ErrCorrupt, key)
}
