package liveview

import (
	"strconv"
	"strings"
	"testing"
)

// A screen is a terminal of the size width x height, as far as a View uses one:
// it holds the cursor back in the last column as xterm does, scrolls, and fails
// the test on a control sequence that it does not know.
type screen struct {
	t             *testing.T
	width, height int
	lines         [][]rune // all that was ever printed; the last height are seen
	row, col      int      // of the cursor; row is an index of lines
	noWrap        bool
	hidden        bool
	style         string
	writes        int
}

func newScreen(t *testing.T, width, height int) *screen {
	return &screen{t: t, width: width, height: height, lines: make([][]rune, 1)}
}

func (s *screen) size() (int, int) { return s.width, s.height }

// Write interprets p.
func (s *screen) Write(p []byte) (int, error) {
	s.t.Helper()
	s.writes++
	for text := string(p); text != ""; {
		if rest, ok := strings.CutPrefix(text, "\x1b["); ok {
			end := strings.IndexFunc(rest, func(r rune) bool { return r >= '@' })
			if end < 0 {
				s.t.Fatalf("unfinished control sequence in %q", text)
			}
			s.control(rest[:end+1])
			text = rest[end+1:]
			continue
		}
		r := []rune(text)[0]
		text = text[len(string(r)):]
		switch {
		case r == '\r':
			s.col = 0
		case r == '\n': // with ONLCR, as terminals are set
			s.col = 0
			if s.row++; s.row == len(s.lines) {
				s.lines = append(s.lines, nil)
			}
		case r < ' ':
			s.t.Fatalf("control character %q", r)
		default:
			if s.col == s.width {
				if s.noWrap {
					s.col--
				} else {
					s.Write([]byte("\n"))
				}
			}
			line := s.lines[s.row]
			for len(line) <= s.col {
				line = append(line, ' ')
			}
			line[s.col] = r
			s.lines[s.row] = line
			s.col++
		}
	}
	return len(p), nil
}

func (s *screen) control(seq string) {
	s.t.Helper()
	switch seq {
	case "?25l", "?25h":
		s.hidden = seq == "?25l"
	case "?7l", "?7h":
		s.noWrap = seq == "?7l"
	case "K":
		at := min(s.col, s.width-1) // a cursor held back stands on the last column
		s.lines[s.row] = s.lines[s.row][:min(at, len(s.lines[s.row]))]
	case "J":
		s.control("K")
		for i := s.row + 1; i < len(s.lines); i++ {
			s.lines[i] = nil
		}
	case "m", "1m", "36m":
		s.style = seq
	default:
		n, err := strconv.Atoi(strings.TrimSuffix(seq, "A"))
		if err != nil || n < 1 {
			s.t.Fatalf("unknown control sequence %q", seq)
		}
		s.row = max(s.row-n, len(s.lines)-s.height, 0)
	}
}

// resize changes the width, and breaks the lines anew as most terminals do.
func (s *screen) resize(width int) {
	var lines [][]rune
	row := 0
	for i, line := range s.lines {
		if i == s.row {
			row = len(lines)
		}
		for len(line) > width {
			lines = append(lines, line[:width:width])
			line = line[width:]
		}
		lines = append(lines, line)
	}
	s.width, s.lines, s.row = width, lines, row
}

// text is all that was printed, with the cursor as a bar if it is shown.
func (s *screen) text() string {
	var b strings.Builder
	for i, line := range s.lines {
		text := strings.TrimRight(string(line), " ")
		if i == s.row && !s.hidden {
			text += "|"
		}
		b.WriteString(text + "\n")
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}
