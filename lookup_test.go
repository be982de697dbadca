package weir_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state/memstore"
)

// lookupPatience bounds the wait for something that takes milliseconds.
const lookupPatience = 30 * time.Second

type point struct{ X, Y int }

// keeper puts what it gets into stores of different types.
type keeper struct {
	weir.ProcessorDefaults
	numbers *weir.KeyValueStore[int64, float64]
	raw     *weir.KeyValueStore[[]byte, []byte]
	points  *weir.KeyValueStore[point, bool]

	n weir.KeyValue[int64, float64]
	r weir.KeyValue[[]byte, []byte]
	p weir.KeyValue[point, bool]
}

func (k *keeper) Init(t *weir.Task, _ *weir.Emitter[string, string]) error {
	k.n, k.r, k.p = k.numbers.Open(t), k.raw.Open(t), k.points.Open(t)
	return nil
}

func (k *keeper) Process(weir.Record[string, string]) error {
	return errors.Join(
		k.n.Put(-7, 0.5), k.n.Put(8, math.Inf(1)),
		k.r.Put([]byte("plain"), []byte{1, 2}), k.r.Put([]byte{0, 0xff}, nil),
		k.p.Put(point{1, 2}, true))
}

// One partition, so that every key is where a lookup looks for it.
func TestLookupAndPosition(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), lookupPatience)
	defer cancel()
	broker, err := embedded.Open(embedded.Options{Topics: []embedded.Topic{{Name: "in", Partitions: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	b := weir.NewBuilder()
	in := b.Stream(weir.NewTopic("in", serde.String, serde.String))
	numbers := weir.NewKeyValueStore("numbers", serde.Int64, serde.Float64)
	raw := weir.NewKeyValueStore("raw", serde.Bytes, serde.Bytes)
	points := weir.NewKeyValueStore("points", serde.JSON[point](), serde.Bool)
	in.Process("keeper", func() *keeper { return &keeper{numbers: numbers, raw: raw, points: points} }, numbers, raw, points)
	in.GroupBy("by-value", serde.String, func(_, v string) string { return v }).Count("counts")
	topology, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	app, err := weir.NewApp(topology, weir.Config{ApplicationID: "lookup", ClientOptions: broker.ClientOptions(), Dir: t.TempDir(), Store: memstore.New(), Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := app.Stores(), []string{"counts", "numbers", "points", "raw"}; !slices.Equal(got, want) {
		t.Errorf("Stores() = %q, want %q", got, want)
	}
	if _, _, err := app.Lookup(ctx, "numbers", "1"); !errors.Is(err, weir.ErrRestoring) {
		t.Errorf("Lookup before Run: %v", err)
	}
	if p := app.Position(); len(p) != 0 {
		t.Errorf("Position before Run: %v", p)
	}
	done := make(chan error, 1)
	go func() { done <- app.Run(ctx) }()
	defer func() {
		if err := app.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, _, err := app.Lookup(ctx, "numbers", "1"); !errors.Is(err, weir.ErrNotRunning) {
			t.Errorf("Lookup after Close: %v", err)
		}
		if p := app.Position(); len(p) != 0 {
			t.Errorf("Position after Close: %v", p)
		}
	}()

	producer, err := kgo.NewClient(broker.ClientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	at := time.UnixMilli(1_769_848_200_250).UTC()
	for range 3 {
		if err := producer.ProduceSync(ctx, &kgo.Record{Topic: "in", Value: []byte("v"), Timestamp: at}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	const repartition = "lookup-by-value-repartition"
	counted := false
	for ; !counted; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatalf("not processed in time; position %v", app.Position())
		}
		// The position is asked for first: what it covers has to be visible then.
		p := app.Position()
		l, found, err := app.Lookup(ctx, "counts", "v")
		if err != nil && !errors.Is(err, weir.ErrRestoring) {
			t.Fatal(err)
		}
		part, err := broker.Partition(repartition, 0)
		if errors.Is(err, embedded.ErrTopicUnknown) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if p["in"][0] < 3 || p[repartition][0] < part.End-1 { // a marker is last
			continue
		}
		if !found || l.Value != int64(3) || l.Key != "v" || !l.Time.Equal(at) {
			t.Fatalf("everything is processed, but counts[v] is %+v, found %v", l, found)
		}
		counted = true
	}

	code := func(b ...byte) string { return "base64:" + base64.StdEncoding.EncodeToString(b) }
	for _, c := range []struct {
		store, key string
		value      any
		json       string // of the key
	}{
		{"numbers", "-7", 0.5, "-7"},
		{"numbers", "8", "+Inf", "8"},
		{"raw", "plain", []byte{1, 2}, `"cGxhaW4="`},
		{"raw", code([]byte("plain")...), []byte{1, 2}, `"cGxhaW4="`},
		{"raw", code(0, 0xff), []byte{}, `"AP8="`},
		{"points", `{"X":1,"Y":2}`, true, `{"X":1,"Y":2}`},
		{"points", ` { "Y": 2, "X": 1 } `, true, `{"X":1,"Y":2}`},
	} {
		l, found, err := app.Lookup(ctx, c.store, c.key)
		key, jerr := json.Marshal(l.Key)
		if err != nil || jerr != nil || !found || !reflect.DeepEqual(l.Value, c.value) || string(key) != c.json || !l.Time.IsZero() {
			t.Errorf("Lookup(%s, %s) = %+v, %v, %v, want the value %v", c.store, c.key, l, found, err, c.value)
		}
	}
	for _, c := range []struct {
		store, key string
		err        error
	}{
		{"numbers", "9", nil},
		{"counts", "", nil},
		{"numbers", "nine", weir.ErrBadKey},
		{"raw", "base64:$", weir.ErrBadKey},
		{"points", "1,2", weir.ErrBadKey},
		{"nothing", "1", weir.ErrNoSuchStore},
	} {
		if l, found, err := app.Lookup(ctx, c.store, c.key); found || !errors.Is(err, c.err) {
			t.Errorf("Lookup(%s, %s) = %+v, %v, %v, want error %v", c.store, c.key, l, found, err, c.err)
		}
	}
	gone, cancelGone := context.WithCancel(ctx)
	cancelGone()
	if _, _, err := app.Lookup(gone, "numbers", "1"); !errors.Is(err, context.Canceled) {
		t.Errorf("Lookup with a context that has ended: %v", err)
	}
}
