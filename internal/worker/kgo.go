package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/kafkaclient"
	"github.com/weirstreams/weir/internal/keyenc"
	"github.com/weirstreams/weir/internal/outbox"
	"github.com/weirstreams/weir/internal/task"
)

// Kafka is the Broker of production: franz-go.
type Kafka struct {
	// Options reach the cluster: seed brokers, dialer, TLS, SASL, hooks.
	Options []kgo.Opt
	// SessionTimeout, HeartbeatInterval and RebalanceTimeout are those of the
	// group; TransactionTimeout is that of the producer. All are required.
	SessionTimeout     time.Duration
	HeartbeatInterval  time.Duration
	RebalanceTimeout   time.Duration
	TransactionTimeout time.Duration
	// MaxBufferedOutputs bounds the records between Produce and their
	// acknowledgement.
	MaxBufferedOutputs int
	// MaxFetchBytes bounds one fetch response.
	MaxFetchBytes int32
	// MaxRecordBytes is the size up to which the tasks let a record through;
	// a batch may carry one of that size with its overhead.
	MaxRecordBytes int
	Logger         *slog.Logger
}

var _ Broker = (*Kafka)(nil)

// batchOverhead is what a produce batch may need beside its largest record.
// Brokers take batches of 1,048,588 bytes by default (max.message.bytes), the
// client makes them of up to 1,000,012.
const batchOverhead = 4 << 10

func (k *Kafka) common() []kgo.Opt {
	return append([]kgo.Opt{
		kgo.ClientID("weir"),
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.FetchMaxWait(maxPollWait),
		kgo.FetchMaxBytes(k.MaxFetchBytes),
		kgo.FetchMaxPartitionBytes(k.MaxFetchBytes),
		kgo.KeepControlRecords(),
		kgo.WithLogger(kafkaclient.Log{Logger: k.Logger}),
	}, k.Options...)
}

// Join implements Broker.
func (k *Kafka) Join(ctx context.Context, cfg MemberConfig) (Member, error) {
	m := &member{kafka: k, cfg: cfg, transactional: cfg.TransactionalID != "", produced: map[TopicPartition]*produceEnd{},
		told: map[TopicPartition]bool{}}
	m.balancer = newBalancer(cfg.UserData, cfg.Tasks)
	opts := append(k.common(),
		kgo.ConsumerGroup(cfg.Group),
		kgo.ConsumeTopics(cfg.Topics...),
		kgo.Balancers(m.balancer),
		kgo.SessionTimeout(k.SessionTimeout),
		kgo.HeartbeatInterval(k.HeartbeatInterval),
		kgo.RebalanceTimeout(k.RebalanceTimeout),
		kgo.BlockRebalanceOnPoll(),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.OnPartitionsAssigned(func(_ context.Context, cl *kgo.Client, tps map[string][]int32) {
			if len(tps) > 0 {
				cl.PauseFetchPartitions(tps)
			}
			m.assigned(flatten(tps))
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, tps map[string][]int32) {
			m.gone(flatten(tps), cfg.Listener.Revoked)
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, tps map[string][]int32) {
			m.gone(flatten(tps), cfg.Listener.Lost)
		}),
		kgo.OnPartitionsCallbackBlocked(func(context.Context, *kgo.Client) {
			m.waits.set()
			cfg.Listener.RebalanceWaiting()
		}),
		kgo.RecordPartitioner(kgo.BasicConsistentPartitioner(m.partitioner)),
		kgo.ProducerLinger(5*time.Millisecond),
		kgo.ProducerBatchMaxBytes(int32(max(k.MaxRecordBytes+batchOverhead, 1_000_012))),
		kgo.MaxBufferedRecords(k.MaxBufferedOutputs),
		kgo.UnknownTopicRetries(8),
	)
	var err error
	if m.transactional {
		opts = append(opts, kgo.TransactionalID(cfg.TransactionalID), kgo.TransactionTimeout(k.TransactionTimeout),
			kgo.FetchIsolationLevel(kgo.ReadCommitted()))
		if m.session, err = kgo.NewGroupTransactSession(opts...); err == nil {
			m.cl = m.session.Client()
		}
	} else {
		opts = append(opts, kgo.DisableAutoCommit(), kgo.RecordDeliveryTimeout(2*time.Minute))
		m.cl, err = kgo.NewClient(opts...)
	}
	if err != nil {
		return nil, &FatalError{fmt.Errorf("client options: %w", err)}
	}
	m.adm = kadm.NewClient(m.cl)
	return m, nil
}

