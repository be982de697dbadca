package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/bench/kafka-streams/child"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/redisstore"
)

// Shape of the part start.
const (
	startRounds     = 7
	startManyKeys   = 10_000_000
	startFewKeys    = 10_000
	startPartitions = 4
	startProbes     = 1000 // records that wait for the program
	startBuckets    = 64   // of each view: 40,000 keys in each with ten million in all
	startCommit     = 100 * time.Millisecond
	loadStep        = 100_000 // keys between two checkpoints of the load
	startLimit      = 2 * time.Minute
)

// start compares how long a process takes from its start to its first output,
// visible to a reader of committed records, when Redis holds many keys of its
// application, to when it holds few. The two take turns. Each output is checked
// against the count that its key had.
func (b *bench) start(ctx context.Context) (rows []row, err error) {
	dir, err := os.MkdirTemp("", "weir-bench-start-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program := filepath.Join(dir, "weirapp")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, "./bench/kafka-streams/weirapp").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build weirapp, from the root of the repository: %w\n%s", err, out)
	}
	many := startManyKeys
	if b.keys > 0 {
		many = b.keys
	}
	if b.quick {
		many = 5 * startFewKeys
	}
	var apps [2]*application
	for i, keys := range []int{many, startFewKeys} {
		a, err := newApplication(ctx, b, program, filepath.Join(dir, strconv.Itoa(i)), keys)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, a.close()) }()
		began := time.Now()
		if err := a.prepare(ctx); err != nil {
			return nil, err
		}
		memory, err := a.server.memory(ctx)
		if err != nil {
			return nil, err
		}
		b.note("start: %d keys loaded in %v, %.0f MiB in Redis", keys, time.Since(began).Round(100*time.Millisecond), memory/(1<<20))
		apps[i] = a
	}
	var took [2][]float64
	for range b.roundsOf(startRounds) {
		for i, a := range apps {
			d, err := a.firstOutput(ctx)
			if err != nil {
				return nil, err
			}
			took[i] = append(took[i], d.Seconds())
		}
	}
	title := fmt.Sprintf("%d keys in Redis / %d", many, startFewKeys)
	return []row{newRow("start", title, "s to the first output", took[0], took[1], atMost(1.2))}, nil
}

// application is the keyed count of weirapp with its topics and its Redis.
type application struct {
	b       *bench
	program string
	dir     string
	keys    int
	server  *server
	cfg     child.Config
	cl      *kgo.Client
	adm     *kadm.Client
	counts  map[string]int64 // of keys that were probed; of others it is 1
	runs    int
}

func newApplication(ctx context.Context, b *bench, program, dir string, keys int) (*application, error) {
	name := fmt.Sprintf("weir-bench-start-%d-%08x", keys, rand.Uint32())
	a := &application{b: b, program: program, dir: dir, keys: keys, counts: map[string]int64{}, cfg: child.Config{
		App: name, Brokers: b.brokers, In: name + "-in", Out: name + "-out", Dir: filepath.Join(dir, "state"),
		Partitions: startPartitions, Workers: 2, Commit: startCommit,
	}}
	if err := os.MkdirAll(a.cfg.Dir, 0o777); err != nil {
		return nil, err
	}
	var err error
	if a.server, err = startServer(ctx); err != nil {
		return nil, err
	}
	// The one partitioner that Weir counts on is also that of the Java client.
	if a.cl, err = kgo.NewClient(kgo.SeedBrokers(b.brokers), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil))); err != nil {
		return nil, errors.Join(err, a.server.close())
	}
	a.adm = kadm.NewClient(a.cl)
	for _, topic := range []string{a.cfg.In, a.cfg.Out} {
		if _, err := a.adm.CreateTopic(ctx, startPartitions, 1, nil, topic); err != nil {
			return nil, errors.Join(fmt.Errorf("create topic %s: %w", topic, err), a.close())
		}
		if err := a.awaitTopic(ctx, topic); err != nil {
			return nil, errors.Join(err, a.close())
		}
	}
	return a, nil
}

