package ratings

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// A Format is a text format of ratings. The zero value is Auto.
type Format int

const (
	// Auto finds the format from the content; see [Detect].
	Auto Format = iota
	// MovieLens is the u.data file of MovieLens 100K: user, movie, rating and
	// seconds since 1970, separated by tabs, without a header. All four are
	// required.
	MovieLens
	// CSV is the ratings.csv file of the later MovieLens sets, by the rules of
	// encoding/csv. The first line is the header
	// userId,movieId,rating,timestamp. Columns are found by name whatever
	// their order and case; movieId and rating are required, unknown columns
	// are ignored. The user and the timestamp of a row may be empty.
	CSV
	// JSONLines has one JSON object on each line, such as
	// {"movie_id":362,"rating":10}. Optional are user_id (or user), and
	// timestamp: seconds since 1970, or an RFC 3339 string. Ids are strings or
	// whole numbers, and the number 362 is the same id as the string "362".
	// Other members are ignored.
	JSONLines
)

// DetectBytes is how much of the input is looked at to find its format.
const DetectBytes = 64 << 10

// Errors of inputs that hold no ratings at all. They are wrapped in an error
// that says what was found, and what was expected with an example.
var (
	// ErrEmpty means that the input has no bytes, or only blank lines.
	ErrEmpty = errors.New("the input is empty")
	// ErrBinary means that the input is not text: an archive, an image, text
	// in UTF-16, or anything else with zero bytes in it.
	ErrBinary = errors.New("the input is not text")
	// ErrUnknownFormat means that the input is text, but no ratings were
	// recognised in its first DetectBytes bytes.
	ErrUnknownFormat = errors.New("the input has no known format")
)

var formats = []struct{ name, example string }{
	Auto:      {"auto", ""},
	MovieLens: {"movielens", "MovieLens u.data (user, movie, rating, timestamp separated by tabs: 196<TAB>242<TAB>3<TAB>881250949)"},
	CSV:       {"csv", "MovieLens ratings.csv (first line userId,movieId,rating,timestamp, then lines like 1,31,2.5,1260759144)"},
	JSONLines: {"jsonl", `JSON lines (one object on each line: {"movie_id":362,"rating":10})`},
}

// String returns the name that ParseFormat accepts.
func (f Format) String() string {
	if f < 0 || int(f) >= len(formats) {
		return fmt.Sprintf("Format(%d)", int(f))
	}
	return formats[f].name
}

// FormatNames returns the names that ParseFormat accepts.
func FormatNames() []string {
	names := make([]string, len(formats))
	for i, f := range formats {
		names[i] = f.name
	}
	return names
}

// ParseFormat returns the format with that name. The error lists the names.
func ParseFormat(name string) (Format, error) {
	if i := slices.Index(FormatNames(), name); i >= 0 {
		return Format(i), nil
	}
	return Auto, fmt.Errorf("unknown ratings format %q: use one of %s", name, strings.Join(FormatNames(), ", "))
}

// expected says in words which input f stands for.
func (f Format) expected() string {
	if f != Auto {
		return "expected " + formats[f].example + ", plain or packed with gzip"
	}
	return fmt.Sprintf("expected %s, %s or %s, each plain or packed with gzip",
		formats[MovieLens].example, formats[CSV].example, formats[JSONLines].example)
}

// Detect finds the format of unpacked text from what br holds next, and
// consumes nothing. It reads no further than needed, at most DetectBytes or the
// size of br's buffer, so it works on a pipe.
//
// The first line that is recognised decides: an object is JSONLines, the header
// (only as the first line that is not blank) is CSV, a rating with tabs is
// MovieLens. Lines before it are left to the reader, which reports them as bad
// lines. The error wraps ErrEmpty, ErrBinary or ErrUnknownFormat, or is what
// reading from br failed with.
func Detect(br *bufio.Reader) (Format, error) { return detect(br, Auto) }

