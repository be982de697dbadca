package proof

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/serde"
)

// inBubble runs a test that does to the embedded broker what no other allows, in
// a bubble of its own time: what does not answer costs nothing to wait for.
//
// While a group rebalances there must be nothing to commit: the client keeps a
// lock for as long as its join lasts, a commit waits for it, and the time of a
// bubble stands still while somebody waits for a lock.
func inBubble(t *testing.T, test func(t *testing.T, s *situation)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, newSituation(t, embeddedCluster(t, 1, false))) })
}

// control lets f decide about requests until the test ends, or the returned
// function is called.
func (s *situation) control(key kmsg.Key, f func(*embedded.Call) (kmsg.Response, error, bool)) (stop func()) {
	s.t.Helper()
	stop, err := s.embedded.Control(key, f)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(stop)
	return stop
}

// fault puts a fault in place until the test ends.
func (s *situation) fault(f embedded.Fault) *embedded.Injection {
	s.t.Helper()
	in, err := s.embedded.Fault(f)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(in.Remove)
	return in
}

// TestSituationC7: the broker has forgotten the transactional id after idle time
// (InvalidPidMapping), and says so to whatever request comes first. The
// application died. It makes a new producer and goes on.
func TestSituationC7(t *testing.T) {
	inBubble(t, func(t *testing.T, s *situation) {
		s.topics(2, "in", "out")
		top, table := s.counter()
		i := s.start(top).running()
		s.writeMany("in", 0, 20, 4)
		s.exactlyOnce(20)
		sent := 20
		for _, f := range []embedded.Fault{
			{Keys: []kmsg.Key{kmsg.Produce}, Topic: s.topicOf("out")},
			{Keys: []kmsg.Key{kmsg.Produce}, Topic: s.name + "-counts-changelog"},
			{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Group: s.name},
			{Keys: []kmsg.Key{kmsg.EndTxn}},
		} {
			f.Code = kerr.InvalidProducerIDMapping.Code
			in := s.fault(f)
			s.writeMany("in", sent, 20, 4)
			sent += 20
			s.exactlyOnce(sent)
			if in.Hits() == 0 {
				t.Errorf("%v was not asked: the test does not show what it should", f.Keys)
			}
		}
		wants(i, table, map[string]int64{"k0": 25, "k1": 25, "k2": 25, "k3": 25})
		if err := i.ended(); err != nil {
			t.Error(err)
		}
	})
}

// TestSituationC9: the producer's registration of its transactional id fails for
// a while at the start. The application crashed. It tries again.
func TestSituationC9(t *testing.T) {
	for _, e := range []*kerr.Error{kerr.RequestTimedOut, kerr.CoordinatorNotAvailable, kerr.ConcurrentTransactions, kerr.NotCoordinator} {
		t.Run(e.Message, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *situation) {
				s.topics(2, "in", "out")
				top, table := s.counter()
				in := s.fault(embedded.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Code: e.Code, Count: 5})
				i := s.start(top)
				s.writeMany("in", 0, 20, 4)
				s.exactlyOnce(20)
				wants(i, table, map[string]int64{"k0": 5, "k1": 5, "k2": 5, "k3": 5})
				if n := in.Hits(); n != 5 {
					t.Errorf("%d registrations failed, want 5", n)
				}
			})
		})
	}
}

// fan is a topology that writes each record n times, in order and with a filling
// behind it. See is told of each input.
func (s *situation) fan(n int, see func(value string), filling string) *weir.Topology {
	return s.build(func(b *weir.Builder) {
		b.Stream(s.str("in")).FlatMap(func(k, v string, emit func(string, string)) {
			see(v)
			for i := range n {
				emit(k, fmt.Sprintf("%s/%d/%s", v, i, filling))
			}
		}).Serdes(serde.String, serde.String).To(s.str("out"))
	})
}

