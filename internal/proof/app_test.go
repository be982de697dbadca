package proof

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/metric"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state/memstore"
)

// testLimit is how long a test of one situation may take, on a machine that has
// other things to do.
const testLimit = 3 * time.Minute

// brokerKind is a kind of broker that the situations are tested on.
type brokerKind struct {
	name string
	open func(t testing.TB) *cluster
}

// clusters are all of them. The tag integration adds the real one.
var clusters = []brokerKind{
	// With a port, so that the tests that freeze connections can do it for both.
	{"embedded", func(t testing.TB) *cluster { return embeddedCluster(t, 1, true) }},
}

// onEachCluster runs a test on all brokers.
func onEachCluster(t *testing.T, test func(t *testing.T, s *situation)) {
	t.Parallel()
	for _, c := range clusters {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			test(t, newSituation(t, c.open(t)))
		})
	}
}

// onEmbedded runs a test that does to its broker what only the embedded one
// allows.
func onEmbedded(t *testing.T, brokers int, test func(t *testing.T, s *situation)) {
	t.Parallel()
	test(t, newSituation(t, embeddedCluster(t, brokers, false)))
}

// situation is a cluster with the names and the applications of one test.
type situation struct {
	*cluster
	t    *testing.T
	ctx  context.Context
	name string // of the application
}

func newSituation(t *testing.T, c *cluster) *situation {
	return &situation{cluster: c, t: t, ctx: testContext(t, testLimit), name: uniqueName(t)}
}

// topicOf is the full name of a topic of this test.
func (s *situation) topicOf(short string) string { return s.name + "-" + short }

// topics creates topics of this test with the given partition count.
func (s *situation) topics(partitions int32, shorts ...string) {
	s.t.Helper()
	for _, short := range shorts {
		s.topic(s.t, s.topicOf(short), partitions)
	}
}

// str is a topic of this test with text in it.
func (s *situation) str(short string) weir.Topic[string, string] {
	return weir.NewTopic(s.topicOf(short), serde.String, serde.String)
}

// counts is a topic of this test with numbers in it.
func (s *situation) counts(short string) weir.Topic[string, int64] {
	return weir.NewTopic(s.topicOf(short), serde.String, serde.Int64)
}

// write writes "key=value" records with acknowledgement, one after another by
// key. A key or value of "null" is a null one.
func (s *situation) write(short string, records ...string) {
	s.t.Helper()
	var list []*kgo.Record
	for _, r := range records {
		key, value, ok := strings.Cut(r, "=")
		if !ok {
			s.t.Fatalf("record %q is no key=value", r)
		}
		list = append(list, &kgo.Record{Topic: s.topicOf(short), Key: orNull(key), Value: orNull(value)})
	}
	if err := s.cl.ProduceSync(s.ctx, list...).FirstErr(); err != nil {
		s.t.Fatalf("write to %s: %v", short, err)
	}
}

func orNull(text string) []byte {
	if text == "null" {
		return nil
	}
	return []byte(text)
}

// writeMany writes n records with n keys k0, k1, ... taken in turn, their values
// their numbers from first on.
func (s *situation) writeMany(short string, first, n, keys int) {
	s.t.Helper()
	list := make([]*kgo.Record, n)
	for i := range list {
		list[i] = &kgo.Record{Topic: s.topicOf(short), Key: fmt.Append(nil, "k", (first+i)%keys), Value: fmt.Append(nil, first+i)}
	}
	if err := s.cl.ProduceSync(s.ctx, list...).FirstErr(); err != nil {
		s.t.Fatalf("write to %s: %v", short, err)
	}
}

// all returns the records of a topic of this test, all partitions one after
// another.
func (s *situation) all(topic string) []*kgo.Record {
	s.t.Helper()
	return slices.Concat(s.mustRead(s.t, s.ctx, topic)...)
}

