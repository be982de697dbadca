package sim

import (
	"context"
	"slices"
	"time"

	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/state"
)

// Control is a design that is known to be wrong, as a change at the seams. The
// zero value changes nothing.
type Control struct {
	Name string
	// Why says what goes wrong with it.
	Why string
	// In names the scenarios that find it.
	In []string

	Flaws  Flaws
	Store  func(p *process, s state.Backend) state.Backend
	Broker func(p *process, b worker.Broker) worker.Broker
	Config func(c *worker.Config)
}

// Controls lists the designs.
func Controls() []Control { return slices.Concat(controls, outboxControls) }

var controls = []Control{
	{Name: "unfenced read", In: []string{"regress"},
		Why:   "a value of a store that has gone back enters a computation, since nobody looks at its token",
		Flaws: Flaws{Unfenced: true}},
	{Name: "epoch without compare-and-swap", In: []string{"regress"},
		Why:   "when the store forgets a claim, two owners hold the same epoch",
		Flaws: Flaws{EpochOnly: true}},
	{Name: "token in a call of its own", In: []string{"crash", "unknown-outcome"},
		Why:   "the process dies between the two calls, and the view says that it has what it lacks",
		Flaws: Flaws{TokenFirst: true}},
	{Name: "commit counted as applied", In: []string{"crash", "regress"},
		Why:   "a claim trusts the group's offsets and replays nothing, while the APPLY of the last batch has not happened",
		Store: func(p *process, s state.Backend) state.Backend { return &trusting{s, p, map[state.Token]state.Token{}} }},
	{Name: "cache kept over a claim", In: []string{"rebalance", "zombie"},
		Why:   "a task comes back to a former owner, who remembers what it was",
		Store: func(p *process, s state.Backend) state.Backend { return p.remember(s) }},
	{Name: "old view replayed from its tail", In: []string{"compaction"},
		Why:    "the tombstone that the view lacks is compacted away, and the key comes back",
		Config: func(c *worker.Config) { c.MaxViewAge = 1 << 62 }},
	{Name: "unstable offset fetch", In: []string{"markers", "unknown-outcome"},
		Why:    "the transaction of an owner that died is decided after its successor has begun",
		Broker: func(p *process, b worker.Broker) worker.Broker { return &changed{b, p, unstable} }},
	{Name: "replay to the last stable offset", In: []string{"markers"},
		Why:    "the marker of the last batch has not reached the changelog yet, so its writes are left out",
		Broker: func(p *process, b worker.Broker) worker.Broker { return &changed{b, p, stampless} }},
	{Name: "revocation before the task is off", In: []string{"rebalance", "timers"},
		Why:    "the former owner commits a batch of a task that is another's by then",
		Broker: func(p *process, b worker.Broker) worker.Broker { return &changed{b, p, hasty} }},
}

// trusting is a store whose tokens say what the group says.
type trusting struct {
	state.Backend
	p    *process
	real map[state.Token]state.Token
}

func (s *trusting) Token(ctx context.Context, id state.ID) (state.Token, error) {
	raw, err := s.Backend.Token(ctx, id)
	t, bad := stamp.DecodeToken(raw)
	if err != nil || raw == "" || bad != nil {
		return raw, err
	}
	at := slices.Index(s.p.w.ids, id)
	c := s.p.w.kafka.Committed(application)[worker.TopicPartition{Topic: byKeyName, Partition: int32(at)}]
	last, ours, bad := stamp.DecodeStamp(c.Metadata)
	if bad != nil || !ours || t.Restoring || t.Lineage != last.Lineage || t.Seq >= last.Seq {
		return raw, nil
	}
	t.Seq, t.Nonce, t.Changelog = last.Seq, last.Nonce, last.Changelog
	s.real[t.Encode()] = raw
	return t.Encode(), nil
}

func (s *trusting) Claim(ctx context.Context, id state.ID, old, new state.Token) (state.View, error) {
	if raw, ok := s.real[old]; ok {
		old = raw
	}
	return s.Backend.Claim(ctx, id, old, new)
}

