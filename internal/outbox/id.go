// Package outbox holds what a task without a changelog keeps of its outputs
// until they are acknowledged: the ID that each output carries in a header, by
// which readers know a repetition, and the Segment, the outputs of one batch as
// the store keeps them beside the state.
//
// The package is pure. Byte layouts are in docs/formats/outbox.md.
package outbox

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/weirstreams/weir/internal/stamp"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/internal/wire"
)

// Header is the key of the record header that holds an ID. It is reserved: an
// output never carries that of the record it came from.
const Header = task.HeaderID

// idVersion is the layout of an ID.
const idVersion = 1

// ErrID says that a header is no ID that this release knows.
var ErrID = errors.New("no output id")

// ID names one output of an application. Two records with equal IDs are the
// same output, sent twice. The IDs of the outputs of a task to one partition
// rise, by Seq and then Index, but for repetitions.
type ID struct {
	Lineage stamp.Lineage // of the task's state
	Task    topology.TaskID
	Seq     uint64 // of the batch
	Nonce   uint64 // random, of the batch
	Index   uint32 // within the batch
}

// String is for people.
func (id ID) String() string {
	return fmt.Sprintf("%s/%s/%d.%d", id.Lineage, id.Task, id.Seq, id.Index)
}

// Append appends the value of the header.
func (id ID) Append(b []byte) []byte {
	b = append(b, idVersion)
	b = append(b, id.Lineage[:]...)
	b = binary.AppendUvarint(b, uint64(uint32(id.Task.Subtopology)))
	b = binary.AppendUvarint(b, uint64(uint32(id.Task.Partition)))
	b = binary.AppendUvarint(b, id.Seq)
	b = binary.BigEndian.AppendUint64(b, id.Nonce)
	return binary.AppendUvarint(b, uint64(id.Index))
}

// maxIDBytes bounds an encoded ID.
const maxIDBytes = 1 + 16 + 2*binary.MaxVarintLen32 + binary.MaxVarintLen64 + 8 + binary.MaxVarintLen32

// ParseID reads the value of a header. The error matches ErrID.
func ParseID(b []byte) (ID, error) {
	r := wire.NewReader(b)
	var id ID
	if v := r.Byte(); v != idVersion && !r.Bad() {
		return ID{}, fmt.Errorf("%w: layout %d", ErrID, v)
	}
	r.Fixed(id.Lineage[:])
	id.Task.Subtopology, id.Task.Partition = int32(r.Uint32()), int32(r.Uint32())
	id.Seq = r.Uvarint()
	id.Nonce = r.Uint64()
	id.Index = r.Uint32()
	if !r.Done() {
		return ID{}, fmt.Errorf("%w: the contents do not add up", ErrID)
	}
	return id, nil
}
