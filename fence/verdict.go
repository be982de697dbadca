package fence

import "fmt"

// Verdict says what became of a record.
type Verdict uint8

// The verdicts. An output is due for Apply, Reemit and Rebase.
const (
	// Apply: the record is newer than the state of its key, which it changed.
	Apply Verdict = iota + 1
	// Reemit: the record was applied before, and its offset is not known to be
	// committed. The state is untouched. The result holds what the record left
	// the first time, so that its output is the same as then.
	Reemit
	// Skip: the record was applied before and is committed, or was left out
	// before. The state is untouched and no output is due.
	Skip
	// Rebase: the state of the key comes from another partition. It was
	// changed, and its fence is now that of the record. This is normal once
	// after the number of partitions was changed, and an alert else.
	Rebase
	// DeadLetter: the record must not touch the state. The result says why.
	DeadLetter
	// Fenced: another owner has taken the partition. Nothing of the batch was
	// written. It comes as [ErrFenced] and never in a result; metrics count it.
	Fenced
)

var verdictNames = [...]string{Apply: "apply", Reemit: "reemit", Skip: "skip", Rebase: "rebase", DeadLetter: "dlq", Fenced: "fence"}

// String is the name of the verdict as metrics, logs and the command line show it.
func (v Verdict) String() string {
	if int(v) < len(verdictNames) && verdictNames[v] != "" {
		return verdictNames[v]
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

// Emits says that an output is due.
func (v Verdict) Emits() bool { return v == Apply || v == Reemit || v == Rebase }

// Reason says why a record is a dead letter.
type Reason string

// The reasons. A caller who leaves records out has reasons of his own.
const (
	// NoKey: the record has no key, so there is no state for it.
	NoKey Reason = "no key"
	// WrongPartition: the key belongs to another partition: the producer uses
	// another partitioner, or the number of partitions was changed.
	WrongPartition Reason = "wrong partition"
	// OldPartitions: the state of the key was last changed by a record of a
	// topic with more partitions, so this one is from before a migration.
	OldPartitions Reason = "fewer partitions than the state"
)