// assigned tells the listener what came, and before that what went without a
// word: the client's transaction session is silent about a second revocation or
// loss between two transactions. It calls this function after each rebalance,
// be it that nothing was added.
func (m *member) assigned(added []TopicPartition) {
	has := map[TopicPartition]bool{}
	last := m.balancer.lastAssignment()
	for _, p := range last.Partitions {
		has[TopicPartition(p)] = true
	}
	for _, tp := range added {
		has[tp] = false // what comes anew was lost before
	}
	var missed []TopicPartition
	for tp := range m.told {
		if !has[tp] {
			missed = append(missed, tp)
		}
	}
	if len(missed) > 0 {
		m.gone(missed, m.cfg.Listener.Lost)
	}
	for _, tp := range added {
		m.told[tp] = true
	}
	m.cfg.Listener.Assigned(added, last.FollowUp)
}

// gone tells the listener what went.
func (m *member) gone(tps []TopicPartition, tell func([]TopicPartition)) {
	for _, tp := range tps {
		delete(m.told, tp)
	}
	tell(tps)
}

func flatten(tps map[string][]int32) []TopicPartition {
	var list []TopicPartition
	for t, ps := range tps {
		for _, p := range ps {
			list = append(list, TopicPartition{t, p})
		}
	}
	return list
}

func unflatten(tps []TopicPartition) map[string][]int32 {
	m := map[string][]int32{}
	for _, tp := range tps {
		m[tp.Topic] = append(m[tp.Topic], tp.Partition)
	}
	return m
}

// produceEnd collects the end of one changelog partition in a transaction. It
// travels in the context of the records.
type produceEnd struct {
	context.Context
	end atomic.Int64
}

type member struct {
	kafka         *Kafka
	cfg           MemberConfig
	transactional bool
	session       *kgo.GroupTransactSession
	cl            *kgo.Client
	adm           *kadm.Client
	balancer      *balancer

	records  []task.Record // of the last poll
	fetched  []Fetched
	produced map[TopicPartition]*produceEnd
	waits    signal                  // the client's group waits for AllowRebalance
	told     map[TopicPartition]bool // what the listener knows to have; callbacks only

	mu struct {
		sync.Mutex
		produceErr error
	}
}

// partitioner places records with a partition there, and others by the hash of
// their key as the Java client does. Null keys go anywhere.
func (m *member) partitioner(string) func(*kgo.Record, int) int {
	next := 0
	return func(r *kgo.Record, n int) int {
		switch {
		case r.Partition >= 0:
			return int(r.Partition)
		case r.Key == nil:
			for _, h := range r.Headers {
				if h.Key != task.HeaderID {
					continue
				}
				if p, ok := PlaceByID(h.Value, int32(n)); ok {
					return int(p)
				}
			}
			next++
			return (next / 64) % n
		}
		return int(keyenc.Partition(r.Key, int32(n)))
	}
}

// minPollWait is how long a poll waits at least. A poll with a nil context would
// not wait at all, but one that then finds nothing does not hold back the group:
// its callbacks would run beside the worker.
const minPollWait = 200 * time.Microsecond

