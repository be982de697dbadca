package demo

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/weirstreams/weir/cmd/weir/internal/ratings"
)

const (
	// maxReadAhead is how many lines are read before they are asked for.
	maxReadAhead = 1024

	// readPatience is how long a stop waits for a read to return. One from a
	// terminal or a pipe that nobody writes to cannot be interrupted; it ends
	// with the process.
	readPatience = 200 * time.Millisecond
)

// A line is a rating or the report of a bad line.
type line struct {
	rating ratings.Rating
	bad    *ratings.LineError
}

// An input reads a file of ratings in a goroutine of its own, so that a stop need
// not wait for input that does not come.
type input struct {
	name string
	stop context.CancelFunc
	// opened gets one value: nil once the format is known, else why the input is
	// of no use. Then format and packed may be read.
	opened chan error
	format ratings.Format
	packed bool
	// lines is closed at the end of the input. After that err says whether it
	// has broken off.
	lines chan line
	err   error
}

// readInput begins to read the file at path, or stdin for "-".
func readInput(ctx context.Context, path string, format ratings.Format, stdin io.Reader) *input {
	in := &input{name: filepath.Base(path), opened: make(chan error, 1), lines: make(chan line, maxReadAhead)}
	if path == ratings.Stdin {
		in.name = "standard input"
	}
	ctx, in.stop = context.WithCancel(ctx)
	go func() {
		defer close(in.lines)
		in.err = in.read(ctx, path, format, stdin)
	}()
	return in
}

func (in *input) read(ctx context.Context, path string, format ratings.Format, stdin io.Reader) error {
	f, err := ratings.Open(path, stdin)
	if err != nil {
		in.opened <- err
		return err
	}
	defer f.Close()
	// Closing a pipe ends a read from it. The second Close fails, which is fine.
	defer context.AfterFunc(ctx, func() { f.Close() })()
	r, err := ratings.NewReader(f, format)
	if err != nil {
		err = fmt.Errorf("%s: %w", in.name, err)
		in.opened <- err
		return err
	}
	in.format, in.packed = r.Format(), r.Gzip()
	in.opened <- nil
	for {
		var l line
		l.rating, err = r.Next()
		switch bad, ok := err.(*ratings.LineError); {
		case ok:
			l.bad = bad
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", in.name, err)
		}
		select {
		case in.lines <- l:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// wait returns when it is known whether the input is of use.
func (in *input) wait(ctx context.Context) error {
	select {
	case err := <-in.opened:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// close gives the input up.
func (in *input) close() {
	in.stop()
	patience := time.NewTimer(readPatience)
	defer patience.Stop()
	for {
		select {
		case _, ok := <-in.lines:
			if !ok {
				return
			}
		case <-patience.C:
			return
		}
	}
}

// describe says what is read, for people.
func (in *input) describe() string {
	if in.packed {
		return fmt.Sprintf("%s (%v, gzip)", in.name, in.format)
	}
	return fmt.Sprintf("%s (%v)", in.name, in.format)
}
