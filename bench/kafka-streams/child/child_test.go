package child_test

import (
	"bytes"
	"flag"
	"io"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirstreams/weir/bench/kafka-streams/child"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConfigSurvivesTheFlags(t *testing.T) {
	t.Parallel()
	want := child.Config{
		App: "a", Brokers: "127.0.0.1:9092", In: "in", Out: "out", Dir: "with blanks/and=signs",
		Partitions: 4, Workers: 2, Commit: 100 * time.Millisecond,
	}
	fs := flag.NewFlagSet("child", flag.ContinueOnError)
	got := child.Bind(fs)
	if err := fs.Parse(want.Args()); err != nil {
		t.Fatal(err)
	}
	if *got != want {
		t.Errorf("got %+v, want %+v", *got, want)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	err := child.Config{App: "a", Brokers: "b", Out: "out", Dir: "d", Partitions: 4, Workers: 2}.Validate()
	if err == nil || !strings.Contains(err.Error(), "--in ") || !strings.Contains(err.Error(), "--commit-ms ") || strings.Contains(err.Error(), "--out") {
		t.Errorf("Validate = %v; want the flags in and commit-ms", err)
	}
}

func TestReporterPrintsALinePerEvent(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	say := child.NewReporter(&b)
	say.Say(child.Event{Event: child.Started, Runtime: "Java 17"})
	say.Say(child.Event{Event: child.Stopped, CPUSeconds: 1.5})
	const want = `{"event":"started","runtime":"Java 17"}` + "\n" + `{"event":"stopped","cpu_seconds":1.5}` + "\n"
	if b.String() != want {
		t.Errorf("printed %q, want %q", b.String(), want)
	}
}

func TestUntilEOFEndsWithTheInput(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	ctx := child.UntilEOF(t.Context(), r)
	if ctx.Err() != nil {
		t.Fatal("ended before the input did")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
}
