package worker

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirstreams/weir/embedded"
)

// TestGroupRefusalIsFatal: what the group says to a join that no other client
// would change ends the worker with what to do. It came out of Poll as an error
// like any other, and clients were built for minutes.
func TestGroupRefusalIsFatal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		refusal *kerr.Error
		hint    string
	}{
		{kerr.GroupAuthorizationFailed, "grant the application read on the group"},
		{kerr.InconsistentGroupProtocol, "choose another application id"},
		{kerr.InvalidSessionTimeout, "choose a session timeout between"},
	} {
		t.Run(c.refusal.Message, func(t *testing.T) {
			t.Parallel()
			g := newGroupOf(t, 1)
			if _, err := g.broker.Fault(embedded.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Code: c.refusal.Code, Count: -1}); err != nil {
				t.Fatal(err)
			}
			m := g.join(1, newHolder())
			g.until("the group refuses the member", func() bool {
				_, err := m.Poll(g.ctx, 10, 10*time.Millisecond)
				m.AllowRebalance()
				if err == nil {
					return false
				}
				var f *FatalError
				if !errors.As(err, &f) || !errors.Is(err, c.refusal) || !strings.Contains(err.Error(), c.hint) {
					t.Fatalf("error %v, want a fatal one that says %q", err, c.hint)
				}
				return true
			})
		})
	}
}
