package ratings

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

const (
	utf8BOM   = "\xef\xbb\xbf"
	gzipMagic = "\x1f\x8b"
)

// MaxTextBytes is how much of a bad line a [LineError] keeps, so that it fits
// into one Kafka record of the default size (1 MiB) with its headers.
const MaxTextBytes = 512 << 10

// A LineError reports a line that holds no rating. The reader goes on with the
// next line.
type LineError struct {
	// Line is the number of the line in the unpacked input, from 1.
	Line int
	// Reason says what is wrong with it.
	Reason string
	// Text is the line byte for byte without its end, cut to MaxTextBytes. The
	// receiver owns it.
	Text []byte
	// Size is the length of the line in bytes, also where Text is cut.
	Size int
}

// Error returns the line number and the reason.
func (e *LineError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Reason) }

// A ReadError reports that the input broke off, after all complete lines
// before the break have been returned. It ends the input.
type ReadError struct {
	// Lines and Bytes say how much was read: complete lines, and their bytes
	// after unpacking. The beginning of a further line is thrown away, because
	// a part of a rating can look like a rating.
	Lines int
	Bytes int64
	// Gzip says that the input is packed.
	Gzip bool
	// Err is the cause: io.ErrUnexpectedEOF for packed input that ends too
	// early, gzip.ErrChecksum, gzip.ErrHeader or a flate.CorruptInputError for
	// one that is damaged, else what the underlying reader returned.
	Err error
}

// Error says what happened, how much was read, and what to do.
func (e *ReadError) Error() string {
	read := fmt.Sprintf("after line %d (%d bytes)", e.Lines, e.Bytes)
	var corrupt flate.CorruptInputError
	switch {
	case e.Gzip && errors.Is(e.Err, io.ErrUnexpectedEOF):
		return "the gzip input is cut short " + read + ": copy or download it again"
	case e.Gzip && (errors.Is(e.Err, gzip.ErrChecksum) || errors.Is(e.Err, gzip.ErrHeader) || errors.As(e.Err, &corrupt)):
		return fmt.Sprintf("the gzip input is damaged %s: %v: copy or download it again", read, e.Err)
	default:
		return fmt.Sprintf("reading the ratings failed %s: %v", read, e.Err)
	}
}

// Unwrap returns the cause.
func (e *ReadError) Unwrap() error { return e.Err }

// A Reader reads ratings from a stream, line by line, in memory that does not
// grow with the input. One goroutine may use it at a time.
type Reader struct {
	lines   lines
	format  Format
	gzip    bool
	columns columns // of CSV
	json    jsonParser
	err     error // ends the input
}

// NewReader returns a Reader of r, which it unpacks if it begins like a gzip
// file. Auto stands for the format that [Detect] finds. It reads up to the line
// that shows the format and no further than a buffer, so it waits for that line
// if r is a pipe.
//
// The error wraps ErrEmpty, ErrBinary or ErrUnknownFormat when r cannot hold
// ratings of that format, and is a *ReadError when r cannot be read. A valid
// header without ratings is no error: Next returns io.EOF.
func NewReader(r io.Reader, format Format) (*Reader, error) {
	if format < 0 || int(format) >= len(formats) {
		return nil, fmt.Errorf("unknown ratings format %d", int(format))
	}
	d := &Reader{lines: lines{br: bufio.NewReaderSize(&sticky{r: r}, DetectBytes)}}
	// Two reads, as a pipe may have only one byte of plain text to give.
	if b, _ := d.lines.br.Peek(1); len(b) == 1 && b[0] == gzipMagic[0] {
		if b, _ = d.lines.br.Peek(2); string(b) == gzipMagic {
			d.gzip = true
			unpacked, err := gzip.NewReader(d.lines.br)
			if err != nil {
				return nil, d.broken(err)
			}
			d.lines.br = bufio.NewReaderSize(&sticky{r: unpacked}, DetectBytes)
		}
	}
	var err error
	if d.format, err = detect(d.lines.br, format); err != nil {
		if errors.Is(err, ErrEmpty) || errors.Is(err, ErrBinary) || errors.Is(err, ErrUnknownFormat) {
			return nil, err
		}
		return nil, d.broken(err)
	}
	if b, _ := d.lines.br.Peek(1); len(b) == 1 && b[0] == utf8BOM[0] {
		if b, _ = d.lines.br.Peek(len(utf8BOM)); string(b) == utf8BOM {
			d.lines.br.Discard(len(utf8BOM)) // cannot fail after the Peek
		}
	}
	if d.format == CSV {
		header, err := d.nextLine()
		if err != nil {
			return nil, err
		}
		if d.columns, err = parseHeader(header.text); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnknownFormat, err)
		}
	}
	return d, nil
}

// Format returns the format of the input, never Auto.
func (d *Reader) Format() Format { return d.format }

// Gzip says whether the input is packed.
func (d *Reader) Gzip() bool { return d.gzip }

// Lines returns how many lines have been read so far, blank lines, bad lines
// and a header included.
func (d *Reader) Lines() int { return d.lines.count - len(d.lines.queue) }

// Next returns the next rating. Its error is io.EOF after the last one, a
// *LineError for a bad line, after which Next may be called again, or a
// *ReadError, after which it returns the same again. Blank lines are skipped.
//
// A damaged gzip file may show only at its end, by its checksum, after the
// ratings in it have been returned.
func (d *Reader) Next() (Rating, error) {
	l, err := d.nextLine()
	if err != nil {
		return Rating{}, err
	}
	var rating Rating
	var reason string
	switch {
	case l.size > MaxLineBytes:
		reason = fmt.Sprintf("the line has %d bytes, more than the limit of %d", l.size, MaxLineBytes)
	case d.format == MovieLens:
		rating, reason = parseTabs(l.text)
	case d.format == JSONLines:
		rating, reason = d.json.parse(l.text)
	default:
		return d.nextCSV(l)
	}
	if reason != "" {
		return Rating{}, lineError(l, reason)
	}
	return rating, nil
}

// nextLine returns the next line that is not blank.
func (d *Reader) nextLine() (line, error) {
	for d.err == nil {
		l, err := d.lines.next()
		switch {
		case err == io.EOF:
			d.err = err
		case err != nil:
			d.err = d.broken(err)
		case len(bytes.TrimSpace(l.text)) > 0 || l.size > MaxLineBytes:
			return l, nil
		}
	}
	return line{}, d.err
}

func (d *Reader) broken(err error) error {
	return &ReadError{Lines: d.lines.count, Bytes: d.lines.bytes, Gzip: d.gzip, Err: err}
}

func lineError(l line, reason string) *LineError {
	return &LineError{Line: l.number, Reason: reason, Text: bytes.Clone(l.text[:min(len(l.text), MaxTextBytes)]), Size: l.size}
}

// sticky repeats the first error of r. bufio forgets an error once it has
// reported it, and would read a terminal again after its end.
type sticky struct {
	r   io.Reader
	err error
}

// Read reads from r until r fails.
func (s *sticky) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	var n int
	n, s.err = s.r.Read(p)
	return n, s.err
}
