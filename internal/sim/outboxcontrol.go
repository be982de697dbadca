package sim

import (
	"context"
	"slices"

	"github.com/weirstreams/weir/internal/outbox"
	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/state"
)

// outboxControls are designs without a changelog that are wrong.
var outboxControls = []Control{
	{Name: "outputs are not kept", In: []string{"outbox"},
		Why:   "the process dies between the APPLY and the acknowledgement: the state has the batch, and nobody has its outputs",
		Store: func(_ *process, s state.Backend) state.Backend { return &tampered{s.(state.Outbox), nil, forgetful} }},
	{Name: "outputs before the state", In: []string{"outbox"},
		Why:    "the process dies before the APPLY: the batch is cut anew, and its outputs come again as others",
		Store:  func(p *process, s state.Backend) state.Backend { return &tampered{s.(state.Outbox), p, hurried} },
		Broker: func(p *process, b worker.Broker) worker.Broker { return &spied{b, p} }},
	{Name: "the group's positions instead of the view's", In: []string{"outbox"},
		Why:   "what is in the state and not acknowledged is read and counted again",
		Store: func(p *process, s state.Backend) state.Backend { return &tampered{s.(state.Outbox), p, obedient} }},
	{Name: "repetitions are taken", In: []string{"outbox"},
		Why:    "what was sent again through a repartition topic is counted again",
		Broker: func(p *process, b worker.Broker) worker.Broker { return &changed{b, p, nameless} }},
	{Name: "acknowledged by the commit", In: []string{"outbox"},
		Why:    "an output has failed, and the positions behind it are committed",
		Broker: func(p *process, b worker.Broker) worker.Broker { return &changed{b, p, careless} }},
	{Name: "numbers are given again", In: []string{"outbox-forgets"},
		Why:    "the store has forgotten a batch whose outputs were read, and who drops repetitions takes the next ones for them",
		Store:  func(p *process, s state.Backend) state.Backend { return &tampered{s.(state.Outbox), p, thrifty} },
		Broker: func(p *process, b worker.Broker) worker.Broker { return &changed{b, p, renumbered} }},
	{Name: "only the last claim is remembered", In: []string{"outbox-claims"},
		Why:    "the store goes back over two claims, and what a former owner applies there passes for acknowledged",
		Broker: func(p *process, b worker.Broker) worker.Broker { return &changed{b, p, shortsighted} }},
	{Name: "new numbers before the group knows", In: []string{"outbox-claims", "outbox-forgets"},
		Why:    "who is no member any more sends again under new numbers, the store forgets his claim, and readers take the next outputs for repetitions",
		Broker: func(p *process, b worker.Broker) worker.Broker { return &changed{b, p, rash} }},
}

// tampering is what is wrong with a store.
type tampering int

const (
	forgetful tampering = iota // segments are empty
	hurried                    // the outputs are sent before the APPLY
	obedient                   // tokens have the positions of the group
	thrifty                    // batches are counted from what the view holds, whatever was forgotten
)

// tampered is a store with an outbox that differs.
type tampered struct {
	state.Outbox
	p    *process
	what tampering
}

// numbers are those that batches have when they are counted by the view alone.
type numbers struct {
	at map[state.Token]uint64 // of the last batch of the view with that token
	of map[batchName]uint64
}

type batchName struct {
	task topology.TaskID
	seq  uint64
}

func (n *numbers) set(tok state.Token, to uint64) {
	if n.at == nil {
		n.at, n.of = map[state.Token]uint64{}, map[batchName]uint64{}
	}
	n.at[tok] = to
}

// renumber gives outputs those numbers.
func (n *numbers) renumber(out []task.Output) {
	for i := range out {
		for j, h := range out[i].Headers {
			if h.Key != outbox.Header {
				continue
			}
			id, err := outbox.ParseID(h.Value)
			if to, ok := n.of[batchName{id.Task, id.Seq}]; ok && err == nil {
				id.Seq = to
				out[i].Headers[j].Value = id.Append(nil)
			}
		}
	}
}

func (s *tampered) Token(ctx context.Context, id state.ID) (state.Token, error) {
	raw, err := s.Outbox.Token(ctx, id)
	t, bad := stamp.DecodeToken(raw)
	if s.what != obedient || err != nil || bad != nil {
		return raw, err
	}
	committed := s.p.w.kafka.Committed(application)
	t.Inputs = slices.Clone(t.Inputs)
	for i := range t.Inputs {
		in := &t.Inputs[i]
		if c, ok := committed[worker.TopicPartition{Topic: in.Name, Partition: partitionOf(id)}]; ok {
			in.Next = c.Offset
		}
	}
	s.p.told = map[state.Token]state.Token{t.Encode(): raw}
	return t.Encode(), nil
}

func partitionOf(id state.ID) int32 { return int32(id.Task[len(id.Task)-1] - '0') }

func (s *tampered) Claim(ctx context.Context, id state.ID, old, new state.Token) (state.View, error) {
	if raw, ok := s.p.toldOf(old); ok {
		old = raw
	}
	if s.what == thrifty {
		s.p.w.numbers.set(new, s.p.w.numbers.at[old]) // also if the answer gets lost
	}
	v, err := s.Outbox.Claim(ctx, id, old, new)
	if err != nil {
		return nil, err
	}
	return &tamperedView{v.(state.OutboxView), s}, nil
}

func (p *process) toldOf(t state.Token) (state.Token, bool) {
	if p == nil {
		return "", false
	}
	raw, ok := p.told[t]
	return raw, ok
}

type tamperedView struct {
	state.OutboxView
	s *tampered
}

func (v *tamperedView) ApplyOut(ctx context.Context, old, new state.Token, b *state.Batch, slot int, segment []byte) error {
	s, err := outbox.Decode(segment)
	if err != nil {
		return err
	}
	switch v.s.what {
	case forgetful:
		s.Outputs = nil
		segment = s.Encode()
	case thrifty:
		n := &v.s.p.w.numbers
		n.set(new, n.at[old]+1)
		n.of[batchName{s.Task, s.Seq}] = n.at[new]
	case hurried:
		if m := v.s.p.member; m != nil && len(s.Outputs) > 0 {
			m.Produce(ctx, s.Sent())
			if err := m.Flush(ctx); err != nil {
				return state.ErrUnavailable
			}
		}
	}
	return v.OutboxView.ApplyOut(ctx, old, new, b, slot, segment)
}

// spied is a broker whose members the process can be asked for.
type spied struct {
	worker.Broker
	p *process
}

func (b *spied) Join(ctx context.Context, cfg worker.MemberConfig) (worker.Member, error) {
	m, err := b.Broker.Join(ctx, cfg)
	b.p.member = m
	return m, err
}

// withoutIDs takes the ids off fetched records.
func withoutIDs(fetched []worker.Fetched) []worker.Fetched {
	for i := range fetched {
		for j := range fetched[i].Records {
			r := &fetched[i].Records[j]
			r.Headers = slices.DeleteFunc(slices.Clone(r.Headers), func(h task.Header) bool { return h.Key == outbox.Header })
		}
	}
	return fetched
}
