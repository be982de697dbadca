package fence

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// The driver closes the connections to a node that it no longer needs after
	// 5 s, and looks for new nodes after 1 s, also when the client is closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"))
}
