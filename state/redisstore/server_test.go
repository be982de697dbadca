//go:build integration

package redisstore

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/weirstreams/weir/internal/redistest"
)

func serverOptions(s *redistest.Server) Options {
	return Options{Addresses: []string{s.Addr()}, Check: CheckWarn, Timeout: time.Second}
}

// sharedRedis is the server of WEIR_REDIS, with a namespace of the test's own
// that is removed afterwards.
func sharedRedis(t testing.TB) Options {
	t.Helper()
	addr := os.Getenv("WEIR_REDIS")
	if addr == "" {
		t.Fatal("WEIR_REDIS is not set: use scripts/services run, or make test-integration")
	}
	return Options{Addresses: []string{addr}, Namespace: redistest.Namespace(t, addr), Check: CheckWarn}
}

func TestConformanceRedis(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run("lost="+strconv.FormatBool(lost), func(t *testing.T) {
			conform(t, func(t *testing.T) Options {
				opts := sharedRedis(t)
				if lost {
					opts.Buckets = 3
				}
				return opts
			}, func() bool { return lost })
		})
	}
}

func TestConformanceCluster(t *testing.T) {
	nodes := redistest.StartCluster(t, 3)
	n := 0
	conform(t, func(t *testing.T) Options {
		n++
		opts := Options{Cluster: true, Namespace: "ns" + strconv.Itoa(n), Check: CheckWarn}
		for _, node := range nodes {
			opts.Addresses = append(opts.Addresses, node.Addr())
		}
		return opts
	}, func() bool { return n%2 == 0 })
}

// mustBe checks the class of an error.
func mustBe(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: error %v, want %v", what, err, want)
	}
}
