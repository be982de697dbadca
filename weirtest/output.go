package weirtest

import (
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/serde"
)

// Output reads a topic as a consumer with isolation level read_committed does:
// it sees what is committed, and nothing behind the beginning of a transaction
// that is not decided. It remembers how far it has read.
type Output[K, V any] struct {
	d     *Driver
	topic string
	key   serde.Serde[K]
	value serde.Serde[V]
	next  map[int32]int64 // by partition
}

// Output returns a reader of a topic, from its first record on.
func (d *Driver) Output[K, V any](t weir.Topic[K, V]) *Output[K, V] {
	d.t.Helper()
	k, v := serdes(d, t)
	return &Output[K, V]{d, t.Name(), k, v, map[int32]int64{}}
}

// KeyValue is what counts of most records.
type KeyValue[K, V any] struct {
	Key   K
	Value V
	// Deleted says that the record has no value.
	Deleted bool
}

// Read returns the records that were not read yet: by partition, and in each in
// the order of their offsets. Their Source is the place in this topic.
func (o *Output[K, V]) Read() []weir.Record[K, V] {
	o.d.t.Helper()
	var list []weir.Record[K, V]
	for p := range o.d.sim.Topics()[o.topic] {
		for _, r := range o.fetch(p, o.next[p]) {
			list = append(list, r)
			o.next[p] = r.Source.Offset + 1
		}
	}
	return list
}

// ReadKeyValues is Read for tests that look at keys and values only.
func (o *Output[K, V]) ReadKeyValues() []KeyValue[K, V] {
	o.d.t.Helper()
	var list []KeyValue[K, V]
	for _, r := range o.Read() {
		list = append(list, KeyValue[K, V]{r.Key, r.Value, r.Tombstone})
	}
	return list
}

// Empty says whether there is nothing to read.
func (o *Output[K, V]) Empty() bool {
	o.d.t.Helper()
	for p := range o.d.sim.Topics()[o.topic] {
		if len(o.fetch(p, o.next[p])) > 0 {
			return false
		}
	}
	return true
}

// All returns all records of the topic, read or not.
func (o *Output[K, V]) All() []weir.Record[K, V] {
	o.d.t.Helper()
	var list []weir.Record[K, V]
	for p := range o.d.sim.Topics()[o.topic] {
		list = append(list, o.fetch(p, 0)...)
	}
	return list
}

// Last returns the value of the newest record of a key, read or not, and false
// if there is none or it has no value.
func (o *Output[K, V]) Last(key K) (v V, found bool) {
	o.d.t.Helper()
	want, err := o.key.Append(nil, key)
	if err != nil {
		o.d.t.Fatalf("weirtest: key for topic %q: %v", o.topic, err)
	}
	for p := range o.d.sim.Topics()[o.topic] {
		for _, r := range o.fetch(p, 0) {
			k, err := o.key.Append(nil, r.Key)
			if err == nil && !r.KeyNull && string(k) == string(want) {
				v, found = r.Value, !r.Tombstone
			}
		}
	}
	return v, found
}

// fetch returns the committed records of a partition from an offset on.
func (o *Output[K, V]) fetch(partition int32, from int64) []weir.Record[K, V] {
	o.d.t.Helper()
	raw, err := o.d.sim.ReadCommitted(worker.TopicPartition{Topic: o.topic, Partition: partition})
	if err != nil {
		o.d.t.Fatalf("weirtest: %v", err)
	}
	var list []weir.Record[K, V]
	for i := range raw {
		r := &raw[i]
		if r.Offset < from {
			continue
		}
		out := weir.Record[K, V]{KeyNull: r.Key == nil, Tombstone: r.Value == nil, Time: time.UnixMilli(r.Timestamp).UTC(),
			Source: weir.Source{Topic: o.topic, Partition: partition, Offset: r.Offset}}
		if r.Key != nil {
			if out.Key, err = o.key.Decode(r.Key); err != nil {
				o.d.t.Fatalf("weirtest: the key of %s[%d]@%d cannot be decoded: %v", o.topic, partition, r.Offset, err)
			}
		}
		if r.Value != nil {
			if out.Value, err = o.value.Decode(r.Value); err != nil {
				o.d.t.Fatalf("weirtest: the value of %s[%d]@%d cannot be decoded: %v", o.topic, partition, r.Offset, err)
			}
		}
		for _, h := range r.Headers {
			out.Headers = append(out.Headers, weir.Header(h))
		}
		list = append(list, out)
	}
	return list
}

// RawRecord is a record as it lies in the log of a partition.
type RawRecord struct {
	Partition  int32
	Offset     int64
	Time       time.Time
	Key, Value []byte // nil: null
	Headers    []weir.Header
	// Marker is "commit" or "abort" for a transaction marker, else empty.
	Marker string
	// Open says that the record's transaction is not decided, Aborted that it
	// was aborted: a reader of what is committed sees neither.
	Open, Aborted bool
}

// Raw returns everything in a topic, by its name on the broker: transaction
// markers, and records of transactions that are open or aborted, are among it.
func (d *Driver) Raw(topic string) []RawRecord {
	d.t.Helper()
	n, ok := d.sim.Topics()[topic]
	if !ok {
		d.t.Fatalf("weirtest: there is no topic %q", topic)
	}
	var list []RawRecord
	for p := range n {
		entries, err := d.sim.Log(worker.TopicPartition{Topic: topic, Partition: p})
		if err != nil {
			d.t.Fatalf("weirtest: %v", err)
		}
		for _, e := range entries {
			r := RawRecord{Partition: p, Offset: e.Offset, Time: time.UnixMilli(e.Timestamp).UTC(), Key: e.Key, Value: e.Value, Open: e.Open, Aborted: e.Aborted}
			switch {
			case e.Control && e.Commit:
				r.Marker = "commit"
			case e.Control:
				r.Marker = "abort"
			}
			for _, h := range e.Headers {
				r.Headers = append(r.Headers, weir.Header(h))
			}
			list = append(list, r)
		}
	}
	return list
}

// Changelog returns everything in the changelog of a store: see Raw.
func (d *Driver) Changelog(store string) []RawRecord {
	d.t.Helper()
	for _, c := range d.res.Changelogs {
		if c.Store == store {
			return d.Raw(c.Name)
		}
	}
	d.t.Fatalf("weirtest: the topology has no store %q with a changelog", store)
	return nil
}