// await waits until a topic of this test has n records, and returns them. More
// than n are an error.
func (s *situation) await(short string, n int) []*kgo.Record {
	s.t.Helper()
	var list []*kgo.Record
	waitUntil(s.t, s.ctx, fmt.Sprintf("topic %s has %d records", short, n), func() (bool, error) {
		// A read takes a client; the offsets say when it is worth one.
		if room, err := s.room(s.ctx, s.topicOf(short)); err != nil || room < n {
			return false, errors.Join(err, fmt.Errorf("it has %d at most", room))
		}
		records, err := s.read(s.ctx, s.topicOf(short))
		if err != nil {
			return false, err
		}
		list = slices.Concat(records...)
		return len(list) >= n, fmt.Errorf("it has %d", len(list))
	})
	if len(list) > n {
		s.t.Fatalf("topic %s has %d records, want %d", short, len(list), n)
	}
	return list
}

// build builds a topology.
func (s *situation) build(declare func(b *weir.Builder)) *weir.Topology {
	s.t.Helper()
	b := weir.NewBuilder()
	declare(b)
	top, err := b.Build()
	if err != nil {
		s.t.Fatal(err)
	}
	return top
}

// counter is a topology that counts the records of each key of "in" in the store
// "counts" and writes each count to "out".
func (s *situation) counter(opts ...weir.StoreOption) (*weir.Topology, weir.Table[string, int64]) {
	s.t.Helper()
	var table weir.Table[string, int64]
	top := s.build(func(b *weir.Builder) {
		table = b.Stream(s.str("in")).GroupByKey().Count("counts", opts...)
		table.ToStream().To(s.counts("out"))
	})
	s.deleteLater(s.t, s.name+"-counts-changelog")
	return top, table
}

// instanceOf is an application that runs in this process.
type instanceOf struct {
	s       *situation
	app     *weir.App
	log     syncBuffer
	metrics metric.Memory
	done    chan error

	mu struct {
		sync.Mutex
		restored map[string]int64 // records by task and store
	}
}

// start runs an application on a folder of its own and memory for state, unless
// change says otherwise. It is stopped when the test ends.
func (s *situation) start(top *weir.Topology, change ...func(*weir.Config)) *instanceOf {
	s.t.Helper()
	i := s.unstarted(top, change...)
	i.run(s.ctx)
	return i
}

func (s *situation) unstarted(top *weir.Topology, change ...func(*weir.Config)) *instanceOf {
	s.t.Helper()
	i := &instanceOf{s: s, done: make(chan error, 1)}
	i.mu.restored = map[string]int64{}
	c := weir.Config{
		ApplicationID: s.name, ClientOptions: s.options, Dir: s.t.TempDir(), Workers: 1, CommitInterval: 30 * time.Millisecond,
		MaxStateMemory: 16 << 20, Metrics: &i.metrics,
		Logger: slog.New(slog.NewTextHandler(&i.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		OnRestore: func(p weir.RestoreProgress) {
			i.mu.Lock()
			defer i.mu.Unlock()
			i.mu.restored[p.Task+" "+p.Store] = p.Records
		},
	}
	shortTimeouts(&c)
	onDisk := false
	for _, f := range change {
		f(&c)
		onDisk = onDisk || c.Store == nil && c.FlushInterval == diskMark
	}
	if c.FlushInterval == diskMark {
		c.FlushInterval = 0
	}
	if c.Store == nil && !onDisk {
		store := memstore.New()
		c.Store = store
		s.t.Cleanup(func() {
			if err := store.Close(); err != nil {
				s.t.Errorf("close the store: %v", err)
			}
		})
	}
	var err error
	if i.app, err = weir.NewApp(top, c); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := i.app.Close(); err != nil {
			s.t.Errorf("close: %v", err)
		}
		if s.t.Failed() {
			lines := strings.Split(i.log.String(), "\n")
			s.t.Logf("log of the application, its last lines:\n%s", strings.Join(lines[max(0, len(lines)-120):], "\n"))
		}
	})
	return i
}

