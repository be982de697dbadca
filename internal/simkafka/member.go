package simkafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/keyenc"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/internal/worker"
)

// fetches is the memory of one poll. It is used again by the next, so that what
// keeps records over a poll is found out.
type fetches struct {
	list    []worker.Fetched
	records []task.Record
}

func (f *fetches) reset() {
	clear(f.records)
	f.list, f.records = f.list[:0], f.records[:0]
}

// Member implements worker.Member, with the manners of franz-go's
// GroupTransactSession: callbacks only between AllowRebalance and the return of
// the next Poll, an abort in place of the first commit after a revocation, and
// positions that an abort takes back to the committed offsets.
type Member struct {
	client *Client
	cfg    worker.MemberConfig
	id     string
	closed bool

	generation int32
	synced     int32     // generation whose plan was taken
	unaware    time.Time // until then, of what the group did while the process was paused
	allowed    bool      // callbacks may run
	rejoin     bool      // something was revoked, so another round is due
	revoked    bool      // something was, since the last end of a transaction
	owned      []worker.TopicPartition
	pos        map[worker.TopicPartition]int64
	paused     map[worker.TopicPartition]bool
	topics     map[string][16]byte // ids of the topics that are read
	assignment assign.Assignment
	turn       int
	fetched    fetches
	wait       time.Duration

	producer identity
	inTxn    bool
	sent     bool // something of this transaction has reached the broker
	out      []output
	failed   error                          // of a send in this transaction
	broken   map[worker.TopicPartition]bool // partitions of which a record has failed since Begin
	produced map[worker.TopicPartition]int64
	turns    map[string]int32 // next partition for null keys
}

// output is a record on its way.
type output struct {
	tp     worker.TopicPartition
	record task.Record
	track  bool // of a changelog: Produced tells
}

var _ worker.Member = (*Member)(nil)

func (m *Member) transactional() bool { return m.cfg.TransactionalID != "" }

func (m *Member) cluster() *Cluster { return m.client.cluster }

func (m *Member) group() *group { return m.cluster().group(m.cfg.Group) }

func (m *Member) request(call Call, apply func() error) error {
	if m.closed {
		return errClosed
	}
	call.Member = m.id
	return m.client.request(call, apply) // one that is late outlives the client
}

// Poll implements worker.Member. It does not wait: wait is only noted, for
// Waiting.
func (m *Member) Poll(ctx context.Context, limit int, wait time.Duration) ([]worker.Fetched, error) {
	m.wait = wait
	err := m.request(Call{Op: Poll}, func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !m.cluster().now().Before(m.unaware) {
			m.turnOfGroup()
		}
		var tps []worker.TopicPartition
		for _, tp := range m.owned {
			if !m.paused[tp] {
				tps = append(tps, tp)
			}
		}
		m.turn++
		m.cluster().fetch(tps, m.turn, m.pos, m.transactional(), limit, &m.fetched)
		for i := range m.fetched.list {
			f := &m.fetched.list[i]
			m.client.fetched += int64(len(f.Records))
			if t := m.cluster().topics[f.Topic]; t != nil && t.id != m.topics[f.Topic] {
				*f = worker.Fetched{TopicPartition: f.TopicPartition, End: -1, Err: errors.New("UNKNOWN_TOPIC_ID: the topic was created again")}
			}
		}
		return nil
	})
	m.allowed = false
	if err != nil {
		return nil, err
	}
	return m.fetched.list, nil
}

// AllowRebalance implements worker.Member.
func (m *Member) AllowRebalance() {
	m.client.local(AllowRebalance)
	m.allowed = true
}

// turnOfGroup does what the group wants of the member, as far as it can go
// without the others.
func (m *Member) turnOfGroup() {
	for !m.closed && !m.client.dead {
		g := m.group()
		s := g.seat(m.id)
		var step func()
		switch {
		case s == nil && m.id != "":
			step = m.lost
		case s == nil, g.state == joining && !s.joined, g.state == stable && m.rejoin:
			step = func() { m.join(g) }
		case g.state == syncing && s == g.members[0]:
			m.generation = g.generation
			m.lead(g)
			continue
		case g.state == stable && m.synced != g.generation:
			step = func() { m.take(g, s) }
		default:
			return
		}
		if !m.allowed {
			m.cfg.Listener.RebalanceWaiting()
			return
		}
		step()
	}
}

// lost starts from nothing, after the group took the member out.
func (m *Member) lost() {
	gone := m.owned
	m.id, m.generation, m.synced, m.rejoin, m.owned = "", -1, -1, false, nil
	clear(m.pos)
	clear(m.paused)
	if len(gone) > 0 {
		m.revoked = true
		m.cfg.Listener.Lost(gone)
	}
}

