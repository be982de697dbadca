package fence

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/alicebob/miniredis/v2"
)

// grown is a topic that got more partitions, with a fence for each number: a key
// has records in its old partition and in its new one.
func grown(t *testing.T) (f *Fence, topic *memoryTopic, keys int) {
	t.Helper()
	m := miniredis.RunT(t)
	topic = &memoryTopic{}
	send := func(partitions, n int) {
		for i := range n {
			key := fmt.Appendf(nil, "key-%d", i%20)
			topic.add(int32(Murmur2.Partition(key, partitions)), key, []byte("1"))
		}
	}
	open := func(partitions int) *Fence {
		f, err := Open(t.Context(), Options{URL: "redis://" + m.Addr() + "?check=off&timeout=30s", Topic: "t", Partitions: partitions})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.Close)
		return f
	}
	send(2, 200)
	applyAll(t, open(2), topic, countRecords)
	send(4, 100)
	f = open(4)
	applyAll(t, f, topic, countRecords)
	for i := range 20 {
		in, err := f.Inspect(t.Context(), fmt.Appendf(nil, "key-%d", i))
		if err != nil || string(in.State.Value) != "15" {
			t.Fatalf("%+v, error %v", in, err)
		}
	}
	return f, topic, 20
}

// A state that began in another partition cannot be made again from the new one
// alone, so that it differs from what that holds is no difference; and the report
// says that a rewind of the new partition would lose it.
func TestReconcileGrown(t *testing.T) {
	t.Parallel()
	f, topic, keys := grown(t)
	report, err := f.Reconcile(t.Context(), Reconciliation{Source: topic, Op: countRecords})
	if err != nil || report.Differing != 0 || report.Keys != keys {
		t.Fatalf("%+v, error %v", report, err)
	}
	moved := map[int32]int64{}
	for i := range keys {
		key := fmt.Appendf(nil, "key-%d", i)
		if p := int32(Murmur2.Partition(key, 4)); p != int32(Murmur2.Partition(key, 2)) {
			moved[p] += 10
		}
	}
	unverified := 0
	for _, p := range report.Partitions {
		unverified += int(moved[p.Partition]) / 10
		if p.Elsewhere != moved[p.Partition] {
			t.Errorf("partition %d: %d records elsewhere, want %d", p.Partition, p.Elsewhere, moved[p.Partition])
		}
	}
	if unverified == 0 || report.Unverified != unverified {
		t.Errorf("%d keys unverified, want %d", report.Unverified, unverified)
	}
}

// States that a rewind has kept hold more than the records behind it.
func TestReconcileKept(t *testing.T) {
	t.Parallel()
	topic := &memoryTopic{}
	for range 10 {
		topic.add(0, []byte("k"), []byte("1"))
	}
	f, _ := openMini(t, Options{Topic: "t", Partitions: 1})
	applyAll(t, f, topic, countRecords)
	if err := f.Rewind(t.Context(), Rewinding{Offset: 5, Keep: true}); err != nil {
		t.Fatal(err)
	}
	topic.add(0, []byte("k"), []byte("1"))
	applyAll(t, f, topic, countRecords)
	report, err := f.Reconcile(t.Context(), Reconciliation{Source: topic, Op: countRecords})
	if err != nil || report.Differing != 0 || report.Keys != 1 || report.Unverified != 1 || report.Partitions[0].Complete {
		t.Errorf("%+v, error %v", report, err)
	}
}

// A record that its handler refuses is left out by some consumers, and applied
// without a change by Consumer: both are right.
func TestReconcileRefused(t *testing.T) {
	t.Parallel()
	keep := func(m *Message) (Op, error) {
		op, err := countRecords(m)
		if err != nil {
			return Keep(), nil
		}
		return op, nil
	}
	for name, op := range map[string]func(*Message) (Op, error){"left out": countRecords, "kept": keep} {
		t.Run(name, func(t *testing.T) {
			topic := &memoryTopic{}
			for _, v := range []string{"1", "bad", "1", "bad", "bad"} {
				topic.add(0, []byte("k"), []byte(v))
			}
			topic.add(0, []byte("only bad"), []byte("bad"))
			f, m := openMini(t, Options{Topic: "t", Partitions: 1})
			applyAll(t, f, topic, op)
			report, err := f.Reconcile(t.Context(), Reconciliation{Source: topic, Op: countRecords})
			if err != nil || report.Differing != 0 || report.Unverified != 0 || report.Partitions[0].DeadLetters != 4 {
				t.Errorf("%+v, error %v", report, err)
			}
			// An offset that is neither is a difference still.
			damageState(m, f.stateKey(f.slotOf([]byte("k")), []byte("k")), func(s *State) { s.Offset = 1 })
			report, err = f.Reconcile(t.Context(), Reconciliation{Source: topic, Op: countRecords})
			if err != nil || report.Differing != 1 || report.Differences[0].Kind != "offset" {
				t.Errorf("%+v, error %v", report, err)
			}
		})
	}
}