func (m *member) Poll(ctx context.Context, limit int, wait time.Duration) ([]Fetched, error) {
	ctx, cancel := context.WithTimeout(ctx, max(wait, minPollWait))
	defer cancel()
	fs := kafkaclient.Held(ctx, func(ctx context.Context) kgo.Fetches { return m.cl.PollRecords(ctx, limit) })
	var err error
	m.fetched, m.records, err = convert(fs, m.fetched[:0], m.records, m.transactional)
	return m.fetched, err
}

// convert turns fetches into runs of records that reuse the given memory.
func convert(fs kgo.Fetches, fetched []Fetched, records []task.Record, committedOnly bool) ([]Fetched, []task.Record, error) {
	clear(records)
	n := fs.NumRecords()
	if cap(records) < n {
		records = make([]task.Record, 0, n+n/4)
	}
	records = records[:0]
	var failed error
	fs.EachPartition(func(p kgo.FetchTopicPartition) {
		if p.Err != nil {
			switch {
			case errors.Is(p.Err, context.DeadlineExceeded), errors.Is(p.Err, context.Canceled):
			case p.Topic == "":
				failed = fatal(p.Err) // of the group
			default:
				err := p.Err
				if errors.Is(err, kerr.OffsetOutOfRange) {
					err = ErrOutOfRange
				}
				fetched = append(fetched, Fetched{TopicPartition: TopicPartition{p.Topic, p.Partition}, End: -1, Err: fatal(err)})
			}
			if len(p.Records) == 0 {
				return
			}
		}
		from := len(records)
		for _, r := range p.Records {
			rec := task.Record{Offset: r.Offset, LeaderEpoch: r.LeaderEpoch, Timestamp: r.Timestamp.UnixMilli(), Key: r.Key, Value: r.Value,
				Control: r.Attrs.IsControl()}
			if len(r.Headers) > 0 {
				rec.Headers = make([]task.Header, len(r.Headers))
				for i, h := range r.Headers {
					rec.Headers[i] = task.Header(h)
				}
			}
			records = append(records, rec)
		}
		end := p.HighWatermark
		if committedOnly {
			end = p.LastStableOffset
		}
		fetched = append(fetched, Fetched{TopicPartition: TopicPartition{p.Topic, p.Partition}, Records: records[from:], End: end})
	})
	return fetched, records, failed
}

func (m *member) AllowRebalance() {
	m.waits.clear()
	m.cl.AllowRebalance()
}

func (m *member) Begin() error {
	m.mu.Lock()
	m.mu.produceErr = nil
	m.mu.Unlock()
	for _, e := range m.produced {
		e.end.Store(-1)
	}
	if m.transactional {
		return producerErr(m.session.Begin())
	}
	return nil
}

// records are reused: a batch sends tens of thousands, of which a few thousand
// are under way at a time.
var recordPool = sync.Pool{New: func() any { return new(kgo.Record) }}

func (m *member) Produce(ctx context.Context, out []task.Output) {
	var end *produceEnd
	var last TopicPartition
	for i := range out {
		m.mu.Lock()
		failed := m.mu.produceErr != nil
		m.mu.Unlock()
		if failed {
			return // the client fails what it has buffered; nothing may follow it
		}
		o := &out[i]
		r := recordPool.Get().(*kgo.Record)
		r.Topic, r.Partition, r.Key, r.Value = o.Topic, o.Partition, o.Key, o.Value
		r.Timestamp = time.UnixMilli(o.Timestamp)
		if len(o.Headers) > 0 {
			r.Headers = make([]kgo.RecordHeader, len(o.Headers))
			for j, h := range o.Headers {
				r.Headers[j] = kgo.RecordHeader(h)
			}
		}
		if o.Store >= 0 {
			if tp := (TopicPartition{o.Topic, o.Partition}); end == nil || tp != last {
				if end, last = m.produced[tp], tp; end == nil {
					end = &produceEnd{Context: context.Background()}
					end.end.Store(-1)
					m.produced[tp] = end
				}
			}
			r.Context = end
		}
		m.cl.Produce(ctx, r, m.acked)
	}
}

