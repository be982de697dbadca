package fence

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"slices"
	"strconv"
)

// Source is the topic as Reconcile reads it. KafkaSource is one.
type Source interface {
	// Bounds returns the first offset of a partition that can still be read, and
	// the one behind its end.
	Bounds(ctx context.Context, partition int32) (first, next int64, err error)
	// Read calls yield with the records of a partition from one offset to
	// another, which is left out, in order and without those of aborted
	// transactions. It passes on the error of yield. The record is valid during
	// the call.
	Read(ctx context.Context, partition int32, from, to int64, yield func(*Message) error) error
}

// Reconciliation says what Reconcile compares.
type Reconciliation struct {
	// Source is the topic. Required.
	Source Source
	// Op is what a record does to its state, as in the consumer; an error says
	// that the record is a dead letter there, which is left out or, as Consumer
	// does, applied without a change. Nil compares offsets and partitions and no
	// states.
	Op func(r *Message) (Op, error)
	// Partitions are the partitions to look at. Defaults to all.
	Partitions []int32
	// Compacted says that the topic is compacted, so that records are gone from
	// between others: states are compared from the first record on that sets or
	// deletes them.
	Compacted bool
	// TopicID is the id that the topic has now; see Assignment. A topic that was
	// created anew is then ErrTopicChanged. All zero leaves this out.
	TopicID [16]byte
	// Committed are the offsets that the group has committed, by partition.
	// Fences behind them are a difference of kind "position": Redis has
	// forgotten writes. Nil leaves this out.
	Committed map[int32]int64
	// Sample is the share of the keys that is looked at, above 0 and up to 1.
	// Defaults to 1.
	Sample float64
	// MaxKeys bounds the memory: when more keys are met, the sample is halved
	// until they fit. Defaults to DefaultMaxKeys.
	MaxKeys int
	// MaxDifferences is how many differences are reported one by one; all are
	// counted. Defaults to DefaultMaxDifferences.
	MaxDifferences int
}

// Defaults of Reconciliation.
const (
	DefaultMaxKeys        = 1_000_000
	DefaultMaxDifferences = 1000
)

// Report is what Reconcile found.
type Report struct {
	Topic      string            `json:"topic"`
	Sample     float64           `json:"sample"`
	Partitions []PartitionReport `json:"partitions"`
	// Keys is how many keys were compared.
	Keys int `json:"keys"`
	// Moved is how many keys were not compared because a newer record changed
	// them meanwhile.
	Moved int `json:"moved"`
	// Unverified is how many keys had their offsets compared but not their
	// states: records that made them are gone, or came on several partitions, or
	// before the number of partitions was changed.
	Unverified int `json:"unverified"`
	// Differing is how many keys differ; Differences are the first of them.
	Differing   int          `json:"differing"`
	Differences []Difference `json:"differences"`
}

// PartitionReport is what was read of a partition.
type PartitionReport struct {
	Partition int32  `json:"partition"`
	Epoch     uint64 `json:"epoch"`
	Lineage   uint64 `json:"lineage"`
	// From and To are the offsets that were read, To left out: from the
	// beginning of the lineage to the position.
	From int64 `json:"from"`
	To   int64 `json:"to"`
	// Complete says that the topic still holds all records that made the states:
	// it has lost none of the lineage, is not compacted, and the lineage did not
	// begin with the states of another one (Rewinding.Keep).
	Complete bool  `json:"complete"`
	Records  int64 `json:"records"`
	// DeadLetters is how many of the records the fence would not apply.
	DeadLetters int64 `json:"dead_letters"`
	// Elsewhere is how many records of keys that belong on this partition are in
	// the other partitions that were read: from before the number of partitions
	// was changed, unless a producer misplaced them. A state that they made
	// cannot be made again by a rewind of this partition.
	Elsewhere int64 `json:"elsewhere"`
	// Differing is how many keys of this partition differ.
	Differing int `json:"differing"`
	// Claimed is false for a partition that nobody has claimed yet.
	Claimed bool `json:"claimed"`
}

// Difference is a key whose state is not what the topic says.
type Difference struct {
	Key       []byte `json:"key"`
	Partition int32  `json:"partition"`
	// Kind is "missing", "offset", "partition" or "state"; or "position", which
	// concerns a whole partition and no key.
	Kind string `json:"kind"`
	// Want is what the topic says, Got what is stored.
	Want string `json:"want"`
	Got  string `json:"got"`
}

// String is a line for people.
func (d Difference) String() string {
	if d.Kind == "position" {
		return fmt.Sprintf("partition %d: position: want %s, got %s: Redis has forgotten writes; the consumer repairs this when it claims the partition", d.Partition, d.Want, d.Got)
	}
	return fmt.Sprintf("key %q of partition %d: %s: want %s, got %s", d.Key, d.Partition, d.Kind, d.Want, d.Got)
}

