package proof

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/embedded"
)

// stopLimit is how long a stop may take when a broker does not answer.
const stopLimit = 20 * time.Second

// TestSituationB10: the broker has gone silent, outputs are never acknowledged,
// the group rebalances, and the application is told to stop. It hung for ever.
// It ends within the limit that a stop has, says that it was not clean, and has
// committed nothing.
func TestSituationB10(t *testing.T) {
	inBubble(t, func(t *testing.T, s *situation) {
		s.topics(2, "in", "out")
		top, table := s.counter()
		i := s.start(top).running()
		s.writeMany("in", 0, 20, 4)
		s.exactlyOnce(20)
		committed := func() map[int32]int64 {
			t.Helper()
			found, err := s.adm.FetchOffsets(s.ctx, s.name)
			if err != nil {
				t.Fatal(err)
			}
			at := map[int32]int64{}
			for p := range int32(2) {
				o, _ := found.Lookup(s.topicOf("in"), p)
				at[p] = o.At
			}
			return at
		}
		var swallowed atomic.Int64
		answer := s.control(kmsg.Produce, func(c *embedded.Call) (kmsg.Response, error, bool) {
			for _, topic := range c.Request.(*kmsg.ProduceRequest).Topics {
				if topic.Topic == s.topicOf("in") {
					return nil, nil, false
				}
			}
			swallowed.Add(1)
			return nil, nil, true
		})
		before := committed()
		s.writeMany("in", 20, 20, 4)
		waitUntil(t, s.ctx, "outputs wait for an answer", func() (bool, error) { return swallowed.Load() > 0, nil })
		other := s.start(top)
		waitUntil(t, s.ctx, "the group rebalances", func() (bool, error) {
			_, state, err := s.members(s.ctx, s.name)
			return state == "PreparingRebalance", fmt.Errorf("it is %s, %w", state, err)
		})
		began := time.Now()
		if err := i.app.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > stopLimit {
			t.Errorf("the stop took %v, want %v at most", took, stopLimit)
		}
		i.refuses(nil, "the stop was not clean", "will be processed again")
		if after := committed(); after[0] != before[0] || after[1] != before[1] {
			t.Errorf("committed %v, and before %v", after, before)
		}
		answer()
		other.running()
		s.exactlyOnce(40)
		wants(other, table, map[string]int64{"k0": 10, "k1": 10, "k2": 10, "k3": 10})
	})
}

// TestSituationB6: a rebalance comes while a batch is not committed, and its
// transaction ends slowly. The callback of the revocation waited for the worker,
// which waited for the transaction, which waited for the callback. The batch is
// committed at once, and the rebalance goes through within its limit; or soon
// after the end of the transaction, if that took longer than the limit.
func TestSituationB6(t *testing.T) {
	const limit = 2 * time.Second
	for _, held := range []time.Duration{limit / 4, 2 * limit} {
		t.Run(held.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *situation) {
				s.topics(4, "in", "out")
				top, table := s.counter()
				limits := func(c *weir.Config) {
					c.SessionTimeout, c.RebalanceTimeout, c.TransactionTimeout, c.CommitInterval = limit, limit, 4*limit, 3*limit
				}
				first := s.start(top, limits).running()
				committed := func(n int) {
					t.Helper()
					time.Sleep(3 * limit) // of the bubble
					s.exactlyOnce(n)
				}
				s.writeMany("in", 0, 40, 10)
				committed(40)
				var outputs, ends atomic.Int64
				s.control(kmsg.Produce, func(c *embedded.Call) (kmsg.Response, error, bool) {
					for _, topic := range c.Request.(*kmsg.ProduceRequest).Topics {
						if topic.Topic == s.topicOf("out") {
							outputs.Add(1)
						}
					}
					return nil, nil, false
				})
				release := make(chan struct{})
				s.control(kmsg.EndTxn, func(c *embedded.Call) (kmsg.Response, error, bool) {
					if ends.Add(1) == 1 {
						c.Sleep(func() { <-release })
					}
					return nil, nil, false
				})
				s.writeMany("in", 40, 40, 10)
				waitUntil(t, s.ctx, "there is a batch", func() (bool, error) { return outputs.Load() > 0, nil })
				began := time.Now()
				second := s.start(top, limits)
				waitUntil(t, s.ctx, "its transaction ends", func() (bool, error) { return ends.Load() > 0, nil })
				if took := time.Since(began); took > limit {
					t.Errorf("the batch was committed %v after the rebalance had begun, more than its limit", took)
				}
				time.Sleep(held) // of the bubble
				close(release)
				began = time.Now()
				shared(s, first.app, second.app, table, 10)
				if took := time.Since(began); took > limit {
					t.Errorf("the rebalance took %v after the transaction had ended, more than its limit", took)
				}
				s.writeMany("in", 80, 40, 10)
				committed(120)
				if rebuilt := strings.Contains(first.log.String(), "the client is rebuilt"); rebuilt && held < limit {
					t.Error("the member was thrown out although the transaction ended within the limits")
				}
			})
		})
	}
}

