package proof

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
	"github.com/weirstreams/weir/state/pebblestore"
)

// The folder with the edits of Wikipedia, a line of JSON each, is the one in
// dataEnv, or else dataFolder from the root of the repository. Without it the
// test makes events of the same shape.
const (
	dataEnv    = "WEIR_TEST_DATA"
	dataFolder = "../shared/data"
	dataFile   = "wikipedia-edits.json.gz"
)

// madeEvents is how many events are made without the file. embeddedEvents is how
// many the embedded broker gets, with which this test also runs under the race
// detector; a real one gets them all.
const (
	madeEvents     = 40_000
	embeddedEvents = 5_000
)

// edit is what is read of an event. Channel is that of a wiki.
type edit struct {
	Channel string `json:"channel"`
	Page    string `json:"page"`
	User    string `json:"user"`
	Delta   int64  `json:"delta"`
	Added   int64  `json:"added"`
	Deleted int64  `json:"deleted"`
}

func (e edit) wiki() string { return e.Channel }
func (e edit) page() string { return e.Channel + " " + e.Page }

// tally is what is counted of a page or a wiki.
type tally struct {
	Edits, Added, Deleted, Delta int64
}

func (t tally) plus(e edit) tally {
	return tally{t.Edits + 1, t.Added + e.Added, t.Deleted + e.Deleted, t.Delta + e.Delta}
}

// events are values of the input topic, and where they are from.
type events struct {
	from  string
	lines []string
}

var readEvents = sync.OnceValues(func() (events, error) {
	folder := os.Getenv(dataEnv)
	named := folder != ""
	if !named {
		folder = filepath.Join("..", "..", filepath.FromSlash(dataFolder))
	}
	lines, err := readLines(filepath.Join(folder, dataFile))
	if errors.Is(err, fs.ErrNotExist) && !named {
		return events{"made, since there is no " + dataFile, madeEdits()}, nil
	}
	return events{dataFile, lines}, err
})

// readLines returns the lines of a compressed file.
func readLines(path string) (lines []string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s := bufio.NewScanner(z)
	for s.Buffer(nil, 1<<20); s.Scan(); {
		lines = append(lines, s.Text())
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return lines, nil
}

// madeEdits makes events with the proportions of the real ones: few wikis of
// very different size, few users with most of the edits, many pages with one.
func madeEdits() (lines []string) {
	rng := rand.New(rand.NewPCG(20150911, 1))
	wikis, users, pages := rand.NewZipf(rng, 1.5, 2, 50), rand.NewZipf(rng, 1.3, 3, 10_000), rand.NewZipf(rng, 1.05, 200, 30_000)
	for range madeEvents {
		e := edit{Channel: fmt.Sprintf("#w%d.wikipedia", wikis.Uint64()), Page: fmt.Sprintf("Seite „%d“", pages.Uint64()),
			User: fmt.Sprint("user-", users.Uint64()), Added: rng.Int64N(2000), Deleted: rng.Int64N(500)}
		e.Delta = e.Added - e.Deleted
		b, err := json.Marshal(e)
		if err != nil {
			panic(err)
		}
		lines = append(lines, string(b))
	}
	return lines
}

// editTables counts the edits by page and by wiki.
type editTables struct {
	topology     *weir.Topology
	pages, wikis weir.Table[string, tally]
}

// editTables builds the topology. The events come by user, so that both tables
// are behind a repartition topic.
func (s *situation) editTables() *editTables {
	s.t.Helper()
	var e editTables
	e.topology = s.build(func(b *weir.Builder) {
		events := b.Stream(s.str("edits")).TryMapValues(func(_, line string) (e edit, err error) {
			err = json.Unmarshal([]byte(line), &e)
			return e, err
		}).Serdes(serde.String, serde.JSON[edit]())
		count := func(name string, key func(edit) string) weir.Table[string, tally] {
			return events.GroupBy("by-"+name, serde.String, func(_ string, e edit) string { return key(e) }).
				Aggregate(name, serde.JSON[tally](), func() tally { return tally{} }, func(_ string, e edit, t tally) tally { return t.plus(e) })
		}
		e.pages, e.wikis = count("pages", edit.page), count("wikis", edit.wiki)
		e.pages.ToStream().To(weir.NewTopic(s.topicOf("page-edits"), serde.String, serde.JSON[tally]()))
		e.wikis.ToStream().To(weir.NewTopic(s.topicOf("wiki-edits"), serde.String, serde.JSON[tally]()))
	})
	for _, name := range []string{"pages", "wikis"} {
		s.deleteLater(s.t, s.name+"-"+name+"-changelog", s.name+"-by-"+name+"-repartition")
	}
	return &e
}

// firstEdit is the time of the first event, for all tests of a run: the time of
// a record is part of what a store keeps. It is no older than topics keep, and
// no later than now.
var firstEdit = time.Now().Add(-time.Hour).Truncate(time.Millisecond)

// writeEdits writes events by user, some at a time: those from number first on, a
// millisecond after another.
func (s *situation) writeEdits(lines []string, first int) error {
	at := firstEdit.Add(time.Duration(first) * time.Millisecond)
	for some := range slices.Chunk(lines, 200) {
		list := make([]*kgo.Record, len(some))
		for i, line := range some {
			var e edit
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				return fmt.Errorf("event %q: %w", line, err)
			}
			list[i] = &kgo.Record{Topic: s.topicOf("edits"), Key: []byte(e.User), Value: []byte(line), Timestamp: at}
			at = at.Add(time.Millisecond)
		}
		if err := s.cl.ProduceSync(s.ctx, list...).FirstErr(); err != nil {
			return fmt.Errorf("write events: %w", err)
		}
	}
	return nil
}