// remembering is a store with a cache in front of it that outlives claims.
type remembering struct {
	state.Backend
	cache map[state.ID]map[string]*string
}

// remember returns the cache of a process, which lives as long as the process.
func (p *process) remember(s state.Backend) state.Backend {
	return &remembering{s, map[state.ID]map[string]*string{}}
}

func (s *remembering) Claim(ctx context.Context, id state.ID, old, new state.Token) (state.View, error) {
	v, err := s.Backend.Claim(ctx, id, old, new)
	if err != nil {
		return nil, err
	}
	if s.cache[id] == nil {
		s.cache[id] = map[string]*string{}
	}
	return &rememberingView{v, s.cache[id]}, nil
}

type rememberingView struct {
	state.View
	cache map[string]*string
}

func (v *rememberingView) Apply(ctx context.Context, old, new state.Token, b *state.Batch) error {
	err := v.View.Apply(ctx, old, new, b)
	for _, w := range b.Writes() {
		switch value := string(w.Value); {
		case err != nil:
			delete(v.cache, string(w.Key))
		case w.Value == nil:
			v.cache[string(w.Key)] = nil
		default:
			v.cache[string(w.Key)] = &value
		}
	}
	return err
}

func (v *rememberingView) Read(ctx context.Context, expect state.Token, keys [][]byte, visit func(int, []byte)) error {
	for i, k := range keys {
		known, ok := v.cache[string(k)]
		switch {
		case ok && known == nil:
			visit(i, nil)
		case ok:
			visit(i, []byte(*known))
		default:
			err := v.View.Read(ctx, expect, [][]byte{k}, func(_ int, value []byte) {
				v.cache[string(k)] = nil
				if value != nil {
					text := string(value)
					v.cache[string(k)] = &text
				}
				visit(i, value)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// defect is what is wrong with a broker's client.
type defect int

const (
	unstable     defect = iota // offsets are those of now, whatever is undecided
	stampless                  // stamps have no positions, and the end of a log is its last stable offset
	renumbered                 // outputs have the numbers of a tampered store
	nameless                   // fetched records have no ids
	shortsighted               // stamps tell of one claim only
	rash                       // commits that only use up numbers are left out
	careless                   // a flush does not wait, and says that all is well
	hasty                      // a revocation is acknowledged at once, and told to the worker later
)

// changed is a broker whose clients differ.
type changed struct {
	worker.Broker
	p    *process
	what defect
}

func (b *changed) Join(ctx context.Context, cfg worker.MemberConfig) (worker.Member, error) {
	m := &changedMember{p: b.p, what: b.what, listener: cfg.Listener}
	if b.what == hasty {
		cfg.Listener = m
	}
	inner, err := b.Broker.Join(ctx, cfg)
	if err != nil {
		return nil, err
	}
	m.Member = inner
	return m, nil
}

func (b *changed) Reader(ctx context.Context, committedOnly bool) (worker.Reader, error) {
	r, err := b.Broker.Reader(ctx, committedOnly)
	if err != nil || b.what != stampless {
		return r, err
	}
	return &changedReader{r}, nil
}

type changedReader struct{ worker.Reader }

func (r *changedReader) Bounds(ctx context.Context, tps []worker.TopicPartition) (map[worker.TopicPartition]worker.Bounds, error) {
	bounds, err := r.Reader.Bounds(ctx, tps)
	for tp, b := range bounds {
		b.High = b.End
		bounds[tp] = b
	}
	return bounds, err
}

type changedMember struct {
	worker.Member
	p        *process
	what     defect
	listener worker.Listener
	gone     []worker.TopicPartition // revoked, and not told yet
	toldAt   time.Time
}

func (m *changedMember) Committed(ctx context.Context, tps []worker.TopicPartition) (map[worker.TopicPartition]worker.Committed, error) {
	switch m.what {
	case unstable:
		list, now := map[worker.TopicPartition]worker.Committed{}, m.p.w.kafka.Committed(application)
		for _, tp := range tps {
			c, ok := now[tp]
			if !ok {
				c = worker.Committed{Offset: -1, LeaderEpoch: -1}
			}
			list[tp] = c
		}
		return list, nil
	case stampless:
		list, err := m.Member.Committed(ctx, tps)
		for tp, c := range list {
			if s, ours, bad := stamp.DecodeStamp(c.Metadata); ours && bad == nil {
				s.Changelog = nil
				c.Metadata = s.Encode()
				list[tp] = c
			}
		}
		return list, err
	case shortsighted:
		list, err := m.Member.Committed(ctx, tps)
		for tp, c := range list {
			if s, ours, bad := stamp.DecodeStamp(c.Metadata); ours && bad == nil && len(s.Gaps) > 1 {
				s.Gaps = s.Gaps[len(s.Gaps)-1:]
				c.Metadata = s.Encode()
				list[tp] = c
			}
		}
		return list, err
	}
	return m.Member.Committed(ctx, tps)
}

// hastiness is how long the worker does not know of a revocation.
const hastiness = 300 * time.Millisecond

func (m *changedMember) Poll(ctx context.Context, limit int, wait time.Duration) ([]worker.Fetched, error) {
	if len(m.gone) > 0 && !m.p.w.now.Before(m.toldAt) {
		gone := m.gone
		m.gone = nil
		m.listener.Revoked(gone)
	}
	fetched, err := m.Member.Poll(ctx, limit, wait)
	if m.what == nameless {
		fetched = withoutIDs(fetched)
	}
	return fetched, err
}

func (m *changedMember) Produce(ctx context.Context, out []task.Output) {
	if m.what == renumbered {
		m.p.w.numbers.renumber(out)
	}
	m.Member.Produce(ctx, out)
}

func (m *changedMember) Commit(ctx context.Context, offsets []worker.OffsetCommit) (worker.Outcome, error) {
	if m.what == rash && !slices.ContainsFunc(offsets, func(o worker.OffsetCommit) bool { return !burns(o) }) {
		return worker.Done, nil
	}
	return m.Member.Commit(ctx, offsets)
}

// burns says whether a commit does nothing but use up the numbers of a claim.
func burns(o worker.OffsetCommit) bool {
	s, ours, err := stamp.DecodeStamp(o.Metadata)
	return ours && err == nil && s.Outbox && s.Seq > max(s.Last, s.Gaps[len(s.Gaps)-1].Base)
}

func (m *changedMember) Flush(ctx context.Context) error {
	if m.what == careless {
		return nil
	}
	return m.Member.Flush(ctx)
}

// The member is the listener of a hasty client.

func (m *changedMember) Assigned(added []worker.TopicPartition, followUp bool) {
	m.gone = slices.DeleteFunc(m.gone, func(tp worker.TopicPartition) bool { return slices.Contains(added, tp) })
	m.listener.Assigned(added, followUp)
}

func (m *changedMember) Revoked(gone []worker.TopicPartition) {
	if m.Member == nil {
		return
	}
	// The client's next commit would be an abort, which takes the edge off.
	if m.Member.Begin() == nil {
		_ = m.Member.Abort(ctx)
	}
	m.gone, m.toldAt = append(m.gone, gone...), m.p.w.now.Add(hastiness)
}

func (m *changedMember) Lost(gone []worker.TopicPartition) { m.listener.Lost(gone) }
func (m *changedMember) RebalanceWaiting()                 { m.listener.RebalanceWaiting() }

// Catch plays seeds of the scenarios that should find a control, in turn, until
// one does. It returns how many plans that took, and the one that failed.
func (pl *Player) Catch(c Control, limit int) (played int, found *Plan, err error) {
	was := pl.Control
	pl.Control = c
	defer func() { pl.Control = was }()
	for seed := uint64(1); played < limit; seed++ {
		for _, name := range c.In {
			p := ByName(name).Plan(seed)
			played++
			if res := pl.Play(p); res.Err != nil {
				return played, p, res.Err
			}
		}
	}
	return played, nil, nil
}
