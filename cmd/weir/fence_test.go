package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/fence"
)

// fenced is a topic whose records a fenced consumer has counted by key.
type fenced struct {
	t       *testing.T
	brokers string
	redis   *miniredis.Miniredis
	url     string
	topic   string
	group   string
	cl      *kgo.Client
}

const fencedPartitions = 3

func newFenced(t *testing.T, brokers string) *fenced {
	t.Helper()
	m := miniredis.RunT(t)
	name := "t" + strings.ReplaceAll(strings.ToLower(t.Name()), "/", "-") + "-" + strings.ToLower(rand.Text())
	f := &fenced{t: t, brokers: brokers, redis: m, url: "redis://" + m.Addr() + "?check=off&timeout=30s", topic: name, group: name + "-group"}
	var err error
	if f.cl, err = kgo.NewClient(kgo.SeedBrokers(strings.Split(brokers, ",")...), kgo.DefaultProduceTopic(f.topic)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.cl.Close)
	if _, err := kadm.NewClient(f.cl).CreateTopic(t.Context(), fencedPartitions, 1, nil, f.topic); err != nil {
		t.Fatal(err)
	}
	return f
}

// send writes records, some of them without a key.
func (f *fenced) send(n int) {
	f.t.Helper()
	var list []*kgo.Record
	for i := range n {
		r := &kgo.Record{Key: fmt.Appendf(nil, "k%d", i%10), Value: []byte("v" + strconv.Itoa(i))}
		if i%50 == 49 {
			r.Key = nil
		}
		list = append(list, r)
	}
	if err := f.cl.ProduceSync(f.t.Context(), list...).FirstErr(); err != nil {
		f.t.Fatal(err)
	}
}

