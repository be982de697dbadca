package embedded

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestProduceAndConsume(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Topics: []Topic{{Name: "in", Partitions: 2}}})
	cl := client(t, b)
	produce(t, cl, record("in", 1, "a", "1"), record("in", 1, "b", "2"))
	if got, want := read(t, b, "in", 1), []string{"a=1", "b=2"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	p, err := b.Partition("in", 1)
	if err != nil || p.End != 2 || p.LastStable != 2 || p.LogStart != 0 || p.Bytes == 0 {
		t.Errorf("partition is %+v, %v", p, err)
	}
}

// What the broker offers differs from the newest Kafka release in nothing but
// the version of produce requests.
func TestOfferedVersions(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	var vn kfake.VirtualNetwork
	plain, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(1), kfake.ListenFn(vn.Listen))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()

	ask := func(c io.ReadWriteCloser) (map[int16][2]int16, map[string]int16) {
		defer c.Close()
		req := kmsg.NewPtrApiVersionsRequest()
		req.SetVersion(3)
		req.ClientSoftwareName, req.ClientSoftwareVersion = "test", "1"
		resp, err := roundTrip(c, req)
		if err != nil {
			t.Fatal(err)
		}
		keys := make(map[int16][2]int16)
		for _, k := range resp.(*kmsg.ApiVersionsResponse).ApiKeys {
			keys[k.ApiKey] = [2]int16{k.MinVersion, k.MaxVersion}
		}
		features := make(map[string]int16)
		for _, f := range resp.(*kmsg.ApiVersionsResponse).FinalizedFeatures {
			features[f.Name] = f.MaxVersionLevel
		}
		return keys, features
	}
	c, err := vn.DialContext(testContext(t), "tcp", "localhost:1")
	if err != nil {
		t.Fatal(err)
	}
	wantKeys, wantFeatures := ask(c)
	if c, err = b.net.dial(testContext(t), "tcp", b.Brokers()[0]); err != nil {
		t.Fatal(err)
	}
	gotKeys, gotFeatures := ask(c)
	wantKeys[int16(kmsg.Produce)] = [2]int16{3, 12}
	if !maps.Equal(gotKeys, wantKeys) {
		t.Errorf("offered versions are\n%v, want\n%v", gotKeys, wantKeys)
	}
	if !maps.Equal(gotFeatures, wantFeatures) || gotFeatures["transaction.version"] != 2 {
		t.Errorf("features are %v, want %v with transaction.version 2", gotFeatures, wantFeatures)
	}
}

func TestOptionsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		opts Options
		want string
	}{
		{"brokers", Options{Brokers: 17}, "Brokers is 17: want 1 to 16"},
		{"negative brokers", Options{Brokers: -1}, "Brokers is -1"},
		{"interval", Options{CleanupInterval: -time.Second}, "CleanupInterval is -1s"},
		{"topic", Options{Topics: []Topic{{Name: "a b", Partitions: 1}}}, `topic name "a b"`},
		{"partitions", Options{Topics: []Topic{{Name: "a"}}}, "0 partitions"},
		{"listen", Options{Listen: "9092"}, "want host:port"},
		{"listen everywhere", Options{Listen: ":9092"}, "name the host"},
		{"listen on any", Options{Listen: "0.0.0.0:9092"}, "name the host"},
		{"listen port", Options{Listen: "127.0.0.1:kafka"}, "port must be a number"},
		{"two topics of a name", Options{Topics: []Topic{{Name: "a", Partitions: 1}, {Name: "a", Partitions: 2}}}, "has 1 partitions, asked for 2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b, err := Open(tt.opts)
			if err == nil {
				b.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %q, want it to have %q", err, tt.want)
			}
		})
	}
}

// clusterGoroutines counts the goroutines that run code of the cluster or of
// this package, but for the tests.
func clusterGoroutines() int {
	buf := make([]byte, 8<<20)
	n := 0
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "kfake.(*") || strings.Contains(g, "embedded.(*listener)") || strings.Contains(g, "embedded.(*Broker)") {
			n++
		}
	}
	return n
}

