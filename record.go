package weir

import (
	"time"

	"github.com/weirstreams/weir/internal/task"
)

// Record is a record as a [Processor] sees it. It is a value and may be kept,
// changed and emitted; the bytes of header values are shared and must not be
// changed.
type Record[K, V any] struct {
	Key   K
	Value V
	// KeyNull says that the record has no key; Key is then the zero value.
	KeyNull bool
	// Tombstone says that the record has no value; Value is then the zero value.
	Tombstone bool
	// Time is the timestamp of the record, in UTC and whole milliseconds.
	Time    time.Time
	Headers []Header
	// Source says where the input record came from. It is ignored in records
	// that are emitted.
	Source Source
}

// Header is a header of a record. Keys may repeat and keep their order.
type Header struct {
	Key   string
	Value []byte
}

// Source is where the input record came from that is being processed, also for
// records that an earlier step made of it. It is the zero value for records
// made by a punctuation.
type Source struct {
	Topic     string
	Partition int32
	Offset    int64
}

// meta is what a record has beside key and value.
type meta struct {
	keyNull   bool
	tombstone bool
	ts        int64 // ms since the Unix epoch, never negative
	headers   []task.Header
}

// rec is a record on its way through the steps of a stream. It belongs to the
// step that made it, which uses it again for the next one: a step that gets one
// neither changes nor keeps it. Key and value are zero when they are missing.
type rec[K, V any] struct {
	key K
	val V
	meta
}

// change is an update of a table on its way through steps. Old is set only if a
// step below asked for it (node.requireOld). The rules of rec hold.
type change[K, V any] struct {
	key            K
	new, old       V
	hasNew, hasOld bool
	ts             int64
	headers        []task.Header
}

// fromTaskHeaders makes the headers that a user sees.
func fromTaskHeaders(headers []task.Header) []Header {
	if len(headers) == 0 {
		return nil
	}
	out := make([]Header, len(headers))
	for i, h := range headers {
		out[i] = Header(h)
	}
	return out
}

func toTaskHeaders(headers []Header) []task.Header {
	if len(headers) == 0 {
		return nil
	}
	out := make([]task.Header, len(headers))
	for i, h := range headers {
		out[i] = task.Header(h)
	}
	return out
}
