//go:build integration

package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/redistest"
	"github.com/weirstreams/weir/metric"
	"github.com/weirstreams/weir/state"
)

// What the tests with the stand-in show, shown on a real server that is killed,
// emptied, and replaced by a replica that has forgotten.
func TestAppOnRedis(t *testing.T) { eachWay(t, testAppOnRedis) }

func testAppOnRedis(t *testing.T, unordered bool) {
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "everysec")
	k := newKafka(t)
	opts := serverOptions(s)
	opts.Unordered = unordered
	a := k.run("ratings", mustOpen(t, opts), nil)
	generation := a.balanced()
	round := func() {
		t.Helper()
		k.send(500, 100)
		a.check("ratings", opts)
	}
	round()
	for _, c := range []struct {
		what string
		do   func()
	}{
		{"killed and started", func() { s.Kill(); s.Start() }},
		{"FLUSHALL", func() { s.Must("FLUSHALL") }},
		{"scripts flushed", func() { s.Must("SCRIPT", "FLUSH") }},
		{"connections killed", func() { s.Must("CLIENT", "KILL", "TYPE", "normal") }},
		{"killed, and started without its file", func() {
			s.Kill()
			args := s.Args
			s.Args = nil
			s.Start()
			s.Args = args
		}},
		{"hangs for a while", func() {
			thaw := s.Freeze()
			redistest.Eventually(t, "a call fails", func() bool { return a.away() > 0 })
			thaw()
		}},
	} {
		k.send(300, 100)
		c.do()
		round()
		if t.Failed() {
			t.Fatalf("after %s", c.what)
		}
	}
	a.stayed(generation)
	a.stop()
}

// Redis is away for long: longer than sessions, rebalances and transactions of
// Kafka last. The application stays a member, commits nothing, and goes on.
func TestAppWhileRedisIsAwayForLong(t *testing.T) {
	s := redistest.Start(t, "--appendonly", "yes")
	k := newKafka(t)
	opts := serverOptions(s)
	a := k.run("ratings", mustOpen(t, opts), func(c *weir.Config) {
		c.SessionTimeout, c.RebalanceTimeout, c.TransactionTimeout = time.Second, 2*time.Second, 2*time.Second
	})
	generation := a.balanced()
	k.send(500, 100)
	a.check("ratings", opts)
	s.Kill()
	k.send(500, 100)
	away := 8 * time.Second
	for end := time.Now().Add(away); time.Now().Before(end); {
		if a.app.State() == weir.Failed {
			t.Fatalf("the application has ended: %v", <-a.done)
		}
		k.send(1, 100)
		time.Sleep(100 * time.Millisecond)
	}
	aborts := a.metrics.Sum(metric.Aborts)
	s.Start()
	back := time.Now()
	k.send(500, 100)
	a.check("ratings", opts)
	t.Logf("all is processed %v after the server is back; %v batches aborted while it was away for %v", time.Since(back), aborts, away)
	a.stayed(generation)
	if aborts > 20 {
		t.Errorf("%v batches were aborted: the tasks did not pause", aborts)
	}
	a.stop()
}

// A server that is full stops the application with the reason, and nothing is
// committed past the write that failed: with room, the next start goes on.
func TestAppOnFullRedis(t *testing.T) {
	s := redistest.Start(t, "--appendonly", "yes")
	k := newKafka(t)
	opts := serverOptions(s)
	a := k.run("ratings", mustOpen(t, opts), nil)
	k.send(300, 100)
	a.check("ratings", opts)
	s.Must("CONFIG", "SET", "maxmemory", "1")
	k.send(300, 100)
	if err := <-a.done; !errors.Is(err, weir.ErrStoreFull) {
		t.Fatalf("the application ended with %v, want ErrStoreFull", err)
	}
	s.Must("CONFIG", "SET", "maxmemory", "0")
	b := k.run("ratings", mustOpen(t, opts), nil)
	k.send(300, 100)
	b.check("ratings", opts)
	b.stop()
}

// Failovers under load, each to a replica that has not seen the latest
// acknowledged writes. The application finds out, replays what was forgotten
// from its changelog, and no count is wrong.
func TestAppThroughFailoversThatForget(t *testing.T) { eachWay(t, testAppThroughFailoversThatForget) }

func testAppThroughFailoversThatForget(t *testing.T, unordered bool) {
	const failovers = 30
	k := newKafka(t)
	primary := redistest.Start(t, "--repl-diskless-sync", "no")
	p := redistest.StartProxy(t, primary.Addr())
	opts := serverOptions(primary)
	opts.Addresses, opts.Unordered = []string{p.Addr()}, unordered
	a := k.run("ratings", mustOpen(t, opts), func(c *weir.Config) { c.FlushInterval = time.Millisecond })
	k.send(300, 100)
	a.check("ratings", opts)
	for range failovers {
		primary = k.forget(primary, p, k.collect)
		k.send(300, 100)
		a.check("ratings", opts)
	}
	repaired := a.metrics.Sum(metric.Aborts, metric.Label{Name: metric.LabelReason, Value: "fenced"})
	t.Logf("%d failovers that forgot writes; %v times an owner was refused, %v views were behind", failovers, repaired, a.claims("behind"))
	if a.claims("behind") == 0 {
		t.Error("no view was behind: nothing was forgotten")
	}
	a.stop()
}

// forget lets the primary die under the load of an application "ratings", which
// comes through p, and a replica take its place that has not seen the latest
// writes that were acknowledged. Sent is called when their records are sent.
func (k *kafka) forget(primary *redistest.Server, p *redistest.Proxy, sent func()) (replica *redistest.Server) {
	t := k.t
	t.Helper()
	tokens := func(s *redistest.Server) (list []string) {
		for q := range appPartitions {
			token, _ := s.Must("HGET", metaKey(DefaultNamespace, state.ID{Application: "ratings", Task: fmt.Sprintf("0_%d", q)}), "token").ToString()
			list = append(list, token)
		}
		return list
	}
	replica = primary.StartReplica("--repl-diskless-sync", "no")
	k.send(300, 100)
	// The replica stands still from here on; what the primary acknowledges
	// after this is forgotten.
	replica.Must("REPLICAOF", "NO", "ONE")
	left := tokens(replica)
	k.send(300, 100)
	sent()
	redistest.Eventually(t, "writes that the replica does not see", func() bool { return !slices.Equal(tokens(primary), left) })
	load := make(chan error, 1)
	go func() { // while the primary dies
		load <- k.cl.ProduceSync(k.ctx, &kgo.Record{Topic: "in", Key: []byte("load"), Value: []byte("x")}).FirstErr()
	}()
	primary.Kill()
	p.Forward(replica.Addr())
	p.Drop()
	if err := <-load; err != nil {
		t.Fatal(err)
	}
	k.n++
	k.sent["load"]++
	return replica
}
