package weirtest

import (
	"testing"
	"time"

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
