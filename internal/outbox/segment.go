package outbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/state"
)

// segmentVersion is the layout of a segment.
const segmentVersion = 1

// segmentHead is version and checksum.
const segmentHead = 1 + crc32.Size

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Segment is the outputs of one batch.
type Segment struct {
	Lineage stamp.Lineage
	Task    topology.TaskID
	Seq     uint64
	Nonce   uint64
	// Prev is the Seq of the batch before, 0 for none: numbers have gaps where
	// the state was claimed.
	Prev uint64
	// Outputs have no ID header; Sent adds it.
	Outputs []task.Output
}

// Encode returns the segment as a store keeps it.
func (s *Segment) Encode() []byte {
	n := segmentHead + 64
	for i := range s.Outputs {
		n += Size(&s.Outputs[i])
	}
	b := make([]byte, segmentHead, n)
	b[0] = segmentVersion
	b = append(b, s.Lineage[:]...)
	b = binary.AppendUvarint(b, uint64(uint32(s.Task.Subtopology)))
	b = binary.AppendUvarint(b, uint64(uint32(s.Task.Partition)))
	b = binary.AppendUvarint(b, s.Seq)
	b = binary.BigEndian.AppendUint64(b, s.Nonce)
	b = binary.AppendUvarint(b, s.Prev)
	b = binary.AppendUvarint(b, uint64(len(s.Outputs)))
	topic := ""
	for i := range s.Outputs {
		o := &s.Outputs[i]
		if o.Topic == topic {
			b = append(b, 0)
		} else {
			b = appendString(b, o.Topic)
			topic = o.Topic
		}
		b = binary.AppendVarint(b, int64(o.Partition))
		b = binary.AppendVarint(b, o.Timestamp)
		b = appendOptional(b, o.Key)
		b = appendOptional(b, o.Value)
		b = binary.AppendUvarint(b, uint64(len(o.Headers)))
		for _, h := range o.Headers {
			b = appendOptional(appendString(b, h.Key), h.Value)
		}
	}
	binary.BigEndian.PutUint32(b[1:], checksum(b))
	return b
}

func checksum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:1], castagnoli), castagnoli, b[segmentHead:])
}

// Size bounds what an output takes in a segment.
func Size(o *task.Output) int {
	n := len(o.Topic) + len(o.Key) + len(o.Value) + task.OutputOverhead
	for _, h := range o.Headers {
		n += len(h.Key) + len(h.Value) + task.HeaderOverhead
	}
	return n
}

// Decode reads what Encode wrote. Keys, values and headers of the outputs are
// parts of b. The error matches state.ErrCorrupt, or stamp.ErrNewer.
func Decode(b []byte) (Segment, error) {
	if len(b) < segmentHead || binary.BigEndian.Uint32(b[1:]) != checksum(b) {
		return Segment{}, fmt.Errorf("outbox segment of %d bytes: %w: wrong checksum", len(b), state.ErrCorrupt)
	}
	if b[0] != segmentVersion {
		return Segment{}, fmt.Errorf("outbox segment of layout %d: %w: this one reads layout %d", b[0], stamp.ErrNewer, segmentVersion)
	}
	r := reader{b: b[segmentHead:]}
	var s Segment
	r.fixed(s.Lineage[:])
	s.Task.Subtopology, s.Task.Partition = int32(r.uint32()), int32(r.uint32())
	s.Seq, s.Nonce, s.Prev = r.uvarint(), r.uint64(), r.uvarint()
	if n := r.count(); n > 0 {
		s.Outputs = make([]task.Output, n)
	}
	topic := ""
	for i := range s.Outputs {
		o := &s.Outputs[i]
		if t := r.take(r.count()); len(t) > 0 {
			topic = string(t)
		}
		o.Topic, o.Store = topic, -1
		p := r.varint()
		o.Partition, o.Timestamp = int32(p), r.varint()
		if int64(o.Partition) != p {
			r.take(-1)
		}
		o.Key, o.Value = r.optional(), r.optional()
		if n := r.count(); n > 0 {
			o.Headers = make([]task.Header, n)
		}
		for j := range o.Headers {
			o.Headers[j].Key = string(r.take(r.count()))
			o.Headers[j].Value = r.optional()
		}
		if r.bad {
			break // the rest would be empty as well
		}
	}
	if r.bad || len(r.b) > 0 {
		return Segment{}, fmt.Errorf("outbox segment: %w: %w", state.ErrCorrupt, errDamaged)
	}
	return s, nil
}

var errDamaged = errors.New("the contents do not add up")

// Sent returns the outputs as they are produced, each with its ID. The numbers
// are those of the segment, so that they are the same each time.
func (s *Segment) Sent() []task.Output {
	out := make([]task.Output, len(s.Outputs))
	ids := make([]byte, 0, len(out)*maxIDBytes)
	headers := 0
	for i := range s.Outputs {
		headers += len(s.Outputs[i].Headers) + 1
	}
	all := make([]task.Header, 0, headers)
	for i := range out {
		out[i] = s.Outputs[i]
		from, first := len(ids), len(all)
		ids = ID{s.Lineage, s.Task, s.Seq, s.Nonce, uint32(i)}.Append(ids)
		all = append(append(all, out[i].Headers...), task.Header{Key: Header, Value: ids[from:len(ids):len(ids)]})
		out[i].Headers = all[first:len(all):len(all)]
	}
	return out
}
