package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/topology"
)

const balancerTestLimit = 30 * time.Second

// balancerTable is a topology with a stateful subtopology that joins two
// topics and a stateless one that reads a third.
func balancerTable() []assign.Task {
	var tasks []assign.Task
	for p := range int32(6) {
		tasks = append(tasks, assign.Task{
			ID: topology.TaskID{Partition: p}, Stateful: true,
			Partitions: []assign.TopicPartition{{Topic: "left", Partition: p}, {Topic: "right", Partition: p}},
		})
	}
	for p := range int32(3) {
		tasks = append(tasks, assign.Task{
			ID:         topology.TaskID{Subtopology: 1, Partition: p},
			Partitions: []assign.TopicPartition{{Topic: "single", Partition: p}},
		})
	}
	return tasks
}

// balancerTableFor is what a worker gives to newBalancer: the table, unless a
// topic has another partition count than the table was made for.
func balancerTableFor(counts map[string]int32) ([]assign.Task, error) {
	for topic, want := range map[string]int32{"left": 6, "right": 6, "single": 3} {
		if n, known := counts[topic]; known && n != want {
			return nil, fmt.Errorf("topic %s has %d partitions and had %d", topic, n, want)
		}
	}
	return balancerTable(), nil
}

// balancerGroup is a consumer group on a broker of its own. It sees every
// callback of every member and reports partitions that two members have.
type balancerGroup struct {
	t      *testing.T
	broker *embedded.Broker
	next   byte

	mu struct {
		sync.Mutex
		owner   map[assign.TopicPartition]*balancerMember
		changed chan struct{} // closed at the next callback
	}
}

type balancerMember struct {
	name     string
	group    *balancerGroup
	client   *kgo.Client
	balancer *balancer
}

func newBalancerGroup(t *testing.T) *balancerGroup {
	t.Helper()
	b, err := embedded.Open(embedded.Options{Topics: []embedded.Topic{
		{Name: "left", Partitions: 6}, {Name: "right", Partitions: 6}, {Name: "single", Partitions: 3},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	g := &balancerGroup{t: t, broker: b}
	g.mu.owner = map[assign.TopicPartition]*balancerMember{}
	g.mu.changed = make(chan struct{})
	return g
}

// join starts a member in a process of its own.
func (g *balancerGroup) join(fingerprint assign.Topology) *balancerMember {
	g.t.Helper()
	g.next++
	m := &balancerMember{name: fmt.Sprintf("member %d", g.next), group: g}
	data := assign.UserData{
		ProcessID: assign.ProcessID{g.next}, Topology: fingerprint, Capacity: 1,
		Address: fmt.Sprintf("host%d:80", g.next),
	}
	m.balancer = newBalancer(func() assign.UserData { return data }, balancerTableFor)
	client, err := kgo.NewClient(append(g.broker.ClientOptions(),
		kgo.ConsumerGroup("app"),
		kgo.ConsumeTopics("left", "right", "single"),
		kgo.Balancers(m.balancer),
		kgo.DisableAutoCommit(),
		kgo.MetadataMinAge(20*time.Millisecond),
		kgo.HeartbeatInterval(50*time.Millisecond),
		kgo.FetchMaxWait(50*time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, added map[string][]int32) { m.assigned(added) }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) { m.gone(gone) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) { m.gone(gone) }),
	)...)
	if err != nil {
		g.t.Fatal(err)
	}
	m.client = client
	g.t.Cleanup(client.Close)
	return m
}

func (m *balancerMember) assigned(added map[string][]int32) {
	g := m.group
	g.mu.Lock()
	defer g.mu.Unlock()
	for topic, partitions := range added {
		for _, p := range partitions {
			tp := assign.TopicPartition{Topic: topic, Partition: p}
			if other := g.mu.owner[tp]; other != nil {
				g.t.Errorf("%s was assigned partition %d of %s while %s has it", m.name, p, topic, other.name)
			}
			g.mu.owner[tp] = m
		}
	}
	g.signal()
}

func (m *balancerMember) gone(gone map[string][]int32) {
	g := m.group
	g.mu.Lock()
	defer g.mu.Unlock()
	for topic, partitions := range gone {
		for _, p := range partitions {
			tp := assign.TopicPartition{Topic: topic, Partition: p}
			if owner := g.mu.owner[tp]; owner != m {
				g.t.Errorf("%s lost partition %d of %s, which it did not have", m.name, p, topic)
			}
			delete(g.mu.owner, tp)
		}
	}
	g.signal()
}

func (g *balancerGroup) signal() {
	close(g.mu.changed)
	g.mu.changed = make(chan struct{})
}

// until waits for a condition that callbacks can make true.
func (g *balancerGroup) until(what string, condition func(owner map[assign.TopicPartition]*balancerMember) bool) {
	g.t.Helper()
	limit := time.NewTimer(balancerTestLimit)
	defer limit.Stop()
	for {
		g.mu.Lock()
		done, changed := condition(g.mu.owner), g.mu.changed
		g.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			g.t.Fatalf("waited in vain for: %s", what)
		}
	}
}

