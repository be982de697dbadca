package keyenc

import (
	"bytes"
	"math"
	"slices"
	"testing"
)

func TestPrefixEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ prefix, want string }{
		{"a", "b"},
		{"ab", "ac"},
		{"a\xff", "b"},
		{"a\xff\xff", "b"},
		{"\x00", "\x01"},
		{"a\xfe", "a\xff"},
	} {
		if got := PrefixEnd([]byte(c.prefix)); string(got) != c.want {
			t.Errorf("PrefixEnd(%q) = %q, want %q", c.prefix, got, c.want)
		}
	}
	for _, prefix := range []string{"", "\xff", "\xff\xff"} {
		if got := PrefixEnd([]byte(prefix)); got != nil {
			t.Errorf("PrefixEnd(%q) = %q, want nil", prefix, got)
		}
	}
	prefix := []byte("ab")
	PrefixEnd(prefix)
	if string(prefix) != "ab" {
		t.Errorf("PrefixEnd changed its argument to %q", prefix)
	}
}

// allStrings returns every string of up to n of the given bytes, in no order.
func allStrings(alphabet []byte, n int) [][]byte {
	all := [][]byte{{}}
	for last := all; n > 0; n-- {
		var next [][]byte
		for _, s := range last {
			for _, c := range alphabet {
				next = append(next, append(bytes.Clone(s), c))
			}
		}
		all = append(all, next...)
		last = next
	}
	return all
}

func inRange(b, lower, upper []byte) bool {
	return (lower == nil || bytes.Compare(b, lower) >= 0) && (upper == nil || bytes.Compare(b, upper) < 0)
}

func TestPrefixEndHoldsExactlyThePrefix(t *testing.T) {
	t.Parallel()
	all := allStrings([]byte{0, 1, 0xfe, 0xff}, 4)
	for _, prefix := range allStrings([]byte{0, 1, 0xfe, 0xff}, 2) {
		end := PrefixEnd(prefix)
		for _, s := range all {
			if got, want := inRange(s, prefix, end), bytes.HasPrefix(s, prefix); got != want {
				t.Fatalf("prefix %x, end %x: %x in range is %v, want %v", prefix, end, s, got, want)
			}
		}
	}
}

// All keys, all suffixes, all ranges over a small alphabet: no row that belongs
// to a range may lie outside its bounds, and the bounds of one key's range hold
// nothing but rows that begin with the key.
func TestSuffixRangeLosesNothing(t *testing.T) {
	t.Parallel()
	alphabet := []byte{0, 1, 0xff}
	keys := allStrings(alphabet, 3)
	var suffixes [][]byte
	for _, s := range allStrings(alphabet, 2) {
		if len(s) == 2 {
			suffixes = append(suffixes, s)
		}
	}
	type row struct{ key, suffix, row []byte }
	var rows []row
	for _, k := range keys {
		for _, s := range suffixes {
			rows = append(rows, row{k, s, slices.Concat(k, s)})
		}
	}
	limits := append([][]byte{nil}, keys...)
	within := 0
	for _, from := range limits {
		for _, to := range limits {
			for _, minSuffix := range suffixes {
				for _, maxSuffix := range suffixes {
					if bytes.Compare(minSuffix, maxSuffix) > 0 {
						continue
					}
					lower, upper := SuffixRange(from, to, minSuffix, maxSuffix)
					if (from == nil) != (lower == nil) || (to == nil) != (upper == nil) {
						t.Fatalf("keys %x..%x have bounds %x, %x", from, to, lower, upper)
					}
					for _, r := range rows {
						belongs := inRange(r.key, from, nil) && (to == nil || bytes.Compare(r.key, to) <= 0) &&
							bytes.Compare(r.suffix, minSuffix) >= 0 && bytes.Compare(r.suffix, maxSuffix) <= 0
						in := inRange(r.row, lower, upper)
						if belongs && !in {
							t.Fatalf("keys %x..%x suffixes %x..%x have bounds %x, %x, which leave out %x ++ %x",
								from, to, minSuffix, maxSuffix, lower, upper, r.key, r.suffix)
						}
						if belongs {
							within++
						}
						if in && from != nil && bytes.Equal(from, to) && !bytes.HasPrefix(r.row, from) {
							t.Fatalf("the bounds %x, %x of the one key %x hold %x", lower, upper, from, r.row)
						}
					}
				}
			}
		}
	}
	if within == 0 {
		t.Error("no row belonged to any range: the test tests nothing")
	}
	// An empty range.
	if lower, upper := SuffixRange([]byte("b"), []byte("a"), []byte{0}, []byte{1}); !bytes.Equal(lower, upper) {
		t.Errorf("keys b..a have bounds %x, %x, want an empty range", lower, upper)
	}
}

// The case that Kafka Streams' own bound misses: "a" is a prefix of "a" with
// zeros behind, and its time is greater than zero.
func TestWindowRangeWithZeroBytesInKeys(t *testing.T) {
	t.Parallel()
	const start = 1700000000000
	short, long := []byte("a"), []byte("a\x00\x00\x00\x00\x00\x00\x00\x00")
	lower, upper := WindowRange(short, long, 0, start)
	for _, key := range [][]byte{short, long} {
		if row := AppendWindowStoreKey(nil, key, start, math.MaxInt32); !inRange(row, lower, upper) {
			t.Errorf("the row %x of key %q is outside %x, %x", row, key, lower, upper)
		}
	}
	lower, upper = SessionRange(short, long, start)
	for _, key := range [][]byte{short, long} {
		if row := AppendSessionKey(nil, key, 5, start); !inRange(row, lower, upper) {
			t.Errorf("the session %x of key %q is outside %x, %x", row, key, lower, upper)
		}
	}
}

// For one key the bounds are tight: times outside are left out without a look
// at the rows.
func TestRangeOfOneKey(t *testing.T) {
	t.Parallel()
	key := []byte("k")
	lower, upper := WindowRange(key, key, 10, 20)
	for start, want := range map[int64]bool{9: false, 10: true, 15: true, 20: true, 21: false} {
		for _, seq := range []int32{0, 7, math.MaxInt32} {
			if got := inRange(AppendWindowStoreKey(nil, key, start, seq), lower, upper); got != want {
				t.Errorf("window from %d, seq %d in range: %v, want %v", start, seq, got, want)
			}
		}
	}
	lower, upper = SessionRange(key, key, 10)
	for end, want := range map[int64]bool{9: false, 10: true, math.MaxInt64: true} {
		if got := inRange(AppendSessionKey(nil, key, 3, end), lower, upper); got != want {
			t.Errorf("session until %d in range: %v, want %v", end, got, want)
		}
	}
	if lower, upper = WindowRange(nil, nil, 0, 1); lower != nil || upper != nil {
		t.Errorf("all keys have bounds %x, %x, want none", lower, upper)
	}
}
