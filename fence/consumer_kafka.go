package fence

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

	"github.com/weirstreams/weir/internal/kafkaclient"
)

// topicPartition names a partition.
type topicPartition struct {
	topic     string
	partition int32
}

// event is what the group told.
type event struct {
	assigned bool // or else taken away
	tps      []topicPartition
}

// member is the consumer's client: a member of the group and a producer.
type member struct {
	cl    *kgo.Client
	adm   *kadm.Client
	group string
	log   *slog.Logger

	mu struct {
		sync.Mutex
		events []event
		wake   context.CancelFunc // ends the wait of the poll
		woken  bool               // before there was one
	}
}

// Times of the client.
const (
	fetchWait   = 250 * time.Millisecond // how long a broker waits for records
	linger      = 2 * time.Millisecond   // before a batch of outputs is sent
	metadataAge = 250 * time.Millisecond // at least, between two looks at the cluster
	closeLimit  = 5 * time.Second        // to leave the group
)

// maxPartitionBytes bounds what comes of one partition at once.
const maxPartitionBytes = 1 << 20

func newMember(cfg *ConsumerConfig) (*member, error) {
	m := &member{group: cfg.Group, log: cfg.Logger}
	cl, err := kgo.NewClient(m.options(cfg)...)
	if err != nil {
		return nil, fmt.Errorf("fence: ConsumerConfig.Kafka: %w", err)
	}
	m.cl, m.adm = cl, kadm.NewClient(cl)
	return m, nil
}

func (m *member) options(cfg *ConsumerConfig) []kgo.Opt {
	opts := append([]kgo.Opt{
		kgo.ClientID("weir-fence"),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.MetadataMinAge(metadataAge),
		kgo.FetchMaxWait(fetchWait),
		kgo.ProducerLinger(linger),
		kgo.WithLogger(kafkaclient.Log{Logger: cfg.Logger}),
	}, cfg.Kafka...)
	return append(opts,
		kgo.ConsumerGroup(cfg.Group),
		kgo.ConsumeTopics(cfg.Topics...),
		kgo.DisableAutoCommit(),
		kgo.RequiredAcks(kgo.AllISRAcks()), // an output that one broker alone has could be lost behind the commit
		kgo.BlockRebalanceOnPoll(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // so that the offsets behind them are committed
		kgo.FetchMaxBytes(int32(cfg.MaxBatchBytes)),
		kgo.FetchMaxPartitionBytes(int32(min(cfg.MaxBatchBytes, maxPartitionBytes))),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), // the claim says where to begin
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),       // a log that has lost its beginning is never skipped silently
		kgo.OnPartitionsAssigned(func(_ context.Context, cl *kgo.Client, tps map[string][]int32) {
			// Nothing is fetched before the claim says from where.
			if len(tps) > 0 {
				cl.PauseFetchPartitions(tps)
			}
			m.tell(event{true, flatten(tps)})
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, tps map[string][]int32) { m.tell(event{false, flatten(tps)}) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, tps map[string][]int32) { m.tell(event{false, flatten(tps)}) }),
	)
}

// tell is called by the client's callbacks. The client holds them back from the
// end of a poll to AllowRebalance, so a revocation waits until the batches under
// way are finished or given up, and what is told here is drained before the
// records of the next poll are looked at.
func (m *member) tell(e event) {
	m.mu.Lock()
	m.mu.events = append(m.mu.events, e)
	m.mu.Unlock()
	m.wake()
}

// wake ends the wait for records: something else is to be done.
func (m *member) wake() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.woken = m.mu.wake == nil; !m.mu.woken {
		m.mu.wake()
	}
}

// poll waits for records, and holds the callbacks back from then on.
func (m *member) poll(ctx context.Context, limit int, wait time.Duration) kgo.Fetches {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	m.mu.Lock()
	if m.mu.wake = cancel; m.mu.woken {
		cancel()
	}
	m.mu.woken = false
	m.mu.Unlock()
	fetches := kafkaclient.Held(ctx, func(ctx context.Context) kgo.Fetches { return m.cl.PollRecords(ctx, limit) })
	m.mu.Lock()
	m.mu.wake = nil
	m.mu.Unlock()
	return fetches
}

