package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/embedded"
)

// What the program sends is what a plain loop counts, also over a restart.
func TestRun(t *testing.T) {
	broker, err := embedded.Open(embedded.Options{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	for _, topic := range []string{"words", "word-counts"} {
		if err := broker.CreateTopic(t.Context(), topic, 2, nil); err != nil {
			t.Fatal(err)
		}
	}
	redis := "redis://" + miniredis.RunT(t).Addr() + "/0?check=off"
	cl, err := kgo.NewClient(append(broker.ClientOptions(), kgo.ConsumeTopics("word-counts"))...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	counts := map[string]int{}
	for range 2 {
		want := map[string]int{} // by word and count: how often
		var records []*kgo.Record
		for i := range 500 {
			word := fmt.Sprintf("word-%d", i%7)
			counts[word]++
			want[fmt.Sprint(word, " ", counts[word])]++
			records = append(records, &kgo.Record{Topic: "words", Key: []byte(word)})
		}
		if err := cl.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		ended := make(chan error, 1)
		go func() { ended <- run(ctx, broker.Brokers(), redis, "words", "word-counts") }()
		got := map[string]int{}
		for read := 0; read < 500; {
			fetches := cl.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				t.Fatalf("%d of 500 outputs: %v", read, err)
			}
			fetches.EachRecord(func(r *kgo.Record) {
				got[fmt.Sprint(string(r.Key), " ", string(r.Value))]++
				read++
			})
		}
		// All is committed before the next round, so it sends nothing twice.
		for {
			g, err := broker.Group(group)
			if err != nil {
				t.Fatal(err)
			}
			done := true
			for p := range int32(2) {
				info, err := broker.Partition("words", p)
				if err != nil {
					t.Fatal(err)
				}
				done = done && g.Commits["words"][p].Offset == info.End
			}
			if done {
				break
			}
			if ctx.Err() != nil {
				t.Fatal("not all is committed")
			}
			time.Sleep(5 * time.Millisecond)
		}
		cancel()
		if err := <-ended; err != nil && !strings.Contains(err.Error(), "canceled") {
			t.Fatal(err)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("outputs %v\nwant %v", got, want)
		}
	}
}
