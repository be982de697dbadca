package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/state"
)

// oracle knows what is right. It looks at the logs and the stores, and asks no
// worker.
type oracle struct {
	w       *World
	keys    map[string]*chain
	seen    map[worker.TopicPartition]int64 // how far the logs were read
	byKey   [][]arrival                     // the repartition topic, by partition, as it was before compaction and deletion
	logs    map[string][][]write            // changelogs, by store and partition
	fold    []folded                        // by partition, up to the committed position
	checked map[*version]bool
	outputs int
	ids     ids
}

// chain is what is known of a key.
type chain struct {
	sent []string        // values, in order
	next int             // of sent, that an output is awaited of
	last string          // link
	out  map[string]bool // under at least once: what had an output
}

type arrival struct {
	offset int64
	key    string
}

// write is a record of a changelog; a nil value deletes.
type write struct {
	offset     int64
	key, value []byte
}

// folded is the state of a task as its changelogs say it.
type folded struct {
	at    map[string]int64 // position by store
	done  map[string]int   // writes taken
	chain map[string]string
	count map[string]int64
	input int // arrivals taken
	n     map[string]int64
}

func newOracle(w *World) *oracle {
	o := &oracle{w: w, keys: map[string]*chain{}, seen: map[worker.TopicPartition]int64{}, logs: map[string][][]write{}, checked: map[*version]bool{}}
	n := w.setup.Partitions
	o.byKey = make([][]arrival, n)
	for _, s := range []string{chainStore, countStore} {
		o.logs[s] = make([][]write, n)
	}
	for range n {
		o.fold = append(o.fold, newFolded())
	}
	return o
}

func newFolded() folded {
	return folded{map[string]int64{}, map[string]int{}, map[string]string{}, map[string]int64{}, 0, map[string]int64{}}
}

func (o *oracle) sent(key, value string) {
	c := o.keys[key]
	if c == nil {
		c = &chain{}
		o.keys[key] = c
	}
	c.sent = append(c.sent, value)
}

// observe reads what the logs got since the last look.
func (o *oracle) observe() {
	for p := range o.w.setup.Partitions {
		o.read(byKeyName, p, func(offset int64, key, value []byte, headers []task.Header) {
			if o.w.setup.Outbox {
				o.fresh(byKeyName, p, key, value, headers)
				return
			}
			o.byKey[p] = append(o.byKey[p], arrival{offset, string(key)})
		})
		for s, log := range o.logs {
			o.read(application+"-"+s+"-changelog", p, func(offset int64, key, value []byte, _ []task.Header) {
				if o.w.setup.Outbox {
					o.w.violate("%s has a record, and there are no changelogs with an outbox", application+"-"+s+"-changelog")
				}
				log[p] = append(log[p], write{offset, key, value})
			})
		}
		o.read(outName, p, func(offset int64, key, value []byte, headers []task.Header) {
			if !o.w.setup.Outbox || o.fresh(outName, p, key, value, headers) {
				o.output(p, offset, string(key), string(value))
			}
		})
	}
}

func (o *oracle) read(topic string, p int32, visit func(offset int64, key, value []byte, headers []task.Header)) {
	tp := worker.TopicPartition{Topic: topic, Partition: p}
	next, err := o.w.kafka.Decided(tp, o.seen[tp], visit)
	o.w.must(err)
	o.seen[tp] = next
}