// Of a compacted topic records are gone without a trace, so only states that the
// last record alone makes are compared.
func TestReconcileCompacted(t *testing.T) {
	t.Parallel()
	topic := &memoryTopic{}
	for range 10 {
		topic.add(0, []byte("k"), []byte("1"))
	}
	f, _ := openMini(t, Options{Topic: "t", Partitions: 1})
	applyAll(t, f, topic, countRecords)
	records := topic.records[0]
	source := &compactedTopic{topic, records[9:]}
	report, err := f.Reconcile(t.Context(), Reconciliation{Source: source, Op: countRecords, Compacted: true})
	if err != nil || report.Differing != 0 || report.Keys != 1 || report.Unverified != 1 || report.Partitions[0].Complete {
		t.Errorf("%+v, error %v", report, err)
	}
}

// compactedTopic holds the last records only, and begins where it began.
type compactedTopic struct {
	*memoryTopic
	left []*Message
}

func (c *compactedTopic) Read(_ context.Context, _ int32, _, _ int64, yield func(*Message) error) error {
	for _, m := range c.left {
		if err := yield(m); err != nil {
			return err
		}
	}
	return nil
}

// What changes between two looks at a set is no difference, and a member that is
// missing is one.
func TestReconcileSet(t *testing.T) {
	t.Parallel()
	member := func(m *Message) (Op, error) { return SetAdd(string(m.Value)), nil }
	topic := &memoryTopic{}
	for i := range 30 {
		topic.add(0, []byte("k"), fmt.Append(nil, i))
	}
	f, m := openMini(t, Options{Topic: "t", Partitions: 1})
	applyAll(t, f, topic, member)
	check := func(differing int) {
		t.Helper()
		report, err := f.Reconcile(t.Context(), Reconciliation{Source: topic, Op: member})
		if err != nil || report.Differing != differing || report.Keys != 1 {
			t.Errorf("%+v, error %v", report, err)
		}
	}
	check(0)
	members := f.prefixes[0] + "mk"
	if _, err := m.SRem(members, "7"); err != nil {
		t.Fatal(err)
	}
	check(1)
	if _, err := m.SAdd(members, "8", "x"); err != nil {
		t.Fatal(err)
	}
	check(1)
}

// Each partition says how many of its keys differ, however few are shown; and a
// topic that was made anew is not compared.
func TestReconcileDiffering(t *testing.T) {
	t.Parallel()
	topic := ratings(1000)
	f, m := openMini(t, Options{Topic: "ratings", Partitions: 4})
	id := [16]byte{1}
	for p := range int32(4) {
		mustClaim(t, f, Assignment{Partition: p, Committed: -1, TopicID: id})
	}
	applyAll(t, f, topic, countRecords)
	want := map[int32]int{}
	for i := range 17 {
		key := fmt.Appendf(nil, "movie-%d", i)
		want[int32(Murmur2.Partition(key, 4))]++
		m.Del(f.stateKey(f.slotOf(key), key))
	}
	committed := map[int32]int64{0: 1 << 40}
	report, err := f.Reconcile(t.Context(), Reconciliation{Source: topic, Op: countRecords, MaxDifferences: 1, Committed: committed, TopicID: id})
	if err != nil || report.Differing != 18 || len(report.Differences) != 1 || len(want) < 2 {
		t.Fatalf("%+v, error %v", report, err)
	}
	for _, p := range report.Partitions {
		if p.Differing != want[p.Partition] {
			t.Errorf("partition %d: %d keys differ, want %d", p.Partition, p.Differing, want[p.Partition])
		}
	}
	if _, err := f.Reconcile(t.Context(), Reconciliation{Source: topic, TopicID: [16]byte{2}}); !errors.Is(err, ErrTopicChanged) {
		t.Errorf("error %v", err)
	}
}

// Whoever only looks does not begin states, with whatever layout.
func TestExisting(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	look := Options{URL: "redis://" + m.Addr() + "?check=off&timeout=30s", Topic: "t", Partitions: 7, Existing: true}
	if _, err := Open(t.Context(), look); !errors.Is(err, ErrMissing) || len(m.Keys()) > 0 {
		t.Fatalf("error %v, keys %q", err, m.Keys())
	}
	begin := look
	begin.Existing, begin.Partitions = false, 3
	f, err := Open(t.Context(), begin)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	g, err := Open(t.Context(), look)
	if err != nil || g.Slots() != 3 {
		t.Fatalf("error %v", err)
	}
	g.Close()
}
