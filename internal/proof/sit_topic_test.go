package proof

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/serde"
)

// TestSituationD1: the input is placed by the Java client's hash (murmur2), the
// library had another by default, and Get did not find most of the keys. It finds
// all of them, and outputs go where the Java client would put them.
func TestSituationD1(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		const partitions = 3
		s.topics(partitions, "in", "out")
		place := map[string]int32{}
		java := kgo.StickyKeyPartitioner(nil).ForTopic("")
		for i := range 30 {
			key := fmt.Sprint("k", i)
			place[key] = int32(java.Partition(&kgo.Record{Key: []byte(key)}, partitions))
			s.write("in", key+"=v")
		}
		for _, r := range s.all(s.topicOf("in")) {
			if r.Partition != place[string(r.Key)] {
				t.Fatalf("key %s is in partition %d, want %d: the test does not show what it should", r.Key, r.Partition, place[string(r.Key)])
			}
		}
		top, table := s.counter()
		i := s.start(top).running()
		for _, r := range s.await("out", 30) {
			if r.Partition != place[string(r.Key)] {
				t.Errorf("the output of %s is in partition %d, the Java client puts it in %d", r.Key, r.Partition, place[string(r.Key)])
			}
		}
		for key := range place {
			if n, found, err := i.app.Read(table).Get(s.ctx, key); n != 1 || !found || err != nil {
				t.Errorf("Get(%s): %d, %t, %v, want 1", key, n, found, err)
			}
		}
	})
}

// TestSituationD5: two inputs that have to be co-partitioned have 4 and 6
// partitions. A part of the data was joined in silence. The start is refused with
// both names and counts, and no topic is made.
func TestSituationD5(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		s.topics(4, "left")
		s.topics(6, "right")
		top := s.build(func(b *weir.Builder) {
			b.Stream(s.str("left")).Merge(b.Stream(s.str("right"))).GroupByKey().Count("counts")
		})
		s.start(top).refuses(weir.ErrTopics,
			fmt.Sprintf("topic %q (4 partitions)", s.topicOf("left")), fmt.Sprintf("topic %q (6 partitions)", s.topicOf("right")))
		if s.exists(s.name + "-counts-changelog") {
			t.Error("a changelog was made")
		}
	})
}

// exists says whether there is a topic.
func (s *situation) exists(topic string) bool {
	s.t.Helper()
	details, err := s.adm.ListTopics(kadm.WithAuthorizedOps(s.ctx), topic) // this one is not remembered
	if err != nil {
		s.t.Fatal(err)
	}
	switch err := details[topic].Err; {
	case err == nil:
		return true
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return false
	default:
		s.t.Fatal(err)
		return false
	}
}

// TestSituationD7: a changelog was made before the repartition topic in front of
// it, with the broker's own number of partitions, and the first start crashed.
// Both have the number of their subtopology.
func TestSituationD7(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		s.topics(7, "in", "out")
		first := func(key, value string) string { return value[:1] }
		top := s.build(func(b *weir.Builder) {
			in := b.Stream(s.str("in"))
			in.GroupBy("same", serde.String, first).Count("same-counts").ToStream().To(s.counts("out"))
			in.SelectKey(first).Serdes(serde.String, serde.String).Repartition("other", weir.Partitions(5)).GroupByKey().Count("other-counts")
		})
		want := map[string]int{
			"-same-repartition": 7, "-same-counts-changelog": 7, "-other-repartition": 5, "-other-counts-changelog": 5,
		}
		names := []string{}
		for suffix := range want {
			s.deleteLater(t, s.name+suffix)
			names = append(names, s.name+suffix)
		}
		s.start(top).running()
		s.write("in", "a=x1", "b=x2", "c=x3")
		s.await("out", 3)
		details, err := s.adm.ListTopics(s.ctx, names...)
		if err != nil {
			t.Fatal(err)
		}
		for suffix, n := range want {
			if d := details[s.name+suffix]; d.Err != nil || len(d.Partitions) != n {
				t.Errorf("%s has %d partitions (%v), want %d", suffix, len(d.Partitions), d.Err, n)
			}
		}
	})
}

