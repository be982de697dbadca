package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// Shape of the part latency.
const (
	roundTrip     = 500 * time.Microsecond
	latencyRounds = 5
	latencyPhase  = 2 * time.Second // how long each side runs in a round
	latencyViews  = 4               // in flight, each on a connection of its own, as the tasks of a set of workers
	latencyBatch  = 500             // records of a batch of a view
	pipelineDepth = 128
)

// keyScript is what a consumer calls for each record that keeps position and
// value of a key together, guarded by an epoch: the well-known fence, with the
// value instead of the logic.
const keyScript = `
local epoch = redis.call('GET', KEYS[2])
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
	return 'FENCE'
end
local at = redis.call('HMGET', KEYS[1], 'offset', 'partition')
if at[1] and at[2] == ARGV[3] and tonumber(at[1]) >= tonumber(ARGV[2]) then
	return 'SKIP'
end
redis.call('HSET', KEYS[1], 'value', ARGV[4], 'offset', ARGV[2], 'partition', ARGV[3])
return 'APPLY'`

// loop makes records one after another until it is told to stop, and returns how
// many.
type loop func(ctx context.Context, until time.Time) (records int, err error)

// contender is a side of the part latency.
type contender struct {
	loop  loop
	rates []float64 // by round
}

// latency compares how many records go through Redis in a second when a round
// trip takes a while, as over a network.
func (b *bench) latency(ctx context.Context) (rows []row, err error) {
	s, err := startServer(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	p, tripped, err := b.proxyOf(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	b.note("latency: a round trip takes %v at the median (of PING, with the proxy); %d views at once, each its own batches of %d records; the scripts for each key on one connection",
		tripped.Round(time.Microsecond), latencyViews, latencyBatch)

	backend, err := s.open(ctx, p.addr(), true)
	if err != nil {
		return nil, err
	}
	defer backend.Close()
	var views [latencyViews]*view
	for i := range views {
		if views[i], err = newView(ctx, backend, i); err != nil {
			return nil, err
		}
		if err := views[i].fill(ctx, b.size(dataKeys, 1000)); err != nil {
			return nil, err
		}
	}
	// all runs the views at once.
	all := func(read bool) loop {
		return func(ctx context.Context, until time.Time) (int, error) {
			return together(latencyViews, func(i int) (int, error) {
				return views[i].batches(ctx, newNumbers(rand.Uint64()), read, until)
			})
		}
	}
	scripts, err := newScripts(ctx, p.addr(), s)
	if err != nil {
		return nil, err
	}
	defer scripts.close()

	const both, writes, one, piped, pipedAll = 0, 1, 2, 3, 4
	sides := [...]contender{
		both:     {loop: all(true)},
		writes:   {loop: all(false)},
		one:      {loop: scripts.loop(1, 1)},
		piped:    {loop: scripts.loop(1, pipelineDepth)},
		pipedAll: {loop: scripts.loop(latencyViews, pipelineDepth)},
	}
	phase := latencyPhase
	if b.quick {
		phase /= 20
	}
	for range b.roundsOf(latencyRounds) {
		for i := range sides {
			began := time.Now()
			n, err := sides[i].loop(ctx, began.Add(phase))
			if err != nil {
				return nil, err
			}
			sides[i].rates = append(sides[i].rates, float64(n)/time.Since(began).Seconds())
		}
	}
	compare := func(title string, ours, theirs int, wanted *bound) {
		rows = append(rows, newRow("latency", title, "records/s", sides[ours].rates, sides[theirs].rates, wanted))
	}
	piping := fmt.Sprintf("%d in a pipeline", pipelineDepth)
	compare("read and write / a script for each key", both, one, atLeast(150))
	compare("read and write / the scripts, "+piping, both, piped, atLeast(3))
	compare("write, values in the cache / a script for each key", writes, one, nil)
	compare("write, values in the cache / the scripts, "+piping, writes, piped, nil)
	compare(fmt.Sprintf("read and write / %d loops, %s each", latencyViews, piping), both, pipedAll, nil)
	return rows, nil
}

// together runs f for 0 to n-1 at the same time and adds up what they return.
func together(n int, f func(i int) (int, error)) (int, error) {
	counts, errs := make([]int, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { counts[i], errs[i] = f(i) })
	}
	wg.Wait()
	sum := 0
	for _, c := range counts {
		sum += c
	}
	return sum, errors.Join(errs...)
}

// batches takes batches of random keys through a view, and returns the number of
// records.
func (v *view) batches(ctx context.Context, random numbers, read bool, until time.Time) (n int, err error) {
	keys := make([][]byte, latencyBatch)
	for ; time.Now().Before(until); n += latencyBatch {
		v.batch.Reset()
		for i := range keys {
			keys[i] = storeKeys[random.next()]
			v.batch.Put(keys[i], random.value())
		}
		if read {
			if err := v.Read(ctx, v.token, keys, func(int, []byte) {}); err != nil {
				return n, err
			}
		}
		if err := v.write(ctx); err != nil {
			return n, err
		}
	}
	return n, nil
}

// proxyOf starts a proxy in front of a server whose round trips take roundTrip
// as a client sees it, all included, and returns what they take.
func (b *bench) proxyOf(ctx context.Context, s *server) (*proxy, time.Duration, error) {
	p, err := startProxy(s.addr, 0)
	if err != nil {
		return nil, 0, err
	}
	base, err := ping(ctx, p)
	if err = errors.Join(err, p.close()); err != nil {
		return nil, 0, err
	}
	// Sleeping adds what the first look does not have: the second look corrects it.
	delay := max(roundTrip-base, 0) / 2
	for try := 0; ; try++ {
		if p, err = startProxy(s.addr, delay); err != nil {
			return nil, 0, err
		}
		took, err := ping(ctx, p)
		if err != nil {
			return nil, 0, errors.Join(err, p.close())
		}
		if try == 2 {
			return p, took, nil
		}
		if err := p.close(); err != nil {
			return nil, 0, err
		}
		delay = max(delay+(roundTrip-took)/2, 0)
	}
}

// pings is how many round trips are measured.
const pings = 1000

// ping returns the median round trip through a proxy.
func ping(ctx context.Context, p *proxy) (time.Duration, error) {
	c, err := dial(p.addr())
	if err != nil {
		return 0, err
	}
	defer c.Close()
	var took []time.Duration
	for range pings {
		began := time.Now()
		if err := c.Do(ctx, c.B().Ping().Build()).Error(); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// scripts are the loops that call a script for each key.
type scripts struct {
	sha   string
	conns [latencyViews]rueidis.Client
	next  int // offset
}

func newScripts(ctx context.Context, addr string, s *server) (*scripts, error) {
	var c scripts
	var err error
	if c.sha, err = s.info.Do(ctx, s.info.B().ScriptLoad().Script(keyScript).Build()).ToString(); err != nil {
		return nil, err
	}
	for i := range c.conns {
		if c.conns[i], err = dial(addr); err != nil {
			c.close()
			return nil, err
		}
	}
	return &c, nil
}

func (c *scripts) close() {
	for _, conn := range c.conns {
		if conn != nil {
			conn.Close()
		}
	}
}

// loop makes a loop over some connections with so many calls in each pipeline.
func (c *scripts) loop(conns, depth int) loop {
	return func(ctx context.Context, until time.Time) (int, error) {
		first := c.next
		sum, err := together(conns, func(i int) (n int, err error) {
			random := newNumbers(rand.Uint64())
			for time.Now().Before(until) {
				cmds := make([]rueidis.Completed, depth)
				for j := range cmds {
					n++
					cmds[j] = c.conns[i].B().Evalsha().Sha1(c.sha).Numkeys(2).Key(plainKeys[random.next()], "epoch:"+dataTag).
						Arg("1", strconv.Itoa(first+n), strconv.Itoa(i), rueidis.BinaryString(random.value())).Build()
				}
				if err := doAll(ctx, c.conns[i], cmds); err != nil {
					return n, err
				}
			}
			return n, nil
		})
		c.next += sum
		return sum, err
	}
}
