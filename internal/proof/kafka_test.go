//go:build integration

package proof

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func init() {
	clusters = append(clusters, brokerKind{"kafka", realCluster})
}

// realCluster is the Kafka at WEIR_KAFKA.
func realCluster(t testing.TB) *cluster {
	t.Helper()
	addresses := os.Getenv("WEIR_KAFKA")
	if addresses == "" {
		t.Fatal("WEIR_KAFKA is not set: give the host:port of a Kafka to test with, or run make test-integration")
	}
	brokers := strings.Split(addresses, ",")
	return newCluster(t, cluster{brokers: brokers, options: []kgo.Opt{kgo.SeedBrokers(brokers...)}})
}

func TestKillKafka(t *testing.T) {
	t.Parallel()
	testKills(t, realCluster(t), *killCount, 2*time.Hour, "")
}

func TestKillAtLeastOnceKafka(t *testing.T) {
	t.Parallel()
	testKillsAtLeastOnce(t, realCluster(t))
}

// TestKillRedisKafka has a real Redis besides.
func TestKillRedisKafka(t *testing.T) {
	t.Parallel()
	address := os.Getenv("WEIR_REDIS")
	if address == "" {
		t.Fatal("WEIR_REDIS is not set: give the host:port of a Redis to test with, or run make test-integration")
	}
	testKills(t, realCluster(t), *killCount, 2*time.Hour, "redis://"+address+"/0?check=off")
}
