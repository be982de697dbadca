package weir_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
)

// remote is a backend across a network, which counts the reads of its views.
type remote struct {
	state.Backend
	reads *atomic.Int64
}

func (r *remote) Remote() bool { return true }

func (r *remote) Claim(ctx context.Context, id state.ID, old, new state.Token) (state.View, error) {
	v, err := r.Backend.Claim(ctx, id, old, new)
	if err != nil {
		return nil, err
	}
	return &remoteView{v, r.reads}, nil
}

type remoteView struct {
	state.View
	reads *atomic.Int64
}

func (v *remoteView) Read(ctx context.Context, expect state.Token, keys [][]byte, visit func(int, []byte)) error {
	v.reads.Add(1)
	return v.View.Read(ctx, expect, keys, visit)
}

// byMovie counts ratings by the movie that is in the value.
type byMovie struct {
	weir.ProcessorDefaults
	counts *weir.KeyValueStore[string, int64]
	kv     weir.KeyValue[string, int64]
	out    *weir.Emitter[string, int64]
}

func (p *byMovie) Init(t *weir.Task, out *weir.Emitter[string, int64]) error {
	p.kv, p.out = p.counts.Open(t), out
	return nil
}

func (p *byMovie) Process(r weir.Record[string, string]) error {
	n, _, err := p.kv.Get(r.Value)
	if err != nil {
		return err
	}
	p.out.Emit(weir.Record[string, int64]{Key: r.Value, Value: n + 1, Time: r.Time})
	return p.kv.Put(r.Value, n+1)
}

// looking names its keys ahead.
type looking struct {
	byMovie
	panics *atomic.Int64 // calls after which LookAhead panics once
}

func (p *looking) LookAhead(r weir.Record[string, string], a *weir.Ahead) {
	if p.panics != nil && p.panics.Add(-1) == 0 {
		panic("no idea")
	}
	p.counts.Ahead(a, r.Value)
}

// A processor that names its keys ahead waits for a round trip for each hundred
// of them, and computes the same.
func TestLookahead(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const records = 2000
	var reads [2]int64
	for i, ahead := range []bool{false, true} {
		b := weir.NewBuilder()
		counts := weir.NewKeyValueStore("counts", serde.String, serde.Int64)
		in := b.Stream(weir.NewTopic("in", serde.String, serde.String))
		out := weir.NewTopic("out", serde.String, serde.Int64)
		if ahead {
			in.Process("by-movie", func() *looking { return &looking{byMovie: byMovie{counts: counts}} }, counts).To(out)
		} else {
			in.Process("by-movie", func() *byMovie { return &byMovie{counts: counts} }, counts).To(out)
		}
		top, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		var n atomic.Int64
		_, cl, stop := running(t, top, weir.Config{Store: &remote{memstore.New(), &n}, Workers: 1},
			embedded.Topic{Name: "in", Partitions: 1}, embedded.Topic{Name: "out", Partitions: 1})
		var list []*kgo.Record
		for j := range records {
			list = append(list, &kgo.Record{Topic: "in", Key: fmt.Append(nil, j), Value: fmt.Appendf(nil, "movie-%d", j%1500)})
		}
		if err := cl.ProduceSync(ctx, list...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		cl.AddConsumePartitions(map[string]map[int32]kgo.Offset{"out": {0: kgo.NewOffset().AtStart()}})
		last := map[string]int64{}
		for seen := 0; seen < records; {
			fetches := cl.PollFetches(ctx)
			if err := ctx.Err(); err != nil {
				t.Fatal(err)
			}
			fetches.EachRecord(func(r *kgo.Record) {
				v, err := serde.Int64.Decode(r.Value)
				if err != nil {
					t.Fatal(err)
				}
				last[string(r.Key)] = v
				seen++
			})
		}
		for j := range 1500 {
			want := int64(1)
			if j < records-1500 {
				want = 2
			}
			if got := last[fmt.Sprintf("movie-%d", j)]; got != want {
				t.Errorf("ahead=%v: movie-%d was rated %d times, want %d", ahead, j, got, want)
			}
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		reads[i] = n.Load()
	}
	if reads[0] < 1500 || reads[1]*10 > reads[0] {
		t.Errorf("%d reads without, %d with a look ahead", reads[0], reads[1])
	}
}

// What goes wrong in LookAhead is an error of the processor.
func TestLookaheadMisuse(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for want, make := range map[string]func(counts *weir.KeyValueStore[string, int64]) *looking{
		"panic in LookAhead: no idea": func(counts *weir.KeyValueStore[string, int64]) *looking {
			var n atomic.Int64
			n.Store(1)
			return &looking{byMovie{counts: counts}, &n}
		},
	} {
		b := weir.NewBuilder()
		counts := weir.NewKeyValueStore("counts", serde.String, serde.Int64)
		b.Stream(weir.NewTopic("in", serde.String, serde.String)).Process("by-movie", func() *looking { return make(counts) }, counts)
		top, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		app, cl, stop := running(t, top, weir.Config{Store: &remote{memstore.New(), new(atomic.Int64)}, Workers: 1}, embedded.Topic{Name: "in", Partitions: 1})
		if err := cl.ProduceSync(ctx, &kgo.Record{Topic: "in", Key: []byte("u"), Value: []byte("m")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := app.WaitFor(ctx, weir.Failed); err != nil {
			t.Fatal(err)
		}
		if err := stop(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "by-movie") {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}
