// Package stamp holds the two records of facts by which Kafka and a view of a
// task's state are compared when the task is claimed: the Token that a view
// stores beside its data, and the Stamp that travels in the metadata of the
// offsets committed to Kafka. Decide turns the two into a Verdict.
//
// The package is pure: no clock, no randomness, no I/O. Byte layouts are in
// docs/formats/stamp.md.
package stamp

import (
	"encoding/hex"
	"errors"
	"fmt"
)

// MaxMetadataBytes is the longest metadata of a committed offset that a broker
// takes by default (offset.metadata.max.bytes). A topology whose stamp could
// get longer, see MaxStampSize, cannot be committed and must be refused when
// it is built.
const MaxMetadataBytes = 4096

// ErrNewer says that a token or stamp was written by a newer release of this
// library in a layout that this one does not know. The data is not damaged.
var ErrNewer = errors.New("written by a newer release")

// Lineage is the random identity of a task's state. It is made at the first
// claim and again when the state is reset on purpose, so that leftovers of
// another life of the task are never taken for this one's.
type Lineage [16]byte

// String returns the lineage as 32 hexadecimal digits.
func (l Lineage) String() string { return hex.EncodeToString(l[:]) }

// Offset is a position: the next offset to read of the task's own partition
// of a changelog (Name is the store) or of an input topic (Name is the topic).
type Offset struct {
	Name string
	Next int64
}

// Time is a stream time in milliseconds since 1970. Name is the operator that
// it belongs to; "" is the stream time of the task itself. The times of the
// input partitions are in Input.
type Time struct {
	Name   string
	Millis int64
}

// Token is what a view stores beside its data, in the same atomic unit. The
// backend compares its encoding for equality and knows nothing of its fields.
type Token struct {
	Lineage Lineage
	// Epoch counts the claims of the view. Each claim stores Epoch + 1, which
	// is what refuses everybody who holds an older token.
	Epoch uint64
	// Seq and Nonce name the last batch that the view holds as a whole: Seq
	// counts the batches of the lineage from 1, and 0 is a view that holds
	// none; Nonce is random, so that two batches of one number differ.
	Seq, Nonce uint64
	// Changelog is the next offset per store: what was written before it is
	// in the view.
	Changelog []Offset
	// Inputs is the next offset per input topic after batch Seq.
	Inputs []Offset
	// Wall is a time at which batch Seq was the last one, in milliseconds since
	// 1970 by the writer's clock: before its commit was sent, or before the group
	// was asked what is committed. Not when the token was written: a writer that
	// stood still in between may have missed tombstones. A view older than the
	// changelog's tombstones live cannot be brought up to date by a replay. While
	// a restore is under way it is that of what the restore began with.
	Wall int64
	// Times are the stream times after batch Seq.
	Times []Time
	// Restoring says that a restore is under way: the contents are a partial
	// replay of the changelog up to Changelog and not the state after any
	// batch. Seq and Nonce then still name the last batch that the view held
	// as a whole, and say nothing about the contents.
	Restoring bool

	// Outbox says that the view has no changelog behind it: it keeps the outputs
	// of its last batches, and its positions are the truth. A claim of such a
	// view raises Seq by more than the batches that may be on their way, and
	// Nonce is new with each claim. The fields below count only then.
	Outbox bool
	// Last is the number of the last batch, whose outputs are the newest segment
	// of the outbox; 0 is none. It differs from Seq after a claim. A view that was
	// taken over from a changelog has the number of its last batch there, which
	// has no segment.
	Last uint64
	// Highs are the last outputs taken from the tasks that write the inputs,
	// ordered by topic and task.
	Highs []High
}

// High names the last output that was taken from a partition of an internal
// topic of those that one task has written there. The outputs of a task to a
// partition come in order, but for repetitions, so what is not above the High is
// one.
type High struct {
	Topic                  string
	Subtopology, Partition int32 // of the task that has written it
	Lineage                Lineage
	Seq                    uint64 // of its batch
	Index                  uint32 // within the batch
}

// MaxHighs is how many Highs a token may have. Each takes some 30 bytes in each
// APPLY, twice. A topology whose tasks are written to by more is refused.
const MaxHighs = 1000

// Input is what a stamp says about one input topic of the task.
type Input struct {
	Topic string
	// ID is the topic's id: a topic that was deleted and created again under
	// the same name has another one, and its offsets mean something else.
	ID [16]byte
	// LeaderEpoch is the leader epoch of the last record processed, -1 when it
	// is not known.
	LeaderEpoch int32
	// Partitions is the topic's partition count.
	Partitions int32
	// Time is the partition time in milliseconds, the highest timestamp
	// processed from the partition; -1 when it is not known.
	Time int64
	// Past is where the task was in the partition at Stamp.PastAt: the next
	// offset. It counts only with an outbox.
	Past int64
}

// Gap is what a claim has left out of the numbers of batches: those above From,
// the last batch of the view before it, up to Base, the number that the claim
// began with. Who has one of them did not know of the claim.
type Gap struct{ From, Base uint64 }

// MaxGaps is how many a stamp has. Each takes at most 20 bytes.
const MaxGaps = 8

// Stamp is what Kafka knows about a batch: the metadata of each offset that
// the batch commits. It is complete in each of them, so any one is enough, and
// of several the one with the highest Seq counts (see Latest).
type Stamp struct {
	Lineage    Lineage
	Seq, Nonce uint64 // as in Token
	// Changelog is the position after the batch: its last write is before it.
	Changelog []Offset
	Times     []Time
	Inputs    []Input

	// Outbox says that the view has one, as in Token. Seq is then the number of a
	// claim or of a batch: no higher one was given away. The fields below count
	// only then.
	Outbox bool
	// Gaps are those of the claims so far, the oldest first; see Acknowledged.
	Gaps []Gap
	// Last is the last batch whose outputs are on the broker.
	Last uint64
	// PastAt is a time, in milliseconds since 1970, at which the task was at the
	// Past of its inputs: what is below may be deleted a while later. 0 is none.
	PastAt int64
}

// Latest returns the stamp with the highest Seq: a batch commits only the
// partitions in which it made progress, so the stamps of the others are older.
// It is an error to call it with none, and for the stamps of one task to be of
// different lineages or to give one Seq to two batches.
func Latest(stamps []Stamp) (Stamp, error) {
	if len(stamps) == 0 {
		return Stamp{}, errors.New("no stamp to choose from")
	}
	latest := stamps[0]
	for _, s := range stamps[1:] {
		switch {
		case s.Lineage != latest.Lineage:
			return Stamp{}, fmt.Errorf("the committed offsets of one task carry stamps of two lineages, %s (seq %d) and %s (seq %d): "+
				"offsets were copied from another group or reset for some of the partitions only; reset the task's state, or restore the offsets",
				latest.Lineage, latest.Seq, s.Lineage, s.Seq)
		case s.Seq == latest.Seq && s.Nonce != latest.Nonce:
			return Stamp{}, fmt.Errorf("the committed offsets of one task carry stamps of two batches with the number %d (nonces %016x and %016x): "+
				"two writers committed for the task; reset the task's state", s.Seq, latest.Nonce, s.Nonce)
		case s.Seq > latest.Seq:
			latest = s
		}
	}
	return latest, nil
}
