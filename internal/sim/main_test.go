package sim

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// The driver of redisstore looks after nodes for a moment longer.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"))
}
