package weir

import (
	"errors"
	"fmt"

	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/worker"
	"github.com/weirstreams/weir/state"
)

// Errors of an App and its readers. They come wrapped with the details.
var (
	// ErrConfig says that a Config cannot work. Nothing was started.
	ErrConfig = errors.New("weir: invalid configuration")
	// ErrTopics says that topics are missing or not as they have to be.
	ErrTopics = errors.New("weir: topics do not fit the topology")
	// ErrNotRunning says that the App was not started, or has ended.
	ErrNotRunning = errors.New("weir: the application is not running")
	// ErrAlreadyRun says that Run was called twice: an App runs once.
	ErrAlreadyRun = errors.New("weir: the application was run before")
	// ErrNotOwner says that the task of a key is not on this instance.
	ErrNotOwner = errors.New("weir: the key belongs to another instance")
	// ErrRestoring says that the task of a key is not ready yet. Try again.
	ErrRestoring = errors.New("weir: the state is being restored")
	// ErrUnordered says that a range was asked for of a store that was declared
	// with PointLookups.
	ErrUnordered = errors.New("weir: the store keeps its keys without order")
	// ErrNoSuchStore says that the topology has no store of that name.
	ErrNoSuchStore = errors.New("weir: no such store")
	// ErrStateMismatch says that stored state and committed offsets contradict
	// each other, so that a person has to decide. Nothing was changed.
	ErrStateMismatch = errors.New("weir: state and committed offsets do not belong together")
	// ErrStoreFull says that the store has no room. Nothing was committed past
	// the failed write.
	ErrStoreFull = errors.New("weir: the store is full")
	// ErrStoreUnavailable says that a remote store could not be asked. The
	// tasks that use it pause until it is back. Try again.
	ErrStoreUnavailable = errors.New("weir: the store is unavailable")
	// ErrBatchTooLarge says that one record, or the punctuations that it causes,
	// writes more than the store takes in one step, under AtLeastOnce on a remote
	// store.
	ErrBatchTooLarge = errors.New("weir: one record exceeds a batch")
)

// ErrorClass says what kind of thing failed in a task.
type ErrorClass string

// The classes of errors.
const (
	DecodeError    ErrorClass = ErrorClass(task.ClassDecode)    // an input record cannot be decoded
	ProcessError   ErrorClass = ErrorClass(task.ClassProcess)   // a callback or processor failed or panicked
	PunctuateError ErrorClass = ErrorClass(task.ClassPunctuate) // a punctuation did
	ProduceError   ErrorClass = ErrorClass(task.ClassProduce)   // an output cannot be encoded or is too large
	StoreError     ErrorClass = ErrorClass(task.ClassStore)     // a store failed; never dead-lettered
)

// TaskError is a failure with the place where it happened.
type TaskError struct {
	Class     ErrorClass
	Task      string // as in "0_3"
	Node      string // the operator; empty when unknown
	Topic     string // the input record; empty in a punctuation
	Partition int32
	Offset    int64
	Err       error
}

// Error names class, task, node and record, and then the cause.
func (e *TaskError) Error() string {
	where := "weir: task " + e.Task
	if e.Node != "" {
		where += ", node " + e.Node
	}
	if e.Topic != "" {
		where += fmt.Sprintf(", record %s[%d]@%d", e.Topic, e.Partition, e.Offset)
	}
	return fmt.Sprintf("%s: %s error: %v", where, e.Class, e.Err)
}

// Unwrap returns the cause.
func (e *TaskError) Unwrap() error { return e.Err }

// PanicError is the cause of a TaskError when user code panicked.
type PanicError struct {
	Value any
	Stack []byte // of the panic
}

// Error shows the value of the panic, not the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

func taskError(e *task.Error) *TaskError {
	te := &TaskError{Class: ErrorClass(e.Class), Task: e.Task.String(), Node: e.Node, Topic: e.Topic, Partition: e.Partition, Offset: e.Offset, Err: e.Err}
	if p := (*task.PanicError)(nil); errors.As(e.Err, &p) {
		te.Err = &PanicError{Value: p.Value, Stack: p.Stack}
	}
	return te
}

type mapping struct{ inside, outside error }

var storeErrors = []mapping{{state.ErrFull, ErrStoreFull}, {state.ErrUnavailable, ErrStoreUnavailable}, {task.ErrBatchTooLarge, ErrBatchTooLarge}}

// public turns an error of the inside into one that users can match.
func public(err error) error {
	if err == nil {
		return nil
	}
	var te *task.Error
	if errors.As(err, &te) {
		e := taskError(te)
		for _, m := range storeErrors {
			if errors.Is(err, m.inside) {
				return fmt.Errorf("%w: %w", m.outside, e)
			}
		}
		return e
	}
	for _, m := range append([]mapping{
		{worker.ErrNotHere, ErrNotOwner}, {worker.ErrRestoring, ErrRestoring}, {worker.ErrLineage, ErrStateMismatch},
	}, storeErrors...) {
		if errors.Is(err, m.inside) {
			return fmt.Errorf("%w: %w", m.outside, err)
		}
	}
	return fmt.Errorf("weir: %w", err)
}
