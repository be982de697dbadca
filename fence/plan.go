package fence

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Costs that Plan reckons with; give your own in Load when yours differ.
const (
	// DefaultServerCost is the processor time of redis-server for one record:
	// the comparison, the calculation, and the entry in the pending window.
	// BenchmarkServer measured 4.3 to 6.6 us for Add and Sum, and BenchmarkServerCost
	// 2.0 to 2.4 us for a Set of 100 bytes in batches of 500, on redis-server 7.0
	// without persistence on one core of an AMD EPYC. An append-only file and a
	// replica take half as much again.
	DefaultServerCost = 5 * time.Microsecond
	// DefaultCallCost is the processor time of redis-server for one call of the
	// script, whatever is in it. BenchmarkServerCost measured 35 to 45 us.
	DefaultCallCost = 40 * time.Microsecond
	// DefaultSendTime is how long it takes to have outputs acknowledged and then
	// the offsets committed. It is assumed and not measured: a cluster in one
	// data centre with acks=all.
	DefaultSendTime = 10 * time.Millisecond
)

// Bounds of Plan.
const (
	// MaxUtilisation is the share of its time that a redis-server, which runs
	// scripts on one core, may be busy: beyond it the time that calls wait for
	// each other exceeds that which they take.
	MaxUtilisation = 0.6
	// minBatch is the batch below which the costs of the call outweigh those of
	// its records.
	minBatch = 16
	// planBatch is the largest batch that Plan proposes: one script call blocks
	// the server, and more than one chunk of records gains nothing.
	planBatch = chunkRecords
	// headroom is how much more than the rate the plan can do, to catch up.
	headroom = 1.5
)

// Load is what Plan plans for. The zero value of a field means its default.
type Load struct {
	// Rate is how many records come in a second, at peak. Required.
	Rate float64
	// Partitions is the number of partitions of the topic. Required.
	Partitions int
	// RoundTrip is the time from the consumer to Redis and back, without that
	// for the work; redis-cli --latency measures it. Required.
	RoundTrip time.Duration
	// ServerCost, CallCost and SendTime default to the constants of these names.
	ServerCost time.Duration
	CallCost   time.Duration
	SendTime   time.Duration
	// Nodes is how many primaries the states are spread over. Defaults to 1.
	Nodes int
}

// Sizing is what Plan proposes.
type Sizing struct {
	// BatchRecords is the number of records in a batch of one partition, for
	// ConsumerConfig.MaxBatchRecords.
	BatchRecords int `json:"batch_records"`
	// Concurrency is the number of partitions worked on at once, for
	// ConsumerConfig.MaxConcurrency of all instances together.
	Concurrency int `json:"concurrency"`
	// Utilisation is the share of its time that each redis-server is busy.
	Utilisation float64 `json:"utilisation"`
	// Capacity is how many records a second that does.
	Capacity float64 `json:"capacity"`
	// Latency is the time of a record from the poll to the commit.
	Latency time.Duration `json:"latency_ns"`
	// InFlight is how many records are between poll and commit: Little's law,
	// rate times latency.
	InFlight int `json:"in_flight"`
	// Reasons say for each of these where it comes from, in the same order.
	Reasons []string `json:"reasons"`
}

// ErrLoad says that no sizing does what is asked for. The error says what would.
var ErrLoad = errors.New("fence: no sizing carries the load")

