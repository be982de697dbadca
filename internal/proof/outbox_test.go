package proof

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/internal/outbox"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state"
)

// The kill test at least once with the state in Redis: there is no changelog and
// no transaction, so the oracle is a reader with a weir.Deduper, and the views
// themselves.

// outboxBoundaries are the places of the protocol with an outbox, in its order:
// the batch is processed; about to be applied; applied, and nothing of it sent;
// sent; answered, and not known to be there; known to be there; the offsets are
// about to be committed, are sent, are answered, and are known to be committed. Then those of
// a claim: the view is taken; a part of what it owes is sent again.
var outboxBoundaries = []boundary{
	{string(worker.AfterProcess), 40},
	{string(worker.BeforeApply), 40},
	{string(worker.AfterApply), 40},
	{pointProduced, 40},
	{pointAnswered, 40},
	{string(worker.AfterFlush), 15},
	{string(worker.BeforeCommit), 15},
	{pointOffsetsSent, 15},
	{pointOffsetsAnswered, 15},
	{string(worker.AfterCommit), 15},
	{string(worker.AfterClaim), 2},
	{string(worker.DuringResend), 1},
	{string(worker.DuringRevoke), 1},
}

// outboxStops are where it is stopped. A zombie has something in its hands there
// that it will send, or commit, when others have gone on.
var outboxStops = []string{string(worker.AfterApply), "", string(worker.BeforeApply), pointAnswered, string(worker.BeforeCommit), string(worker.AfterClaim)}

// planOutboxKills is planActs for views that nothing can rebuild: they are never
// wiped, but the process may lose its identity.
func planOutboxKills(rng *rand.Rand, kills int) []act {
	acts := planActs(rng, kills, outboxBoundaries, outboxStops)
	for i := range acts {
		a := &acts[i]
		a.memory, a.long = false, false
		switch a.point {
		case string(worker.AfterClaim):
			a.nth = 1 + rng.Int64N(2) // each instance has that many tasks
		case string(worker.DuringResend):
			a.two = false // the one that lives would send it before
		}
		if a.wipe == wipeState {
			a.wipe = keepAll
		}
	}
	if kills > 0 {
		return acts
	}
	// The short form has one pause, and one death at any moment.
	moments, pauses := 0, 0
	return slices.DeleteFunc(acts, func(a act) bool {
		switch {
		case a.stop:
			pauses++
			return pauses > 1
		case a.point == "":
			moments++
			return moments > 1
		}
		return false
	})
}

// owe leaves the views with outputs that were not sent: the victim is alone, and
// killed between an APPLY and its first request.
func (k *killer) owe(ctx context.Context, victim, other *instance) error {
	if err := k.stop(ctx, other); err != nil {
		return err
	}
	if err := k.start(victim, childConfig{Point: string(worker.AfterApply), Nth: 1 + k.rng.Int64N(10)}); err != nil {
		return err
	}
	k.kills++
	return victim.proc.awaitKilled(ctx)
}

// outbox says whether the application keeps its outputs beside its state.
func (k *killer) outbox() bool { return k.redis != "" && k.atLeast }

// awaitCommitted waits until the group is behind the last record of a topic: the
// outputs of everything before are there then.
func (k *killer) awaitCommitted(ctx context.Context, topic string) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		behind := ""
		committed, err := k.c.adm.FetchOffsetsForTopics(ctx, k.names.App, topic)
		if err != nil {
			return err
		}
		end, err := k.c.adm.ListEndOffsets(ctx, topic)
		if err == nil {
			err = end.Error()
		}
		if err != nil {
			return err
		}
		for p, e := range end[topic] {
			if at, ok := committed.Lookup(topic, p); e.Offset > 0 && (!ok || at.At < e.Offset) {
				behind = fmt.Sprintf("%s[%d] is committed up to %d of %d", topic, p, at.At, e.Offset)
			}
		}
		if behind == "" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not everything is committed: %s: %w", behind, context.Cause(ctx))
		}
	}
}

// views reads the stores out of the views in Redis, in the form of the
// changelogs that there are not.
func (k *killer) views(ctx context.Context) (map[string][][]*kgo.Record, error) {
	store, err := openRedis(ctx, k.redis)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	logs := map[string][][]*kgo.Record{}
	for _, id := range k.names.views() {
		found := map[string][]*kgo.Record{}
		it := store.Committed(id).Iterate(ctx, state.Range{})
		for it.Next() {
			key, value := bytes.Clone(it.Key()), bytes.Clone(it.Value())
			for _, name := range []string{"first", "second", "ticks"} {
				own, ok := bytes.CutPrefix(key, task.StorePrefix(name))
				if !ok {
					continue
				}
				if name != "ticks" {
					value = value[8:] // behind the timestamp of a table's value
				}
				found[name] = append(found[name], &kgo.Record{Key: own, Value: value})
			}
		}
		err := it.Err()
		if e := it.Close(); err == nil {
			err = e
		}
		if err != nil {
			return nil, fmt.Errorf("read view %s: %w", id, err)
		}
		for name, records := range found {
			logs[name] = append(logs[name], records)
		}
	}
	return logs, nil
}