// output checks the next output of a key.
func (o *oracle) output(p int32, offset int64, key, text string) {
	o.outputs++
	value, rest, _ := strings.Cut(text, "|")
	saltText, link, _ := strings.Cut(rest, "|")
	salt, err := strconv.ParseUint(saltText, 10, 64)
	c := o.keys[key]
	if err != nil || c == nil {
		o.w.violate("the output %q of key %s is none that a record has", text, key)
		return
	}
	if o.w.setup.AtLeastOnce && !o.strict() {
		o.repeated(c, value)
		return
	}
	where := fmt.Sprintf("output %q of key %s, %s[%d]@%d", text, key, outName, p, offset)
	if value == tick {
		// Records without output may have come before the timer.
		last, n := c.last, c.next
		for {
			if last != "" && hash(last, tick, salt) == link {
				c.last, c.next = link, n
				return
			}
			if n == len(c.sent) || !silent(c.sent[n]) {
				break
			}
			last, n = hash(last, c.sent[n], 0), n+1
		}
		o.w.violate("%s: a timer has seen a state that is not the last committed one (%q)", where, c.last)
		return
	}
	for c.next < len(c.sent) && silent(c.sent[c.next]) {
		c.last = hash(c.last, c.sent[c.next], 0)
		c.next++
	}
	if c.next == len(c.sent) {
		o.w.violate("%s: there is no record for it any more", where)
		return
	}
	want := c.sent[c.next]
	n, many := 0, want[len(want)-1] == opMany
	if many {
		base, index, _ := strings.Cut(value, "/")
		i, err := strconv.Atoi(index)
		if base != want || err != nil {
			o.w.violate("%s: the next record is %q", where, want)
			return
		}
		n = i
	} else if value != want {
		o.w.violate("%s: the next record is %q", where, want)
		return
	}
	if hash(c.last, value, salt) != link {
		o.w.violate("%s: it does not follow from the state of the last output (%q)", where, c.last)
		return
	}
	c.last = link
	if many && n < manyLinks-1 {
		return
	}
	if want[len(want)-1] == opDelete {
		c.last = ""
	}
	c.next++
}

func silent(value string) bool { return value[len(value)-1] == opSilent }

// repeated notes an output under at least once: it may come again, and out of
// turn where the attempt before has failed, but none is left out.
func (o *oracle) repeated(c *chain, value string) {
	base, index, _ := strings.Cut(value, "/")
	switch at := slices.Index(c.sent, base); {
	case value == tick:
		return
	case at < 0:
		o.w.violate("the output %q is none that a record has", value)
		return
	case base[len(base)-1] == opMany && index != strconv.Itoa(manyLinks-1):
		return
	}
	if c.out == nil {
		c.out = map[string]bool{}
	}
	c.out[base] = true
	for c.next < len(c.sent) && (silent(c.sent[c.next]) || c.out[c.sent[c.next]]) {
		c.next++
	}
}

// complete says whether every record that was sent has its outputs and its place
// in the state.
func (o *oracle) complete() bool {
	o.observe()
	if o.w.err != nil {
		return false
	}
	for _, c := range o.keys {
		for _, v := range c.sent[c.next:] {
			if !silent(v) {
				return false
			}
		}
	}
	if o.w.setup.Outbox {
		return o.counted()
	}
	if o.w.setup.AtLeastOnce {
		return true
	}
	committed := o.w.kafka.Committed(application)
	for p := range o.w.setup.Partitions {
		for s := range o.logs {
			// What an owner that died has left open hides what came after it.
			b, err := o.w.kafka.Bounds(worker.TopicPartition{Topic: application + "-" + s + "-changelog", Partition: p})
			o.w.must(err)
			if b.End < b.High {
				return false
			}
		}
		for _, name := range []string{inName, byKeyName} {
			tp := worker.TopicPartition{Topic: name, Partition: p}
			// A record behind an open transaction is not the last one yet; one
			// without an output would be missed by nobody else.
			if b, err := o.w.kafka.Bounds(tp); b.End < b.High {
				o.w.must(err)
				return false
			}
			last, err := o.lastRecord(tp)
			o.w.must(err)
			if c, ok := committed[tp]; last >= 0 && (!ok || c.Offset <= last) {
				return false
			}
		}
	}
	return true
}

// lastRecord is the offset of the last record of a partition that counts, -1 when
// there is none.
func (o *oracle) lastRecord(tp worker.TopicPartition) (int64, error) {
	last := int64(-1)
	_, err := o.w.kafka.Decided(tp, 0, func(offset int64, _, _ []byte, _ []task.Header) { last = offset })
	return last, err
}

// missing describes what complete misses.
func (o *oracle) missing() string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(o.keys)) {
		if c := o.keys[key]; c.next < len(c.sent) {
			list = append(list, fmt.Sprintf("%s from %s on", key, c.sent[c.next]))
		}
	}
	if len(list) == 0 {
		return "the offsets are not committed"
	}
	return strings.Join(list, ", ")
}