// join sends what the member is and has.
func (m *Member) join(g *group) {
	m.rejoin = false
	u := m.cfg.UserData()
	u.Owned = m.ownedTasks()
	var owned []assign.TopicPartition
	for _, tp := range m.owned {
		owned = append(owned, assign.TopicPartition(tp))
	}
	m.id = g.join(m, u.Encode(), owned, m.generation).id
}

// ownedTasks are those of which the member has a partition.
func (m *Member) ownedTasks() []topology.TaskID {
	tasks, err := m.cfg.Tasks(nil)
	if err != nil {
		return nil
	}
	var owned []topology.TaskID
	for _, t := range tasks {
		if slices.ContainsFunc(t.Partitions, func(p assign.TopicPartition) bool {
			return slices.Contains(m.owned, worker.TopicPartition(p))
		}) {
			owned = append(owned, t.ID)
		}
	}
	return owned
}

// lead makes the plan of a generation.
func (m *Member) lead(g *group) {
	counts := map[string]int32{}
	for _, s := range g.members {
		for _, n := range s.member.cfg.Topics {
			if t := m.cluster().topics[n]; t != nil {
				counts[n] = int32(len(t.partitions))
			}
		}
	}
	c := assign.Cluster{Topology: m.cfg.UserData().Topology, Generation: g.generation}
	var err error
	if c.Tasks, err = m.cfg.Tasks(counts); err != nil {
		c.Tasks = nil
		if !errors.As(err, &c.Problem) {
			c.Problem = &assign.Error{Code: assign.CodePartitions, Text: err.Error()}
		}
	}
	var members []assign.Member
	for _, s := range g.members {
		u, _ := assign.DecodeUserData(s.userData)
		members = append(members, assign.Member{ID: s.id, UserData: u, Generation: s.generation, Partitions: s.owned})
	}
	plan, _ := assign.Sticky{}.Assign(c, members)
	g.sync(plan)
}

// take takes over the plan of a generation.
func (m *Member) take(g *group, s *seat) {
	m.generation, m.synced = g.generation, g.generation
	a, err := assign.DecodeAssignment(s.plan.Encode())
	if err != nil {
		a = assign.Assignment{Error: &assign.Error{Code: assign.CodeUnreadable, Text: err.Error()}}
	}
	var next []worker.TopicPartition
	if a.Error == nil {
		a.Partitions = s.plan.Partitions
		for _, p := range a.Partitions {
			next = append(next, worker.TopicPartition(p))
		}
	}
	m.assignment = a
	var gone, added []worker.TopicPartition
	for _, tp := range m.owned {
		if !slices.Contains(next, tp) {
			gone = append(gone, tp)
			delete(m.pos, tp)
			delete(m.paused, tp)
		}
	}
	for _, tp := range next {
		if slices.Contains(m.owned, tp) {
			continue
		}
		added = append(added, tp)
		m.paused[tp] = true
		m.pos[tp] = g.start(tp)
		if t := m.cluster().topics[tp.Topic]; t != nil {
			m.topics[tp.Topic] = t.id
		}
	}
	m.owned = sorted(next)
	m.cluster().changed()
	if len(gone) > 0 {
		m.revoked, m.rejoin = true, true
		m.cfg.Listener.Revoked(gone)
	}
	m.cfg.Listener.Assigned(added, a.FollowUp)
}

// start is where a client begins that is told nothing else.
func (g *group) start(tp worker.TopicPartition) int64 {
	if o, ok := g.offsets[tp]; ok {
		return o.Offset
	}
	if p, err := g.c.partition(tp); err == nil {
		return p.start
	}
	return 0
}

// Begin implements worker.Member.
func (m *Member) Begin() error {
	m.client.local(Begin)
	if m.client.dead || m.closed {
		return errClosed
	}
	if m.inTxn && m.transactional() {
		return errors.New("a transaction is open already")
	}
	m.inTxn, m.sent, m.failed, m.out = true, false, nil, m.out[:0]
	clear(m.produced)
	clear(m.broken)
	return nil
}

// Produce implements worker.Member.
func (m *Member) Produce(_ context.Context, out []task.Output) {
	m.client.local(Buffer)
	for i := range out {
		o := &out[i]
		r := task.Record{Timestamp: o.Timestamp, Key: o.Key, Value: o.Value, Headers: o.Headers}
		m.out = append(m.out, output{worker.TopicPartition{Topic: o.Topic, Partition: m.place(o)}, r, o.Store >= 0})
	}
	if r := m.cluster().cfg.Random; r != nil && len(m.out) > 0 {
		m.send(r.IntN(len(m.out) + 1))
	}
}

