//go:build integration

package proof

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/redistest"
	"github.com/weirstreams/weir/state"
)

func init() {
	clusters = append(clusters, brokerKind{"kafka", realCluster})
}

// realCluster is the Kafka at WEIR_KAFKA and the Redis at WEIR_REDIS.
func realCluster(t testing.TB) *cluster {
	t.Helper()
	service := func(variable, name string) string {
		addresses := os.Getenv(variable)
		if addresses == "" {
			t.Fatalf("%s is not set: give the host:port of a %s to test with, or run make test-integration", variable, name)
		}
		return addresses
	}
	brokers := strings.Split(service("WEIR_KAFKA", "Kafka"), ",")
	return newCluster(t, cluster{brokers: brokers, options: []kgo.Opt{kgo.SeedBrokers(brokers...)},
		redis: "redis://" + service("WEIR_REDIS", "Redis") + "/0"})
}

func TestKillKafka(t *testing.T) {
	t.Parallel()
	testKills(t, realCluster(t), *killCount, 2*time.Hour, "")
}

// TestKillFenceKafka kills fenced consumers, with a real Redis.
func TestKillFenceKafka(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	testFence(t, c, c.redis+"?check=off", redistest.Namespace(t, os.Getenv("WEIR_REDIS")), *killCount, 2*time.Hour)
}

func TestKillAtLeastOnceKafka(t *testing.T) {
	t.Parallel()
	testKillsAtLeastOnce(t, realCluster(t))
}

// TestKillOutboxKafka keeps outputs and state in a real Redis. The long form:
//
//	scripts/services run go test -tags integration -run TestKillOutboxKafka -v \
//		-timeout 0 ./internal/proof -kills 100
func TestKillOutboxKafka(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	testKillsOutbox(t, c, *killCount, 2*time.Hour, c.redis+"?check=off")
}

// TestKillRedisKafka has a real Redis besides.
func TestKillRedisKafka(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	testKills(t, c, *killCount, 2*time.Hour, c.redis+"?check=off")
}

// TestOutboxRefusedOutput: an output that the broker refuses for good stops the
// application, as it is kept beside a state that has its batch already. The error
// says which record it is and what to do; that done, it goes on where it was.
func TestOutboxRefusedOutput(t *testing.T) {
	t.Parallel()
	s := newSituation(t, realCluster(t))
	s.topics(1, "in")
	s.topic(t, s.topicOf("out"), 1, "cleanup.policy", "compact")
	store := func(c *weir.Config) {
		var err error
		c.Guarantee = weir.AtLeastOnce
		if c.Store, err = openRedis(s.ctx, s.redis+"?check=off&namespace="+s.name); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx := context.WithoutCancel(s.ctx)
			if err := errors.Join(c.Store.Drop(ctx, state.ID{Application: s.name, Task: "0_0"}), c.Store.Close()); err != nil {
				t.Errorf("remove the state: %v", err)
			}
		})
	}
	top := s.build(func(b *weir.Builder) { b.Stream(s.str("in")).To(s.str("out")) })
	s.write("in", "a=1", "null=2", "b=3")
	for range 2 {
		s.start(top, store).refuses(nil, s.topicOf("out")+"[0], the record with", "task 0_0, output ",
			"a compacted topic needs a key", "it is sent again at every start", "let the topic take it as it is, or reset")
	}
	policy := "delete"
	if _, err := s.adm.AlterTopicConfigs(s.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "cleanup.policy", Value: &policy}}, s.topicOf("out")); err != nil {
		t.Fatal(err)
	}
	s.start(top, store).running()
	got := map[string]bool{}
	for _, r := range s.await("out", 3) {
		got[string(r.Key)+"="+string(r.Value)] = true
	}
	if len(got) != 3 || !got["=2"] {
		t.Errorf("outputs %v", got)
	}
}