// check is called after each step.
func (o *oracle) check() {
	o.observe()
	if o.w.err != nil || o.w.setup.AtLeastOnce || o.w.broken {
		return
	}
	if len(o.w.kafka.Markers()) == 0 { // else outputs and offsets are not of one moment
		for p := range o.w.setup.Partitions {
			o.position(p)
		}
	}
	o.stores()
}

// position checks that what the group says was processed is what the changelogs
// say.
func (o *oracle) position(p int32) {
	c, ok := o.w.kafka.Committed(application)[worker.TopicPartition{Topic: byKeyName, Partition: p}]
	if !ok {
		return
	}
	s, ours, err := stamp.DecodeStamp(c.Metadata)
	if err != nil || !ours {
		o.w.violate("the committed offset of %s[%d] has no stamp: %v", byKeyName, p, err)
		return
	}
	for _, tp := range []worker.TopicPartition{{Topic: byKeyName, Partition: p}, {Topic: outName, Partition: p}} {
		b, err := o.w.kafka.Bounds(tp)
		o.w.must(err)
		if b.End < b.High {
			return // somebody's transaction hides it
		}
	}
	f := &o.fold[p]
	if !o.advance(f, p, s.Changelog) {
		return
	}
	for f.input < len(o.byKey[p]) && o.byKey[p][f.input].offset < c.Offset {
		f.n[o.byKey[p][f.input].key]++
		f.input++
	}
	for _, key := range slices.Sorted(maps.Keys(f.n)) {
		n := f.n[key]
		if f.count[key] != n {
			o.w.violate("position: the group has committed %d records of key %s of partition %d, and the changelog up to the stamp (batch %d) counts %d", n, key, p, s.Seq, f.count[key])
			return
		}
		ch := o.keys[key]
		last, at := ch.last, ch.next
		for at < int(n) && silent(ch.sent[at]) {
			last, at = hash(last, ch.sent[at], 0), at+1
		}
		if at != int(n) {
			o.w.violate("position: the group has committed %d records of key %s, and the outputs are those of %d", n, key, ch.next)
			return
		}
		if f.chain[key] != last {
			o.w.violate("position: the changelog up to the stamp (batch %d) has the link %q of key %s, and the outputs end with %q", s.Seq, f.chain[key], key, last)
			return
		}
	}
}

// advance moves a fold on to the positions, if the logs were read that far.
func (o *oracle) advance(f *folded, p int32, to []stamp.Offset) bool {
	for _, t := range to {
		if o.seen[worker.TopicPartition{Topic: application + "-" + t.Name + "-changelog", Partition: p}] < t.Next {
			return false
		}
	}
	for _, t := range to {
		log := o.logs[t.Name][p]
		n := f.done[t.Name]
		for ; n < len(log) && log[n].offset < t.Next; n++ {
			r := &log[n]
			switch {
			case t.Name == chainStore && r.value == nil:
				delete(f.chain, string(r.key))
			case t.Name == chainStore:
				f.chain[string(r.key)] = string(r.value)
			default:
				f.count[string(r.key)] = int64(binary.BigEndian.Uint64(r.value))
			}
		}
		f.done[t.Name] = n
	}
	return true
}

// stores checks all views.
func (o *oracle) stores() {
	for _, s := range o.all() {
		for p, id := range o.w.ids {
			if v := s.db.views[id]; v != nil && !o.checked[v] && !v.broken && o.view(int32(p), id, v) {
				o.checked[v] = true
			}
		}
	}
}

// all lists the stores.
func (o *oracle) all() []*Store {
	if o.w.shared != nil {
		return []*Store{o.w.shared}
	}
	var list []*Store
	for _, p := range o.w.procs {
		if p.own != nil {
			list = append(list, p.own)
		}
	}
	return list
}