// settled waits until these members share all tasks evenly, and checks that
// partitions go by tasks and that everybody was told who has what.
func (g *balancerGroup) settled(members ...*balancerMember) {
	g.t.Helper()
	table := balancerTable()
	tasksOf := func(owner map[assign.TopicPartition]*balancerMember) map[*balancerMember][]topology.TaskID {
		has := map[*balancerMember][]topology.TaskID{}
		for _, task := range table {
			first := owner[task.Partitions[0]]
			for _, p := range task.Partitions {
				if owner[p] != first {
					return nil
				}
			}
			has[first] = append(has[first], task.ID)
		}
		return has
	}
	var has map[*balancerMember][]topology.TaskID
	g.until(fmt.Sprintf("%d members share the tasks", len(members)), func(owner map[assign.TopicPartition]*balancerMember) bool {
		has = tasksOf(owner)
		for _, m := range members {
			n, a := len(has[m]), m.balancer.lastAssignment()
			if n < len(table)/len(members) || n > (len(table)+len(members)-1)/len(members) || a.FollowUp || !slices.Equal(a.Active, has[m]) {
				return false
			}
		}
		return len(has) == len(members)
	})

	var hosts []assign.Host
	for _, m := range members {
		hosts = append(hosts, assign.Host{Address: fmt.Sprintf("host%d:80", m.balancer.userData().ProcessID[0]), Active: has[m]})
	}
	slices.SortFunc(hosts, func(a, b assign.Host) int { return strings.Compare(a.Address, b.Address) })
	ctx, cancel := context.WithTimeout(context.Background(), balancerTestLimit)
	defer cancel()
	group, err := g.broker.WaitGroup(ctx, "app", len(members))
	if err != nil {
		g.t.Fatal(err)
	}
	for _, m := range members {
		a := m.balancer.lastAssignment()
		if a.Error != nil || !reflect.DeepEqual(a.Hosts, hosts) {
			g.t.Errorf("%s was told %+v\nwant hosts %v", m.name, a, hosts)
		}
		if a.Generation != group.Generation {
			g.t.Errorf("%s has the plan of generation %d, the group is in %d", m.name, a.Generation, group.Generation)
		}
	}
}

// TestBalancerSharesTasks lets members come and go.
func TestBalancerSharesTasks(t *testing.T) {
	t.Parallel()
	g := newBalancerGroup(t)
	a := g.join(assign.Topology{1})
	g.settled(a)
	b := g.join(assign.Topology{1})
	g.settled(a, b)
	c := g.join(assign.Topology{1})
	g.settled(a, b, c)
	had := c.balancer.lastAssignment().Active

	a.client.Close() // the leader
	g.settled(b, c)
	for _, id := range had {
		if !slices.Contains(c.balancer.lastAssignment().Active, id) {
			t.Errorf("task %s moved from one who stayed", id)
		}
	}
	d, e := g.join(assign.Topology{1}), g.join(assign.Topology{1}) // in mid-rebalance of each other
	g.settled(b, c, d, e)
	b.client.Close()
	c.client.Close()
	g.settled(d, e)
}

// TestBalancerRefusesAnotherTopology: the newcomer is told, and the others do
// not notice; also when it becomes the leader.
func TestBalancerRefusesAnotherTopology(t *testing.T) {
	t.Parallel()
	g := newBalancerGroup(t)
	a := g.join(assign.Topology{1})
	g.settled(a)
	wrong := g.join(assign.Topology{2})
	refused := func(owner map[assign.TopicPartition]*balancerMember) bool {
		e := wrong.balancer.lastAssignment().Error
		return e != nil && e.Code == assign.CodeTopology
	}
	g.until("the newcomer is told why it gets nothing", refused)
	text := wrong.balancer.lastAssignment().Error.Text
	for _, part := range []string{assign.Topology{1}.String(), assign.Topology{2}.String(), "host2:80", "application id"} {
		if !strings.Contains(text, part) {
			t.Errorf("the error does not say %q: %s", part, text)
		}
	}
	b := g.join(assign.Topology{1})
	g.until("the others share the tasks", func(owner map[assign.TopicPartition]*balancerMember) bool {
		has := map[*balancerMember]int{}
		for _, m := range owner {
			has[m]++
		}
		return len(owner) == 15 && has[wrong] == 0 && has[a] > 0 && has[b] > 0
	})
	if e := a.balancer.lastAssignment().Error; e != nil {
		t.Errorf("a member that runs the group's topology got %v", e)
	}

	// Whoever leads now, the one who is left goes on.
	a.client.Close()
	g.until("the one who is left has something", func(owner map[assign.TopicPartition]*balancerMember) bool {
		for _, m := range owner {
			if m != b {
				return false
			}
		}
		return len(owner) > 0 && refused(owner)
	})
	wrong.client.Close()
	g.settled(b)
}

