package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/redisstore"
)

// The topology is the same as with any other store. Another service reads the
// state from Redis.
func Example() {
	ctx, brokers, url, dir := start() // for you: a context that ends on a signal, your brokers, redis://..., a folder to keep

	opts, err := redisstore.ParseURL(url)
	check(err)
	store, err := redisstore.Open(ctx, opts)
	check(err)
	defer store.Close()

	b := weir.NewBuilder()
	b.Stream(weir.NewTopic("clicks", serde.String, serde.String)).GroupByKey().Count("counts")
	topology, err := b.Build()
	check(err)
	app, err := weir.NewApp(topology, weir.Config{ApplicationID: "clicks", Brokers: brokers, Dir: dir, Store: store})
	check(err)
	go func() { check(app.Run(ctx)) }()
	defer app.Close()

	reader, err := redisstore.OpenReader(ctx, opts)
	check(err)
	defer reader.Close()
	task := reader.View(state.ID{Application: "clicks", Task: "0_0"})
	for count := int64(0); count < 2; time.Sleep(10 * time.Millisecond) {
		_, err := task.Read(ctx, [][]byte{redisstore.Key("counts", []byte("ada"))}, func(_ int, value []byte) {
			if value == nil {
				return // not yet
			}
			count, err = serde.Int64.Decode(value[8:]) // behind the timestamp
			check(err)
		})
		check(err)
		if count == 2 {
			fmt.Println("ada has clicked", count, "times")
		}
	}
	// Output: ada has clicked 2 times
}

// A server that is not there yet is worth waiting for; any other error is not.
func ExampleOpen() {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	open := func() (*redisstore.Backend, error) {
		for {
			store, err := redisstore.Open(ctx, redisstore.Options{Addresses: []string{"127.0.0.1:1"}})
			if !errors.Is(err, state.ErrUnavailable) || ctx.Err() != nil {
				return store, err
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	_, err := open()
	fmt.Println("gave up:", err != nil)
	// Output: gave up: true
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// start opens an embedded broker with two clicks, and an in-process stand-in
// for Redis.
func start() (ctx context.Context, brokers []string, url, dir string) {
	broker, err := embedded.Open(embedded.Options{Listen: "127.0.0.1:0", Topics: []embedded.Topic{{Name: "clicks", Partitions: 1}}})
	check(err)
	ctx = context.Background()
	cl, err := kgo.NewClient(broker.ClientOptions()...)
	check(err)
	for range 2 {
		check(cl.ProduceSync(ctx, &kgo.Record{Topic: "clicks", Key: []byte("ada"), Value: []byte("a page")}).FirstErr())
	}
	cl.Close()
	redis, err := miniredis.Run()
	check(err)
	dir, err = os.MkdirTemp("", "weir-example-")
	check(err)
	redisstore.AfterExamples = append(redisstore.AfterExamples, func() { os.RemoveAll(dir) }, func() { check(broker.Close()) }, redis.Close)
	return ctx, broker.Brokers(), "redis://" + redis.Addr() + "?check=off", dir
}