// dedupe leaves out of each partition what a reader with a Deduper leaves out. It
// wants exactly one id on each record, and equal contents under equal ids.
func (v *verdict) dedupe(topic string, partitions [][]*kgo.Record) [][]*kgo.Record {
	kept := make([][]*kgo.Record, len(partitions))
	var reader weir.Deduper
	seen := map[string]string{}
	for p, records := range partitions {
		for _, r := range records {
			where := fmt.Sprintf("%s[%d]@%d", topic, p, r.Offset)
			var ids [][]byte
			text := fmt.Sprintf("[%d] %q=%q at %d", p, r.Key, r.Value, r.Timestamp.UnixMilli())
			for _, h := range r.Headers {
				if h.Key == weir.HeaderID {
					ids = append(ids, h.Value)
				} else {
					text += fmt.Sprintf(" %s=%q", h.Key, h.Value)
				}
			}
			if len(ids) != 1 {
				v.note(&v.Wrong, "%s has %d ids", where, len(ids))
				continue
			}
			id := string(ids[0])
			was, again := seen[id]
			if again && was != text {
				v.note(&v.Wrong, "%s: one id has the contents %s, and %s", where, was, text)
			}
			seen[id] = text
			switch repeated := reader.Repeated(topic, int32(p), ids[0]); {
			case !repeated && again:
				v.note(&v.Wrong, "%s is a repetition, and a reader takes it for new", where)
			case !repeated:
				kept[p] = append(kept[p], r)
			case !again:
				v.note(&v.Unseen, "%s is new, and a reader takes it for a repetition", where)
			default:
				v.Repeats++
			}
		}
	}
	return kept
}

// deduped is what a reader with a Deduper sees of a run, and what it finds.
func deduped(r *chainRecords) (*chainRecords, *verdict) {
	v := &verdict{First: map[string]link{}, Second: map[string]step{}}
	once := *r
	once.middle, once.out = v.dedupe("middle", r.middle), v.dedupe("out", r.out)
	once.ticks, once.dead = v.dedupe("ticks", r.ticks), v.dedupe("dead", r.dead)
	return &once, v
}

// checkOnce is check of what a reader with a Deduper sees, who must not leave out
// anything new.
func checkOnce(r *chainRecords) *verdict {
	once, ids := deduped(r)
	v := check(once)
	v.Repeats, v.Unseen, v.Losses, v.Wrong = ids.Repeats, ids.Unseen, v.Losses+ids.Unseen, v.Wrong+ids.Wrong
	v.problems = append(ids.problems, v.problems...)
	return v
}

// checkForgotten is checkOnce where the store has forgotten what it acknowledged:
// the application goes back with it, and what had come out may come again. Of each
// input there is an output, each output follows from one before it, no tick is left
// out, and the stores are where the outputs end. Behind the repartition topic an
// input may count more than once; in front of it none does.
func checkForgotten(r *chainRecords) *verdict {
	r, v := deduped(r)
	v.problems = nil // what is left out by a reader has to come again: that is seen below
	links := v.links(r)
	v.passed(r, links)
	v.follows(r, links)
	v.deadLetters(r)
	v.Again, v.Duplicates = v.Again+v.Duplicates, 0
	last := map[int32]int64{}
	for p, records := range r.ticks {
		for _, rec := range records {
			v.Ticks++
			task, n := int32(binary.BigEndian.Uint32(rec.Key)), int64(binary.BigEndian.Uint64(rec.Value))
			if n > last[task]+1 {
				v.note(&v.Losses, "ticks[%d]@%d: tick %d of task %d comes after tick %d", p, rec.Offset, n, task, last[task])
			}
			last[task] = n
		}
	}
	v.tickStore(r, last)
	compare(v, "first", r.changelogs["first"], v.First)
	compare(v, "second", r.changelogs["second"], v.Second)
	return v
}

