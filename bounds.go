package weir

import (
	"fmt"

	"github.com/weirstreams/weir/internal/keyenc"
	"github.com/weirstreams/weir/serde"
)

// Bounds selects keys of a store. Keys are compared by their encoded bytes, as
// unsigned: strings and []byte in their own order; numbers in theirs as long as
// none is negative. The zero value selects all keys.
type Bounds[K any] struct {
	from, to       K
	hasFrom, hasTo bool
	prefix         bool // from is a prefix
	reverse        bool
}

// All selects all keys.
func All[K any]() Bounds[K] { return Bounds[K]{} }

// Between selects the keys from <= key <= to.
func Between[K any](from, to K) Bounds[K] {
	return Bounds[K]{from: from, to: to, hasFrom: true, hasTo: true}
}

// From selects the keys >= from.
func From[K any](from K) Bounds[K] { return Bounds[K]{from: from, hasFrom: true} }

// Upto selects the keys <= to.
func Upto[K any](to K) Bounds[K] { return Bounds[K]{to: to, hasTo: true} }

// Prefix selects the keys whose encoding begins with the encoding of prefix. It
// is meant for strings and []byte. Encodings that have an end of their own, such
// as JSON with its closing quote, and those of a fixed length match the key
// itself only.
func Prefix[K any](prefix K) Bounds[K] { return Bounds[K]{from: prefix, prefix: true} }

// Reverse selects the same keys, from the largest to the smallest.
func (b Bounds[K]) Reverse() Bounds[K] {
	b.reverse = !b.reverse
	return b
}

// encode returns the bounds lower <= key < upper; nil is open.
func (b Bounds[K]) encode(key serde.Serde[K]) (lower, upper []byte, err error) {
	if b.prefix || b.hasFrom {
		if lower, err = key.Append([]byte{}, b.from); err != nil {
			return nil, nil, fmt.Errorf("lower bound: %w", err)
		}
	}
	switch {
	case b.prefix:
		upper = keyenc.PrefixEnd(lower)
	case b.hasTo:
		if upper, err = key.Append([]byte{}, b.to); err != nil {
			return nil, nil, fmt.Errorf("upper bound: %w", err)
		}
		upper = append(upper, 0) // the smallest key behind it
	}
	return lower, upper, nil
}
