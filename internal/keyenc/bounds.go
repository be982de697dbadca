package keyenc

import "bytes"

// PrefixEnd returns the least byte string that is greater than every string
// with the given prefix: the exclusive end of a prefix scan. It is nil, no
// bound, when there is none: for a prefix that is empty or all 0xff.
func PrefixEnd(prefix []byte) []byte {
	n := len(prefix)
	for n > 0 && prefix[n-1] == 0xff {
		n--
	}
	if n == 0 {
		return nil
	}
	end := bytes.Clone(prefix[:n])
	end[n-1]++
	return end
}

// SuffixRange returns bounds, lower inclusive and upper exclusive, between
// which lies every row "key ++ suffix" with from <= key <= to and minSuffix <=
// suffix <= maxSuffix, all compared as bytes. The two suffixes have the same
// length, which is that of all suffixes. A nil from or to means no bound on
// that side, and then the bound returned is nil as well. If from > to the range
// is empty.
//
// Keys vary in length, so rows of other keys and suffixes may lie between the
// bounds too: the caller decodes each row and checks both. The other way round
// nothing is lost, which takes care, since a key sorts neither before nor after
// the rows of its own prefixes: with "a" and "a\x00" the row "a" ++ 5 lies
// behind "a\x00" ++ 1. (Kafka Streams widens its upper bound by looking at one
// byte of the suffix, which misses rows whose key is followed by zero bytes in
// another one.)
func SuffixRange(from, to, minSuffix, maxSuffix []byte) (lower, upper []byte) {
	if from != nil {
		// Rows of longer keys that begin with from may lie anywhere behind
		// from itself. For one key its own least row is the bound.
		lower = bytes.Clone(from)
		if to != nil && bytes.Equal(from, to) {
			lower = append(lower, minSuffix...)
		}
	}
	if to == nil {
		return lower, nil
	}
	if bytes.Compare(from, to) > 0 {
		return lower, lower
	}
	// The last row is one of a prefix of to (to itself included) with the last
	// suffix: the row of any other key <= to differs from to within to's length
	// and is smaller there. Prefixes below from do not count.
	for n := 0; n <= len(to); n++ {
		if bytes.Compare(to[:n], from) < 0 {
			continue
		}
		row := make([]byte, 0, n+len(maxSuffix)+1)
		row = append(append(row, to[:n]...), maxSuffix...)
		if bytes.Compare(row, upper) > 0 {
			upper = row
		}
	}
	return lower, append(upper, 0)
}
