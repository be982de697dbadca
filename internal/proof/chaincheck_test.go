package proof

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// input is a record that was written to the input topic, in the order of its
// key.
type input struct {
	key string
	seq int64
	bad bool // a poisoned one
}

func (in input) value() string {
	if in.bad {
		return poison + strconv.FormatInt(in.seq, 10)
	}
	return strconv.FormatInt(in.seq, 10)
}

// chainRecords is everything that a run has left behind, as a read_committed
// reader sees it: by topic, the records of each partition in order.
type chainRecords struct {
	inputs                   []input
	middle, out, ticks, dead [][]*kgo.Record
	changelogs               map[string][][]*kgo.Record // by store
}

// verdict is what the checker found.
type verdict struct {
	Inputs, Poisoned, Outputs, Ticks int
	Repeats                          int // records that a reader with a Deduper leaves out
	Unseen                           int // of these, that are none: a fenced owner's, which come again
	Again                            int // outputs that came out of an input once more, as the store had forgotten it
	Duplicates                       int // outputs and dead letters there more than once
	Losses                           int // inputs of which there is no output
	Wrong                            int // everything else: order, hashes, stores
	First                            map[string]link
	Second                           map[string]step
	problems                         []error
}

// maxProblems bounds what is kept of the things that are wrong.
const maxProblems = 20

func (v *verdict) clean() bool { return v.Duplicates+v.Losses+v.Wrong == 0 }

func (v *verdict) note(counter *int, format string, args ...any) {
	if *counter++; len(v.problems) < maxProblems {
		v.problems = append(v.problems, fmt.Errorf(format, args...))
	}
}

func (v *verdict) String() string {
	s := fmt.Sprintf("%d inputs, %d of them poisoned, %d outputs, %d ticks: %d duplicates, %d losses, %d other faults",
		v.Inputs, v.Poisoned, v.Outputs, v.Ticks, v.Duplicates, v.Losses, v.Wrong)
	if len(v.problems) > 0 {
		s += "\n" + errors.Join(v.problems...).Error()
	}
	return s
}

// check compares a run with a single-threaded one over the same inputs. The
// order in which the keys of a group meet is not determined: it is the one in
// which the repartition topic has them.
func check(r *chainRecords) *verdict {
	v := &verdict{First: map[string]link{}, Second: map[string]step{}}
	links := v.links(r)
	steps := v.middle(r, links)
	v.out(r, steps)
	v.deadLetters(r)
	v.ticks(r)
	compare(v, "first", r.changelogs["first"], v.First)
	compare(v, "second", r.changelogs["second"], v.Second)
	return v
}

// links computes the first chain and returns its elements by input number.
func (v *verdict) links(r *chainRecords) map[int64]link {
	bySeq := map[int64]link{}
	for _, in := range r.inputs {
		v.Inputs++
		if in.bad {
			v.Poisoned++
			continue
		}
		l := v.First[in.key].after(in.key, in.seq)
		v.First[in.key] = l
		bySeq[in.seq] = l
	}
	return bySeq
}

// middle checks the repartition topic and computes the second chain from its
// order.
func (v *verdict) middle(r *chainRecords, links map[int64]link) map[string][]step {
	steps := map[string][]step{}
	seen := map[int64]int{}
	last := map[string]int64{} // by input key: number of its last link
	for p, records := range r.middle {
		for _, rec := range records {
			var l link
			if err := json.Unmarshal(rec.Value, &l); err != nil {
				v.note(&v.Wrong, "middle[%d]@%d: %v", p, rec.Offset, err)
				continue
			}
			if seen[l.Seq]++; seen[l.Seq] > 1 {
				v.note(&v.Duplicates, "middle[%d]@%d: input %d of key %s is there %d times", p, rec.Offset, l.Seq, l.Key, seen[l.Seq])
			}
			if want := links[l.Seq]; l != want {
				v.note(&v.Wrong, "middle[%d]@%d: link %+v, want %+v", p, rec.Offset, l, want)
			}
			if l.N != last[l.Key]+1 {
				v.note(&v.Wrong, "middle[%d]@%d: link %d of key %s comes after link %d", p, rec.Offset, l.N, l.Key, last[l.Key])
			}
			last[l.Key] = l.N
			group := string(rec.Key)
			if want := groupOf(l.Key); group != want {
				v.note(&v.Wrong, "middle[%d]@%d: key %s is in %s, want %s", p, rec.Offset, l.Key, group, want)
			}
			s := v.Second[group].after(l)
			v.Second[group] = s
			steps[group] = append(steps[group], s)
		}
	}
	for seq, l := range links {
		if seen[seq] == 0 {
			v.note(&v.Losses, "middle: input %d of key %s is missing", seq, l.Key)
		}
	}
	return steps
}

