package fence

import (
	"errors"
	"fmt"
)

var (
	// ErrFenced says that another owner has claimed the partition. Nothing of
	// the batch was written. Drop the partition, produce and commit nothing of
	// it, and do not claim it again until it is assigned anew.
	ErrFenced = errors.New("fence: fenced by a newer owner")
	// ErrRegressed says that Redis has forgotten writes that it had
	// acknowledged, as after a failover or when an old copy was restored.
	// Nothing of the batch was written. Claim again (after the group has
	// confirmed that the partition is still assigned), and read from
	// Claim.Start: never skip.
	ErrRegressed = errors.New("fence: Redis has forgotten acknowledged writes")
	// ErrMissing says that Redis holds nothing about the partition although
	// the group has committed offsets, or nothing at all although Options.Existing
	// is set: the data are gone, or the name or the database is wrong, or the fence
	// is new for this group. Rewind says where to begin.
	ErrMissing = errors.New("fence: the states are not there")
	// ErrTopicChanged says that the topic was deleted and created again: its
	// offsets have begun anew and mean nothing to the fences. Rewind starts
	// over.
	ErrTopicChanged = errors.New("fence: the topic was created anew")
	// ErrPartitions says that the topic has fewer partitions than the fence has
	// seen, which no topic does.
	ErrPartitions = errors.New("fence: the topic has fewer partitions than before")
	// ErrLayout says that the options contradict those the states were made
	// with: number of slots, partitioner, format.
	ErrLayout = errors.New("fence: the states have another layout")
	// ErrWindowFull says that the pending window has reached Options.MaxWindow.
	// Nothing of the batch was written. Commit, and pass what is committed.
	ErrWindowFull = errors.New("fence: the pending window is full")
	// ErrConflict says that the state of a key was not the expected one. Nothing
	// of the batch was written. Errors of this kind are *ConflictError.
	ErrConflict = errors.New("fence: the state has changed in between")
	// ErrRecord says that records cannot be applied to their states. Nothing of
	// the batch was written. Errors of this kind are *RecordError.
	ErrRecord = errors.New("fence: a record cannot be applied")
	// ErrUnavailable says that Redis could not be asked. Whether the call was
	// carried out is unknown; it is safe to repeat.
	ErrUnavailable = errors.New("fence: Redis is unavailable")
	// ErrReplicas says that the batch was written, but that too few replicas
	// confirmed it in time (wait_replicas of the URL). It comes with ErrUnavailable;
	// produce nothing and repeat the call.
	ErrReplicas = errors.New("fence: too few replicas confirmed the write")
	// ErrFull says that Redis has reached maxmemory. Nothing was written.
	ErrFull = errors.New("fence: Redis is full")
	// ErrCorrupt says that a key of the fence holds something else.
	ErrCorrupt = errors.New("fence: data in Redis are damaged")
	// ErrUnsuitable says that the start-up check refused the server.
	ErrUnsuitable = errors.New("fence: the server is not suitable")
	// ErrReleased says that a claim was released, fenced or replaced.
	ErrReleased = errors.New("fence: the claim has ended")
	// ErrClosed says that the fence was closed.
	ErrClosed = errors.New("fence: closed")
)

// ConflictError lists the keys whose states were not the expected ones.
type ConflictError struct {
	// Keys are the keys.
	Keys [][]byte
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%v: %d keys, the first is %q", ErrConflict, len(e.Keys), e.Keys[0])
}

// Unwrap returns ErrConflict.
func (e *ConflictError) Unwrap() error { return ErrConflict }

// RecordError lists all records of a batch that cannot be applied.
type RecordError struct {
	// Bad are the records, in the order of the batch.
	Bad []BadRecord
}

// BadRecord is a record that cannot be applied.
type BadRecord struct {
	// Index is its place in the batch.
	Index int
	// Offset is its offset.
	Offset int64
	// Reason says what is wrong: "overflow", "not a number", "the reducer
	// failed: ...".
	Reason string
}

func (e *RecordError) Error() string {
	b := e.Bad[0]
	return fmt.Sprintf("%v: %d of the batch, the first at offset %d: %s", ErrRecord, len(e.Bad), b.Offset, b.Reason)
}

// Unwrap returns ErrRecord.
func (e *RecordError) Unwrap() error { return ErrRecord }