// consume applies all that is there, as a consumer does, and commits.
func (f *fenced) consume() {
	t := f.t
	t.Helper()
	ctx := t.Context()
	src, err := fence.NewKafkaSource(f.topic, kgo.SeedBrokers(strings.Split(f.brokers, ",")...))
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	_, id, err := src.Partitions(ctx)
	if err != nil {
		t.Fatal(err)
	}
	fe, err := fence.Open(ctx, fence.Options{URL: f.url, Topic: f.topic, Partitions: fencedPartitions})
	if err != nil {
		t.Fatal(err)
	}
	defer fe.Close()
	committed, err := src.Committed(ctx, f.group)
	if err != nil {
		t.Fatal(err)
	}
	offsets := kadm.Offsets{}
	for p := range int32(fencedPartitions) {
		at, ok := committed[p]
		if !ok {
			at = -1
		}
		c, err := fe.Claim(ctx, fence.Assignment{Partition: p, Committed: at, TopicID: id})
		if err != nil {
			t.Fatal(err)
		}
		_, next, err := src.Bounds(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		var b fence.Batch
		if err := src.Read(ctx, p, c.Start(), next, func(m *fence.Message) error {
			b.Records = append(b.Records, fence.Record{Offset: m.Offset, Key: m.Key, Op: fence.Add(1)})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if len(b.Records) > 0 {
			if _, err := c.Apply(ctx, b); err != nil {
				t.Fatal(err)
			}
		}
		offsets.AddOffset(f.topic, p, next, -1)
	}
	if err := kadm.NewClient(f.cl).CommitAllOffsets(ctx, f.group, offsets); err != nil {
		t.Fatal(err)
	}
}

func (f *fenced) weir(args ...string) result {
	f.t.Helper()
	return weir(f.t, nil, append([]string{"fence", args[0], "--redis", f.url, "--topic", f.topic}, args[1:]...)...)
}

// stateKeys are the keys in Redis of the states.
func (f *fenced) stateKeys() (keys []string) {
	for _, k := range f.redis.Keys() {
		if _, rest, _ := strings.Cut(k, "}:"); strings.HasPrefix(rest, "s") {
			keys = append(keys, k)
		}
	}
	return keys
}

func testFence(t *testing.T, brokers string) {
	f := newFenced(t, brokers)
	f.send(500)
	f.consume()

	var in fence.Inspection
	r := f.weir("inspect", "--brokers", brokers, "--json", "k3")
	if err := json.Unmarshal([]byte(r.stdout), &in); err != nil || r.code != exitOK {
		t.Fatalf("%+v, %v", r, err)
	}
	if string(in.State.Value) != "50" || in.State.Partition != in.Expected || in.Partition.Epoch != 1 || in.Partition.Position <= in.State.Offset {
		t.Errorf("%+v", in)
	}
	r = f.weir("inspect", "--partitions", strconv.Itoa(fencedPartitions), "k3")
	next := fmt.Sprintf("offset %d: apply", in.Partition.Position)
	for _, text := range []string{`state               "50"`, "epoch 1, lineage 1 from offset 0", "expected partition  " + strconv.Itoa(int(in.Expected)), next} {
		if r.code != exitOK || !strings.Contains(r.stdout, text) {
			t.Errorf("exit code %d, no %q in\n%s%s", r.code, text, r.stdout, r.stderr)
		}
	}
	r = f.weir("inspect", "--brokers", brokers, "--base64", "bm9ib2R5") // nobody
	if r.code != exitOK || !strings.Contains(r.stdout, `"nobody"`) || !strings.Contains(r.stdout, "no record was applied") {
		t.Errorf("%+v", r)
	}

	reconcile := func(args ...string) (result, fence.Report) {
		t.Helper()
		r := f.weir(append([]string{"reconcile", "--brokers", brokers, "--group", f.group, "--states", "count", "--json"}, args...)...)
		var report fence.Report
		if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
			t.Fatalf("%+v, %v", r, err)
		}
		return r, report
	}
	r, report := reconcile()
	if r.code != exitOK || report.Keys != 10 || report.Differing != 0 {
		t.Errorf("%+v", r)
	}
	key := f.stateKeys()[0]
	text, err := f.redis.Get(key)
	if err != nil {
		t.Fatal(err)
	}
	fences, _, _ := strings.Cut(text, "\n")
	if err := f.redis.Set(key, fences+"\n7"); err != nil {
		t.Fatal(err)
	}
	f.redis.Del(f.stateKeys()[1])
	before := f.redis.Dump()
	if r, report = reconcile(); r.code != exitFailure || report.Differing != 2 || !strings.Contains(r.stderr, "2 differences") {
		t.Errorf("%+v", r)
	}
	if f.redis.Dump() != before {
		t.Error("reconcile has written something")
	}
	if r, _ := reconcile("--repair"); r.code != exitOK || !strings.Contains(r.stderr, "starts over at offset 0") {
		t.Errorf("%+v", r)
	}
	f.consume()
	if r, report := reconcile(); r.code != exitOK || report.Keys != 10 || report.Differing != 0 {
		t.Errorf("%+v", r)
	}

	// What Redis has lost altogether is made again from the topic.
	f.redis.FlushAll()
	for _, args := range [][]string{
		{"inspect", "--brokers", brokers, "k3"},
		{"reconcile", "--brokers", brokers},
		{"rewind", "--brokers", brokers, "--group", f.group, "--all", "--first"},
	} {
		f.weir(args...).wantFailure(t, "nothing is stored under the name fence")
	}
	if keys := f.redis.Keys(); len(keys) > 0 {
		t.Errorf("%q were written", keys)
	}
	r = f.weir("rewind", "--brokers", brokers, "--group", f.group, "--name", fence.DefaultName, "--all", "--first")
	if r.code != exitOK || strings.Count(r.stdout, "starts over at offset 0") != fencedPartitions {
		t.Errorf("%+v", r)
	}
	f.consume()
	if r, report := reconcile(); r.code != exitOK || report.Keys != 10 || report.Differing != 0 {
		t.Errorf("%+v", r)
	}
	before = f.redis.Dump()
	f.weir("rewind", "--brokers", brokers, "--group", f.group, "--partition", "0", "--partition", "7", "--offset", "0").wantFailure(t, "has no partition 7")
	f.weir("rewind", "--brokers", brokers, "--group", f.group, "--partition", "1", "--offset", "1000000").wantFailure(t, "outside of what the topic holds", "nothing was changed")
	if f.redis.Dump() != before {
		t.Error("a rewind that failed has written something")
	}

	// A member that runs would read on from where it is.
	member, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(brokers, ",")...), kgo.ConsumerGroup(f.group), kgo.ConsumeTopics(f.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer member.Close()
	f.send(1)
	poll, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if fetches := member.PollFetches(poll); fetches.Err() != nil {
		t.Fatal(fetches.Err())
	}
	f.redis.Del(f.stateKeys()[0]) // so that there is something to repair
	committed := func() string {
		t.Helper()
		offsets, err := kadm.NewClient(f.cl).FetchOffsets(t.Context(), f.group)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(offsets.Offsets().Sorted())
	}
	offsets := committed()
	before = f.redis.Dump()
	for _, args := range [][]string{
		{"rewind", "--brokers", brokers, "--group", f.group, "--all", "--first"},
		{"rewind", "--brokers", brokers, "--group", f.group, "--partition", "1", "--offset", "0", "--keep"},
		{"reconcile", "--brokers", brokers, "--group", f.group, "--states", "count", "--repair"},
	} {
		f.weir(args...).wantFailure(t, "has 1 members: stop the consumers")
	}
	if f.redis.Dump() != before {
		t.Error("something was written although the group has a member")
	}
	if got := committed(); got != offsets {
		t.Errorf("the group's offsets are %s, before %s", got, offsets)
	}
	// When it has left, the same command does it.
	if err := member.LeaveGroupContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := f.weir("rewind", "--brokers", brokers, "--group", f.group, "--all", "--first"); r.code != exitOK {
		t.Errorf("%+v", r)
	}
}

func TestFence(t *testing.T) {
	t.Parallel()
	b, err := embedded.Open(embedded.Options{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	testFence(t, strings.Join(b.Brokers(), ","))
}

// What is wrong with the flags is said before anything is asked.
func TestFenceFlags(t *testing.T) {
	t.Setenv(redisEnv, "")
	for args, texts := range map[string][]string{
		"fence reconcile":           {redisEnv, "--topic is empty", "--brokers is empty", "Run 'weir fence reconcile --help'"},
		"fence inspect":             {"accepts 1 arg"},
		"fence inspect k":           {"give either --brokers or --partitions"},
		"fence inspect --base64 %%": {"KEY is no base64"},
		"fence reconcile --redis redis://h --topic t --brokers h:1 --states sum --sample 2 --max-keys 0 --repair":         {"--states", "--sample", "--max-keys", "--repair needs --group"},
		"fence reconcile --redis redis://h --topic t --brokers h:1 --group g --repair --partitioner any":                  {"weir fence rewind --all --first"},
		"fence rewind --redis redis://h --topic t --brokers h:1 --group g --partition 1 --first --partitioner any":        {"give --all"},
		"fence reconcile --redis redis://h --topic t --brokers h --partitioner x":                                         {"--brokers", "--partitioner"},
		"fence rewind --redis redis://h --topic t --brokers h:1":                                                          {"--group", "either --partition or --all", "either --offset or --first"},
		"fence rewind --redis redis://h --topic t --brokers h:1 --group g --all --partition 1 --first --offset 1 --keep=": {"--keep"},
	} {
		r := weir(t, nil, strings.Fields(args)...)
		r.want(t, exitUsage, "", texts...)
	}
	t.Setenv(redisEnv, "http://secret@h")
	r := weir(t, nil, "fence", "inspect", "--topic", "t", "--partitions", "1", "k")
	r.want(t, exitFailure, "", "scheme")
	if strings.Contains(r.stderr, "secret") {
		t.Errorf("a secret in %q", r.stderr)
	}
}