// diskMark is a FlushInterval that stands for a store on disk.
const diskMark = time.Nanosecond

// onDisk keeps the state in dir.
func onDisk(dir string) func(*weir.Config) {
	return func(c *weir.Config) { c.Dir, c.FlushInterval = dir, diskMark }
}

func (i *instanceOf) run(ctx context.Context) {
	go func() { i.done <- i.app.Run(ctx) }()
}

// running waits until the application runs.
func (i *instanceOf) running() *instanceOf {
	i.s.t.Helper()
	if err := i.app.WaitFor(i.s.ctx, weir.Running); err != nil {
		i.s.t.Fatalf("not running: %v; %v", err, i.ended())
	}
	return i
}

// ended returns the error of an application that has ended, if it has.
func (i *instanceOf) ended() error {
	select {
	case err := <-i.done:
		i.done <- err
		return err
	default:
		return nil
	}
}

// stop stops the application, which must be clean.
func (i *instanceOf) stop() {
	i.s.t.Helper()
	if err := i.app.Close(); err != nil {
		i.s.t.Errorf("close: %v", err)
	}
	if err := i.fails(); err != nil {
		i.s.t.Errorf("a stop is not clean: %v", err)
	}
}

// fails waits until the application has ended, and returns its error.
func (i *instanceOf) fails() error {
	i.s.t.Helper()
	select {
	case err := <-i.done:
		i.done <- err
		return err
	case <-i.s.ctx.Done():
		i.s.t.Fatalf("the application does not end: %v", context.Cause(i.s.ctx))
		return nil
	}
}

// refuses waits until the application has failed with the sentinel, if one is
// given, and a message that has all the words.
func (i *instanceOf) refuses(sentinel error, words ...string) {
	i.s.t.Helper()
	err := i.fails()
	if err == nil {
		i.s.t.Fatal("the application ended without an error")
	}
	if sentinel != nil && !errors.Is(err, sentinel) {
		i.s.t.Errorf("the error does not match %q: %v", sentinel, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			i.s.t.Errorf("the error does not say %q: %v", w, err)
		}
	}
	if i.app.State() != weir.Failed {
		i.s.t.Errorf("the state is %v, want Failed", i.app.State())
	}
}

// restored returns how many records were restored, all stores together.
func (i *instanceOf) restored() (n int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, r := range i.mu.restored {
		n += r
	}
	return n
}

// says waits until the log has a text.
func (i *instanceOf) says(text string) {
	i.s.t.Helper()
	waitUntil(i.s.t, i.s.ctx, fmt.Sprintf("the log says %q", text), func() (bool, error) {
		return strings.Contains(i.log.String(), text), nil
	})
}

// wants waits until a table of the application has this contents.
func wants[V comparable](i *instanceOf, table weir.Table[string, V], want map[string]V) {
	i.s.t.Helper()
	waitUntil(i.s.t, i.s.ctx, "the table has its contents", func() (bool, error) {
		got, err := tableOf(i.s.ctx, i.app, table)
		if err != nil {
			return false, err
		}
		for key, w := range want {
			if got[key] != w {
				return false, fmt.Errorf("key %s has %v, want %v", key, got[key], w)
			}
		}
		return len(got) == len(want), fmt.Errorf("it has %d keys, want %d: %v", len(got), len(want), got)
	})
}

// exactlyOnce waits for n counts on "out" and checks that those of each key are
// 1, 2, 3, ... in this order: any repetition or loss of an input or an output
// shows.
func (s *situation) exactlyOnce(n int) {
	s.t.Helper()
	last := map[string]int64{}
	for _, r := range s.await("out", n) {
		c, err := serde.Int64.Decode(r.Value)
		if err != nil {
			s.t.Fatal(err)
		}
		if key := string(r.Key); c != last[key]+1 {
			s.t.Errorf("key %s: count %d comes after %d", key, c, last[key])
		}
		last[string(r.Key)] = c
	}
}