// TestSituationC15: many outputs are on their way when the application stops. Two
// thirds of them were stored, and no error said so. The stop waits for all that
// belongs to a committed input, and what is not processed is not committed.
func TestSituationC15(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		s.topics(1, "in", "out")
		const inputs, each = 800, 50
		reached, gate := make(chan struct{}), make(chan struct{})
		var once sync.Once
		top := s.fan(each, func(v string) {
			if v == "100" {
				once.Do(func() { close(reached); <-gate })
			}
		}, "")
		s.writeMany("in", 0, inputs, inputs)
		i := s.start(top, func(c *weir.Config) { c.CommitInterval = time.Second })
		select {
		case <-reached:
		case <-s.ctx.Done():
			t.Fatal("it does not get there")
		}
		stopped := make(chan error, 1)
		go func() { stopped <- i.app.Close() }()
		if err := i.app.WaitFor(s.ctx, weir.Closing); err != nil {
			t.Error(err)
		}
		close(gate)
		if err := errors.Join(<-stopped, i.fails()); err != nil {
			t.Errorf("the stop is not clean: %v", err)
		}
		committed, err := s.adm.FetchOffsets(s.ctx, s.name)
		if err != nil {
			t.Fatal(err)
		}
		at, _ := committed.Lookup(s.topicOf("in"), 0)
		if at.At <= 100 || at.At >= inputs {
			t.Errorf("%d of %d inputs are processed: the test does not show what it should", at.At, inputs)
		}
		if n := len(s.all(s.topicOf("out"))); n != int(at.At)*each {
			t.Errorf("%d outputs of %d inputs, want %d", n, at.At, at.At*each)
		}
		s.start(top).running()
		for n, r := range s.await("out", inputs*each) {
			if want := fmt.Sprintf("%d/%d/", n/each, n%each); string(r.Value) != want {
				t.Fatalf("output %d is %q, want %q", n, r.Value, want)
			}
		}
	})
}

// TestSituationC15Fails: the last commit of a stop is refused. The application
// ends with the reason.
func TestSituationC15Fails(t *testing.T) {
	inBubble(t, func(t *testing.T, s *situation) {
		s.topics(1, "in", "out")
		top := s.fan(1000, func(string) {}, "")
		s.fault(embedded.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Group: s.name, Code: kerr.GroupAuthorizationFailed.Code, Count: -1,
			When: func(r kmsg.Request) bool { // not the first commit, of the start
				return r.(*kmsg.TxnOffsetCommitRequest).Topics[0].Partitions[0].Offset > 0
			}})
		i := s.start(top, func(c *weir.Config) { c.CommitInterval = c.TransactionTimeout - 1 }).running()
		s.writeMany("in", 0, 10, 10)
		waitUntil(t, s.ctx, "outputs are on their way", func() (bool, error) {
			end, err := s.adm.ListEndOffsets(s.ctx, s.topicOf("out"))
			o, _ := end.Lookup(s.topicOf("out"), 0)
			return o.Offset > 0, err
		})
		if err := i.app.Close(); err != nil {
			t.Error(err)
		}
		i.refuses(nil, "GROUP_AUTHORIZATION_FAILED", "grant the application read on the group")
		if n := len(s.all(s.topicOf("out"))); n != 0 {
			t.Errorf("%d outputs are seen of a batch that was not committed", n)
		}
	})
}

// TestSituationC16: one part of a batch of 100 outputs is refused once, since the
// leader of the partition has moved, while the next parts are on their way. The
// replay brought them out of their order, and some twice. They are there once and
// in order.
func TestSituationC16(t *testing.T) {
	for _, g := range []weir.Guarantee{weir.ExactlyOnce, weir.AtLeastOnce} {
		t.Run(map[weir.Guarantee]string{weir.ExactlyOnce: "exactly once", weir.AtLeastOnce: "at least once"}[g], func(t *testing.T) {
			onEmbedded(t, 2, func(t *testing.T, s *situation) {
				s.topics(1, "in", "out")
				const each = 100
				large := strings.Repeat("v", 40_000) // a request has some 25 of them
				top := s.fan(each, func(string) {}, large)
				s.start(top, func(c *weir.Config) { c.Guarantee = g }).running()
				s.write("in", "k=0")
				s.await("out", each)
				var produces, moved atomic.Int64
				s.control(kmsg.Produce, func(c *embedded.Call) (kmsg.Response, error, bool) {
					for _, topic := range c.Request.(*kmsg.ProduceRequest).Topics {
						if topic.Topic != s.topicOf("out") || produces.Add(1) != 2 {
							continue
						}
						moved.Add(1)
						if err := s.embedded.MoveLeader(s.topicOf("out"), 0, 1-c.Node); err != nil {
							t.Error(err)
						}
					}
					return nil, nil, false
				})
				s.write("in", "k=1")
				for n, r := range s.await("out", 2*each) {
					if want := fmt.Sprintf("%d/%d/", n/each, n%each); !strings.HasPrefix(string(r.Value), want) {
						t.Fatalf("output %d is %.10q, want %q", n, r.Value, want)
					}
				}
				if moved.Load() != 1 || produces.Load() < 5 {
					t.Errorf("%d requests and %d moves: the test does not show what it should", produces.Load(), moved.Load())
				}
			})
		})
	}
}

