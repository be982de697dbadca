package proof

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/metric"
	"github.com/weirstreams/weir/state/memstore"
)

// plainApp is an application with nothing but what it needs.
type plainApp struct {
	s     *situation
	app   *weir.App
	store *memstore.Backend
	done  chan error
}

// plain starts an application and waits until it runs.
func (s *situation) plain(top *weir.Topology) *plainApp {
	s.t.Helper()
	p := &plainApp{s: s, store: memstore.New(), done: make(chan error, 1)}
	var err error
	if p.app, err = weir.NewApp(top, weir.Config{ApplicationID: s.name, ClientOptions: s.options, Dir: s.t.TempDir(), Store: p.store}); err != nil {
		s.t.Fatal(err)
	}
	go func() { p.done <- p.app.Run(s.ctx) }()
	if err := p.app.WaitFor(s.ctx, weir.Running); err != nil {
		s.t.Fatal(err, <-p.done)
	}
	return p
}

// stop stops it, which must be clean.
func (p *plainApp) stop() {
	p.s.t.Helper()
	if err := errors.Join(p.app.Close(), <-p.done, p.store.Close()); err != nil {
		p.s.t.Error(err)
	}
}

// shared waits until two applications have all n keys of a table between them.
func shared[V any](s *situation, a, b *weir.App, table weir.Table[string, V], n int) {
	s.t.Helper()
	waitUntil(s.t, s.ctx, "both have tasks", func() (bool, error) {
		x, y := keysOf(s, a, table), keysOf(s, b, table)
		return x > 0 && y > 0 && x+y == n, fmt.Errorf("%d and %d keys", x, y)
	})
}

// alone waits until an application has all n keys of a table.
func alone[V any](s *situation, app *weir.App, table weir.Table[string, V], n int) {
	s.t.Helper()
	waitUntil(s.t, s.ctx, "it has all", func() (bool, error) {
		have := keysOf(s, app, table)
		return have == n, fmt.Errorf("it has %d keys", have)
	})
}

// keysOf counts the keys that an application has of a table, -1 while it cannot
// tell.
func keysOf[V any](s *situation, app *weir.App, table weir.Table[string, V]) (n int) {
	for _, err := range app.Read(table).Local().Range(s.ctx, weir.All[string]()) {
		if err != nil {
			return -1
		}
		n++
	}
	return n
}

// TestSituationJ6: nothing that is optional is there: no tracing, no metrics, no
// log, no listeners. Each rebalance failed. It works. It takes the time of the
// default heartbeats: a commit of one worker waits on a lock for the join of its
// member, which waits for the heartbeat of the other, and a bubble does not let
// time pass while somebody waits on a lock.
func TestSituationJ6(t *testing.T) {
	onEmbedded(t, 1, func(t *testing.T, s *situation) {
		s.topics(4, "in", "out")
		top, table := s.counter()
		first := s.plain(top)
		s.writeMany("in", 0, 40, 10)
		s.exactlyOnce(40)
		second := s.plain(top)
		shared(s, first.app, second.app, table, 10)
		s.writeMany("in", 40, 40, 10)
		s.exactlyOnce(80)
		first.stop()
		alone(s, second.app, table, 10)
		s.writeMany("in", 80, 40, 10)
		s.exactlyOnce(120)
		second.stop()
	})
}

// TestSituationJ3: 1,000 rebalances in one process. Lists of waiters, clients and
// caches grew with each. Goroutines and series are as before, and so is memory.
// It measures the process, so no other test runs beside it.
func TestSituationJ3(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The broker has its records in a folder and not in the memory that is
		// measured.
		b, err := embedded.Open(embedded.Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}()
		s := newSituation(t, newCluster(t, cluster{options: b.ClientOptions(), embedded: b}))
		s.ctx = testContext(t, time.Hour) // of the bubble
		s.topics(4, "in", "out")
		top, table := s.counter()
		i := s.start(top, func(c *weir.Config) { c.Logger = nil }).running() // a log grows
		defer i.stop()
		sent := 0
		write := func(n int) {
			t.Helper()
			s.writeMany("in", sent, n, 10)
			sent += n
			waitUntil(t, s.ctx, "all is committed", func() (bool, error) { // see inBubble
				committed, err := s.adm.FetchOffsets(s.ctx, s.name)
				var at int64
				for _, o := range committed[s.topicOf("in")] {
					at += o.At
				}
				return at == int64(sent), fmt.Errorf("%d of %d, %w", at, sent, err)
			})
		}
		rebalances := func() int { return int(i.metrics.Sum(metric.Rebalances)) }
		heartbeat := func(e *kerr.Error) {
			t.Helper()
			in, err := b.Fault(embedded.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Group: s.name, Code: e.Code, Count: 1})
			if err != nil {
				t.Fatal(err)
			}
			before := rebalances()
			waitUntil(t, s.ctx, "there is a rebalance", func() (bool, error) { return rebalances() > before && in.Hits() == 1, nil })
			in.Remove()
		}
		// The member is told to join again; it is thrown out; another one comes
		// and goes.
		round := func(n int) {
			t.Helper()
			heartbeat(kerr.RebalanceInProgress)
			if n%10 == 0 {
				heartbeat(kerr.UnknownMemberID)
				write(10)
			}
			if n%50 == 0 {
				other := s.plain(top)
				shared(s, i.app, other.app, table, 10)
				other.stop()
				alone(s, i.app, table, 10)
			}
		}
		type size struct{ heap, goroutines, series int }
		measure := func() size {
			t.Helper()
			write(40)
			s.exactlyOnce(sent)
			time.Sleep(time.Minute) // of the bubble: connections that are not used go
			synctest.Wait()
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return size{int(m.HeapAlloc), runtime.NumGoroutine(), i.metrics.Len()}
		}
		for n := range 101 {
			round(n)
		}
		before, from := measure(), rebalances()
		for n := 0; rebalances() < from+1000; n++ {
			round(n)
		}
		after := measure()
		t.Logf("%+v, and after 1,000 rebalances more %+v", before, after)
		if after.goroutines > before.goroutines+10 { // connections come and go
			t.Errorf("%d goroutines, and %d before", after.goroutines, before.goroutines)
		}
		if after.series > before.series+3 { // a counter may come later than others
			t.Errorf("%d series, and %d before", after.series, before.series)
		}
		// The broker's index of its records grows by some 200 KB.
		if grown := after.heap - before.heap; grown > 600<<10 {
			t.Errorf("%d bytes more on the heap, %d for each rebalance", grown, grown/1000)
		}
	})
}