// out compares the outputs of each group, in their order, with its chain.
func (v *verdict) out(r *chainRecords, steps map[string][]step) {
	next := map[string]int{}
	seen := map[int64]int{}
	for p, records := range r.out {
		for _, rec := range records {
			v.Outputs++
			group := string(rec.Key)
			var s step
			if err := json.Unmarshal(rec.Value, &s); err != nil {
				v.note(&v.Wrong, "out[%d]@%d: %v", p, rec.Offset, err)
				continue
			}
			if seen[s.From.Seq]++; seen[s.From.Seq] > 1 {
				v.note(&v.Duplicates, "out[%d]@%d: input %d of %s is there %d times", p, rec.Offset, s.From.Seq, group, seen[s.From.Seq])
			}
			if i := next[group]; i >= len(steps[group]) {
				v.note(&v.Wrong, "out[%d]@%d: step %+v of %s, which has only %d", p, rec.Offset, s, group, len(steps[group]))
			} else if want := steps[group][i]; s != want {
				v.note(&v.Wrong, "out[%d]@%d: step %+v of %s, want %+v", p, rec.Offset, s, group, want)
			}
			next[group]++
		}
	}
	for group, list := range steps {
		for _, s := range list {
			if seen[s.From.Seq] == 0 {
				v.note(&v.Losses, "out: input %d of %s is missing", s.From.Seq, group)
			}
		}
	}
}

// deadLetters wants each poisoned input there once, byte for byte.
func (v *verdict) deadLetters(r *chainRecords) {
	seen := map[string]int{}
	for p, records := range r.dead {
		for _, rec := range records {
			at := string(rec.Key) + " " + string(rec.Value)
			if seen[at]++; seen[at] > 1 {
				v.note(&v.Duplicates, "dead[%d]@%d: %s is there %d times", p, rec.Offset, at, seen[at])
			}
		}
	}
	want := 0
	for _, in := range r.inputs {
		if !in.bad {
			continue
		}
		want++
		if seen[in.key+" "+in.value()] == 0 {
			v.note(&v.Losses, "dead: input %d of key %s is missing", in.seq, in.key)
		}
	}
	if len(seen) > want {
		v.note(&v.Wrong, "dead: %d different letters, want %d", len(seen), want)
	}
}

// ticks wants the ticks of each task without gap or repetition, and the store
// where the last one left it.
func (v *verdict) ticks(r *chainRecords) {
	last := map[int32]int64{}
	for p, records := range r.ticks {
		for _, rec := range records {
			v.Ticks++
			if len(rec.Key) != 4 || len(rec.Value) != 8 {
				v.note(&v.Wrong, "ticks[%d]@%d: key %x, value %x", p, rec.Offset, rec.Key, rec.Value)
				continue
			}
			task, n := int32(binary.BigEndian.Uint32(rec.Key)), int64(binary.BigEndian.Uint64(rec.Value))
			switch {
			case n <= last[task]:
				v.note(&v.Duplicates, "ticks[%d]@%d: tick %d of task %d comes after tick %d", p, rec.Offset, n, task, last[task])
			case n > last[task]+1:
				v.note(&v.Losses, "ticks[%d]@%d: tick %d of task %d comes after tick %d", p, rec.Offset, n, task, last[task])
			}
			last[task] = n
		}
	}
	v.tickStore(r, last)
}

// tickStore wants the store where the last tick of each task left it.
func (v *verdict) tickStore(r *chainRecords, last map[int32]int64) {
	stored := map[int32]int64{}
	for key, rec := range compacted(r.changelogs["ticks"]) {
		stored[int32(binary.BigEndian.Uint32([]byte(key)))] = int64(binary.BigEndian.Uint64(rec.Value))
	}
	for task, n := range last {
		if stored[task] != n {
			v.note(&v.Wrong, "store ticks: task %d has %d, want %d", task, stored[task], n)
		}
	}
}

// compacted returns the last record of each key, without the deleted ones.
func compacted(partitions [][]*kgo.Record) map[string]*kgo.Record {
	last := map[string]*kgo.Record{}
	for _, records := range partitions {
		for _, rec := range records {
			if rec.Value == nil {
				delete(last, string(rec.Key))
				continue
			}
			last[string(rec.Key)] = rec
		}
	}
	return last
}

// compare compares a changelog with what has to be in its store.
func compare[V comparable](v *verdict, store string, changelog [][]*kgo.Record, want map[string]V) {
	have := compacted(changelog)
	for key, w := range want {
		var got V
		rec := have[key]
		if rec == nil {
			v.note(&v.Wrong, "store %s: key %s is missing", store, key)
			continue
		}
		if err := json.Unmarshal(rec.Value, &got); err != nil || got != w {
			v.note(&v.Wrong, "store %s: key %s has %s (%v), want %+v", store, key, rec.Value, err, w)
		}
	}
	for key := range have {
		if _, ok := want[key]; !ok {
			v.note(&v.Wrong, "store %s: key %s should not be there", store, key)
		}
	}
}

