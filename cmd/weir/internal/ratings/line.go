package ratings

import (
	"bufio"
	"io"
)

// MaxLineBytes is the longest line that is read, in bytes without its end. A
// longer line is skipped with a [LineError], in bounded memory.
const MaxLineBytes = 1 << 20

// A line is one line of the input without its end, "\n" or "\r\n".
type line struct {
	number int    // the first line is 1
	text   []byte // valid until next is called again; cut to MaxLineBytes
	size   int    // in the input; above MaxLineBytes the line is too long
}

// lines cuts a stream into lines.
type lines struct {
	br    *bufio.Reader
	buf   []byte // holds a line that br's buffer cannot
	queue []line // given back by unread
	count int    // complete lines read from br
	bytes int64  // their size with line ends
}

// next returns the next line. A last line without an end counts, but one that a
// read error has cut short does not: half a rating can look like a whole one.
func (s *lines) next() (line, error) {
	if len(s.queue) > 0 {
		l := s.queue[0]
		s.queue = s.queue[1:]
		return l, nil
	}
	text, err := s.br.ReadSlice('\n')
	whole, total, before := text, len(text), byte(0)
	if err == bufio.ErrBufferFull {
		s.buf = append(s.buf[:0], text...)
		for err == bufio.ErrBufferFull {
			before = text[len(text)-1]
			text, err = s.br.ReadSlice('\n')
			total += len(text)
			s.buf = append(s.buf, text[:min(len(text), MaxLineBytes-len(s.buf))]...)
		}
		whole = s.buf
	}
	if err != nil && (err != io.EOF || total == 0) {
		return line{}, err
	}
	s.count++
	s.bytes += int64(total)
	size := total
	if n := len(text); err == nil { // text ends with "\n"
		size--
		if n > 1 {
			before = text[n-2]
		}
		if before == '\r' {
			size--
		}
	}
	return line{number: s.count, text: whole[:min(size, MaxLineBytes)], size: size}, nil
}

// unread gives lines back, to be returned by next again. Their text must not be
// that of next.
func (s *lines) unread(ls []line) { s.queue = append(ls, s.queue...) }
