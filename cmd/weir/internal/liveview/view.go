// Package liveview shows a small table that changes in a terminal: the most
// rated movies of `weir demo`, with the newest numbers always in the same place.
//
// On a terminal a [View] redraws its lines where they are. It uses neither the
// alternate screen nor the whole window, so what was printed before stays, and
// the last table remains after [View.Close]. Anywhere else (a file, a pipe, a
// dumb terminal) it prints plain lines, and only for what has changed.
package liveview

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
)

// The size of a terminal that does not tell it, in columns and lines.
const (
	DefaultWidth  = 80
	DefaultHeight = 24
)

// Options say what the output can do. The zero value means plain lines.
// [OptionsFor] finds them out.
type Options struct {
	// Terminal says that the output understands the control sequences of
	// ECMA-48 and the VT100, as all terminals do that are not dumb. The other
	// options matter only then.
	Terminal bool
	// Color allows bold and colored text. Defaults to none.
	Color bool
	// Unicode allows block characters. Defaults to ASCII.
	Unicode bool
	// Size returns the columns and lines of the terminal. It is called for each
	// frame, so that a changed window is followed. Defaults to DefaultWidth and
	// DefaultHeight, as does a number below 1.
	Size func() (width, height int)
}

// A View shows header lines and a table. One goroutine may use it at a time. It
// has no clock: the caller decides how often to call [View.Update]. Other output
// to the same terminal must go through [View.Print] until the View is closed.
type View struct {
	w      io.Writer
	o      Options
	err    error // the first one of w
	closed bool

	// What was shown last: to draw it again, or to find what is new.
	header []string
	rows   []Row

	drawn  []int  // the lines on the terminal, each by its number of runes
	widths widths // of the columns; they only grow, so that nothing jumps
	hidden bool   // the cursor
}

var errClosed = errors.New("liveview: the view is closed")

// New returns a View that writes to w. It writes nothing yet.
func New(w io.Writer, o Options) *View { return &View{w: w, o: o} }

const (
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
	wrapOff    = "\x1b[?7l" // the terminal cuts what we took for shorter
	wrapOn     = "\x1b[?7h"
	clearLine  = "\x1b[K" // from the cursor on
	clearBelow = "\x1b[J"
	bold       = "\x1b[1m"
	cyan       = "\x1b[36m"
	normal     = "\x1b[m"
)

// Update shows header, whose first line is the title, and below it rows in their
// order; [Top] chooses them. On a terminal one write replaces what was shown
// before, cut to the size of the terminal. Elsewhere it prints the header lines
// that differ from the last ones, and the rows whose movie was not shown last
// time or has other numbers now; it writes nothing if there are none.
//
// Control characters in the text are replaced. An error is the first one of the
// writer, and comes again at each further call; after Close it says so.
func (v *View) Update(header []string, rows []Row) error {
	var out bytes.Buffer
	if v.o.Terminal {
		v.toTop(&out)
	} else {
		v.printChanges(&out, header, rows)
	}
	v.header, v.rows = slices.Clone(header), slices.Clone(rows)
	if v.o.Terminal {
		v.draw(&out)
	}
	return v.write(&out)
}

// Print prints lines that stay, such as warnings. On a terminal they go above
// the table, which moves down. Errors are those of Update.
func (v *View) Print(lines ...string) error {
	var out bytes.Buffer
	shown := len(v.drawn) > 0
	if shown {
		v.toTop(&out)
		out.WriteString(clearBelow)
	}
	for _, line := range lines {
		out.WriteString(v.clean(line) + "\n")
	}
	if shown {
		v.draw(&out)
	}
	return v.write(&out)
}

// Close shows the cursor again. The last table stays, with the cursor on the
// line below it. The error is the first one of the writer. A second call does
// nothing and returns nil.
func (v *View) Close() error {
	if v.closed {
		return nil
	}
	v.closed = true
	if v.hidden {
		// Tried after an error too, and with wrapOn in case a frame broke off.
		if _, err := io.WriteString(v.w, wrapOn+showCursor); v.err == nil {
			v.err = err
		}
	}
	return v.err
}

