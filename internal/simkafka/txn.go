package simkafka

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/worker"
)

// producer is a transactional id as the transaction coordinator knows it.
type producer struct {
	txnID   string
	id      int64
	epoch   int32
	timeout time.Duration

	open    bool
	since   time.Time
	parts   []*partition // that the transaction wrote to
	pending []pendingOffsets
}

// pendingOffsets are offsets that count when the transaction commits.
type pendingOffsets struct {
	group   *group
	offsets []worker.OffsetCommit
}

// identity is what a client sends along with each request of a producer.
type identity struct {
	txnID string
	id    int64
	epoch int32
}

var (
	errProducerFenced  = fmt.Errorf("%w: PRODUCER_FENCED", worker.ErrFenced)
	errProducerUnknown = fmt.Errorf("%w: INVALID_PRODUCER_ID_MAPPING", worker.ErrFenced)
	errNoTransaction   = errors.New("INVALID_TXN_STATE")
)

// initProducer is InitProducerId: it fences whoever had the transactional id
// before, and aborts what they left open.
func (c *Cluster) initProducer(txnID string, timeout time.Duration) identity {
	p := c.producers[txnID]
	if p == nil {
		c.nextID++
		p = &producer{txnID: txnID, id: c.nextID, epoch: -1}
		c.producers[txnID] = p
	}
	if p.open {
		c.endTransaction(p, false)
	}
	c.arriveOf(p.id)
	p.epoch++
	p.timeout = timeout
	c.changed()
	return identity{txnID, p.id, p.epoch}
}

// check returns the producer that a request is from, or why it is refused.
func (c *Cluster) check(id identity) (*producer, error) {
	p := c.producers[id.txnID]
	switch {
	case p == nil || p.id != id.id:
		return nil, errProducerUnknown
	case p.epoch != id.epoch:
		return nil, errProducerFenced
	}
	return p, nil
}

// begin opens the transaction at the first request that belongs to it.
func (c *Cluster) begin(p *producer) {
	if !p.open {
		c.arriveOf(p.id)
		p.open, p.since = true, c.now()
	}
}

// produce appends records of a transaction.
func (c *Cluster) produce(id identity, to *partition, records []task.Record) error {
	p, err := c.check(id)
	if err != nil {
		return err
	}
	for i := range records {
		if err := to.accepts(&records[i]); err != nil {
			return err
		}
	}
	c.begin(p)
	if !slices.Contains(p.parts, to) {
		p.parts = append(p.parts, to)
	}
	for i := range records {
		to.append(&records[i], p.id)
	}
	c.changed()
	return nil
}

// endTransaction decides the open transaction of a producer. Its epoch goes up
// with that, so that no request of this transaction can become part of the next.
func (c *Cluster) endTransaction(p *producer, commit bool) {
	for _, part := range p.parts {
		c.mark(marker{producer: p.id, commit: commit, to: part})
	}
	if len(p.pending) > 0 {
		c.mark(marker{producer: p.id, commit: commit, offsets: p.pending})
	}
	p.open, p.parts, p.pending = false, nil, nil
	p.epoch++
	c.changed()
}

// end is EndTxn. It returns the epoch of the next transaction.
func (c *Cluster) end(id identity, commit bool) (identity, error) {
	p, err := c.check(id)
	if err != nil {
		return id, err
	}
	if !p.open {
		return id, errNoTransaction
	}
	c.endTransaction(p, commit)
	id.epoch = p.epoch
	return id, nil
}

// expireTransactions aborts the transactions that were open for too long. Their
// producers are fenced by it.
func (c *Cluster) expireTransactions(now time.Time) {
	for _, p := range c.sortedProducers() {
		if p.open && now.Sub(p.since) >= p.timeout {
			c.endTransaction(p, false)
		}
	}
}

func (c *Cluster) sortedProducers() []*producer {
	list := make([]*producer, 0, len(c.producers))
	for _, p := range c.producers {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *producer) int { return int(a.id - b.id) })
	return list
}

// ExpireProducer makes the broker forget a transactional id, as it does after
// transactional.id.expiration.ms without use. It refuses while a transaction is
// open.
func (c *Cluster) ExpireProducer(txnID string) error {
	p := c.producers[txnID]
	if p == nil {
		return fmt.Errorf("transactional id %q is not known", txnID)
	}
	if p.open {
		return fmt.Errorf("transactional id %q has an open transaction", txnID)
	}
	delete(c.producers, txnID)
	c.changed()
	return nil
}

// OpenTransactions lists the transactional ids with an open transaction.
func (c *Cluster) OpenTransactions() []string {
	var list []string
	for _, p := range c.sortedProducers() {
		if p.open {
			list = append(list, p.txnID)
		}
	}
	return list
}

// Transaction is a transaction of some other program.
type Transaction struct {
	c  *Cluster
	id identity
}

// Transaction begins a transaction with a producer of its own. One that the same
// transactional id had left open is aborted.
func (c *Cluster) Transaction(txnID string, timeout time.Duration) *Transaction {
	c.expire()
	return &Transaction{c, c.initProducer(txnID, timeout)}
}

// Append writes records to a partition.
func (t *Transaction) Append(tp worker.TopicPartition, records ...task.Record) error {
	t.c.expire()
	p, err := t.c.partition(tp)
	if err != nil {
		return err
	}
	return t.c.produce(t.id, p, records)
}

// Commit and Abort end the transaction. It can be used again after that.
func (t *Transaction) Commit() error { return t.finish(true) }

// Abort drops what was appended.
func (t *Transaction) Abort() error { return t.finish(false) }

func (t *Transaction) finish(commit bool) (err error) {
	t.c.expire()
	t.id, err = t.c.end(t.id, commit)
	return err
}