// produceFailed keeps the first failure of the batch, for Flush.
func (m *member) produceFailed(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.produceErr == nil {
		m.mu.produceErr = err
	}
}

// maxDescribedKey is how much of a key an error shows.
const maxDescribedKey = 64

// describe names a record that was not written. The broker refuses a request as a
// whole, so it may as well be one that went with it.
func describe(r *kgo.Record) string {
	key := "no key"
	if r.Key != nil {
		key = fmt.Sprintf("key %.*q", maxDescribedKey, r.Key)
	}
	s := fmt.Sprintf("%s[%d], the record with %s and a value of %d bytes, or one that was sent with it", r.Topic, r.Partition, key, len(r.Value))
	for _, h := range r.Headers {
		if h.Key != outbox.Header {
			continue
		}
		if id, err := outbox.ParseID(h.Value); err == nil {
			s += fmt.Sprintf(" (task %s, output %d.%d)", id.Task, id.Seq, id.Index)
		}
	}
	return s
}

// acked is the promise of every record.
func (m *member) acked(r *kgo.Record, err error) {
	if err != nil {
		m.produceFailed(fmt.Errorf("produce to %s: %w", describe(r), err))
	} else if e, ok := r.Context.(*produceEnd); ok && r.Offset < 0 {
		// The broker took the record for a repetition and does not know its
		// place any more. A stamp without it would end a restore too early.
		m.produceFailed(fmt.Errorf("produce to %s[%d]: the broker did not say at which offset", r.Topic, r.Partition))
	} else if ok {
		for next := r.Offset + 1; ; {
			have := e.end.Load()
			if have >= next || e.end.CompareAndSwap(have, next) {
				break
			}
		}
	}
	*r = kgo.Record{}
	recordPool.Put(r)
}

func (m *member) Flush(ctx context.Context) error {
	if err := m.cl.Flush(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return producerErr(m.mu.produceErr)
}

func (m *member) Produced(tp TopicPartition) int64 {
	if e := m.produced[tp]; e != nil {
		return e.end.Load()
	}
	return -1
}

func (m *member) Commit(ctx context.Context, offsets []OffsetCommit) (Outcome, error) {
	if !m.transactional {
		return m.commitOffsets(ctx, offsets)
	}
	ctx = kgo.PreTxnCommitFnContext(ctx, func(req *kmsg.TxnOffsetCommitRequest) error {
		ids := map[string][16]byte{}
		for _, t := range req.Topics {
			ids[t.Topic] = t.TopicID
		}
		req.Topics = req.Topics[:0]
		at := map[string]int{}
		for i := range offsets {
			o := &offsets[i]
			j, ok := at[o.Topic]
			if !ok {
				t := kmsg.NewTxnOffsetCommitRequestTopic()
				t.Topic, t.TopicID = o.Topic, ids[o.Topic]
				j, at[o.Topic] = len(req.Topics), len(req.Topics)
				req.Topics = append(req.Topics, t)
			}
			p := kmsg.NewTxnOffsetCommitRequestTopicPartition()
			p.Partition, p.Offset, p.LeaderEpoch, p.Metadata = o.Partition, o.Offset, o.LeaderEpoch, &o.Metadata
			req.Topics[j].Partitions = append(req.Topics[j].Partitions, p)
		}
		return nil
	})
	committed, err := m.end(ctx)
	switch {
	case err != nil:
		return Unknown, producerErr(err)
	case committed:
		return Done, nil
	}
	return m.settled(ctx, offsets)
}

// end ends the transaction. The client waits in it for a heartbeat of the group.
// If the group has thrown the member out, as after a pause longer than the
// session, no heartbeat comes any more: the client's group wants to report the
// loss first, and for that it waits for AllowRebalance, which comes after the
// commit. The same holds when a heartbeat failed otherwise, as by a connection
// that broke, and there the member stays known, not least since it is asked
// about here. So the end is cut short when the group waits and is found not to
// know the member, or has waited for longer than a session lasts. What became of
// the transaction is then unknown.
func (m *member) end(ctx context.Context) (committed bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-done:
			return
		case <-m.waits.wait():
		}
		tick := time.NewTicker(m.kafka.HeartbeatInterval)
		defer tick.Stop()
		limit := time.NewTimer(m.kafka.SessionTimeout)
		defer limit.Stop()
		for {
			if err := m.Confirm(ctx); errors.Is(err, ErrNotMember) && !errors.Is(err, kerr.RebalanceInProgress) {
				cancel(err)
				return
			}
			select {
			case <-done:
				return
			case <-limit.C:
				cancel(errEndStuck)
				return
			case <-tick.C:
			}
		}
	})
	committed, err = m.session.End(ctx, kgo.TryCommit)
	close(done)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w (%w)", err, context.Cause(ctx))
	}
	cancel(nil)
	watch.Wait()
	return committed, err
}

