package outbox

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/internal/wire"
	"github.com/weirstreams/weir/state"
)

// segmentVersion is the layout of a segment.
const segmentVersion = 1

// segmentHead is version and checksum.
const segmentHead = 1 + wire.ChecksumBytes

// Segment is the outputs of one batch.
type Segment struct {
	Head
	// Outputs have no ID header; Sent adds it.
	Outputs []task.Output
}

// Encode returns the segment as a store keeps it.
func (s *Segment) Encode() []byte {
	b := make([]byte, segmentHead, segmentHead+64+s.Size())
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
			b = wire.AppendString(b, o.Topic)
			topic = o.Topic
		}
		b = binary.AppendVarint(b, int64(o.Partition))
		b = binary.AppendVarint(b, o.Timestamp)
		b = wire.AppendOptional(b, o.Key)
		b = wire.AppendOptional(b, o.Value)
		b = binary.AppendUvarint(b, uint64(len(o.Headers)))
		for _, h := range o.Headers {
			b = wire.AppendOptional(wire.AppendString(b, h.Key), h.Value)
		}
	}
	wire.Seal(b, 1)
	return b
}

// Size bounds what an output takes in a segment.
func Size(o *task.Output) int {
	n := len(o.Topic) + len(o.Key) + len(o.Value) + task.OutputOverhead
	for _, h := range o.Headers {
		n += len(h.Key) + len(h.Value) + task.HeaderOverhead
	}
	return n
}

// Head is what a segment says of its batch.
type Head struct {
	Lineage stamp.Lineage
	Task    topology.TaskID
	Seq     uint64
	Nonce   uint64
	// Prev is the Seq of the batch before, 0 for none: numbers have gaps where
	// the state was claimed.
	Prev uint64
}

// DecodeHead is Decode without the outputs.
func DecodeHead(b []byte) (Head, error) {
	h, _, err := decodeHead(b)
	return h, err
}

func decodeHead(b []byte) (Head, wire.Reader, error) {
	if !wire.Sealed(b, 1) {
		return Head{}, wire.Reader{}, fmt.Errorf("outbox segment of %d bytes: %w: wrong checksum", len(b), state.ErrCorrupt)
	}
	if b[0] != segmentVersion {
		return Head{}, wire.Reader{}, fmt.Errorf("outbox segment of layout %d: %w: this one reads layout %d", b[0], stamp.ErrNewer, segmentVersion)
	}
	r := wire.NewReader(b[segmentHead:])
	var h Head
	r.Fixed(h.Lineage[:])
	h.Task.Subtopology, h.Task.Partition = int32(r.Uint32()), int32(r.Uint32())
	h.Seq, h.Nonce, h.Prev = r.Uvarint(), r.Uint64(), r.Uvarint()
	if r.Bad() {
		return Head{}, r, fmt.Errorf("outbox segment: %w: %w", state.ErrCorrupt, errDamaged)
	}
	return h, r, nil
}

// The least that an output and a header take.
const (
	minOutputBytes = 6
	minHeaderBytes = 2
)

// Size bounds what the outputs take.
func (s *Segment) Size() int {
	n := 0
	for i := range s.Outputs {
		n += Size(&s.Outputs[i])
	}
	return n
}

// Decode reads what Encode wrote. Keys, values and headers of the outputs are
// parts of b. The error matches state.ErrCorrupt, or stamp.ErrNewer.
func Decode(b []byte) (Segment, error) {
	h, r, err := decodeHead(b)
	if err != nil {
		return Segment{}, err
	}
	s := Segment{Head: h}
	if n := r.Count(minOutputBytes); n > 0 {
		s.Outputs = make([]task.Output, n)
	}
	topic := ""
	for i := range s.Outputs {
		o := &s.Outputs[i]
		if t := r.Take(r.Count(1)); len(t) > 0 {
			topic = string(t)
		}
		o.Topic, o.Store = topic, -1
		o.Partition, o.Timestamp = r.Int32(), r.Varint()
		o.Key, o.Value = r.Optional(), r.Optional()
		if n := r.Count(minHeaderBytes); n > 0 {
			o.Headers = make([]task.Header, n)
		}
		for j := range o.Headers {
			o.Headers[j].Key = r.String()
			o.Headers[j].Value = r.Optional()
		}
		if r.Bad() {
			break // the rest would be empty as well
		}
	}
	if !r.Done() {
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
