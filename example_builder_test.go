package weir_test

import (
	"fmt"
	"time"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/serde"
)

type movieRating struct {
	Movie string
	Stars float64
}

type movieAverage struct {
	Sum   float64
	Count int64
}

func (a movieAverage) add(_ string, r movieRating) movieAverage {
	return movieAverage{a.Sum + r.Stars, a.Count + 1}
}

// Ratings are keyed by user, so they are grouped by movie, which sends them
// through a topic of the application's, and folded into an average each.
func ExampleBuilder() {
	ratings := weir.NewTopic("ratings", serde.String, serde.JSON[movieRating]())
	averages := weir.NewTopic("rating-averages", serde.String, serde.JSON[movieAverage]())

	b := weir.NewBuilder()
	b.Stream(ratings).
		GroupBy("by-movie", serde.String, func(_ string, r movieRating) string { return r.Movie }).
		Aggregate("averages", serde.JSON[movieAverage](),
			func() movieAverage { return movieAverage{} },
			func(movie string, r movieRating, a movieAverage) movieAverage { return a.add(movie, r) }).
		ToStream().
		To(averages)
	topology, err := b.Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(topology)
	// Output:
	// Topologies:
	//    Sub-topology: 0
	//     Source: STREAM-SOURCE-0000000000 (topics: [ratings])
	//       --> STREAM-KEY-SELECT-0000000001
	//     Processor: STREAM-KEY-SELECT-0000000001 (stores: [])
	//       --> by-movie-repartition-sink
	//       <-- STREAM-SOURCE-0000000000
	//     Sink: by-movie-repartition-sink (topic: by-movie-repartition)
	//       <-- STREAM-KEY-SELECT-0000000001
	//
	//   Sub-topology: 1
	//     Source: by-movie-repartition-source (topics: [by-movie-repartition])
	//       --> averages
	//     Processor: averages (stores: [averages])
	//       --> TABLE-TOSTREAM-0000000002
	//       <-- by-movie-repartition-source
	//     Processor: TABLE-TOSTREAM-0000000002 (stores: [])
	//       --> STREAM-SINK-0000000003
	//       <-- averages
	//     Sink: STREAM-SINK-0000000003 (topic: rating-averages)
	//       <-- TABLE-TOSTREAM-0000000002
}

type urlClick struct{ URL string }

// urlDedup passes on the first click on each URL, and forgets a URL after an hour.
type urlDedup struct {
	weir.ProcessorDefaults
	store *weir.KeyValueStore[string, int64]
	seen  weir.KeyValue[string, int64]
	out   *weir.Emitter[string, urlClick]
}

func (d *urlDedup) Init(t *weir.Task, out *weir.Emitter[string, urlClick]) error {
	d.seen, d.out = d.store.Open(t), out
	t.EveryStreamTime(time.Minute, d.expire)
	return nil
}

func (d *urlDedup) Process(r weir.Record[string, urlClick]) error {
	if r.Tombstone {
		return nil
	}
	if _, found, err := d.seen.Get(r.Value.URL); found || err != nil {
		return err
	}
	d.out.Emit(r)
	return d.seen.Put(r.Value.URL, r.Time.UnixMilli())
}

func (d *urlDedup) expire(now time.Time) error {
	for url, at := range d.seen.Range(weir.All[string]()) {
		if now.Sub(time.UnixMilli(at)) > time.Hour {
			if err := d.seen.Delete(url); err != nil {
				return err
			}
		}
	}
	return nil
}

// A processor with a store. Clicks are keyed by URL first, so that one task sees
// all clicks on a URL.
func ExampleProcessor() {
	clicks := weir.NewTopic("clicks", serde.String, serde.JSON[urlClick]())
	fresh := weir.NewTopic("fresh-clicks", serde.String, serde.JSON[urlClick]())
	seen := weir.NewKeyValueStore("seen", serde.String, serde.Int64)

	b := weir.NewBuilder()
	b.Stream(clicks).
		SelectKey(func(_ string, c urlClick) string { return c.URL }).
		Serdes(serde.String, serde.JSON[urlClick]()).
		Repartition("by-url").
		Process("dedup", func() *urlDedup { return &urlDedup{store: seen} }, seen).
		To(fresh)
	_, err := b.Build()
	fmt.Println(err)
	// Output: <nil>
}

// All mistakes come at once, each with the step, its place and the fix.
func ExampleBuilder_Build() {
	words := weir.NewTopic("words", serde.String, serde.String)

	b := weir.NewBuilder()
	b.Stream(words).
		SelectKey(func(_, word string) string { return word }).
		GroupByKey().
		Count("counts")
	_, err := b.Build()
	fmt.Println(err)
	// Output: Count("counts") (example_builder_test.go:134): the serde of the keys is not known, because SelectKey (example_builder_test.go:132) makes new keys: say .Serdes(...) behind that step
}