// awaitTopic waits until a new topic has leaders: the broker says yes before it
// knows the topic everywhere.
func (a *application) awaitTopic(ctx context.Context, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		ends, err := a.adm.ListEndOffsets(ctx, topic)
		if err == nil {
			err = ends.Error()
		}
		if err == nil && len(ends[topic]) == startPartitions {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("topic %s has no leaders: %w", topic, errors.Join(err, ctx.Err()))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// close removes all that the application has left.
func (a *application) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	_, err := a.adm.DeleteTopics(ctx, a.cfg.In, a.cfg.Out, a.cfg.App+"-counts-changelog")
	if _, e := a.adm.DeleteGroup(ctx, a.cfg.App); e != nil && !errors.Is(e, kerr.GroupIDNotFound) && !errors.Is(e, kerr.NonEmptyGroup) {
		err = errors.Join(err, e)
	}
	a.cl.Close()
	return errors.Join(err, a.server.close())
}

// url is that of the state.
func (a *application) url() string {
	return "redis://" + a.server.addr + "?check=off&point_lookups=counts&buckets=" + strconv.Itoa(startBuckets)
}

// prepare lets the application count a few records, which makes its views, and
// puts all other keys beside those with the count 1, as if they had been counted
// too.
func (a *application) prepare(ctx context.Context) error {
	if _, err := a.firstOutput(ctx); err != nil {
		return err
	}
	opts, err := redisstore.ParseURL(a.url())
	if err != nil {
		return err
	}
	opts.Timeout = callTimeout
	store, err := redisstore.Open(ctx, opts)
	if err != nil {
		return err
	}
	defer store.Close()
	if _, err := together(startPartitions, func(i int) (int, error) { return 0, a.load(ctx, store, i) }); err != nil {
		return fmt.Errorf("load %d keys: %w", a.keys, err)
	}
	return nil
}

// load puts the keys of a partition into its view. The token that the
// application left comes back with the last of them, so that for the application
// nothing has happened.
func (a *application) load(ctx context.Context, store state.Backend, partition int) (err error) {
	id := state.ID{Application: a.cfg.App, Task: fmt.Sprintf("0_%d", partition)}
	token, err := store.Token(ctx, id)
	if err != nil {
		return err
	}
	loading := state.Token("loading")
	v, err := store.Claim(ctx, id, token, loading)
	if err != nil {
		return err
	}
	bulk, err := v.Bulk(ctx, loading)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bulk.Close(), v.Close()) }()
	one, err := serde.Int64.Append(make([]byte, 8), 1) // behind a timestamp of 1970
	if err != nil {
		return err
	}
	place := kgo.StickyKeyPartitioner(nil).ForTopic(a.cfg.In)
	key, n := make([]byte, 0, 16), 0
	for i := startProbes; i < a.keys; i++ { // the others are there
		key = strconv.AppendInt(key[:0], int64(i), 10)
		if place.Partition(&kgo.Record{Key: key}, startPartitions) != partition {
			continue
		}
		if err := bulk.Put(redisstore.Key("counts", key), one); err != nil {
			return err
		}
		if n++; n%loadStep == 0 {
			if err := bulk.Checkpoint(ctx, state.Token("loading"+strconv.Itoa(n))); err != nil {
				return err
			}
		}
	}
	return bulk.Checkpoint(ctx, token)
}

// firstOutput lets records wait, starts the application, and returns how long
// its first output takes from there. It ends the application when all outputs
// are there.
func (a *application) firstOutput(ctx context.Context) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("a start takes longer than %v", startLimit))
	defer cancel()
	// The outputs from here on.
	ends, err := a.adm.ListEndOffsets(ctx, a.cfg.Out)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return 0, err
	}
	from := map[int32]kgo.Offset{}
	for p, e := range ends[a.cfg.Out] {
		from[p] = kgo.NewOffset().At(e.Offset)
	}
	reader, err := kgo.NewClient(kgo.SeedBrokers(a.b.brokers), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{a.cfg.Out: from}))
	if err != nil {
		return 0, err
	}
	defer reader.Close()
	var probes []*kgo.Record
	for i := range startProbes {
		n := i // the first run makes these keys
		if a.runs > 0 {
			n = i * (a.keys / startProbes) // and the others look all over
		}
		probes = append(probes, &kgo.Record{Topic: a.cfg.In, Key: []byte(strconv.Itoa(n)), Value: []byte("probe")})
	}
	if err := a.cl.ProduceSync(ctx, probes...).FirstErr(); err != nil {
		return 0, err
	}

	log, err := os.Create(filepath.Join(a.dir, "log"))
	if err != nil {
		return 0, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, a.program, append(a.cfg.Args(), "--redis="+a.url())...)
	cmd.Stderr = log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	said := make(chan child.Event, 1) // the last that it says
	go func() { said <- lastEvent(stdout) }()
	for left := len(probes); left > 0; {
		fetches := reader.PollFetches(ctx)
		if took == 0 && fetches.NumRecords() > 0 {
			took = time.Since(began)
		}
		if err = fetches.Err(); err != nil {
			break
		}
		for r := range fetches.RecordsAll() {
			left--
			err = errors.Join(err, a.expect(r))
		}
		if err != nil {
			break
		}
	}
	err = errors.Join(err, stdin.Close())
	if err != nil {
		_ = cmd.Process.Kill()
	}
	last := <-said
	if e := cmd.Wait(); e != nil || last.Event != child.Stopped {
		text, _ := os.ReadFile(log.Name())
		err = errors.Join(err, fmt.Errorf("the application ended with %v, its last event was %q %s; it wrote:\n%s", e, last.Event, last.Error, text))
	}
	a.runs++
	return took, err
}

// lastEvent reads what a child says until it ends.
func lastEvent(r io.Reader) (last child.Event) {
	for dec := json.NewDecoder(r); ; {
		var e child.Event
		if err := dec.Decode(&e); err != nil {
			return last
		}
		last = e
	}
}

// expect checks an output against the count that its key had.
func (a *application) expect(r *kgo.Record) error {
	n, err := serde.Int64.Decode(r.Value)
	if err != nil {
		return err
	}
	before, known := a.counts[string(r.Key)]
	if !known && a.runs > 0 {
		before = 1
	}
	if n != before+1 {
		return fmt.Errorf("key %s goes from %d to %d: the state is not what was loaded", r.Key, before, n)
	}
	a.counts[string(r.Key)] = n
	return nil
}
