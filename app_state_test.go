package weir_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
)

// running starts an App on a broker of its own, and returns the way to stop it.
func running(t *testing.T, top *weir.Topology, c weir.Config, topics ...embedded.Topic) (app *weir.App, cl *kgo.Client, stop func() error) {
	t.Helper()
	br, err := embedded.Open(embedded.Options{Topics: topics})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { br.Close() })
	if cl, err = kgo.NewClient(br.ClientOptions()...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	c.ApplicationID, c.ClientOptions, c.Dir = "app", br.ClientOptions(), t.TempDir()
	if c.Store == nil {
		c.Store = memstore.New()
	}
	if app, err = weir.NewApp(top, c); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- app.Run(context.Background()) }()
	stop = sync.OnceValue(func() error {
		if err := app.Close(); err != nil {
			return err
		}
		return <-done
	})
	t.Cleanup(func() { _ = stop() })
	return app, cl, stop
}

// An App that is Running has all tasks at work: one that moves to the second
// worker of the same process, in the second round of a rebalance, is not lost
// sight of.
func TestRunningMeansThatEveryKeyCanBeRead(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for range 2 {
		b := weir.NewBuilder()
		table := b.Table("table", weir.NewTopic("in", serde.String, serde.String))
		top, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		app, _, stop := running(t, top, weir.Config{Workers: 3}, embedded.Topic{Name: "in", Partitions: 6})
		if err := app.WaitFor(ctx, weir.Running); err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			if _, _, err := app.Read(table).Get(ctx, fmt.Sprint("k", i)); err != nil {
				t.Errorf("k%d: %v", i, err)
			}
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// The listener of states may ask the App, hears of each change once and in
// order, and cannot end the process.
func TestOnStateMayAskTheApp(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	b := weir.NewBuilder()
	in := weir.NewTopic("in", serde.String, serde.String)
	table := b.Table("table", in)
	top, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	var app *weir.App
	made := make(chan struct{})
	var heard []weir.State
	c := weir.Config{Workers: 2, OnState: func(s weir.State) {
		<-made
		heard = append(heard, s)
		_ = app.State()
		_ = app.Position()
		_, _, _ = app.Read(table).Get(ctx, "k")
		if s == weir.Running {
			panic("of the listener")
		}
	}}
	app, _, stop := running(t, top, c, embedded.Topic{Name: "in", Partitions: 2})
	close(made)
	if err := app.WaitFor(ctx, weir.Running); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if want := []weir.State{weir.Starting, weir.Restoring, weir.Running, weir.Closing, weir.Closed}; !slices.Equal(heard, want) {
		t.Errorf("heard of %v, want %v", heard, want)
	}
}

// A worker that fails and is replaced is not running meanwhile, and its App is
// not either.
func TestReplacedWorker(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	b := weir.NewBuilder()
	in, out := weir.NewTopic("in", serde.String, serde.String), weir.NewTopic("out", serde.String, serde.String)
	var mu sync.Mutex
	fails := 1
	b.Stream(in).TryMapValues(func(_, v string) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if v == "bad" && fails > 0 {
			fails--
			return "", errors.New("for once")
		}
		return v, nil
	}).To(out)
	top, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	states := make(chan weir.State, 100)
	app, cl, stop := running(t, top, weir.Config{Workers: 1, ReplaceFailedWorkers: true, OnState: func(s weir.State) { states <- s }},
		embedded.Topic{Name: "in", Partitions: 1}, embedded.Topic{Name: "out", Partitions: 1})
	// Listeners hear of a state a moment after WaitFor sees it.
	for s := weir.Created; s != weir.Running; {
		select {
		case s = <-states:
		case <-ctx.Done():
			t.Fatalf("state %v, and not Running", s)
		}
	}
	for _, v := range []string{"good", "bad", "better"} {
		if err := cl.ProduceSync(ctx, &kgo.Record{Topic: "in", Value: []byte(v)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []weir.State{weir.Restoring, weir.Running} {
		select {
		case s := <-states:
			if s != want {
				t.Fatalf("state %v, want %v", s, want)
			}
		case <-ctx.Done():
			t.Fatalf("no state %v", want)
		}
	}
	for ctx.Err() == nil && app.Position()["in"][0] < 3 {
		time.Sleep(10 * time.Millisecond)
	}
	if p := app.Position()["in"][0]; p != 3 {
		t.Errorf("position %d, want 3", p)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// unordered is a backend that hears which stores need no order.
type unordered struct {
	state.Backend
	heard chan []string
}

func (u *unordered) KeepUnordered(application string, stores []string) {
	u.heard <- append([]string{application}, stores...)
}

// The backend is told of the stores for point lookups before anything is
// claimed, and readers get no range of them.
func TestPointLookups(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	b := weir.NewBuilder()
	in := weir.NewTopic("in", serde.String, serde.String)
	points := b.Table("points", in, weir.PointLookups())
	ordered := points.ToStream().GroupByKey().Count("ordered")
	points.ToStream().GroupByKey().Count("counts", weir.PointLookups())
	top, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	u := &unordered{memstore.New(), make(chan []string, 1)}
	app, cl, _ := running(t, top, weir.Config{Store: u}, embedded.Topic{Name: "in", Partitions: 2})
	if err := cl.ProduceSync(ctx, &kgo.Record{Topic: "in", Key: []byte("k"), Value: []byte("v")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := app.WaitFor(ctx, weir.Running); err != nil {
		t.Fatal(err)
	}
	if heard, want := <-u.heard, []string{"app", "counts", "points"}; !slices.Equal(heard, want) {
		t.Errorf("heard of %q, want %q", heard, want)
	}
	for ctx.Err() == nil {
		v, found, err := app.Read(points).Get(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		if found {
			if v != "v" {
				t.Errorf("%q", v)
			}
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, err := range app.Read(points).Range(ctx, weir.All[string]()) {
		if !errors.Is(err, weir.ErrUnordered) {
			t.Errorf("a range of a store without order: error %v", err)
		}
	}
	n := 0
	for _, err := range app.Read(ordered).Range(ctx, weir.All[string]()) {
		if err != nil {
			t.Error(err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("%d entries of the store in order, want 1", n)
	}
}
