package ratings

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

func ExampleWriteJSON() {
	err := WriteJSON(os.Stdout, []Result{
		{Movie: "1029", Count: 3, Sum: 10},
		{Movie: "tt0111161", Count: 1, Sum: 9.5},
		{Movie: "362", Count: 2, Sum: 18},
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// {"movie":"362","count":2,"sum":18,"average":9}
	// {"movie":"1029","count":3,"sum":10,"average":3.3333333333333335}
	// {"movie":"tt0111161","count":1,"sum":9.5,"average":9.5}
}

func TestValueJSON(t *testing.T) {
	t.Parallel()
	got, err := json.Marshal(Rating{User: "7", Movie: "362", Stars: 10}.Value())
	if want := `{"movie":"362","stars":10}`; string(got) != want || err != nil {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	var v Value
	if err := json.Unmarshal(got, &v); err != nil || v != (Value{Movie: "362", Stars: 10}) {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestWriteJSON(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	in := []Result{{"b", 1, -0.5}, {`<"é>`, 4, 1}, {"9", 2, 0}}
	if err := WriteJSON(&b, in); err != nil {
		t.Fatal(err)
	}
	want := `{"movie":"9","count":2,"sum":0,"average":0}
{"movie":"<\"é>","count":4,"sum":1,"average":0.25}
{"movie":"b","count":1,"sum":-0.5,"average":-0.5}
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
	if in[0].Movie != "b" {
		t.Error("the caller's slice was sorted")
	}
	b.Reset()
	if err := WriteJSON(&b, nil); err != nil || b.Len() != 0 {
		t.Errorf("of nothing: %q, %v", b.String(), err)
	}
	for _, bad := range []Result{{"x", 0, 0}, {"x", -1, 3}, {"x", 2, math.Inf(1)}, {"x", 2, math.NaN()}} {
		b.Reset()
		err := WriteJSON(&b, []Result{{"1", 1, 1}, bad})
		if err == nil || !strings.Contains(err.Error(), `movie "x"`) || b.Len() != 0 {
			t.Errorf("%+v: %v, written %q", bad, err, b.String())
		}
	}
	full := errors.New("the disk is full")
	if err := WriteJSON(writeFunc(func([]byte) (int, error) { return 0, full }), in); !errors.Is(err, full) {
		t.Errorf("%v, want %v", err, full)
	}
}

type writeFunc func(p []byte) (int, error)

func (f writeFunc) Write(p []byte) (int, error) { return f(p) }

func TestCompareIDs(t *testing.T) {
	t.Parallel()
	want := []string{
		"-99999999999999999999999", "-10", "-9", "-09", "-0", "0", "00", "007", "7", "8", "10", "362", "1029",
		"9007199254740992", "9007199254740993", "123456789012345678901234567890",
		"", "+1", "-", "1.5", "1e3", "A", "a", "a10", "a9", "é",
	}
	want[2], want[3] = "-09", "-9" // equal numbers go by their bytes
	for i, a := range want {
		for j, b := range want {
			if got := CompareIDs(a, b); (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("CompareIDs(%q, %q) = %d", a, b, got)
			}
		}
	}
	got := slices.Clone(want)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
	slices.SortFunc(got, CompareIDs)
	if !slices.Equal(got, want) {
		t.Errorf("sorted %q", got)
	}
}
