package task

import (
	"fmt"

	"github.com/weirstreams/weir/internal/topology"
)

// Class says what kind of thing failed.
type Class string

// The classes of errors that an error handler is asked about.
const (
	ClassDecode    Class = "decode"    // an input record cannot be decoded
	ClassProcess   Class = "process"   // user code returned an error or panicked
	ClassPunctuate Class = "punctuate" // a punctuation did
	ClassProduce   Class = "produce"   // an output cannot be encoded or is too large
	// ClassStore is a store that failed. It is never dead-lettered: the batch
	// aborts, whatever user code did with the error.
	ClassStore Class = "store"
)

// Error is a failure with the place where it happened.
type Error struct {
	Class     Class
	Task      topology.TaskID
	Node      string // the operator; "" when unknown
	Topic     string // the input record; "" for a punctuation
	Partition int32
	Offset    int64
	Err       error
}

func (e *Error) Error() string {
	where := "task " + e.Task.String()
	if e.Node != "" {
		where += ", node " + e.Node
	}
	if e.Topic != "" {
		where += fmt.Sprintf(", record %s[%d]@%d", e.Topic, e.Partition, e.Offset)
	}
	return fmt.Sprintf("%s: %s error: %v", where, e.Class, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// classified lets code deep inside a record's path say which class its error
// belongs to; anything else is ClassProcess or ClassPunctuate.
type classified struct {
	class Class
	err   error
}

func (c *classified) Error() string { return c.err.Error() }
func (c *classified) Unwrap() error { return c.err }

// Classify marks an error with its class. Nil stays nil.
func Classify(class Class, err error) error {
	if err == nil {
		return nil
	}
	return &classified{class, err}
}

// PanicError is a panic of user code, recovered.
type PanicError struct {
	Value any
	Stack []byte
}

func (p *PanicError) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Decision is the answer of an error handler.
type Decision int

// Stop ends the task and with it the worker; DeadLetter undoes what the record
// did, writes it to the dead-letter topic and goes on.
const (
	Stop Decision = iota
	DeadLetter
)
