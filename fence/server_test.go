//go:build integration

package fence

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/weirstreams/weir/internal/redistest"
	"github.com/weirstreams/weir/metric"
)

// The scenarios of miniredis, with the same results.
func TestScenariosRedis(t *testing.T) {
	s := redistest.Start(t)
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		s.Must("FLUSHALL")
		runScenario(t, path, "redis://"+s.Addr()+"?check=off&timeout=30s")
	})
}

func clusterURL(nodes []*redistest.Server) string {
	addrs := make([]string, len(nodes))
	for i, n := range nodes {
		addrs[i] = n.Addr()
	}
	return "redis+cluster://" + strings.Join(addrs, ",")
}

func TestScenariosCluster(t *testing.T) {
	nodes := redistest.StartCluster(t, 3)
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		for _, n := range nodes {
			n.Must("FLUSHALL")
		}
		runScenario(t, path, clusterURL(nodes)+"?check=off&timeout=30s")
	})
}

func mustOpen(t testing.TB, o Options) *Fence {
	t.Helper()
	f, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// The table of commands agrees with what a server says.
func TestCommandsOfServer(t *testing.T) {
	c := commands
	c.Since = maps.Clone(c.Since)
	// A command with subcommands; they came with it.
	delete(c.Since, "SCRIPT")
	c.CheckServer(t, redistest.Start(t))
}

func serverFence(t *testing.T, s *redistest.Server, o Options) (*Fence, *Claim) {
	t.Helper()
	o.URL, o.Topic, o.Partitions = "redis://"+s.Addr()+"?check=off&timeout=20s", "t", 1
	f := mustOpen(t, o)
	return f, mustClaim(t, f, Assignment{Committed: -1})
}

// A reducer that does not end is killed by a person: nothing is written, and the
// batch can be done again.
func TestKilledScript(t *testing.T) {
	s := redistest.Start(t, "--busy-reply-threshold", "50")
	_, c := serverFence(t, s, Options{Reducers: []Reducer{{Name: "maybe", Version: 1, Source: "while args[1] == 'endless' do end return 'made'"}}})
	records := func(arg string) []Record {
		return []Record{{Offset: 0, Key: []byte("a"), Op: Set([]byte("x"))}, {Offset: 1, Key: []byte("b"), Op: Reduce("maybe", arg)}}
	}
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		redistest.Eventually(t, "SCRIPT KILL", func() bool { return s.Do("SCRIPT", "KILL").Error() == nil })
	}()
	_, err := c.Apply(t.Context(), Batch{Records: records("endless")})
	<-killed
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "killed") {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	for _, key := range s.Keys() {
		if strings.Contains(key, ":s") || strings.Contains(key, ":w") {
			t.Errorf("key %s was written", key)
		}
	}
	results, err := c.Apply(t.Context(), Batch{Records: records("now")})
	if err != nil || results[0].Verdict != Apply || string(results[1].State) != "made" {
		t.Errorf("%+v, error %v", results, err)
	}
}

// A server that is full writes nothing of a batch.
func TestFullServer(t *testing.T) {
	for name, op := range map[string]Op{"long": Add(1), "short": Set([]byte("v"))} {
		for _, o := range []Options{{}, {NoWindow: true}, {TTL: time.Hour, Retention: time.Minute}, {NoWindow: true, TTL: time.Hour, Retention: time.Minute}} {
			t.Run(fmt.Sprintf("%s form, no window %t, ttl %v", name, o.NoWindow, o.TTL), func(t *testing.T) {
				testFull(t, o, op)
			})
		}
	}
}

