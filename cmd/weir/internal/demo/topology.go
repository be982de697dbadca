package demo

import (
	"errors"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/cmd/weir/internal/ratings"
	"github.com/weirstreams/weir/serde"
)

// Names on the cluster. They stay the same, so that a second run goes on where
// the first has ended.
const (
	applicationID    = "weir-demo"
	ratingsTopic     = "ratings"
	averagesTopic    = "rating-averages"
	deadLetterTopic  = "ratings-dead-letters"
	groupName        = "by-movie"
	repartitionTopic = applicationID + "-" + groupName + "-repartition"
	storeName        = "averages"
)

// average is what is kept of a movie, and what goes to rating-averages.
type average struct {
	Count   int64   `json:"count"`
	Sum     float64 `json:"sum"`
	Average float64 `json:"average"`
}

func (a average) add(stars float64) average {
	a.Count++
	a.Sum += stars
	a.Average = a.Sum / float64(a.Count)
	return a
}

// newTopology is the program that the demo shows:
//
//	ratings (by user) -> grouped by movie -> running average -> rating-averages
func newTopology() (*weir.Topology, weir.Table[string, average], error) {
	b := weir.NewBuilder()
	table := b.Stream(weir.NewTopic(ratingsTopic, serde.String, serde.JSON[ratings.Value]())).
		TryMapValues(check).
		GroupBy(groupName, serde.String, func(_ string, r ratings.Value) string { return r.Movie }).
		Aggregate(storeName, serde.JSON[average](), func() average { return average{} },
			func(_ string, r ratings.Value, a average) average { return a.add(r.Stars) })
	table.ToStream().To(weir.NewTopic(averagesTopic, serde.String, serde.JSON[average]()))
	t, err := b.Build()
	return t, table, err
}

// check refuses what other programs may have put into the topic: any JSON object
// decodes to a rating.
func check(_ string, r ratings.Value) (ratings.Value, error) {
	if r.Movie == "" {
		return r, errors.New("the rating names no movie")
	}
	return r, nil
}

// deadLetter decides about records that cannot be processed. Only what is wrong
// with the record itself is put aside; the sum of ratings that are too large for
// a float64 is such a thing, as JSON has no infinity.
func deadLetter(e *weir.TaskError) weir.Decision {
	switch e.Class {
	case weir.DecodeError, weir.ProcessError, weir.ProduceError:
		return weir.DeadLetter
	}
	return weir.Stop
}