// Plan does the arithmetic of a Consumer: how many records belong in a batch and
// how many partitions are worked on at once, so that the rate is met with some
// room to catch up. The steps of a partition follow each other, so one partition
// does a batch in the time of a round trip, of the work for its records and of
// sending; more come only from larger batches or from more partitions at once
// (Little's law). Its limit is the server, which does one thing at a time.
func Plan(l Load) (Sizing, error) {
	if err := l.complete(); err != nil {
		return Sizing{}, err
	}
	perNode := l.Rate / float64(l.Nodes)
	record, call := l.ServerCost.Seconds(), l.CallCost.Seconds()
	if busy := perNode * record; busy > MaxUtilisation {
		return Sizing{}, fmt.Errorf("%w: %.0f records a second at %v each keep a redis-server busy for %.0f %% of its time, and %.0f %% is the most: use %d primaries of a cluster, or put less into Redis",
			ErrLoad, perNode, l.ServerCost, 100*busy, 100*MaxUtilisation, int(math.Ceil(l.Rate*record/MaxUtilisation)))
	}
	// The smallest batch with which the calls, too, are carried.
	batch := minBatch
	for batch < planBatch && perNode*(record+call/float64(batch)) > MaxUtilisation {
		batch++
	}
	want := l.Rate * headroom
	for batch < planBatch && l.concurrency(batch, want) > l.Partitions {
		batch++
	}
	if n := l.concurrency(batch, want); n > l.Partitions {
		return Sizing{}, fmt.Errorf("%w: it takes %d partitions at once, each with a batch of %d in %v, and the topic has %d: use more partitions, or come nearer to Redis and Kafka",
			ErrLoad, n, batch, l.cycle(batch).Round(time.Microsecond), l.Partitions)
	}
	busy := perNode * (record + call/float64(batch))
	if busy > MaxUtilisation {
		return Sizing{}, fmt.Errorf("%w: with batches of %d a redis-server is busy for %.0f %% of its time, and %.0f %% is the most: use more primaries of a cluster",
			ErrLoad, batch, 100*busy, 100*MaxUtilisation)
	}
	s := Sizing{BatchRecords: batch, Concurrency: l.concurrency(batch, want), Utilisation: busy, Latency: l.cycle(batch)}
	s.Capacity = math.Min(float64(s.Concurrency)*float64(batch)/s.Latency.Seconds(), l.Rate*MaxUtilisation/busy)
	s.InFlight = int(math.Ceil(l.Rate * s.Latency.Seconds()))
	s.Reasons = []string{
		fmt.Sprintf("batch of %d: a call costs the server %v and each record %v, so %.0f %% of its work is for records", batch, l.CallCost, l.ServerCost,
			100*record*float64(batch)/(record*float64(batch)+call)),
		fmt.Sprintf("%d partitions at once: one does %d records in %v, and %.0f a second are wanted, half as much again as come", s.Concurrency, batch, s.Latency.Round(time.Microsecond), want),
		fmt.Sprintf("%.0f %% busy: %.0f records a second for each of %d primaries; up to %.0f %% calls hardly wait for each other", 100*busy, perNode, l.Nodes, 100*MaxUtilisation),
		fmt.Sprintf("%.0f records a second at most: by the %s", s.Capacity, limitOf(s.Capacity, l.Rate*MaxUtilisation/busy)),
		fmt.Sprintf("%v from poll to commit: %v there and back, %v for the records, %v to send and commit", s.Latency.Round(time.Microsecond), l.RoundTrip,
			(l.CallCost + time.Duration(batch)*l.ServerCost).Round(time.Microsecond), l.SendTime),
		fmt.Sprintf("%d records under way: %.0f a second times %v", s.InFlight, l.Rate, s.Latency.Round(time.Microsecond)),
	}
	return s, nil
}

func limitOf(capacity, server float64) string {
	if capacity >= server {
		return "server"
	}
	return "round trips"
}

// cycle is the time of one batch of one partition.
func (l *Load) cycle(batch int) time.Duration {
	return l.RoundTrip + l.CallCost + time.Duration(batch)*l.ServerCost + l.SendTime
}

// concurrency is how many partitions at once do so many records a second.
func (l *Load) concurrency(batch int, rate float64) int {
	return max(1, int(math.Ceil(rate*l.cycle(batch).Seconds()/float64(batch))))
}

func (l *Load) complete() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("fence: Load."+format, args...)) }
	if math.IsNaN(l.Rate) || l.Rate <= 0 || l.Rate > 1e9 {
		bad("Rate is %v records a second: give more than 0 and at most a billion", l.Rate)
	}
	if l.Partitions < 1 || l.Partitions > 1_000_000 {
		bad("Partitions is %d", l.Partitions)
	}
	if l.RoundTrip <= 0 || l.RoundTrip > 10*time.Second {
		bad("RoundTrip is %v: redis-cli --latency measures it", l.RoundTrip)
	}
	if l.Nodes == 0 {
		l.Nodes = 1
	}
	if l.Nodes < 0 || l.Nodes > 16384 {
		bad("Nodes is %d", l.Nodes)
	}
	for _, d := range []struct {
		of   *time.Duration
		name string
		def  time.Duration
	}{{&l.ServerCost, "ServerCost", DefaultServerCost}, {&l.CallCost, "CallCost", DefaultCallCost}, {&l.SendTime, "SendTime", DefaultSendTime}} {
		if *d.of == 0 {
			*d.of = d.def
		}
		if *d.of < 0 || *d.of > time.Minute {
			bad("%s is %v", d.name, *d.of)
		}
	}
	return errors.Join(errs...)
}
