package weir_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state/memstore"
)

type rating struct {
	Movie string  `json:"movie"`
	Stars float64 `json:"stars"`
}
type average struct {
	Sum   float64 `json:"sum"`
	Count int64   `json:"count"`
}

func averages(t *testing.T) (*weir.Topology, weir.Table[string, average]) {
	b := weir.NewBuilder()
	ratings := weir.NewTopic("ratings", serde.String, serde.JSON[rating]())
	out := weir.NewTopic("averages", serde.String, serde.JSON[average]())
	table := b.Stream(ratings).
		GroupBy("by-movie", serde.String, func(_ string, r rating) string { return r.Movie }).
		Aggregate("averages", serde.JSON[average](), func() average { return average{} },
			func(_ string, r rating, a average) average { return average{a.Sum + r.Stars, a.Count + 1} })
	table.ToStream().To(out)
	top, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return top, table
}

func TestThinPath(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	br, err := embedded.Open(embedded.Options{Topics: []embedded.Topic{{Name: "ratings", Partitions: 3}, {Name: "averages", Partitions: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	defer br.Close()
	cl, err := kgo.NewClient(br.ClientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for i := range 1000 {
		cl.Produce(ctx, &kgo.Record{Topic: "ratings", Key: fmt.Append(nil, "u", i%17), Value: fmt.Appendf(nil, `{"movie":"m%d","stars":%d}`, i%7, i%5)}, nil)
	}
	if err := cl.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	top, table := averages(t)
	app, err := weir.NewApp(top, weir.Config{ApplicationID: "app", ClientOptions: br.ClientOptions(), Dir: t.TempDir(), Store: memstore.New(), Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- app.Run(ctx) }()
	if err := app.WaitFor(ctx, weir.Running); err != nil {
		t.Fatal(err)
	}
	for ctx.Err() == nil {
		n := int64(0)
		for i := range 7 {
			a, _, err := app.Read(table).Get(ctx, fmt.Sprint("m", i))
			if err != nil && !errors.Is(err, weir.ErrNotOwner) && !errors.Is(err, weir.ErrRestoring) { // a task moves to the second worker
				t.Fatal(err)
			}
			n += a.Count
		}
		if n == 1000 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := app.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
