// Package keyenc holds the byte layouts, hashes, names and topic settings that
// Weir shares with Kafka Streams 4.x, so that a Go program can take over the
// topics of a Java one: which partition a key belongs to, how windowed keys and
// table changes look on the wire, what internal topics are called and how they
// are configured.
//
// All functions are pure. Integers are big-endian and signed, as Java writes
// them. Append functions add to dst and return it; decoders return slices that
// alias their input, with their capacity clipped so that an append to one
// cannot overwrite what follows. A decoder that refuses its input returns an
// error that matches [ErrMalformed].
package keyenc

import (
	"errors"
	"fmt"
)

// ErrMalformed says that bytes do not have the layout that was asked for: data
// of another program, of another layout, or damaged.
var ErrMalformed = errors.New("malformed")

// maxExcerpt bounds how much of the data an error shows.
const maxExcerpt = 32

// malformed names the layout, the problem and the head of the data in hex.
func malformed(layout string, b []byte, format string, args ...any) error {
	head, more := b, ""
	if len(head) > maxExcerpt {
		head, more = head[:maxExcerpt], "..."
	}
	return fmt.Errorf("%w %s: %s: %d bytes %x%s", ErrMalformed, layout, fmt.Sprintf(format, args...), len(b), head, more)
}
