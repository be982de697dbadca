package task

import (
	"fmt"
	"slices"

	"github.com/weirstreams/weir/internal/topology"
)

// Plan is a subtopology, ready to be made into tasks.
type Plan struct {
	Subtopology int32
	Inputs      []string // source topics as they are called on the broker
	Stores      []StoreSpec
	// Ahead are, for each input, the indexes of the stores that are as a rule
	// asked for the keys of its records. Nil when nothing is known.
	Ahead [][]int
	// Times names the operators that keep a stream time of their own.
	Times []string
	// New wires the operators of one task. It is called at the start of a task
	// and again after each abort, so that nothing of an aborted batch stays.
	New func(c *Context) (Instance, error)
}

// Instance is the wired operators of one task.
type Instance interface {
	// Process takes one record of the input with that index through the
	// operators, depth first, to the end.
	Process(input int, r *Record) error
	// Close releases what the operators hold.
	Close() error
}

// Looker is implemented by an Instance that can tell of a record, before it is
// processed, which keys of stores it will ask for. It is asked before the records
// in front have been processed, may guess, and must change nothing.
type Looker interface {
	LookAhead(input int, r *Record, want func(s *Store, key []byte))
}

// Context is what operators see of their task. It belongs to the task's
// goroutine.
type Context struct {
	task *Task

	input  int
	record *Record // nil in a punctuation
	node   string
}

// Task is the id of the task.
func (c *Context) Task() topology.TaskID { return c.task.cfg.ID }

// Store returns a store of the subtopology by name, nil when it has none of
// that name.
func (c *Context) Store(name string) *Store {
	for _, s := range c.task.stores {
		if s.Spec.Name == name {
			return s
		}
	}
	return nil
}

// Record is the input record being processed, nil in a punctuation.
func (c *Context) Record() *Record { return c.record }

// Source says where the record being processed came from; the topic is empty
// in a punctuation.
func (c *Context) Source() (topic string, partition int32, offset int64) {
	if c.record == nil {
		return "", 0, 0
	}
	return c.task.plan.Inputs[c.input], c.task.cfg.ID.Partition, c.record.Offset
}

// StreamTime is the largest timestamp taken so far in ms, -1 when none was.
func (c *Context) StreamTime() int64 { return c.task.streamTime }

// Now is the wall clock of the current step in ms.
func (c *Context) Now() int64 { return c.task.now }

// Time returns the stream time of a named operator, kept over restarts. The
// name must be one of the plan's Times; the value is -1 at first.
func (c *Context) Time(name string) *int64 {
	for i, n := range c.task.plan.Times {
		if n == name {
			return &c.task.times[i]
		}
	}
	return nil
}

// Enter says which operator runs user code now, for errors and dead letters.
// It returns the one before, for the caller to restore.
func (c *Context) Enter(node string) string {
	before := c.node
	c.node = node
	return before
}

// Drops returns the counter of records that a node drops for a reason. It is
// resolved once, at wiring.
func (c *Context) Drops(node, reason string) *DropCounter {
	for _, d := range c.task.drops {
		if d.Node == node && d.Reason == reason {
			return d
		}
	}
	d := &DropCounter{Node: node, Reason: reason}
	c.task.drops = append(c.task.drops, d)
	return d
}

// DropCounter counts the records that a node dropped for a reason.
type DropCounter struct {
	Node, Reason string
	N            int64
}

// Buf returns an empty slice to append an encoded key or value to, and Keep
// turns the result into bytes that live as long as the batch.
func (c *Context) Buf() []byte { return c.task.arena.tail() }

// Keep makes b, appended to the result of Buf, live as long as the batch.
func (c *Context) Keep(b []byte) []byte { return c.task.arena.take(b) }

// Emit adds an output. Key and value must come from Keep or live as long as
// the batch otherwise. A record that is too large is refused with an error of
// class produce, before it could harm the transaction.
func (c *Context) Emit(topic string, partition int32, key, value []byte, ts int64, headers []Header) error {
	headers = withoutID(headers)
	n := len(key) + len(value)
	for _, h := range headers {
		n += len(h.Key) + len(h.Value)
	}
	if n > c.task.cfg.MaxRecordBytes {
		return Classify(ClassProduce, fmt.Errorf("a record of %d bytes for topic %s is larger than the limit of %d (MaxRecordBytes)",
			n, topic, c.task.cfg.MaxRecordBytes))
	}
	c.task.outputs = append(c.task.outputs, Output{Topic: topic, Partition: partition, Timestamp: ts,
		Key: key, Value: value, Headers: headers, Store: -1})
	c.task.outputBytes += n
	c.task.segmentBytes += n + len(topic) + OutputOverhead + len(headers)*HeaderOverhead
	return nil
}

// HeaderID is the key of the header that holds the id of an output. It is
// reserved.
const HeaderID = "weir-id"

// withoutID leaves out the id of the record that an output was made from: two
// outputs of it would have the same.
func withoutID(headers []Header) []Header {
	is := func(h Header) bool { return h.Key == HeaderID }
	if !slices.ContainsFunc(headers, is) {
		return headers
	}
	return slices.DeleteFunc(slices.Clone(headers), is)
}

// Schedule calls fn each interval (ms, at least 1) of the clock. The first
// stream-time call comes with the first record, the first wall-clock call one
// interval from now (KIP-138). After a restart stream-time punctuation goes on
// where it was. It may be called at wiring and later.
func (c *Context) Schedule(clock Clock, interval int64, node string, fn func(now int64) error) {
	t := c.task
	tm := &timer{clock: clock, interval: max(interval, 1), node: node, fn: fn}
	switch {
	case clock == WallClock:
		tm.due = t.now + tm.interval
	case t.streamTime >= 0:
		tm.due = t.streamTime - t.streamTime%tm.interval + tm.interval
	}
	t.timers = append(t.timers, tm)
}
