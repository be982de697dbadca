package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/embedded"
)

// average is one line of a result.
type average struct {
	Movie string
	Count int64
	Sum   float64
}

// resultsWith returns the lines of a result whose movies begin with a prefix.
func resultsWith(t *testing.T, stdout, prefix string) map[string]average {
	t.Helper()
	found := map[string]average{}
	d := json.NewDecoder(strings.NewReader(stdout))
	for d.More() {
		var a average
		if err := d.Decode(&a); err != nil {
			t.Fatalf("%v in\n%s", err, stdout)
		}
		if name, ok := strings.CutPrefix(a.Movie, prefix); ok {
			found[name] = a
		}
	}
	return found
}

// testBrokers runs the demo on a cluster whose topics hold other things as well:
// ratings of other programs, records that are no ratings, and aborted
// transactions at the end of every partition.
func testBrokers(t *testing.T, brokers string) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	prefix := "test-" + strings.ToLower(rand.Text()) + "-" // what is there already is not ours
	const nothing = "movieId,rating\n"
	input := fmt.Sprintf(`{"movie_id":"%[1]s1","rating":10,"user":"a"}`+"\n"+`{"movie_id":"%[1]s2","rating":3}`+"\n"+`{"movie_id":"%[1]s1","rating":8,"user":"b"}`+"\n", prefix)
	demo := func(stdin string, args ...string) map[string]average {
		t.Helper()
		r := weir(t, strings.NewReader(stdin), append([]string{"demo", "--brokers", brokers, "--input", "-", "--exit", "--json"}, args...)...)
		if r.code != exitOK {
			t.Fatalf("exit code %d\n%s", r.code, r.stderr)
		}
		return resultsWith(t, r.stdout, prefix)
	}
	check := func(got map[string]average, want map[string]average) {
		t.Helper()
		for name, w := range want {
			if g := got[name]; g.Count != w.Count || g.Sum != w.Sum {
				t.Errorf("movie %s: %d ratings with sum %v, want %d with %v", name, g.Count, g.Sum, w.Count, w.Sum)
			}
		}
		if len(got) != len(want) {
			t.Errorf("movies %v, want %v", got, want)
		}
	}
	check(demo(nothing, "--store", "memory"), nil)

	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(brokers, ",")...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	// The demo has made the topics, as it will.
	topics, err := kadm.NewClient(cl).ListTopics(ctx, "ratings", "weir-demo-by-movie-repartition")
	if err == nil {
		err = topics.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	aborted := func() {
		t.Helper()
		tx, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(brokers, ",")...), kgo.TransactionalID(prefix+"tx"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Close()
		if err := tx.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		topics.EachPartition(func(p kadm.PartitionDetail) {
			value := fmt.Sprintf(`{"movie":"%s1","stars":5}`, prefix)
			if err := tx.ProduceSync(ctx, &kgo.Record{Topic: p.Topic, Partition: p.Partition, Key: []byte(prefix + "1"), Value: []byte(value)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		})
		if err := tx.EndTransaction(ctx, kgo.TryAbort); err != nil {
			t.Fatal(err)
		}
	}
	aborted()
	check(demo(nothing, "--store", "memory"), nil)

	for _, value := range []string{fmt.Sprintf(`{"movie":"%s1","stars":4}`, prefix), "no rating", `{"stars":4}`} {
		if err := cl.ProduceSync(ctx, &kgo.Record{Topic: "ratings", Value: []byte(value)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	check(demo(input, "--dir", dir), map[string]average{"1": {"", 3, 22}, "2": {"", 1, 3}})
	aborted()
	check(demo(input, "--store", "memory", "--workers", "3"), map[string]average{"1": {"", 5, 40}, "2": {"", 2, 6}})
	check(demo(input, "--dir", dir), map[string]average{"1": {"", 7, 58}, "2": {"", 3, 9}})

	// Two instances share the work, and each says so.
	one := startLive(t, strings.NewReader(nothing), "--brokers", brokers, "--input", "-", "--workers", "1")
	one.await(t, `(?m)^Ctrl-C stops it$`)
	two := startLive(t, strings.NewReader(nothing), "--brokers", brokers, "--input", "-", "--workers", "1")
	for _, l := range []*live{one, two} {
		l.await(t, `(?m)^[1-9]\d* of \d+ partitions are here`)
	}
	two.end(t, "stopped; another run goes on from here")
	one.end(t, "stopped; another run goes on from here")
	check(demo(nothing), map[string]average{"1": {"", 7, 58}, "2": {"", 3, 9}})
}

func TestBrokers(t *testing.T) {
	t.Parallel()
	b, err := embedded.Open(embedded.Options{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	brokers := strings.Join(b.Brokers(), ",")
	weir(t, strings.NewReader(udata), "demo", "--brokers", brokers, "--input", "-", "--exit", "--json", "--partitions", "3").want(t, exitOK, averages,
		"created on Kafka at "+brokers+": ratings (3 partitions), rating-averages (3 partitions), ratings-dead-letters (1 partition) (a demo may;")
	r := weir(t, strings.NewReader("no rating\n"), "demo", "--brokers", brokers, "--input", "-", "--exit", "--json", "--format", "jsonl")
	r.want(t, exitOK, averages, "1 bad line")
	if strings.Contains(r.stderr, "created") {
		t.Errorf("the second run creates topics:\n%s", r.stderr)
	}
	testBrokers(t, brokers)
}

func TestBrokersUnreachable(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	begin := time.Now()
	weir(t, nil, "demo", "--brokers", addr).want(t, exitFailure, "", "weir: cannot reach Kafka at "+addr, "connection refused", "check that it runs")
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("it took %v to say so", took)
	}
}