// expected is what the topic says of a key.
type expected struct {
	hash      uint64
	partition int32
	offset    int64
	refused   int64 // of a dead letter behind offset: the fence may stand there, too; -1 for none
	several   bool  // records on several partitions
	misplaced bool  // there are records that are on the wrong partition now
	value     value
	op        bool // value is known
}

// reconciler is the state of one Reconcile.
type reconciler struct {
	f       *Fence
	o       *Reconciliation
	report  *Report
	seed    maphash.Seed
	limit   uint64 // keys whose hash is below are looked at
	keys    map[string]*expected
	reached map[int32]int64 // position of each partition

	elsewhere, differing map[int32]int64 // by partition
}

// Reconcile reads the records that the fences claim to cover and compares what
// they make with what is stored, key by key, without writing anything. Consumers
// may go on meanwhile. Differences are no error: they are in the report.
//
// A state can be computed again only from all of its records. Where the topic has
// lost some, states are compared from the first record on that sets or deletes
// them.
func (f *Fence) Reconcile(ctx context.Context, o Reconciliation) (*Report, error) {
	if o.Source == nil {
		return nil, errors.New("fence: Reconciliation.Source is nil")
	}
	if o.Sample == 0 {
		o.Sample = 1
	}
	if !(o.Sample > 0 && o.Sample <= 1) {
		return nil, fmt.Errorf("fence: Reconciliation.Sample is %v: use a share above 0 and up to 1", o.Sample)
	}
	if o.MaxKeys == 0 {
		o.MaxKeys = DefaultMaxKeys
	}
	if o.MaxDifferences == 0 {
		o.MaxDifferences = DefaultMaxDifferences
	}
	if o.MaxKeys < 1 || o.MaxDifferences < 0 {
		return nil, errors.New("fence: Reconciliation.MaxKeys or MaxDifferences is negative")
	}
	if o.Partitions == nil {
		for p := range f.opts.Partitions {
			o.Partitions = append(o.Partitions, int32(p))
		}
	}
	r := &reconciler{f: f, o: &o, seed: maphash.MakeSeed(), keys: map[string]*expected{}, reached: map[int32]int64{}, elsewhere: map[int32]int64{}, differing: map[int32]int64{},
		report: &Report{Topic: f.opts.Topic, Differences: []Difference{}}}
	r.limit = ^uint64(0)
	if o.Sample < 1 {
		r.limit = uint64(o.Sample * (1 << 63) * 2)
	}
	for _, p := range o.Partitions {
		if err := f.checkPartition(p); err != nil {
			return nil, err
		}
		if err := r.read(ctx, p); err != nil {
			return nil, f.fail("reconcile", p, err)
		}
	}
	r.report.Sample = float64(r.limit) / float64(^uint64(0))
	if err := r.compare(ctx); err != nil {
		return nil, fmt.Errorf("reconcile topic %s: %w", f.opts.Topic, err)
	}
	for i := range r.report.Partitions {
		p := &r.report.Partitions[i]
		p.Elsewhere, p.Differing = r.elsewhere[p.Partition], int(r.differing[p.Partition])
	}
	return r.report, nil
}

// read replays a partition.
func (r *reconciler) read(ctx context.Context, p int32) error {
	infos, err := r.f.Describe(ctx, p)
	if err != nil {
		return err
	}
	pr := PartitionReport{Partition: p}
	kept := false
	for i, in := range infos {
		if !in.Claimed {
			continue
		}
		if id := hex.EncodeToString(r.o.TopicID[:]); in.TopicID != "" && r.o.TopicID != ([16]byte{}) && in.TopicID != id {
			return fmt.Errorf("%w: its id is %s and the fences are of %s: Rewind starts over", ErrTopicChanged, id, in.TopicID)
		}
		kept = kept || in.Since < in.Lineage
		// Of several slots the one that is furthest back counts: what it has
		// forgotten is a difference, and not a key that has moved on.
		if !pr.Claimed || in.Position > pr.To {
			pr.To = in.Position
		}
		if !pr.Claimed || in.Begin < pr.From {
			pr.From = in.Begin
		}
		pr.Claimed, pr.Epoch, pr.Lineage = true, max(pr.Epoch, infos[i].Epoch), max(pr.Lineage, infos[i].Lineage)
	}
	if !pr.Claimed {
		r.report.Partitions = append(r.report.Partitions, pr)
		return nil
	}
	first, next, err := r.o.Source.Bounds(ctx, p)
	if err != nil {
		return err
	}
	if pr.To > next {
		return fmt.Errorf("the fences stand at offset %d, and the partition ends at %d: it is another topic, or it was created anew", pr.To, next)
	}
	for _, in := range infos {
		if committed := r.o.Committed[p]; committed > in.Position {
			r.differ(Difference{Partition: p, Kind: "position", Want: strconv.FormatInt(committed, 10) + " or more", Got: strconv.FormatInt(in.Position, 10)})
		}
	}
	pr.Complete = first <= pr.From && !kept && !r.o.Compacted
	pr.From = max(pr.From, first)
	r.reached[p] = pr.To
	if pr.From < pr.To {
		err = r.o.Source.Read(ctx, p, pr.From, pr.To, func(m *Message) error {
			pr.Records++
			return r.record(&pr, m)
		})
	}
	r.report.Partitions = append(r.report.Partitions, pr)
	return err
}

