package embedded

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestFault(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Topics: []Topic{{Name: "in", Partitions: 2}}})
	ctx := testContext(t)
	cl := client(t, b)
	refused, err := b.Fault(Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "in", Partitions: []int32{1}, Code: kerr.TopicAuthorizationFailed.Code})
	if err != nil {
		t.Fatal(err)
	}
	produce(t, cl, record("in", 0, "", "other partition"))
	if err := cl.ProduceSync(ctx, record("in", 1, "", "refused")).FirstErr(); !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Errorf("produce: %v, want TOPIC_AUTHORIZATION_FAILED", err)
	}
	if err := refused.Wait(ctx, 1); err != nil || refused.Hits() != 1 {
		t.Errorf("%d hits, %v, want 1", refused.Hits(), err)
	}
	produce(t, cl, record("in", 1, "", "after"))

	// The answer is lost, the record is not, and the retry does not double it.
	lost, err := b.Fault(Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "in", Code: kerr.RequestTimedOut.Code})
	if err != nil {
		t.Fatal(err)
	}
	produce(t, cl, record("in", 1, "", "lost answer"))
	if lost.Hits() != 1 {
		t.Errorf("%d hits, want 1", lost.Hits())
	}
	if got, want := read(t, b, "in", 1), []string{"=after", "=lost answer"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}

	var asked atomic.Int32
	never, err := b.Fault(Fault{Keys: []kmsg.Key{kmsg.Produce}, Count: -1, When: func(kmsg.Request) bool {
		asked.Add(1)
		return false
	}})
	if err != nil {
		t.Fatal(err)
	}
	produce(t, cl, record("in", 1, "", "seen"))
	if asked.Load() == 0 || never.Hits() != 0 {
		t.Errorf("asked %d times, %d hits", asked.Load(), never.Hits())
	}
	never.Remove()
	never.Remove()
	before := asked.Load()
	produce(t, cl, record("in", 1, "", "not seen"))
	if asked.Load() != before {
		t.Error("a removed fault is still asked")
	}
	if _, err := b.Fault(Fault{Code: 9999}); err == nil || !strings.Contains(err.Error(), "9999 is no error code") {
		t.Errorf("a fault with an unknown code: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if err := never.Wait(short, 1); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "waiting for 1 requests, 0 came") {
		t.Errorf("Wait: %v", err)
	}
}

func TestControl(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Brokers: 2})
	ctx := testContext(t)
	cl := client(t, b)
	list := func() error {
		_, err := kmsg.NewPtrListGroupsRequest().RequestWith(ctx, cl)
		return err
	}
	if err := list(); err != nil {
		t.Fatal(err)
	}

	// It sees each request, in order, and can count them.
	var calls []int32
	stop, err := b.Control(kmsg.ListGroups, func(c *Call) (kmsg.Response, error, bool) {
		calls = append(calls, c.Node)
		return nil, nil, false
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := list(); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if len(calls) == 0 || len(calls)%3 != 0 {
		t.Errorf("calls are %v, want one for each request", calls)
	}
	was := len(calls)
	if err := list(); err != nil {
		t.Fatal(err)
	}
	if len(calls) != was {
		t.Error("called after stop")
	}

	// It answers.
	stop, err = b.Control(kmsg.ListGroups, func(c *Call) (kmsg.Response, error, bool) {
		resp := c.Answer().(*kmsg.ListGroupsResponse)
		resp.ErrorCode = kerr.GroupAuthorizationFailed.Code
		return resp, nil, true
	})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := kmsg.NewPtrListGroupsRequest().RequestWith(ctx, cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if !errors.Is(err, kerr.GroupAuthorizationFailed) {
		t.Errorf("answered with %v", err)
	}
	stop()

	// It cuts the connection; the client tries again.
	cut := 0
	stop, err = b.Control(AnyRequest, func(c *Call) (kmsg.Response, error, bool) {
		if cut == 0 && c.Request.Key() == int16(kmsg.ListGroups) {
			cut++
			return nil, errors.New("cut"), true
		}
		return nil, nil, false
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := list(); err != nil || cut != 1 {
		t.Errorf("cut %d times, %v", cut, err)
	}
	stop()
}

// A request is held back while others go on.
func TestControlSleep(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Topics: []Topic{{Name: "in", Partitions: 1}}})
	held, release := make(chan struct{}), make(chan struct{})
	stop, err := b.Control(kmsg.Produce, func(c *Call) (kmsg.Response, error, bool) {
		close(held)
		c.Sleep(func() { <-release })
		return nil, nil, false
	})
	if err != nil {
		t.Fatal(err)
	}
	cl := client(t, b)
	done := make(chan error, 1)
	go func() { done <- cl.ProduceSync(testContext(t), record("in", 0, "", "1")).FirstErr() }()
	<-held
	stop()
	if p, err := b.Partition("in", 0); err != nil || p.End != 0 {
		t.Errorf("a held request was carried out: %+v, %v", p, err)
	}
	if got := read(t, b, "in", 0); len(got) != 0 {
		t.Errorf("got %v", got)
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if p, err := b.Partition("in", 0); err != nil || p.End != 1 {
		t.Errorf("after its release: %+v, %v", p, err)
	}
}

func TestMoveLeader(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Brokers: 3, Topics: []Topic{{Name: "in", Partitions: 1}}})
	cl := client(t, b)
	produce(t, cl, record("in", 0, "", "1"))
	before, err := b.Partition("in", 0)
	if err != nil {
		t.Fatal(err)
	}
	to := (before.Leader + 1) % 3
	// The old leader dies, as the client sees it.
	if err := b.NodeDown(before.Leader, true); err != nil {
		t.Fatal(err)
	}
	if err := b.MoveLeader("in", 0, to); err != nil {
		t.Fatal(err)
	}
	produce(t, cl, record("in", 0, "", "2"))
	after, err := b.Partition("in", 0)
	if err != nil || after.Leader != to || after.LeaderEpoch != before.LeaderEpoch+1 || after.End != 2 {
		t.Errorf("partition is %+v, %v, before it was %+v", after, err, before)
	}
	if err := b.NodeDown(before.Leader, false); err != nil {
		t.Fatal(err)
	}
	if err := b.NodeDown(3, true); err == nil || !strings.Contains(err.Error(), "no broker has node id 3") {
		t.Errorf("NodeDown of no node: %v", err)
	}
	if err := b.MoveLeader("in", 0, 3); err == nil {
		t.Error("moved a leader to no node")
	}

	coordinator, err := b.Coordinator("g")
	if err != nil {
		t.Fatal(err)
	}
	for now := coordinator; now == coordinator; {
		if err := b.MoveCoordinators(); err != nil {
			t.Fatal(err)
		}
		if now, err = b.Coordinator("g"); err != nil {
			t.Fatal(err)
		}
	}
	txn := client(t, b, kgo.TransactionalID("t"))
	if err := transact(testContext(t), txn, kgo.TryCommit, record("in", 0, "", "3")); err != nil {
		t.Fatal(err)
	}
}
