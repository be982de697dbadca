package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirstreams/weir/bench/kafka-streams/child"
	"github.com/weirstreams/weir/embedded"
)

// TestBareLoopFromEndToEnd runs the whole comparison, with the embedded broker
// and the bare loop as its only side.
func TestBareLoopFromEndToEnd(t *testing.T) {
	b, err := embedded.Open(embedded.Options{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	// However fast the machine is, the harness has to see the commits one by one:
	// none is carried out before the offsets have been looked at since the last.
	// The client takes the answer as a marker that is still being written, and asks
	// again.
	var looked atomic.Bool
	for _, c := range []struct {
		key kmsg.Key
		fn  func(*embedded.Call) (kmsg.Response, error, bool)
	}{
		{kmsg.OffsetFetch, func(*embedded.Call) (kmsg.Response, error, bool) {
			looked.Store(true)
			return nil, nil, false
		}},
		{kmsg.EndTxn, func(call *embedded.Call) (kmsg.Response, error, bool) {
			if looked.Swap(false) {
				return nil, nil, false
			}
			resp := call.Request.ResponseKind().(*kmsg.EndTxnResponse)
			resp.ErrorCode = kerr.ConcurrentTransactions.Code
			return resp, nil, true
		}},
	} {
		stop, err := b.Control(c.key, c.fn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stop)
	}
	t.Setenv("WEIR_KAFKA", b.Brokers()[0])
	dir := t.TempDir()
	file := filepath.Join(dir, "results.json")
	var stdout, stderr bytes.Buffer
	args := []string{
		"--only=bare", "--records=40000", "--keys=500", "--value-bytes=10", "--rounds=2",
		"--commit-interval=5ms", "--dir=" + dir, "--json=" + file,
	}
	if err := runMain(t.Context(), args, strings.NewReader(""), &stdout, &stderr); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}

	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r results
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	want := map[string][]metric{
		phaseCount:   {recordsPerCPUSecond, recordsPerTotalCPUSecond, recordsPerSecond, maxRSS, brokerCPUPerRecord, startSeconds, changelogRecords},
		phaseRestore: {restoreRecordsPerSecond, restoreSeconds, coldStartSeconds, coldStartCPUSeconds, maxRSS, changelogRecords},
	}
	if len(r.Runs) != 4 {
		t.Fatalf("%d runs, want two counts and two restores", len(r.Runs))
	}
	for _, run := range r.Runs {
		for _, m := range want[run.Phase] {
			if run.Metrics[m.key] <= 0 {
				t.Errorf("%s, round %d: %s is %v", run.Phase, run.Round, m.key, run.Metrics[m.key])
			}
			if !strings.Contains(stdout.String(), m.title) {
				t.Errorf("the table lacks %q:\n%s", m.title, stdout.String())
			}
		}
	}
	// Each restore of the last round's program added probes to count.
	if got, want := r.Runs[3].Metrics[changelogRecords.key], 40_500.0; got != want {
		t.Errorf("the second restore found %v records in the changelog, want %v", got, want)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 {
		t.Errorf("left in the folder: %v", left)
	}
}

// TestFailingChild checks that a child that breaks down ends the run at once,
// with what it wrote.
func TestFailingChild(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, script, want string }{
		{"says why", `echo '{"event":"started"}'; echo '{"event":"failed","error":"no luck"}'; cat`, "no luck"},
		{"ends", `echo '{"event":"started"}'; echo 'last words' >&2`, "last words"},
		{"never starts", `exit 3`, "the child has ended"},
		{"prints something else", `echo hello; cat`, `"hello"`},
		{"does not exist", "", "no-such-program"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			sd := side{key: "fake", command: func(ctx context.Context, _ []string) *exec.Cmd {
				if tt.script == "" {
					return exec.CommandContext(ctx, "no-such-program")
				}
				return exec.CommandContext(ctx, "sh", "-c", tt.script)
			}}
			h := &harness{in: &input{topic: "in"}, dir: t.TempDir(), log: slog.New(slog.DiscardHandler), runtimes: map[string]string{}}
			err := h.with(t.Context(), sd, "app", func(p *process) error {
				_, err := p.await(t.Context(), child.Running)
				return err
			}, nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}