// TestSituationB13: an eager consumer and the application, whose members are
// cooperative, meet in one group. A member kept partitions that another one had
// got. They are never in it together: who comes second is refused, and the first
// keeps what it has.
func TestSituationB13(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		s.topics(2, "in", "out")
		top := s.build(func(b *weir.Builder) { b.Stream(s.str("in")).To(s.str("out")) })
		eager := func() (*kgo.Client, chan error) {
			failed := make(chan error, 100)
			cl, err := kgo.NewClient(append([]kgo.Opt{kgo.ConsumerGroup(s.name), kgo.ConsumeTopics(s.topicOf("in")), kgo.Balancers(kgo.RangeBalancer()),
				kgo.DisableAutoCommit(), kgo.FetchMaxWait(50 * time.Millisecond), kgo.WithHooks(groupErrors(failed))}, s.options...)...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(cl.Close)
			return cl, failed
		}
		assigned := func(members int) {
			t.Helper()
			waitUntil(t, s.ctx, "the group is stable", func() (bool, error) {
				n, state, err := s.members(s.ctx, s.name)
				return n == members && state == "Stable", fmt.Errorf("%d members, %s, %w", n, state, err)
			})
		}

		first, failed := eager()
		assigned(1)
		s.start(top).refuses(nil, "another application uses the group id")
		s.write("in", "a=1", "b=2", "c=3", "d=4")
		for n := 0; n < 4; {
			fs := first.PollFetches(s.ctx)
			if err := s.ctx.Err(); err != nil {
				t.Fatal(err)
			}
			n += fs.NumRecords()
		}
		assigned(1)
		if len(failed) > 0 {
			t.Errorf("the eager consumer was disturbed: %v", <-failed)
		}
		first.Close()
		assignedNone(s)

		i := s.start(top).running()
		s.await("out", 4)
		second, failed := eager()
		select {
		case err := <-failed:
			if !errors.Is(err, kerr.InconsistentGroupProtocol) {
				t.Errorf("the eager consumer got %v, want INCONSISTENT_GROUP_PROTOCOL", err)
			}
		case <-s.ctx.Done():
			t.Fatal("the eager consumer was not refused")
		}
		second.Close()
		assigned(1)
		s.write("in", "a=1", "b=2", "c=3", "d=4")
		s.await("out", 8)
		if err := i.ended(); err != nil {
			t.Error(err)
		}
	})
}

// assignedNone waits until the group is empty.
func assignedNone(s *situation) {
	s.t.Helper()
	waitUntil(s.t, s.ctx, "the group is empty", func() (bool, error) {
		n, state, err := s.members(s.ctx, s.name)
		return n == 0, fmt.Errorf("%d members, %s, %w", n, state, err)
	})
}

// groupErrors takes the errors of a client's group.
type groupErrors chan error

// OnGroupManageError implements kgo.HookGroupManageError.
func (e groupErrors) OnGroupManageError(err error) {
	select {
	case e <- err:
	default:
	}
}

// TestSituationB16: two instances with default settings had one transactional id
// and fenced each other in a loop. Each worker of each process has its own.
func TestSituationB16(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		s.topics(4, "in", "out")
		top, _ := s.counter()
		two := func(c *weir.Config) { c.Workers = 2 }
		a, b := s.start(top, two), s.start(top, two)
		waitUntil(t, s.ctx, "the group has four members", func() (bool, error) {
			n, state, err := s.members(s.ctx, s.name)
			return n == 4 && state == "Stable", fmt.Errorf("%d members, %s, %w", n, state, err)
		})
		a.running()
		b.running()
		for n := range 10 {
			s.writeMany("in", n*40, 40, 20)
			s.exactlyOnce(n*40 + 40)
		}
		list, err := s.adm.ListTransactions(s.ctx, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for id := range list {
			if strings.HasPrefix(id, s.name+"-") {
				ids = append(ids, id)
			}
		}
		if len(ids) != 4 {
			t.Errorf("the transactional ids are %q, want 4", ids)
		}
		for _, i := range []*instanceOf{a, b} {
			if strings.Contains(i.log.String(), "the client is rebuilt") {
				t.Error("a producer was fenced")
			}
		}
	})
}

// TestSituationC3: under load, a second instance comes and goes. There were
// crashes and duplicates. The output is the input exactly once, in order.
func TestSituationC3(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		s.topics(4, "in", "out")
		top, table := s.counter()
		first := s.start(top).running()
		const each, keys = 50, 16
		stop, sent := make(chan struct{}), make(chan int, 1)
		go func() {
			n := 0
			defer func() { sent <- n }()
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-s.ctx.Done():
					return
				case <-tick.C:
				}
				list := make([]*kgo.Record, each)
				for i := range list {
					list[i] = &kgo.Record{Topic: s.topicOf("in"), Key: fmt.Append(nil, "k", (n+i)%keys), Value: []byte("v")}
				}
				if err := s.cl.ProduceSync(s.ctx, list...).FirstErr(); err != nil {
					t.Error(err)
					return
				}
				n += each
			}
		}()
		for range 3 {
			second := s.start(top)
			shared(s, first.app, second.app, table, keys)
			second.stop()
		}
		close(stop)
		n := <-sent
		s.exactlyOnce(n)
		want := map[string]int64{}
		for i := range n {
			want[fmt.Sprint("k", i%keys)]++
		}
		wants(first, table, want)
	})
}