// perfectRun makes what a run without faults leaves behind.
func perfectRun(inputs []input) *chainRecords {
	r := &chainRecords{inputs: inputs, middle: make([][]*kgo.Record, 2), out: make([][]*kgo.Record, 2), changelogs: map[string][][]*kgo.Record{}}
	first, second := map[string]link{}, map[string]step{}
	put := func(list *[]*kgo.Record, key string, value any) {
		b, err := json.Marshal(value)
		if err != nil {
			panic(err)
		}
		*list = append(*list, &kgo.Record{Key: []byte(key), Value: b, Offset: int64(len(*list))})
	}
	firstLog, secondLog, dead := make([][]*kgo.Record, 1), make([][]*kgo.Record, 1), make([][]*kgo.Record, 1)
	for _, in := range inputs {
		if in.bad {
			dead[0] = append(dead[0], &kgo.Record{Key: []byte(in.key), Value: []byte(in.value())})
			continue
		}
		l := first[in.key].after(in.key, in.seq)
		first[in.key] = l
		group := groupOf(in.key)
		p := int(group[len(group)-1]) % 2
		put(&r.middle[p], group, l)
		put(&firstLog[0], in.key, l)
		s := second[group].after(l)
		second[group] = s
		put(&r.out[p], group, s)
		put(&secondLog[0], group, s)
	}
	tick := func(n int64) *kgo.Record {
		return &kgo.Record{Key: binary.BigEndian.AppendUint32(nil, 1), Value: binary.BigEndian.AppendUint64(nil, uint64(n))}
	}
	r.ticks = [][]*kgo.Record{{tick(1), tick(2), tick(3)}}
	r.dead = dead
	r.changelogs["first"], r.changelogs["second"], r.changelogs["ticks"] = firstLog, secondLog, [][]*kgo.Record{{tick(3)}}
	return r
}

// TestChainChecker is the negative control of the checker: it accepts a perfect
// run, and names each fault that is made in one.
func TestChainChecker(t *testing.T) {
	t.Parallel()
	var inputs []input
	for i := range 200 {
		inputs = append(inputs, input{key: fmt.Sprint("k", i%13), seq: int64(i), bad: i%50 == 7})
	}
	remove := func(list *[]*kgo.Record, i int) { *list = slices.Delete(slices.Clone(*list), i, i+1) }
	repeat := func(list *[]*kgo.Record, i int) { *list = slices.Insert(slices.Clone(*list), i, (*list)[i]) }
	swap := func(list []*kgo.Record, i, j int) { list[i], list[j] = list[j], list[i] }
	for _, tt := range []struct {
		name                       string
		fault                      func(r *chainRecords)
		duplicates, losses, others bool
	}{
		{"perfect", func(*chainRecords) {}, false, false, false},
		{"output lost", func(r *chainRecords) { remove(&r.out[0], 5) }, false, true, true},
		{"output doubled", func(r *chainRecords) { repeat(&r.out[0], 5) }, true, false, true},
		{"outputs swapped", func(r *chainRecords) {
			for i := range r.out[0][1:] {
				if string(r.out[0][i].Key) == string(r.out[0][i+1].Key) {
					swap(r.out[0], i, i+1)
					return
				}
			}
			t.Error("no neighbours of one group")
		}, false, false, true},
		{"middle lost", func(r *chainRecords) { remove(&r.middle[1], 5) }, false, true, true},
		{"middle doubled", func(r *chainRecords) { repeat(&r.middle[1], 5) }, true, false, true},
		{"input processed twice", func(r *chainRecords) {
			again := perfectRun(append(slices.Clone(inputs[:100]), append([]input{inputs[99]}, inputs[100:]...)...))
			r.middle, r.out, r.changelogs = again.middle, again.out, again.changelogs
		}, true, false, true},
		{"dead letter lost", func(r *chainRecords) { remove(&r.dead[0], 1) }, false, true, false},
		{"dead letter doubled", func(r *chainRecords) { repeat(&r.dead[0], 1) }, true, false, false},
		{"tick lost", func(r *chainRecords) { remove(&r.ticks[0], 1) }, false, true, false},
		{"tick doubled", func(r *chainRecords) { repeat(&r.ticks[0], 1) }, true, false, false},
		{"store behind", func(r *chainRecords) {
			log := r.changelogs["second"]
			remove(&log[0], len(log[0])-1)
		}, false, false, true},
		{"store has too much", func(r *chainRecords) {
			log := r.changelogs["first"]
			log[0] = append(log[0], &kgo.Record{Key: []byte("other"), Value: log[0][0].Value})
		}, false, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := perfectRun(inputs)
			tt.fault(r)
			v := check(r)
			if v.Duplicates > 0 != tt.duplicates || v.Losses > 0 != tt.losses || v.Wrong > 0 != tt.others {
				t.Errorf("found %v", v)
			}
		})
	}
}
