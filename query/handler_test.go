package query

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirstreams/weir"
)

// fixed is an App with one store, "s", whose entries are given.
type fixed struct {
	state   weir.State
	entries map[string]weir.Lookup
	err     error
}

func (f *fixed) State() weir.State { return f.state }

func (f *fixed) Stores() []string { return []string{"s", "other"} }

func (f *fixed) Lookup(_ context.Context, store, key string) (weir.Lookup, bool, error) {
	if f.err != nil {
		return weir.Lookup{}, false, f.err
	}
	if store != "s" {
		return weir.Lookup{}, false, fmt.Errorf("%w: %q", weir.ErrNoSuchStore, store)
	}
	l, ok := f.entries[key]
	return l, ok, nil
}

func ask(h http.Handler, method, target string) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, nil))
	return w.Result()
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// code returns the code of an error, and fails unless the answer has the members
// of one and no others.
func code(t *testing.T, r *http.Response) string {
	t.Helper()
	text := body(t, r)
	var e struct{ Code, Message string }
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil || e.Message == "" {
		t.Errorf("not an error in JSON: %q (%v)", text, err)
	}
	if got := r.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("an error has type %q", got)
	}
	return e.Code
}

func TestEntries(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 31, 8, 30, 0, 250_000_000, time.UTC)
	h := newHandler(&fixed{entries: map[string]weir.Lookup{
		"362":            {Key: "362", Value: map[string]int{"count": 2, "sum": 18}, Time: at},
		"":               {Key: "", Value: 1},
		"a/b c%?ü":       {Key: "a/b c%?ü", Value: "<&>"},
		"..":             {Key: "..", Value: nil},
		"7":              {Key: int64(math.MaxInt64), Value: true, Time: time.UnixMilli(0)},
		"in microsecond": {Key: 1, Value: 2, Time: time.UnixMilli(1769848200250_000)},
	}}, Options{})
	for target, want := range map[string]string{
		"/stores/s/362":                   `{"store":"s","key":"362","value":{"count":2,"sum":18},"timestamp":"2026-01-31T08:30:00.250Z","timestamp_ms":1769848200250}`,
		"/stores/s/":                      `{"store":"s","key":"","value":1}`,
		"/stores/s/a%2Fb%20c%25%3F%C3%BC": `{"store":"s","key":"a/b c%?ü","value":"<&>"}`,
		"/stores/s/%2e%2E":                `{"store":"s","key":"..","value":null}`,
		"/stores/%73/7?x=y":               `{"store":"s","key":9223372036854775807,"value":true,"timestamp":"1970-01-01T00:00:00.000Z","timestamp_ms":0}`,
		"/stores/s/in%20microsecond":      `{"store":"s","key":1,"value":2,"timestamp_ms":1769848200250000}`,
		"/stores":                         `{"stores":["s","other"]}`,
		"/stores/":                        `{"stores":["s","other"]}`,
	} {
		r := ask(h, "GET", target)
		got := body(t, r)
		if r.StatusCode != 200 || got != want+"\n" {
			t.Errorf("GET %s: %d %s\nwant 200 %s", target, r.StatusCode, got, want)
		}
		if r.Header.Get("Content-Type") != "application/json" || r.Header.Get("Cache-Control") != "no-store" || r.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("GET %s: headers %v", target, r.Header)
		}
		head := ask(h, "HEAD", target)
		if head.StatusCode != 200 || body(t, head) != "" || head.Header.Get("Content-Length") != fmt.Sprint(len(got)) {
			t.Errorf("HEAD %s: %d, headers %v", target, head.StatusCode, head.Header)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	h := newHandler(&fixed{entries: map[string]weir.Lookup{"nan": {Key: "nan", Value: []float64{math.NaN()}}}}, Options{})
	for _, c := range []struct {
		method, target string
		status         int
		code           string
	}{
		{"GET", "/stores/s/363", 404, codeNoSuchKey},
		{"GET", "/stores/unknown/363", 404, codeNoSuchStore},
		{"GET", "/stores/s", 404, codeNoSuchPath},
		{"GET", "/stores/s/a/b", 404, codeNoSuchPath},
		{"GET", "/", 404, codeNoSuchPath},
		{"GET", "/storesx", 404, codeNoSuchPath},
		{"GET", "/metrics", 404, codeNoSuchPath},
		{"POST", "/stores", 405, codeBadMethod},
		{"DELETE", "/stores/s/363", 405, codeBadMethod},
		{"OPTIONS", "/nowhere", 405, codeBadMethod},
		{"GET", "/stores/s/nan", 500, codeInternal},
	} {
		r := ask(h, c.method, c.target)
		if got := code(t, r); r.StatusCode != c.status || got != c.code {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.target, r.StatusCode, got, c.status, c.code)
		}
		if got, want := r.Header.Get("Allow"), map[bool]string{true: "GET, HEAD"}[c.status == 405]; got != want {
			t.Errorf("%s %s: Allow is %q, want %q", c.method, c.target, got, want)
		}
	}
}

