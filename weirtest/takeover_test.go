package weirtest

import (
	"encoding/base64"
	"encoding/binary"
	"testing"
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/serde"
)

// clockProc writes the stream time of its task for each record.
type clockProc struct {
	weir.ProcessorDefaults
	t   *weir.Task
	out *weir.Emitter[string, int64]
}

func (p *clockProc) Init(t *weir.Task, out *weir.Emitter[string, int64]) error {
	p.t, p.out = t, out
	return nil
}

func (p *clockProc) Process(r weir.Record[string, string]) error {
	p.out.Emit(weir.Record[string, int64]{Key: r.Key, Value: p.t.StreamTime().UnixMilli()})
	return nil
}

// streamsMetadata is what Kafka Streams keeps with a committed offset.
func streamsMetadata(partitionTime int64) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64([]byte{2}, uint64(partitionTime)))
}

// A group that Kafka Streams has left behind goes on where it was: at its
// offsets, with the state of the changelogs, and with the time of its partitions.
func TestTakeover(t *testing.T) {
	t.Parallel()
	b := weir.NewBuilder()
	in := b.Stream(countsIn)
	table := in.GroupByKey().Count("counts")
	times := weir.NewTopic("times", serde.String, serde.Int64)
	in.Process("clock", func() *clockProc { return &clockProc{} }).To(times)
	topology, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	d := New(t, topology, Options{Store: Memory()})
	d.Instance(0).Stop()
	d.Instance(0).DropState()
	if err := d.sim.ExpireGroup("test"); err != nil {
		t.Fatal(err)
	}
	now := d.Now().UnixMilli()
	input, log := worker.TopicPartition{Topic: "in"}, worker.TopicPartition{Topic: "test-counts-changelog"}
	for range 7 {
		if _, err := d.sim.Append(input, task.Record{Key: []byte("k"), Value: []byte("old"), Timestamp: now}); err != nil {
			t.Fatal(err)
		}
	}
	// The last transaction of the Java application: the group has its offsets,
	// and the changelog does not know yet that it is committed.
	tx := d.sim.Transaction("java-0", time.Minute)
	if err := tx.Append(log, task.Record{Key: []byte("k"), Value: []byte{0, 0, 0, 0, 0, 0, 0, 7}, Timestamp: now}); err != nil {
		t.Fatal(err)
	}
	d.sim.SetOffsets("test", worker.OffsetCommit{TopicPartition: input, Offset: 7, LeaderEpoch: -1, Metadata: streamsMetadata(now + 5000)})
	d.settling = true // time stands still
	d.Instance(0).start()
	for d.pass() || d.commit() {
	}
	if got := d.Instance(0).Tasks(); len(got) != 0 {
		t.Errorf("tasks %v run before the last transaction is decided", got)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	d.settling = false
	d.Settle()
	d.Input(countsIn).Send("k", "new")
	if n, _ := d.Table(table).Get("k"); n != 8 {
		t.Errorf("count %d, want 8", n)
	}
	if got, _ := d.Output(times).Last("k"); got != now+5000 {
		t.Errorf("stream time %d, want %d: that of the partition in the offsets", got, now+5000)
	}
	d.Restart()
	d.Input(countsIn).Send("again", "new")
	if got, _ := d.Output(times).Last("again"); got != now+5000 {
		t.Errorf("stream time %d after a restart, want %d again", got, now+5000)
	}
}
