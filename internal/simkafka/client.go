package simkafka

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weirstreams/weir/internal/worker"
)

// ClientConfig is what a process tells its Kafka clients. Zero timeouts are
// the defaults of an application.
type ClientConfig struct {
	// Name is for calls and member ids. Required.
	Name               string
	SessionTimeout     time.Duration // defaults to 15 s
	RebalanceTimeout   time.Duration // defaults to 60 s
	TransactionTimeout time.Duration // defaults to 10 s
}

// Client is all that one process has to do with the cluster: its members,
// producers and readers. They send heartbeats in the background as long as the
// process is there and not paused.
type Client struct {
	cluster *Cluster
	cfg     ClientConfig
	name    string
	members []*Member
	dead    bool
	paused  bool
	fetched int64
}

// Fetched returns the number of records that the polls of the client's members
// have brought.
func (c *Client) Fetched() int64 { return c.fetched }

// Deafen makes the members that the client has now fetch nothing any more, as a
// client does that has lost its place: what they own is paused, and its owner
// does not know. Nothing fails.
func (c *Client) Deafen() {
	for _, m := range c.members {
		for _, tp := range m.owned {
			m.paused[tp] = true
		}
	}
}

var _ worker.Broker = (*Client)(nil)

// Client returns the clients of another process.
func (c *Cluster) Client(cfg ClientConfig) *Client {
	for _, d := range []struct {
		d   *time.Duration
		def time.Duration
	}{{&cfg.SessionTimeout, 15 * time.Second}, {&cfg.RebalanceTimeout, time.Minute}, {&cfg.TransactionTimeout, 10 * time.Second}} {
		if *d.d == 0 {
			*d.d = d.def
		}
	}
	cl := &Client{cluster: c, cfg: cfg, name: cfg.Name}
	c.clients = append(c.clients, cl)
	return cl
}

func (cl *Client) running() bool { return !cl.dead && !cl.paused }

// Crash ends the process without a word to the broker. Calls of its clients
// fail from now on.
func (cl *Client) Crash() {
	cl.cluster.expire()
	cl.dead = true
	cl.cluster.changed()
}

// Dead says whether the process has died.
func (cl *Client) Dead() bool { return cl.dead }

// Pause stops the process, as SIGSTOP does: it sends no heartbeats. Its calls
// are still carried out, as those of one that goes on without knowing that it
// was away; nobody but the caller keeps it from making any.
func (cl *Client) Pause() {
	cl.cluster.expire()
	cl.paused = true
}

// Resume lets the process go on.
func (cl *Client) Resume() {
	cl.cluster.expire()
	if cl.paused {
		for _, m := range cl.members {
			m.unaware = cl.cluster.now().Add(cl.cluster.cfg.HeartbeatAnswer)
		}
	}
	cl.paused = false
}

// Holding says whether a member is between the return of a Poll and
// AllowRebalance.
func (cl *Client) Holding() bool {
	return slices.ContainsFunc(cl.members, func(m *Member) bool { return !m.closed && !m.allowed })
}

// Join implements worker.Broker. The producer is registered at once, which
// fences an earlier one with the same transactional id.
func (cl *Client) Join(_ context.Context, cfg worker.MemberConfig) (worker.Member, error) {
	m := &Member{client: cl, cfg: cfg, generation: -1, allowed: true,
		pos: map[worker.TopicPartition]int64{}, paused: map[worker.TopicPartition]bool{}, topics: map[string][16]byte{},
		produced: map[worker.TopicPartition]int64{}, turns: map[string]int32{}}
	err := cl.request(Call{Op: Join}, func() error {
		if cfg.TransactionalID != "" {
			m.producer = cl.cluster.initProducer(cfg.TransactionalID, cl.cfg.TransactionTimeout)
		}
		cl.members = append(cl.members, m)
		return nil
	})
	if err != nil {
		m.closed = true
		return nil, err
	}
	return m, nil
}

// Reader implements worker.Broker.
func (cl *Client) Reader(_ context.Context, committedOnly bool) (worker.Reader, error) {
	r := &Reader{client: cl, committedOnly: committedOnly, pos: map[worker.TopicPartition]int64{}}
	if err := cl.request(Call{Op: NewReader}, func() error { return nil }); err != nil {
		return nil, err
	}
	return r, nil
}

// bounds answers for the given isolation.
func (cl *Client) bounds(op Op, tps []worker.TopicPartition, committedOnly bool) (map[worker.TopicPartition]worker.Bounds, error) {
	list := map[worker.TopicPartition]worker.Bounds{}
	err := cl.request(Call{Op: op, Partitions: tps}, func() error {
		for _, tp := range tps {
			p, err := cl.cluster.partition(tp)
			if err != nil {
				return err
			}
			list[tp] = worker.Bounds{Start: p.start, End: p.readEnd(committedOnly), High: p.end}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// fetchInto reads partitions in turn, from one more than last time on, so that
// a busy one does not starve the others.
func (c *Cluster) fetch(tps []worker.TopicPartition, turn int, pos map[worker.TopicPartition]int64, committedOnly bool, limit int, f *fetches) {
	f.reset()
	for i := range tps {
		tp := tps[(i+turn)%len(tps)]
		p, err := c.partition(tp)
		at := pos[tp]
		switch {
		case err != nil:
		case at < p.start || at > p.end:
			err = worker.ErrOutOfRange
		}
		if err != nil {
			f.list = append(f.list, worker.Fetched{TopicPartition: tp, End: -1, Err: err})
			continue
		}
		from := len(f.records)
		var next int64
		f.records, next = p.read(at, committedOnly, limit-from, f.records)
		if next != at {
			pos[tp] = next
			c.changed()
		}
		if len(f.records) > from {
			f.list = append(f.list, worker.Fetched{TopicPartition: tp, Records: f.records[from:len(f.records):len(f.records)], End: p.readEnd(committedOnly)})
		}
	}
}

// sorted orders partitions by topic and number.
func sorted(tps []worker.TopicPartition) []worker.TopicPartition {
	slices.SortFunc(tps, func(a, b worker.TopicPartition) int {
		if a.Topic != b.Topic {
			if a.Topic < b.Topic {
				return -1
			}
			return 1
		}
		return int(a.Partition) - int(b.Partition)
	})
	return tps
}

// topicFacts describes topics.
func (c *Cluster) topicFacts(topics []string) (map[string]worker.TopicFacts, error) {
	facts := map[string]worker.TopicFacts{}
	for _, n := range topics {
		t := c.topics[n]
		if t == nil {
			return nil, errUnknownTopic(n)
		}
		facts[n] = worker.TopicFacts{ID: t.id, Partitions: int32(len(t.partitions))}
	}
	return facts, nil
}

// deleteRecords is DeleteRecords of several partitions; the first error counts.
func (c *Cluster) deleteRecords(below map[worker.TopicPartition]int64) error {
	var tps []worker.TopicPartition
	for tp := range below {
		tps = append(tps, tp)
	}
	var failed error
	for _, tp := range sorted(tps) {
		if err := c.DeleteBelow(tp, below[tp]); err != nil && failed == nil {
			failed = fmt.Errorf("delete records: %w", err)
		}
	}
	return failed
}
