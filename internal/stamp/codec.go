package stamp

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/weirstreams/weir/internal/wire"
	"github.com/weirstreams/weir/state"
)

// Layout versions, and what a stamp begins with. Version and checksum keep their
// places in every layout, so that damage and a newer layout can be told apart.
// The magic is three bytes long so that it fills four base64 digits, which tell
// a stamp from any other metadata even when the rest is damaged. Its first byte
// is neither 1 nor 2, with which the metadata of Kafka Streams begins.
const (
	tokenVersion = 1
	stampVersion = 1
	// Layout 2 of either is that of a view with an outbox. Releases that know
	// layout 1 only must not take it for one with a changelog.
	outboxVersion = 2
	stampMagic    = "WST"
	stampPrefix   = "V1NU" // base64 of stampMagic

	flagRestoring = 1 << 0
)

// The shortest encodings of the list elements: they bound what a damaged
// count can make the decoder allocate.
const (
	minOffsetBytes = 2                      // empty name, one digit
	minTimeBytes   = 2                      // empty name, one digit
	minInputBytes  = 1 + 16 + 3             // empty topic, id, three digits
	minHighBytes   = 1 + 2 + 16 + 2         // empty topic, task, lineage, two digits
	minGapBytes    = 2                      // two digits
	tokenHeadBytes = 1 + wire.ChecksumBytes // version, checksum
	stampHeadBytes = len(stampMagic) + 1 + wire.ChecksumBytes
)

// errDamaged is the decoder's finding before it is put into context.
var errDamaged = errors.New("the contents do not add up")

// Encode returns the token in the form that a backend stores. Equal tokens
// have equal encodings; the order of the lists counts.
func (t Token) Encode() state.Token {
	b := make([]byte, tokenHeadBytes, 128)
	b[0] = tokenVersion
	b = append(b, t.Lineage[:]...)
	b = binary.AppendUvarint(b, t.Epoch)
	b = binary.AppendUvarint(b, t.Seq)
	b = binary.BigEndian.AppendUint64(b, t.Nonce)
	b = binary.AppendVarint(b, t.Wall)
	var flags byte
	if t.Restoring {
		flags |= flagRestoring
	}
	b = append(b, flags)
	b = appendOffsets(b, t.Changelog)
	b = appendOffsets(b, t.Inputs)
	b = appendTimes(b, t.Times)
	if t.Outbox {
		b[0] = outboxVersion
		b = binary.AppendUvarint(b, t.Last)
		b = appendHighs(b, t.Highs)
	}
	wire.Seal(b, 1)
	return state.Token(b)
}

// DecodeToken reads what Token.Encode wrote. A token that is empty, cut short
// or changed is an error that matches state.ErrCorrupt; one of a later layout
// matches ErrNewer.
func DecodeToken(s state.Token) (Token, error) {
	b := []byte(s)
	if len(b) == 0 {
		return Token{}, fmt.Errorf("view token: %w: it is empty", state.ErrCorrupt)
	}
	if !wire.Sealed(b, 1) {
		return Token{}, fmt.Errorf("view token: %w: wrong checksum over %d bytes", state.ErrCorrupt, len(b))
	}
	if b[0] != tokenVersion && b[0] != outboxVersion {
		return Token{}, fmt.Errorf("view token of layout %d: %w: this one reads layouts %d and %d; run the newer release, or drop the view to have it rebuilt",
			b[0], ErrNewer, tokenVersion, outboxVersion)
	}
	r := reader{wire.NewReader(b[tokenHeadBytes:])}
	var t Token
	r.Fixed(t.Lineage[:])
	t.Epoch = r.Uvarint()
	t.Seq = r.Uvarint()
	t.Nonce = r.Uint64()
	t.Wall = r.Varint()
	flags := r.Byte()
	t.Restoring = flags&flagRestoring != 0
	t.Changelog = r.offsets()
	t.Inputs = r.offsets()
	t.Times = r.times()
	if b[0] == outboxVersion {
		t.Outbox, t.Last, t.Highs = true, r.Uvarint(), r.highs()
	}
	if flags&^flagRestoring != 0 || !r.Done() {
		return Token{}, fmt.Errorf("view token: %w: %w", state.ErrCorrupt, errDamaged)
	}
	return t, nil
}

