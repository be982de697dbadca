package topology

import (
	"fmt"
	"strconv"
	"strings"
)

// TaskID names a task: the subtopology and the partition that it works on. It
// prints as Kafka Streams prints it, "0_3".
type TaskID struct {
	Subtopology int32
	Partition   int32
}

// String returns subtopology and partition joined by an underscore.
func (id TaskID) String() string {
	return strconv.Itoa(int(id.Subtopology)) + "_" + strconv.Itoa(int(id.Partition))
}

// Compare orders task ids by subtopology, then by partition.
func (id TaskID) Compare(o TaskID) int {
	if id.Subtopology != o.Subtopology {
		return int(id.Subtopology) - int(o.Subtopology)
	}
	return int(id.Partition) - int(o.Partition)
}

// ParseTaskID reads what String wrote.
func ParseTaskID(s string) (TaskID, error) {
	sub, part, ok := strings.Cut(s, "_")
	n, err := strconv.ParseInt(sub, 10, 32)
	m, err2 := strconv.ParseInt(part, 10, 32)
	id := TaskID{int32(n), int32(m)}
	if !ok || err != nil || err2 != nil || n < 0 || m < 0 || id.String() != s {
		return TaskID{}, fmt.Errorf("%q is no task id: want subtopology_partition, as in 0_3", s)
	}
	return id, nil
}
