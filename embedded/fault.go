package embedded

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// AnyRequest is the key with which Control sees every request.
const AnyRequest kmsg.Key = -1

// Fault says which requests are answered with an error. Every field that is
// set must match; a field that a request does not carry never matches, so a
// fault with a topic leaves heartbeats alone.
//
// The request is refused before it has an effect, except with
// REQUEST_TIMED_OUT (and NOT_ENOUGH_REPLICAS_AFTER_APPEND for produce): there it
// is carried out and then answered with the error, as when the answer was lost.
type Fault struct {
	Keys       []kmsg.Key // requests, such as kmsg.EndTxn. Defaults to all
	Nodes      []int32    // nodes that the request reached. Defaults to all
	Topic      string     // topic of the entry that fails
	Partitions []int32    // partitions of the entry that fails
	Group      string     // group, in FindCoordinator too
	TxnID      string     // transactional id, in FindCoordinator too

	// TopLevel puts the error in the field for the whole request, where there
	// is one, rather than in that of each entry.
	TopLevel bool

	// Code is the error code of the answer, such as
	// kerr.ProducerFenced.Code. Defaults to UNKNOWN_SERVER_ERROR.
	Code int16

	// Count is how many requests fail. Defaults to 1; -1 is until Remove.
	Count int

	// When looks into the request. It is called once or more for each entry,
	// on the cluster's goroutine, so it must return at once and must not call
	// the Broker; use Control to count requests. Defaults to all.
	When func(kmsg.Request) bool

	// Observe counts what matches and lets it pass.
	Observe bool
}

// Injection is a fault in place.
type Injection struct {
	b *Broker
	h *kfake.FaultHandle
}

// Fault puts a fault in place.
func (b *Broker) Fault(f Fault) (*Injection, error) {
	if err := b.enter(); err != nil {
		return nil, err
	}
	defer b.leave()
	in := kfake.Fault{
		Keys:       slices.Clone(f.Keys),
		Nodes:      slices.Clone(f.Nodes),
		Topic:      f.Topic,
		Partitions: slices.Clone(f.Partitions),
		Group:      f.Group,
		TxnID:      f.TxnID,
		TopLevel:   f.TopLevel,
		Count:      f.Count,
		When:       f.When,
		Observe:    f.Observe,
	}
	if f.Code != 0 {
		if in.Err = kerr.TypedErrorForCode(f.Code); in.Err == nil || in.Err.Code != f.Code {
			return nil, fmt.Errorf("fault: %d is no error code of Kafka's", f.Code)
		}
	}
	return &Injection{b: b, h: b.cluster.Fault(in)}, nil
}

// Hits returns how many requests matched so far.
func (i *Injection) Hits() int { return i.h.Hits() }

// Wait waits until n requests have matched since the fault was put in place,
// or until ctx or the broker ends.
func (i *Injection) Wait(ctx context.Context, n int) error {
	ctx, cancel := i.b.bounded(ctx)
	defer cancel()
	if err := i.h.Wait(ctx, n); err != nil {
		return fmt.Errorf("waiting for %d requests, %d came: %w", n, i.h.Hits(), context.Cause(ctx))
	}
	return nil
}

// Remove takes the fault away. It may be called more than once.
func (i *Injection) Remove() { i.h.Remove() }

// Call is a request in the hands of a Control function. It must not be used
// after the function has returned.
type Call struct {
	// Request is the request, decoded. It may be read, not changed.
	Request kmsg.Request

	// Node is the node that the request reached.
	Node int32

	b *Broker
}

// Sleep lets the broker serve other connections until wake returns, and then
// goes on. Requests of the same connection wait, so wake must not depend on
// one. It is the only way to hold a request back; a Control function that
// blocks otherwise blocks the broker.
func (c *Call) Sleep(wake func()) { c.b.cluster.SleepControl(wake) }

// Answer returns an empty answer to the request, to be filled in and returned.
func (c *Call) Answer() kmsg.Response { return c.Request.ResponseKind() }

// Control calls fn for each request with the key, or with AnyRequest for every
// request, until stop is called. fn decides what becomes of it:
//
//	nil, nil, false   it is carried out as usual
//	resp, nil, true   it is answered with resp and not carried out
//	nil, err, true    its connection is closed and it is not carried out
//	nil, nil, true    it is never answered and not carried out
//
// Functions for one key are called in the order in which they were added, those
// for AnyRequest last, until one decides. The broker does nothing else while
// one runs, so a function sees requests in the order in which they are carried
// out and needs no lock of its own, but for what others read. It also sees the
// few requests by which Compact, OpenTransactions, AddPartitions and Close do
// their work. After stop has returned no further call begins.
func (b *Broker) Control(key kmsg.Key, fn func(*Call) (kmsg.Response, error, bool)) (stop func(), err error) { //nolint:revive // three verdicts, as in kfake
	if err := b.enter(); err != nil {
		return nil, err
	}
	defer b.leave()
	var stopped atomic.Bool
	b.cluster.ControlKey(int16(key), func(req kmsg.Request) (kmsg.Response, error, bool) {
		if stopped.Load() {
			b.cluster.DropControl()
			return nil, nil, false
		}
		if c, ok := req.(*kmsg.ControlledShutdownRequest); ok && c != nil {
			return nil, nil, false // the broker's own, see exclusive
		}
		b.cluster.KeepControl()
		return fn(&Call{Request: req, Node: b.cluster.CurrentNode(), b: b})
	})
	return func() { stopped.Store(true) }, nil
}

// MoveLeader makes a node the leader of a partition and raises its leader
// epoch.
func (b *Broker) MoveLeader(topic string, partition, node int32) error {
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	if err := b.cluster.MoveTopicPartition(topic, partition, node); err != nil {
		return fmt.Errorf("move leader of partition %d of topic %q to node %d: %w", partition, topic, node, err)
	}
	return nil
}

// MoveCoordinators gives groups and transactional ids other coordinators, by
// chance among the nodes.
func (b *Broker) MoveCoordinators() error {
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	b.cluster.RehashCoordinators()
	return nil
}

// Coordinator returns the node that coordinates a group or transactional id.
func (b *Broker) Coordinator(id string) (int32, error) {
	if err := b.enter(); err != nil {
		return 0, err
	}
	defer b.leave()
	return b.cluster.CoordinatorFor(id), nil
}

// OpenTransactions returns the transactional ids that have a transaction open,
// in order.
func (b *Broker) OpenTransactions(ctx context.Context) ([]string, error) {
	if err := b.enter(); err != nil {
		return nil, err
	}
	defer b.leave()
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	open, err := b.openTransactions(ctx)
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(open))
	for i, t := range open {
		ids[i] = t.TransactionalID
	}
	slices.Sort(ids)
	return ids, nil
}