var errEndStuck = errors.New("the end of the transaction waits for the group, and the group for it")

// signal is set and cleared by one side and waited for by another.
type signal struct {
	mu struct {
		sync.Mutex
		c   chan struct{} // closed while it is set
		set bool
	}
}

func (s *signal) set() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.c == nil {
		s.mu.c = make(chan struct{})
	}
	if !s.mu.set {
		s.mu.set = true
		close(s.mu.c)
	}
}

func (s *signal) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.set {
		s.mu.set, s.mu.c = false, nil
	}
}

// wait returns a channel that is closed when the signal is set, at once if it
// is.
func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.c == nil {
		s.mu.c = make(chan struct{})
	}
	return s.mu.c
}

// settled finds out what became of a transaction that the client says it has
// aborted. It turns some errors of the end into an abort, among them one after
// which the broker may have committed. A stable fetch waits for the decision,
// and the stamp tells (C5).
func (m *member) settled(ctx context.Context, offsets []OffsetCommit) (Outcome, error) {
	if len(offsets) == 0 {
		return Unknown, errors.New("the client turned the commit into an abort")
	}
	o := offsets[0]
	found, err := m.committed(ctx, []TopicPartition{o.TopicPartition}, 2*m.kafka.TransactionTimeout)
	switch {
	case err != nil:
		return Unknown, fmt.Errorf("the client turned the commit into an abort, and the offsets cannot be read: %w", err)
	case found[o.TopicPartition].Metadata == o.Metadata:
		return Unknown, errors.New("the client turned the commit into an abort, and the broker has committed")
	}
	return Aborted, nil
}

// commitOffsets is the commit of at least once.
func (m *member) commitOffsets(ctx context.Context, offsets []OffsetCommit) (Outcome, error) {
	set := map[string]map[int32]kgo.EpochOffset{}
	meta := map[TopicPartition]*string{}
	for i := range offsets {
		o := &offsets[i]
		if set[o.Topic] == nil {
			set[o.Topic] = map[int32]kgo.EpochOffset{}
		}
		set[o.Topic][o.Partition] = kgo.EpochOffset{Epoch: o.LeaderEpoch, Offset: o.Offset}
		meta[o.TopicPartition] = &o.Metadata
	}
	ctx = kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) error {
		for i := range req.Topics {
			t := &req.Topics[i]
			for j := range t.Partitions {
				t.Partitions[j].Metadata = meta[TopicPartition{t.Topic, t.Partitions[j].Partition}]
			}
		}
		return nil
	})
	var failed error
	m.cl.CommitOffsetsSync(ctx, set, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if failed = err; err != nil {
			return
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil && failed == nil {
					failed = fmt.Errorf("commit %s[%d]: %w", t.Topic, p.Partition, err)
				}
			}
		}
	})
	switch {
	case failed == nil:
		return Done, nil
	case errors.Is(failed, kerr.IllegalGeneration), errors.Is(failed, kerr.UnknownMemberID), errors.Is(failed, kerr.RebalanceInProgress):
		return Aborted, failed
	}
	return Unknown, fatal(failed)
}

