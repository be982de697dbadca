package demo

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/weirstreams/weir/cmd/weir/internal/liveview"
)

// maxBadLines is how many bad lines are shown. All of them are in the topic for
// dead letters.
const maxBadLines = 20

// A console shows the table and messages. Where both go to one terminal the
// messages go above the table. It is safe for concurrent use.
type console struct {
	mu struct {
		sync.Mutex
		stderr io.Writer
		view   *liveview.View // nil while no table is shown
		above  bool           // messages go through the view
		part   []byte         // of a line that is not complete
	}
	options  liveview.Options
	terminal bool // stderr is one, too
}

func newConsole(stdout, stderr io.Writer, getenv func(string) string) *console {
	c := &console{}
	c.mu.stderr = stderr
	if f, ok := stdout.(*os.File); ok {
		c.options = liveview.OptionsFor(f, getenv)
	}
	if f, ok := stderr.(*os.File); ok {
		c.terminal = liveview.OptionsFor(f, getenv).Terminal
	}
	return c
}

// show begins to show a table on w.
func (c *console) show(w io.Writer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.view = liveview.New(w, c.options)
	c.mu.above = c.options.Terminal && c.terminal
}

// update changes the table.
func (c *console) update(header []string, rows []liveview.Row) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.view.Update(header, rows)
}

// hide ends the table, which stays where it is.
func (c *console) hide() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.view == nil {
		return nil
	}
	v, above := c.mu.view, c.mu.above
	c.mu.view, c.mu.above = nil, false
	err := v.Close()
	if above {
		io.WriteString(c.mu.stderr, "\r") // the terminal has echoed a ^C
	}
	return err
}

// print prints a message of one line.
func (c *console) print(format string, args ...any) {
	fmt.Fprintf(c, format+"\n", args...)
}

// Write prints the lines of a log. It never fails: there is no place left to say
// so.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.above {
		c.mu.stderr.Write(p)
		return len(p), nil
	}
	c.mu.part = append(c.mu.part, p...)
	for {
		text, rest, ok := bytes.Cut(c.mu.part, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		c.mu.view.Print(string(text))
		c.mu.part = append(c.mu.part[:0], rest...)
	}
}

// grouped prints a number with commas, as 12,345.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign, digits := "", s
	if n < 0 {
		sign, digits = s[:1], s[1:]
	}
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return sign + b.String()
}

// counted prints a number with its noun, as "1 movie" or "12,345 movies".
func counted(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return grouped(n) + " " + noun + "s"
}