// passed wants each link in the repartition topic, as it has to be. Those of a key
// may begin again at an earlier one, and then go on without a gap.
func (v *verdict) passed(r *chainRecords, links map[int64]link) {
	seen, last := map[int64]bool{}, map[string]int64{}
	for p, records := range r.middle {
		for _, rec := range records {
			var l link
			if err := json.Unmarshal(rec.Value, &l); err != nil || l != links[l.Seq] || string(rec.Key) != groupOf(l.Key) {
				v.note(&v.Wrong, "middle[%d]@%d: %s=%s (%v), want %+v", p, rec.Offset, rec.Key, rec.Value, err, links[l.Seq])
				continue
			}
			if l.N > last[l.Key]+1 {
				v.note(&v.Losses, "middle[%d]@%d: link %d of key %s comes after link %d", p, rec.Offset, l.N, l.Key, last[l.Key])
			}
			if last[l.Key] = l.N; seen[l.Seq] {
				v.Again++
			}
			seen[l.Seq] = true
		}
	}
	for seq, l := range links {
		if !seen[seq] {
			v.note(&v.Losses, "middle: input %d of key %s is missing", seq, l.Key)
		}
	}
}

// follows wants a step of each link, and each step behind one that was there
// before.
func (v *verdict) follows(r *chainRecords, links map[int64]link) {
	before := map[string]map[int64][]step{} // by group and number
	seen := map[int64]bool{}
	for p, records := range r.out {
		for _, rec := range records {
			v.Outputs++
			group := string(rec.Key)
			var s step
			if err := json.Unmarshal(rec.Value, &s); err != nil || s.From != links[s.From.Seq] {
				v.note(&v.Wrong, "out[%d]@%d: %s (%v)", p, rec.Offset, rec.Value, err)
				continue
			}
			if before[group] == nil {
				before[group] = map[int64][]step{0: {{}}}
			}
			if !slices.ContainsFunc(before[group][s.N-1], func(b step) bool { return b.after(s.From) == s }) {
				v.note(&v.Wrong, "out[%d]@%d: step %+v of %s follows from none before it", p, rec.Offset, s, group)
			}
			before[group][s.N] = append(before[group][s.N], s)
			v.Second[group] = s
			if seen[s.From.Seq] {
				v.Again++
			}
			seen[s.From.Seq] = true
		}
	}
	for seq, l := range links {
		if !seen[seq] {
			v.note(&v.Losses, "out: input %d of key %s is missing", seq, l.Key)
		}
	}
}

// resent is how often a claim has sent batches again, as the children say.
func (k *killer) resent() (n int) {
	for _, p := range k.procs {
		n += strings.Count(p.log.String(), "outputs of the last batches are sent again")
	}
	return n
}

// testKillsOutbox is the kill test at least once on Redis: a reader that drops
// repetitions sees each output once and in order, repetitions are the same in
// every byte, and the stores are what a single-threaded run makes of the inputs
// (O1 to O5).
func testKillsOutbox(t *testing.T, c *cluster, kills int, limit time.Duration, redis string) {
	ctx := testContext(t, limit)
	rng := newRand(t)
	k := newKiller(t, ctx, c, rng)
	k.atLeast, k.check = true, checkOnce
	k.keepIn(ctx, redis)
	began := time.Now()
	v := k.run(ctx, planOutboxKills(rng, kills))
	t.Logf("%d kills and %d pauses in %v; %d claims have sent again, %d outputs are repetitions: %v",
		k.kills, k.pauses, time.Since(began).Round(time.Second), k.resent(), v.Repeats, v)
	if !v.clean() {
		t.Error("not once for a reader that drops repetitions")
	}
	if v.Repeats == 0 || k.resent() == 0 {
		t.Error("nothing was sent again: the kills have missed the protocol")
	}
}

// withIDs gives the records of a run the ids that a task without faults gives.
func withIDs(r *chainRecords) {
	for _, partitions := range [][][]*kgo.Record{r.middle, r.out, r.ticks, r.dead} {
		for p, records := range partitions {
			for i, rec := range records {
				id := outbox.ID{Lineage: [16]byte{1}, Task: topology.TaskID{Partition: int32(p)}, Seq: uint64(33 + i/3), Nonce: uint64(i / 3), Index: uint32(i % 3)}
				rec.Headers = []kgo.RecordHeader{{Key: weir.HeaderID, Value: id.Append(nil)}}
			}
		}
	}
}

