package proof

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/embedded"
)

// cluster is a Kafka under test, with what the tests do to it.
type cluster struct {
	brokers  []string         // addresses that other processes reach
	options  []kgo.Opt        // of clients of this process
	embedded *embedded.Broker // nil for a real one
	redis    string           // URL of a Redis beside it; see redisBeside

	adm *kadm.Client
	cl  *kgo.Client
}

// newCluster completes a cluster. It is closed when the test ends.
func newCluster(t testing.TB, c cluster) *cluster {
	t.Helper()
	var err error
	c.cl, err = kgo.NewClient(append([]kgo.Opt{kgo.MetadataMinAge(50 * time.Millisecond), kgo.ProducerLinger(time.Millisecond),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil))}, c.options...)...)
	if err != nil {
		t.Fatal(err)
	}
	c.adm = kadm.NewClient(c.cl)
	t.Cleanup(c.cl.Close)
	return &c
}

// embeddedCluster opens an embedded broker for a test. With listen it has a
// port for other processes.
func embeddedCluster(t testing.TB, brokers int, listen bool) *cluster {
	t.Helper()
	o := embedded.Options{Brokers: brokers}
	if listen {
		o.Listen = "127.0.0.1:0"
	}
	b, err := embedded.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close the broker: %v", err)
		}
	})
	return newCluster(t, cluster{brokers: b.Brokers(), options: b.ClientOptions(), embedded: b})
}

// redisBeside is the URL of the Redis beside the cluster. That of an embedded one
// is a stand-in, which is started when it is asked for: its listener would keep
// the time of a bubble from going on.
func (c *cluster) redisBeside(t testing.TB) string {
	t.Helper()
	if c.redis == "" {
		c.redis = "redis://" + miniredis.RunT(t).Addr() + "/0"
	}
	return c.redis
}

// testContext ends with the test, or when it takes longer than limit.
func testContext(t testing.TB, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, fmt.Errorf("the test takes longer than %v", limit))
	t.Cleanup(cancel)
	return ctx
}

// uniqueName makes a name for topics and applications of a test that nobody
// else uses.
func uniqueName(t testing.TB) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, t.Name())
	return fmt.Sprintf("%.80s-%08x", name, rand.Uint32())
}

// topic creates a topic with alternating names and values of settings. It is
// deleted when the test ends.
func (c *cluster) topic(t testing.TB, name string, partitions int32, settings ...string) {
	t.Helper()
	configs := map[string]*string{}
	for i := 0; i+1 < len(settings); i += 2 {
		configs[settings[i]] = &settings[i+1]
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, err := c.adm.CreateTopic(ctx, partitions, 1, configs, name)
	if err == nil {
		err = r.Err
	}
	if err != nil {
		t.Fatalf("create topic %s: %v", name, err)
	}
	// A real broker says yes before it knows the topic.
	waitUntil(t, ctx, "topic "+name+" is there", func() (bool, error) {
		start, err := c.adm.ListStartOffsets(ctx, name)
		if err == nil {
			err = start.Error()
		}
		return err == nil && len(start[name]) == int(partitions), err
	})
	c.deleteLater(t, name)
}

// deleteLater deletes topics when the test ends, if they are there, so that a
// broker that is kept between runs does not fill up.
func (c *cluster) deleteLater(t testing.TB, names ...string) {
	if c.embedded != nil {
		return // it goes with its broker
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if _, err := c.adm.DeleteTopics(ctx, names...); err != nil {
			t.Logf("delete topics %v: %v", names, err)
		}
	})
}

// room returns how many offsets a topic has up to its last stable ones: at least
// as many as records.
func (c *cluster) room(ctx context.Context, topic string) (n int, err error) {
	start, err := c.adm.ListStartOffsets(ctx, topic)
	if err == nil {
		err = start.Error()
	}
	if err != nil {
		return 0, err
	}
	end, err := c.adm.ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = end.Error()
	}
	for p, e := range end[topic] {
		n += int(e.Offset - start[topic][p].Offset)
	}
	return n, err
}