func (m *member) told() []event {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.mu.events
	m.mu.events = nil
	return e
}

func flatten(tps map[string][]int32) []topicPartition {
	var list []topicPartition
	for t, ps := range tps {
		for _, p := range ps {
			list = append(list, topicPartition{t, p})
		}
	}
	return list
}

func unflatten(tps []topicPartition) map[string][]int32 {
	m := map[string][]int32{}
	for _, tp := range tps {
		m[tp.topic] = append(m[tp.topic], tp.partition)
	}
	return m
}

// topicFacts is what the cluster says of a topic.
type topicFacts struct {
	id         [16]byte
	partitions int
}

// facts asks for a topic. It asks the cluster, and not the client, which may
// answer from what it knew some time ago.
func (m *member) facts(ctx context.Context, topic string) (topicFacts, error) {
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &topic
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, m.cl)
	if err != nil {
		return topicFacts{}, err
	}
	for _, t := range resp.Topics {
		if t.Topic == nil || *t.Topic != topic {
			continue
		}
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return topicFacts{}, err
		}
		return topicFacts{t.TopicID, len(t.Partitions)}, nil
	}
	return topicFacts{}, kerr.UnknownTopicOrPartition
}

// errNotMember says that the group does not count this client in its present
// generation.
var errNotMember = errors.New("the group does not confirm the membership")

// confirm asks the group whether this client is a member of its present
// generation.
func (m *member) confirm(ctx context.Context) error {
	id, gen := m.cl.GroupMetadata()
	if id == "" || gen < 0 {
		return errNotMember
	}
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.MemberID, req.Generation = m.group, id, gen
	if instance, ok := m.cl.OptValue(kgo.InstanceID).(string); ok && instance != "" {
		req.InstanceID = &instance
	}
	resp, err := req.RequestWith(ctx, m.cl)
	if err != nil {
		return err
	}
	switch err := kerr.ErrorForCode(resp.ErrorCode); {
	case errors.Is(err, kerr.RebalanceInProgress):
		// Said to members of the present generation, whose partitions are theirs
		// until they join the next.
		return nil
	case errors.Is(err, kerr.IllegalGeneration), errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.FencedInstanceID):
		return fmt.Errorf("%w: %w", errNotMember, err)
	default:
		return err
	}
}

// committed asks for the offsets that the group has committed, -1 for none. It
// fails while one of them belongs to a transaction that is not decided.
func (m *member) committed(ctx context.Context, tps []topicPartition) (map[topicPartition]int64, error) {
	list := map[topicPartition]int64{}
	err := kafkaclient.Committed(ctx, m.cl, m.group, unflatten(tps), func(topic string, p *kmsg.OffsetFetchResponseGroupTopicPartition) {
		list[topicPartition{topic, p.Partition}] = p.Offset
	})
	if err != nil {
		return nil, err
	}
	for _, tp := range tps {
		if _, ok := list[tp]; !ok {
			return nil, fmt.Errorf("the group does not say what it has committed of partition %d of topic %s", tp.partition, tp.topic)
		}
	}
	return list, nil
}

// bound is the first offset of partitions, or with end the one behind what may
// be read. Partitions that have no answer are left out.
func (m *member) bound(ctx context.Context, tps []topicPartition, end bool) (map[topicPartition]int64, error) {
	var topics []string
	for t := range unflatten(tps) {
		topics = append(topics, t)
	}
	list := m.adm.ListStartOffsets
	if end {
		list = m.adm.ListCommittedOffsets
	}
	offsets, err := list(ctx, topics...)
	if err != nil {
		return nil, err
	}
	out := map[topicPartition]int64{}
	for _, tp := range tps {
		if o, ok := offsets.Lookup(tp.topic, tp.partition); ok && o.Err == nil {
			out[tp] = o.Offset
		}
	}
	return out, nil
}