// TestOnceChecker is the negative control of the checkers for a reader that drops
// repetitions.
func TestOnceChecker(t *testing.T) {
	t.Parallel()
	var inputs []input
	for i := range 200 {
		inputs = append(inputs, input{key: fmt.Sprint("k", i%13), seq: int64(i), bad: i%50 == 7})
	}
	copyOf := func(r *kgo.Record) *kgo.Record {
		c := *r
		return &c
	}
	// again appends what a store that has forgotten the last n outputs has the
	// application put out again, under new ids.
	again := func(list *[]*kgo.Record, n, seq int) {
		for i, r := range (*list)[len(*list)-n:] {
			c := copyOf(r)
			id := outbox.ID{Lineage: [16]byte{1}, Seq: uint64(seq), Index: uint32(i)}
			c.Headers = []kgo.RecordHeader{{Key: weir.HeaderID, Value: id.Append(nil)}}
			*list = append(*list, c)
		}
	}
	for _, tt := range []struct {
		name      string
		fault     func(r *chainRecords)
		once      bool // is what is left of it clean where nothing is forgotten
		forgotten bool // and where something is
	}{
		{"perfect", func(*chainRecords) {}, true, true},
		{"sent again", func(r *chainRecords) { r.out[0] = append(r.out[0], copyOf(r.out[0][4]), copyOf(r.out[0][5])) }, true, true},
		{"sent again with other contents", func(r *chainRecords) {
			c := copyOf(r.out[0][5])
			c.Value = r.out[0][4].Value
			r.out[0] = append(r.out[0], c)
		}, false, false},
		{"sent again at another time", func(r *chainRecords) {
			c := copyOf(r.middle[0][5])
			c.Timestamp = c.Timestamp.Add(time.Millisecond)
			r.middle[0] = append(r.middle[0], c)
		}, false, false},
		{"no id", func(r *chainRecords) { r.dead[0][0].Headers = nil }, false, false},
		{"two ids", func(r *chainRecords) { r.ticks[0][0].Headers = append(r.ticks[0][0].Headers, r.ticks[0][1].Headers...) }, false, false},
		{"a number that is not higher", func(r *chainRecords) {
			r.out[0][8].Headers, r.out[0][9].Headers = r.out[0][9].Headers, r.out[0][8].Headers
		}, false, false},
		{"the same, and it comes again", func(r *chainRecords) {
			n := len(r.middle[0])
			r.middle[0][n-2].Headers, r.middle[0][n-1].Headers = r.middle[0][n-1].Headers, r.middle[0][n-2].Headers
			again(&r.middle[0], 1, 1000)
		}, false, true},
		{"lost", func(r *chainRecords) { r.out[1] = slices.Delete(r.out[1], 5, 6) }, false, false},
		{"lost in the middle", func(r *chainRecords) { r.middle[1] = slices.Delete(r.middle[1], 5, 6) }, false, false},
		{"the last is lost", func(r *chainRecords) { r.out[1] = r.out[1][:len(r.out[1])-1] }, false, false},
		{"computed again", func(r *chainRecords) { again(&r.middle[0], 4, 1000) }, false, true},
		{"ticked again", func(r *chainRecords) { again(&r.ticks[0], 1, 1000) }, false, true},
		{"a tick is left out", func(r *chainRecords) { r.ticks[0] = slices.Delete(r.ticks[0], 1, 2) }, false, false},
		{"a dead letter is left out", func(r *chainRecords) { r.dead[0] = r.dead[0][1:] }, false, false},
		{"an older store", func(r *chainRecords) {
			log := r.changelogs["second"]
			log[0] = log[0][:len(log[0])-1]
		}, false, false},
		{"a step that follows from none", func(r *chainRecords) {
			var s step
			_ = json.Unmarshal(r.out[0][9].Value, &s)
			s.Hash += "x"
			r.out[0][9].Value, _ = json.Marshal(s)
		}, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for name, c := range map[string]struct {
				check func(*chainRecords) *verdict
				want  bool
			}{"once": {checkOnce, tt.once}, "forgotten": {checkForgotten, tt.forgotten}} {
				r := perfectRun(inputs)
				withIDs(r)
				tt.fault(r)
				if v := c.check(r); v.clean() != c.want {
					t.Errorf("%s: clean is %t: %v", name, v.clean(), v)
				}
			}
		})
	}
}