// Not parallel: it looks at all goroutines of the process.
func TestCloseLeavesNoGoroutine(t *testing.T) {
	var clients sync.WaitGroup // closing one takes a second when its broker is gone
	defer clients.Wait()
	for range 10 {
		b, err := Open(Options{Brokers: 3, Listen: "127.0.0.1:0", CleanupInterval: time.Hour, Topics: []Topic{{Name: "in", Partitions: 3}}})
		if err != nil {
			t.Fatal(err)
		}
		cl, err := newClient(b, kgo.ConsumeTopics("in"))
		if err != nil {
			t.Fatal(err)
		}
		produce(t, cl, record("in", 0, "", "1"), record("in", 1, "", "1"), record("in", 2, "", "1"))
		if fs := cl.PollFetches(testContext(t)); fs.Err() != nil {
			t.Fatal(fs.Err())
		}
		// The client is still fetching.
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if n := clusterGoroutines(); n != 0 {
			t.Fatalf("%d goroutines are left", n)
		}
		if err := b.Close(); err != nil {
			t.Fatalf("second Close: %v", err)
		}
		clients.Go(cl.Close)
	}
}

func TestCloseFromManyGoroutines(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Dir: t.TempDir(), Topics: []Topic{{Name: "in", Partitions: 1}}})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			for {
				if _, err := b.Partition("in", 0); err != nil {
					if !errors.Is(err, ErrClosed) {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestClosed(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Topics: []Topic{{Name: "in", Partitions: 1}}})
	in, err := b.Fault(Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Count: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	for name, err := range map[string]error{
		"CreateTopic":      b.CreateTopic(ctx, "x", 1, nil),
		"AddPartitions":    b.AddPartitions(ctx, "in", 2),
		"DeleteTopic":      b.DeleteTopic(ctx, "in"),
		"DeleteRecords":    b.DeleteRecords(ctx, "in", 0, -1),
		"Partition":        second(b.Partition("in", 0)),
		"Partitions":       second(b.Partitions("in")),
		"Compact":          b.Compact(ctx),
		"Retain":           b.Retain(ctx),
		"NetworkDown":      b.NetworkDown(false),
		"NodeDown":         b.NodeDown(0, false),
		"MoveLeader":       b.MoveLeader("in", 0, 0),
		"MoveCoordinators": b.MoveCoordinators(),
		"Coordinator":      second(b.Coordinator("g")),
		"OpenTransactions": second(b.OpenTransactions(ctx)),
		"Group":            second(b.Group("g")),
		"WaitGroup":        second(b.WaitGroup(ctx, "g", 1)),
		"Fault":            second(b.Fault(Fault{})),
		"Control":          second(b.Control(AnyRequest, nil)),
		"Injection.Wait":   in.Wait(ctx, 1),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v, want ErrClosed", name, err)
		}
	}
	in.Remove()
	cl, err := kgo.NewClient(b.ClientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.Ping(ctx); err == nil {
		t.Error("a closed broker answers")
	}
}

func second[T any](_ T, err error) error { return err }

// A wait of another goroutine ends with the broker, not with its own context.
func TestCloseEndsWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, err := Open(Options{Topics: []Topic{{Name: "table", Partitions: 1, Configs: map[string]string{"cleanup.policy": "compact"}}}})
		if err != nil {
			t.Fatal(err)
		}
		cl, err := newClient(b, kgo.TransactionalID("t"))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		produce(t, cl, record("table", 0, "a", "1"))
		in, err := b.Fault(Fault{Keys: []kmsg.Key{kmsg.ElectLeaders}})
		if err != nil {
			t.Fatal(err)
		}
		errs := make(chan error, 3)
		ctx := context.Background()
		go func() { errs <- second(b.WaitGroup(ctx, "g", 1)) }()
		go func() { errs <- in.Wait(ctx, 1) }()
		go func() { errs <- b.Compact(ctx) }()
		time.Sleep(time.Second)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := <-errs; !errors.Is(err, ErrClosed) {
				t.Errorf("a wait ended with %v, want ErrClosed", err)
			}
		}
	})
}

func TestCloseNamesAStuckControl(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, err := Open(Options{})
		if err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		if _, err := b.Control(kmsg.ApiVersions, func(*Call) (kmsg.Response, error, bool) {
			<-release
			return nil, nil, false
		}); err != nil {
			t.Fatal(err)
		}
		cl, err := newClient(b)
		if err != nil {
			t.Fatal(err)
		}
		pinged := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer close(pinged)
			_ = cl.Ping(ctx)
		}()
		synctest.Wait()
		if err := b.Close(); err == nil || !strings.Contains(err.Error(), "Control function") {
			t.Errorf("Close: %v, want an error that speaks of the Control function", err)
		}
		close(release)
		cancel()
		<-pinged
		cl.Close()
	})
}

