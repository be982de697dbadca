package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/embedded"
)

func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func packed(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The same ratings in each format: 10, 8 and 3 of three users, the last of them
// in another movie.
const (
	udata = "1\t362\t10\t881250949\n2\t242\t3\t881250950\n3\t362\t8\t881250951\n"
	csv   = "userId,movieId,rating,timestamp\n1,362,10.0,881250949\n2,242,3.0,881250950\n3,362,8.0,881250951\n"
	jsonl = `{"movie_id":362,"rating":10}` + "\n" + `{"movie_id":242,"rating":3}` + "\n" + `{"movie_id":362,"rating":8}` + "\n"

	averages = `{"movie":"242","count":1,"sum":3,"average":3}` + "\n" + `{"movie":"362","count":2,"sum":18,"average":9}` + "\n"
)

func TestFormats(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, content, format string }{
		{"u.data", udata, "movielens"},
		{"ratings.csv", csv, "csv"},
		{"ratings.jsonl", jsonl, "jsonl"},
	} {
		for _, gz := range []bool{false, true} {
			content, told := c.content, c.format
			if gz {
				content, told = packed(t, content), told+", gzip"
			}
			t.Run(told, func(t *testing.T) {
				t.Parallel()
				path := file(t, c.name, content)
				weir(t, nil, "demo", "--input", path, "--exit", "--json", "--store", "memory").want(t, exitOK, averages, c.name+" ("+told+"): 3 ratings processed, no bad lines\n")
				weir(t, strings.NewReader(content), "demo", "-i", "-", "--format", c.format, "--exit", "--json", "--workers", "1", "--partitions", "1").
					want(t, exitOK, averages, "standard input ("+told+"): 3 ratings processed")
			})
		}
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	input := jsonl + `{"movie_id":"tt7","rating":2.5,"user":"a","timestamp":1}` + "\n" + `{"movie_id":1029,"rating":1e9}` + "\n"
	weir(t, strings.NewReader(input), "demo", "--input", "-", "--exit").want(t, exitOK, strings.TrimPrefix(`
movie    ratings    average
242            1       3.00
362            2       9.00
1029           1      1e+09
tt7            1       2.50
`, "\n"), "5 ratings processed")
}

func TestBadLines(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	input := "1\t362\t10\t881250949\nnonsense\n2\t242\t3\t881250950\n3\t362\tmany\t881250951\n3\t362\t8\t881250951\n"
	path := file(t, "u.data", input)
	weir(t, nil, "demo", "--input", path, "--exit", "--json", "--dir", dir).want(t, exitOK, averages,
		"u.data: line 2: expected 4 fields separated by tabs (user, movie, rating, timestamp), found 1\n",
		"u.data: line 4: the rating \"many\" is not a number\n",
		"u.data (movielens): 3 ratings processed, 2 bad lines in topic ratings-dead-letters\n")
	got := readTopic(t, dir, "ratings-dead-letters", 2)
	want := []string{
		"nonsense [weir-input=u.data weir-line=2 weir-line-bytes=8 weir-error-class=decode weir-error=expected 4 fields separated by tabs (user, movie, rating, timestamp), found 1]",
		"3\t362\tmany\t881250951 [weir-input=u.data weir-line=4 weir-line-bytes=20 weir-error-class=decode weir-error=the rating \"many\" is not a number]",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("dead letters:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// What the topic of averages has got last is what was printed.
	last := map[string]string{}
	for _, r := range readTopic(t, dir, "rating-averages", 3) {
		movie, value, _ := strings.Cut(r, "=")
		last[movie] = value
	}
	if last["362"] != `{"count":2,"sum":18,"average":9} []` || last["242"] != `{"count":1,"sum":3,"average":3} []` {
		t.Errorf("topic rating-averages ends with %v", last)
	}
}

// readTopic reads n committed records of a folder that a demo has left, as
// "key=value [headers]".
func readTopic(t *testing.T, dir, topic string, n int) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	b, err := embedded.Open(embedded.Options{Dir: filepath.Join(dir, "embedded", "broker")})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	cl, err := kgo.NewClient(append(b.ClientOptions(), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	var records []string
	for len(records) < n {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("%v after %q", err, records)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			var headers []string
			for _, h := range r.Headers {
				headers = append(headers, h.Key+"="+string(h.Value))
			}
			text := fmt.Sprintf("%s %v", r.Value, headers)
			if r.Key != nil {
				text = string(r.Key) + "=" + text
			}
			records = append(records, text)
		})
	}
	return records
}

func TestManyBadLines(t *testing.T) {
	t.Parallel()
	r := weir(t, strings.NewReader(udata+strings.Repeat("bad\n", 30)), "demo", "--input", "-", "--exit", "--json", "--store", "memory")
	r.want(t, exitOK, averages, "line 23: ", "further bad lines are only counted", "30 bad lines")
	if n := strings.Count(r.stderr, "standard input: line "); n != 20 {
		t.Errorf("%d bad lines are shown:\n%s", n, r.stderr)
	}
}

func TestNoRatings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, input, format, message string }{
		{"only a header", "userId,movieId,rating,timestamp\n", "auto", "0 ratings processed, no bad lines"},
		{"only bad lines", "bad\nworse\n", "jsonl", "0 ratings processed, 2 bad lines"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			weir(t, strings.NewReader(c.input), "demo", "--input", "-", "--format", c.format, "--exit", "--json").want(t, exitOK, "", c.message)
			weir(t, strings.NewReader(c.input), "demo", "--input", "-", "--format", c.format, "--exit").want(t, exitOK, "movie    ratings    average\n", c.message)
		})
	}
}