func (m *member) Abort(ctx context.Context) error {
	if !m.transactional {
		// What was produced stays: at least once. It must be out of the way
		// before its memory is used again.
		return m.cl.AbortBufferedRecords(ctx)
	}
	_, err := m.session.End(ctx, kgo.TryAbort)
	return producerErr(err)
}

func (m *member) Bounds(ctx context.Context, tps []TopicPartition) (map[TopicPartition]Bounds, error) {
	return bounds(ctx, m.adm, tps, m.transactional)
}

// bounds asks for first and end offsets. Transient errors, such as a leader
// that moves, are retried until ctx ends.
func bounds(ctx context.Context, adm *kadm.Client, tps []TopicPartition, committedOnly bool) (map[TopicPartition]Bounds, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var topics []string
	for t := range unflatten(tps) {
		topics = append(topics, t)
	}
	for {
		list := map[TopicPartition]Bounds{}
		start, err := adm.ListStartOffsets(ctx, topics...)
		high, err2 := adm.ListEndOffsets(ctx, topics...)
		end, err3 := high, error(nil)
		if committedOnly {
			end, err3 = adm.ListCommittedOffsets(ctx, topics...)
		}
		err = errors.Join(err, err2, err3)
		for _, tp := range tps {
			var b Bounds
			for i, l := range []kadm.ListedOffsets{start, end, high} {
				o, ok := l.Lookup(tp.Topic, tp.Partition)
				if !ok && err == nil {
					err = fmt.Errorf("%s[%d]: %w", tp.Topic, tp.Partition, kerr.UnknownTopicOrPartition)
				}
				if o.Err != nil && err == nil {
					err = fmt.Errorf("%s[%d]: %w", tp.Topic, tp.Partition, o.Err)
				}
				*[]*int64{&b.Start, &b.End, &b.High}[i] = o.Offset
			}
			list[tp] = b
		}
		if err == nil {
			return list, nil
		}
		if f := fatal(err); ctx.Err() != nil || f != err {
			return nil, f
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (last answer: %w)", context.Cause(ctx), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (m *member) Confirm(ctx context.Context) error {
	id, gen := m.cl.GroupMetadata()
	if id == "" || gen < 0 {
		return ErrNotMember
	}
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.MemberID, req.Generation = m.cfg.Group, id, gen
	resp, err := req.RequestWith(ctx, m.cl)
	if err != nil {
		return err
	}
	switch err := kerr.ErrorForCode(resp.ErrorCode); {
	case err == nil:
		return nil
	case errors.Is(err, kerr.IllegalGeneration), errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.RebalanceInProgress),
		errors.Is(err, kerr.FencedInstanceID):
		return fmt.Errorf("%w: %w", ErrNotMember, err)
	default:
		return err
	}
}

func (m *member) Seek(offsets map[TopicPartition]int64) {
	set := map[string]map[int32]kgo.EpochOffset{}
	for tp, o := range offsets {
		if set[tp.Topic] == nil {
			set[tp.Topic] = map[int32]kgo.EpochOffset{}
		}
		set[tp.Topic][tp.Partition] = kgo.EpochOffset{Epoch: -1, Offset: o}
	}
	m.cl.SetOffsets(set)
}

func (m *member) Pause(tps []TopicPartition)  { m.cl.PauseFetchPartitions(unflatten(tps)) }
func (m *member) Resume(tps []TopicPartition) { m.cl.ResumeFetchPartitions(unflatten(tps)) }

// purgeLimit bounds a deletion of processed records; it is repeated anyway.
const purgeLimit = 2 * time.Second

func (m *member) DeleteRecords(ctx context.Context, below map[TopicPartition]int64) error {
	ctx, cancel := context.WithTimeout(ctx, purgeLimit)
	defer cancel()
	var os kadm.Offsets
	for tp, o := range below {
		os.Add(kadm.Offset{Topic: tp.Topic, Partition: tp.Partition, At: o})
	}
	rs, err := m.adm.DeleteRecords(ctx, os)
	if err != nil {
		return err
	}
	return rs.Error()
}

func (m *member) TopicFacts(ctx context.Context, topics []string) (map[string]TopicFacts, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	details, err := m.adm.ListTopics(ctx, topics...)
	if err != nil {
		return nil, fatal(err)
	}
	facts := map[string]TopicFacts{}
	for _, t := range topics {
		d := details[t]
		if d.Err != nil {
			return nil, fatal(fmt.Errorf("topic %s: %w", t, d.Err))
		}
		facts[t] = TopicFacts{ID: [16]byte(d.ID), Partitions: int32(len(d.Partitions))}
	}
	return facts, nil
}

func (m *member) Assignment() assign.Assignment { return m.balancer.lastAssignment() }

// Limits of a client that closes. A group that does not answer ends a membership
// by its session timeout anyway.
const (
	dropLimit  = time.Second // for the answers to records that are under way
	leaveLimit = 5 * time.Second
)

func (m *member) Close(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	m.cl.AllowRebalance()
	within := func(limit time.Duration, f func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return f(ctx)
	}
	if err := within(dropLimit, m.cl.AbortBufferedRecords); err != nil {
		m.kafka.Logger.Debug("buffered records not dropped", "error", err)
	}
	if err := within(leaveLimit, m.cl.LeaveGroupContext); err != nil {
		m.kafka.Logger.Info("the group could not be left; it will notice by the session timeout", "error", err)
	}
	m.cl.CloseAllowingRebalance()
}

// producerErr sorts the errors of a producer.
func producerErr(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.ProducerFenced), errors.Is(err, kerr.InvalidProducerEpoch), errors.Is(err, kerr.InvalidProducerIDMapping),
		errors.Is(err, kerr.UnknownProducerID):
		return fmt.Errorf("%w: %w", ErrFenced, err)
	}
	return fatal(err)
}

