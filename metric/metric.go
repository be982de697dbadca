// Package metric is the small interface behind which all metrics of Weir stand,
// and the table of these metrics. Package weirprom implements it for
// Prometheus; [Discard] drops everything; [Memory] is for tests.
//
// # Handles
//
// A [Sink] hands out handles. One is resolved when a task, a worker or a store
// starts, used on the hot path without a look-up, and closed when its owner
// goes away: then its series vanishes from the sink, so that a process does not
// go on reporting tasks that moved to another one, and a thousand rebalances
// leave nothing behind. Several handles may share one series (two tasks that
// write to one topic); it lives until the last of them is closed. [Scope] closes
// the handles of one owner together.
//
// # Units
//
// Durations are in seconds and sizes in bytes, both as float64, and the name of
// the metric says so. [ObserveDuration] converts.
package metric

import "time"

// Label is a dimension of a series.
type Label struct{ Name, Value string }

// L is Label{name, value}.
func L(name, value string) Label { return Label{name, value} }

// Sink receives measurements. Its methods and those of its handles are safe for
// concurrent use and do not fail, block or panic: metrics never stop the
// processing of records. Names and label names are those of the table [Metrics];
// labels come in any order. What a sink does about a name, kind or label that
// is not in the table is its own affair; [Check] finds it.
type Sink interface {
	// Counter returns a handle on a counter.
	Counter(name string, labels ...Label) Counter
	// Gauge returns a handle on a gauge. Handles that share a gauge overwrite
	// each other.
	Gauge(name string, labels ...Label) Gauge
	// Histogram returns a handle on a histogram.
	Histogram(name string, labels ...Label) Histogram
}

// Counter only rises.
type Counter interface {
	// Add raises the counter. Without effect unless 0 < delta < +Inf.
	Add(delta float64)
	Closer
}

// Gauge holds the last value set.
type Gauge interface {
	// Set replaces the value.
	Set(v float64)
	Closer
}

// Histogram counts observations by size.
type Histogram interface {
	// Observe adds one observation, in the unit of the metric. A NaN is left
	// out.
	Observe(v float64)
	Closer
}

// Closer gives up a handle. Its series goes away with the last handle on it; a
// series that is resolved again later starts from nothing, as after a restart
// of the process. A closed handle stays safe to use; what it then reports may be
// lost. Closing again has no effect.
type Closer interface{ Close() }

// ObserveDuration observes d in seconds, the unit of every histogram of time.
func ObserveDuration(h Histogram, d time.Duration) { h.Observe(d.Seconds()) }

// Discard drops everything.
var Discard Sink = discard{}

type (
	discard       struct{}
	discardHandle struct{}
)

func (discard) Counter(string, ...Label) Counter     { return discardHandle{} }
func (discard) Gauge(string, ...Label) Gauge         { return discardHandle{} }
func (discard) Histogram(string, ...Label) Histogram { return discardHandle{} }

func (discardHandle) Add(float64)     {}
func (discardHandle) Set(float64)     {}
func (discardHandle) Observe(float64) {}
func (discardHandle) Close()          {}