// Encode returns the stamp as the metadata of a committed offset: printable,
// and never longer than MaxStampSize or MaxOutboxStampSize says.
func (s Stamp) Encode() string {
	b := make([]byte, stampHeadBytes, 256)
	copy(b, stampMagic)
	b[len(stampMagic)] = stampVersion
	b = append(b, s.Lineage[:]...)
	b = binary.AppendUvarint(b, s.Seq)
	b = binary.BigEndian.AppendUint64(b, s.Nonce)
	b = appendOffsets(b, s.Changelog)
	b = appendTimes(b, s.Times)
	b = binary.AppendUvarint(b, uint64(len(s.Inputs)))
	for _, in := range s.Inputs {
		b = wire.AppendString(b, in.Topic)
		b = append(b, in.ID[:]...)
		b = binary.AppendVarint(b, int64(in.LeaderEpoch))
		b = binary.AppendVarint(b, int64(in.Partitions))
		b = binary.AppendVarint(b, in.Time)
	}
	if s.Outbox {
		b[len(stampMagic)] = outboxVersion
		b = binary.AppendUvarint(b, uint64(len(s.Gaps)))
		for _, g := range s.Gaps {
			b = binary.AppendUvarint(binary.AppendUvarint(b, g.From), g.Base)
		}
		b = binary.AppendUvarint(b, s.Last)
		b = binary.AppendVarint(b, s.PastAt)
		for _, in := range s.Inputs {
			b = binary.AppendVarint(b, in.Past)
		}
	}
	wire.Seal(b, len(stampMagic)+1)
	return base64.StdEncoding.EncodeToString(b)
}

// DecodeStamp reads the metadata of a committed offset. Metadata that is empty
// or that another program wrote is not ours and no error; ours is an error
// when it is damaged, or of a later layout (ErrNewer).
func DecodeStamp(metadata string) (s Stamp, isOurs bool, err error) {
	if !strings.HasPrefix(metadata, stampPrefix) {
		return Stamp{}, false, nil
	}
	b, err := base64.StdEncoding.Strict().DecodeString(metadata)
	if err != nil {
		return Stamp{}, true, fmt.Errorf("stamp in the metadata of a committed offset is damaged: %w", err)
	}
	if !wire.Sealed(b, len(stampMagic)+1) {
		return Stamp{}, true, fmt.Errorf("stamp in the metadata of a committed offset is damaged: wrong checksum over %d bytes", len(b))
	}
	if v := b[len(stampMagic)]; v != stampVersion && v != outboxVersion {
		return Stamp{}, true, fmt.Errorf("stamp of layout %d in the metadata of a committed offset: %w: this one reads layouts %d and %d; run the newer release",
			v, ErrNewer, stampVersion, outboxVersion)
	}
	r := reader{wire.NewReader(b[stampHeadBytes:])}
	r.Fixed(s.Lineage[:])
	s.Seq = r.Uvarint()
	s.Nonce = r.Uint64()
	s.Changelog = r.offsets()
	s.Times = r.times()
	if n := r.Count(minInputBytes); n > 0 {
		s.Inputs = make([]Input, n)
	}
	for i := range s.Inputs {
		in := &s.Inputs[i]
		in.Topic = r.String()
		r.Fixed(in.ID[:])
		in.LeaderEpoch = r.Int32()
		in.Partitions = r.Int32()
		in.Time = r.Varint()
	}
	if b[len(stampMagic)] == outboxVersion {
		s.Outbox, s.Gaps, s.Last, s.PastAt = true, r.gaps(), r.Uvarint(), r.Varint()
		for i := range s.Inputs {
			s.Inputs[i].Past = r.Varint()
		}
	}
	if !r.Done() {
		return Stamp{}, true, fmt.Errorf("stamp in the metadata of a committed offset is damaged: %w", errDamaged)
	}
	return s, true, nil
}

