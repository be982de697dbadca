package task

import (
	"errors"
	"fmt"
	"strconv"
)

// The headers that a dead letter carries behind the original ones.
const (
	HeaderTopic     = "weir-topic"
	HeaderPartition = "weir-partition"
	HeaderOffset    = "weir-offset"
	HeaderTimestamp = "weir-timestamp" // ms since the Unix epoch
	HeaderTask      = "weir-task"
	HeaderNode      = "weir-node"
	HeaderClass     = "weir-error-class"
	HeaderError     = "weir-error"
)

// maxErrorText bounds the text of an error in a header.
const maxErrorText = 4 << 10

// deadLetter emits the record being processed as it came, byte for byte, with
// where it came from and what was wrong as headers. A punctuation has no
// record: its dead letter has headers only.
func (t *Task) deadLetter(e *Error) error {
	if t.cfg.DeadLetterTopic == "" {
		return errors.New("no dead-letter topic is configured")
	}
	text := e.Err.Error()
	if len(text) > maxErrorText {
		text = text[:maxErrorText]
	}
	var key, value []byte
	var headers []Header
	ts := max(t.streamTime, 0)
	add := func(k, v string) { headers = append(headers, Header{k, []byte(v)}) }
	if r := t.context.record; r != nil {
		key, value, ts = t.arena.copy(r.Key), t.arena.copy(r.Value), max(r.Timestamp, 0)
		for _, h := range r.Headers {
			headers = append(headers, Header{h.Key, append([]byte(nil), h.Value...)})
		}
		add(HeaderTopic, e.Topic)
		add(HeaderPartition, strconv.Itoa(int(e.Partition)))
		add(HeaderOffset, strconv.FormatInt(e.Offset, 10))
		add(HeaderTimestamp, strconv.FormatInt(r.Timestamp, 10))
	}
	add(HeaderTask, e.Task.String())
	add(HeaderNode, e.Node)
	add(HeaderClass, string(e.Class))
	add(HeaderError, text)
	if err := t.context.Emit(t.cfg.DeadLetterTopic, AnyPartition, key, value, ts, headers); err != nil {
		return fmt.Errorf("dead-letter topic %s: %w", t.cfg.DeadLetterTopic, err)
	}
	return nil
}
