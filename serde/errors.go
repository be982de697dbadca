package serde

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

// Bounds of what an error says about the data. Values hold what their owners
// would not like to see in a log, and may be a megabyte long.
const (
	// maxExcerpt is how many bytes of the input an error quotes.
	maxExcerpt = 32
	// maxCause is how many bytes of the text of an inner error are kept:
	// encoding/json, for one, repeats whole numbers of the input.
	maxCause = 200
)

// codecError is the error of an Append or a Decode. It holds no reference to
// the input.
type codecError struct {
	text string
	err  error // the inner error, or nil
}

func (e *codecError) Error() string { return e.text }
func (e *codecError) Unwrap() error { return e.err }

// decodeError says that serde name cannot decode src.
func decodeError(name, problem string, src []byte, err error) error {
	return &codecError{fmt.Sprintf("decode %s: %s: %d bytes %s", name, problem, len(src), excerpt(src)), err}
}

// encodeError says that serde name cannot encode a value. The value itself is
// not shown.
func encodeError(name string, err error) error {
	return &codecError{fmt.Sprintf("encode %s: %s", name, cause(err)), err}
}

func wrongLength(name string, want int, src []byte) error {
	return decodeError(name, fmt.Sprintf("want a length of %d", want), src, nil)
}

// excerpt quotes the head of src in printable ASCII, at most maxExcerpt bytes
// of it.
func excerpt(src []byte) string {
	if len(src) <= maxExcerpt {
		return strconv.QuoteToASCII(string(src))
	}
	return strconv.QuoteToASCII(string(src[:maxExcerpt])) + "..."
}

// cause returns the text of err, cut to maxCause bytes at a rune's start.
func cause(err error) string {
	s := err.Error()
	if len(s) <= maxCause {
		return s
	}
	cut := maxCause
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}
