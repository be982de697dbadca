package embedded

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The test binary runs itself as the process that is killed: childEnv names
// what it does, childDir the folder.
const (
	childEnv = "WEIR_EMBEDDED_TEST_CHILD"
	childDir = "WEIR_EMBEDDED_TEST_DIR"
)

var childTopics = []Topic{{Name: "out", Partitions: 2}, {Name: "table", Partitions: 1, Configs: map[string]string{"cleanup.policy": "compact", "segment.bytes": "20000"}}}

// childMain opens the folder, does its work, says what it did line by line, and
// waits to be killed.
func childMain(what string) int {
	work := map[string]func(context.Context, *Broker) error{
		"hold":    func(context.Context, *Broker) error { return nil },
		"open":    childLeavesOpen,
		"load":    childLoad,
		"compact": childCompacts,
		"group":   childJoinsGroup,
		"close":   func(_ context.Context, b *Broker) error { return b.Close() },
	}[what]
	b, err := Open(Options{Dir: os.Getenv(childDir), Topics: childTopics})
	if err == nil {
		fmt.Println("opened")
		err = work(context.Background(), b)
	}
	if err != nil {
		fmt.Println("failed:", err)
		return 1
	}
	fmt.Println("done")
	select {}
}

// child is a running one.
type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func startChild(t *testing.T, what, dir string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t) // kills it should the test hang
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), childEnv+"="+what, childDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &child{t, cmd, bufio.NewScanner(out)}
}

// until returns what the child says before the line.
func (c *child) until(line string) []string {
	c.t.Helper()
	var said []string
	for c.lines.Scan() {
		if c.lines.Text() == line {
			return said
		}
		said = append(said, c.lines.Text())
		if strings.HasPrefix(c.lines.Text(), "failed:") {
			break
		}
	}
	c.t.Fatalf("the child said %q and not %q", said, line)
	return nil
}

// kill ends the child with SIGKILL and returns what else it said.
func (c *child) kill() []string {
	c.t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		c.t.Fatal(err)
	}
	var said []string
	for c.lines.Scan() {
		said = append(said, c.lines.Text())
	}
	_ = c.cmd.Wait()
	return said
}

// childLeavesOpen commits, aborts, commits offsets, and leaves a transaction
// open on both partitions.
func childLeavesOpen(ctx context.Context, b *Broker) error {
	cl, err := newClient(b, kgo.TransactionalID("t"))
	if err != nil {
		return err
	}
	if err := transact(ctx, cl, kgo.TryCommit, record("out", 0, "k", "committed"), record("out", 1, "k", "committed")); err != nil {
		return err
	}
	if err := transact(ctx, cl, kgo.TryAbort, record("out", 0, "k", "aborted")); err != nil {
		return err
	}
	if err := cl.BeginTransaction(); err != nil {
		return err
	}
	return cl.ProduceSync(ctx, record("out", 0, "k", "open"), record("out", 1, "k", "open"), record("out", 1, "k", "open")).FirstErr()
}

