package pebblestore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
)

// keyOrder is the position of a key among others, with the eight bytes that
// follow what all keys begin with: they decide most comparisons without a look
// at the key.
type keyOrder struct {
	prefix uint64
	index  uint32
}

// sortKeys returns the order of n keys, in dst's memory. Equal keys keep the
// order of their indexes.
func sortKeys(dst []keyOrder, n int, key func(i uint32) []byte) []keyOrder {
	dst = slices.Grow(dst[:0], n)
	if n == 0 {
		return dst
	}
	first := key(0)
	common := len(first)
	for i := range uint32(n) {
		common = commonPrefix(first[:common], key(i))
	}
	for i := range uint32(n) {
		dst = append(dst, keyOrder{keyPrefix(key(i)[common:]), i})
	}
	slices.SortFunc(dst, func(a, b keyOrder) int {
		if a.prefix != b.prefix {
			return cmp.Compare(a.prefix, b.prefix)
		}
		if c := bytes.Compare(key(a.index), key(b.index)); c != 0 {
			return c
		}
		return cmp.Compare(a.index, b.index)
	})
	return dst
}

func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// keyPrefix returns the first eight bytes of a key as a number that orders
// like them. Keys with the same number still have to be compared.
func keyPrefix(key []byte) uint64 {
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	var b [8]byte
	copy(b[:], key)
	return binary.BigEndian.Uint64(b[:])
}
