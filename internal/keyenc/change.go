package keyenc

import (
	"encoding/binary"
	"errors"
)

// Change is what a regrouped table sends to the owner of a key: the value to
// add to the aggregate, the value to take away, or both when the old and the
// new row fall under the same key. The owner subtracts first.
type Change struct {
	New, Old       []byte
	HasNew, HasOld bool // an empty value is a value
}

// The last byte of an encoded change.
const (
	changeOld  = 0
	changeNew  = 1
	changeBoth = 2
	// Kafka Streams reserves 3 to 5 for the same three with a byte isLatest
	// before the flag (KAFKA-14834); no release writes them.
	changeReservedMin = 3
	changeReservedMax = 5
)

var errEmptyChange = errors.New("encode change: it has neither a new nor an old value")

// maxVarint32 is the longest encoding of a 32-bit varint.
const maxVarint32 = 5

// AppendChange adds a change as KIP-904 encodes it on repartition topics:
//
//	only old: old 00
//	only new: new 01
//	both:     varint(len(new)) new old 02
//
// The varint is zigzag. A change of nothing has no encoding: it is an error, and
// dst comes back unchanged.
func AppendChange(dst []byte, c Change) ([]byte, error) {
	switch {
	case c.HasNew && c.HasOld:
		dst = binary.AppendVarint(dst, int64(len(c.New)))
		return append(append(append(dst, c.New...), c.Old...), changeBoth), nil
	case c.HasNew:
		return append(append(dst, c.New...), changeNew), nil
	case c.HasOld:
		return append(append(dst, c.Old...), changeOld), nil
	}
	return dst, errEmptyChange
}

// DecodeChange is the reverse of AppendChange. The values alias src.
func DecodeChange(src []byte) (Change, error) {
	const layout = "change"
	if len(src) == 0 {
		return Change{}, malformed(layout, src, "the flag byte is missing")
	}
	n := len(src) - 1
	body := src[:n:n]
	switch flag := src[n]; {
	case flag == changeOld:
		return Change{Old: body, HasOld: true}, nil
	case flag == changeNew:
		return Change{New: body, HasNew: true}, nil
	case flag == changeBoth:
		size, used := binary.Varint(body[:min(n, maxVarint32)])
		if used <= 0 {
			return Change{}, malformed(layout, src, "the length of the new value is cut off or too long")
		}
		body = body[used:]
		if size < 0 || size > int64(len(body)) {
			return Change{}, malformed(layout, src, "the new value should have %d bytes, and %d follow", size, len(body))
		}
		return Change{New: body[:size:size], Old: body[size:], HasNew: true, HasOld: true}, nil
	case flag >= changeReservedMin && flag <= changeReservedMax:
		return Change{}, malformed(layout, src, "flag %d is one that Kafka Streams reserves for versioned tables: read it with a later release of Weir", flag)
	default:
		return Change{}, malformed(layout, src, "unknown flag %d", flag)
	}
}