func (m *member) seek(tp topicPartition, offset int64) {
	m.cl.SetOffsets(map[string]map[int32]kgo.EpochOffset{tp.topic: {tp.partition: {Epoch: -1, Offset: offset}}})
}

func (m *member) pause(tps ...topicPartition)  { m.cl.PauseFetchPartitions(unflatten(tps)) }
func (m *member) resume(tps ...topicPartition) { m.cl.ResumeFetchPartitions(unflatten(tps)) }

// commit commits offsets, those behind the last processed records. It returns
// the errors by partition.
func (m *member) commit(ctx context.Context, offsets map[topicPartition]int64) map[topicPartition]error {
	set := map[string]map[int32]kgo.EpochOffset{}
	for tp, o := range offsets {
		if set[tp.topic] == nil {
			set[tp.topic] = map[int32]kgo.EpochOffset{}
		}
		set[tp.topic][tp.partition] = kgo.EpochOffset{Epoch: -1, Offset: o}
	}
	failed := map[topicPartition]error{}
	for tp := range offsets {
		failed[tp] = errors.New("the answer to the commit does not name the partition")
	}
	m.cl.CommitOffsetsSync(ctx, set, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if err != nil {
			for tp := range failed {
				failed[tp] = err
			}
			return
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				tp := topicPartition{t.Topic, p.Partition}
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					failed[tp] = err
				} else {
					delete(failed, tp)
				}
			}
		}
	})
	return failed
}

// acks counts the answers to the outputs of a batch.
type acks struct {
	left atomic.Int64
	done chan struct{} // closed with the last one
	wake func()        // called then
	mu   struct {
		sync.Mutex
		err error // the first one
	}
}

// produce sends records. It waits only while the client holds as many as it may.
func (m *member) produce(ctx context.Context, records []*kgo.Record) *acks {
	a := &acks{done: make(chan struct{}), wake: m.wake}
	a.left.Store(int64(len(records)) + 1)
	for _, r := range records {
		m.cl.Produce(ctx, r, func(r *kgo.Record, err error) {
			if err != nil {
				a.fail(fmt.Errorf("produce to topic %s: %w", r.Topic, err))
			}
			a.one()
		})
	}
	a.one()
	return a
}

func (a *acks) one() {
	if a.left.Add(-1) == 0 {
		close(a.done)
		a.wake()
	}
}

func (a *acks) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.err == nil {
		a.mu.err = err
	}
}

// settled says that all answers are there.
func (a *acks) settled() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

func (a *acks) err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.err
}

func (m *member) close(leave bool) {
	m.cl.AllowRebalance()
	if leave {
		ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
		if err := m.cl.LeaveGroupContext(ctx); err != nil {
			m.log.Info("the group could not be left; it will notice by the session timeout", "group", m.group, "error", err)
		}
		cancel()
	}
	m.cl.CloseAllowingRebalance()
}

// hints says what to do about the errors that need a person.
var hints = []struct {
	is   error
	hint string
}{
	{kerr.TopicAuthorizationFailed, "grant the user read, describe and write on the topics"},
	{kerr.GroupAuthorizationFailed, "grant the user read on the group"},
	{kerr.ClusterAuthorizationFailed, "grant the user idempotent write on the cluster"},
	{kerr.SaslAuthenticationFailed, "check user and password"},
	{kerr.InvalidTopicException, "use a topic name of letters, digits, dots, underscores and hyphens"},
	{kerr.InconsistentGroupProtocol, "another program uses the group with another way to assign partitions: choose another group, or set kgo.Balancers to one that both know"},
	{kerr.InvalidSessionTimeout, "choose a session timeout between the broker's group.min.session.timeout.ms and group.max.session.timeout.ms"},
	{kerr.UnsupportedVersion, "use a broker of version 2.5 or newer"},
}

// hopeless returns the error with what to do when it will not go away by itself.
func hopeless(err error) error {
	for _, h := range hints {
		if errors.Is(err, h.is) {
			return fmt.Errorf("%w: %s", err, h.hint)
		}
	}
	return nil
}
