package fence

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/metric"
)

// In a cluster each slot has its breakers, whose number does not grow with the
// keys that somebody looks at.
func TestBreakersAreBounded(t *testing.T) {
	t.Parallel()
	const slots, keys = 4, 60
	m := miniredis.RunT(t)
	var memory metric.Memory
	f, err := Open(t.Context(), Options{URL: "redis+cluster://" + m.Addr() + "?check=off&timeout=30s", Topic: "t", Partitions: slots, Metrics: &memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	if !f.s.IsCluster() {
		t.Fatal("it is no cluster")
	}
	m.SetError("MISCONF the disk is full")
	defer m.SetError("")
	for i := range keys {
		key := fmt.Appendf(nil, "key-%d", i)
		for range redisconn.BreakerFailures {
			if _, err := f.Inspect(t.Context(), key); !errors.Is(err, ErrUnavailable) {
				t.Fatalf("%v, want ErrUnavailable", err)
			}
		}
	}
	if n := memory.Sum(metric.FenceBreakerOpen); n < 1 || n > slots {
		t.Errorf("%v breakers are open for %d keys in %d slots", n, keys, slots)
	}
	_, err = f.Inspect(t.Context(), []byte("another key"))
	if err == nil || !strings.Contains(err.Error(), "not tried again") {
		t.Errorf("%v: the breaker of its slot is not open", err)
	}
}