// A file that holds no ratings is an error before anything is started.
func TestUselessInput(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	for _, c := range []struct{ name, path, message string }{
		{"missing", filepath.Join(t.TempDir(), "u.data"), "cannot read the ratings file: open "},
		{"empty", file(t, "empty", ""), "empty: the input is empty; expected MovieLens u.data"},
		{"blank", file(t, "blank", "\n\n"), "blank: the input is empty"},
		{"folder", t.TempDir(), "is a folder: name the ratings file in it"},
		{"prose", file(t, "prose", "Once upon a time\n"), "prose: the input has no known format: it begins with \"Once upon a time\""},
		{"zip", file(t, "ml.zip", "PK\x03\x04rest"), "ml.zip: the input is not text but a zip archive"},
		{"empty gzip", file(t, "u.data.gz", packed(t, "")), "u.data.gz: the input is empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			weir(t, nil, "demo", "--input", c.path, "--exit", "--json", "--dir", dir).want(t, exitFailure, "", "weir: ", c.message)
		})
	}
	t.Cleanup(func() {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("a folder was made for nothing: %v", err)
		}
	})
}

// Half a result is none.
func TestInputBreaksOff(t *testing.T) {
	t.Parallel()
	whole := packed(t, strings.Repeat(udata, 1000))
	path := file(t, "u.data.gz", whole[:len(whole)-9])
	weir(t, nil, "demo", "--input", path, "--exit", "--json").want(t, exitFailure, "", "weir: u.data.gz: the gzip input is cut short after line ")
	weir(t, nil, "demo", "--input", path).wantFailure(t, "weir: u.data.gz: the gzip input is cut short after line ")
	weir(t, nil, "demo", "--input", path, "--exit", "--dir", t.TempDir()).want(t, exitFailure, "", "ratings before it are in topic ratings and stay there")
}

// wantFailure is want for a command that prints something before it fails.
func (r result) wantFailure(t *testing.T, messages ...string) {
	t.Helper()
	r.want(t, exitFailure, r.stdout, messages...)
}

// A record that cannot be processed does not stop the demo: here the sum is too
// large for a number.
func TestRecordPutAside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	input := `{"movie":1,"rating":1e308}` + "\n" + `{"movie":1,"rating":1e308}` + "\n" + `{"movie":2,"rating":1}` + "\n"
	weir(t, strings.NewReader(strings.ReplaceAll(input, `"movie"`, `"movie_id"`)), "demo", "--input", "-", "--exit", "--json", "--dir", dir).want(t, exitOK,
		`{"movie":"1","count":1,"sum":1e+308,"average":1e+308}`+"\n"+`{"movie":"2","count":1,"sum":1,"average":1}`+"\n",
		"record put aside in topic ratings-dead-letters: weir: task 1_")
	letters := readTopic(t, dir, "ratings-dead-letters", 1)
	if !strings.HasPrefix(letters[0], `1={"movie":"1","stars":1e+308} [weir-topic=weir-demo-by-movie-repartition`) {
		t.Errorf("dead letter: %s", letters[0])
	}
}