// MaxStampSize returns the length of the longest stamp of a task that has
// these stores with a changelog, these input topics and these operators with
// a stream time ("" for the task's own). It is for comparison with
// MaxMetadataBytes when a topology is built.
func MaxStampSize(stores, inputs, times []string) int {
	return base64.StdEncoding.EncodedLen(maxStampBytes(stores, inputs, times))
}

// MaxOutboxStampSize is MaxStampSize for a task whose view has an outbox, and so
// no changelogs.
func MaxOutboxStampSize(inputs, times []string) int {
	n := maxStampBytes(nil, inputs, times)
	n += len(binary.AppendUvarint(nil, MaxGaps)) + MaxGaps*2*binary.MaxVarintLen64
	n += (2 + len(inputs)) * binary.MaxVarintLen64
	return base64.StdEncoding.EncodedLen(n)
}

func maxStampBytes(stores, inputs, times []string) int {
	n := stampHeadBytes + len(Lineage{}) + binary.MaxVarintLen64 + 8
	n += len(binary.AppendUvarint(nil, uint64(len(stores))))
	n += len(binary.AppendUvarint(nil, uint64(len(times))))
	n += len(binary.AppendUvarint(nil, uint64(len(inputs))))
	for _, name := range stores {
		n += stringBytes(name) + binary.MaxVarintLen64
	}
	for _, name := range times {
		n += stringBytes(name) + binary.MaxVarintLen64
	}
	for _, name := range inputs {
		n += stringBytes(name) + 16 + 2*binary.MaxVarintLen32 + binary.MaxVarintLen64
	}
	return n
}

func stringBytes(s string) int { return len(binary.AppendUvarint(nil, uint64(len(s)))) + len(s) }

func appendOffsets(b []byte, list []Offset) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, o := range list {
		b = binary.AppendVarint(wire.AppendString(b, o.Name), o.Next)
	}
	return b
}

func appendTimes(b []byte, list []Time) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, t := range list {
		b = binary.AppendVarint(wire.AppendString(b, t.Name), t.Millis)
	}
	return b
}

func appendHighs(b []byte, list []High) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	topic := ""
	for _, h := range list {
		// Most are of one topic, which is said once.
		if h.Topic == topic {
			b = append(b, 0)
		} else {
			b = wire.AppendString(b, h.Topic)
			topic = h.Topic
		}
		b = binary.AppendUvarint(b, uint64(uint32(h.Subtopology)))
		b = binary.AppendUvarint(b, uint64(uint32(h.Partition)))
		b = append(b, h.Lineage[:]...)
		b = binary.AppendUvarint(b, h.Seq)
		b = binary.AppendUvarint(b, uint64(h.Index))
	}
	return b
}

// reader reads what a token and a stamp are made of.
type reader struct{ wire.Reader }

func (r *reader) gaps() []Gap {
	n := r.Count(minGapBytes)
	if n == 0 {
		return nil
	}
	list := make([]Gap, n)
	for i := range list {
		list[i] = Gap{r.Uvarint(), r.Uvarint()}
	}
	return list
}

func (r *reader) highs() []High {
	n := r.Count(minHighBytes)
	if n == 0 {
		return nil
	}
	list := make([]High, n)
	topic := ""
	for i := range list {
		h := &list[i]
		if t := r.String(); t != "" {
			topic = t
		}
		h.Topic, h.Subtopology, h.Partition = topic, int32(r.Uint32()), int32(r.Uint32())
		r.Fixed(h.Lineage[:])
		h.Seq, h.Index = r.Uvarint(), r.Uint32()
	}
	return list
}

func (r *reader) offsets() []Offset {
	n := r.Count(minOffsetBytes)
	if n == 0 {
		return nil
	}
	list := make([]Offset, n)
	for i := range list {
		list[i] = Offset{r.String(), r.Varint()}
	}
	return list
}

func (r *reader) times() []Time {
	n := r.Count(minTimeBytes)
	if n == 0 {
		return nil
	}
	list := make([]Time, n)
	for i := range list {
		list[i] = Time{r.String(), r.Varint()}
	}
	return list
}
