package weirtest

import (
	"context"
	"errors"
	"testing"
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
)

// holed is a store of which somebody has deleted a slot of the outboxes.
type holed struct {
	*memstore.Backend
	slot int // -1 none
}

func (s *holed) Claim(ctx context.Context, id state.ID, old, new state.Token) (state.View, error) {
	v, err := s.Backend.Claim(ctx, id, old, new)
	if err != nil {
		return nil, err
	}
	return &holedView{v.(state.OutboxView), s.slot}, nil
}

type holedView struct {
	state.OutboxView
	slot int
}

func (v *holedView) Segments(ctx context.Context, expect state.Token, visit func(slot int, segment []byte)) error {
	return v.OutboxView.Segments(ctx, expect, func(slot int, segment []byte) {
		if slot != v.slot {
			visit(slot, segment)
		}
	})
}

// What is not acknowledged is sent again, and what a fenced owner has applied as far as
// its slots reach: up to where a later batch has the slot, and not up to a segment that
// is missing.
func TestOutboxMissingSegments(t *testing.T) {
	t.Parallel()
	id := state.ID{Application: "test", Task: "0_0"}
	for _, tc := range []struct {
		name    string
		batches int // that were applied
		strays  int // and are not acknowledged, the last ones; behind claims that the store has forgotten
		owed    int // or behind none
		missing int // so many before the last one; -1 none
		again   int // outputs that come again, -1 for an error
	}{
		{"nobody else has claimed", 9, 0, 4, -1, 4},
		{"nobody else has claimed, and one is missing", 9, 0, 4, 2, -1},
		{"all segments are there", 9, 4, 0, -1, 4},
		{"more than there are slots", 20, 18, 0, -1, 16},
		{"the last one is missing", 9, 4, 0, 0, -1},
		{"one in the middle is missing", 9, 4, 0, 2, -1},
		{"one in the middle of all slots is missing", 20, 18, 0, 9, -1},
		{"one that was acknowledged is missing", 9, 4, 0, 4, 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			store := &holed{memstore.NewShared(), -1}
			o := outboxOptions(store)
			o.AllowFailure = true
			c := newCounter(t, 1, o)
			for range tc.batches {
				c.send(1, 1)
			}
			c.Instance(0).Stop()
			raw, err := store.Token(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			tok, err := stamp.DecodeToken(raw)
			if err != nil {
				t.Fatal(err)
			}
			acked := tok.Last - uint64(tc.strays+tc.owed)
			s := stamp.Stamp{Lineage: tok.Lineage, Seq: acked, Outbox: true, Last: acked, Gaps: []stamp.Gap{{Base: 32}}}
			if tc.strays > 0 {
				s.Seq, s.Last = tok.Last+100, tok.Last+100
				s.Gaps = []stamp.Gap{{From: acked, Base: tok.Last + 50}, {From: tok.Last + 60, Base: tok.Last + 99}}
			}
			c.sim.SetOffsets("test", worker.OffsetCommit{TopicPartition: worker.TopicPartition{Topic: "in"}, Offset: int64(tc.batches), LeaderEpoch: -1, Metadata: s.Encode()})
			if tc.missing >= 0 {
				store.slot = int((tok.Last - uint64(tc.missing)) % 16)
			}
			c.Instance(0).Start()
			c.Advance(time.Second)
			in, again := c.Instance(0), len(c.out.All())-tc.batches
			switch {
			case tc.again < 0 && (in.State() != Failed || !errors.Is(in.Err(), weir.ErrStateMismatch) || again != 0):
				t.Errorf("the instance is %v with %v, and %d outputs came again, want it to refuse", in.State(), in.Err(), again)
			case tc.again >= 0 && (in.State() == Failed || again != tc.again):
				t.Errorf("the instance is %v with %v, and %d outputs came again, want %d", in.State(), in.Err(), again, tc.again)
			}
		})
	}
}

// lent is a store that counts the views which are held, and refuses some reads.
type lent struct {
	*memstore.Backend
	held, refused int
	refuse        int // so many of the next reads
}

func (s *lent) Claim(ctx context.Context, id state.ID, old, new state.Token) (state.View, error) {
	v, err := s.Backend.Claim(ctx, id, old, new)
	if err != nil {
		return nil, err
	}
	s.held++
	return &lentView{OutboxView: v.(state.OutboxView), s: s, id: id}, nil
}

type lentView struct {
	state.OutboxView
	s      *lent
	id     state.ID
	closed bool
}

func (v *lentView) Read(ctx context.Context, expect state.Token, keys [][]byte, visit func(int, []byte)) error {
	if v.s.refuse > 0 {
		v.s.refuse--
		v.s.refused++
		return &state.FencedError{ID: v.id, Stored: "another"}
	}
	return v.OutboxView.Read(ctx, expect, keys, visit)
}

func (v *lentView) Close() error {
	if !v.closed {
		v.closed = true
		v.s.held--
	}
	return v.OutboxView.Close()
}

// early reads its store as it begins.
type early struct {
	weir.ProcessorDefaults
	store *weir.KeyValueStore[string, string]
}

func (e *early) Init(t *weir.Task, _ *weir.Emitter[string, string]) error {
	_, _, err := e.store.Open(t).Get("k")
	return err
}

func (*early) Process(weir.Record[string, string]) error { return nil }

// A task that is refused as it begins gives its view back before the next claim.
func TestViewsOfTasksThatDoNotBegin(t *testing.T) {
	t.Parallel()
	for _, g := range []weir.Guarantee{weir.AtLeastOnce, weir.ExactlyOnce} {
		store := &lent{Backend: memstore.NewShared(), refuse: 3}
		o := outboxOptions(store)
		o.Config.Guarantee = g
		o.Partitions = map[string]int32{"in": 1, "out": 1}
		kv := weir.NewKeyValueStore("kv", serde.String, serde.String)
		d := New(t, build(t, func(b *weir.Builder) {
			b.Stream(chainIn).Process("early", func() *early { return &early{store: kv} }, kv).To(chainOut)
		}), o)
		d.Advance(5 * time.Second)
		if store.refused != 3 || store.held != 1 {
			t.Errorf("%v: after %d refusals %d views are held, want 3 and 1", g, store.refused, store.held)
		}
	}
}