// detect is Detect for Auto. For another format it only makes sure that the
// first line that is not blank can belong to it.
func detect(br *bufio.Reader, want Format) (Format, error) {
	var first []byte // the first line that is not blank
	for pos, seen := 0, 0; ; {
		_, readErr := br.Peek(seen + 1) // wait for news
		peek, _ := br.Peek(br.Buffered())
		seen = len(peek)
		if pos == 0 {
			if what := foreign(peek); what != "" {
				return Auto, fmt.Errorf("%w but %s; %s", ErrBinary, what, want.expected())
			}
			pos = len(peek) - len(bytes.TrimPrefix(peek, []byte(utf8BOM)))
		}
		for end := readErr != nil; ; {
			n := bytes.IndexByte(peek[pos:], '\n')
			whole := n >= 0
			if !whole {
				if !end {
					break
				}
				n = len(peek) - pos
				whole = readErr == io.EOF
			}
			line := bytes.TrimSpace(peek[pos : pos+n])
			if len(line) > 0 {
				if bytes.IndexByte(line, 0) >= 0 {
					return Auto, fmt.Errorf("%w; %s", ErrBinary, want.expected())
				}
				// A line that a read error has cut short proves nothing; one
				// that is longer than the buffer shows at least how it begins.
				if whole || readErr == bufio.ErrBufferFull {
					if f := recognise(line, want, first == nil); f != Auto {
						return f, nil
					}
					if first == nil {
						first = bytes.Clone(line)
					}
					if want != Auto {
						return Auto, unknownFormat(first, want)
					}
				}
			}
			if pos += n + 1; pos > len(peek) {
				break
			}
		}
		switch {
		case readErr == nil:
		case readErr != io.EOF && readErr != bufio.ErrBufferFull:
			return Auto, readErr
		case first == nil && readErr == io.EOF:
			return Auto, fmt.Errorf("%w; %s", ErrEmpty, want.expected())
		default:
			return Auto, unknownFormat(first, want)
		}
	}
}

// recognise returns the format that a line shows, or Auto. With a wanted format
// it only says whether a file of that format can begin like this: reporting a
// bad line is the reader's task, but a CSV file without its header is lost.
func recognise(line []byte, want Format, first bool) Format {
	if want == MovieLens || want == JSONLines {
		return want
	}
	if first {
		if _, err := parseHeader(line); err == nil {
			return CSV
		}
	}
	if want == CSV {
		return Auto
	}
	if line[0] == '{' {
		return JSONLines
	}
	if _, reason := parseTabs(line); reason == "" {
		return MovieLens
	}
	return Auto
}

// unknownFormat explains why the first line does not begin a file of the wanted
// format, with the way out for inputs that people are known to have.
func unknownFormat(first []byte, want Format) error {
	if first == nil {
		return fmt.Errorf("%w: its first %d bytes are blank; %s", ErrUnknownFormat, DetectBytes, want.expected())
	}
	_, headerErr := parseHeader(first)
	hint := ""
	switch fields := bytes.Split(first, []byte(",")); {
	case first[0] == '[':
		hint = "; if it is a JSON array, write one object on each line, as `jq -c '.[]'` does"
	case len(bytes.Split(first, []byte("::"))) == 4:
		hint = "; if it is ratings.dat of MovieLens 1M or 10M, put tabs for the colons, as `sed 's/::/\\t/g'` does"
	case want == CSV:
		hint = "; " + headerErr.Error()
	case len(fields) == 4 && isNumber(fields[2]):
		hint = "; if it is a ratings.csv file, its first line is missing"
	}
	return fmt.Errorf("%w: it begins with %s%s; %s", ErrUnknownFormat, quote(first), hint, want.expected())
}

// foreign names the kind of a file that people may give by mistake, from its
// first bytes, with what to do. It returns "" for everything else.
func foreign(peek []byte) string {
	for _, kind := range []struct{ magic, what string }{
		{"PK\x03\x04", "a zip archive: unpack it and give the ratings file in it"},
		{gzipMagic, "packed with gzip twice: unpack it once"},
		{"BZh91AY&SY", "packed with bzip2: unpack it first"},
		{"\xfd7zXZ\x00", "packed with xz: unpack it first"},
		{"\x28\xb5\x2f\xfd", "packed with zstd: unpack it first"},
		{"\xff\xfe", "UTF-16: convert it to UTF-8"},
		{"\xfe\xff", "UTF-16: convert it to UTF-8"},
	} {
		if bytes.HasPrefix(peek, []byte(kind.magic)) {
			return kind.what
		}
	}
	return ""
}