func testFull(t *testing.T, o Options, op Op) {
	s := redistest.Start(t, "--maxmemory-policy", "noeviction")
	var m metric.Memory
	o.Metrics = &m
	_, c := serverFence(t, s, o)
	batch := func(first int64) Batch {
		b := Batch{Committed: first}
		for i := range int64(3) {
			b.Records = append(b.Records, Record{Offset: first + i, Key: []byte{byte('a' + i)}, Op: op})
		}
		return b
	}
	if _, err := c.Apply(t.Context(), batch(0)); err != nil {
		t.Fatal(err)
	}
	before := contents(t, s)
	s.Must("CONFIG", "SET", "maxmemory", "1")
	_, err := c.Apply(t.Context(), batch(3))
	s.Must("CONFIG", "SET", "maxmemory", "0")
	if !errors.Is(err, ErrFull) {
		t.Errorf("%v, want ErrFull", err)
	}
	if n := m.Sum(metric.FenceFull); n != 1 {
		t.Errorf("counted %v times", n)
	}
	if after := contents(t, s); !maps.Equal(after, before) {
		t.Errorf("it holds %q, before %q", after, before)
	}
	results, err := c.Apply(t.Context(), batch(3))
	if err != nil || results[2].Verdict != Apply {
		t.Errorf("%+v, error %v", results, err)
	}
	if after := contents(t, s); maps.Equal(after, before) {
		t.Error("nothing was written")
	}
}

// contents is what a server holds, by key, in a form that can be compared.
func contents(t *testing.T, s *redistest.Server) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, key := range s.Keys() {
		all[key] = s.Text("DUMP", key)
	}
	return all
}

// The server forgets its scripts, restarts with what it has on its disk, or is
// replaced by a replica that lags.
func TestServerRestarts(t *testing.T) {
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	_, c := serverFence(t, s, Options{})
	add := func(offset int64) ([]Result, error) {
		return c.Apply(t.Context(), Batch{Records: []Record{{Offset: offset, Key: []byte("k"), Op: Add(1)}}})
	}
	if _, err := add(0); err != nil {
		t.Fatal(err)
	}
	s.Must("SCRIPT", "FLUSH")
	if _, err := add(1); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if _, err := add(2); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	s.Start()
	var results []Result
	redistest.Eventually(t, "Redis is back", func() (ok bool) {
		var err error
		results, err = add(2)
		if err != nil && !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
		return err == nil
	})
	if results[0].Verdict != Apply || string(results[0].State) != "3" {
		t.Errorf("%+v", results)
	}
}

