package weir

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"

	"github.com/weirstreams/weir/serde"
)

// storeInfo describes a store to code that does not know its types, such as the
// HTTP handler.
type storeInfo struct {
	name        string
	subtopology int32
	unordered   bool
	// key encodes a key that is given as text: strings as they are, numbers and
	// booleans as Go writes them, []byte as they are or behind "base64:", and
	// keys of other types as JSON.
	key func(text string) ([]byte, error)
	// keyOf and value decode what is stored to something that encoding/json can
	// write. ts is the timestamp of the value in ms, -1 where the store keeps
	// none.
	keyOf func(raw []byte) (any, error)
	value func(raw []byte) (v any, ts int64, err error)
}

func newStoreInfo[K any](name string, key serde.Serde[K], value func(raw []byte) (any, int64, error)) storeInfo {
	return storeInfo{
		name: name,
		key: func(text string) ([]byte, error) {
			k, err := parseKey[K](text)
			if err != nil {
				return nil, err
			}
			return key.Append([]byte{}, k)
		},
		keyOf: func(raw []byte) (any, error) {
			k, err := key.Decode(raw)
			return jsonable(k), err
		},
		value: value,
	}
}

func plainValue[V any](value serde.Serde[V]) func(raw []byte) (any, int64, error) {
	return func(raw []byte) (any, int64, error) {
		v, err := value.Decode(raw)
		return jsonable(v), -1, err
	}
}

func timestampedValue[V any](value serde.Serde[V]) func(raw []byte) (any, int64, error) {
	return func(raw []byte) (any, int64, error) {
		ts, body, err := splitTimestamped(raw)
		if err != nil {
			return nil, -1, err
		}
		v, err := value.Decode(body)
		return jsonable(v), ts, err
	}
}

// jsonable returns v, or what stands for it where JSON has no such value.
func jsonable(v any) any {
	if r := reflect.ValueOf(v); r.IsValid() && r.CanFloat() {
		if f := r.Float(); math.IsNaN(f) || math.IsInf(f, 0) {
			return strconv.FormatFloat(f, 'g', -1, 64)
		}
	}
	return v
}

// base64Prefix marks a []byte key that is given in base64, with or without
// padding, in the standard or the URL alphabet.
const base64Prefix = "base64:"

// parseKey reads a key from text.
func parseKey[K any](text string) (k K, err error) {
	v := reflect.ValueOf(&k).Elem()
	bad := func(err error) error {
		return fmt.Errorf("the key %.64q is no %s: %w", text, v.Type(), err)
	}
	switch {
	case v.Kind() == reflect.String:
		v.SetString(text)
	case v.CanInt():
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			return k, bad(err)
		}
		v.SetInt(n)
	case v.CanUint():
		n, err := strconv.ParseUint(text, 10, v.Type().Bits())
		if err != nil {
			return k, bad(err)
		}
		v.SetUint(n)
	case v.CanFloat():
		f, err := strconv.ParseFloat(text, v.Type().Bits())
		if err != nil {
			return k, bad(err)
		}
		v.SetFloat(f)
	case v.Kind() == reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return k, bad(err)
		}
		v.SetBool(b)
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		b := []byte(text)
		if code, ok := strings.CutPrefix(text, base64Prefix); ok {
			if b, err = decodeBase64(code); err != nil {
				return k, bad(err)
			}
		}
		v.SetBytes(b)
	default:
		if err := json.Unmarshal([]byte(text), &k); err != nil {
			return k, bad(fmt.Errorf("want it as JSON: %w", err))
		}
	}
	return k, nil
}

func decodeBase64(s string) ([]byte, error) {
	s = strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(s, "="))
	return base64.RawStdEncoding.DecodeString(s)
}