// A second run on a folder adds to the first, on either store, and finds what the
// other has left.
func TestFolderIsContinued(t *testing.T) {
	t.Parallel()
	for _, stores := range [][2]string{{"disk", "disk"}, {"memory", "memory"}, {"disk", "memory"}, {"memory", "disk"}} {
		t.Run(stores[0]+" then "+stores[1], func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "new")
			first := weir(t, strings.NewReader(udata), "demo", "--input", "-", "--exit", "--json", "--dir", dir, "--store", stores[0], "--partitions", "2")
			first.want(t, exitOK, averages)
			if strings.Contains(first.stderr, "going on") {
				t.Errorf("the first run says that it goes on:\n%s", first.stderr)
			}
			weir(t, strings.NewReader(jsonl+`{"movie_id":7,"rating":1}`), "demo", "--input", "-", "--exit", "--json", "--dir", dir, "--store", stores[1]).want(t, exitOK,
				`{"movie":"7","count":1,"sum":1,"average":1}`+"\n"+`{"movie":"242","count":2,"sum":6,"average":3}`+"\n"+`{"movie":"362","count":4,"sum":36,"average":9}`+"\n",
				"going on where an earlier run ended: 3 ratings of 2 movies are in the averages", "4 ratings processed")
			// No input, no change: the result is there without a single new record.
			weir(t, strings.NewReader("movieId,rating\n"), "demo", "--input", "-", "--exit", "--json", "--dir", dir).want(t, exitOK,
				`{"movie":"7","count":1,"sum":1,"average":1}`+"\n"+`{"movie":"242","count":2,"sum":6,"average":3}`+"\n"+`{"movie":"362","count":4,"sum":36,"average":9}`+"\n",
				"7 ratings of 3 movies", "0 ratings processed")
			weir(t, strings.NewReader(udata), "demo", "--input", "-", "--exit", "--dir", dir, "--partitions", "3").
				want(t, exitFailure, "", "topic ratings has 2 partitions, not 3: leave --partitions out")
		})
	}
}

// live is a demo that runs until it is stopped.
type live struct {
	stop           context.CancelFunc
	code           chan int
	stdout, stderr output
}

