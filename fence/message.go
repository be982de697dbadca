package fence

import "time"

// Message is a record of a topic as a consumer got it. Its bytes must not be
// changed.
type Message struct {
	Topic     string
	Partition int32
	Offset    int64
	// LeaderEpoch is that of the partition when the record was fetched, -1 when
	// it is not known.
	LeaderEpoch int32
	Time        time.Time
	Key         []byte // nil for none
	Value       []byte // nil for a tombstone
	Headers     []Header
}

// Header is a header of a record. The same key may be there several times.
type Header struct {
	Key   string
	Value []byte
}