// editPartitions is the number of partitions of the topics, and so of the tasks of
// each of the three subtopologies.
const editPartitions = 4

// editStore is a kind of store. An instance that starts again in its folder finds
// its state there, but for the one in memory.
type editStore struct {
	name string
	// config lets an instance with the folder dir use the store.
	config func(t *testing.T, s *situation, dir string) func(*weir.Config)
	// reopen opens the store of an instance that has stopped.
	reopen func(t *testing.T, s *situation, dir string, used state.Backend) (state.Backend, error)
}

var editStores = []editStore{
	{
		name: "memory",
		config: func(*testing.T, *situation, string) func(*weir.Config) {
			return func(c *weir.Config) { c.Store = memstore.New() }
		},
		reopen: func(_ *testing.T, _ *situation, _ string, used state.Backend) (state.Backend, error) {
			return used, nil
		},
	},
	{
		name:   "disk",
		config: func(_ *testing.T, _ *situation, dir string) func(*weir.Config) { return onDisk(dir) },
		reopen: func(_ *testing.T, s *situation, dir string, _ state.Backend) (state.Backend, error) {
			return pebblestore.Open(filepath.Join(dir, s.name, "state"), pebblestore.Options{})
		},
	},
	{
		name: "redis",
		config: func(t *testing.T, s *situation, _ string) func(*weir.Config) {
			store, err := openRedis(s.ctx, s.redisURL())
			if err != nil {
				t.Fatal(err)
			}
			return func(c *weir.Config) { c.Store = store }
		},
		reopen: func(_ *testing.T, _ *situation, _ string, used state.Backend) (state.Backend, error) {
			return used, nil
		},
	},
}

// redisURL is that of the Redis beside the broker, with a namespace of this test.
func (s *situation) redisURL() string { return s.redisBeside(s.t) + "?check=off&namespace=" + s.name }

// TestWikipediaEdits: a real data set is counted by page and by wiki on each
// kind of store and broker, while a second instance comes, goes and comes back.
// The tables, and every count on the way, are those of a loop over the file, and
// all stores have the same bytes at the end.
func TestWikipediaEdits(t *testing.T) {
	onEachCluster(t, func(t *testing.T, s *situation) {
		left := make([]string, len(editStores)) // digests
		t.Run("on", func(t *testing.T) {
			for i, store := range editStores {
				t.Run(store.name, func(t *testing.T) {
					t.Parallel()
					left[i] = testEdits(t, newSituation(t, s.cluster), store)
				})
			}
		})
		t.Logf("contents of the stores: %s", left[0])
		for i, store := range editStores {
			if left[i] != left[0] {
				t.Errorf("contents of the store, %s: %s; %s: %s", editStores[0].name, left[0], store.name, left[i])
			}
		}
	})
}

