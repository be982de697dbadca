package embedded

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ownClientID is the client id of the broker's requests to itself.
const ownClientID = "weir-embedded"

// request sends one request to a node on a connection of its own and reads the
// answer. It works while clients are shut out. What the cluster does not offer
// as a method is asked for in this way, rather than with a client that has
// goroutines and retries.
func (b *Broker) request(ctx context.Context, node int32, req kmsg.Request) (kmsg.Response, error) {
	name := kmsg.NameForKey(req.Key())
	if node < 0 || int(node) >= len(b.net.nodes) {
		return nil, fmt.Errorf("%s: no broker has node id %d", name, node)
	}
	c, err := b.net.nodes[node].dial(ctx, true)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	resp, err := roundTrip(c, req)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return resp, nil
}

func roundTrip(c io.ReadWriter, req kmsg.Request) (kmsg.Response, error) {
	const correlation = 1
	frame := kmsg.NewRequestFormatter(kmsg.FormatterClientID(ownClientID)).AppendRequest(nil, req, correlation)
	if _, err := c.Write(frame); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(c, body); err != nil {
		return nil, err
	}
	r := kbin.Reader{Src: body}
	if got := r.Int32(); got != correlation {
		return nil, fmt.Errorf("answer has correlation id %d, want %d", got, correlation)
	}
	resp := req.ResponseKind()
	if resp.IsFlexible() && resp.Key() != int16(kmsg.ApiVersions) {
		kmsg.SkipTags(&r)
	}
	if err := resp.ReadFrom(r.Src); err != nil {
		return nil, err
	}
	return resp, nil
}

// exclusive runs fn while the cluster handles no request: whatever fn sees of
// the cluster stays true until it returns. fn must only call methods of the
// cluster that do not go through the request path.
//
// The cluster is one goroutine. While it waits for the verdict of a control
// function it serves its administrative calls and nothing else, so fn runs as
// the control function of a request made for the purpose. The key is one that
// brokers send to each other and clients never do.
func (b *Broker) exclusive(ctx context.Context, fn func() error) error {
	const queued, running, abandoned = 0, 1, 2
	var state atomic.Int32
	done := make(chan error, 1)

	req := kmsg.NewPtrControlledShutdownRequest()
	req.SetVersion(2)
	req.BrokerID = rand.Int32()
	b.cluster.ControlKey(req.Key(), func(got kmsg.Request) (kmsg.Response, error, bool) {
		if state.Load() == abandoned {
			b.cluster.DropControl()
			return nil, nil, false
		}
		c, ok := got.(*kmsg.ControlledShutdownRequest)
		if !ok || c.BrokerID != req.BrokerID || !state.CompareAndSwap(queued, running) {
			return nil, nil, false
		}
		done <- fn()
		return got.ResponseKind(), nil, true
	})
	_, err := b.request(ctx, 0, req)
	if state.CompareAndSwap(queued, abandoned) {
		return cmp.Or(err, errors.New("a control function answered the broker's own request"))
	}
	return <-done // fn may still be running when ctx ended the request
}

// openTransactions lists the transactions that are open.
func (b *Broker) openTransactions(ctx context.Context) ([]kmsg.ListTransactionsResponseTransactionState, error) {
	req := kmsg.NewPtrListTransactionsRequest()
	req.SetVersion(1)
	req.StateFilters = []string{"Ongoing"}
	resp, err := b.request(ctx, 0, req)
	if err != nil {
		return nil, err
	}
	list := resp.(*kmsg.ListTransactionsResponse)
	if err := kerr.ErrorForCode(list.ErrorCode); err != nil {
		return nil, fmt.Errorf("list transactions: %w", err)
	}
	return list.TransactionStates, nil
}

// abortTransaction aborts the open transaction of a transactional id by fencing
// its producer.
func (b *Broker) abortTransaction(ctx context.Context, id string) error {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.SetVersion(4)
	req.TransactionalID = kmsg.StringPtr(id)
	req.TransactionTimeoutMillis = 1000
	resp, err := b.request(ctx, b.cluster.CoordinatorFor(id), req)
	if err == nil {
		err = kerr.ErrorForCode(resp.(*kmsg.InitProducerIDResponse).ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("abort transaction of %q: %w", id, err)
	}
	return nil
}

// writeAbortMarkers ends transactions that a killed process left open.
func (b *Broker) writeAbortMarkers(ctx context.Context, open []openTransaction) error {
	for _, t := range open {
		req := kmsg.NewPtrWriteTxnMarkersRequest()
		req.SetVersion(1)
		topic := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
		topic.Topic = t.topic
		topic.Partitions = []int32{t.partition}
		marker := kmsg.NewWriteTxnMarkersRequestMarker()
		marker.ProducerID = t.producerID
		marker.ProducerEpoch = t.epoch
		marker.Topics = append(marker.Topics, topic)
		req.Markers = append(req.Markers, marker)
		resp, err := b.request(ctx, b.cluster.LeaderFor(t.topic, t.partition), req)
		if err != nil {
			return err
		}
		for _, m := range resp.(*kmsg.WriteTxnMarkersResponse).Markers {
			for _, rt := range m.Topics {
				for _, p := range rt.Partitions {
					if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
						return fmt.Errorf("abort marker for partition %d of topic %q: %w", p.Partition, rt.Topic, err)
					}
				}
			}
		}
		b.log.Warn("aborted a transaction that the last run left open", keyTopic, t.topic, keyPartition, t.partition, keyOffset, t.first)
	}
	return nil
}
