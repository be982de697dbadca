package ratings

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// The parsers return the reason why a line is bad, or "".

// parseTabs parses a line of a u.data file.
func parseTabs(text []byte) (Rating, string) {
	if !utf8.Valid(text) {
		return Rating{}, "not valid UTF-8"
	}
	var fields [4][]byte
	n := 0
	for field := range bytes.SplitSeq(text, []byte("\t")) {
		if n < len(fields) {
			fields[n] = field
		}
		n++
	}
	if n != len(fields) {
		return Rating{}, fmt.Sprintf("expected 4 fields separated by tabs (user, movie, rating, timestamp), found %d", n)
	}
	r, reason := parseFields(fields[0], fields[1], fields[2], fields[3])
	switch {
	case reason != "":
		return Rating{}, reason
	case r.User == "":
		return Rating{}, "no user"
	case r.Time.IsZero():
		return Rating{}, "no timestamp"
	}
	return r, ""
}

// parseFields makes a rating of fields of text. Blanks around a field are not
// part of it. The user and the timestamp may be empty.
func parseFields(user, movie, stars, timestamp []byte) (r Rating, reason string) {
	r.User, r.Movie = string(bytes.TrimSpace(user)), string(bytes.TrimSpace(movie))
	if reason = checkIDs(r.User, r.Movie); reason != "" {
		return Rating{}, reason
	}
	if r.Stars, reason = parseStars(string(bytes.TrimSpace(stars))); reason != "" {
		return Rating{}, reason
	}
	if timestamp = bytes.TrimSpace(timestamp); len(timestamp) > 0 {
		if r.Time, reason = parseSeconds(string(timestamp)); reason != "" {
			return Rating{}, reason
		}
	}
	return r, ""
}

func checkIDs(user, movie string) string {
	if movie == "" {
		return "no movie"
	}
	if reason := checkID("movie", movie); reason != "" {
		return reason
	}
	return checkID("user", user)
}

// checkID refuses control characters, because an id with one in it comes from a
// broken file (such as a quote that is never closed) and would be printed to a
// terminal.
func checkID(what, id string) string {
	if len(id) > MaxIDBytes {
		return fmt.Sprintf("the %s id has %d bytes, more than the limit of %d", what, len(id), MaxIDBytes)
	}
	if strings.ContainsFunc(id, unicode.IsControl) {
		return fmt.Sprintf("the %s id %s contains a control character", what, quote([]byte(id)))
	}
	return ""
}

func parseStars(text string) (float64, string) {
	if text == "" {
		return 0, "no rating"
	}
	// strconv also takes hexadecimal numbers and underscores; the formats do not.
	v, err := strconv.ParseFloat(text, 64)
	switch {
	case strings.ContainsAny(text, "xX_") || err != nil && !errors.Is(err, strconv.ErrRange):
		return 0, "the rating " + quote([]byte(text)) + " is not a number"
	case err != nil || math.IsNaN(v) || math.IsInf(v, 0):
		return 0, "the rating " + quote([]byte(text)) + " is not a finite number"
	}
	return v + 0, "" // -0 becomes 0
}

func isNumber(text []byte) bool {
	_, reason := parseStars(string(bytes.TrimSpace(text)))
	return reason == ""
}

// maxSeconds is the last second of the year 9999. Milliseconds since 1970 are
// past it for every day after 1978, so they are not taken for seconds.
var maxSeconds = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).Unix()

// parseSeconds parses seconds since 1970. A Kafka record has no timestamp
// before that.
func parseSeconds(text string) (time.Time, string) {
	s, err := strconv.ParseInt(text, 10, 64)
	if err != nil || s < 0 || s > maxSeconds {
		return time.Time{}, "the timestamp " + quote([]byte(text)) + " is not a whole number of seconds since 1970 (up to the year 9999)"
	}
	return time.Unix(s, 0).UTC(), ""
}

// quote returns text in quotes for a message: printable, and cut when long.
func quote(text []byte) string {
	const limit = 60
	if len(text) <= limit {
		return strconv.Quote(string(text))
	}
	cut := limit
	for cut > limit-utf8.UTFMax && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return strconv.Quote(string(text[:cut])) + "…"
}
