package worker

import (
	"context"
	"errors"
	"time"

	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/keyenc"
	"github.com/weirstreams/weir/internal/task"
)

// TopicPartition names a partition.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// Fetched is a run of records of one partition, in offset order, transaction
// markers included. The records are valid until the next Poll of the same
// member or reader; their bytes stay.
type Fetched struct {
	TopicPartition
	Records []task.Record
	// End is the end of what a reader of this isolation may read: the last
	// stable offset or the high watermark.
	End int64
	Err error
}

// Committed is an offset commit as the group holds it. Offset is -1 when there
// is none.
type Committed struct {
	Offset      int64
	LeaderEpoch int32
	Metadata    string
}

// OffsetCommit is one offset to commit.
type OffsetCommit struct {
	TopicPartition
	Offset      int64
	LeaderEpoch int32
	Metadata    string
}

// Outcome is how the end of a transaction went.
type Outcome int

// A commit is Done, Aborted (the broker has certainly not committed) or
// Unknown: then nobody may guess, the client has to be rebuilt and the stamp
// tells (C5 in docs/guarantees.md).
const (
	Done Outcome = iota
	Aborted
	Unknown
)

// Errors of the broker seam. An error of Flush or Commit that is none of these
// means an unknown outcome.
var (
	// ErrFenced says that a newer producer took the transactional id, or that
	// the broker forgot it. The client has to be rebuilt.
	ErrFenced = errors.New("producer fenced or expired")
	// ErrOutOfRange is a Fetched.Err: the position is outside the log.
	ErrOutOfRange = errors.New("offset out of range")
	// ErrNotMember is returned by Confirm when the group does not know this
	// member in this generation.
	ErrNotMember = errors.New("no member of the group")
	// ErrUnstable is returned by Committed when an open transaction holds one
	// of the offsets: nobody knows yet, so ask again later.
	ErrUnstable = errors.New("an open transaction holds the offset")
)

// Broker is what workers need from Kafka. The worker calls it from one
// goroutine; each call is a point where a simulation may switch, fail or
// crash.
type Broker interface {
	// Join builds a client that is a member of the group and, under exactly
	// once, a transactional producer. It does not wait for an assignment.
	Join(ctx context.Context, cfg MemberConfig) (Member, error)
	// Reader builds a client that reads partitions directly.
	Reader(ctx context.Context, committedOnly bool) (Reader, error)
}

// MemberConfig says who joins.
type MemberConfig struct {
	Group           string
	TransactionalID string // empty: no transactions (at least once)
	Topics          []string
	Listener        Listener
	// UserData is asked for at each join of the group, Tasks by the leader:
	// counts are the partition counts of the topics now.
	UserData func() assign.UserData
	Tasks    func(counts map[string]int32) ([]assign.Task, error)
}

// Listener hears of the group. Assigned, Revoked and Lost are called while the
// member's owner is between AllowRebalance and the return of the next Poll,
// never at another time and never two at once.
type Listener interface {
	// Assigned tells of new partitions. They are paused: their owner resumes
	// them. It is called after each rebalance, also if nothing is added.
	// followUp says that another rebalance comes, since partitions are on their
	// way from one member to another.
	Assigned(added []TopicPartition, followUp bool)
	// Revoked returns when the partitions are off the worker.
	Revoked(gone []TopicPartition)
	// Lost is Revoked without the chance to commit anything.
	Lost(gone []TopicPartition)
	// RebalanceWaiting says that the group waits for AllowRebalance. It may
	// come at any time from any goroutine.
	RebalanceWaiting()
}

// Member is one group member with its producer.
type Member interface {
	// Poll waits up to wait for records, at most limit of them. Rebalances
	// happen only before it returns. From its return to AllowRebalance the
	// assignment stands.
	Poll(ctx context.Context, limit int, wait time.Duration) ([]Fetched, error)
	// AllowRebalance lets a waiting rebalance go ahead. Nothing may be
	// uncommitted.
	AllowRebalance()

	// Begin starts a transaction. Local and cheap.
	Begin() error
	// Produce sends records. It may block while the producer's buffer is full.
	// Errors come with Flush. Behind a record that has failed none of its
	// partition is written until the next Begin. A record with a null key and an
	// id (PlaceByID) goes to the same partition each time. The slice is the caller's again when Produce
	// returns; the bytes of the records stay until Commit or Abort.
	Produce(ctx context.Context, out []task.Output)
	// Flush waits until all records are acknowledged and returns the first
	// error, which makes the transaction fail.
	Flush(ctx context.Context) error
	// Produced is the offset after the last acknowledged record of a changelog
	// partition in this transaction, -1 when there was none.
	Produced(tp TopicPartition) int64
	// Commit commits offsets and everything produced since Begin.
	Commit(ctx context.Context, offsets []OffsetCommit) (Outcome, error)
	// Abort drops everything produced since Begin.
	Abort(ctx context.Context) error

	// Committed returns the offsets of the group as they are once the
	// transactions that hold any of them are decided (a stable fetch, KIP-447).
	// It waits for that, or returns ErrUnstable.
	Committed(ctx context.Context, tps []TopicPartition) (map[TopicPartition]Committed, error)
	// Bounds returns the first and the end offset of partitions.
	Bounds(ctx context.Context, tps []TopicPartition) (map[TopicPartition]Bounds, error)
	// Confirm asks the group whether this member still belongs to it.
	Confirm(ctx context.Context) error
	// Seek sets where to fetch next; Pause stops fetching, Resume goes on.
	Seek(offsets map[TopicPartition]int64)
	Pause(tps []TopicPartition)
	Resume(tps []TopicPartition)
	// DeleteRecords drops the records below the given offsets.
	DeleteRecords(ctx context.Context, below map[TopicPartition]int64) error
	// TopicFacts returns id and partition count of a subscribed topic.
	TopicFacts(ctx context.Context, topics []string) (map[string]TopicFacts, error)
	// Assignment is what the group's leader last said beside the partitions.
	Assignment() assign.Assignment
	// Close leaves the group, aborts what is open and releases the client.
	Close(ctx context.Context)
}

// PlaceByID is the partition of a record that has no key but an id: who drops
// repetitions looks at one partition, so they have to come there again. ok is
// false for a record without an id.
func PlaceByID(id []byte, partitions int32) (partition int32, ok bool) {
	if id == nil {
		return 0, false
	}
	return keyenc.Partition(id, partitions), true
}

// Bounds are the first offset of a partition and its end for a reader of the
// member's isolation; High is the high watermark.
type Bounds struct {
	Start, End, High int64
}

// TopicFacts is what a stamp says about a topic.
type TopicFacts struct {
	ID         [16]byte
	Partitions int32
}

// Reader reads partitions without a group.
type Reader interface {
	// Add starts reading a partition at an offset; Remove stops.
	Add(offsets map[TopicPartition]int64)
	Remove(tps []TopicPartition)
	// Poll waits up to wait for records, at most limit of them.
	Poll(ctx context.Context, limit int, wait time.Duration) ([]Fetched, error)
	// Bounds is Member.Bounds.
	Bounds(ctx context.Context, tps []TopicPartition) (map[TopicPartition]Bounds, error)
	// Skip returns the offset of the first record at or after from that a
	// reader would see, or the end of the partition when there is none. It
	// finds the end of a log whose tail was compacted away.
	Skip(ctx context.Context, tp TopicPartition, from int64) (int64, error)
	Close()
}

// Clock is the wall clock of a worker.
type Clock interface {
	Now() time.Time
}