// read returns the records of a topic as a read_committed reader sees them, by
// partition, up to the last stable offset of now. Transaction markers are left
// out.
func (c *cluster) read(ctx context.Context, topic string) ([][]*kgo.Record, error) {
	start, err := c.adm.ListStartOffsets(ctx, topic)
	if err == nil {
		err = start.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("start of %s: %w", topic, err)
	}
	end, err := c.adm.ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = end.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("end of %s: %w", topic, err)
	}
	records := make([][]*kgo.Record, len(end[topic]))
	left := map[int32]int64{} // end by partition that is not read yet
	from := map[int32]kgo.Offset{}
	for p, e := range end[topic] {
		if s := start[topic][p].Offset; s < e.Offset {
			left[p], from[p] = e.Offset, kgo.NewOffset().At(s)
		}
	}
	if len(left) == 0 {
		return records, nil
	}
	// Records that are deleted in between are an error, so that the caller looks
	// again; the client would go on behind the end and wait there.
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.DisableClientMetrics(),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxWait(100 * time.Millisecond), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from})}, c.options...)...)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	for len(left) > 0 {
		fs := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("read %s: partitions %v are not read to their ends: %w", topic, left, context.Cause(ctx))
		}
		var failed error
		fs.EachError(func(_ string, p int32, err error) { failed = fmt.Errorf("read %s[%d]: %w", topic, p, err) })
		if failed != nil {
			return nil, failed
		}
		fs.EachRecord(func(r *kgo.Record) {
			if r.Offset >= left[r.Partition] {
				return
			}
			if !r.Attrs.IsControl() {
				records[r.Partition] = append(records[r.Partition], r)
			}
			if r.Offset+1 == left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return records, nil
}

// readDecided is read when no transaction is open in the topic. What a dead
// application has left open hides what came after it until the broker aborts it.
func (c *cluster) readDecided(ctx context.Context, topic string) ([][]*kgo.Record, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		stable, err := c.adm.ListCommittedOffsets(ctx, topic)
		if err != nil {
			return nil, err
		}
		end, err := c.adm.ListEndOffsets(ctx, topic)
		if err != nil {
			return nil, err
		}
		open := ""
		for p, e := range end[topic] {
			if s := stable[topic][p].Offset; s < e.Offset {
				open = fmt.Sprintf("partition %d is decided up to %d of %d", p, s, e.Offset)
			}
		}
		if open == "" {
			return c.read(ctx, topic)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("a transaction stays open in %s: %s: %w", topic, open, context.Cause(ctx))
		}
	}
}

// mustRead is read for a test.
func (c *cluster) mustRead(t testing.TB, ctx context.Context, topic string) [][]*kgo.Record {
	t.Helper()
	records, err := c.read(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// waitUntil polls a condition until it holds, whatever error comes with it. It
// fails the test with the last error when ctx ends.
func waitUntil(t testing.TB, ctx context.Context, what string, condition func() (bool, error)) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := condition()
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not so in time: %v (%v)", what, err, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// members returns the number of members of a group, 0 if there is none.
func (c *cluster) members(ctx context.Context, group string) (n int, state string, err error) {
	groups, err := c.adm.DescribeGroups(ctx, group)
	if err != nil {
		return 0, "", err
	}
	g := groups[group]
	return len(g.Members), g.State, nil
}

// syncBuffer is a buffer that is written while it is read. It keeps the end of
// what was written.
type syncBuffer struct {
	mu struct {
		sync.Mutex
		b []byte
	}
}

// syncBufferKeep is how much a syncBuffer keeps.
const syncBufferKeep = 256 << 10

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.b = append(b.mu.b, p...)
	if n := len(b.mu.b) - syncBufferKeep; n > syncBufferKeep {
		b.mu.b = append(b.mu.b[:0], b.mu.b[n:]...)
	}
	return len(p), nil
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.mu.b)
}
