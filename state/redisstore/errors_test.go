package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/state"
)

// What a server says becomes a class of package state. The texts are those of
// Redis 6.2 and 7, which differ in how they pass on errors inside of scripts.
func TestErrorReplies(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]error{
		"LOADING Redis is loading the dataset in memory":                                                                          state.ErrUnavailable,
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.":                                  state.ErrUnavailable,
		"READONLY You can't write against a read only replica.":                                                                   state.ErrUnavailable,
		"READONLY You can't write against a read only replica. script: 9d3c0, on @user_script:31.":                                state.ErrUnavailable,
		"ERR Error running script (call to f_9d3c0): @user_script:31: @user_script: 31: -READONLY You can't write against a read": state.ErrUnavailable,
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.":                        state.ErrUnavailable,
		"NOREPLICAS Not enough good replicas to write.":                                                                           state.ErrUnavailable,
		"ERR Error running script (call to f_9d3c0): @user_script:7: @user_script: 7: -NOREPLICAS Not enough good":                state.ErrUnavailable,
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":                                        state.ErrUnavailable,
		"CLUSTERDOWN Hash slot not served":                                                                                        state.ErrUnavailable,
		"TRYAGAIN Multiple keys request during rehashing of slot":                                                                 state.ErrUnavailable,
		"ERR Error running script (call to f_9d3c0): @user_script:1: Script killed by user with SCRIPT KILL...":                   state.ErrUnavailable,
		"ERR max number of clients reached":                                                                                       state.ErrUnavailable,
		"OOM command not allowed when used memory > 'maxmemory'.":                                                                 state.ErrFull,
		"OOM command not allowed when used memory > 'maxmemory'. script: 9d3c0, on @user_script:40.":                              state.ErrFull,
		"ERR Error running script (call to f_9d3c0): @user_script:40: @user_script: 40: -OOM command not allowed when used":       state.ErrFull,
		"WRONGTYPE Operation against a key holding the wrong kind of value":                                                       state.ErrCorrupt,
		"ERR Error running script (call to f_9d3c0): @user_script:4: @user_script: 4: -WRONGTYPE Operation against a key":         state.ErrCorrupt,
		"NOPERM this user has no permissions to run the 'evalsha' command":                                                        nil,
		"ERR unknown command `EVALSHA`, with args beginning with: ":                                                               nil,
		"ERR syntax error": nil,
	} {
		m := miniredis.RunT(t)
		b := mustOpen(t, Options{Addresses: []string{m.Addr()}, Check: CheckOff})
		m.Server().SetPreHook(func(p *miniserver.Peer, cmd string, _ ...string) bool {
			if cmd != "EVALSHA" && cmd != "HGET" {
				return false
			}
			p.WriteError(reply)
			return true
		})
		_, claim := b.Claim(t.Context(), state.ID{Application: "a", Task: "0_0"}, "", "t")
		_, token := b.Token(t.Context(), state.ID{Application: "a", Task: "0_0"})
		for _, err := range []error{claim, token} {
			if err == nil || want != nil && !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", reply, err, want)
			}
			for _, class := range []error{state.ErrUnavailable, state.ErrFull, state.ErrCorrupt, state.ErrFenced, state.ErrClosed} {
				if class != want && errors.Is(err, class) {
					t.Errorf("%s: %v is %v as well", reply, err, class)
				}
			}
		}
		b.Close()
		m.Close()
	}
}

// The context of a caller who gave up is no failure of the server.
func TestBreakerIgnoresCallersWhoGiveUp(t *testing.T) {
	t.Parallel()
	b := mustOpen(t, miniRedis(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	id := state.ID{Application: "a", Task: "0_0"}
	for range 3 * redisconn.BreakerFailures {
		if _, err := b.Token(ctx, id); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if _, err := b.Token(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

// The breaker opens after some failures in a row, then refuses without asking,
// with the reason, lets one call through after a while, and closes.
func TestBreaker(t *testing.T) {
	t.Parallel()
	opts := miniRedis(t)
	calls, down := 0, true
	opts.hooks.Before = func([]redisconn.Call) error {
		calls++
		if down {
			return state.ErrUnavailable
		}
		return nil
	}
	b := mustOpen(t, opts)
	id := state.ID{Application: "a", Task: "0_0"}
	for i := range 10 {
		if _, err := b.Token(t.Context(), id); !errors.Is(err, state.ErrUnavailable) {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	if calls != redisconn.BreakerFailures {
		t.Errorf("%d calls reached the server, want %d", calls, redisconn.BreakerFailures)
	}
	down = false
	for calls == redisconn.BreakerFailures {
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Token(t.Context(), id); err != nil && !errors.Is(err, state.ErrUnavailable) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond) // redisconn.BreakerOpen has to pass
	}
	if _, err := b.Token(t.Context(), id); err != nil {
		t.Errorf("the server is back: %v", err)
	}
}
