package weir

import (
	"encoding/hex"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/weirstreams/weir/internal/bridge"
	"github.com/weirstreams/weir/serde"
)

// A derived table is computed from the store above it when it is read.
func TestTableViews(t *testing.T) {
	t.Parallel()
	var base, kept Table[string, string]
	var sizes, large Table[string, int64]
	d := start(t, nil, func(b *Builder) {
		base = b.Table("rows", in)
		kept = base.Filter(func(k, v string) bool { return k != "hidden" && len(v) > 1 })
		sizes = kept.MapValues(func(_, v string) int64 { return int64(len(v)) })
		large = sizes.Filter(func(_ string, n int64) bool { return n > 2 })
	})
	for _, table := range []string{base.store, kept.store, sizes.store, large.store} {
		if table != "rows" {
			t.Errorf("a table is read from store %q", table)
		}
	}
	for _, test := range []struct {
		key, value         string
		kept, sized, large bool
	}{
		{"a", "1", false, false, false},
		{"b", "12", true, true, false},
		{"c", "123", true, true, true},
		{"hidden", "123", false, false, false},
		{"d", "", false, false, false},
	} {
		d.send("in", []byte(test.key), []byte(test.value), 7)
		raw, found, err := d.tasks[0].Store("rows").GetCommitted([]byte(test.key))
		if !found || err != nil {
			t.Fatal(found, err)
		}
		if v, ts, found, err := base.view(test.key, raw); v != test.value || ts != 7 || !found || err != nil {
			t.Errorf("%s: %q @%d %t %v", test.key, v, ts, found, err)
		}
		if v, _, found, err := kept.view(test.key, raw); found != test.kept || err != nil || found && v != test.value || !found && v != "" {
			t.Errorf("%s kept: %q %t %v", test.key, v, found, err)
		}
		if n, ts, found, err := sizes.view(test.key, raw); found != test.sized || err != nil || found && (n != int64(len(test.value)) || ts != 7) {
			t.Errorf("%s sized: %d @%d %t %v", test.key, n, ts, found, err)
		}
		if n, _, found, err := large.view(test.key, raw); found != test.large || err != nil || found && n != int64(len(test.value)) {
			t.Errorf("%s large: %d %t %v", test.key, n, found, err)
		}
	}
	for _, raw := range [][]byte{nil, {1, 2, 3}} {
		if _, _, found, err := large.view("k", raw); found || err == nil {
			t.Errorf("%v: %t %v", raw, found, err)
		}
	}
}

type point struct{ X, Y int32 }

type userID string

func TestParseKey(t *testing.T) {
	t.Parallel()
	check := func(name string, info storeInfo, text, want string) {
		t.Helper()
		raw, err := info.key(text)
		got := hex.EncodeToString(raw)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s %q: %s, want %s", name, text, got, want)
		}
	}
	str := newStoreInfo("s", serde.String, nil)
	check("string", str, "", "")
	check("string", str, "é 1", "c3a92031")
	named := newStoreInfo("s", serde.JSON[userID](), nil)
	check("named string", named, "u1", "22753122")
	i64 := newStoreInfo("s", serde.Int64, nil)
	check("int64", i64, "-2", "fffffffffffffffe")
	check("int64", i64, "1.5", `the key "1.5" is no int64: `)
	i32 := newStoreInfo("s", serde.Int32, nil)
	check("int32", i32, "7", "00000007")
	check("int32", i32, "3000000000", `the key "3000000000" is no int32: `)
	check("uint", newStoreInfo("s", serde.JSON[uint8](), nil), "255", "323535")
	check("uint", newStoreInfo("s", serde.JSON[uint8](), nil), "256", `the key "256" is no uint8: `)
	f64 := newStoreInfo("s", serde.Float64, nil)
	check("float64", f64, "1.5", "3ff8000000000000")
	check("float64", f64, "x", `the key "x" is no float64: `)
	boolean := newStoreInfo("s", serde.Bool, nil)
	check("bool", boolean, "true", "01")
	check("bool", boolean, "yes", `the key "yes" is no bool: `)
	raw := newStoreInfo("s", serde.Bytes, nil)
	check("bytes", raw, "abcd", "61626364")
	check("bytes", raw, "base64:", "")
	check("bytes", raw, "base64:AP/+", "00fffe")
	check("bytes", raw, "base64:AP_-", "00fffe")
	check("bytes", raw, "base64:AA==", "00")
	check("bytes", raw, "base64:AA", "00")
	check("bytes", raw, "base64:!", `the key "base64:!" is no []uint8: `)
	js := newStoreInfo("s", serde.JSON[point](), nil)
	check("JSON", js, ` {"Y":2, "X":1}`, hex.EncodeToString([]byte(`{"X":1,"Y":2}`)))
	check("JSON", js, `{`, `the key "{" is no weir.point: want it as JSON: `)
}

func TestStoreInfoAsJSON(t *testing.T) {
	t.Parallel()
	check := func(name string, v any, err error, want string) {
		t.Helper()
		got, jsonErr := json.Marshal(v)
		if err != nil || jsonErr != nil || string(got) != want {
			t.Errorf("%s: %s %v %v, want %s", name, got, err, jsonErr, want)
		}
	}
	nan, err := serde.Float64.Append(nil, math.NaN())
	if err != nil {
		t.Fatal(err)
	}
	floats := newStoreInfo("s", serde.Float64, timestampedValue(serde.Float64))
	v, ts, err := floats.value(append([]byte{0, 0, 0, 0, 0, 0, 0, 9}, nan...))
	check("NaN", v, err, `"NaN"`)
	if ts != 9 {
		t.Errorf("timestamp %d", ts)
	}
	k, err := floats.keyOf(nan)
	check("key NaN", k, err, `"NaN"`)
	if _, _, err := floats.value([]byte{1}); err == nil {
		t.Error("a value without its timestamp was read")
	}
	if _, err := floats.keyOf([]byte{1}); err == nil {
		t.Error("a key of one byte was read as a float64")
	}
	plain := newStoreInfo("s", serde.Bytes, plainValue(serde.JSON[*point]()))
	v, ts, err = plain.value([]byte(`{"X":1,"Y":2}`))
	check("JSON", v, err, `{"X":1,"Y":2}`)
	if ts != -1 {
		t.Errorf("timestamp %d", ts)
	}
	v, _, err = plain.value([]byte(`null`))
	check("null", v, err, `null`)
	k, err = plain.keyOf([]byte{0, 255})
	check("bytes", k, err, `"AP8="`)
	kv := NewKeyValueStore("kv", serde.String, serde.Int64).d.info
	v, _, err = kv.value([]byte{0, 0, 0, 0, 0, 0, 0, 5})
	check("int64", v, err, `5`)
}

func TestBridge(t *testing.T) {
	t.Parallel()
	b := NewBuilder()
	b.Stream(in).GroupByKey().Count("n")
	top, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	graph, plans := bridge.Topology(top)
	if graph != top.graph || plans("x")[0].Stores[0].Changelog != "x-n-changelog" {
		t.Errorf("graph %p, plans %+v", graph, plans("x")[0])
	}
}