func (v *View) write(out *bytes.Buffer) error {
	switch {
	case v.closed:
		return errClosed
	case v.err == nil && out.Len() > 0:
		// All in one write: the terminal never shows half a frame.
		_, v.err = v.w.Write(out.Bytes())
	}
	return v.err
}

func (v *View) size() (width, height int) {
	if v.o.Size != nil {
		width, height = v.o.Size()
	}
	if width < 1 {
		width = DefaultWidth
	}
	if height < 1 {
		height = DefaultHeight
	}
	return width, height
}

// toTop moves the cursor to the first line of the last frame. If the window has
// become narrower since, the terminal has broken our lines in two.
func (v *View) toTop(out *bytes.Buffer) {
	width, _ := v.size()
	up := 0
	for _, runes := range v.drawn {
		up += max(1, (runes+width-1)/width)
	}
	out.WriteByte('\r') // the terminal may have echoed a key
	if up > 0 {
		fmt.Fprintf(out, "\x1b[%dA", up)
	}
}

// draw draws the last header and rows from the cursor downwards.
//
// The cursor ends on the line below. A frame that is higher than the window
// could not be reached again after it has scrolled, so it is cut. The last
// column stays free, because there a terminal holds the cursor back and
// clearLine would clear the character.
func (v *View) draw(out *bytes.Buffer) {
	width, height := v.size()
	width, height = max(width-1, 1), max(height-1, 1)
	lines := v.frame(width)
	lines = lines[:min(len(lines), height)]

	if !v.hidden {
		v.hidden = true
		out.WriteString(hideCursor)
	}
	out.WriteString(wrapOff)
	v.drawn = v.drawn[:0]
	for _, l := range lines {
		text := v.cut(l.text, width)
		v.drawn = append(v.drawn, len(text))
		before, after := string(text[:min(l.bar, len(text))]), string(text[min(l.bar, len(text)):])
		switch {
		case !v.o.Color || len(text) == 0:
			out.WriteString(before + after)
		case l.title:
			out.WriteString(bold + before + after + normal)
		case after != "":
			out.WriteString(before + cyan + after + normal)
		default:
			out.WriteString(before)
		}
		out.WriteString(clearLine + "\n")
	}
	out.WriteString(clearBelow + wrapOn)
}

// printChanges prints what differs from the last header and rows.
func (v *View) printChanges(out *bytes.Buffer, header []string, rows []Row) {
	for i, line := range header {
		if line != "" && (i >= len(v.header) || v.header[i] != line) {
			out.WriteString(v.clean(line) + "\n")
		}
	}
	last := make(map[string]Row, len(v.rows))
	for _, r := range v.rows {
		last[r.Movie] = r
	}
	for _, r := range rows {
		if before, ok := last[r.Movie]; ok && before == r {
			continue
		}
		noun := "ratings"
		if r.Count == 1 {
			noun = "rating"
		}
		fmt.Fprintf(out, "movie %s: %d %s, average %s\n", v.clean(r.Movie), r.Count, noun, average(r.Average))
	}
}

// clean replaces what would move the cursor or change the terminal.
func (v *View) clean(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsPrint(r):
			return r
		case r == '\t':
			return ' '
		case v.o.Unicode:
			return unicode.ReplacementChar
		}
		return '?'
	}, text)
}

// cut returns the runes of text, at most width of them, with a mark where the
// rest is missing.
func (v *View) cut(text string, width int) []rune {
	runes := []rune(text)
	if len(runes) <= width {
		return runes
	}
	runes = runes[:width]
	runes[width-1] = '~'
	if v.o.Unicode {
		runes[width-1] = '…'
	}
	return runes
}