// TestBalancerNoticesNewPartitions: all members are told which topic has
// changed, and have no tasks.
func TestBalancerNoticesNewPartitions(t *testing.T) {
	t.Parallel()
	g := newBalancerGroup(t)
	a := g.join(assign.Topology{1})
	g.settled(a)
	b := g.join(assign.Topology{1})
	g.settled(a, b)
	ctx, cancel := context.WithTimeout(context.Background(), balancerTestLimit)
	defer cancel()
	if err := g.broker.AddPartitions(ctx, "right", 7); err != nil {
		t.Fatal(err)
	}
	a.client.ForceMetadataRefresh()
	g.until("both are told", func(owner map[assign.TopicPartition]*balancerMember) bool {
		for _, m := range []*balancerMember{a, b} {
			e := m.balancer.lastAssignment().Error
			if e == nil || e.Code != assign.CodePartitions || e.Text != "topic right has 7 partitions and had 6" {
				return false
			}
		}
		return len(owner) == 0
	})
}

// TestBalancerClaims: what a member claims is what its client has, whatever
// the worker says.
func TestBalancerClaims(t *testing.T) {
	t.Parallel()
	data := assign.UserData{ProcessID: assign.ProcessID{1}, Owned: []topology.TaskID{{Subtopology: 9}}, Local: []assign.LocalTask{{Position: 4}}}
	b := newBalancer(func() assign.UserData { return data }, balancerTableFor)
	read := func(current map[string][]int32) (kmsg.ConsumerMemberMetadata, assign.UserData) {
		meta := kmsg.NewConsumerMemberMetadata()
		raw := b.JoinGroupMetadata([]string{"left", "right", "single"}, maps.Clone(current), 7)
		if again := b.JoinGroupMetadata([]string{"left", "right", "single"}, maps.Clone(current), 7); !slices.Equal(raw, again) {
			t.Errorf("the same member sends %x and %x", raw, again)
		}
		if err := meta.ReadFrom(raw); err != nil {
			t.Fatal(err)
		}
		u, err := assign.DecodeUserData(meta.UserData)
		if err != nil {
			t.Fatal(err)
		}
		return meta, u
	}

	meta, u := read(map[string][]int32{"single": {2}, "right": {0, 5}, "left": {0, 5}, "other": {1}})
	if want := []topology.TaskID{{Partition: 0}, {Partition: 5}, {Subtopology: 1, Partition: 2}}; !slices.Equal(u.Owned, want) {
		t.Errorf("owned: got %v, want %v", u.Owned, want)
	}
	if !slices.Equal(u.Local, data.Local) || u.Version != assign.Version {
		t.Errorf("got %+v", u)
	}
	var topics []string
	for _, o := range meta.OwnedPartitions {
		topics = append(topics, o.Topic)
	}
	if meta.Version != 3 || meta.Generation != 7 || !slices.Equal(topics, []string{"left", "other", "right", "single"}) {
		t.Errorf("got version %d, generation %d, owned %v", meta.Version, meta.Generation, topics)
	}

	// A zombie that was thrown out has nothing, whatever it did last.
	if meta, u = read(nil); len(u.Owned)+len(meta.OwnedPartitions) > 0 {
		t.Errorf("a member without partitions claims %v and %v", u.Owned, meta.OwnedPartitions)
	}
}

// balancerSync is a sync response as a leader would cause it.
func balancerSync(userData []byte, topics map[string][]int32) []byte {
	meta := kmsg.NewConsumerMemberAssignment()
	for _, topic := range slices.Sorted(maps.Keys(topics)) {
		t := kmsg.NewConsumerMemberAssignmentTopic()
		t.Topic, t.Partitions = topic, topics[topic]
		meta.Topics = append(meta.Topics, t)
	}
	meta.UserData = userData
	return meta.AppendTo(nil)
}

