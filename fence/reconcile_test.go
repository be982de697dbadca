package fence

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
)

// memoryTopic is a topic for Reconcile.
type memoryTopic struct {
	first   map[int32]int64
	records map[int32][]*Message // by offset
}

func (m *memoryTopic) add(partition int32, key, value []byte) *Message {
	if m.records == nil {
		m.records = map[int32][]*Message{}
	}
	r := &Message{Partition: partition, Offset: int64(len(m.records[partition])), Key: key, Value: value}
	m.records[partition] = append(m.records[partition], r)
	return r
}

func (m *memoryTopic) Bounds(_ context.Context, p int32) (int64, int64, error) {
	return m.first[p], int64(len(m.records[p])), nil
}

func (m *memoryTopic) Read(_ context.Context, p int32, from, to int64, yield func(*Message) error) error {
	for _, r := range m.records[p][from:to] {
		if err := yield(r); err != nil {
			return err
		}
	}
	return nil
}

func openMini(t testing.TB, opts Options) (*Fence, *miniredis.Miniredis) {
	t.Helper()
	m := miniredis.RunT(t)
	opts.URL = "redis://" + m.Addr() + "?check=off&timeout=30s"
	f, err := Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f, m
}

func mustClaim(t testing.TB, f *Fence, a Assignment) *Claim {
	t.Helper()
	c, err := f.Claim(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// countRecords is what the tests' records do: each adds one, a tombstone deletes.
func countRecords(m *Message) (Op, error) {
	switch {
	case m.Value == nil:
		return Delete(), nil
	case string(m.Value) == "bad":
		return Op{}, errors.New("bad record")
	}
	return Add(1), nil
}

// applyAll applies what a topic holds, from an offset on, as a consumer would.
func applyAll(t testing.TB, f *Fence, topic *memoryTopic, op func(*Message) (Op, error)) {
	t.Helper()
	for p := range int32(f.Partitions()) {
		c := mustClaim(t, f, Assignment{Partition: p, Committed: -1})
		b := Batch{Next: int64(len(topic.records[p]))}
		for _, m := range topic.records[p] {
			if o, err := op(m); err == nil {
				b.Records = append(b.Records, Record{Offset: m.Offset, Key: m.Key, Op: o})
			}
		}
		if b.Next == 0 {
			continue
		}
		if _, err := c.Apply(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
}

func ratings(n int) *memoryTopic {
	topic := &memoryTopic{}
	for i := range n {
		key := fmt.Appendf(nil, "movie-%d", i%17)
		value := []byte("1")
		if i%23 == 0 {
			value = nil
		}
		topic.add(int32(Murmur2.Partition(key, 4)), key, value)
	}
	topic.add(0, nil, []byte("no key"))
	key := []byte("elsewhere")
	topic.add(int32(Murmur2.Partition(key, 4)+1)%4, key, []byte("1"))
	topic.add(2, slices.Repeat([]byte("k"), 3), []byte("bad"))
	return topic
}

// Nothing differs when nothing was touched; each kind of damage is found under
// the key that it was done to, and nothing is written.
func TestReconcile(t *testing.T) {
	t.Parallel()
	topic := ratings(1000)
	open := func(t *testing.T) (*Fence, *miniredis.Miniredis) {
		f, m := openMini(t, Options{Topic: "ratings", Partitions: 4})
		applyAll(t, f, topic, countRecords)
		return f, m
	}
	stateKey := func(f *Fence, key string) string { return f.stateKey(f.slotOf([]byte(key)), []byte(key)) }
	for name, c := range map[string]struct {
		damage func(f *Fence, m *miniredis.Miniredis)
		want   []string
	}{
		"nothing": {func(*Fence, *miniredis.Miniredis) {}, nil},
		"state": {func(f *Fence, m *miniredis.Miniredis) {
			damageState(m, stateKey(f, "movie-3"), func(s *State) { s.Value, s.Exists = []byte("1000000"), true })
		}, []string{"movie-3 state"}},
		"deleted": {func(f *Fence, m *miniredis.Miniredis) { m.Del(stateKey(f, "movie-4")) }, []string{"movie-4 missing"}},
		"kind": {func(f *Fence, m *miniredis.Miniredis) {
			damageState(m, stateKey(f, "movie-5"), func(s *State) { s.Kind = "sum" })
		}, []string{"movie-5 state"}},
		"offset": {func(f *Fence, m *miniredis.Miniredis) {
			damageState(m, stateKey(f, "movie-6"), func(s *State) { s.Offset = 0 })
		}, []string{"movie-6 offset"}},
		"partition": {func(f *Fence, m *miniredis.Miniredis) {
			damageState(m, stateKey(f, "movie-7"), func(s *State) { s.Partition, s.Partitions, s.Offset = 9, 12, 3 })
		}, []string{"movie-7 partition"}},
	} {
		t.Run(name, func(t *testing.T) {
			f, m := open(t)
			c.damage(f, m)
			before := m.Dump()
			report, err := f.Reconcile(t.Context(), Reconciliation{Source: topic, Op: countRecords})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, d := range report.Differences {
				got = append(got, string(d.Key)+" "+d.Kind)
			}
			if !slices.Equal(got, c.want) || report.Differing != len(c.want) || report.Keys != 17 || report.Unverified != 0 || report.Moved != 0 {
				t.Errorf("%q, want %q, report %+v", got, c.want, report)
			}
			dead := int64(0)
			for _, p := range report.Partitions {
				dead += p.DeadLetters
			}
			if dead != 3 {
				t.Errorf("%d dead letters, want 3", dead)
			}
			if m.Dump() != before {
				t.Error("something was written")
			}
			var text bytes.Buffer
			if _, err := report.WriteTo(&text); err != nil || !strings.Contains(text.String(), fmt.Sprintf("17 keys compared, %d differ", len(c.want))) {
				t.Errorf("%s, error %v", &text, err)
			}
			if data, err := json.Marshal(report); err != nil || !bytes.Contains(data, []byte(`"differing":`)) {
				t.Errorf("%s, error %v", data, err)
			}
		})
	}
}

// damageState changes what is stored for a state.
func damageState(m *miniredis.Miniredis, key string, change func(s *State)) {
	text, err := m.Get(key)
	if err != nil {
		panic(err)
	}
	s, err := parseState([]byte(text))
	if err != nil {
		panic(err)
	}
	change(&s)
	text = fmt.Sprintf("%d %d %d %d", s.Partition, s.Partitions, s.Lineage, s.Offset)
	if s.Kind != "" {
		text += " " + s.Kind
	}
	if s.Exists {
		text += "\n" + string(s.Value)
	}
	m.Set(key, text)
}

// A consumer that goes on meanwhile is no difference, and neither are states
// whose first records are gone; a position behind the group's offset is one.
func TestReconcileMoving(t *testing.T) {
	t.Parallel()
	topic := ratings(1000)
	f, _ := openMini(t, Options{Topic: "ratings", Partitions: 4})
	applyAll(t, f, topic, countRecords)
	moving := &movingTopic{memoryTopic: topic, move: func() {
		for p := range int32(4) {
			c := mustClaim(t, f, Assignment{Partition: p, Committed: int64(len(topic.records[p]))})
			key := fmt.Appendf(nil, "movie-%d", 3)
			if int32(Murmur2.Partition(key, 4)) != p {
				continue
			}
			r := topic.add(p, key, []byte("1"))
			if _, err := c.Apply(t.Context(), Batch{Records: []Record{{Offset: r.Offset, Key: key, Op: Add(1)}}}); err != nil {
				t.Fatal(err)
			}
		}
	}}
	report, err := f.Reconcile(t.Context(), Reconciliation{Source: moving, Op: countRecords})
	if err != nil || report.Differing != 0 || report.Moved != 1 || report.Keys != 16 {
		t.Errorf("%+v, error %v", report, err)
	}

	topic.first = map[int32]int64{0: 100, 1: 100, 2: 100, 3: 100}
	report, err = f.Reconcile(t.Context(), Reconciliation{Source: topic, Op: countRecords})
	if err != nil || report.Differing != 0 || report.Keys == 0 || slices.ContainsFunc(report.Partitions, func(p PartitionReport) bool { return p.Complete }) {
		t.Errorf("%+v, error %v", report, err)
	}

	report, err = f.Reconcile(t.Context(), Reconciliation{Source: topic, Partitions: []int32{2}, Committed: map[int32]int64{2: int64(len(topic.records[2])) + 5}})
	if err != nil || report.Differing != 1 || report.Differences[0].Kind != "position" || report.Unverified != report.Keys {
		t.Errorf("%+v, error %v", report, err)
	}
}

type movingTopic struct {
	*memoryTopic
	move func()
}

func (m *movingTopic) Read(ctx context.Context, p int32, from, to int64, yield func(*Message) error) error {
	err := m.memoryTopic.Read(ctx, p, from, to, yield)
	if p == 3 {
		m.move()
	}
	return err
}

// The sample shrinks until the keys fit, and then still holds some.
func TestReconcileSample(t *testing.T) {
	t.Parallel()
	topic := &memoryTopic{}
	for i := range 4000 {
		topic.add(0, fmt.Appendf(nil, "k%d", i), []byte("1"))
	}
	f, _ := openMini(t, Options{Topic: "t", Partitions: 1})
	applyAll(t, f, topic, countRecords)
	report, err := f.Reconcile(t.Context(), Reconciliation{Source: topic, Op: countRecords, MaxKeys: 100})
	if err != nil || report.Keys > 100 || report.Keys < 10 || report.Sample > 0.1 || report.Differing != 0 {
		t.Errorf("%+v, error %v", report, err)
	}
	report, err = f.Reconcile(t.Context(), Reconciliation{Source: topic, Op: countRecords, Sample: 0.25})
	if err != nil || report.Keys < 700 || report.Keys > 1300 || report.Differing != 0 {
		t.Errorf("%+v, error %v", report, err)
	}
	for _, o := range []Reconciliation{{}, {Source: topic, Sample: 2}, {Source: topic, Sample: math.NaN()}, {Source: topic, MaxKeys: -1}, {Source: topic, Partitions: []int32{1}}} {
		if _, err := f.Reconcile(t.Context(), o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

// What Go computes is what the script computes, whatever the operations.
func TestEvaluateAsTheScript(t *testing.T) {
	t.Parallel()
	reducers := []Reducer{{Name: "cat", Version: 2, Source: "if #args[1] > 3 then error('too long') end if args[1] == '' then return nil end return (state or '') .. args[1]"}}
	f, _ := openMini(t, Options{Topic: "t", Partitions: 1, Reducers: reducers})
	c := mustClaim(t, f, Assignment{Committed: -1})
	rng := rand.New(rand.NewPCG(1, 2))
	numbers := []int64{0, 1, -1, 7, 999_999_999_999, 1e15, -1e15, 1<<53 + 1, math.MaxInt64, math.MinInt64, math.MaxInt64 - 1}
	floats := []float64{0, 0.1, -2.5, 1e300, -1e300, 1e-7, 123456789.125, math.MaxFloat64}
	words := []string{"", "a", "bc", "d:e", "\x00\xff", "long word"}
	pick := func() Op {
		n, x, w := numbers[rng.IntN(len(numbers))], floats[rng.IntN(len(floats))], words[rng.IntN(len(words))]
		switch rng.IntN(16) {
		case 0:
			return Set([]byte(w))
		case 1:
			return Delete()
		case 2:
			return Keep()
		case 3, 4:
			return Add(n)
		case 5:
			return AddFloat(x)
		case 6:
			return Sum(n)
		case 7:
			return SumFloat(x)
		case 8:
			return Min(n)
		case 9:
			return Max(n)
		case 10:
			return MinFloat(x)
		case 11:
			return MaxFloat(x)
		case 12:
			return Append([]byte(w), 1+rng.IntN(3))
		case 13:
			return SetAdd(w, words[rng.IntN(len(words))])
		case 14:
			return SetRemove(w)
		}
		return Reduce("cat", w)
	}
	values := map[string]*value{}
	applied, refused := 0, 0
	for offset := range int64(6000) {
		// Keys that see all operations, and keys that see one.
		key := fmt.Sprintf("k%d", rng.IntN(6))
		op := pick()
		if rng.IntN(2) == 0 {
			key = op.String() + " only"
		}
		if values[key] == nil {
			values[key] = &value{}
		}
		want := values[key].evaluate(op, reducers)
		res, err := c.Apply(t.Context(), Batch{Records: []Record{{Offset: offset, Key: []byte(key), Op: op}}, Committed: offset})
		if (want == nil) != (err == nil) || err != nil && !errors.Is(err, ErrRecord) {
			t.Fatalf("offset %d, key %q, %s %q: the script says %v, Go says %v", offset, key, op, op.args, err, want)
		}
		if err != nil {
			refused++
			continue
		}
		applied++
		if res[0].Verdict != Apply {
			t.Fatalf("offset %d: %v", offset, res[0].Verdict)
		}
		got, err := f.Inspect(t.Context(), []byte(key))
		if err != nil {
			t.Fatal(err)
		}
		if w := values[key]; got.State.Exists != w.exists || !bytes.Equal(got.State.Value, w.v) || got.State.Kind != w.kind {
			t.Fatalf("offset %d, key %q, %s %q: the script made %+v, Go %+v", offset, key, op, op.args, got.State, w)
		}
	}
	if applied < 2000 || refused < 100 {
		t.Errorf("%d applied, %d refused", applied, refused)
	}
	report, err := f.Reconcile(t.Context(), Reconciliation{Source: &memoryTopic{records: map[int32][]*Message{0: make([]*Message, 6000)}, first: map[int32]int64{0: 6000}}})
	if err != nil || report.Keys != 0 {
		t.Errorf("%+v, error %v", report, err)
	}
}

// The states are read many at a time, whatever their number, and in no larger
// pieces than their size allows.
func TestReconcileReadsInBatches(t *testing.T) {
	t.Parallel()
	const partitions, keys = 4, 3000
	topic := &memoryTopic{}
	for i := range keys {
		key := fmt.Appendf(nil, "key-%d", i)
		topic.add(int32(Murmur2.Partition(key, partitions)), key, []byte("1"))
	}
	f, m := openMini(t, Options{Topic: "t", Partitions: partitions})
	applyAll(t, f, topic, countRecords)
	m.Del(f.stateKey(f.slotOf([]byte("key-7")), []byte("key-7")))
	before := m.CommandCount()
	report, err := f.Reconcile(t.Context(), Reconciliation{Source: topic, Op: countRecords})
	if err != nil {
		t.Fatal(err)
	}
	if report.Keys != keys || report.Differing != 1 || string(report.Differences[0].Key) != "key-7" || report.Differences[0].Kind != "missing" {
		t.Errorf("%+v", report)
	}
	// 16, 32, ... 1000 keys at a time, those of each slot in one command.
	if n := m.CommandCount() - before; n > 100 {
		t.Errorf("%d commands for %d keys", n, keys)
	}
	for _, tc := range []struct{ n, size, want int }{
		{compareFirst, 0, 2 * compareFirst},
		{compareFirst, compareBytes, 2 * compareFirst},
		{compareKeys, 1000, compareKeys},
		{600, 1000, compareKeys},
		{100, 2 * compareBytes, 50},
		{1, 4 * compareBytes, 1},
		{2, 100 * compareBytes, 1},
	} {
		if got := compareNext(tc.n, tc.size); got != tc.want {
			t.Errorf("after %d states of %d bytes: %d, want %d", tc.n, tc.size, got, tc.want)
		}
	}
}
