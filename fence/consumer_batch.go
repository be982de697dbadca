package fence

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// work is what one goroutine does with the held records of one partition: it
// applies them and makes what is to be sent. It sends nothing.
type work struct {
	cfg       *ConsumerConfig
	fence     *Fence
	claim     *Claim
	messages  []*Message
	next      int64 // the offset behind the messages
	committed int64
	probe     [1]Record

	// results
	err     error // nothing is to be sent, nor committed
	done    int   // how many of the messages are done
	to      int64 // the offset behind them
	send    []*kgo.Record
	letters []Reason // of the dead letters among them
	wrong   bool     // there are records that are on the wrong partition
	stop    *MessageError
}

// Headers of a dead letter, behind the original ones.
const (
	HeaderTopic     = "weir-topic"
	HeaderPartition = "weir-partition"
	HeaderOffset    = "weir-offset"
	HeaderTimestamp = "weir-timestamp" // ms since the Unix epoch
	HeaderVerdict   = "weir-verdict"
	HeaderReason    = "weir-reason"
	HeaderError     = "weir-error"
)

// maxErrorText bounds the text of an error in a dead letter.
const maxErrorText = 4 << 10

// bad is why a record cannot be applied.
type bad struct {
	reason Reason
	err    error
}

// letterMark begins what the pending window holds for a record that is a dead
// letter because of its handler or its state: the record then counts as applied
// without a change, so that its dead letter is sent again when the process dies
// before it was sent. Whether an Op can be applied depends on the state at that
// time and would not be found out a second time.
var letterMark = []byte("\x00weir-dead-letter\x00")

func (b *bad) encode() []byte {
	text := ""
	if b.err != nil {
		text = b.err.Error()
	}
	text = text[:min(len(text), maxErrorText)]
	return slices.Concat(letterMark, []byte(b.reason), []byte{0}, []byte(text))
}

func decodeBad(output []byte) *bad {
	rest, ok := bytes.CutPrefix(output, letterMark)
	if !ok {
		return nil
	}
	reason, text, _ := bytes.Cut(rest, []byte{0})
	b := &bad{reason: Reason(reason)}
	if len(text) > 0 {
		b.err = errors.New(string(text))
	}
	return b
}

// run does the work. What cannot be applied becomes a dead letter; without a
// topic for these the work ends before it.
func (w *work) run(ctx context.Context) {
	limit := w.cfg.MaxBatchRecords
	if o := &w.fence.opts; !o.NoWindow {
		limit = min(limit, o.MaxWindow)
	}
	w.cut(limit)
	results, err := w.apply(ctx)
	if err != nil {
		w.err = err
		return
	}
	w.done, w.to = len(w.messages), w.next
	for i, m := range w.messages {
		res := &results[i]
		var b *bad
		switch {
		case res.Verdict == DeadLetter:
			b = &bad{reason: res.Reason}
			if res.Reason == WrongPartition {
				want, _ := w.fence.CheckPartition(m.Key, m.Partition)
				b.err = fmt.Errorf("the key belongs on partition %d of %d", want, w.fence.Partitions())
				w.wrong = true
			}
		case !res.Verdict.Emits():
			continue
		default:
			if b = decodeBad(res.Output); b == nil {
				b = w.outputs(m, res)
			}
		}
		switch {
		case b == nil:
		case w.strict():
			w.stop = w.stopped(m, b)
			w.done, w.to = i, m.Offset
			return
		default:
			w.send = append(w.send, w.letter(m, b))
			w.letters = append(w.letters, b.reason)
		}
	}
}

// strict says that a record that cannot be applied ends the consumer.
func (w *work) strict() bool { return w.cfg.DeadLetterTopic == "" }

func (w *work) stopped(m *Message, b *bad) *MessageError {
	return &MessageError{m.Topic, m.Partition, m.Offset, b.reason, b.err}
}

// cut leaves message i and those behind it out.
func (w *work) cut(i int) {
	if i < len(w.messages) {
		w.next = w.messages[i].Offset
		w.messages = w.messages[:i]
	}
}

// refuse ends the work before message i, which then is as if it had not been
// read: the program that is started again may know what to do with it.
func (w *work) refuse(i int, b *bad) {
	w.stop = w.stopped(w.messages[i], b)
	w.cut(i)
}

// apply applies the messages, or as many of them as the pending window takes.
func (w *work) apply(ctx context.Context) ([]Result, error) {
	dead := map[int]*bad{}
	for {
		results, err := w.try(ctx, dead)
		var rec *RecordError
		switch {
		case errors.As(err, &rec) && w.strict():
			first := slices.MinFunc(rec.Bad, func(a, b BadRecord) int { return a.Index - b.Index })
			w.refuse(first.Index, &bad{NotApplicable, errors.New(first.Reason)})
		case errors.As(err, &rec):
			for _, r := range rec.Bad {
				dead[r.Index] = &bad{NotApplicable, errors.New(r.Reason)}
			}
		case errors.Is(err, errMessageRefused):
		case errors.Is(err, ErrWindowFull):
			if err := w.room(ctx, err); err != nil {
				return nil, err
			}
		default:
			return results, err
		}
	}
}

// errMessageRefused ends an Update whose Compute has failed.
var errMessageRefused = errors.New("fence: a record was refused")

// room makes room in the pending window: it prunes what is committed, and if
// there is nothing to prune, takes half of the batch, so that it can be
// committed first.
func (w *work) room(ctx context.Context, full error) error {
	before := w.claim.Pending()
	if _, err := w.claim.Apply(ctx, Batch{Committed: w.committed}); err != nil {
		return err
	}
	switch {
	case w.claim.Pending() < before:
		return nil
	case len(w.messages) > 1:
		w.stop = nil // it lies behind the half
		w.cut(len(w.messages) / 2)
		return nil
	}
	return full
}