func TestBalancerReadsTheLeader(t *testing.T) {
	t.Parallel()
	fine := assign.Assignment{Generation: 4, Active: []topology.TaskID{{Partition: 1}}, Hosts: []assign.Host{{Address: "h:1", Active: []topology.TaskID{{Partition: 1}}}}}
	refused := assign.Assignment{Generation: 4, Error: &assign.Error{Code: assign.CodeTopology, Text: "no"}}
	newer := func(a assign.Assignment) []byte {
		b := append(a.Encode(), 0xff)
		b[0]++
		return b
	}
	partitions := map[string][]int32{"right": {1}, "left": {1}}
	for _, c := range []struct {
		name     string
		userData []byte
		code     assign.ErrorCode
		active   int
	}{
		{"an assignment", fine.Encode(), 0, 1},
		{"a refusal", refused.Encode(), assign.CodeTopology, 0},
		{"a refusal by a newer release", newer(refused), assign.CodeTopology, 0},
		{"a newer release that leaves us what we have", newer(fine), 0, 1},
		{"a damaged one", fine.Encode()[:5], assign.CodeUnreadable, 0},
		{"one of another program", nil, assign.CodeUnreadable, 0},
	} {
		b := newBalancer(nil, nil)
		got, err := b.ParseSyncAssignment(balancerSync(c.userData, partitions))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		last := b.lastAssignment()
		var code assign.ErrorCode
		if last.Error != nil {
			code = last.Error.Code
		}
		want := map[string][]int32{}
		if c.code == 0 {
			want = partitions
		}
		if code != c.code || len(last.Active) != c.active || !reflect.DeepEqual(got, want) || len(last.Partitions) != len(want) {
			t.Errorf("%s: got partitions %v and %+v", c.name, got, last)
		}
	}

	b := newBalancer(nil, nil)
	b.remember(fine)
	if _, err := b.ParseSyncAssignment([]byte{0}); err == nil {
		t.Error("half a message was read")
	}
	if got := b.lastAssignment(); got.Generation != fine.Generation {
		t.Errorf("a message that could not be read replaced the last assignment by %+v", got)
	}
}

// balancerLead balances one new member as its leader.
func balancerLead(t *testing.T, tasks func(map[string]int32) ([]assign.Task, error), counts map[string]int32) assign.Assignment {
	t.Helper()
	data := assign.UserData{ProcessID: assign.ProcessID{1}, Topology: assign.Topology{1}}
	b := newBalancer(func() assign.UserData { return data }, tasks)
	leader, topics, err := b.MemberBalancer([]kmsg.JoinGroupResponseMember{{
		MemberID: "m", ProtocolMetadata: b.JoinGroupMetadata([]string{"left", "right", "single"}, nil, -1),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(topics) != 3 {
		t.Errorf("the leader asks for the counts of %v", topics)
	}
	into, err := leader.(kgo.GroupMemberBalancerOrError).BalanceOrError(counts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.ParseSyncAssignment(into.IntoSyncAssignment()[0].MemberAssignment); err != nil {
		t.Fatal(err)
	}
	return b.lastAssignment()
}

func TestBalancerTaskTable(t *testing.T) {
	t.Parallel()
	if a := balancerLead(t, balancerTableFor, map[string]int32{"left": 6, "right": 0}); a.Error != nil || len(a.Active) != 9 {
		t.Errorf("topics that the metadata does not show yet: got %+v", a)
	}
	if a := balancerLead(t, balancerTableFor, map[string]int32{"left": 5}); a.Error == nil || a.Error.Code != assign.CodePartitions || len(a.Active) > 0 {
		t.Errorf("a topic with fewer partitions: got %+v", a)
	}
	own := &assign.Error{Code: assign.CodeUnreadable, Text: "said by the table"}
	a := balancerLead(t, func(counts map[string]int32) ([]assign.Task, error) {
		if counts == nil {
			return balancerTable(), nil
		}
		return nil, fmt.Errorf("wrapped: %w", own)
	}, nil)
	if a.Error == nil || *a.Error != *own {
		t.Errorf("an error with a code of its own: got %+v", a.Error)
	}
	a = balancerLead(t, func(map[string]int32) ([]assign.Task, error) {
		twice := balancerTable()
		twice[7].Partitions = twice[1].Partitions
		return twice, nil
	}, nil)
	if a.Error == nil || !strings.Contains(a.Error.Text, "tasks 0_1 and 1_1 share partition 1 of topic left") {
		t.Errorf("two tasks with one partition: got %+v", a.Error)
	}
	b := newBalancer(func() assign.UserData { return assign.UserData{} }, func(map[string]int32) ([]assign.Task, error) { return nil, errors.New("no table") })
	if got := b.ownedTasks(map[string][]int32{"left": {0}}); got != nil {
		t.Errorf("owned without a table: got %v", got)
	}
	if _, _, err := b.MemberBalancer([]kmsg.JoinGroupResponseMember{{MemberID: "m", ProtocolMetadata: []byte{9}}}); err == nil {
		t.Error("a subscription that cannot be read was read")
	}
}