func TestErrorsOfLookups(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err    error
		status int
		code   string
		retry  string
		logged bool
	}{
		{weir.ErrBadKey, 400, codeBadKey, "", false},
		{weir.ErrNotOwner, 421, codeNotOwner, "", false},
		{weir.ErrRestoring, 503, codeRestoring, "1", false},
		{weir.ErrStoreUnavailable, 503, codeStoreUnavailable, "1", false},
		{weir.ErrNotRunning, 503, codeNotRunning, "", false},
		{errors.New("disk is gone"), 500, codeInternal, "", true},
	} {
		var log bytes.Buffer
		h := newHandler(&fixed{err: fmt.Errorf("details: %w", c.err)}, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		r := ask(h, "GET", "/stores/s/1")
		if got := code(t, r); r.StatusCode != c.status || got != c.code || r.Header.Get("Retry-After") != c.retry {
			t.Errorf("%v: %d %s, Retry-After %q", c.err, r.StatusCode, got, r.Header.Get("Retry-After"))
		}
		if (log.Len() > 0) != c.logged {
			t.Errorf("%v: logged %q", c.err, log.String())
		}
	}
}

func TestHealthAndReadiness(t *testing.T) {
	t.Parallel()
	for state, want := range map[weir.State]struct {
		health, ready int
		code          string
	}{
		weir.Created:   {200, 503, codeRestoring},
		weir.Starting:  {200, 503, codeRestoring},
		weir.Restoring: {200, 503, codeRestoring},
		weir.Running:   {200, 200, ""},
		weir.Closing:   {200, 503, codeNotRunning},
		weir.Closed:    {503, 503, codeNotRunning},
		weir.Failed:    {503, 503, codeNotRunning},
	} {
		h := newHandler(&fixed{state: state}, Options{})
		for path, status := range map[string]int{"/healthz": want.health, "/readyz": want.ready} {
			r := ask(h, "GET", path)
			if r.StatusCode != status {
				t.Errorf("%v: GET %s: %d, want %d", state, path, r.StatusCode, status)
			}
			if status == 200 {
				if got := body(t, r); got != fmt.Sprintf("{\"state\":%q}\n", state) {
					t.Errorf("%v: GET %s: %s", state, path, got)
				}
			} else if got := code(t, r); got != want.code {
				t.Errorf("%v: GET %s: code %s, want %s", state, path, got, want.code)
			}
		}
	}
}

func TestMetricsPath(t *testing.T) {
	t.Parallel()
	h := newHandler(&fixed{}, Options{Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "up 1\n") })})
	if got := body(t, ask(h, "GET", "/metrics")); got != "up 1\n" {
		t.Errorf("GET /metrics: %q", got)
	}
	if r := ask(h, "POST", "/metrics"); r.StatusCode != 405 {
		t.Errorf("POST /metrics: %d", r.StatusCode)
	}
}

// A web page that makes its own name point to a loopback address gets nothing.
func TestForeignHosts(t *testing.T) {
	t.Parallel()
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 80} }
	h := newHandler(&fixed{}, Options{Hosts: []string{"Weir.Example.com"}})
	for _, c := range []struct {
		local   net.Addr
		host    string
		allowed bool
	}{
		{tcp("127.0.0.1"), "evil.example:80", false},
		{tcp("127.0.0.1"), "localhost.evil.example", false},
		{tcp("127.0.0.1"), "127.0.0.1.evil.example", false},
		{tcp("::1"), "evil.example", false},
		{tcp("::ffff:127.0.0.1"), "evil.example", false},
		{tcp("127.0.0.1"), "127.0.0.1:8080", true},
		{tcp("127.0.0.1"), "localhost:8080", true},
		{tcp("127.0.0.1"), "LOCALHOST.", true},
		{tcp("127.0.0.1"), "weir.localhost", true},
		{tcp("::1"), "[::1]:8080", true},
		{tcp("::1"), "[::1]", true},
		{tcp("127.0.0.1"), "weir.example.COM:443", true},
		{tcp("127.0.0.1"), "", true},
		{tcp("192.0.2.1"), "weir.internal:8080", true}, // such a server is for others
		{&net.UnixAddr{Name: "socket"}, "anything", true},
		{nil, "anything", true},
	} {
		r := httptest.NewRequest("GET", "/stores", nil)
		r.Host = c.host
		if c.local != nil {
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, c.local))
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := w.Code == 200; got != c.allowed {
			t.Errorf("Host %q on %v: %d", c.host, c.local, w.Code)
		}
		if !c.allowed {
			if got := code(t, w.Result()); got != codeForbiddenHost || w.Code != 403 {
				t.Errorf("Host %q on %v: %d %s", c.host, c.local, w.Code, got)
			}
		}
	}
}
