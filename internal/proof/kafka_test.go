//go:build integration

package proof

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/internal/redistest"
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

// TestKillRedisKafka has a real Redis besides.
func TestKillRedisKafka(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	testKills(t, c, *killCount, 2*time.Hour, c.redis+"?check=off")
}