// The bug of the cluster that recovery works around. When this test fails, the
// cluster writes abort markers itself.
func TestUpstreamForgetsToAbort(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := startChild(t, "open", dir)
	c.until("done")
	c.kill()
	f, err := openFolder(dir, logTo(new(logBuffer)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.unlock()
	left, err := f.recover()
	if err != nil {
		t.Fatal(err)
	}
	if len(left.open) != 2 {
		t.Fatalf("open are %+v, want one on each partition", left.open)
	}
	// As Open, but for the markers.
	b := &Broker{log: f.log, incarnation: "x", folder: f, compacts: make(chan struct{}, 1)}
	b.names.set = make(map[string]bool)
	b.life, b.end = context.WithCancelCause(context.Background())
	if b.net, err = newNetwork(1, "", nil, b.log, b.addName); err != nil {
		t.Fatal(err)
	}
	if err := b.startCluster(Options{Brokers: 1}); err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	cl := client(t, b, kgo.TransactionalID("t"))
	if err := transact(testContext(t), cl, kgo.TryCommit, record("out", 1, "k", "later")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, b, "out", 1); slices.Contains(got, "k=later") {
		t.Errorf("a reader sees what was committed later: %v", got)
	}
}

// What a killed process left open is gone for good, and its transactional id
// can be used again, even without the incarnation in it.
func TestKilledWithOpenTransaction(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := startChild(t, "open", dir)
	c.until("done")
	c.kill()

	want := []string{"k=committed"}
	for restart := range 3 {
		b, err := Open(Options{Dir: dir, Topics: childTopics})
		if err != nil {
			t.Fatal(err)
		}
		for p := range int32(2) {
			if got := read(t, b, "out", p); !slices.Equal(got, want) {
				t.Errorf("restart %d: partition %d has %v, want %v", restart, p, got, want)
			}
		}
		cl, err := newClient(b, kgo.TransactionalID("t"))
		if err != nil {
			t.Fatal(err)
		}
		value := fmt.Sprint("later-", restart)
		if err := transact(testContext(t), cl, kgo.TryCommit, record("out", 0, "k", value), record("out", 1, "k", value)); err != nil {
			t.Fatal(err)
		}
		want = append(want, "k="+value)
		for p := range int32(2) {
			if got := read(t, b, "out", p); !slices.Equal(got, want) {
				t.Errorf("after restart %d: partition %d has %v, want %v", restart, p, got, want)
			}
		}
		cl.Close()
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// childLoad runs transactions, every third of them aborted, each on both
// partitions and with an offset, and says which ones ended.
func childLoad(ctx context.Context, b *Broker) error {
	seed, err := os.ReadFile(filepath.Join(os.Getenv(childDir), "..", "round"))
	if err != nil {
		return err
	}
	cl, err := newClient(b, kgo.TransactionalID("t"), kgo.DefaultProduceTopic("out"))
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		id := fmt.Sprintf("%s.%d", strings.TrimSpace(string(seed)), i)
		end, said := kgo.TryCommit, "committed "
		if i%3 == 2 {
			end, said = kgo.TryAbort, "aborted "
		}
		fmt.Println("begun", strings.TrimSpace(said), id)
		if err := cl.BeginTransaction(); err != nil {
			return err
		}
		for n := range 1 + i%4 {
			if err := cl.ProduceSync(ctx, record("out", int32(n%2), said+id, strings.Repeat("x", 1+i%500)), record("out", int32((n+1)%2), said+id, "y")).FirstErr(); err != nil {
				return err
			}
		}
		if err := commitOffsetTo(ctx, b, cl, "out", int64(i)); err != nil {
			return err
		}
		if err := cl.EndTransaction(ctx, end); err != nil {
			return err
		}
		fmt.Println(said + id)
	}
}

// commitOffsetTo adds an offset of partition 0 to the open transaction of a
// client.
func commitOffsetTo(ctx context.Context, b *Broker, cl *kgo.Client, name string, offset int64) error {
	id, epoch, err := cl.ProducerID(ctx)
	if err != nil {
		return err
	}
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, _ = cl.OptValue(kgo.TransactionalID).(string)
	req.Group, req.ProducerID, req.ProducerEpoch = "g", id, epoch
	topic := kmsg.NewTxnOffsetCommitRequestTopic()
	topic.Topic = name
	p := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	p.Offset = offset
	topic.Partitions = append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	req.SetVersion(5) // the last one that names topics
	resp, err := b.request(ctx, 0, req)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.(*kmsg.TxnOffsetCommitResponse).Topics[0].Partitions[0].ErrorCode)
}

// Killed under load, again and again: what was acknowledged as committed is
// there, what was aborted or not ended is not.
func TestKilledUnderLoad(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	dir := filepath.Join(parent, "broker")
	committed := make(map[string]bool)
	unknown := make(map[string]bool) // commits that were asked for and not confirmed
	for round := range 8 {
		if err := os.WriteFile(filepath.Join(parent, "round"), fmt.Appendln(nil, round), 0o600); err != nil {
			t.Fatal(err)
		}
		c := startChild(t, "load", dir)
		c.until("opened")
		time.Sleep(time.Duration(20+rand.IntN(150)) * time.Millisecond) // the moment of the kill is the point
		for _, line := range c.kill() {
			if strings.HasPrefix(line, "failed:") {
				t.Fatal(line)
			}
			if key, ok := strings.CutPrefix(line, "begun "); ok {
				if strings.HasPrefix(key, "committed ") {
					unknown[key] = true
				}
			} else if strings.HasPrefix(line, "committed ") {
				committed[line] = true
				delete(unknown, line)
			}
		}
		b, err := Open(Options{Dir: dir, Topics: childTopics})
		if err != nil {
			t.Fatal(err)
		}
		counts := make(map[string]int)
		for p := range int32(2) {
			for _, r := range read(t, b, "out", p) {
				key, _, _ := strings.Cut(r, "=")
				counts[key]++
				if !committed[key] && !unknown[key] {
					t.Errorf("round %d: a reader sees %q, which was never committed", round, key)
				}
			}
		}
		for key := range committed {
			var r, i int
			fmt.Sscanf(strings.TrimPrefix(key, "committed "), "%d.%d", &r, &i)
			if want := 2 * (1 + i%4); counts[key] != want {
				t.Errorf("round %d: a reader sees %d records of %q, want %d", round, counts[key], key, want)
			}
		}
		g, err := b.Group("g")
		if err != nil {
			t.Fatal(err)
		}
		last := -1
		for key := range committed {
			var r, i int
			fmt.Sscanf(strings.TrimPrefix(key, "committed "), "%d.%d", &r, &i)
			if r == round {
				last = max(last, i)
			}
		}
		if got := g.Commits["out"][0].Offset; last >= 0 && got != int64(last) && !unknown[fmt.Sprintf("committed %d.%d", round, got)] {
			t.Errorf("round %d: committed offset is %d, want %d", round, got, last)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(committed) < 20 {
		t.Errorf("only %d transactions were committed", len(committed))
	}
	t.Logf("%d committed, %d of unknown outcome", len(committed), len(unknown))
}

// childCompacts writes a table and compacts it all the time.
func childCompacts(ctx context.Context, b *Broker) error {
	cl, err := newClient(b)
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		for k := range 50 {
			if err := cl.ProduceSync(ctx, record("table", 0, fmt.Sprint("k", k), fmt.Sprint(i))).FirstErr(); err != nil {
				return err
			}
		}
		fmt.Println("wrote", i)
		if err := b.Compact(ctx); err != nil {
			return err
		}
	}
}

// A kill in the middle of a compaction loses no key.
func TestKilledWhileCompacting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for round := range 8 {
		c := startChild(t, "compact", dir)
		c.until("wrote 0")
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond) // the moment of the kill is the point
		wrote := 0
		for _, line := range c.kill() {
			if strings.HasPrefix(line, "failed:") {
				t.Fatal(line)
			}
			fmt.Sscanf(line, "wrote %d", &wrote)
		}
		b, err := Open(Options{Dir: dir, Topics: childTopics})
		if err != nil {
			t.Fatal(err)
		}
		last := make(map[string]int)
		for _, r := range read(t, b, "table", 0) {
			key, value, _ := strings.Cut(r, "=")
			var n int
			fmt.Sscan(value, &n)
			last[key] = n
		}
		for k := range 50 {
			if n, ok := last[fmt.Sprint("k", k)]; !ok || n < wrote {
				t.Errorf("round %d: key k%d has value %d (there: %t), want %d or more", round, k, n, ok, wrote)
			}
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// childJoinsGroup is a member with the longest session when it is killed.
func childJoinsGroup(ctx context.Context, b *Broker) error {
	cl, err := newClient(b, kgo.ConsumerGroup("g"), kgo.InstanceID("i"), kgo.ConsumeTopics("out"), kgo.SessionTimeout(5*time.Minute))
	if err != nil {
		return err
	}
	if err := cl.ProduceSync(ctx, record("out", 0, "", "1")).FirstErr(); err != nil {
		return err
	}
	cl.PollFetches(ctx)
	if err := cl.CommitUncommittedOffsets(ctx); err != nil {
		return err
	}
	_, err = b.WaitGroup(ctx, "g", 1)
	return err
}

// The members of the last start do not keep a group waiting; the offsets stay.
func TestMembersEndWithTheBroker(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := startChild(t, "group", dir)
	c.until("done")
	c.kill()
	for restart := range 2 {
		b, err := Open(Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		g, err := b.Group("g")
		if err != nil || len(g.Members) != 0 || g.Commits["out"][0].Offset != 1 {
			t.Errorf("restart %d: group is %+v, %v", restart, g, err)
		}
		cl, err := newClient(b, kgo.ConsumerGroup("g"), kgo.InstanceID("i"), kgo.ConsumeTopics("out"))
		if err != nil {
			t.Fatal(err)
		}
		if g, err = b.WaitGroup(testContext(t), "g", 1); err != nil || g.Members[0].Instance != "i" {
			t.Errorf("restart %d: group is %+v, %v", restart, g, err)
		}
		// The member is still there when the broker goes.
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		cl.Close()
	}
}

func TestTwoProcessesOnOneFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := startChild(t, "hold", dir)
	c.until("done")
	_, err := Open(Options{Dir: dir})
	if !errors.Is(err, ErrFolderInUse) || !strings.Contains(err.Error(), fmt.Sprint("process id ", c.cmd.Process.Pid)) {
		t.Errorf("Open of a folder in use: %v, want ErrFolderInUse and process id %d", err, c.cmd.Process.Pid)
	}
	c.kill()
	b, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatalf("Open after the other process was killed: %v", err)
	}
	if _, err := Open(Options{Dir: dir}); !errors.Is(err, ErrFolderInUse) {
		t.Errorf("second Open in this process: %v, want ErrFolderInUse", err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	c = startChild(t, "close", dir)
	c.until("done")
	// Closed is enough, the process need not end.
	b, err = Open(Options{Dir: dir})
	if err != nil {
		t.Fatalf("Open after the other process closed it: %v", err)
	}
	c.kill()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}
