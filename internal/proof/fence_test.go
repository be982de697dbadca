package proof

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/fence"
)

// A fenced consumer in processes of its own, which are killed and stopped between
// each of the steps, on the edits of Wikipedia: for each page the sum of the
// changes and their number.

// fenceEnv makes the test binary a fenced consumer; it holds a fenceChild in JSON.
const fenceEnv = "WEIR_PROOF_FENCE"

// fenceChild says what a child runs.
type fenceChild struct {
	Brokers []string
	Redis   string
	Name    string // of the keys in Redis
	Group   string
	In, Out string
	Point   string // where to act, "" nowhere
	Nth     int64
	Stop    bool // stop (SIGSTOP) instead of kill (SIGKILL)
}

// The points of a fenced consumer beside those of its client: before the batch is
// applied, and after, with nothing produced.
const (
	fenceHandled = "handled"
	fenceApplied = "applied"
)

var fencePoints = []string{fenceHandled, fenceApplied, pointProduced, pointAnswered, pointOffsetsSent, pointOffsetsAnswered}

// fenceMain is the program of such a child.
func fenceMain(config string) int {
	var c fenceChild
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		fmt.Println(saysFailed + err.Error())
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	// From here on a SIGTERM is a stop, and not the end of the process.
	fmt.Println(saysState + fenceStarted)
	if err := c.run(ctx); err != nil {
		fmt.Println(saysFailed + strings.ReplaceAll(err.Error(), "\n", "; "))
		return 1
	}
	return 0
}

// fenceStarted is what a child says when it listens to signals.
const fenceStarted = "started"

// fenceBatch makes batches small, so that many are under way.
const fenceBatch = 200