// The rights of docs/fence.md are enough.
func TestRights(t *testing.T) {
	s := redistest.Start(t)
	text, err := os.ReadFile("../docs/fence.md")
	if err != nil {
		t.Fatal(err)
	}
	granted := false
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 4 && words[0] == "ACL" && words[1] == "SETUSER" {
			words[slices.Index(words, ">PASSWORD")] = ">secret"
			s.Must(words...)
			granted = true
		}
	}
	if !granted {
		t.Fatal("docs/fence.md has no line with ACL SETUSER")
	}
	o := Options{URL: "redis://weir:secret@" + s.Addr(), Topic: "t", Partitions: 1, TTL: 2 * time.Hour, Retention: time.Hour,
		Reducers: []Reducer{{Name: "r", Version: 1, Source: "return 'x'"}}}
	f := mustOpen(t, o)
	c := mustClaim(t, f, Assignment{Committed: -1})
	ctx := t.Context()
	records := []Record{{Offset: 0, Key: []byte("a"), Op: Add(1)}, {Offset: 1, Key: []byte("b"), Op: SetAdd("x", "y")}, {Offset: 2, Key: []byte("b"), Op: SetRemove("x")}, {Offset: 3, Key: []byte("c"), Op: Reduce("r")}}
	for range 2 {
		if _, err := c.Apply(ctx, Batch{Records: records}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Apply(ctx, Batch{Records: []Record{{Offset: 4, Key: []byte("b"), Op: Delete()}}, Committed: 4}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Update(ctx, Batch{Records: []Record{{Offset: 5, Key: []byte("a")}}, Committed: 4}, func(*Record, []byte, bool) (Change, error) {
		return Change{Value: []byte("2")}, nil
	}); err != nil {
		t.Fatal(err)
	}
	long := bytes.Repeat([]byte("x"), 1000)
	if _, err := c.Apply(ctx, Batch{Records: []Record{{Offset: 6, Key: []byte("c"), Op: Delete()}, {Offset: 7, Key: []byte("a"), Op: Set([]byte("2"))}}, Committed: 4}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Apply(ctx, Batch{Records: []Record{{Offset: 8, Key: []byte("d"), Op: Set(long)}}, Committed: 4}); err != nil {
		t.Fatal(err)
	}
	s.Must("DEL", f.stateKey(0, []byte("d"))) // so that the window is looked at
	if _, err := c.Update(ctx, Batch{Records: []Record{{Offset: 8, Key: []byte("d")}}, Committed: 4}, func(*Record, []byte, bool) (Change, error) {
		return Change{}, errors.New("computed again")
	}); err != nil {
		t.Fatal(err)
	}
	in, err := f.Inspect(ctx, []byte("a"))
	if err != nil {
		t.Fatal(err)
	}
	if v, _, err := f.Predict(ctx, in, 0, 5); err != nil || v != Reemit {
		t.Errorf("%v, error %v", v, err)
	}
	if err := f.Rewind(ctx, Rewinding{}); err != nil {
		t.Error(err)
	}
	l, err := f.Lease(ctx, 0, MinLease)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Renew(ctx), l.Release(ctx)); err != nil {
		t.Error(err)
	}
	o.TTL = 0
	lasting := mustClaim(t, mustOpen(t, o), Assignment{Committed: 0})
	if _, err := lasting.Apply(ctx, Batch{Records: []Record{{Offset: 0, Key: []byte("b"), Op: SetAdd("x")}}}); err != nil {
		t.Error(err)
	}
}

// While a slot is moved to another node, a batch that would make a key there is
// refused, and nothing of it is written: neither of the states, nor of the members
// of sets, nor of the window.
func TestMovingSlot(t *testing.T) {
	nodes := redistest.StartCluster(t, 2)
	f := mustOpen(t, Options{URL: clusterURL(nodes) + "?check=off&timeout=20s", Topic: "t", Partitions: 1, Slots: 1})
	c := mustClaim(t, f, Assignment{Committed: -1})
	ctx := t.Context()
	if _, err := c.Apply(ctx, Batch{Records: []Record{{Offset: 0, Key: []byte("k"), Op: Delete()}}}); err != nil {
		t.Fatal(err)
	}
	n, err := nodes[0].Must("CLUSTER", "KEYSLOT", f.stateKey(0, []byte("k"))).AsInt64()
	if err != nil {
		t.Fatal(err)
	}
	slot := strconv.FormatInt(n, 10)
	at, to := nodes[0], nodes[1]
	if !slices.Contains(at.Keys(), f.stateKey(0, []byte("k"))) {
		at, to = to, at
	}
	to.Must("CLUSTER", "SETSLOT", slot, "IMPORTING", at.NodeID())
	at.Must("CLUSTER", "SETSLOT", slot, "MIGRATING", to.NodeID())
	before := contents(t, at)
	for name, b := range map[string][]Record{
		"members":      {{Offset: 1, Key: []byte("k"), Op: SetAdd("x", "y")}},
		"a state":      {{Offset: 1, Key: []byte("k"), Op: Add(1)}, {Offset: 2, Key: []byte("new"), Op: Add(1)}},
		"a short call": {{Offset: 1, Key: []byte("k"), Op: Set([]byte("v"))}, {Offset: 2, Key: []byte("new"), Op: Set([]byte("v"))}},
	} {
		if _, err := c.Apply(ctx, Batch{Records: b}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", name, err)
		}
		if after := contents(t, at); !maps.Equal(after, before) || slices.Contains(to.Keys(), f.stateKey(0, []byte("new"))) {
			t.Errorf("%s: it holds %q, before %q", name, after, before)
		}
	}
	at.Must("CLUSTER", "SETSLOT", slot, "STABLE")
	to.Must("CLUSTER", "SETSLOT", slot, "STABLE")
	redistest.Eventually(t, "the breaker closes", func() bool {
		results, err := c.Apply(ctx, Batch{Records: []Record{{Offset: 1, Key: []byte("k"), Op: SetAdd("x", "y")}}})
		if err != nil && !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
		return err == nil && results[0].Verdict == Apply && string(results[0].State) == "2 2"
	})
}

// The programs of TestManyBatches on a server.
func TestManyBatchesRedis(t *testing.T) {
	s := redistest.Start(t)
	for seed := range 40 {
		s.Must("FLUSHALL")
		p := newPlayer(t, "redis://"+s.Addr()+"?check=off&timeout=30s", drawn(seed))
		p.note("program %d", seed)
		p.play()
		p.close()
	}
}
