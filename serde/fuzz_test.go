package serde_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/weirstreams/weir/serde"
)

// fuzzSerde checks for any input: no panic, src untouched, an error that is
// bounded and named, and for what decodes, that append and decode give the
// same value again. If exact, the bytes must be the same again too.
func fuzzSerde[T any](f *testing.F, s serde.Serde[T], exact bool, seeds ...string) {
	f.Helper()
	for _, seed := range append(seeds, "", "\x00", "\x01", "\x02", "\xff\xff\xff\xff", "\x00\x00\x00\x00\x00\x00\x00\x01", "12345678abcdefgh") {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		before := bytes.Clone(src)
		v, err := s.Decode(src)
		if !bytes.Equal(src, before) {
			t.Fatalf("Decode changed its input to %q", src)
		}
		if err != nil {
			if text := err.Error(); len(text) > 500 || !bytes.HasPrefix([]byte(text), []byte("decode "+serde.NameOf(s)+": ")) {
				t.Fatalf("error of %d bytes: %.200s", len(text), text)
			}
			return
		}
		first, err := s.Append([]byte("prefix"), v)
		if err != nil {
			t.Fatalf("cannot encode the decoded %v: %v", v, err)
		}
		first, found := bytes.CutPrefix(first, []byte("prefix"))
		if !found {
			t.Fatalf("dst was lost: %q", first)
		}
		if exact && !bytes.Equal(first, src) {
			t.Fatalf("%x came back as %x", src, first)
		}
		again, err := s.Decode(first)
		if err != nil {
			t.Fatalf("cannot decode %q, made of %v: %v", first, v, err)
		}
		second, err := s.Append(nil, again)
		if err != nil || !bytes.Equal(first, second) {
			t.Fatalf("%q became %q, %v on the second round", first, second, err)
		}
	})
}

func FuzzString(f *testing.F) { fuzzSerde(f, serde.String, true, "é", "\xff") }
func FuzzBytes(f *testing.F)  { fuzzSerde(f, serde.Bytes, true) }
func FuzzInt32(f *testing.F)  { fuzzSerde(f, serde.Int32, true) }
func FuzzInt64(f *testing.F)  { fuzzSerde(f, serde.Int64, true) }
func FuzzBool(f *testing.F)   { fuzzSerde(f, serde.Bool, true) }

// Not exact: all NaNs become one.
func FuzzFloat64(f *testing.F) {
	fuzzSerde(f, serde.Float64, false, "\x7f\xf8\x00\x00\x00\x00\x00\x01", "\x80\x00\x00\x00\x00\x00\x00\x00")
}

func FuzzJSON(f *testing.F) {
	type tree struct {
		Name  string            `json:"name"`
		N     int64             `json:"n"`
		F     float64           `json:"f"`
		Raw   json.RawMessage   `json:"raw,omitempty"`
		Map   map[string]string `json:"map,omitempty"`
		Child *tree             `json:"child,omitempty"`
		Any   any               `json:"any,omitempty"`
	}
	fuzzSerde(f, serde.JSON[tree](), false,
		`{}`, `null`, `{"name":"a","n":-1,"f":1e-9,"raw":[1, 2],"map":{"b":"<","a":"&"},"child":{"name":"\ud800"},"any":{"x":[true,null]}}`,
		`{} {}`, "{\"name\":\"\xff\"}", `{"NAME":"x","name":"y"}`, `{"n":1.5}`)
}

func FuzzFunc(f *testing.F) {
	fuzzSerde(f, serde.Func(serde.Int64.Append, serde.Int64.Decode), true)
}
