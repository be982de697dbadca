// Package query serves the state of an application over HTTP, for people and for
// programs in other languages:
//
//	GET /stores               the names of the stores
//	GET /stores/{name}/{key}  one entry of a store
//	GET /healthz              200 unless the application has ended
//	GET /readyz               200 while the application runs, else 503
//	GET /metrics              if Options.Metrics is given
//
// The key is percent-encoded, a slash in it as %2F, and what it decodes to is
// read as [weir.App.Lookup] says: strings and numbers as they are, other types
// as JSON. An entry is the answer
//
//	{"store":"averages","key":"362","value":{"count":2,"sum":18},
//	 "timestamp":"2026-01-31T08:30:00.250Z","timestamp_ms":1769848200250}
//
// where timestamp_ms is the timestamp of the last update in milliseconds since
// 1970, timestamp is the same for people, and both are absent for a store that
// keeps none (timestamp also outside of the years 0 to 9999, which it cannot
// express).
//
// Every other answer but that of /metrics is JSON too. An error is
// {"code":"no_such_key","message":"..."}; programs go by the code and the status,
// the message is for people and may change:
//
//	400 bad_key         the text is no key of that store
//	403 forbidden_host  see Options.Hosts
//	404 no_such_key     the store has no such entry
//	404 no_such_store   the topology has no such store
//	404 no_such_path    nothing is served there
//	405 bad_method      only GET and HEAD are served; see the header Allow
//	421 not_owner       the entry belongs to another instance, if it exists
//	500 internal        the entry cannot be read, or not be written as JSON
//	503 restoring       not ready yet; try again after the header Retry-After
//	503 not_running     the application was not started, or has ended
//	503 store_unavailable
//	                    a remote store cannot be asked; try again after Retry-After
//
// Members may be added to the answers; those named here stay.
//
// Reads see committed batches only. There is no authentication and no encryption:
// whoever reaches the port reads all state, and so [Listen] takes a loopback
// address unless it is told otherwise.
package query

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/weirstreams/weir"
)

// Options are those of a handler. The zero value works.
type Options struct {
	// Metrics is served at /metrics, such as weirprom.Handler(registry).
	// Defaults to nil: there is no such path.
	Metrics http.Handler
	// Hosts are further names that clients may use for this server. On a
	// connection to a loopback address a request is answered only if its Host
	// header is an IP address, localhost, a name below .localhost, or one of
	// these; otherwise a web page could make its own name point to this machine
	// and read the state through the visitor's browser (DNS rebinding). Behind a
	// proxy on the same machine that keeps the Host header, give the public
	// name. Names are compared without case and port. Defaults to none.
	Hosts []string
	// Logger gets what fails inside, such as values that JSON cannot express.
	// Defaults to nil: nothing is logged.
	Logger *slog.Logger
}

// source is what a handler asks of an App.
type source interface {
	State() weir.State
	Stores() []string
	Lookup(ctx context.Context, store, key string) (weir.Lookup, bool, error)
}

var _ source = (*weir.App)(nil)

// The codes of errors.
const (
	codeBadKey        = "bad_key"
	codeForbiddenHost = "forbidden_host"
	codeNoSuchKey     = "no_such_key"
	codeNoSuchStore   = "no_such_store"
	codeNoSuchPath    = "no_such_path"
	codeBadMethod     = "bad_method"
	codeNotOwner      = "not_owner"
	codeInternal      = "internal"
	codeRestoring     = "restoring"
	codeNotRunning    = "not_running"

	codeStoreUnavailable = "store_unavailable"
)

// retryAfter is what a client is told to wait while the state is restored, or
// its store is away. That may take longer; asking again is cheap.
const retryAfter = time.Second

type handler struct {
	app     source
	metrics http.Handler
	hosts   []string
	log     *slog.Logger
}

// NewHandler returns a handler that answers from app; the package comment says
// what. It is safe for concurrent use and may be used before app runs and after
// it has ended. It serves paths from the root, so elsewhere [http.StripPrefix]
// has to go before it. An [http.ServeMux] in front redirects paths with keys such
// as "..", which it takes for parts of the path.
func NewHandler(app *weir.App, o Options) http.Handler { return newHandler(app, o) }

func newHandler(app source, o Options) *handler {
	h := &handler{app: app, metrics: o.Metrics, log: o.Logger}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	for _, name := range o.Hosts {
		h.hosts = append(h.hosts, canonicalHost(name))
	}
	return h
}

// ServeHTTP answers one request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !h.hostAllowed(r) {
		h.fail(w, r, http.StatusForbidden, codeForbiddenHost,
			fmt.Sprintf("this server does not go by the name %.100q: use localhost or its IP address", r.Host))
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		h.fail(w, r, http.StatusMethodNotAllowed, codeBadMethod, fmt.Sprintf("method %.20s is not served: use GET or HEAD", r.Method))
		return
	}
	// The encoded path: a slash in a key is not one between parts.
	switch path := r.URL.EscapedPath(); {
	case path == "/stores" || path == "/stores/":
		h.answer(w, r, http.StatusOK, struct {
			Stores []string `json:"stores"`
		}{append([]string{}, h.app.Stores()...)})
	case strings.HasPrefix(path, "/stores/"):
		h.entry(w, r, strings.TrimPrefix(path, "/stores/"))
	case path == "/healthz":
		h.state(w, r, func(s weir.State) bool { return s != weir.Closed && s != weir.Failed })
	case path == "/readyz":
		h.state(w, r, func(s weir.State) bool { return s == weir.Running })
	case path == "/metrics" && h.metrics != nil:
		h.metrics.ServeHTTP(w, r)
	default:
		h.noSuchPath(w, r)
	}
}

