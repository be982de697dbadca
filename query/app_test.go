package query_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/query"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/state/memstore"
)

// patience bounds the wait for something that takes milliseconds.
const patience = 30 * time.Second

const keys = 20

type answer struct {
	status int
	header http.Header
	Code   string
	Store  string
	Key    string
	Value  int64
	Time   time.Time `json:"timestamp"`
	MS     int64     `json:"timestamp_ms"`
}

func get(t *testing.T, h http.Handler, path string) answer {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	a := answer{status: w.Code, header: w.Header()}
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
		t.Fatalf("GET %s: %v in %q", path, err, w.Body)
	}
	return a
}

// Two instances share the tasks of a topology: each answers for its own, and
// names the keys of the other as such.
func TestTwoInstances(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	broker, err := embedded.Open(embedded.Options{Topics: []embedded.Topic{{Name: "clicks", Partitions: 4}}})
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	at := time.UnixMilli(1_769_848_200_250)
	producer, err := kgo.NewClient(broker.ClientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	for i := range keys {
		for range i + 1 {
			r := &kgo.Record{Topic: "clicks", Key: fmt.Append(nil, "user ", i), Value: []byte("x"), Timestamp: at}
			if err := producer.ProduceSync(ctx, r).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}

	b := weir.NewBuilder()
	b.Stream(weir.NewTopic("clicks", serde.String, serde.String)).GroupByKey().Count("counts")
	topology, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	var instances []http.Handler
	for range 2 {
		app, err := weir.NewApp(topology, weir.Config{ApplicationID: "clicks", ClientOptions: broker.ClientOptions(),
			Dir: t.TempDir(), Store: memstore.New(), Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		h := query.NewHandler(app, query.Options{})
		if a := get(t, h, "/stores/counts/user%201"); a.status != 503 || a.Code != "restoring" || a.header.Get("Retry-After") == "" {
			t.Errorf("before the start: %+v", a)
		}
		done := make(chan error, 1)
		go func() { done <- app.Run(ctx) }()
		defer func() {
			if err := app.Close(); err != nil {
				t.Error(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			if a := get(t, h, "/stores/counts/user%201"); a.status != 503 || a.Code != "not_running" {
				t.Errorf("after the stop: %+v", a)
			}
		}()
		instances = append(instances, h)
	}

	// shared says whether both instances own keys and each key has its count.
	shared := func() (owned [2]int, complete bool) {
		complete = true
		for i := range keys {
			path := fmt.Sprintf("/stores/counts/user%%20%d", i)
			found := 0
			for n, h := range instances {
				switch a := get(t, h, path); {
				case a.status == 200 && a.Value == int64(i+1):
					found++
					owned[n]++
					if a.Store != "counts" || a.Key != fmt.Sprint("user ", i) || a.MS != at.UnixMilli() || !a.Time.Equal(at) {
						t.Errorf("GET %s: %+v", path, a)
					}
				case a.status == 421 && a.Code == "not_owner":
				case a.status == 404 && a.Code == "no_such_key": // not processed yet
				case a.status == 503 && a.Code == "restoring":
				case a.status == 200 && a.Value < int64(i+1):
				default:
					t.Fatalf("GET %s: %+v", path, a)
				}
			}
			complete = complete && found == 1
		}
		return owned, complete
	}
	for {
		owned, complete := shared()
		if complete && owned[0] > 0 && owned[1] > 0 {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the instances never shared the keys: %v, complete %v", owned, complete)
		}
		time.Sleep(5 * time.Millisecond)
	}
	for i, h := range instances {
		for a := get(t, h, "/readyz"); a.status != 200; a = get(t, h, "/readyz") {
			if a.status != 503 || a.Code != "restoring" || ctx.Err() != nil {
				t.Fatalf("instance %d is not ready: %+v", i, a)
			}
			time.Sleep(5 * time.Millisecond)
		}
		if a := get(t, h, "/stores/nothing/1"); a.status != 404 || a.Code != "no_such_store" {
			t.Errorf("instance %d: %+v", i, a)
		}
	}
}
