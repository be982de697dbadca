package pebblestore

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/weirstreams/weir/state"
)

func TestKeyLayout(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what      string
		got, want []byte
	}{
		{"format key", formatKey, []byte("\x00weir")},
		{"format record", formatRecord(), []byte("weir state\x00\x01")},
		{"registry key", registryKey(state.ID{Application: "app", Task: "0_1"}), []byte("\x01app\x00\x010_1\x00\x01")},
		{"escaped registry key", registryKey(state.ID{Application: "a\x00b", Task: ""}), []byte("\x01a\x00\xffb\x00\x01\x00\x01")},
		{"registry value", registryValue(0x01020304), []byte{1, 2, 3, 4}},
		{"token key", tokenKey(0x01020304), []byte{2, 1, 2, 3, 4, 0}},
		{"data key", appendView(nil, 0x01020304, viewData), []byte{2, 1, 2, 3, 4, 1}},
	} {
		if !bytes.Equal(c.got, c.want) {
			t.Errorf("%s = %x, want %x", c.what, c.got, c.want)
		}
	}
	lower, upper := viewBounds(7)
	for _, k := range [][]byte{tokenKey(7), appendView(nil, 7, viewData), append(appendView(nil, 7, viewData), "\xff\xff\xff"...)} {
		if bytes.Compare(k, lower) < 0 || bytes.Compare(k, upper) >= 0 {
			t.Errorf("key %x is outside of the bounds of its view", k)
		}
	}
	if next := tokenKey(8); bytes.Compare(upper, next) > 0 {
		t.Errorf("the bounds of view 7 reach into view 8")
	}
	if bytes.Compare(tokenKey(7), appendView(nil, 7, viewData)) >= 0 {
		t.Error("the token is not the first key of its view")
	}
}

func TestRegistryRefusesDamage(t *testing.T) {
	t.Parallel()
	id := state.ID{Application: "app", Task: "0_1"}
	key, value := registryKey(id), registryValue(3)
	for what, c := range map[string]struct{ key, value []byte }{
		"empty key":        {nil, value},
		"another space":    {append([]byte{spaceViews}, key[1:]...), value},
		"no end":           {key[:len(key)-1], value},
		"one name":         {appendName([]byte{spaceRegistry}, "app"), value},
		"three names":      {appendName(slices.Clone(key), "x"), value},
		"unknown escape":   {[]byte("\x01app\x00\x02x\x00\x01y\x00\x01"), value},
		"short number":     {key, value[:3]},
		"long number":      {key, append(slices.Clone(value), 0)},
		"number 0":         {key, registryValue(0)},
		"escape at an end": {[]byte("\x01app\x00"), value},
	} {
		if got, n, err := parseRegistry(c.key, c.value); !errors.Is(err, state.ErrCorrupt) {
			t.Errorf("%s: %v, %d, error %v, want ErrCorrupt", what, got, n, err)
		}
	}
}

// FuzzRegistry checks that names come back, that their order is kept and that
// no entry is a prefix of another.
func FuzzRegistry(f *testing.F) {
	f.Add("app", "0_1", "app", "0_11")
	f.Add("a\x00", "", "a", "\x00")
	f.Add("a\x00\x01b", "c", "a", "b\x00\x01c")
	f.Add("\xff", "\x00\xff", "", "")
	f.Fuzz(func(t *testing.T, app1, task1, app2, task2 string) {
		ids := []state.ID{{Application: app1, Task: task1}, {Application: app2, Task: task2}}
		var keys [2][]byte
		for i, id := range ids {
			keys[i] = registryKey(id)
			got, n, err := parseRegistry(keys[i], registryValue(uint32(i)+1))
			if err != nil || got != id || n != uint32(i)+1 {
				t.Fatalf("%q comes back as %q, number %d, error %v", id, got, n, err)
			}
		}
		if ids[0] == ids[1] {
			return
		}
		if bytes.HasPrefix(keys[0], keys[1]) || bytes.HasPrefix(keys[1], keys[0]) {
			t.Fatalf("%x and %x: one is a prefix of the other", keys[0], keys[1])
		}
		want := strings.Compare(app1, app2)
		if want == 0 {
			want = strings.Compare(task1, task2)
		}
		if got := bytes.Compare(keys[0], keys[1]); got != want {
			t.Fatalf("%q and %q compare as %d, want %d", ids[0], ids[1], got, want)
		}
	})
}

// FuzzParse feeds the decoders of what is stored with anything.
func FuzzParse(f *testing.F) {
	f.Add(registryKey(state.ID{Application: "app", Task: "0_1"}), registryValue(1))
	f.Add(formatKey, formatRecord())
	f.Add(tokenKey(1), []byte("token"))
	f.Add([]byte("\x01\x00\xff\x00\x01\x00\x01"), []byte{0, 0, 0, 9})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		if id, n, err := parseRegistry(key, value); err == nil {
			if !bytes.Equal(registryKey(id), key) || !bytes.Equal(registryValue(n), value) {
				t.Fatalf("%x = %x is read as %q, number %d, which is written otherwise", key, value, id, n)
			}
		} else if !errors.Is(err, state.ErrCorrupt) {
			t.Fatal(err)
		}
		if v, err := parseFormatRecord(value); err == nil && !bytes.Equal(append(bytes.Clone(formatMagic), byte(v)), value) {
			t.Fatalf("format record %x is read as version %d", value, v)
		}
		if n, ok := parseViewKey(key); ok {
			if !bytes.HasPrefix(key, appendView(nil, n, key[dataPrefixLen-1])) {
				t.Fatalf("key %x is read as one of view %d", key, n)
			}
		}
	})
}