// TestSituationC17: something beside the main loop went on after the application
// had stopped, and outputs were there twice after the restart. When Close has
// returned, nothing more is sent.
func TestSituationC17(t *testing.T) {
	inBubble(t, func(t *testing.T, s *situation) {
		s.topics(2, "in", "out")
		top, table := s.counter()
		var produced atomic.Int64
		s.control(kmsg.Produce, func(c *embedded.Call) (kmsg.Response, error, bool) {
			for _, topic := range c.Request.(*kmsg.ProduceRequest).Topics {
				if topic.Topic != s.topicOf("in") {
					produced.Add(1)
				}
			}
			return nil, nil, false
		})
		const rounds, each = 5, 400
		for n := range rounds {
			i := s.start(top).running()
			s.writeMany("in", n*each, each, 8)
			seen := produced.Load()
			waitUntil(t, s.ctx, "it is at work", func() (bool, error) { return produced.Load() > seen, nil })
			i.stop()
			end := produced.Load()
			s.all(s.topicOf("out")) // some time, in which nothing may come
			if n := produced.Load() - end; n != 0 {
				t.Errorf("%d produce requests came after the stop", n)
			}
		}
		i := s.start(top).running()
		s.exactlyOnce(rounds * each)
		want := map[string]int64{}
		for k := range 8 {
			want[fmt.Sprint("k", k)] = rounds * each / 8
		}
		wants(i, table, want)
	})
}

// TestSituationC20: 500 records are processed, and the commit fails with
// UNKNOWN_MEMBER_ID. The records of the next batch were skipped. None is.
func TestSituationC20(t *testing.T) {
	for _, g := range []struct {
		name string
		is   weir.Guarantee
		key  kmsg.Key
		most int // outputs of one record
	}{{"exactly once", weir.ExactlyOnce, kmsg.TxnOffsetCommit, 1}, {"at least once", weir.AtLeastOnce, kmsg.OffsetCommit, 2}} {
		t.Run(g.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *situation) {
				s.topics(1, "in", "out")
				top := s.build(func(b *weir.Builder) { b.Stream(s.str("in")).To(s.str("out")) })
				s.start(top, func(c *weir.Config) { c.Guarantee = g.is }).running()
				committed := func(n int64) {
					t.Helper()
					waitUntil(t, s.ctx, fmt.Sprint("the committed position is ", n), func() (bool, error) {
						found, err := s.adm.FetchOffsets(s.ctx, s.name)
						at, _ := found.Lookup(s.topicOf("in"), 0)
						return at.At == n, fmt.Errorf("it is %d, %w", at.At, err)
					})
				}
				s.writeMany("in", 0, 100, 1)
				committed(100)
				in := s.fault(embedded.Fault{Keys: []kmsg.Key{g.key}, Group: s.name, Code: kerr.UnknownMemberID.Code})
				s.writeMany("in", 100, 500, 1)
				if err := in.Wait(s.ctx, 1); err != nil {
					t.Fatal(err)
				}
				s.writeMany("in", 600, 500, 1)
				waitUntil(t, s.ctx, "all records have outputs", func() (bool, error) {
					records := s.all(s.topicOf("out"))
					times := make([]int, 1100)
					for _, r := range records {
						n, err := parseInput(string(r.Value))
						if err != nil {
							return false, err
						}
						times[n]++
					}
					if n := slices.Max(times); n > g.most {
						t.Fatalf("a record has %d outputs, want %d at most", n, g.most)
					}
					i := slices.Index(times, 0)
					return i < 0, fmt.Errorf("record %d has none", i)
				})
				committed(1100)
			})
		})
	}
}