func startLive(t *testing.T, stdin io.Reader, args ...string) *live {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &live{stop: cancel, code: make(chan int, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.code <- run(ctx, append([]string{"demo"}, args...), stdin, &l.stdout, &l.stderr)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return l
}

// await waits until the demo has printed something that matches, and returns the
// first group.
func (l *live) await(t *testing.T, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	var found []string
	await(t, "printed "+pattern, func() bool {
		found = re.FindStringSubmatch(l.stdout.String())
		select {
		case code := <-l.code:
			t.Fatalf("ended with exit code %d; printed:\n%s\nmessages:\n%s", code, l.stdout.String(), l.stderr.String())
		default:
		}
		return found != nil
	})
	return found[len(found)-1]
}

// end stops the demo and wants a clean end.
func (l *live) end(t *testing.T, message string) {
	t.Helper()
	l.stop()
	if code := <-l.code; code != exitOK {
		t.Errorf("exit code %d after a stop", code)
	}
	if !strings.Contains(l.stderr.String(), message) {
		t.Errorf("no %q in the messages:\n%s", message, l.stderr.String())
	}
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true}
	r, err := (&http.Client{Transport: tr, Timeout: patience}).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

// The address that a live demo prints answers with what is in the table.
func TestLiveAnswersOverHTTP(t *testing.T) {
	t.Parallel()
	l := startLive(t, nil, "--input", file(t, "u.data", udata), "--store", "memory")
	url := l.await(t, `curl (http://127\.0\.0\.1:\d+/stores/averages/362)\n`)
	l.await(t, `3 ratings of 2 movies, `)
	l.await(t, `u\.data \(movielens\): 3 ratings read, no bad lines, to its end\n`)
	l.await(t, `movie 362: 2 ratings, average 9\.00\n`)
	status, body := get(t, url)
	var e struct {
		Store, Key string
		Value      struct {
			Count        int64
			Sum, Average float64
		}
		Timestamp time.Time
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil || status != 200 || e.Store != "averages" || e.Key != "362" ||
		e.Value.Count != 2 || e.Value.Sum != 18 || e.Value.Average != 9 || !e.Timestamp.Equal(time.Unix(881250951, 0)) {
		t.Errorf("GET %s: %d %s (%v)", url, status, body, err)
	}
	base := strings.TrimSuffix(url, "/stores/averages/362")
	if status, body := get(t, base+"/stores/averages/363"); status != 404 || !strings.Contains(body, `"no_such_key"`) {
		t.Errorf("a movie without ratings: %d %s", status, body)
	}
	if status, body := get(t, base+"/readyz"); status != 200 {
		t.Errorf("GET /readyz: %d %s", status, body)
	}
	if status, body := get(t, base+"/metrics"); status != 200 || !strings.Contains(body, "weir_commits_total{") {
		t.Errorf("GET /metrics: %d %s", status, body)
	}
	l.end(t, "stopped; nothing is left behind")
}

// The generator feeds at the rate that it is told, and the table shows it.
func TestLiveGenerator(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := startLive(t, nil, "--rate", "5000", "--seed", "7", "--metrics=false", "--dir", dir)
	url := l.await(t, `curl (http://127\.0\.0\.1:\d+)/stores/averages/\d+\n`)
	l.await(t, `[1-9][\d,]* ratings of \d[\d,]* movies, [1-9][\d,]*/s\n`)
	l.await(t, `movie \d+: \d+ ratings, average \d\.\d\d\n`)
	if status, body := get(t, url+"/metrics"); status != 404 {
		t.Errorf("metrics are served though they are off: %d %s", status, body)
	}
	l.end(t, "stopped; another run with --dir "+dir+" goes on from here")
	// Another run shows more and not less, though nobody waited for the end of
	// what was on its way.
	r := weir(t, strings.NewReader("movieId,rating\n"), "demo", "--input", "-", "--exit", "--json", "--dir", dir)
	if n := ratingsIn(t, r.stdout); r.code != exitOK || n < 1 || n > 5000*int64(patience/time.Second) {
		t.Errorf("exit code %d, %d ratings\n%s", r.code, n, r.stderr)
	}
}

// ratingsIn adds the counts of a result.
func ratingsIn(t *testing.T, result string) (n int64) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(result))
	for d.More() {
		var r struct{ Count int64 }
		if err := d.Decode(&r); err != nil {
			t.Fatal(err)
		}
		n += r.Count
	}
	return n
}

func TestListen(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	addr := taken.Addr().String()
	weir(t, nil, "demo", "--listen", addr).want(t, exitFailure, "", "weir: listen for queries: ", "choose another host:port")
	weir(t, strings.NewReader(udata), "demo", "--input", "-", "--exit", "--json", "--listen", "127.0.0.1:0").want(t, exitOK, averages, "serving http://127.0.0.1:")
	if r := weir(t, strings.NewReader(udata), "demo", "--input", "-", "--exit", "--json"); strings.Contains(r.stderr, "http") {
		t.Errorf("--exit serves though nobody asked for it:\n%s", r.stderr)
	}
	l := startLive(t, nil, "--listen", "off")
	l.await(t, `movie \d+: \d+ ratings?, average`)
	if strings.Contains(l.stdout.String(), "http") {
		t.Errorf("it serves though it is off:\n%s", l.stdout.String())
	}
	l.end(t, "stopped")
}

// A folder that is in use is not touched.
func TestFolderInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := startLive(t, nil, "--dir", dir, "--store", "memory")
	l.await(t, `movie \d+: \d+ ratings?, average`)
	weir(t, nil, "demo", "--dir", dir).want(t, exitFailure, "", "weir: open embedded broker: ", filepath.Join(dir, "embedded", "broker"))
	l.end(t, "stopped")

	path := file(t, "plain-file", "")
	weir(t, nil, "demo", "--dir", path).want(t, exitFailure, "", "the folder of --dir cannot be used", path)
}

// Who stops a run with --exit gets no result, and waits for no input either.
func TestExitInterrupted(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]string{"before the first line": "", "in the middle": udata} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stdin, w := io.Pipe()
			l := startLive(t, stdin, "--input", "-", "--exit", "--json", "--verbose", "--store", "memory")
			if begin != "" {
				if _, err := io.WriteString(w, begin); err != nil {
					t.Fatal(err)
				}
				await(t, "running", func() bool { return strings.Contains(l.stderr.String(), "to=Running") })
			}
			l.stop()
			if code := <-l.code; code != exitFailure || l.stdout.String() != "" || !strings.Contains(l.stderr.String(), "interrupted before all ratings were processed") {
				t.Errorf("exit code %d, printed %q, messages:\n%s", code, l.stdout.String(), l.stderr.String())
			}
			w.Close() // ends the read that could not be interrupted
		})
	}
}

// broken is an output that takes nothing.
type broken struct{ err error }

func (b broken) Write([]byte) (int, error) { return 0, b.err }

func TestOutputFails(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var stderr output
	full := broken{errors.New("no space left")}
	if code := run(ctx, []string{"demo"}, nil, full, &stderr); code != exitFailure || !strings.Contains(stderr.String(), "show the table: no space left") {
		t.Errorf("exit code %d\n%s", code, stderr.String())
	}
	if code := run(ctx, []string{"demo", "--input", "-", "--exit"}, strings.NewReader(udata), full, &stderr); code != exitFailure || !strings.Contains(stderr.String(), "print the result: no space left") {
		t.Errorf("exit code %d\n%s", code, stderr.String())
	}
}