func (c *fenceChild) run(ctx context.Context) error {
	ex := &executioner{point: c.Point, nth: c.Nth, stop: c.Stop}
	consumer, err := fence.NewConsumer(fence.ConsumerConfig{
		Kafka: []kgo.Opt{kgo.SeedBrokers(c.Brokers...), kgo.WithHooks(ex), kgo.SessionTimeout(time.Second), kgo.HeartbeatInterval(200 * time.Millisecond),
			kgo.RebalanceTimeout(3 * time.Second)},
		Group: c.Group, Topics: []string{c.In}, MaxBatchRecords: fenceBatch,
		Fence: fence.Options{URL: c.Redis, Name: c.Name},
		Handle: func(m *fence.Message) (fence.Op, error) {
			var e edit
			if err := json.Unmarshal(m.Value, &e); err != nil {
				return fence.Op{}, err
			}
			ex.pass(fenceHandled)
			return fence.Sum(e.Delta), nil
		},
		Output: func(m *fence.Message, after fence.After) ([]fence.Output, error) {
			ex.pass(fenceApplied)
			return []fence.Output{{Topic: c.Out, Key: m.Key, Value: fenceOutput(m.Partition, m.Offset, string(after.State))}}, nil
		},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	return consumer.Run(ctx)
}

func fenceOutput(partition int32, offset int64, state string) []byte {
	return fmt.Appendf(nil, "%d/%d %s", partition, offset, state)
}

// fenceAct is what happens to a child.
type fenceAct struct {
	point string
	nth   int64
	stop  bool
}

func planFenceActs(rng *rand.Rand, kills int) (acts []fenceAct) {
	for _, p := range fencePoints {
		acts = append(acts, fenceAct{p, 1 + rng.Int64N(3), false})
	}
	for len(acts) < kills {
		acts = append(acts, fenceAct{fencePoints[rng.IntN(len(fencePoints))], 1 + rng.Int64N(40), false})
	}
	for i := range max(2, kills/10) {
		acts = append(acts, fenceAct{[]string{fenceApplied, pointProduced, fenceHandled, pointOffsetsSent}[i%4], 1 + rng.Int64N(10), true})
	}
	rng.Shuffle(len(acts), func(i, j int) { acts[i], acts[j] = acts[j], acts[i] })
	return acts
}

const fencePartitions = 4

// fenceRun feeds the topic and kills consumers.
type fenceRun struct {
	t       *testing.T
	c       *cluster
	child   fenceChild
	edits   []edit
	written int
	sent    [][]edit // by partition and offset
}

// feed writes some more edits; it repeats them when they are used up.
func (r *fenceRun) feed(ctx context.Context, n int) error {
	var list []*kgo.Record
	for range n {
		e := r.edits[r.written%len(r.edits)]
		r.written++
		value, err := json.Marshal(e)
		if err != nil {
			return err
		}
		p := int32(fence.Murmur2.Partition([]byte(e.page()), fencePartitions))
		r.sent[p] = append(r.sent[p], e)
		list = append(list, &kgo.Record{Topic: r.child.In, Key: []byte(e.page()), Value: value})
	}
	return r.c.cl.ProduceSync(ctx, list...).FirstErr()
}

func (r *fenceRun) start(ctx context.Context, name string, a fenceAct) (*process, error) {
	c := r.child
	c.Point, c.Nth, c.Stop = a.point, a.nth, a.stop
	config, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	p, err := startChild(name, fenceEnv+"="+string(config))
	if err != nil {
		return nil, err
	}
	if err := p.await(ctx, fenceStarted, func() bool { return p.mu.state == fenceStarted }); err != nil {
		_ = p.cmd.Process.Kill()
		<-p.exited
		return nil, err
	}
	return p, nil
}

// awaitCommitted waits until the group has committed everything.
func (r *fenceRun) awaitCommitted(ctx context.Context) {
	waitUntil(r.t, ctx, "all records are committed", func() (bool, error) {
		offsets, err := r.c.adm.FetchOffsetsForTopics(ctx, r.child.Group, r.child.In)
		if err != nil {
			return false, err
		}
		for p, sent := range r.sent {
			o, ok := offsets.Lookup(r.child.In, int32(p))
			if len(sent) > 0 && (!ok || o.At < int64(len(sent))) {
				return false, nil
			}
		}
		return true, nil
	})
}

// act runs a consumer up to its end at a point, beside one that may live on. It
// returns the consumer that has been stopped, to be let go on later.
func (r *fenceRun) act(ctx context.Context, n int, a fenceAct) (*process, error) {
	p, err := r.start(ctx, fmt.Sprintf("victim-%d", n), a)
	if err != nil {
		return nil, err
	}
	gone := func() bool { return !p.alive() }
	stopped := func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.mu.stopped }
	for !gone() && !stopped() {
		// It gets to its point when there are records for it.
		if err := r.feed(ctx, 100); err != nil {
			return p, err
		}
		select {
		case <-p.exited:
		case <-time.After(20 * time.Millisecond):
		}
		if err := ctx.Err(); err != nil {
			return p, context.Cause(ctx)
		}
	}
	if a.stop && stopped() {
		return p, nil
	}
	return nil, p.awaitKilled(ctx)
}

// testFence kills fenced consumers and then compares the outputs and states with
// a plain loop.
func testFence(t *testing.T, c *cluster, redis, keys string, kills int, limit time.Duration) {
	ctx := testContext(t, limit)
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 3))
	name := uniqueName(t)
	r := &fenceRun{t: t, c: c, child: fenceChild{Brokers: c.brokers, Redis: redis, Name: keys, Group: name, In: name + "-edits", Out: name + "-sums"}, sent: make([][]edit, fencePartitions)}
	events, err := readEvents()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range events.lines {
		var e edit
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		r.edits = append(r.edits, e)
	}
	c.topic(t, r.child.In, fencePartitions)
	c.topic(t, r.child.Out, 1)

	var children []*process
	defer func() {
		for _, p := range children {
			if p.alive() {
				_ = p.signal(syscall.SIGCONT)
				_ = p.cmd.Process.Kill()
				<-p.exited
			}
			if t.Failed() {
				t.Logf("child %s ended %v:\n%s", p.name, p.ending(), p.log.String())
			}
		}
	}()
	acts := planFenceActs(rng, kills)
	killed, resumed := 0, 0
	var other *process
	for i, a := range acts {
		// Two of three times there is another member, which takes over.
		if other == nil && rng.IntN(3) > 0 {
			if other, err = r.start(ctx, fmt.Sprintf("other-%d", i), fenceAct{}); err != nil {
				t.Fatal(err)
			}
			children = append(children, other)
		}
		sleeper, err := r.act(ctx, i, a)
		if sleeper != nil {
			children = append(children, sleeper)
		}
		if err != nil {
			t.Fatalf("seed %d, act %d (%+v): %v", seed, i, a, err)
		}
		if sleeper == nil {
			killed++
			continue
		}
		// Its partitions move to another member; then it goes on as if nothing
		// had happened.
		if other == nil {
			if other, err = r.start(ctx, fmt.Sprintf("other-%d", i), fenceAct{}); err != nil {
				t.Fatal(err)
			}
			children = append(children, other)
		}
		r.awaitCommitted(ctx)
		resumed++
		if err := sleeper.signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if err := r.feed(ctx, 100); err != nil {
			t.Fatal(err)
		}
		r.awaitCommitted(ctx)
		if err := sleeper.terminate(ctx); err != nil {
			t.Fatalf("seed %d, act %d (%+v): %v", seed, i, a, err)
		}
		if rng.IntN(2) == 0 {
			if err := other.kill(ctx); err != nil {
				t.Fatal(err)
			}
			killed++
			other = nil
		}
	}
	if other == nil {
		if other, err = r.start(ctx, "last", fenceAct{}); err != nil {
			t.Fatal(err)
		}
		children = append(children, other)
	}
	r.awaitCommitted(ctx)
	if err := other.terminate(ctx); err != nil {
		t.Fatal(err)
	}
	repeated := r.judge(ctx)
	t.Logf("seed %d: %d kills and %d pauses, %d inputs (%s), %d outputs repeated, none lost, none wrong", seed, killed, resumed, r.written, events.from, repeated)
}

