package weirtest

import (
	"fmt"
	"testing"
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/simkafka"
)

// An instance stalls at each point of the protocol for longer than its session
// lasts, another one takes over, and the first goes on where it was: before or
// after its transaction has timed out, and before or after others have processed
// more.
func TestZombieAtEachPoint(t *testing.T) {
	t.Parallel()
	timeouts := []struct{ session, transaction time.Duration }{
		{5 * time.Second, 30 * time.Second}, {15 * time.Second, 5 * time.Second},
	}
	for name, opts := range stores {
		for _, p := range points {
			for _, to := range timeouts {
				for _, more := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/%s/%v/more %t", name, p, to.transaction, more), func(t *testing.T) {
						t.Parallel()
						o := opts(t)
						o.Instances = 2
						o.Config.SessionTimeout, o.Config.TransactionTimeout = to.session, to.transaction
						c := newChain(t, o)
						c.send(10)
						c.check()
						z := c.stall(p)
						c.Advance(to.session + time.Second)
						if more {
							c.send(10)
						}
						if z.State() != Paused {
							if (p == BeforeApply || p == AfterApply) && name == "behind" || p == DuringRestore && name != "lost" {
								return // does not come
							}
							t.Fatalf("the instance does not get to the point: %s", c.describe())
						}
						z.Resume()
						c.send(10)
						c.Advance(time.Minute)
						c.check()
						if len(z.Tasks()) == 0 {
							t.Errorf("the zombie is not back:\n%s", c.describe())
						}
					})
				}
			}
		}
	}
}

// stall pauses an instance at a point, in the middle of its work.
func (c *chain) stall(p Point) *Instance {
	c.t.Helper()
	z := c.Instance(0)
	if p == DuringRevoke {
		c.Instance(1).Stop()
	}
	switch p {
	case AfterClaim, DuringRestore, DuringRevoke:
		if p != DuringRevoke {
			z.Stop()
			if c.opts.Config.FlushInterval == 0 && p == DuringRestore {
				z.DropState()
			}
			z.start()
		}
		z.PauseAt(p)
		if p == DuringRevoke {
			c.Instance(1).start()
		}
		c.Settle()
	default:
		z.PauseAt(p)
		c.send(10)
	}
	z.PauseAt("")
	return z
}

// R1: a claim waits for transactions that are not
// decided. The commit of an owner that died arrives when its successor claims.
func TestAClaimWaitsForOpenTransactions(t *testing.T) {
	t.Parallel()
	c := newChain(t, Options{Instances: 2, Config: weir.Config{SessionTimeout: 5 * time.Second, TransactionTimeout: 30 * time.Second}})
	c.send(10)
	c.check()
	c.hook = func(call simkafka.Call) simkafka.Fault {
		if call.Op == simkafka.EndTransaction && call.Client == "instance-0" {
			return simkafka.Fault{Effect: simkafka.Late, Crash: true}
		}
		return simkafka.Fault{}
	}
	c.settling = true // time is ours
	c.send(10)
	for c.pass() || c.commit() {
	}
	if s := c.Instance(0).State(); s != Crashed {
		t.Fatalf("instance 0 is %v", s)
	}
	c.hook = nil
	for range 60 {
		c.clock.now = c.clock.now.Add(100 * time.Millisecond)
		for c.pass() || c.commit() {
		}
	}
	if n := len(c.sim.Group("test").Members); n != 1 {
		t.Fatalf("%d members: %s", n, c.describe())
	}
	if got, all := len(c.Instance(1).Tasks()), len(c.tasks); got == all {
		t.Fatal("the successor runs tasks whose offsets are not decided")
	}
	if err := c.sim.Deliver(0); err != nil {
		t.Fatalf("the commit that comes late: %v", err)
	}
	c.settling = false
	c.Settle()
	c.send(10)
	c.check()
}
