package weir_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/serde"
)

type Rating struct {
	Movie string  `json:"movie"`
	Stars float64 `json:"stars"`
}

type Average struct {
	Sum   float64 `json:"sum"`
	Count int64   `json:"count"`
}

// Two users rate a movie; its average is kept exactly once, and read while the
// application runs.
func Example() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	ratings := weir.NewTopic("ratings", serde.String, serde.JSON[Rating]())
	averages := weir.NewTopic("rating-averages", serde.String, serde.JSON[Average]())

	b := weir.NewBuilder()
	table := b.Stream(ratings). // keyed by user
					GroupBy("by-movie", serde.String, func(_ string, r Rating) string { return r.Movie }).
					Aggregate("averages", serde.JSON[Average](), func() Average { return Average{} },
			func(_ string, r Rating, a Average) Average { return Average{a.Sum + r.Stars, a.Count + 1} })
	table.ToStream().To(averages)
	topology, err := b.Build()
	if err != nil {
		panic(err)
	}

	broker, dir := startBroker() // in this process; for a cluster, set Brokers instead of ClientOptions
	app, err := weir.NewApp(topology, weir.Config{ApplicationID: "ratings", ClientOptions: broker.ClientOptions(), Dir: dir})
	if err != nil {
		panic(err)
	}
	go app.Run(ctx)

	send(ctx, broker, "ratings", "ada", `{"movie":"362","stars":10}`)
	send(ctx, broker, "ratings", "bob", `{"movie":"362","stars":8}`)
	for avg := (Average{}); avg.Count < 2; avg, _, _ = app.Read(table).Get(ctx, "362") {
		time.Sleep(10 * time.Millisecond)
	}
	avg, _, err := app.Read(table).Get(ctx, "362")
	fmt.Println(avg.Sum/float64(avg.Count), err)
	app.Close()
	broker.Close()
	os.RemoveAll(dir)
	// Output: 9 <nil>
}

func startBroker() (*embedded.Broker, string) {
	b, err := embedded.Open(embedded.Options{Topics: []embedded.Topic{{Name: "ratings", Partitions: 3}, {Name: "rating-averages", Partitions: 3}}})
	if err != nil {
		panic(err)
	}
	dir, err := os.MkdirTemp("", "weir-example")
	if err != nil {
		panic(err)
	}
	return b, dir
}

func send(ctx context.Context, b *embedded.Broker, topic, key, value string) {
	cl, err := kgo.NewClient(b.ClientOptions()...)
	if err != nil {
		panic(err)
	}
	defer cl.Close()
	if err := cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte(value)}).FirstErr(); err != nil {
		panic(err)
	}
}
