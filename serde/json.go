package serde

import (
	"encoding/json"
	"reflect"
	"sync"
)

// JSON is JSON as [encoding/json] writes it, without a trailing newline and
// with '<', '>' and '&' left as they are. Decode follows [json.Unmarshal]: it
// refuses empty input and anything but white space after the value, ignores
// unknown fields, and lets the last of several equal keys win.
//
// The output is deterministic (fields in declared order, map keys sorted) as
// long as T's own MarshalJSON methods are, but it changes when T changes: as a
// key it is good for types that are frozen.
//
// A nil pointer, map or slice encodes as the JSON text null, which is a value
// of four bytes and not a tombstone. Methods UnmarshalJSON of T must copy what
// they keep.
func JSON[T any]() Serde[T] {
	return jsonSerde[T]{name: "json(" + reflect.TypeFor[T]().String() + ")"}
}

type jsonSerde[T any] struct{ name string }

// jsonEncoder is an encoder bound to a slice that it appends to. The encoder
// of the standard library is kept because the setting against HTML escaping
// exists only there.
type jsonEncoder struct {
	enc *json.Encoder
	dst []byte
}

func (e *jsonEncoder) Write(p []byte) (int, error) {
	e.dst = append(e.dst, p...)
	return len(p), nil
}

var jsonEncoders = sync.Pool{New: func() any {
	e := new(jsonEncoder)
	e.enc = json.NewEncoder(e)
	e.enc.SetEscapeHTML(false)
	return e
}}

func (s jsonSerde[T]) Append(dst []byte, v T) ([]byte, error) {
	e := jsonEncoders.Get().(*jsonEncoder)
	e.dst = dst
	// By pointer, so that a MarshalJSON with a pointer receiver is found, as its
	// UnmarshalJSON is in Decode.
	err := e.enc.Encode(&v)
	out := e.dst
	e.dst = nil // the pool must not keep the caller's memory
	// A panic in a MarshalJSON never gets here, so that no encoder in an unknown
	// state is used again.
	jsonEncoders.Put(e)
	if err != nil {
		return dst, encodeError(s.name, err)
	}
	return out[:len(out)-1], nil // Encode ends each value with a newline
}

func (s jsonSerde[T]) Decode(src []byte) (T, error) {
	var v T
	if len(src) == 0 {
		return v, decodeError(s.name, "empty input", src, nil)
	}
	if err := json.Unmarshal(src, &v); err != nil {
		var zero T // v may be half filled
		return zero, decodeError(s.name, cause(err), src, err)
	}
	return v, nil
}

func (s jsonSerde[T]) String() string { return s.name }