func (w *work) try(ctx context.Context, dead map[int]*bad) ([]Result, error) {
	if w.cfg.Compute != nil {
		b := Batch{Records: make([]Record, len(w.messages)), Next: w.next, Committed: w.committed}
		for i, m := range w.messages {
			b.Records[i] = Record{Offset: m.Offset, Key: m.Key}
		}
		return w.claim.Update(ctx, b, w.update)
	}
	b := Batch{Records: make([]Record, 0, len(w.messages)), Committed: w.committed}
	for i, m := range w.messages {
		r := Record{Offset: m.Offset, Key: m.Key}
		failed := dead[i]
		if failed == nil {
			r.Op, failed = w.handle(m)
		}
		if failed != nil && w.strict() {
			w.refuse(i, failed)
			break
		}
		if failed != nil {
			r.Op, r.Output = Keep(), failed.encode()
		}
		b.Records = append(b.Records, r)
	}
	b.Next = w.next
	return w.claim.Apply(ctx, b)
}

// valid says whether the fence takes a record.
func (w *work) valid(m *Message, op Op, output []byte) error {
	w.probe[0] = Record{Offset: m.Offset, Key: m.Key, Op: op, Output: output}
	return w.claim.check(&Batch{Records: w.probe[:]})
}

// handle calls Handle, and checks what it returns.
func (w *work) handle(m *Message) (op Op, failed *bad) {
	defer w.recovered(m, &failed)
	op, err := w.cfg.Handle(m)
	if err != nil {
		return Op{}, &bad{HandlerFailed, err}
	}
	if err := w.valid(m, op, nil); err != nil {
		return Op{}, &bad{NotApplicable, err}
	}
	return op, nil
}

// update is what Compute is wrapped in.
func (w *work) update(r *Record, state []byte, exists bool) (Change, error) {
	i, _ := slices.BinarySearchFunc(w.messages, r.Offset, func(m *Message, o int64) int { return cmp.Compare(m.Offset, o) })
	c, failed := w.compute(w.messages[i], state, exists)
	switch {
	case failed == nil:
		return c, nil
	case w.strict():
		w.refuse(i, failed)
		return c, errMessageRefused
	}
	c = Change{Output: failed.encode()}
	if exists {
		c.Value = append([]byte{}, state...)
	}
	return c, nil
}

func (w *work) compute(m *Message, state []byte, exists bool) (c Change, failed *bad) {
	defer w.recovered(m, &failed)
	c, err := w.cfg.Compute(m, state, exists)
	if err != nil {
		return Change{}, &bad{HandlerFailed, err}
	}
	base := state
	if exists && base == nil {
		base = []byte{}
	}
	if err := w.valid(m, CompareAndSet(base, c.Value), c.Output); err != nil {
		return Change{}, &bad{NotApplicable, err}
	}
	return c, nil
}

// recovered turns a panic of user code into a bad record.
func (w *work) recovered(m *Message, failed **bad) {
	if r := recover(); r != nil {
		w.cfg.Logger.Error("a handler has panicked", "topic", m.Topic, "partition", m.Partition, "offset", m.Offset, "error", r, "stack", string(debug.Stack()))
		*failed = &bad{HandlerPanicked, fmt.Errorf("panic: %v", r)}
	}
}

// outputs makes what is to be sent for a record that was applied. The result of
// the first time and of a later one are made the same, so that Output cannot
// tell them apart.
func (w *work) outputs(m *Message, res *Result) (failed *bad) {
	if w.cfg.Output == nil {
		return nil
	}
	defer w.recovered(m, &failed)
	var after After
	switch {
	case res.Output != nil:
		after.Output = res.Output
	case res.Exists:
		after.State, after.Exists = res.State, true
		if after.State == nil {
			after.State = []byte{}
		}
	}
	list, err := w.cfg.Output(m, after)
	if err != nil {
		return &bad{OutputFailed, err}
	}
	records := make([]*kgo.Record, 0, len(list))
	for i := range list {
		o := &list[i]
		if o.Topic == "" {
			return &bad{OutputFailed, errors.New("an output without a topic")}
		}
		r := &kgo.Record{Topic: o.Topic, Key: o.Key, Value: o.Value, Timestamp: o.Time}
		if o.Time.IsZero() {
			r.Timestamp = m.Time
		}
		for _, h := range o.Headers {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		records = append(records, r)
	}
	w.send = append(w.send, records...)
	return nil
}

// letter is the record as it came, byte for byte, with what was wrong in headers.
func (w *work) letter(m *Message, b *bad) *kgo.Record {
	r := &kgo.Record{Topic: w.cfg.DeadLetterTopic, Key: m.Key, Value: m.Value, Timestamp: m.Time}
	for _, h := range m.Headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	add := func(k, v string) { r.Headers = append(r.Headers, kgo.RecordHeader{Key: k, Value: []byte(v)}) }
	add(HeaderTopic, m.Topic)
	add(HeaderPartition, strconv.Itoa(int(m.Partition)))
	add(HeaderOffset, strconv.FormatInt(m.Offset, 10))
	add(HeaderTimestamp, strconv.FormatInt(m.Time.UnixMilli(), 10))
	add(HeaderVerdict, DeadLetter.String())
	add(HeaderReason, string(b.reason))
	if b.err != nil {
		text := b.err.Error()
		add(HeaderError, text[:min(len(text), maxErrorText)])
	}
	return r
}

// backoff is the time before the next attempt.
func backoff(attempt int) time.Duration {
	return min(retryMin<<min(attempt, 10), retryMax)
}

// Bounds of the time between two attempts at the same batch.
const (
	retryMin = 50 * time.Millisecond
	retryMax = 2 * time.Second
)