// place chooses the partition: by the hash of the key as the Java client does,
// and in turn for null keys.
func (m *Member) place(o *task.Output) int32 {
	t := m.cluster().topics[o.Topic]
	switch {
	case o.Partition != task.AnyPartition:
		return o.Partition
	case t == nil:
		return 0
	case o.Key != nil:
		return keyenc.Partition(o.Key, int32(len(t.partitions)))
	}
	for _, h := range o.Headers {
		if h.Key != task.HeaderID {
			continue
		}
		if p, ok := worker.PlaceByID(h.Value, int32(len(t.partitions))); ok {
			return p
		}
	}
	n := m.turns[o.Topic] % int32(len(t.partitions))
	m.turns[o.Topic] = n + 1
	return n
}

// send sends the first n of the buffered records, one request for each
// partition.
func (m *Member) send(n int) {
	out := m.out[:n]
	m.out = m.out[n:]
	for len(out) > 0 {
		tp := out[0].tp
		var records []task.Record
		track := false
		var rest []output
		for _, o := range out {
			if o.tp == tp {
				records, track = append(records, o.record), track || o.track
			} else {
				rest = append(rest, o)
			}
		}
		out = rest
		if m.broken[tp] {
			continue // an idempotent producer leaves no gap
		}
		m.sent = true
		id := m.producer
		var end int64
		err := m.request(Call{Op: Produce, Partitions: []worker.TopicPartition{tp}, Records: len(records)}, func() error {
			p, err := m.cluster().partition(tp)
			if err != nil {
				return err
			}
			if m.transactional() {
				err = m.cluster().produce(id, p, records)
			} else {
				_, err = m.cluster().Append(tp, records...)
			}
			end = p.end
			return err
		})
		switch {
		case err != nil:
			if m.failed == nil {
				m.failed = fmt.Errorf("produce to %s: %w", tp.Topic, err)
			}
			if m.broken == nil {
				m.broken = map[worker.TopicPartition]bool{}
			}
			m.broken[tp] = true
		case err == nil && track:
			m.produced[tp] = end
		}
	}
}

// Flush implements worker.Member.
func (m *Member) Flush(context.Context) error {
	m.client.local(Flush)
	m.send(len(m.out))
	return m.failed
}

// Produced implements worker.Member.
func (m *Member) Produced(tp worker.TopicPartition) int64 {
	if end, ok := m.produced[tp]; ok {
		return end
	}
	return -1
}

// Commit implements worker.Member.
func (m *Member) Commit(_ context.Context, offsets []worker.OffsetCommit) (worker.Outcome, error) {
	m.send(len(m.out))
	var tps []worker.TopicPartition
	for _, o := range offsets {
		tps = append(tps, o.TopicPartition)
	}
	offsets = slices.Clone(offsets)
	memberID, generation := m.id, m.generation
	if !m.transactional() {
		err := m.request(Call{Op: CommitOffsets, Partitions: tps}, func() error {
			return m.group().commitOffsets(memberID, generation, offsets, nil)
		})
		switch {
		case err == nil:
			return worker.Done, nil
		case stale(err):
			return worker.Aborted, err
		}
		return worker.Unknown, err
	}
	commit := !m.revoked
	m.revoked = false
	var failed error
	if commit {
		m.sent = true
		id := m.producer
		failed = m.request(Call{Op: CommitOffsets, Partitions: tps}, func() error {
			p, err := m.cluster().check(id)
			if err != nil {
				return err
			}
			return m.group().commitOffsets(memberID, generation, offsets, p)
		})
		if failed == nil {
			// A heartbeat goes in between: while the group is told to wait, there
			// is time to end the transaction.
			if err := m.group().heartbeat(memberID, generation); err != nil && !errors.Is(err, ErrRebalancing) {
				commit = false
			}
		} else {
			commit = false
			if stale(failed) {
				failed = nil
			}
		}
	}
	if err := m.endTransaction(EndTransaction, commit); err != nil && failed == nil {
		failed = err
	}
	switch {
	case failed != nil:
		return worker.Unknown, failed
	case commit:
		return worker.Done, nil
	}
	return m.settled(offsets)
}

// settled finds out what became of a transaction that the client has turned into
// an abort, as the worker's client does: the stamp tells.
func (m *Member) settled(offsets []worker.OffsetCommit) (worker.Outcome, error) {
	if len(offsets) == 0 {
		return worker.Unknown, errors.New("the client turned the commit into an abort")
	}
	tp := offsets[0].TopicPartition
	found, err := m.Committed(context.Background(), []worker.TopicPartition{tp})
	switch {
	case err != nil:
		return worker.Unknown, fmt.Errorf("the client turned the commit into an abort, and the offsets cannot be read: %w", err)
	case found[tp].Metadata == offsets[0].Metadata:
		return worker.Unknown, errors.New("the client turned the commit into an abort, and the broker has committed")
	}
	return worker.Aborted, nil
}

// stale says that an offset commit was refused because the member is not what it
// was in the group.
func stale(err error) bool {
	return errors.Is(err, errUnknownMember) || errors.Is(err, errIllegalGeneration) || errors.Is(err, ErrRebalancing)
}

