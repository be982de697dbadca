package serde_test

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/weirstreams/weir/serde"
)

type rating struct {
	Movie string   `json:"movie"`
	Stars float64  `json:"stars"`
	Tags  []string `json:"tags,omitempty"`
}

func TestJSON(t *testing.T) {
	t.Parallel()
	s := serde.JSON[rating]()
	v := rating{Movie: "<a> & b", Stars: 4.5, Tags: []string{"é"}}
	const want = `{"movie":"<a> & b","stars":4.5,"tags":["é"]}`
	got, err := s.Append([]byte("x"), v)
	if err != nil || string(got) != "x"+want {
		t.Fatalf("Append = %q, %v, want no HTML escape and no newline: %q", got, err, want)
	}
	back, err := s.Decode(got[1:])
	if err != nil || !reflect.DeepEqual(back, v) {
		t.Errorf("Decode = %+v, %v, want %+v", back, err, v)
	}
	// White space after the value, as other programs write it.
	if back, err = s.Decode([]byte(want + " \n")); err != nil || back.Stars != 4.5 {
		t.Errorf("Decode with a newline behind = %+v, %v", back, err)
	}
}

func TestJSONDecodeErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ src, want string }{
		{"", `decode json(serde_test.rating): empty input: 0 bytes ""`},
		{`{"movie":"a"} x`, "after top-level value"},
		{`{"movie":"a"}{}`, "after top-level value"},
		{`{"movie":"a"`, `12 bytes "{\"movie\":\"a\""`},
		{`{"stars":"four"}`, "cannot unmarshal string"},
		{`{"stars":1e999}`, "cannot unmarshal number"},
		{"\x00", `1 bytes "\x00"`},
		{"   ", `3 bytes "   "`},
	} {
		v, err := serde.JSON[rating]().Decode([]byte(c.src))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Decode(%q): %v, want it to say %s", c.src, err, c.want)
		}
		if !reflect.DeepEqual(v, rating{}) {
			t.Errorf("Decode(%q) returned %+v with its error, want the zero value", c.src, v)
		}
	}
}

// An error neither repeats a large value nor hides its cause.
func TestJSONErrorsAreBounded(t *testing.T) {
	t.Parallel()
	src := `{"stars":` + strings.Repeat("1", 1<<20) + `}`
	_, err := serde.JSON[rating]().Decode([]byte(src))
	if err == nil || len(err.Error()) > 400 {
		t.Errorf("the error has %d bytes for a bad number of a megabyte", len(err.Error()))
	}
	_, err = serde.JSON[rating]().Decode([]byte(`{"stars":"` + strings.Repeat("é", 1000) + `"}`))
	if typeErr, ok := errors.AsType[*json.UnmarshalTypeError](err); !ok || typeErr.Field != "stars" {
		t.Errorf("the cause is not reachable: %v", err)
	}
}

func TestJSONAppendErrors(t *testing.T) {
	t.Parallel()
	s := serde.JSON[rating]()
	got, err := s.Append([]byte("x"), rating{Stars: math.NaN()})
	if err == nil || !strings.HasPrefix(err.Error(), "encode json(serde_test.rating): ") {
		t.Errorf("Append of NaN: %v", err)
	}
	if string(got) != "x" {
		t.Errorf("Append returned %q with its error, want dst unchanged", got)
	}
	// The encoder that failed goes on working.
	if got, err = s.Append([]byte("x"), rating{Stars: 1}); err != nil || string(got) != `x{"movie":"","stars":1}` {
		t.Errorf("Append after a failure = %q, %v", got, err)
	}
}

func TestJSONNull(t *testing.T) {
	t.Parallel()
	s := serde.JSON[*rating]()
	got, err := s.Append(nil, nil)
	if err != nil || string(got) != "null" {
		t.Errorf("Append(nil) = %q, %v, want the text null", got, err)
	}
	if v, err := s.Decode(got); err != nil || v != nil {
		t.Errorf("Decode(null) = %v, %v", v, err)
	}
}

// cents has its methods on the pointer, as generated code often does.
type cents struct{ n int }

func (c *cents) MarshalJSON() ([]byte, error) { return json.Marshal(c.n) }

func (c *cents) UnmarshalJSON(src []byte) error { return json.Unmarshal(src, &c.n) }

func TestJSONFindsMethodsOfThePointer(t *testing.T) {
	t.Parallel()
	s := serde.JSON[cents]()
	got, err := s.Append(nil, cents{250})
	if err != nil || string(got) != "250" {
		t.Fatalf("Append = %q, %v, want 250", got, err)
	}
	if v, err := s.Decode(got); err != nil || v.n != 250 {
		t.Errorf("Decode = %+v, %v", v, err)
	}
}

// bomb panics while it is encoded.
type bomb struct{}

func (bomb) MarshalJSON() ([]byte, error) { panic("boom") }

// After a callback's panic, which the runtime catches, other values must come
// out right: no encoder that was left half way is used again.
func TestJSONSurvivesPanic(t *testing.T) {
	t.Parallel()
	for range 100 {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic did not reach the caller")
				}
			}()
			got, err := serde.JSON[bomb]().Append(nil, bomb{})
			t.Errorf("Append = %q, %v, want a panic", got, err)
		}()
		if got, err := serde.JSON[int]().Append([]byte("x"), 7); err != nil || string(got) != "x7" {
			t.Fatalf("Append after a panic = %q, %v", got, err)
		}
	}
}

// One serde serves all workers at once, also from within another value.
func TestJSONConcurrently(t *testing.T) {
	t.Parallel()
	s := serde.JSON[rating]()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			v := rating{Movie: strings.Repeat(string(rune('a'+g)), 100+g), Stars: float64(g)}
			var buf []byte
			for range 200 {
				var err error
				if buf, err = s.Append(buf[:0], v); err != nil {
					t.Error(err)
					return
				}
				if back, err := s.Decode(buf); err != nil || back.Movie != v.Movie || back.Stars != v.Stars {
					t.Errorf("goroutine %d read %+v, %v", g, back, err)
					return
				}
			}
		})
	}
	wg.Wait()
}
