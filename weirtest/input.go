package weirtest

import (
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/bridge"
	"github.com/weirstreams/weir/internal/keyenc"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/serde"
)

// Input sends records to a topic, as a producer of some other program does. It
// is a value.
type Input[K, V any] struct {
	d         *Driver
	topic     string
	key       serde.Serde[K]
	value     serde.Serde[V]
	partition int32
}

// Input returns the way into a topic. The topology need not read it.
func (d *Driver) Input[K, V any](t weir.Topic[K, V]) Input[K, V] {
	d.t.Helper()
	k, v := serdes(d, t)
	return Input[K, V]{d, t.Name(), k, v, task.AnyPartition}
}

// serdes returns those of a topic that exists.
func serdes[K, V any](d *Driver, t weir.Topic[K, V]) (serde.Serde[K], serde.Serde[V]) {
	d.t.Helper()
	if d.sim.Topics()[t.Name()] == 0 {
		d.t.Fatalf("weirtest: there is no topic %q: the topology does not use it; add it to Options.Partitions", t.Name())
	}
	key, value := bridge.Serdes(t)
	k, okK := key.(serde.Serde[K])
	v, okV := value.(serde.Serde[V])
	if !okK || !okV {
		d.t.Fatalf("weirtest: topic %q was declared without serdes: give NewTopic both", t.Name())
	}
	return k, v
}

// To returns an Input that sends to a partition instead of that of the key.
func (in Input[K, V]) To(partition int32) Input[K, V] {
	in.d.t.Helper()
	if n := in.d.sim.Topics()[in.topic]; partition < 0 || partition >= n {
		in.d.t.Fatalf("weirtest: topic %q has no partition %d: it has %d, see Options.Partitions", in.topic, partition, n)
	}
	in.partition = partition
	return in
}

// Send sends a record with the time of the clock.
func (in Input[K, V]) Send(key K, value V) {
	in.d.t.Helper()
	in.SendRecord(weir.Record[K, V]{Key: key, Value: value})
}

// SendAt sends a record with a time of its own.
func (in Input[K, V]) SendAt(key K, value V, at time.Time) {
	in.d.t.Helper()
	in.SendRecord(weir.Record[K, V]{Key: key, Value: value, Time: at})
}

// SendTombstone sends a record without a value.
func (in Input[K, V]) SendTombstone(key K) {
	in.d.t.Helper()
	in.SendRecord(weir.Record[K, V]{Key: key, Tombstone: true})
}

// SendRecord sends a record with all that belongs to one. A zero Time stands for
// that of the clock; Source is ignored.
func (in Input[K, V]) SendRecord(r weir.Record[K, V]) {
	in.d.t.Helper()
	rec := task.Record{Timestamp: r.Time.UnixMilli()}
	if r.Time.IsZero() {
		rec.Timestamp = in.d.clock.now.UnixMilli()
	}
	var err error
	if !r.KeyNull {
		if rec.Key, err = in.key.Append([]byte{}, r.Key); err != nil {
			in.d.t.Fatalf("weirtest: key of a record for topic %q: %v", in.topic, err)
		}
	}
	if !r.Tombstone {
		if rec.Value, err = in.value.Append([]byte{}, r.Value); err != nil {
			in.d.t.Fatalf("weirtest: value of a record for topic %q: %v", in.topic, err)
		}
	}
	for _, h := range r.Headers {
		rec.Headers = append(rec.Headers, task.Header(h))
	}
	in.send(rec)
}

// SendBytes sends a record as bytes, such as some that cannot be decoded. A nil
// key or value is a null one.
func (in Input[K, V]) SendBytes(key, value []byte, headers ...weir.Header) {
	in.d.t.Helper()
	rec := task.Record{Timestamp: in.d.clock.now.UnixMilli(), Key: key, Value: value}
	for _, h := range headers {
		rec.Headers = append(rec.Headers, task.Header(h))
	}
	in.send(rec)
}

func (in Input[K, V]) send(rec task.Record) {
	in.d.t.Helper()
	tp := worker.TopicPartition{Topic: in.topic, Partition: in.partition}
	if tp.Partition == task.AnyPartition {
		n := in.d.sim.Topics()[in.topic]
		tp.Partition = 0
		if rec.Key != nil {
			tp.Partition = keyenc.Partition(rec.Key, n)
		} else {
			tp.Partition = in.d.turns[in.topic] % n
			in.d.turns[in.topic] = tp.Partition + 1
		}
	}
	if _, err := in.d.sim.Append(tp, rec); err != nil {
		in.d.t.Fatalf("weirtest: send to topic %q: %v", in.topic, err)
	}
	in.d.settle()
}
