package redisstore

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/internal/redistest"
	"github.com/weirstreams/weir/metric"
)

func atLeastOnce(c *weir.Config) { c.Guarantee = weir.AtLeastOnce }

// ids reads all outputs and checks that equal ids have equal contents. It returns
// the outputs without repetitions, by key, and the number of those.
func (k *kafka) ids() (out map[string][]string, repeated int) {
	k.t.Helper()
	adm := kadm.NewClient(k.cl)
	ends, err := adm.ListEndOffsets(k.ctx, "out")
	if err != nil {
		k.t.Fatal(err)
	}
	cl, err := kgo.NewClient(append(k.broker.ClientOptions(), kgo.ConsumeTopics("out"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		k.t.Fatal(err)
	}
	defer cl.Close()
	left := int64(0)
	ends.Each(func(o kadm.ListedOffset) { left += o.Offset })
	out = map[string][]string{}
	texts := map[string]string{}
	var d weir.Deduper
	for left > 0 {
		fetches := cl.PollFetches(k.ctx)
		if k.ctx.Err() != nil {
			k.t.Fatalf("%d outputs are missing after %v", left, appLimit)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			left--
			i := slices.IndexFunc(r.Headers, func(h kgo.RecordHeader) bool { return h.Key == weir.HeaderID })
			if i < 0 {
				k.t.Fatalf("output %s=%x has no id", r.Key, r.Value)
			}
			id, text := string(r.Headers[i].Value), string(r.Key)+"="+string(r.Value)
			was, again := texts[id]
			if again && was != text {
				k.t.Errorf("one id has %q and %q", was, text)
			}
			if got := d.Repeated("out", r.Partition, r.Headers[i].Value); got != again {
				k.t.Errorf("%q: repeated is %t, want %t", text, got, again)
			}
			if texts[id] = text; again {
				repeated++
				return
			}
			out[string(r.Key)] = append(out[string(r.Key)], string(r.Value))
		})
	}
	return out, repeated
}

// noChangelogs checks that the application has none.
func (k *kafka) noChangelogs() {
	k.t.Helper()
	topics, err := kadm.NewClient(k.cl).ListTopics(k.ctx)
	if err != nil {
		k.t.Fatal(err)
	}
	for name := range topics {
		if strings.HasSuffix(name, "-changelog") {
			k.t.Errorf("there is a topic %s", name)
		}
	}
}

// At least once the state is in Redis alone. Instances come and go, and what one
// has counted the next goes on with.
func TestAppWithOutbox(t *testing.T) {
	t.Parallel()
	k, opts := newKafka(t), miniRedis(t)
	a := k.run("ratings", mustOpen(t, opts), atLeastOnce)
	k.send(3000, 400)
	a.check("ratings", opts)
	b := k.run("ratings", mustOpen(t, opts), atLeastOnce)
	k.send(2000, 700)
	b.k.collect()
	a.stop()
	k.send(1000, 700)
	b.check("ratings", opts)
	b.stop()
	k.noChangelogs()
	if n := a.metrics.Sum(metric.RestoreRecords) + b.metrics.Sum(metric.RestoreRecords); n != 0 {
		t.Errorf("%v records were restored", n)
	}
	out, repeated := k.ids()
	n := 0
	for _, list := range out {
		n += len(list)
	}
	if n != k.n || repeated != 0 {
		t.Errorf("%d outputs and %d repetitions, want %d and none", n, repeated, k.n)
	}
}

// While Redis is away nothing is processed and the group is kept. When it comes
// back without the last batches their input is processed again, by itself; when
// it comes back empty the application stops and says why.
func TestAppWithOutboxAndAFailover(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	opts := Options{Addresses: []string{m.Addr()}, Check: CheckOff}
	k := newKafka(t)
	a := k.run("ratings", mustOpen(t, opts), atLeastOnce)
	k.send(500, 20)
	a.check("ratings", opts)
	old := dump(t, m)
	k.send(300, 20)
	a.check("ratings", opts)
	redistest.Eventually(t, "the last positions are committed", func() bool {
		return a.metrics.Sum(metric.ConsumerLag) == 0 && a.committedAll()
	})

	m.SetError("LOADING Redis is loading the dataset in memory")
	k.send(100, 20)
	redistest.Eventually(t, "all tasks have been refused", func() bool {
		return strings.Count(a.log.String(), "the store is unavailable; the task pauses") >= appPartitions
	})
	old.putBack(t, m)
	m.SetError("")
	want := map[string]int64{}
	for key, n := range k.sent {
		want[key] = n
	}
	redistest.Eventually(t, "what was forgotten is counted again", func() bool {
		for key, n := range want {
			if got, found, err := a.app.Read(a.table).Get(k.ctx, key); err != nil || !found || got != n {
				return false
			}
		}
		return a.committedAll() // and its outputs are there
	})
	if n := a.metrics.Sum(metric.Reprocessed); n != 300 {
		t.Errorf("%v records are said to be processed again, want 300", n)
	}
	if n := a.metrics.Sum(metric.StoreForgot); n == 0 || n > appPartitions {
		t.Errorf("the store is said to have forgotten %v times", n)
	}
	if strings.Contains(a.log.String(), "no longer a member") {
		t.Error("the application has lost its place in the group")
	}
	out, repeated := k.ids()
	n := 0
	for _, list := range out {
		n += len(list)
	}
	if n != k.n+300 || repeated != 0 {
		t.Errorf("%d outputs and %d repetitions, want %d, of which 300 are of the second time, and none", n, repeated, k.n+300)
	}

	m.FlushAll()
	k.send(10, 10)
	select {
	case err := <-a.done:
		if !errors.Is(err, weir.ErrStateMismatch) || !strings.Contains(err.Error(), "the store has nothing of the task") {
			t.Errorf("the application ended with %v", err)
		}
	case <-k.ctx.Done():
		t.Error("the application goes on without its state")
	}
}

// A broker that takes no outputs for longer than sessions and rebalances last. The
// tasks process until their outboxes are full, and wait; the application stays in
// the group, which goes on without it: another instance gets its share of the tasks
// meanwhile. Nothing is lost, and what is sent by both has the same ids.
func TestAppWithOutboxWhileOutputsAreRefused(t *testing.T) {
	t.Parallel()
	k, opts := newKafka(t), miniRedis(t)
	short := func(c *weir.Config) {
		atLeastOnce(c)
		c.Workers, c.SessionTimeout, c.RebalanceTimeout = 1, 2*time.Second, 3*time.Second
	}
	a := k.run("ratings", mustOpen(t, opts), short)
	k.send(500, 50)
	a.check("ratings", opts)
	details, err := kadm.NewClient(k.cl).ListTopics(k.ctx, "out")
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	heal, err := k.broker.Control(kmsg.Produce, func(c *embedded.Call) (kmsg.Response, error, bool) { //nolint:revive // as Control wants it
		r := c.Request.(*kmsg.ProduceRequest)
		if len(r.Topics) == 0 || r.Topics[0].Topic != "out" && r.Topics[0].TopicID != details["out"].ID {
			return nil, nil, false
		}
		refused++
		return nil, errors.New("connection closed by the test"), true
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 6 {
		k.send(5000, 5000)
	}
	redistest.Eventually(t, "the tasks wait", func() bool { return strings.Contains(a.log.String(), "outputs are not acknowledged") })
	b := k.run("ratings", mustOpen(t, opts), short)
	running := func(a *app) int {
		return strings.Count(a.log.String(), `msg="task running"`) - strings.Count(a.log.String(), `msg="task released"`)
	}
	redistest.Eventually(t, "the group has given half of the tasks to the other", func() bool {
		return strings.Count(a.log.String(), `msg="task released"`) == appPartitions/2 && running(a) == appPartitions/2
	})
	if log := a.log.String(); strings.Contains(log, "no longer a member") || strings.Contains(log, "the client is rebuilt") {
		t.Error("the application has lost its place in the group")
	}
	heal()
	redistest.Eventually(t, "the tasks run there", func() bool { return running(b) == appPartitions/2 })
	redistest.Eventually(t, "all is committed", b.committedAll)
	out, repeated := k.ids()
	n := 0
	for key, sent := range k.sent {
		if got := int64(len(out[key])); got != sent {
			t.Fatalf("%d outputs of %s, want %d", got, key, sent)
		}
		n += len(out[key])
	}
	t.Logf("%d outputs, %d repetitions, %d requests refused", n, repeated, refused)
	if refused == 0 {
		t.Error("no request was refused")
	}
	a.stop()
	b.stop()
}

// committedAll says whether the group's offsets are those of everything sent.
func (a *app) committedAll() bool {
	a.k.t.Helper()
	offsets, err := kadm.NewClient(a.k.cl).FetchOffsets(a.k.ctx, "ratings")
	if err != nil {
		return false
	}
	sum := int64(0)
	offsets.Each(func(o kadm.OffsetResponse) { sum += o.At })
	return sum == int64(a.k.n)
}

// contents are all hashes and sorted sets of a server.
type contents struct {
	hashes map[string][]string
	sets   map[string][]string
}

func dump(t *testing.T, m *miniredis.Miniredis) contents {
	t.Helper()
	c := contents{map[string][]string{}, map[string][]string{}}
	for _, key := range m.Keys() {
		switch kind := m.Type(key); kind {
		case "hash":
			fields, err := m.HKeys(key)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range fields {
				c.hashes[key] = append(c.hashes[key], f, m.HGet(key, f))
			}
		case "zset":
			members, err := m.ZMembers(key)
			if err != nil {
				t.Fatal(err)
			}
			c.sets[key] = members
		default:
			t.Fatalf("key %q is a %s", key, kind)
		}
	}
	return c
}

// putBack makes the server what it was, as a replica is that lags.
func (c contents) putBack(t *testing.T, m *miniredis.Miniredis) {
	t.Helper()
	m.FlushAll()
	for key, fields := range c.hashes {
		m.HSet(key, fields...)
	}
	for key, members := range c.sets {
		for _, name := range members {
			if _, err := m.ZAdd(key, 0, name); err != nil {
				t.Fatal(err)
			}
		}
	}
}
