//go:build integration

package redisstore

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/weirstreams/weir/internal/redistest"
	"github.com/weirstreams/weir/metric"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state"
)

// covered compares the table with what was sent, and checks that the outputs,
// without repetitions, say every count of every key, in order where nothing was
// forgotten.
func (a *app) covered(forgot bool) (outputs, repeated int) {
	k := a.k
	k.t.Helper()
	redistest.Eventually(k.t, "the table counts each record once", func() bool {
		for key, n := range k.sent {
			if got, found, err := a.app.Read(a.table).Get(k.ctx, key); err != nil || !found || got != n {
				return false
			}
		}
		return a.committedAll()
	})
	out, repeated := k.ids()
	for key, n := range k.sent {
		seen := make([]bool, n)
		for i, raw := range out[key] {
			v, err := serde.Int64.Decode([]byte(raw))
			if err != nil || v < 1 || v > n {
				k.t.Fatalf("output %d of %s: %d, %v", i, key, v, err)
			}
			seen[v-1] = true
			if !forgot && v != int64(i)+1 {
				k.t.Errorf("output %d of %s is %d", i, key, v)
			}
		}
		if i := slices.Index(seen, false); i >= 0 {
			k.t.Errorf("count %d of %s has never come out", i+1, key)
		}
		outputs += len(out[key])
	}
	return outputs, repeated
}

// Somebody overwrote the outbox: a batch that cannot keep its outputs changes
// nothing of the state.
func TestOutboxOfAnotherType(t *testing.T) {
	s := redistest.Start(t)
	o := newOwner(t, serverOptions(s))
	o.apply(100, 10)
	s.Must("SET", outboxKey(o.b.target(view0).meta, o.b.target(view0).layout.Load().gen), "mine")
	before := dumped(s)
	batch, _ := o.batch(100, 20)
	err := o.v.(state.OutboxView).ApplyOut(t.Context(), o.token, "next", batch, 3, []byte("segment"))
	mustBe(t, "ApplyOut", err, state.ErrCorrupt)
	if after := dumped(s); !maps.Equal(before, after) {
		t.Error("the state has changed, without outputs")
	}
	o.check()
}

// A real server that is killed, hangs, and loses its connections and scripts, but
// keeps what it has acknowledged: the state changes once, and so do the outputs,
// but for repetitions.
func TestAppWithOutboxOnRedis(t *testing.T) {
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	k := newKafka(t)
	opts := serverOptions(s)
	a := k.run("ratings", mustOpen(t, opts), atLeastOnce)
	for _, c := range []struct {
		what string
		do   func()
	}{
		{"nothing", func() {}},
		{"killed and started", func() { s.Kill(); s.Start() }},
		{"scripts flushed", func() { s.Must("SCRIPT", "FLUSH") }},
		{"connections killed", func() { s.Must("CLIENT", "KILL", "TYPE", "normal") }},
		{"hangs for a while", func() {
			thaw := s.Freeze()
			redistest.Eventually(t, "a call fails", func() bool { return a.away() > 0 })
			thaw()
		}},
	} {
		k.send(3000, 700)
		c.do()
		k.send(2000, 700)
		outputs, repeated := a.covered(false)
		t.Logf("%s: %d outputs, %d repetitions", c.what, outputs, repeated)
		if t.Failed() {
			t.Fatalf("after: %s", c.what)
		}
	}
	if strings.Contains(a.log.String(), "no longer a member") {
		t.Error("the application has lost its place in the group")
	}
	if n := a.metrics.Sum(metric.StoreForgot); n != 0 {
		t.Errorf("the store is said to have forgotten %v times", n)
	}
	a.stop()
	k.noChangelogs()
}

// Failovers under load, each to a replica that has not seen the latest
// acknowledged writes. The application rewinds itself: no record is left out or
// counted twice, what comes out twice has another id, and it is said how much may
// have.
func TestAppWithOutboxThroughFailovers(t *testing.T) {
	const failovers = 20
	k := newKafka(t)
	primary := redistest.Start(t, "--repl-diskless-sync", "no")
	p := redistest.StartProxy(t, primary.Addr())
	opts := serverOptions(primary)
	opts.Addresses = []string{p.Addr()}
	a := k.run("ratings", mustOpen(t, opts), atLeastOnce)
	k.send(300, 100)
	a.covered(true)
	for range failovers {
		primary = k.forget(primary, p, func() {})
		k.send(300, 100)
	}
	outputs, repeated := a.covered(true)
	again := a.metrics.Sum(metric.Reprocessed)
	t.Logf("%d failovers: the store had forgotten %v times, %v records were processed again; %d outputs of %d records, and %d repetitions",
		failovers, a.metrics.Sum(metric.StoreForgot), again, outputs, k.n, repeated)
	if a.metrics.Sum(metric.StoreForgot) == 0 {
		t.Error("nothing was forgotten")
	}
	if twice := float64(outputs - k.n); twice > again {
		t.Errorf("%v outputs came twice, and only %v records are said to have been processed again", twice, again)
	}
	a.stop()
}
