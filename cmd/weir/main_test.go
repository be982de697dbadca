package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// asProgram makes the test binary be the program, for tests that need a process.
const asProgram = "WEIR_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(realMain())
	}
	goleak.VerifyTestMain(m)
}

// patience bounds the wait for something that takes a second on an idle machine.
const patience = 2 * time.Minute

// output is what a command has written so far.
type output struct {
	mu struct {
		sync.Mutex
		buf bytes.Buffer
	}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.buf.String()
}

// result is what came of a command line.
type result struct {
	code           int
	stdout, stderr string
}

// weir runs a command line to its end.
func weir(t *testing.T, stdin io.Reader, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var stdout, stderr output
	code := run(ctx, args, stdin, &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

// want fails unless a command printed exactly stdout and its messages contain
// each of some texts.
func (r result) want(t *testing.T, code int, stdout string, messages ...string) {
	t.Helper()
	if r.code != code || r.stdout != stdout {
		t.Errorf("exit code %d, want %d; printed:\n%swant:\n%smessages:\n%s", r.code, code, r.stdout, stdout, r.stderr)
	}
	for _, m := range messages {
		if !strings.Contains(r.stderr, m) {
			t.Errorf("no %q in the messages:\n%s", m, r.stderr)
		}
	}
}

// await polls a condition.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in time", what)
		}
	}
}
