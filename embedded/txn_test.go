package embedded

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestTransactions(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Topics: []Topic{{Name: "out", Partitions: 2}}})
	ctx := testContext(t)
	// KIP-890: partitions join a transaction with their first record.
	added, err := b.Fault(Fault{Keys: []kmsg.Key{kmsg.AddPartitionsToTxn}, Observe: true, Count: -1})
	if err != nil {
		t.Fatal(err)
	}
	cl := client(t, b, kgo.TransactionalID("t"))
	for _, step := range []struct {
		commit kgo.TransactionEndTry
		value  string
	}{{kgo.TryCommit, "1"}, {kgo.TryAbort, "2"}, {kgo.TryCommit, "3"}} {
		if err := transact(ctx, cl, step.commit, record("out", 0, "k", step.value), record("out", 1, "k", step.value)); err != nil {
			t.Fatal(err)
		}
	}
	for p := range int32(2) {
		if got, want := read(t, b, "out", p), []string{"k=1", "k=3"}; !slices.Equal(got, want) {
			t.Errorf("partition %d has %v, want %v", p, got, want)
		}
	}
	if n := added.Hits(); n != 0 {
		t.Errorf("%d requests added partitions to a transaction, want none", n)
	}
}

func TestOpenTransactionIsSeen(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Topics: []Topic{{Name: "out", Partitions: 1}}})
	ctx := testContext(t)
	cl := client(t, b, kgo.TransactionalID("t"))
	if err := transact(ctx, cl, kgo.TryCommit, record("out", 0, "k", "1")); err != nil {
		t.Fatal(err)
	}
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	produce(t, cl, record("out", 0, "k", "2"))
	if open, err := b.OpenTransactions(ctx); err != nil || !slices.Equal(open, []string{"t"}) {
		t.Errorf("open are %v, %v, want t", open, err)
	}
	// One record and one marker are stable.
	if p, err := b.Partition("out", 0); err != nil || p.LastStable != 2 || p.End != 3 {
		t.Errorf("partition is %+v, %v", p, err)
	}
	if got := read(t, b, "out", 0); !slices.Equal(got, []string{"k=1"}) {
		t.Errorf("a reader sees %v of an open transaction", got)
	}
	if err := cl.EndTransaction(ctx, kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	if open, err := b.OpenTransactions(ctx); err != nil || len(open) != 0 {
		t.Errorf("open are %v, %v, want none", open, err)
	}
}

func TestZombieIsFenced(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Topics: []Topic{{Name: "out", Partitions: 1}}})
	ctx := testContext(t)
	zombie := client(t, b, kgo.TransactionalID("t"))
	if err := zombie.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	produce(t, zombie, record("out", 0, "k", "zombie"))
	owner := client(t, b, kgo.TransactionalID("t"))
	if err := transact(ctx, owner, kgo.TryCommit, record("out", 0, "k", "owner")); err != nil {
		t.Fatal(err)
	}
	err := zombie.ProduceSync(ctx, record("out", 0, "k", "zombie again")).FirstErr()
	if err == nil {
		err = zombie.EndTransaction(ctx, kgo.TryCommit)
	}
	if !errors.Is(err, kerr.InvalidProducerEpoch) && !errors.Is(err, kerr.ProducerFenced) {
		t.Errorf("the zombie got %v, want that it is fenced", err)
	}
	if got := read(t, b, "out", 0); !slices.Equal(got, []string{"k=owner"}) {
		t.Errorf("got %v, want the owner's record alone", got)
	}
}

func TestGroups(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Topics: []Topic{{Name: "in", Partitions: 4}}})
	ctx := testContext(t)
	member := func() *kgo.Client {
		return client(t, b,
			kgo.ConsumerGroup("g"), kgo.ConsumeTopics("in"), kgo.DisableAutoCommit(),
			kgo.Balancers(kgo.CooperativeStickyBalancer()),
			kgo.SessionTimeout(300*time.Millisecond), kgo.HeartbeatInterval(20*time.Millisecond),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		)
	}
	first, second := member(), member()
	g, err := b.WaitGroup(ctx, "g", 2)
	if err != nil {
		t.Fatal(err)
	}
	// The second generation may still be moving partitions between the two.
	for assigned := 0; assigned != 4; {
		if g, err = b.WaitGroup(ctx, "g", 2); err != nil {
			t.Fatal(err)
		}
		assigned = 0
		for _, m := range g.Members {
			assigned += len(m.Assigned["in"])
		}
	}
	if m := g.Members[0]; m.ID == "" || !slices.Equal(m.Topics, []string{"in"}) || g.Generation < 1 {
		t.Errorf("group is %+v", g)
	}

	produce(t, client(t, b), record("in", 3, "", "1"))
	commit := kmsg.NewOffsetCommitRequestTopicPartition()
	commit.Partition, commit.Offset, commit.Metadata = 3, 1, kmsg.StringPtr("stamp")
	topic := kmsg.NewOffsetCommitRequestTopic()
	topic.Topic, topic.Partitions = "in", []kmsg.OffsetCommitRequestTopicPartition{commit}
	req := kmsg.NewPtrOffsetCommitRequest()
	id, generation := first.GroupMetadata()
	req.Group, req.MemberID, req.Generation, req.Topics = "g", id, generation, []kmsg.OffsetCommitRequestTopic{topic}
	req.SetVersion(8)
	resp, err := b.request(ctx, 0, req)
	if err != nil || resp.(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode != 0 {
		t.Fatalf("commit: %+v, %v", resp, err)
	}
	if g, err = b.Group("g"); err != nil || g.Commits["in"][3].Offset != 1 || g.Commits["in"][3].Metadata != "stamp" {
		t.Errorf("commits are %+v, %v", g.Commits, err)
	}

	// A member that is cut off is out after its session, far below the six
	// seconds that are Kafka's minimum.
	began := time.Now()
	second.CloseAllowingRebalance()
	if _, err = b.WaitGroup(ctx, "g", 1); err != nil {
		t.Fatal(err)
	}
	if err := b.NetworkDown(true); err != nil {
		t.Fatal(err)
	}
	if _, err = b.WaitGroup(ctx, "g", 0); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a lost member stayed for %v", took)
	}
	if err := b.NetworkDown(false); err != nil {
		t.Fatal(err)
	}
	if _, err = b.WaitGroup(ctx, "g", 1); err != nil {
		t.Fatal(err)
	}
	if none, err := b.Group("nobody"); err != nil || none.State != "" {
		t.Errorf("a group that is not there is %+v, %v", none, err)
	}
}
