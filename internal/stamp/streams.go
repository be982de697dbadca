package stamp

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
)

// StreamsMetadata is what Kafka Streams keeps in the metadata of a committed
// offset. A group that is taken over goes on with it instead of forgetting
// how far time had come.
type StreamsMetadata struct {
	// PartitionTime is the highest timestamp processed from the partition, in
	// milliseconds; -1 when it was not known.
	PartitionTime int64
	// Processors holds what processors stored for themselves, in the order of
	// their keys; windowed aggregations that emit on close store the close
	// time up to which they emitted.
	Processors []Time
}

// DecodeStreamsMetadata reads metadata that Kafka Streams wrote: base64 of the
// byte 1 or 2, the partition time as eight bytes and, after a 2, optionally a
// map of processor times (TopicPartitionMetadata and ProcessorMetadata in its
// source). Any other metadata is not theirs and no error; theirs is an error
// when it is damaged.
func DecodeStreamsMetadata(metadata string) (m StreamsMetadata, isTheirs bool, err error) {
	const head = 1 + 8
	b, err := base64.StdEncoding.DecodeString(metadata)
	if err != nil || len(b) < head || b[0] != 1 && b[0] != 2 {
		return StreamsMetadata{}, false, nil
	}
	m.PartitionTime = int64(binary.BigEndian.Uint64(b[1:]))
	if b[0] == 1 || len(b) == head {
		return m, true, nil
	}
	damaged := fmt.Errorf("metadata of Kafka Streams in a committed offset is damaged: the map of processor times does not fill its %d bytes", len(b)-head)
	b = b[head:]
	if len(b) < 4 {
		return StreamsMetadata{}, true, damaged
	}
	count := binary.BigEndian.Uint32(b)
	b = b[4:]
	for range count {
		if len(b) < 4 {
			return StreamsMetadata{}, true, damaged
		}
		size := binary.BigEndian.Uint32(b)
		b = b[4:]
		if size > math.MaxInt32 || uint64(len(b)) < uint64(size)+8 {
			return StreamsMetadata{}, true, damaged
		}
		m.Processors = append(m.Processors, Time{string(b[:size]), int64(binary.BigEndian.Uint64(b[size:]))})
		b = b[size+8:]
	}
	if len(b) > 0 {
		return StreamsMetadata{}, true, damaged
	}
	// The Java side writes a hash map, in no order that means anything.
	slices.SortFunc(m.Processors, func(a, b Time) int { return strings.Compare(a.Name, b.Name) })
	return m, true, nil
}
