package weir_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/serde"
)

// Movie ratings come keyed by user; the running average of each movie goes out. The README shows the body of this
// function, up to the output: a test in internal/lint compares them.
func Example() {
	type Rating struct {
		Movie string
		Stars float64
	}
	type Average struct{ Count, Sum, Average float64 }

	ratings := weir.NewTopic("ratings", serde.String, serde.JSON[Rating]())
	averages := weir.NewTopic("rating-averages", serde.String, serde.JSON[Average]())

	b := weir.NewBuilder()
	b.Stream(ratings).
		GroupBy("by-movie", serde.String, func(user string, r Rating) string { return r.Movie }).
		Aggregate("averages", serde.JSON[Average](), func() Average { return Average{} },
			func(movie string, r Rating, a Average) Average {
				return Average{a.Count + 1, a.Sum + r.Stars, (a.Sum + r.Stars) / (a.Count + 1)}
			}).
		ToStream().To(averages)
	topology, err := b.Build()
	check(err)

	ctx, brokers, dir := start() // for you: a context that ends on a signal, []string{"localhost:9092"}, a folder to keep
	app, err := weir.NewApp(topology, weir.Config{ApplicationID: "ratings", Brokers: brokers, Dir: dir})
	check(err)
	check(app.Run(ctx))
	// Output:
	// 362 {"Count":1,"Sum":10,"Average":10}
	// 362 {"Count":2,"Sum":18,"Average":9}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// start opens an embedded broker, sends two ratings and prints two averages.
// Then the context ends.
func start() (ctx context.Context, brokers []string, dir string) {
	broker, err := embedded.Open(embedded.Options{Listen: "127.0.0.1:0",
		Topics: []embedded.Topic{{Name: "ratings", Partitions: 1}, {Name: "rating-averages", Partitions: 1}}})
	check(err)
	dir, err = os.MkdirTemp("", "weir-example-")
	check(err)
	afterExamples = append(afterExamples, func() error { return os.RemoveAll(dir) }, broker.Close)
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	go func() {
		cl, err := kgo.NewClient(append(broker.ClientOptions(), kgo.ConsumeTopics("rating-averages"),
			kgo.FetchIsolationLevel(kgo.ReadCommitted()))...)
		check(err)
		for _, r := range [][2]string{{"ada", `{"Movie":"362","Stars":10}`}, {"bob", `{"Movie":"362","Stars":8}`}} {
			check(cl.ProduceSync(ctx, &kgo.Record{Topic: "ratings", Key: []byte(r[0]), Value: []byte(r[1])}).FirstErr())
		}
		for n := 0; n < 2; {
			fetches := cl.PollFetches(ctx)
			check(fetches.Err())
			fetches.EachRecord(func(r *kgo.Record) { fmt.Println(string(r.Key), string(r.Value)); n++ })
		}
		cl.Close()
		stop()
	}()
	return ctx, broker.Brokers(), dir
}