// testEdits runs the application on a kind of store, and returns a digest of what
// that has at the end.
func testEdits(t *testing.T, s *situation, store editStore) string {
	in, err := readEvents()
	if err != nil {
		t.Fatal(err)
	}
	if s.embedded != nil {
		in.lines = in.lines[:min(len(in.lines), embeddedEvents)]
	}
	pages, wikis := map[string]tally{}, map[string]tally{}
	for _, line := range in.lines {
		var e edit
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		pages[e.page()], wikis[e.wiki()] = pages[e.page()].plus(e), wikis[e.wiki()].plus(e)
	}
	n := len(in.lines)
	t.Logf("events: %s, %d of them, %d pages, %d wikis", in.from, n, len(pages), len(wikis))

	s.topics(editPartitions, "edits", "page-edits", "wiki-edits")
	top := s.editTables()
	home, dir := t.TempDir(), t.TempDir()
	var used []state.Backend // closed at the end
	t.Cleanup(func() {
		for _, b := range used {
			if err := b.Close(); err != nil {
				t.Errorf("close the store: %v", err)
			}
		}
	})
	start := func(dir string) *instanceOf {
		return s.start(top.topology, store.config(t, s, dir), func(c *weir.Config) {
			c.Workers, c.CommitInterval = 2, 100*time.Millisecond
			if c.Store != nil {
				used = append(used, c.Store)
			}
		})
	}
	began := time.Now()
	first := start(home).running()
	// meanwhile lets something happen while a quarter of the events is written.
	meanwhile := func(quarter int, act func()) {
		written := make(chan error, 1)
		go func() { written <- s.writeEdits(in.lines[quarter*n/4:(quarter+1)*n/4], quarter*n/4) }()
		act()
		if err := <-written; err != nil {
			t.Fatal(err)
		}
	}
	var second *instanceOf
	come := func() {
		second = start(dir).running()
		second.says("task running") // it took some from the first
	}
	meanwhile(0, func() {})
	meanwhile(1, come)
	meanwhile(2, func() { second.stop() })
	meanwhile(3, come)
	s.countedOnce("page-edits", n, pages)
	s.countedOnce("wiki-edits", n, wikis)
	second.stop()
	sameAsLoop(s, first, top.pages, pages)
	sameAsLoop(s, first, top.wikis, wikis)
	first.stop()
	t.Logf("counted in %v", time.Since(began).Round(100*time.Millisecond))

	var last state.Backend
	if len(used) > 0 {
		last = used[0]
	}
	last, err = store.reopen(t, s, home, last)
	if err != nil {
		t.Fatal(err)
	}
	used = append(used, last)
	digest, entries := contents(s, last)
	if want := len(pages) + len(wikis); entries != want {
		t.Errorf("the store has %d entries, want %d", entries, want)
	}
	return digest
}

// contents returns a digest and the number of all entries of a store, in the
// order of tasks and keys. A shared one is left empty.
func contents(s *situation, b state.Backend) (digest string, entries int) {
	s.t.Helper()
	h := sha256.New()
	add := func(part []byte) {
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		h.Write(part)
	}
	for subtopology := range 3 {
		for p := range editPartitions {
			id := state.ID{Application: s.name, Task: fmt.Sprintf("%d_%d", subtopology, p)}
			add([]byte(id.Task))
			it := b.Committed(id).Iterate(s.ctx, state.Range{})
			for it.Next() {
				add(it.Key())
				add(it.Value())
				entries++
			}
			if err := errors.Join(it.Err(), it.Close()); err != nil {
				s.t.Fatalf("read the store of task %s: %v", id.Task, err)
			}
			if err := b.Drop(s.ctx, id); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)), entries
}

// countedOnce waits for n tallies in a topic and checks that those of each key
// count 1, 2, 3, ... and end with the one of the loop.
func (s *situation) countedOnce(short string, n int, want map[string]tally) {
	s.t.Helper()
	got := map[string]tally{}
	for _, r := range s.await(short, n) {
		var c tally
		if err := json.Unmarshal(r.Value, &c); err != nil {
			s.t.Fatal(err)
		}
		key := string(r.Key)
		if before := got[key].Edits; c.Edits != before+1 {
			s.t.Errorf("%s: key %q: count %d comes after %d", short, key, c.Edits, before)
		}
		got[key] = c
	}
	compareTallies(s, short, got, want)
}

// sameAsLoop compares a table with the one of the loop, once the application has
// all its tasks back.
func sameAsLoop(s *situation, i *instanceOf, table weir.Table[string, tally], want map[string]tally) {
	s.t.Helper()
	var got map[string]tally
	waitUntil(s.t, s.ctx, "the application has all tasks", func() (ok bool, err error) {
		got, err = tableOf(s.ctx, i.app, table)
		return err == nil && len(got) == len(want), errors.Join(err, fmt.Errorf("it has %d keys", len(got)))
	})
	compareTallies(s, "table", got, want)
}

func compareTallies(s *situation, what string, got, want map[string]tally) {
	s.t.Helper()
	if maps.Equal(got, want) {
		return
	}
	wrong := 0
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if got[key] == want[key] {
			continue
		}
		if wrong++; wrong <= maxProblems {
			s.t.Errorf("%s: key %q has %+v, want %+v", what, key, got[key], want[key])
		}
	}
	s.t.Errorf("%s: %d keys of %d are wrong, and it has %d", what, wrong, len(want), len(got))
}