func (r *reconciler) record(pr *PartitionReport, m *Message) error {
	if m.Key == nil {
		pr.DeadLetters++
		return nil
	}
	want, ok := r.f.CheckPartition(m.Key, pr.Partition)
	if !ok {
		pr.DeadLetters++
		r.elsewhere[want]++
	}
	h := maphash.Bytes(r.seed, m.Key)
	if h > r.limit {
		return nil
	}
	e := r.keys[string(m.Key)]
	fresh := e == nil
	if fresh {
		e = &expected{hash: h, partition: -1, offset: -1, refused: -1, op: r.o.Op != nil}
		e.value.unknown = !pr.Complete
		r.keys[string(m.Key)] = e
		r.shrink()
	}
	if !ok {
		// It was applied when the topic had fewer partitions, or is a dead letter:
		// the topic does not tell.
		e.misplaced = true
		return nil
	}
	if r.o.Op != nil {
		op, err := r.o.Op(m)
		if err == nil {
			err = e.value.evaluate(op, r.f.opts.Reducers)
		}
		if err != nil && !errors.Is(err, errNotEvaluated) {
			pr.DeadLetters++
			e.refused = m.Offset
			return nil
		}
	}
	e.several = e.several || e.partition >= 0 && e.partition != pr.Partition
	e.partition, e.offset, e.refused = pr.Partition, m.Offset, -1
	return nil
}

// shrink halves the sample while there are too many keys.
func (r *reconciler) shrink() {
	for len(r.keys) > r.o.MaxKeys {
		r.limit /= 2
		maps.DeleteFunc(r.keys, func(_ string, e *expected) bool { return e.hash > r.limit })
	}
}

// Bounds of what is read of the states at once. States are of any size, so the
// first look is at few of them, and the next at twice as many while they are
// small.
const (
	compareFirst = 16
	compareKeys  = 1000
	compareBytes = 4 << 20
)

func (r *reconciler) compare(ctx context.Context) error {
	keys, n := slices.Sorted(maps.Keys(r.keys)), compareFirst
	for len(keys) > 0 {
		n = min(n, len(keys))
		states, size, err := r.states(ctx, keys[:n])
		if err != nil {
			return err
		}
		for i, key := range keys[:n] {
			if err := r.compareKey(ctx, r.f.slotOf([]byte(key)), key, r.keys[key], &states[i]); err != nil {
				return fmt.Errorf("key %q: %w", key, err)
			}
		}
		keys = keys[n:]
		n = compareNext(n, size)
	}
	return nil
}

// compareNext is how many states are read next, when n of them were so many
// bytes.
func compareNext(n, size int) int {
	if size > compareBytes {
		return max(1, n*compareBytes/size)
	}
	return min(2*n, compareKeys)
}

// states reads the states of keys, those of a slot in one call.
func (r *reconciler) states(ctx context.Context, keys []string) ([]State, int, error) {
	bySlot := map[int][]int{}
	for i, key := range keys {
		slot := r.f.slotOf([]byte(key))
		bySlot[slot] = append(bySlot[slot], i)
	}
	states, size := make([]State, len(keys)), 0
	for _, slot := range slices.Sorted(maps.Keys(bySlot)) {
		list := bySlot[slot]
		part := make([]string, len(list))
		for j, i := range list {
			part[j] = keys[i]
		}
		got, n, err := r.f.peekAll(ctx, slot, part)
		if err != nil {
			return nil, 0, fmt.Errorf("slot %d: %w", slot, err)
		}
		for j, i := range list {
			states[i] = got[j]
		}
		size += n
	}
	return states, size, nil
}