// A bubble's clock drives the broker: a transaction times out after a minute
// that does not pass.
func TestSynctest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, err := Open(Options{Brokers: 2, Topics: []Topic{{Name: "in", Partitions: 2}}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}()
		cl, err := newClient(b, kgo.TransactionalID("t"), kgo.TransactionTimeout(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		group, err := newClient(b, kgo.ConsumerGroup("g"), kgo.ConsumeTopics("in"))
		if err != nil {
			t.Fatal(err)
		}
		defer group.Close()
		ctx := t.Context()
		if err := transact(ctx, cl, kgo.TryCommit, record("in", 0, "a", "1"), record("in", 1, "b", "2")); err != nil {
			t.Fatal(err)
		}
		if _, err := b.WaitGroup(ctx, "g", 1); err != nil {
			t.Fatal(err)
		}
		for n := 0; n < 2; {
			fs := group.PollFetches(ctx)
			if err := fs.Err(); err != nil {
				t.Fatal(err)
			}
			n += fs.NumRecords()
		}
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := cl.ProduceSync(ctx, record("in", 0, "a", "2")).FirstErr(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for {
			open, err := b.OpenTransactions(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if len(open) == 0 {
				break
			}
			time.Sleep(time.Second)
		}
		if took := time.Since(began); took < 55*time.Second || took > 65*time.Second {
			t.Errorf("the transaction timed out after %v, want a minute", took)
		}
	})
}

func TestIncarnationIsFresh(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	seen := make(map[string]bool)
	for range 3 {
		b, err := Open(Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if id := b.Incarnation(); id == "" || seen[id] {
			t.Errorf("incarnation %q is empty or was there before", id)
		} else {
			seen[id] = true
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Open must not leave the label of its goroutines on the caller.
func TestCallerKeepsItsLabels(t *testing.T) {
	t.Parallel()
	pprof.Do(t.Context(), pprof.Labels("mine", "yes"), func(ctx context.Context) {
		open(t, Options{})
		done := make(chan string)
		go func() {
			// A new goroutine has the labels of the one that started it.
			var profile strings.Builder
			pprof.Lookup("goroutine").WriteTo(&profile, 1)
			done <- profile.String()
		}()
		if p := <-done; !strings.Contains(p, `"mine":"yes"`) {
			t.Error("the caller's goroutine has lost its label")
		}
	})
}

// kfake reports failures of the folder in its log and nowhere else. Every
// warning and error in its source is either taken for such a failure or listed
// here as something else.
func TestStorageTroubleIsComplete(t *testing.T) {
	t.Parallel()
	harmless := []string{
		"OffsetCommit STALE", "consumerHeartbeatLate", "consumerRebalanceTimeout", "consumerSessionTimeout",
		"group %s: addPartitionEpochs", "load session state", "session_state.json", "txn: EndTxn slow", "txn timeout abort",
	}
	dir := moduleDir(t, "github.com/twmb/franz-go/pkg/kfake")
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no source in %s: %v", dir, err)
	}
	found := make(map[string]bool)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, level := range []string{"Logf(LogLevelWarn,", "Logf(LogLevelError,"} {
			for _, call := range strings.Split(string(src), level)[1:] {
				format, ok := strings.CutPrefix(strings.TrimSpace(call), `"`)
				if !ok {
					t.Errorf("%s: a log call without a literal format: %.60s", file, call)
					continue
				}
				format, _, _ = strings.Cut(format, `"`)
				starts := func(s string) bool { return strings.HasPrefix(format, s) }
				i := slices.IndexFunc(storageTrouble, starts)
				if i >= 0 {
					found[storageTrouble[i]] = true
				} else if !slices.ContainsFunc(harmless, starts) {
					t.Errorf("%s logs %q: is it a failure of the folder?", filepath.Base(file), format)
				}
			}
		}
	}
	for _, s := range storageTrouble {
		if !found[s] {
			t.Errorf("kfake does not log %q any more", s)
		}
	}
}
