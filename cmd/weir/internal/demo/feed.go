package demo

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/cmd/weir/internal/ratings"
	"github.com/weirstreams/weir/serde"
)

// Headers of the dead letter of a bad line. Those that say what was wrong are the
// library's own.
const (
	headerLine  = "weir-line" // number in the unpacked input, from 1
	headerInput = "weir-input"
	headerSize  = "weir-line-bytes" // of the line, of which the value may be the beginning
	headerClass = "weir-error-class"
	headerError = "weir-error"
)

const (
	// maxAhead is how many ratings the topic of an embedded broker may hold that
	// are not processed yet, so that a large file does not fill its memory.
	maxAhead = 200_000

	// lookEvery is how many ratings are sent between two looks at that.
	lookEvery = 1000

	// lookAgain is the pause between two looks when there are too many.
	lookAgain = 10 * time.Millisecond

	// flushTimeout is how long a stop waits for what is on its way.
	flushTimeout = 5 * time.Second
)

// feeder sends ratings to their topic and bad lines to the dead letters.
type feeder struct {
	client *kgo.Client
	values serde.Serde[ratings.Value]
	pace   pacer
	// behind, if set, says how far the application is behind the given ends of
	// the partitions.
	behind func(ends map[int32]int64) int64

	mu struct {
		sync.Mutex
		acked int64           // ratings that the topic has
		bad   int64           // lines
		ends  map[int32]int64 // by partition of ratings: the offset behind the last of them
		err   error           // the first one of the client
	}
}

func newFeeder(c *cluster, rate float64) (*feeder, error) {
	// No RecordDeliveryTimeout: the client counts it from the timestamp of a record,
	// and data sets are old.
	cl, err := c.client(kgo.MaxBufferedBytes(64 << 20))
	if err != nil {
		return nil, err
	}
	f := &feeder{client: cl, values: serde.JSON[ratings.Value](), pace: pacer{rate: rate}}
	f.mu.ends = map[int32]int64{}
	return f, nil
}

// sent returns how many ratings the topic has got and how many lines were bad.
func (f *feeder) sent() (acked, bad int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.acked, f.mu.bad
}

// ends returns, by partition of ratings, the offset behind the last rating sent.
func (f *feeder) ends() map[int32]int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	ends := make(map[int32]int64, len(f.mu.ends))
	for p, end := range f.mu.ends {
		ends[p] = end
	}
	return ends
}

// failure returns the first error of the client.
func (f *feeder) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.err
}

// file sends what the input holds and calls onBad with each bad line. It returns
// nil when all of it is in the topics.
func (f *feeder) file(ctx context.Context, in *input, onBad func(*ratings.LineError)) error {
	for n := 1; ; n++ {
		if err := f.pause(ctx, n); err != nil {
			return err
		}
		var l line
		more := false
		select {
		case l, more = <-in.lines:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		switch {
		case !more:
			return cmp.Or(f.flush(ctx), in.err)
		case l.bad != nil:
			onBad(l.bad)
			f.letter(ctx, in.name, l.bad)
		default:
			f.rating(ctx, l.rating)
		}
	}
}

// generate sends ratings of the generator until ctx ends.
func (f *feeder) generate(ctx context.Context, g *ratings.Generator) error {
	for n := 1; ; n++ {
		if err := f.pause(ctx, n); err != nil {
			return err
		}
		f.rating(ctx, g.Next(time.Now()))
	}
}

// pause waits until the n-th line may be sent.
func (f *feeder) pause(ctx context.Context, n int) error {
	if n%lookEvery == 0 {
		for f.behind != nil && f.behind(f.ends()) > maxAhead {
			if err := sleep(ctx, lookAgain); err != nil {
				return err
			}
		}
	}
	return cmp.Or(f.failure(), f.pace.wait(ctx))
}

// rating sends one rating. It blocks while too much is on its way.
func (f *feeder) rating(ctx context.Context, r ratings.Rating) {
	value, err := f.values.Append(nil, r.Value())
	if err != nil {
		f.done(&kgo.Record{Topic: ratingsTopic}, err)
		return
	}
	rec := &kgo.Record{Topic: ratingsTopic, Value: value, Timestamp: r.Time} // without a time it gets that of now
	if r.User != "" {
		rec.Key = []byte(r.User)
	}
	f.client.Produce(ctx, rec, f.done)
}

// letter sends a bad line to the dead letters.
func (f *feeder) letter(ctx context.Context, name string, e *ratings.LineError) {
	f.mu.Lock()
	f.mu.bad++
	f.mu.Unlock()
	f.client.Produce(ctx, &kgo.Record{Topic: deadLetterTopic, Value: e.Text, Headers: []kgo.RecordHeader{
		{Key: headerInput, Value: []byte(name)},
		{Key: headerLine, Value: []byte(strconv.Itoa(e.Line))},
		{Key: headerSize, Value: []byte(strconv.Itoa(e.Size))},
		{Key: headerClass, Value: []byte(weir.DecodeError)},
		{Key: headerError, Value: []byte(e.Reason)},
	}}, f.done)
}

// done is the client's word on one record.
func (f *feeder) done(r *kgo.Record, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err != nil && f.mu.err == nil:
		f.mu.err = fmt.Errorf("send to topic %s: %w", r.Topic, err)
	case err == nil && r.Topic == ratingsTopic:
		f.mu.acked++
		f.mu.ends[r.Partition] = max(f.mu.ends[r.Partition], r.Offset+1)
	}
}

// flush waits until everything sent is in the topics.
func (f *feeder) flush(ctx context.Context) error {
	err := f.client.Flush(ctx)
	return cmp.Or(f.failure(), err)
}

// close waits a little for what is on its way and ends the client.
func (f *feeder) close() {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	f.client.Flush(ctx)
	f.client.Close()
}

const (
	// paceStep is the shortest pause of a pacer; below it the clock is not worth
	// a sleep.
	paceStep = 2 * time.Millisecond

	// paceSlack is how much a pacer makes up for when it is late. More would be
	// a burst after each stall.
	paceSlack = 250 * time.Millisecond
)

// A pacer lets a number of things happen per second; 0 is no limit.
type pacer struct {
	rate  float64
	start time.Time
	n     float64
}

func (p *pacer) wait(ctx context.Context) error {
	if p.rate == 0 {
		return context.Cause(ctx)
	}
	now := time.Now()
	due := p.start.Add(time.Duration(p.n / p.rate * float64(time.Second)))
	if now.Sub(due) > paceSlack {
		p.start, p.n, due = now, 0, now
	}
	p.n++
	if ahead := due.Sub(now); ahead >= paceStep {
		return sleep(ctx, ahead)
	}
	return context.Cause(ctx)
}

// sleep waits for d or the end of ctx, whose cause it returns.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