// endTransaction ends what the broker knows of the transaction, if anything.
func (m *Member) endTransaction(op Op, commit bool) error {
	m.inTxn = false
	m.out = m.out[:0]
	if !commit {
		for _, tp := range m.owned {
			m.pos[tp] = m.group().start(tp)
		}
	}
	if !m.sent {
		return nil
	}
	m.sent = false
	id := m.producer
	return m.request(Call{Op: op}, func() error {
		next, err := m.cluster().end(id, commit)
		if err == nil {
			m.producer = next
		}
		return err
	})
}

// Abort implements worker.Member.
func (m *Member) Abort(context.Context) error {
	if !m.transactional() {
		m.out = m.out[:0]
		return nil
	}
	m.revoked = false
	return m.endTransaction(Abort, false)
}

// Committed implements worker.Member. While a transaction that is not decided
// holds one of the offsets it returns worker.ErrUnstable.
func (m *Member) Committed(_ context.Context, tps []worker.TopicPartition) (map[worker.TopicPartition]worker.Committed, error) {
	list := map[worker.TopicPartition]worker.Committed{}
	err := m.request(Call{Op: FetchCommitted, Partitions: tps}, func() error {
		g := m.group()
		for _, tp := range tps {
			if g.unstable(tp) {
				return fmt.Errorf("%s: UNSTABLE_OFFSET_COMMIT: %w", name(tp), worker.ErrUnstable)
			}
			c, ok := g.offsets[tp]
			if !ok {
				c = worker.Committed{Offset: -1, LeaderEpoch: -1}
			}
			list[tp] = c
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// Bounds implements worker.Member.
func (m *Member) Bounds(_ context.Context, tps []worker.TopicPartition) (map[worker.TopicPartition]worker.Bounds, error) {
	return m.client.bounds(FetchBounds, tps, m.transactional())
}

// Confirm implements worker.Member.
func (m *Member) Confirm(context.Context) error {
	return m.request(Call{Op: Confirm}, func() error {
		if m.id == "" || m.generation < 0 {
			return worker.ErrNotMember
		}
		if err := m.group().heartbeat(m.id, m.generation); err != nil {
			return fmt.Errorf("%w: %w", worker.ErrNotMember, err)
		}
		return nil
	})
}

// Seek implements worker.Member.
func (m *Member) Seek(offsets map[worker.TopicPartition]int64) {
	m.client.local(Seek)
	for tp, o := range offsets {
		if slices.Contains(m.owned, tp) && m.pos[tp] != o {
			m.pos[tp] = o
			m.cluster().changed()
		}
	}
}

// Pause implements worker.Member.
func (m *Member) Pause(tps []worker.TopicPartition) {
	m.client.local(Pause, tps...)
	for _, tp := range tps {
		if slices.Contains(m.owned, tp) && !m.paused[tp] {
			m.paused[tp] = true
			m.cluster().changed()
		}
	}
}

// Resume implements worker.Member.
func (m *Member) Resume(tps []worker.TopicPartition) {
	m.client.local(Resume, tps...)
	for _, tp := range tps {
		if m.paused[tp] {
			delete(m.paused, tp)
			m.cluster().changed()
		}
	}
}

// DeleteRecords implements worker.Member.
func (m *Member) DeleteRecords(_ context.Context, below map[worker.TopicPartition]int64) error {
	var tps []worker.TopicPartition
	for tp := range below {
		tps = append(tps, tp)
	}
	return m.request(Call{Op: DeleteRecords, Partitions: sorted(tps)}, func() error { return m.cluster().deleteRecords(below) })
}

// TopicFacts implements worker.Member.
func (m *Member) TopicFacts(_ context.Context, topics []string) (facts map[string]worker.TopicFacts, err error) {
	err = m.request(Call{Op: Describe}, func() (err error) {
		facts, err = m.cluster().topicFacts(topics)
		return err
	})
	return facts, err
}

// Assignment implements worker.Member.
func (m *Member) Assignment() assign.Assignment { return m.assignment }

// Close implements worker.Member: it leaves the group, which revokes what the
// member has. A transaction that it left open stays so until its producer's
// successor or its timeout ends it, as with the real client.
func (m *Member) Close(context.Context) {
	m.client.local(CloseMember)
	if m.client.dead || m.closed {
		return
	}
	m.cluster().expire()
	gone := m.owned
	m.owned, m.closed, m.out = nil, true, nil
	m.client.members = slices.DeleteFunc(m.client.members, func(o *Member) bool { return o == m })
	g := m.group()
	if s := g.seat(m.id); s != nil {
		g.remove(s)
		if len(gone) > 0 {
			m.cfg.Listener.Revoked(gone)
		}
	} else if len(gone) > 0 {
		m.cfg.Listener.Lost(gone)
	}
}
