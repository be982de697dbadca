package weirtest

import (
	"testing"
	"time"

	"github.com/weirstreams/weir/internal/simkafka"
	"github.com/weirstreams/weir/metric"
)

// A client that has lost its place fetches nothing any more, and nothing fails:
// the task runs and the lag grows. Within a minute it is found out and the client
// is built anew. An input that has nothing is left alone.
func TestAClientThatFetchesNothingIsRebuilt(t *testing.T) {
	t.Parallel()
	c := newChain(t, Options{})
	c.send(10)
	c.check()
	fetches := func() int64 { return c.Instance(0).client.Fetched() }
	wait := func(d time.Duration) { // polling all the time, as a worker does
		for range d / (100 * time.Millisecond) {
			c.Advance(100 * time.Millisecond)
		}
	}
	joins := c.metrics.Sum(metric.Rebalances)
	wait(10 * time.Minute)
	if n := c.metrics.Sum(metric.Rebalances); n != joins {
		t.Fatalf("%v rebalances, want %v: a client was rebuilt while nothing came", n, joins)
	}
	c.Instance(0).client.Deafen()
	before := fetches()
	c.send(10)
	wait(5 * time.Second)
	if fetches() != before {
		t.Fatal("the client fetches: the test does not show what it should")
	}
	wait(time.Minute)
	if c.metrics.Sum(metric.Rebalances) == joins {
		t.Error("the client was not rebuilt")
	}
	c.check()
}

// A record that comes between a poll and the look at a silent input is not one
// that the client has left behind: it had no chance yet. The client stays, as
// often as that happens.
func TestARecordJustBeforeALookIsNoStandstill(t *testing.T) {
	t.Parallel()
	c := newChain(t, Options{})
	c.send(10)
	c.check()
	joins, looks := c.metrics.Sum(metric.Rebalances), 0
	c.hook = func(call simkafka.Call) simkafka.Fault {
		if call.Op == simkafka.FetchBounds {
			if looks++; looks%3 == 0 { // the looks before found nothing
				c.send(5)
			}
		}
		return simkafka.Fault{}
	}
	for range 3000 {
		c.Advance(100 * time.Millisecond)
	}
	c.hook = nil
	if looks < 9 {
		t.Fatalf("there were %d looks: the test does not show what it should", looks)
	}
	if n := c.metrics.Sum(metric.Rebalances); n != joins {
		t.Errorf("%v rebalances, want %v: the client was rebuilt for a record that had just come", n, joins)
	}
	c.check()
}
