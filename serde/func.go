package serde

import (
	"errors"
	"reflect"
)

// Func makes a serde of two functions, which have to keep the contract of
// [Serde]: safe for concurrent use, and decode keeps no part of src. The rest
// Func sees to: an error carries the name of the serde, "func(T)", and an
// excerpt of the input, and dst comes back unchanged.
//
// With a nil function the method that needs it fails.
func Func[T any](append func(dst []byte, v T) ([]byte, error), decode func(src []byte) (T, error)) Serde[T] {
	return funcSerde[T]{"func(" + reflect.TypeFor[T]().String() + ")", append, decode}
}

type funcSerde[T any] struct {
	name   string
	append func([]byte, T) ([]byte, error)
	decode func([]byte) (T, error)
}

var (
	errNoAppend = errors.New("the append function given to serde.Func is nil")
	errNoDecode = errors.New("the decode function given to serde.Func is nil")
)

func (s funcSerde[T]) Append(dst []byte, v T) ([]byte, error) {
	if s.append == nil {
		return dst, encodeError(s.name, errNoAppend)
	}
	out, err := s.append(dst, v)
	if err != nil {
		return dst, encodeError(s.name, err)
	}
	return out, nil
}

func (s funcSerde[T]) Decode(src []byte) (T, error) {
	var zero T
	if s.decode == nil {
		return zero, decodeError(s.name, errNoDecode.Error(), src, errNoDecode)
	}
	v, err := s.decode(src)
	if err != nil {
		return zero, decodeError(s.name, cause(err), src, err)
	}
	return v, nil
}

func (s funcSerde[T]) String() string { return s.name }
