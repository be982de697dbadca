package keyenc

import (
	"encoding/binary"
	"math"
)

// Sizes of what follows the key.
const (
	windowKeySize      = 8     // start
	windowStoreKeySize = 8 + 4 // start, sequence number
	sessionKeySize     = 8 + 8 // end, start
)

// The layouts below take times in milliseconds since 1970, from 0 up: windows
// never start before that. A negative time would sort after all others, so the
// decoders refuse it.

// AppendWindowKey adds a windowed key as topics carry it: key, start(8). The end
// follows from the window's size, which both sides know.
func AppendWindowKey(dst, key []byte, start int64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, key...), uint64(start))
}

// DecodeWindowKey is the reverse of AppendWindowKey.
func DecodeWindowKey(b []byte) (key []byte, start int64, err error) {
	const layout = "windowed key"
	key, suffix, err := split(layout, b, windowKeySize)
	if err != nil {
		return nil, 0, err
	}
	if start, err = timeAt(layout, b, suffix, 0, "start"); err != nil {
		return nil, 0, err
	}
	return key, start, nil
}

// AppendWindowStoreKey adds a row key of a window store and its changelog: key,
// start(8), seq(4). Seq is 0 unless the store keeps duplicates; it is not
// negative.
func AppendWindowStoreKey(dst, key []byte, start int64, seq int32) []byte {
	return binary.BigEndian.AppendUint32(AppendWindowKey(dst, key, start), uint32(seq))
}

// DecodeWindowStoreKey is the reverse of AppendWindowStoreKey.
func DecodeWindowStoreKey(b []byte) (key []byte, start int64, seq int32, err error) {
	const layout = "window store key"
	key, suffix, err := split(layout, b, windowStoreKeySize)
	if err != nil {
		return nil, 0, 0, err
	}
	if start, err = timeAt(layout, b, suffix, 0, "start"); err != nil {
		return nil, 0, 0, err
	}
	if seq = int32(binary.BigEndian.Uint32(suffix[8:])); seq < 0 {
		return nil, 0, 0, malformed(layout, b, "the sequence number %d is negative", seq)
	}
	return key, start, seq, nil
}

// AppendSessionKey adds the key of a session, the same on topics, in the store
// and on its changelog: key, end(8), start(8). Both ends are inclusive.
func AppendSessionKey(dst, key []byte, start, end int64) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, key...), uint64(end))
	return binary.BigEndian.AppendUint64(dst, uint64(start))
}

// DecodeSessionKey is the reverse of AppendSessionKey.
func DecodeSessionKey(b []byte) (key []byte, start, end int64, err error) {
	const layout = "session key"
	key, suffix, err := split(layout, b, sessionKeySize)
	if err != nil {
		return nil, 0, 0, err
	}
	if end, err = timeAt(layout, b, suffix, 0, "end"); err != nil {
		return nil, 0, 0, err
	}
	if start, err = timeAt(layout, b, suffix, 8, "start"); err != nil {
		return nil, 0, 0, err
	}
	if start > end {
		return nil, 0, 0, malformed(layout, b, "it starts at %d, after its end %d", start, end)
	}
	return key, start, end, nil
}

// split cuts b into the key and the n bytes behind it.
func split(layout string, b []byte, n int) (key, suffix []byte, err error) {
	if len(b) < n {
		return nil, nil, malformed(layout, b, "want at least %d bytes", n)
	}
	cut := len(b) - n
	return b[:cut:cut], b[cut:], nil
}

func timeAt(layout string, b, suffix []byte, at int, what string) (int64, error) {
	t := int64(binary.BigEndian.Uint64(suffix[at:]))
	if t < 0 {
		return 0, malformed(layout, b, "the %s %d is negative", what, t)
	}
	return t, nil
}

// WindowRange returns the bounds between which a window store holds all rows of
// the keys from..to (both inclusive; nil means no bound) whose windows start at
// earliest..latest (inclusive). See [SuffixRange] for what else lies between
// them.
func WindowRange(from, to []byte, earliest, latest int64) (lower, upper []byte) {
	return SuffixRange(from, to,
		AppendWindowStoreKey(nil, nil, earliest, 0),
		AppendWindowStoreKey(nil, nil, latest, math.MaxInt32))
}

// SessionRange returns the bounds between which a session store holds all
// sessions of the keys from..to (both inclusive; nil means no bound) that end
// at earliestEnd or later. See [SuffixRange] for what else lies between them.
func SessionRange(from, to []byte, earliestEnd int64) (lower, upper []byte) {
	return SuffixRange(from, to,
		AppendSessionKey(nil, nil, 0, earliestEnd),
		AppendSessionKey(nil, nil, math.MaxInt64, math.MaxInt64))
}
