package weir

import (
	"container/list"

	"github.com/weirstreams/weir/internal/outbox"
	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/topology"
)

// HeaderID is the key of the header that holds the id of an output under
// AtLeastOnce on a remote store. An output that is sent again has the same id,
// byte for byte; docs/formats/outbox.md describes it.
const HeaderID = outbox.Header

// maxOrigins bounds what a Deduper remembers.
const maxOrigins = 100_000

// Deduper lets a reader of an application's outputs drop those that it has read
// before. The zero value is ready to use. It is not safe for concurrent use.
//
// Of each partition it remembers, for each task that writes it, the last output:
// some 200 bytes for each pair, at most 100,000 pairs, of which the longest
// unused goes first. That is enough, since the outputs of a task to a partition
// come in order. So records have to be given to it in the order of the log.
//
// It drops what the application has sent twice, be it that a process died before
// it learned that it was written, or that one which was thought dead came back.
// It cannot drop
//
//   - what was read before the Deduper was made, as by a reader that restarts;
//     such a reader keeps the last id of each partition and task beside its own
//     results and gives them to the new Deduper first;
//   - what the application has computed twice, because its store forgot
//     acknowledged writes: that has another id (weir_store_forgot_total);
//   - the outputs of applications that run with another guarantee, or on a local
//     store: they have no ids.
type Deduper struct {
	last map[originOf]*list.Element // of lastOutput
	used list.List                  // the latest first
}

type originOf struct {
	topic     string
	partition int32
	task      topology.TaskID
}

type lastOutput struct {
	origin  originOf
	lineage stamp.Lineage
	seq     uint64
	index   uint32
}

// Repeated says whether a record of a topic's partition is one that was read
// before; id is the value of its header HeaderID, nil if it has none. What has no
// id, or one that this release does not know, is never a repetition.
//
// A task whose state was reset begins anew, as does its numbering.
func (d *Deduper) Repeated(topic string, partition int32, id []byte) bool {
	out, err := outbox.ParseID(id)
	if err != nil {
		return false
	}
	if d.last == nil {
		d.last = map[originOf]*list.Element{}
	}
	o := originOf{topic, partition, out.Task}
	e := d.last[o]
	if e == nil {
		if len(d.last) >= maxOrigins {
			oldest := d.used.Back()
			delete(d.last, d.used.Remove(oldest).(*lastOutput).origin)
		}
		d.last[o] = d.used.PushFront(&lastOutput{o, out.Lineage, out.Seq, out.Index})
		return false
	}
	d.used.MoveToFront(e)
	l := e.Value.(*lastOutput)
	if l.lineage == out.Lineage && (out.Seq < l.seq || out.Seq == l.seq && out.Index <= l.index) {
		return true
	}
	l.lineage, l.seq, l.index = out.Lineage, out.Seq, out.Index
	return false
}
