// Package serde turns keys and values into bytes and back.
//
// A [Serde] is named once, where a topic or a store is declared. The package
// has serdes for the types that Kafka's own clients know, byte for byte as
// Kafka's Java serializers write them, so that a Go program can take over the
// topics of a Java one; [JSON] for everything else; and [Func] for a format of
// your own.
//
// # Null
//
// Kafka tells an empty value from a null one, and null deletes. A serde never
// sees a null: the caller keeps tombstones and null keys apart from values.
// In return the bytes that a serde makes are always a value, even if there are
// none of them: a caller that appends to a nil slice and gets a nil slice back
// holds an empty value and must not write it as null.
//
// # Order
//
// Stores and range reads order keys by their bytes, compared as unsigned. For
// String and Bytes that is the order of the values. For Int32, Int64 and
// Float64 it is so for values >= 0 only: negative integers sort after the
// positive ones, and negative floats as well, backwards. Kafka's encoding fixes
// that.
package serde

import "fmt"

// Serde turns values of one type into bytes and back. Both methods are safe for
// concurrent use.
//
// A serde of keys must be deterministic: equal keys have to give equal bytes,
// on every machine and in every version of the program, since the bytes decide
// the partition and name the state.
type Serde[T any] interface {
	// Append adds the encoding of v to dst and returns the extended slice, as
	// the built-in append does. On an error it returns dst unchanged; bytes
	// beyond len(dst) may have been written.
	Append(dst []byte, v T) ([]byte, error)
	// Decode returns the value that src encodes. All of src has to be one
	// value. Decode must neither keep nor change src, which belongs to the
	// caller and is reused: a result that needs the bytes copies them.
	Decode(src []byte) (T, error)
}

// NameOf returns the name of a serde for error messages and topology
// descriptions: what its String method says, as all serdes of this package do
// ("int64", "json(main.Order)"), else its Go type. It is "none" for nil.
func NameOf(s any) string {
	switch s := s.(type) {
	case nil:
		return "none"
	case fmt.Stringer:
		return s.String()
	default:
		return fmt.Sprintf("%T", s)
	}
}