func (h *handler) noSuchPath(w http.ResponseWriter, r *http.Request) {
	h.fail(w, r, http.StatusNotFound, codeNoSuchPath,
		"nothing is served here: ask /stores, /stores/{name}/{key} with a slash in the key as %2F, /healthz or /readyz")
}

// entry answers /stores/{name}/{key}, given as "{name}/{key}".
func (h *handler) entry(w http.ResponseWriter, r *http.Request, path string) {
	store, key, ok := strings.Cut(path, "/")
	if !ok || strings.Contains(key, "/") {
		h.noSuchPath(w, r)
		return
	}
	var err error
	for _, part := range []*string{&store, &key} {
		if *part, err = url.PathUnescape(*part); err != nil {
			h.noSuchPath(w, r)
			return
		}
	}
	l, found, err := h.app.Lookup(r.Context(), store, key)
	switch {
	case err != nil:
		h.refuse(w, r, err)
	case !found:
		h.fail(w, r, http.StatusNotFound, codeNoSuchKey, fmt.Sprintf("store %q has no key %.100q", store, key))
	default:
		h.answer(w, r, http.StatusOK, newEntry(store, l))
	}
}

// entry is the answer to a lookup.
type entry struct {
	Store       string `json:"store"`
	Key         any    `json:"key"`
	Value       any    `json:"value"`
	Timestamp   string `json:"timestamp,omitempty"`
	TimestampMS *int64 `json:"timestamp_ms,omitempty"`
}

func newEntry(store string, l weir.Lookup) entry {
	e := entry{Store: store, Key: l.Key, Value: l.Value}
	if !l.Time.IsZero() {
		ms := l.Time.UnixMilli()
		e.TimestampMS = &ms
		// RFC 3339 has four digits for the year.
		if t := l.Time.UTC(); t.Year() >= 0 && t.Year() <= 9999 {
			e.Timestamp = t.Format("2006-01-02T15:04:05.000Z")
		}
	}
	return e
}

// refuse answers with the error of a lookup.
func (h *handler) refuse(w http.ResponseWriter, r *http.Request, err error) {
	status, code := http.StatusInternalServerError, codeInternal
	switch {
	case errors.Is(err, weir.ErrBadKey):
		status, code = http.StatusBadRequest, codeBadKey
	case errors.Is(err, weir.ErrNoSuchStore):
		status, code = http.StatusNotFound, codeNoSuchStore
	case errors.Is(err, weir.ErrNotOwner):
		status, code = http.StatusMisdirectedRequest, codeNotOwner
	case errors.Is(err, weir.ErrRestoring):
		status, code = http.StatusServiceUnavailable, codeRestoring
	case errors.Is(err, weir.ErrStoreUnavailable):
		status, code = http.StatusServiceUnavailable, codeStoreUnavailable
	case errors.Is(err, weir.ErrNotRunning):
		status, code = http.StatusServiceUnavailable, codeNotRunning
	case r.Context().Err() != nil:
		// The client is gone, so nobody reads this.
	default:
		h.log.Error("lookup failed", "path", r.URL.Path, "error", err)
	}
	h.fail(w, r, status, code, err.Error())
}

// state answers whether the application is in a state that is good for something.
func (h *handler) state(w http.ResponseWriter, r *http.Request, good func(weir.State) bool) {
	s := h.app.State()
	message := fmt.Sprintf("the state of the application is %v", s)
	switch {
	case good(s):
		h.answer(w, r, http.StatusOK, struct {
			State string `json:"state"`
		}{s.String()})
	case s == weir.Closing || s == weir.Closed || s == weir.Failed:
		h.fail(w, r, http.StatusServiceUnavailable, codeNotRunning, message)
	default:
		h.fail(w, r, http.StatusServiceUnavailable, codeRestoring, message)
	}
}

// fail answers with an error.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, status int, code, message string) {
	if code == codeRestoring || code == codeStoreUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
	}
	h.answer(w, r, status, struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}{code, message})
}

// answer writes v as JSON.
func (h *handler) answer(w http.ResponseWriter, r *http.Request, status int, v any) {
	var body strings.Builder
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // it is no HTML, and people read it
	if err := enc.Encode(v); err != nil {
		// Only an entry holds what users have made.
		h.log.Error("entry cannot be written as JSON", "path", r.URL.Path, "error", err)
		h.fail(w, r, http.StatusInternalServerError, codeInternal, fmt.Sprintf("the entry cannot be written as JSON: %v", err))
		return
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(body.Len()))
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		// An error means that the client is gone.
		_, _ = w.Write([]byte(body.String()))
	}
}