// TestOutboxClaimWhileOutputsAreRefused: what a process left unsent goes to a broker
// that takes nothing. The claim that sends it again does not keep its member from
// the group: another one joins meanwhile, and when the broker is well again both go
// on by themselves.
func TestOutboxClaimWhileOutputsAreRefused(t *testing.T) {
	t.Parallel()
	ctx := testContext(t, testLimit)
	c := embeddedCluster(t, 1, true)
	k := newKiller(t, ctx, c, newRand(t))
	k.atLeast, k.check = true, checkOnce
	k.keepIn(ctx, c.redisBeside(t)+"?check=off")
	first, second := k.instances[0], k.instances[1]
	stop, fed := make(chan struct{}), make(chan error, 1)
	go func() { fed <- k.feed(ctx, rand.New(rand.NewPCG(1, 1)), stop) }()
	err := k.owe(ctx, first, second)
	close(stop)
	if err := errors.Join(err, <-fed); err != nil {
		t.Fatal(err)
	}
	if err := k.awaitMembers(ctx, 0); err != nil {
		t.Fatal(err)
	}
	heal, err := c.embedded.Control(kmsg.Produce, func(*embedded.Call) (kmsg.Response, error, bool) { //nolint:revive // as Control wants it
		return nil, errors.New("connection closed by the test"), true
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := k.start(first, childConfig{Patient: true}); err != nil {
		t.Fatal(err)
	}
	stalls := func(p *process) int {
		return strings.Count(p.log.String(), "outputs are not acknowledged; their tasks wait")
	}
	waitUntil(t, ctx, "the claim waits for the broker", func() (bool, error) { return stalls(first.proc) > 0, nil })
	if err := k.start(second, childConfig{Patient: true}); err != nil {
		t.Fatal(err)
	}
	members := first.workers + second.workers
	if err := k.awaitMembers(ctx, members); err != nil {
		t.Fatal(err)
	}
	// Each takes flushLimit, a second.
	waitUntil(t, ctx, "the claim has waited for longer than a rebalance may take", func() (bool, error) {
		return stalls(first.proc) > first.workers*int(patience/time.Second), nil
	})
	if n, state, err := c.members(ctx, k.names.App); err != nil || n != members || state != "Stable" {
		t.Errorf("the group has %d members and is %s (%v), want %d", n, state, err, members)
	}
	heal()
	for _, i := range k.instances {
		if err := i.proc.awaitRunning(ctx); err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"the client is rebuilt", "no longer a member"} {
			if strings.Contains(i.proc.log.String(), bad) {
				t.Errorf("child %s says that %s", i.proc.name, bad)
			}
		}
	}
	for _, i := range k.instances {
		if err := k.stop(ctx, i); err != nil {
			t.Fatal(err)
		}
	}
	v, err := k.settle(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if t.Logf("%d claims have sent again: %v", k.resent(), v); !v.clean() || k.resent() == 0 {
		t.Error("not once for a reader that drops repetitions")
	}
}

// TestOutboxOfManySmallOutputs: more outputs are under way than a client buffers by
// default, to a broker that takes nothing. The worker does not wait for it in the
// middle of a batch, where it could not go back to the group.
func TestOutboxOfManySmallOutputs(t *testing.T) {
	t.Parallel()
	c := embeddedCluster(t, 1, false)
	s := newSituation(t, c)
	s.topics(1, "in", "out")
	const each = 4000
	top := s.build(func(b *weir.Builder) {
		b.Stream(s.str("in")).FlatMap(func(k, v string, emit func(string, string)) {
			for range each {
				emit(k, v)
			}
		}).Serdes(serde.String, serde.String).To(s.str("out"))
	})
	store, err := openRedis(s.ctx, c.redisBeside(t)+"?check=off")
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	// Batches end where they are full, and not before.
	i := s.start(top, func(c *weir.Config) { c.Guarantee, c.Store, c.CommitInterval = weir.AtLeastOnce, store, time.Second }).running()
	details, err := c.adm.ListTopics(s.ctx, s.topicOf("out"))
	if err != nil {
		t.Fatal(err)
	}
	heal, err := c.embedded.Control(kmsg.Produce, func(call *embedded.Call) (kmsg.Response, error, bool) { //nolint:revive // as Control wants it
		r := call.Request.(*kmsg.ProduceRequest)
		ours := len(r.Topics) > 0 && (r.Topics[0].Topic == s.topicOf("out") || r.Topics[0].TopicID == [16]byte(details[s.topicOf("out")].ID))
		return nil, errors.New("connection closed by the test"), ours
	})
	if err != nil {
		t.Fatal(err)
	}
	s.write("in", "a=1")
	i.says(fmt.Sprintf("outputs=%d ", each))
	s.write("in", "b=1", "b=2", "b=3", "b=4", "b=5", "b=6")
	i.says(fmt.Sprintf("outputs=%d ", 3*each))
	seen := strings.Count(i.log.String(), "outputs are not acknowledged")
	waitUntil(t, s.ctx, "the worker goes on to ask", func() (bool, error) {
		return strings.Count(i.log.String(), "outputs are not acknowledged") >= seen+3, nil
	})
	heal()
	s.await("out", 7*each)
	i.stop()
}