func (r *reconciler) compareKey(ctx context.Context, slot int, key string, want *expected, got *State) error {
	differ := func(kind, w, g string) {
		r.differ(Difference{Key: []byte(key), Partition: want.partition, Kind: kind, Want: w, Got: g})
	}
	if want.offset < 0 {
		return nil // only records that are dead letters now
	}
	if got.Fenced {
		if to, ok := r.reached[got.Partition]; ok && got.Offset >= to {
			r.report.Moved++
			return nil
		}
	}
	r.report.Keys++
	switch {
	case !got.Fenced:
		differ("missing", "offset "+strconv.FormatInt(want.offset, 10), "nothing")
		return nil
	case want.several:
		// Which of the partitions came last is not told by the topic.
		r.report.Unverified++
		return nil
	case got.Partition != want.partition:
		differ("partition", strconv.Itoa(int(want.partition)), strconv.Itoa(int(got.Partition)))
		return nil
	case got.Offset != want.offset && (want.refused < 0 || got.Offset != want.refused):
		differ("offset", strconv.FormatInt(want.offset, 10), strconv.FormatInt(got.Offset, 10))
		return nil
	}
	if !want.op || want.value.unknown || want.misplaced {
		r.report.Unverified++
		return nil
	}
	same := got.Exists == want.value.exists && got.Kind == want.value.kind && bytes.Equal(got.Value, want.value.v)
	if same && got.Kind == "set" {
		var err error
		if same, err = r.sameMembers(ctx, slot, key, want.value.members); err != nil {
			return err
		}
		if !same {
			// The members were read behind the state, and may be newer.
			now, err := r.f.peek(ctx, slot, []byte(key))
			if err != nil {
				return err
			}
			if now.Partition != got.Partition || now.Offset != got.Offset {
				r.report.Keys--
				r.report.Moved++
				return nil
			}
		}
	}
	if !same {
		differ("state", show(want.value.exists, want.value.kind, want.value.v), show(got.Exists, got.Kind, got.Value))
	}
	return nil
}

func (r *reconciler) differ(d Difference) {
	r.report.Differing++
	if d.Kind != "position" {
		r.differing[d.Partition]++
	}
	if len(r.report.Differences) < r.o.MaxDifferences {
		r.report.Differences = append(r.report.Differences, d)
	}
}

func (r *reconciler) sameMembers(ctx context.Context, slot int, key string, want map[string]bool) (bool, error) {
	redisKey := r.f.prefixes[slot] + "m" + key
	seen := map[string]bool{}
	for cursor := "0"; ; {
		reply, err := r.f.s.Do(ctx, r.f.s.Breaker(r.f.prefixes[slot]), "SSCAN", []string{redisKey}, cursor, "COUNT", "1000")
		if err != nil {
			return false, err
		}
		page, err := reply.AsScanEntry()
		if err != nil {
			return false, err
		}
		for _, m := range page.Elements {
			// SSCAN may show a member twice; there is no difference in that.
			if !want[m] {
				return false, nil
			}
			seen[m] = true
		}
		if page.Cursor == 0 {
			return len(seen) == len(want), nil
		}
		cursor = strconv.FormatUint(page.Cursor, 10)
	}
}

// maxShown is how much of a state a difference shows, in bytes.
const maxShown = 200

func show(exists bool, kind string, v []byte) string {
	if !exists {
		return "no state"
	}
	more := ""
	if len(v) > maxShown {
		v, more = v[:maxShown], fmt.Sprintf("... (%d bytes)", len(v))
	}
	if kind != "" {
		kind += " "
	}
	return kind + strconv.Quote(string(v)) + more
}

// WriteTo writes the report for people.
func (r *Report) WriteTo(w io.Writer) (int64, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "topic %s, %.4g of the keys\n", r.Topic, r.Sample)
	for _, p := range r.Partitions {
		switch {
		case !p.Claimed:
			fmt.Fprintf(&b, "partition %d: nobody has claimed it\n", p.Partition)
		case !p.Complete:
			fmt.Fprintf(&b, "partition %d: offsets %d to %d, %d records, %d dead letters; the topic does not hold all records that made the states\n", p.Partition, p.From, p.To, p.Records, p.DeadLetters)
		default:
			fmt.Fprintf(&b, "partition %d: offsets %d to %d, %d records, %d dead letters\n", p.Partition, p.From, p.To, p.Records, p.DeadLetters)
		}
	}
	fmt.Fprintf(&b, "%d keys compared, %d differ, %d have moved on meanwhile, %d with their offsets only\n", r.Keys, r.Differing, r.Moved, r.Unverified)
	for _, d := range r.Differences {
		fmt.Fprintln(&b, d)
	}
	if n := r.Differing - len(r.Differences); n > 0 {
		fmt.Fprintf(&b, "and %d more\n", n)
	}
	return b.WriteTo(w)
}