// view checks that a view is what the changelogs say. It returns false when that
// is not known yet.
func (o *oracle) view(p int32, id state.ID, v *version) bool {
	t, err := stamp.DecodeToken(v.token)
	if err != nil {
		o.w.violate("view %s: %v", id.Task, err)
		return true
	}
	if t.Restoring || o.w.foreign[id] {
		return true
	}
	f := newFolded()
	if !o.advance(&f, p, t.Changelog) {
		return false
	}
	if d := o.w.shared; d != nil && d.db.raw != nil {
		o.really(id, v)
	}
	chains, counts := map[string]string{}, map[string]int64{}
	for k, val := range v.data {
		switch key, ok := strings.CutPrefix(k, string(task.StorePrefix(chainStore))); {
		case ok:
			chains[key] = val
		default:
			key, ok := strings.CutPrefix(k, string(task.StorePrefix(countStore)))
			if !ok || len(val) != 16 {
				o.w.violate("view %s: entry %q", id.Task, k)
				return true
			}
			counts[key] = int64(binary.BigEndian.Uint64([]byte(val[8:])))
		}
	}
	if o.w.shared == nil {
		o.superseded(p, t.Changelog, chains, counts, &f)
	}
	if !maps.Equal(chains, f.chain) || !maps.Equal(counts, f.count) {
		o.w.violate("view %s (%s) is not what the changelogs say:\n  view      %v %v\n  changelog %v %v", id.Task, describeToken(v.token), chains, counts, f.chain, f.count)
	}
	return true
}

// really checks that a backend holds what it has acknowledged.
func (o *oracle) really(id state.ID, v *version) {
	r := o.w.shared.db.b.Committed(id)
	tok, err := r.Read(ctx, nil, func(int, []byte) {})
	if err != nil || tok != v.token {
		o.w.violate("view %s has the token %s, and %s was acknowledged (%v)", id.Task, describeToken(tok), describeToken(v.token), err)
		return
	}
	data := map[string]string{}
	it := r.Iterate(ctx, state.Range{})
	for it.Next() {
		data[string(it.Key())] = string(it.Value())
	}
	if err := errors.Join(it.Err(), it.Close()); err != nil || !maps.Equal(data, v.data) {
		o.w.violate("view %s holds %d entries that are not the %d that were acknowledged (%v)", id.Task, len(data), len(v.data), err)
	}
}

// superseded takes those keys out of a comparison that have a later write, behind
// the view's position: the cleaner may have removed what came before it. An
// instance that has lost the task meanwhile reads that, into its own store only,
// and whoever goes on from there comes to the later write.
func (o *oracle) superseded(p int32, at []stamp.Offset, chains map[string]string, counts map[string]int64, f *folded) {
	for _, t := range at {
		for _, r := range o.logs[t.Name][p] {
			switch key := string(r.key); {
			case r.offset < t.Next:
			case t.Name == chainStore:
				delete(f.chain, key)
				delete(chains, key)
			default:
				delete(f.count, key)
				delete(counts, key)
			}
		}
	}
}

// final checks what holds when everything is processed: the changelogs, whole,
// are the reference.
func (o *oracle) final() {
	if o.w.setup.Outbox {
		o.finalOutbox()
		return
	}
	if o.w.setup.AtLeastOnce || o.w.err != nil {
		return
	}
	count, last := map[string]int64{}, map[string]string{}
	for p := range o.w.setup.Partitions {
		f := newFolded()
		var end []stamp.Offset
		for s := range o.logs {
			b, err := o.w.kafka.Bounds(worker.TopicPartition{Topic: application + "-" + s + "-changelog", Partition: p})
			o.w.must(err)
			end = append(end, stamp.Offset{Name: s, Next: b.End})
		}
		o.advance(&f, p, end)
		maps.Copy(count, f.count)
		maps.Copy(last, f.chain)
	}
	for _, key := range slices.Sorted(maps.Keys(o.keys)) {
		c := o.keys[key]
		want := c.last
		for _, v := range c.sent[c.next:] {
			want = hash(want, v, 0)
		}
		if count[key] != int64(len(c.sent)) {
			o.w.violate("the state counts %d records of key %s, and %d were sent", count[key], key, len(c.sent))
		}
		if last[key] != want {
			o.w.violate("the state has the link %q of key %s, and the outputs end with %q", last[key], key, want)
		}
	}
}
