// Command weir shows and operates Weir, stateful stream processing on Kafka.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() { os.Exit(realMain()) }

// secondSignal is how long after the first signal a second one is taken for the
// wish to be killed. Programs such as timeout send one both to the process and to
// its group.
const secondSignal = 500 * time.Millisecond

func realMain() int {
	// A write to a pipe that nobody reads any more is an error like any other,
	// and not the end of the process before it has cleaned up.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, func() {
		time.Sleep(secondSignal)
		stop()
	})
	return run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// run carries out a command line and returns the exit code. The end of ctx stops
// it.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot(stdin, stdout, stderr)
	root.SetContext(ctx)
	root.SetArgs(args)
	return execute(root)
}
