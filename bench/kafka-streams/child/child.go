// Package child is the line protocol between the comparison's harness and the
// processes that it measures: flags in, events as JSON lines out, and the end of
// standard input as the order to stop.
//
// A child measures nothing about its own speed. The harness follows the
// committed offsets and reads the child's CPU time and memory from outside, in
// the same way for each side.
package child

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"sync"
	"time"
)

// Kinds of events, in the order in which a child says them.
const (
	Started   = "started"   // the program runs; Event.Runtime names what runs it
	Restoring = "restoring" // the first record of a changelog is about to be read
	Restored  = "restored"  // the state of every partition is back
	Running   = "running"   // input is being processed
	Failed    = "failed"    // the program cannot go on; Event.Error says why
	Stopped   = "stopped"   // everything is closed, the process ends now
)

// Event is one line that a child prints.
type Event struct {
	Event   string `json:"event"`
	Runtime string `json:"runtime,omitempty"`
	Error   string `json:"error,omitempty"`
	// CPUSeconds may come with Stopped, as a check on what the harness has read
	// from outside.
	CPUSeconds float64 `json:"cpu_seconds,omitempty"`
}

// Reporter prints events. It is safe for concurrent use.
type Reporter struct {
	mu struct {
		sync.Mutex
		enc *json.Encoder
	}
}

// NewReporter returns a Reporter that prints to w.
func NewReporter(w io.Writer) *Reporter {
	r := &Reporter{}
	r.mu.enc = json.NewEncoder(w)
	return r
}

// Say prints one event. A write error means that the harness is gone; the end of
// standard input, which comes with it, ends the child.
func (r *Reporter) Say(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.mu.enc.Encode(e)
}

// Config is what every child is told, whatever it is written in.
type Config struct {
	App        string        // application id: group, changelog and transactional ids derive from it
	Brokers    string        // host:port of one broker
	In         string        // topic to count
	Out        string        // topic for one count per input
	Dir        string        // folder for the state; empty for a cold start
	Partitions int           // partitions of In, Out and the changelog
	Workers    int           // threads or workers
	Commit     time.Duration // commit interval
}

// Args returns the flags that carry c.
func (c Config) Args() []string {
	return []string{
		"--app=" + c.App,
		"--brokers=" + c.Brokers,
		"--in=" + c.In,
		"--out=" + c.Out,
		"--dir=" + c.Dir,
		fmt.Sprintf("--partitions=%d", c.Partitions),
		fmt.Sprintf("--workers=%d", c.Workers),
		fmt.Sprintf("--commit-ms=%d", c.Commit.Milliseconds()),
	}
}

// Bind adds the flags of a Config to fs and returns the Config that they fill
// once fs has been parsed.
func Bind(fs *flag.FlagSet) *Config {
	c := &Config{}
	fs.StringVar(&c.App, "app", "", "application id")
	fs.StringVar(&c.Brokers, "brokers", "", "host:port of a broker")
	fs.StringVar(&c.In, "in", "", "input topic")
	fs.StringVar(&c.Out, "out", "", "output topic")
	fs.StringVar(&c.Dir, "dir", "", "state folder")
	fs.IntVar(&c.Partitions, "partitions", 0, "partitions of each topic")
	fs.IntVar(&c.Workers, "workers", 0, "threads or workers")
	fs.Func("commit-ms", "commit interval in milliseconds", func(s string) error {
		d, err := time.ParseDuration(s + "ms")
		c.Commit = d
		return err
	})
	return c
}

// Validate names the flags that are missing.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"app", c.App != ""}, {"brokers", c.Brokers != ""}, {"in", c.In != ""}, {"out", c.Out != ""},
		{"dir", c.Dir != ""}, {"partitions", c.Partitions > 0}, {"workers", c.Workers > 0}, {"commit-ms", c.Commit > 0},
	} {
		if !f.given {
			errs = append(errs, fmt.Errorf("the flag --%s is missing or not positive", f.name))
		}
	}
	return errors.Join(errs...)
}

// UntilEOF returns a context that ends when in does. The goroutine that reads in
// ends with it, so in must end before the caller waits for it.
func UntilEOF(ctx context.Context, in io.Reader) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		_, err := io.Copy(io.Discard, in)
		cancel(errors.Join(errors.New("standard input ended"), err))
	}()
	return ctx
}
