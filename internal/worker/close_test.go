package worker

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/weirstreams/weir/internal/assign"
)

// lonely is a broker with a member that never gets a partition. It knows
// whether the member holds back the callbacks of its group.
type lonely struct {
	Broker
	Member
	held    bool
	allowed func() // called by AllowRebalance
}

func (l *lonely) Join(context.Context, MemberConfig) (Member, error) { return l, nil }
func (l *lonely) TopicFacts(context.Context, []string) (map[string]TopicFacts, error) {
	return nil, nil
}
func (l *lonely) Poll(context.Context, int, time.Duration) ([]Fetched, error) {
	l.held = true
	return nil, nil
}
func (l *lonely) AllowRebalance() {
	l.held = false
	l.allowed()
}
func (l *lonely) Assignment() assign.Assignment { return assign.Assignment{} }
func (l *lonely) Close(context.Context)         {}

type machineClock struct{}

func (machineClock) Now() time.Time { return time.Now() }

// TestStopHoldsRebalance: a stop that comes between AllowRebalance and the next
// poll finds the tasks in the hands of the group's callbacks. It takes them back
// before it closes them; a revocation at that moment is not run beside it.
func TestStopHoldsRebalance(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	l := &lonely{allowed: stop}
	closings := 0
	w := New(Config{Application: "a", Broker: l, Clock: machineClock{}, Logger: slog.New(slog.DiscardHandler), MaxBufferedRecords: 1,
		MaxBufferedBytes: 1, PurgeInterval: time.Hour, Changed: func() {
			if closings++; !l.held {
				t.Error("the tasks are closed while the group may call back")
			}
		}})
	if err := w.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if closings == 0 {
		t.Error("nothing was closed: the test does not show what it should")
	}
}