// judge compares outputs and states with a plain loop.
func (r *fenceRun) judge(ctx context.Context) (repeated int) {
	t := r.t
	type sum struct{ delta, count int64 }
	sums := map[string]sum{}
	want := map[string]bool{}
	for p, sent := range r.sent {
		for o, e := range sent {
			s := sums[e.page()]
			s.delta, s.count = s.delta+e.Delta, s.count+1
			sums[e.page()] = s
			want[string(fenceOutput(int32(p), int64(o), strconv.FormatInt(s.delta, 10)+" "+strconv.FormatInt(s.count, 10)))] = true
		}
	}
	got := map[string]bool{}
	for _, partition := range r.c.mustRead(t, ctx, r.child.Out) {
		for _, rec := range partition {
			v := string(rec.Value)
			if got[v] {
				repeated++
			}
			if got[v] = true; !want[v] {
				t.Errorf("an output of a state that never was: %s", v)
			}
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d different outputs of %d inputs", len(got), len(want))
	}
	f, err := fence.Open(ctx, fence.Options{URL: r.child.Redis, Name: r.child.Name, Topic: r.child.In, Partitions: fencePartitions})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, page := range slices.Sorted(maps.Keys(sums)) {
		in, err := f.Inspect(ctx, []byte(page))
		if err != nil {
			t.Fatal(err)
		}
		delta, count, err := fence.DecodeSum(in.State.Value)
		if w := sums[page]; err != nil || delta != w.delta || count != w.count {
			t.Errorf("page %q: sum %d of %d changes (%v), want %d of %d", page, delta, count, err, w.delta, w.count)
		}
	}
	return repeated
}

// TestKillFence has an embedded broker and a stand-in for Redis, and kills at each
// point once.
func TestKillFence(t *testing.T) {
	t.Parallel()
	c := embeddedCluster(t, 1, true)
	testFence(t, c, c.redisBeside(t)+"?check=off&timeout=30s", "fence", 0, 5*time.Minute)
}
