package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/internal/redistest"
	"github.com/weirstreams/weir/metric"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state"
)

// The tests of this file run a whole application with its state in Redis: it
// counts the records of each key and writes each count out. A record that is
// lost, counted twice, or counted from a wrong state shows in all that follows
// for its key.

const (
	appPartitions = 4
	appLimit      = 90 * time.Second
)

// syncBuffer is a log that several goroutines write.
type syncBuffer struct {
	mu struct {
		sync.Mutex
		b strings.Builder
	}
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.b.String()
}

// kafka is a broker with an input, and what was written to it.
type kafka struct {
	t      testing.TB
	ctx    context.Context
	broker *embedded.Broker
	cl     *kgo.Client // reads the output, committed records only
	sent   map[string]int64
	out    map[string][]int64
	n      int
}

func newKafka(t testing.TB) *kafka {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), appLimit)
	t.Cleanup(cancel)
	broker, err := embedded.Open(embedded.Options{Topics: []embedded.Topic{{Name: "in", Partitions: appPartitions}, {Name: "out", Partitions: appPartitions}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { broker.Close() })
	cl, err := kgo.NewClient(append(broker.ClientOptions(), kgo.ConsumeTopics("out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return &kafka{t: t, ctx: ctx, broker: broker, cl: cl, sent: map[string]int64{}, out: map[string][]int64{}}
}

// send writes n records to so many keys in turn.
func (k *kafka) send(n, keys int) {
	k.t.Helper()
	list := make([]*kgo.Record, n)
	for i := range list {
		key := fmt.Sprint("k", k.n%keys)
		k.n++
		k.sent[key]++
		list[i] = &kgo.Record{Topic: "in", Key: []byte(key), Value: []byte("x")}
	}
	if err := k.cl.ProduceSync(k.ctx, list...).FirstErr(); err != nil {
		k.t.Fatal(err)
	}
}

// collect reads the output until it has an answer for each record that was
// sent, and then once more for any that are too many.
func (k *kafka) collect() {
	k.t.Helper()
	total := func(m map[string][]int64) (n int) {
		for _, list := range m {
			n += len(list)
		}
		return n
	}
	add := func(ctx context.Context) {
		fetches := k.cl.PollFetches(ctx)
		fetches.EachRecord(func(r *kgo.Record) {
			v, err := serde.Int64.Decode(r.Value)
			if err != nil {
				k.t.Fatal(err)
			}
			k.out[string(r.Key)] = append(k.out[string(r.Key)], v)
		})
	}
	for total(k.out) < k.n {
		if k.ctx.Err() != nil {
			k.t.Fatalf("%d outputs within %v, want %d", total(k.out), appLimit, k.n)
		}
		add(k.ctx)
	}
	once, cancel := context.WithTimeout(k.ctx, 50*time.Millisecond)
	defer cancel()
	add(once)
	for key, n := range k.sent {
		want := make([]int64, n)
		for i := range want {
			want[i] = int64(i) + 1
		}
		if !slices.Equal(k.out[key], want) {
			k.t.Fatalf("outputs of %s: %v, want 1 to %d in order", key, k.out[key], n)
		}
	}
	if len(k.out) != len(k.sent) {
		k.t.Fatalf("outputs of %d keys, want %d", len(k.out), len(k.sent))
	}
}

// app is a running application.
type app struct {
	k        *kafka
	name     string
	app      *weir.App
	table    weir.Table[string, int64]
	metrics  metric.Memory
	log      syncBuffer
	done     chan error
	restored struct {
		sync.Mutex
		records map[string]int64 // by task
	}
}

// run starts an application; change may be nil.
func (k *kafka) run(name string, store state.Backend, change func(*weir.Config)) *app {
	k.t.Helper()
	b := weir.NewBuilder()
	table := b.Stream(weir.NewTopic("in", serde.String, serde.String)).GroupByKey().Count("counts")
	table.ToStream().To(weir.NewTopic("out", serde.String, serde.Int64))
	topology, err := b.Build()
	if err != nil {
		k.t.Fatal(err)
	}
	a := &app{k: k, name: name, table: table, done: make(chan error, 1)}
	a.restored.records = map[string]int64{}
	c := weir.Config{ApplicationID: name, ClientOptions: k.broker.ClientOptions(), Dir: k.t.TempDir(), Store: store, Workers: 2,
		CommitInterval: 20 * time.Millisecond, FlushInterval: 50 * time.Millisecond, SessionTimeout: 3 * time.Second, HeartbeatInterval: 100 * time.Millisecond,
		RebalanceTimeout: 5 * time.Second, Metrics: &a.metrics, Logger: slog.New(slog.NewTextHandler(&a.log, nil)),
		OnRestore: func(p weir.RestoreProgress) {
			a.restored.Lock()
			defer a.restored.Unlock()
			a.restored.records[p.Task] += p.Records
		}}
	if change != nil {
		change(&c)
	}
	if a.app, err = weir.NewApp(topology, c); err != nil {
		k.t.Fatal(err)
	}
	go func() { a.done <- a.app.Run(k.ctx) }()
	k.t.Cleanup(func() {
		a.app.Close()
		if k.t.Failed() {
			lines := strings.Split(a.log.String(), "\n")
			k.t.Logf("the end of the log:\n%s", strings.Join(lines[max(0, len(lines)-60):], "\n"))
		}
	})
	return a
}

// claims is how often a claim found the state in this condition.
func (a *app) claims(verdict string) float64 {
	return a.metrics.Sum(metric.Claims, metric.Label{Name: metric.LabelOutcome, Value: verdict})
}

// balanced waits until each worker runs its half of the tasks: no rebalance is
// to be expected from then on. It returns the generation of the group,
// which each later rebalance raises. (The workers hear of the one that ended in
// this, and count it, a moment later.)
func (a *app) balanced() int32 {
	a.k.t.Helper()
	redistest.Eventually(a.k.t, "each worker runs its half of the tasks", func() bool {
		log := a.log.String()
		for w := range 2 {
			running := strings.Count(log, fmt.Sprintf(`msg="task running" worker=%d`, w))
			if running-strings.Count(log, fmt.Sprintf(`msg="task released" worker=%d`, w)) != appPartitions/2 {
				return false
			}
		}
		return a.group().State == embedded.GroupStable
	})
	return a.group().Generation
}

// stayed says that there was no rebalance since a generation of the group.
func (a *app) stayed(generation int32) {
	a.k.t.Helper()
	if g := a.group(); g.Generation != generation {
		a.k.t.Errorf("the group is in generation %d, and was in %d before", g.Generation, generation)
	}
}

func (a *app) group() embedded.Group {
	a.k.t.Helper()
	g, err := a.k.broker.Group(a.name)
	if err != nil {
		a.k.t.Fatal(err)
	}
	return g
}

func (a *app) stop() {
	a.k.t.Helper()
	if err := a.app.Close(); err != nil {
		a.k.t.Error(err)
	}
	if err := <-a.done; err != nil {
		a.k.t.Errorf("the application ended with %v", err)
	}
}

// check compares outputs, the table, and what a reader finds in Redis, with
// what was sent.
func (a *app) check(name string, opts Options) {
	k := a.k
	k.t.Helper()
	k.collect()
	reader := a.app.Read(a.table)
	for key, n := range k.sent {
		for {
			got, found, err := reader.Get(k.ctx, key)
			if err == nil && found && got == n {
				break
			}
			// A task that is claimed again right now is away for a moment.
			if err != nil && !errors.Is(err, weir.ErrRestoring) && !errors.Is(err, weir.ErrNotOwner) && !errors.Is(err, weir.ErrStoreUnavailable) || err == nil {
				k.t.Fatalf("table: %s = %d, %t, error %v; want %d", key, got, found, err, n)
			}
			if k.ctx.Err() != nil {
				k.t.Fatalf("table: %v", err)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	r, err := OpenReader(k.ctx, opts)
	if err != nil {
		k.t.Fatal(err)
	}
	defer r.Close()
	want := ""
	for {
		got := map[string]int64{}
		add := func(key, value []byte) {
			v, err := serde.Int64.Decode(value[8:])
			if err != nil {
				k.t.Fatal(err)
			}
			got[string(key[len(Key("counts", nil)):])] = v
		}
		for p := range appPartitions {
			view := r.View(state.ID{Application: name, Task: fmt.Sprintf("0_%d", p)})
			if opts.Unordered { // which has no ranges
				var keys [][]byte
				for key := range k.sent {
					keys = append(keys, Key("counts", []byte(key)))
				}
				if _, err := view.Read(k.ctx, keys, func(i int, v []byte) {
					if v != nil {
						add(keys[i], v)
					}
				}); err != nil {
					k.t.Fatal(err)
				}
				continue
			}
			it := view.Iterate(k.ctx, state.PrefixRange(Key("counts", nil)))
			for it.Next() {
				add(it.Key(), it.Value())
			}
			if err := it.Err(); err != nil {
				k.t.Fatal(err)
			}
		}
		if fmt.Sprint(got) == fmt.Sprint(k.sent) {
			return
		}
		want = fmt.Sprintf("%v, want %v", got, k.sent)
		if k.ctx.Err() != nil {
			k.t.Fatalf("redis holds %s", want)
		}
		time.Sleep(5 * time.Millisecond) // until FlushInterval is over
	}
}

// An application finds its state where it left it, on another machine too: it
// claims it and restores nothing.
func TestAppStartsWithoutReplay(t *testing.T) {
	t.Parallel()
	k, opts := newKafka(t), miniRedis(t)
	a := k.run("ratings", mustOpen(t, opts), nil)
	k.send(400, 50)
	a.check("ratings", opts)
	a.stop()
	b := k.run("ratings", mustOpen(t, opts), nil)
	k.send(400, 60)
	b.check("ratings", opts)
	if n, all := b.claims("in step"), b.metrics.Sum(metric.Claims); n != all || n < appPartitions {
		t.Errorf("%v of %v claims found the state in step", n, all)
	}
	if len(b.restored.records) > 0 {
		t.Errorf("restored: %v", b.restored.records)
	}
	b.stop()
}

// Everything in Redis is deleted while the application runs: it notices, builds
// the state again from the changelog, and goes on.
func TestAppAfterFlushAll(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	opts := Options{Addresses: []string{m.Addr()}, Check: CheckOff}
	k := newKafka(t)
	a := k.run("ratings", mustOpen(t, opts), nil)
	for range 3 {
		k.send(300, 50)
		a.check("ratings", opts)
		m.FlushAll()
	}
	k.send(300, 50)
	a.check("ratings", opts)
	if a.claims("no view") == 0 {
		t.Error("no view was rebuilt")
	}
	a.stop()
}

// A key of a view is deleted by hand.
func TestAppAfterKeyDeleted(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	opts := Options{Addresses: []string{m.Addr()}, Check: CheckOff}
	k := newKafka(t)
	a := k.run("ratings", mustOpen(t, opts), nil)
	k.send(300, 200)
	a.check("ratings", opts)
	a.stop()
	a = k.run("ratings", mustOpen(t, opts), nil) // whose cache is empty, so that the damage is met
	if err := a.app.WaitFor(k.ctx, weir.Running); err != nil {
		t.Fatal(err)
	}
	for _, key := range m.Keys() {
		if strings.HasSuffix(key, ":2") {
			m.Del(key)
		}
	}
	k.send(1000, 200)
	a.check("ratings", opts)
	if n := a.metrics.Sum(metric.Aborts, metric.Label{Name: metric.LabelReason, Value: "corrupt"}); n == 0 {
		t.Error("the damage was not met")
	}
	a.stop()
}

// While Redis does not serve, nothing is committed past it, the member stays in
// the group, and all goes on by itself when it is back. An App that is stopped
// meanwhile stops.
func TestAppWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	opts := Options{Addresses: []string{m.Addr()}, Check: CheckOff, Timeout: time.Second}
	k := newKafka(t)
	a := k.run("ratings", mustOpen(t, opts), nil)
	generation := a.balanced()
	k.send(300, 50)
	a.check("ratings", opts)
	for _, c := range []struct {
		how   string
		begin func()
		end   func() error
	}{
		{"refuses", func() { m.SetError("LOADING Redis is loading the dataset in memory") }, func() error { m.SetError(""); return nil }},
		{"gone", m.Close, m.Restart},
	} {
		c.begin()
		k.send(300, 50)
		redistest.Eventually(t, c.how+": all tasks are away", func() bool {
			return a.away() >= appPartitions
		})
		if n := len(k.out); n != len(k.sent) {
			t.Errorf("%s: outputs of %d keys", c.how, n)
		}
		if _, _, err := a.app.Read(a.table).Get(k.ctx, "k0"); !errors.Is(err, weir.ErrRestoring) && !errors.Is(err, weir.ErrStoreUnavailable) {
			t.Errorf("%s: a query: %v", c.how, err)
		}
		if err := c.end(); err != nil {
			t.Fatal(err)
		}
		a.check("ratings", opts)
	}
	a.stayed(generation)
	m.SetError("LOADING Redis is loading the dataset in memory")
	k.send(10, 10)
	redistest.Eventually(t, "all tasks are away", func() bool { return strings.Count(a.log.String(), "the store is unavailable") > 0 })
	a.stop()
	m.SetError("")
	b := k.run("ratings", mustOpen(t, opts), nil)
	b.check("ratings", opts)
	b.stop()
}

// away counts the pauses of tasks so far whose store did not answer and that
// have not ended.
func (a *app) away() int {
	log := a.log.String()
	return strings.Count(log, "the store is unavailable; the task pauses") - strings.Count(log, "the store is available again")
}

// Another application of the same name, on another Kafka, meets the state of
// the first: it refuses to touch it, and the first goes on.
func TestAppOfTheSameName(t *testing.T) {
	t.Parallel()
	opts := miniRedis(t)
	k := newKafka(t)
	a := k.run("ratings", mustOpen(t, opts), nil)
	k.send(300, 50)
	a.check("ratings", opts)
	other := newKafka(t)
	other.send(100, 10)
	b := other.run("ratings", mustOpen(t, opts), nil)
	err := <-b.done
	if !errors.Is(err, weir.ErrStateMismatch) {
		t.Errorf("the other application ended with %v, want ErrStateMismatch", err)
	}
	k.send(300, 50)
	a.check("ratings", opts)
	if n := a.metrics.Sum(metric.Aborts, metric.Label{Name: metric.LabelReason, Value: "fenced"}); n > 0 {
		t.Errorf("the first was refused %v times", n)
	}
	a.stop()
	// With a namespace of its own it works.
	opts.Namespace = "other"
	c := other.run("ratings", mustOpen(t, opts), nil)
	c.check("ratings", opts)
	c.stop()
}

// An application whose cache is empty reads the keys of the records at hand in
// one call, not one by one.
func TestAppReadsAhead(t *testing.T) {
	t.Parallel()
	const keys = 3000
	k, opts := newKafka(t), miniRedis(t)
	a := k.run("ratings", mustOpen(t, opts), nil)
	k.send(keys, keys)
	a.check("ratings", opts)
	a.stop()
	var reads, asked atomic.Int64
	opts.hooks.Before = func(calls []redisconn.Call) error {
		for _, c := range calls {
			if c.Script == readScript {
				reads.Add(1)
				asked.Add(int64(len(c.Args)))
			}
		}
		return nil
	}
	store := mustOpen(t, opts)
	b := k.run("ratings", store, nil)
	k.send(keys, keys)
	k.collect()
	if n := asked.Load(); n < keys {
		t.Errorf("%d keys were read, want %d: nothing was to be cached", n, keys)
	}
	if n := reads.Load(); n > keys/10 {
		t.Errorf("%d reads for %d keys", n, keys)
	}
	t.Logf("%d reads for %d keys", reads.Load(), keys)
	b.check("ratings", opts)
	b.stop()
}
