package embedded_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/weirstreams/weir/embedded"
)

func Example() {
	b, err := embedded.Open(embedded.Options{
		Topics: []embedded.Topic{{Name: "ratings", Partitions: 1}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()

	ctx := context.Background()
	cl, err := kgo.NewClient(append(b.ClientOptions(), kgo.ConsumeTopics("ratings"))...)
	if err != nil {
		log.Fatal(err)
	}
	defer cl.Close()
	for _, stars := range []string{"8", "10"} {
		r := &kgo.Record{Topic: "ratings", Key: []byte("movie 362"), Value: []byte(stars)}
		if err := cl.ProduceSync(ctx, r).FirstErr(); err != nil {
			log.Fatal(err)
		}
	}
	for n := 0; n < 2; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			log.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			fmt.Printf("%d: %s has %s\n", r.Offset, r.Key, r.Value)
			n++
		})
	}
	// Output:
	// 0: movie 362 has 8
	// 1: movie 362 has 10
}

// A folder keeps the data from one start to the next.
func Example_folder() {
	run := func(dir string) {
		b, err := embedded.Open(embedded.Options{
			Dir:    dir,
			Topics: []embedded.Topic{{Name: "visits", Partitions: 1}},
		})
		if err != nil {
			log.Fatal(err)
		}
		defer b.Close()
		cl, err := kgo.NewClient(b.ClientOptions()...)
		if err != nil {
			log.Fatal(err)
		}
		defer cl.Close()
		r := &kgo.Record{Topic: "visits", Value: []byte("hello")}
		if err := cl.ProduceSync(context.Background(), r).FirstErr(); err != nil {
			log.Fatal(err)
		}
		p, err := b.Partition("visits", 0)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("visits so far:", p.End)
	}
	dir, err := os.MkdirTemp("", "visits")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	run(dir)
	run(dir)
	// Output:
	// visits so far: 1
	// visits so far: 2
}

// Tests make requests fail and look at the outcome.
func ExampleBroker_Fault() {
	b, err := embedded.Open(embedded.Options{
		Topics: []embedded.Topic{{Name: "out", Partitions: 1}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	// The record is written and the answer says otherwise, once.
	lost, err := b.Fault(embedded.Fault{
		Keys: []kmsg.Key{kmsg.Produce},
		Code: kerr.RequestTimedOut.Code,
	})
	if err != nil {
		log.Fatal(err)
	}
	cl, err := kgo.NewClient(b.ClientOptions()...)
	if err != nil {
		log.Fatal(err)
	}
	defer cl.Close()
	err = cl.ProduceSync(context.Background(), &kgo.Record{Topic: "out"}).FirstErr()
	p, _ := b.Partition("out", 0)
	fmt.Println("error:", err, "faults:", lost.Hits(), "records:", p.End)
	// Output: error: <nil> faults: 1 records: 1
}
