package weirtest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/weirstreams/weir/internal/simkafka"
	"github.com/weirstreams/weir/state"
)

var (
	chaosSeed = flag.Uint64("chaos.seed", 0, "run TestChaos with this seed only, and say what happens")
	chaosRuns = flag.Int("chaos.runs", 300, "number of seeds of TestChaos")
)

// Instances come, go, die, stall at any point and come back, requests fail, get
// lost or arrive late, logs are compacted, local state is lost or lags behind.
// Every output is there once and in order, and the stores are right.
func TestChaos(t *testing.T) {
	t.Parallel()
	if *chaosSeed != 0 {
		newChaos(t, *chaosSeed).run()
		return
	}
	for seed := range uint64(*chaosRuns) {
		ok := t.Run(fmt.Sprint(seed+1), func(t *testing.T) { newChaos(t, seed+1).run() })
		if !ok {
			t.Fatalf("again with: go test ./weirtest -run TestChaos -chaos.seed %d", seed+1)
		}
	}
}

type chaos struct {
	*chain
	rng   *rand.Rand
	fault float64 // how many of the requests fail
}

func newChaos(t testing.TB, seed uint64) *chaos {
	rng := rand.New(rand.NewPCG(seed, 7))
	opts := Options{Instances: 1 + rng.IntN(2), random: rand.New(rand.NewPCG(seed, 8)), CommitOnClock: rng.IntN(4) == 0}
	switch rng.IntN(3) {
	case 0:
		opts.Store = Memory()
	case 1:
		opts.Store = Memory()
		opts.Config.FlushInterval = time.Duration(rng.IntN(3000)+1) * time.Millisecond
	}
	opts.Config.SessionTimeout = []time.Duration{5 * time.Second, 15 * time.Second}[rng.IntN(2)]
	opts.Config.TransactionTimeout = []time.Duration{5 * time.Second, 20 * time.Second}[rng.IntN(2)]
	opts.Config.PurgeInterval = time.Second
	opts.Config.TopicConfigs = map[string]string{"delete.retention.ms": fmt.Sprint(rng.IntN(2) * 60_000)}
	c := &chaos{rng: rng, fault: []float64{0, 0.005, 0.03}[rng.IntN(3)]}
	if opts.Store == nil {
		opts.Store = lostMemory
	}
	open, known := opts.Store, map[state.Backend]state.Backend{}
	opts.Store = func(i int) state.Backend {
		inner := open(i)
		if known[inner] == nil {
			known[inner] = &spoilt{Backend: inner, hook: c.spoilStore}
		}
		return known[inner]
	}
	c.chain = newChain(t, opts)
	return c
}

// spoilStore lets calls to the stores fail. Damage is rare: a store that is
// damaged again and again stops its instance.
func (c *chaos) spoilStore(call storeCall) spoil {
	if c.chain == nil || c.hook == nil || call == callDrop || c.rng.Float64() >= c.fault/3 {
		return spoil{}
	}
	s := spoil{err: state.ErrUnavailable, after: c.rng.IntN(2) == 0}
	switch c.rng.IntN(20) {
	case 0:
		s.err = state.ErrCorrupt
	case 1, 2, 3:
		s.err = state.ErrFenced
	}
	c.log("store: %s: %v, after %t", call, s.err, s.after)
	return s
}

func (c *chaos) log(format string, args ...any) {
	if *chaosSeed != 0 {
		c.t.Logf("%s "+format, append([]any{c.Now().Format("15:04:05.000")}, args...)...)
	}
}

// pick returns an instance in one of the states, or nil.
func (c *chaos) pick(states ...State) *Instance {
	var list []*Instance
	for _, in := range c.instances {
		for _, s := range states {
			if in.state == s {
				list = append(list, in)
			}
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[c.rng.IntN(len(list))]
}

func (c *chaos) spoil(call simkafka.Call) simkafka.Fault {
	if c.rng.Float64() >= c.fault {
		return simkafka.Fault{}
	}
	f := simkafka.Fault{Crash: c.rng.IntN(10) == 0}
	switch c.rng.IntN(3) {
	case 0:
		f.Effect = simkafka.Dropped
	case 1:
		f.Effect = simkafka.Late
	default:
		f.Err = simkafka.ErrConnection
	}
	c.log("%v: effect %d, error %v, crash %t", call, f.Effect, f.Err, f.Crash)
	return f
}

func (c *chaos) run() {
	c.hook = c.spoil
	for range 40 {
		c.step()
	}
	c.hook = nil
	c.log("end")
	c.calm()
	c.send(10)
	c.calm()
	c.check()
}

// calm lets everybody come back and finish.
func (c *chaos) calm() {
	for _, in := range c.instances {
		in.pauseAt, in.crashAt = "", ""
		if in.state == Paused {
			in.Resume()
		}
	}
	c.Start()
	for len(c.sim.LateCalls()) > 0 {
		_ = c.sim.Deliver(0)
		c.Settle()
	}
	c.Advance(time.Minute)
}

func (c *chaos) step() {
	n := c.rng.IntN(20)
	if c.pick(Running) == nil && c.rng.IntN(4) > 0 {
		n = 13 + c.rng.IntN(2) // somebody should be there, most of the time
	}
	switch {
	case n < 7:
		k := 1 + c.rng.IntN(8)
		c.log("send %d", k)
		c.send(k)
	case n == 7 && len(c.instances) < 3:
		c.log("add an instance")
		c.AddInstance()
	case n == 8:
		if in := c.pick(Running); in != nil {
			c.log("stop %d", in.index)
			c.opts.AllowFailure = true // a commit that is spoilt is no clean stop
			in.Stop()
			c.opts.AllowFailure = false
		}
	case n == 9:
		if in := c.pick(Running, Paused); in != nil {
			c.log("crash %d", in.index)
			in.Crash()
		}
	case n == 10, n == 11:
		if in := c.pick(Running); in != nil {
			p := points[c.rng.IntN(len(points))]
			c.log("pause %d at %s", in.index, p)
			in.PauseAt(p)
		}
	case n == 12:
		if in := c.pick(Running); in != nil {
			p := points[c.rng.IntN(len(points))]
			c.log("crash %d at %s", in.index, p)
			in.CrashAt(p)
		}
	case n == 13:
		if in := c.pick(Paused); in != nil {
			c.log("resume %d", in.index)
			in.Resume()
		}
	case n == 14, n == 15:
		if in := c.pick(Stopped, Crashed, Failed); in != nil {
			if c.rng.IntN(4) == 0 {
				c.log("drop the state of %d", in.index)
				in.DropState()
			}
			c.log("start %d", in.index)
			in.Start()
		}
	case n == 16:
		c.log("compact")
		c.Compact()
	case n == 17:
		if l := c.sim.LateCalls(); len(l) > 0 {
			i := c.rng.IntN(len(l))
			c.log("deliver %v", l[i])
			_ = c.sim.Deliver(i)
			c.Settle()
		}
	default:
		d := time.Duration(c.rng.IntN(8000)) * time.Millisecond
		c.log("advance %v", d)
		c.Advance(d)
	}
	if *chaosSeed != 0 {
		c.log("%s", strings.ReplaceAll(strings.TrimSpace(c.describe()), "\n", "; "))
	}
}