// TestSituationD8: settings that the library gives to its own topics turned up on
// those of the user, whose cleanup policy changed. These stay as they are.
func TestSituationD8(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		users := []string{s.topicOf("table"), s.topicOf("out"), s.topicOf("dead")}
		s.topic(t, users[0], 2, "cleanup.policy", "delete", "retention.ms", "86400000")
		s.topic(t, users[1], 2, "retention.ms", "3600000")
		s.topic(t, users[2], 1)
		settings := func(topics ...string) map[string]string {
			t.Helper()
			configs, err := s.adm.DescribeTopicConfigs(s.ctx, topics...)
			if err != nil {
				t.Fatal(err)
			}
			all := map[string]string{}
			for _, rc := range configs {
				if rc.Err != nil {
					t.Fatal(rc.Err)
				}
				for _, c := range rc.Configs {
					all[rc.Name+" "+c.Key] = c.MaybeValue()
				}
			}
			return all
		}
		before := settings(users...)
		top := s.build(func(b *weir.Builder) {
			b.Table("copy", s.str("table")).ToStream().To(s.str("out"))
		})
		changelog := s.name + "-copy-changelog"
		s.deleteLater(t, changelog)
		i := s.start(top, func(c *weir.Config) {
			c.DeadLetterTopic = users[2]
			c.TopicConfigs = map[string]string{"delete.retention.ms": "7200000", "retention.ms": "7200000"}
		}).running()
		s.write("table", "a=1", "b=2")
		s.await("out", 2)
		i.stop()
		after := settings(users...)
		for key, b := range before {
			if a := after[key]; a != b {
				t.Errorf("%s was %q and is %q", key, b, a)
			}
		}
		if len(after) != len(before) {
			t.Errorf("%d settings, and %d before", len(after), len(before))
		}
		own := settings(changelog)
		for key, want := range map[string]string{"cleanup.policy": "compact", "delete.retention.ms": "7200000", "retention.ms": "7200000"} {
			if got := own[changelog+" "+key]; got != want {
				t.Errorf("the changelog has %s=%s, want %s", key, got, want)
			}
		}
	})
}

// TestSituationD10: input topics are missing at the start. It hung, or died
// without a name. The error names them all, and the others are as they were: the
// same application starts when the topics are there.
func TestSituationD10(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		s.topics(2, "in", "out")
		s.write("in", "a=1")
		top := s.build(func(b *weir.Builder) {
			b.Stream(s.str("in")).Merge(b.Stream(s.str("lost"))).To(s.str("out"))
			b.Table("t", s.str("gone"))
		})
		s.deleteLater(t, s.name+"-t-changelog")
		s.start(top).refuses(weir.ErrTopics, fmt.Sprintf("these do not exist: %q, %q", s.topicOf("gone"), s.topicOf("lost")))
		if n, _, err := s.members(s.ctx, s.name); n != 0 || err != nil {
			t.Errorf("the group has %d members, %v", n, err)
		}
		if s.exists(s.topicOf("lost")) || s.exists(s.topicOf("gone")) || s.exists(s.name+"-t-changelog") {
			t.Error("a topic was made")
		}
		s.topics(2, "lost", "gone")
		s.start(top).running()
		if r := s.await("out", 1)[0]; string(r.Value) != "1" {
			t.Errorf("the output is %q, want 1", r.Value)
		}
	})
}

// TestSituationJ2: connections that were idle past the broker's limit are closed
// by it. The next call about topics failed and stopped the application. It
// connects again: at the start, in a rebalance, and when processed repartition
// records are deleted.
func TestSituationJ2(t *testing.T) {
	inBubble(t, func(t *testing.T, s *situation) {
		s.topics(4, "in", "out")
		var table weir.Table[string, int64]
		top := s.build(func(b *weir.Builder) {
			table = b.Stream(s.str("in")).GroupBy("by-key", serde.String, func(k, _ string) string { return k }).Count("counts")
			table.ToStream().To(s.counts("out"))
		})
		// The first request of each kind finds a connection that is closed.
		closed := map[kmsg.Key]*atomic.Int64{}
		for _, key := range []kmsg.Key{kmsg.Metadata, kmsg.CreateTopics, kmsg.DescribeConfigs, kmsg.OffsetFetch, kmsg.ListOffsets} {
			n := &atomic.Int64{}
			closed[key] = n
			stop, err := s.embedded.Control(key, func(*embedded.Call) (kmsg.Response, error, bool) {
				if n.Add(1) > 1 {
					return nil, nil, false
				}
				return nil, errors.New("idle for too long"), true
			})
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
		}
		short := func(c *weir.Config) { c.PurgeInterval = 200 * time.Millisecond }
		i := s.start(top, short).running()
		for key, n := range closed {
			if n.Load() < 2 {
				t.Errorf("%d requests %v: the test does not show what it should", n.Load(), key)
			}
		}
		s.writeMany("in", 0, 40, 10)
		s.exactlyOnce(40)
		cut := func() {
			t.Helper()
			if err := errors.Join(s.embedded.NetworkDown(true), s.embedded.NetworkDown(false)); err != nil {
				t.Fatal(err)
			}
		}
		repartition := s.name + "-by-key-repartition"
		purged := func() {
			t.Helper()
			waitUntil(t, s.ctx, "all processed repartition records are deleted", func() (bool, error) {
				start, err := s.adm.ListStartOffsets(s.ctx, repartition)
				if err == nil {
					err = start.Error()
				}
				records, err2 := s.read(s.ctx, repartition)
				n := len(slices.Concat(records...))
				return err == nil && err2 == nil && n == 0, fmt.Errorf("%d are left, %w", n, errors.Join(err, err2))
			})
		}
		purged()
		cut()
		s.writeMany("in", 40, 40, 10)
		s.exactlyOnce(80)
		purged()
		cut()
		other := s.start(top, short).running()
		shared(s, i.app, other.app, table, 10)
		cut()
		s.writeMany("in", 80, 40, 10)
		s.exactlyOnce(120)
		if err := errors.Join(i.ended(), other.ended()); err != nil {
			t.Error(err)
		}
	})
}