// fatal marks the errors that need a person, with what to do.
func fatal(err error) error {
	for _, f := range []struct {
		is   error
		hint string
	}{
		{kerr.UnknownTopicOrPartition, "create the topic"},
		{kerr.MessageTooLarge, "raise max.message.bytes of the topic, or lower MaxRecordBytes so that the record can be dead-lettered"},
		{kerr.RecordListTooLarge, "raise max.message.bytes of the topic"},
		{kerr.TopicAuthorizationFailed, "grant the application read, write and describe on the topic"},
		{kerr.GroupAuthorizationFailed, "grant the application read on the group"},
		{kerr.ClusterAuthorizationFailed, "grant the application idempotent write on the cluster"},
		{kerr.TransactionalIDAuthorizationFailed, "grant the application write and describe on transactional ids with its id as prefix"},
		{kerr.SaslAuthenticationFailed, "check user and password"},
		{kerr.InvalidRecord, "check the topic's settings: the broker refused the record (a compacted topic needs a key)"},
		{kerr.InvalidTimestamp, "the record's time is further from the broker's than message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic allow"},
		{kerr.InvalidTransactionTimeout, "lower TransactionTimeout below the broker's transaction.max.timeout.ms"},
		{kerr.UnsupportedForMessageFormat, "use a broker of version 2.5 or newer"},
		{kerr.InvalidTopicException, "use a topic name of letters, digits, dots, underscores and hyphens"},
		{kerr.OffsetMetadataTooLarge, "raise offset.metadata.max.bytes of the broker, or split the topology"},
		{kerr.InconsistentGroupProtocol, "another application uses the group id; choose another application id, or to take its group over, stop it and wait until the sessions of its members have ended"},
		{kerr.InvalidSessionTimeout, "choose a session timeout between the broker's group.min.session.timeout.ms and group.max.session.timeout.ms"},
	} {
		if errors.Is(err, f.is) {
			return &FatalError{fmt.Errorf("%w: %s", err, f.hint)}
		}
	}
	return err
}
