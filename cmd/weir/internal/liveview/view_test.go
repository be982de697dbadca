package liveview

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var (
	header = []string{"weir demo", "http://127.0.0.1:8080/stores/averages/362"}
	rows   = []Row{{"362", 1200, 3.9167}, {"1029", 600, 4}, {"7", 1, 0.5}}
)

func check(t *testing.T, what, got, want string) {
	t.Helper()
	if want = strings.TrimPrefix(want, "\n"); got != want {
		t.Errorf("%s:\n%s\nwant:\n%s", what, got, want)
	}
}

func update(t *testing.T, v *View, header []string, rows []Row) {
	t.Helper()
	if err := v.Update(header, rows); err != nil {
		t.Fatal(err)
	}
}

func TestPlainLinesShowChanges(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	v := New(&b, Options{})
	step := func(what string, header []string, rows []Row, want string) {
		t.Helper()
		b.Reset()
		update(t, v, header, rows)
		check(t, what, b.String(), want)
	}
	step("first", append(header, ""), rows, `
weir demo
http://127.0.0.1:8080/stores/averages/362
movie 362: 1200 ratings, average 3.92
movie 1029: 600 ratings, average 4.00
movie 7: 1 rating, average 0.50
`)
	step("nothing new", append(header, ""), rows, "")
	step("one row and one header line", []string{"weir demo", "stopping"}, []Row{rows[0], {"1029", 601, 4}, rows[2]}, `
stopping
movie 1029: 601 ratings, average 4.00
`)
	step("another order", []string{"weir demo", "stopping"}, []Row{{"1029", 601, 4}, rows[0]}, "")
	step("a movie that comes back", nil, rows[2:], "movie 7: 1 rating, average 0.50\n")
	b.Reset()
	if err := v.Print("line 4: bad\x1b[2J\tline", "more"); err != nil {
		t.Fatal(err)
	}
	check(t, "print", b.String(), "line 4: bad?[2J line\nmore\n")
	b.Reset()
	if err := v.Close(); err != nil || b.Len() > 0 {
		t.Errorf("Close: %v, printed %q", err, b.String())
	}
}

func TestFirstFrame(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		o    Options
		want string
	}{
		{"ASCII without color", Options{}, "\r\x1b[?25l\x1b[?7lweir demo\x1b[K\n\x1b[K\nmovie  ratings  average\x1b[K\n1           20     3.50  ###############\x1b[K\n2           10     3.00  ########\x1b[K\n\x1b[J\x1b[?7h"},
		{"blocks and color", Options{Color: true, Unicode: true}, "\r\x1b[?25l\x1b[?7l\x1b[1mweir demo\x1b[m\x1b[K\n\x1b[K\nmovie  ratings  average\x1b[K\n1           20     3.50  \x1b[36m███████████████\x1b[m\x1b[K\n2           10     3.00  \x1b[36m████████\x1b[m\x1b[K\n\x1b[J\x1b[?7h"},
	} {
		var b strings.Builder
		c.o.Terminal = true
		c.o.Size = func() (int, int) { return 41, 10 }
		v := New(&b, c.o)
		update(t, v, header[:1], []Row{{"1", 20, 3.5}, {"2", 10, 3}})
		if b.String() != c.want {
			t.Errorf("%s:\n%q\nwant\n%q", c.name, b.String(), c.want)
		}
	}
}

func TestRedrawInPlace(t *testing.T) {
	t.Parallel()
	s := newScreen(t, 60, 20)
	s.Write([]byte("$ weir demo\n"))
	v := New(s, Options{Terminal: true, Color: true, Size: s.size})
	update(t, v, header, rows)
	check(t, "first frame", s.text(), `
$ weir demo
weir demo
http://127.0.0.1:8080/stores/averages/362

movie  ratings  average
362       1200     3.92  ##################################
1029       600     4.00  #################
7            1     0.50  #
`)
	writes := s.writes
	update(t, v, []string{"weir demo"}, []Row{{"1029", 1300, 4}, {"a\x1b[31mé", 2, -1}})
	if s.writes != writes+1 {
		t.Errorf("%d writes for one frame", s.writes-writes)
	}
	check(t, "shorter frame", s.text(), `
$ weir demo
weir demo

movie    ratings  average
1029        1300     4.00  ################################
a?[31mé        2    -1.00  #
`)
	s.Write([]byte("^C")) // the terminal echoes a key where the cursor is
	if err := v.Print("line 7", strings.Repeat("long ", 20)); err != nil {
		t.Fatal(err)
	}
	update(t, v, nil, nil)
	check(t, "after Print", s.text(), `
$ weir demo
line 7
long long long long long long long long long long long long
long long long long long long long long
movie    ratings  average
`)
	if !s.hidden || s.style != "m" || s.noWrap {
		t.Errorf("hidden %v, style %q, noWrap %v after a frame", s.hidden, s.style, s.noWrap)
	}
	for range 2 {
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
	}
	check(t, "after Close", s.text(), `
$ weir demo
line 7
long long long long long long long long long long long long
long long long long long long long long
movie    ratings  average
|
`)
	if err := v.Update(header, rows); !errors.Is(err, errClosed) {
		t.Errorf("Update after Close: %v", err)
	}
	if err := v.Print("x"); !errors.Is(err, errClosed) {
		t.Errorf("Print after Close: %v", err)
	}
}

func TestFrameFitsTheWindow(t *testing.T) {
	t.Parallel()
	s := newScreen(t, 30, 6)
	s.Write([]byte("$ weir demo\n"))
	v := New(s, Options{Terminal: true, Unicode: true, Size: s.size})
	for n := int64(1); n <= 3; n++ { // a frame that scrolled would be left behind
		update(t, v, []string{"a title that is longer than the window"}, []Row{{"movie-with-a-name-that-is-too-long", n, 1}, {"2", n, 1}, {"3", n, 1}, {"4", n, 1}})
	}
	check(t, "frame", s.text(), `
$ weir demo
a title that is longer than …

movie                     ra…
movie-with-a-name-that-…    …
2                           …
`)
	s = newScreen(t, 4, 2)
	v = New(s, Options{Terminal: true, Size: s.size})
	for range 3 {
		update(t, v, []string{"12345678"}, nil)
	}
	check(t, "tiny window", s.text(), "12~\n")
	s = newScreen(t, 1, 1)
	v = New(s, Options{Terminal: true, Size: s.size})
	update(t, v, header, rows)
	if len(s.lines) != 2 {
		t.Errorf("a window of one line got %d", len(s.lines)-1)
	}
}

func TestWindowBecomesNarrow(t *testing.T) {
	t.Parallel()
	s := newScreen(t, 60, 20)
	s.Write([]byte("$ weir demo\n"))
	v := New(s, Options{Terminal: true, Size: s.size})
	update(t, v, header, rows)
	s.resize(24)
	update(t, v, header, rows)
	check(t, "narrow", s.text(), `
$ weir demo
weir demo
http://127.0.0.1:8080/~

movie  ratings  average
362       1200     3.92
1029       600     4.00
7            1     0.50
`)
}

func TestSizeIsNotKnown(t *testing.T) {
	t.Parallel()
	for _, size := range []func() (int, int){nil, func() (int, int) { return 0, -1 }} {
		s := newScreen(t, DefaultWidth, DefaultHeight)
		v := New(s, Options{Terminal: true, Size: size})
		update(t, v, []string{strings.Repeat("x", 200)}, make([]Row, 100))
		lines := strings.Split(s.text(), "\n")
		if len(lines) != DefaultHeight || len(lines[0]) != DefaultWidth-1 {
			t.Errorf("%d lines, the first has %d columns", len(lines), len(lines[0]))
		}
	}
}

func TestWriteError(t *testing.T) {
	t.Parallel()
	for _, terminal := range []bool{false, true} {
		w := &failing{left: 1}
		v := New(w, Options{Terminal: terminal})
		update(t, v, header, rows)
		for range 2 {
			if err := v.Update(header, nil); terminal && !errors.Is(err, errFull) {
				t.Errorf("Update: %v", err)
			}
			if err := v.Print("x"); !errors.Is(err, errFull) {
				t.Errorf("Print: %v", err)
			}
		}
		if err := v.Close(); !errors.Is(err, errFull) {
			t.Errorf("Close: %v", err)
		}
		if terminal && !strings.HasSuffix(w.last, showCursor) {
			t.Errorf("Close did not try to show the cursor: %q", w.last)
		}
	}
}

var errFull = errors.New("no space left")

type failing struct {
	left int
	last string
}

func (f *failing) Write(p []byte) (int, error) {
	f.last = string(p)
	if f.left--; f.left < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestTop(t *testing.T) {
	t.Parallel()
	in := []Row{{"10", 5, 1}, {"b", 7, 2}, {"9", 5, 3}, {"a", 7, 4}, {"x", 1, 5}}
	var got []string
	for _, r := range Top(4, in) {
		got = append(got, r.Movie)
	}
	if want := "a b 9 10"; strings.Join(got, " ") != want {
		t.Errorf("Top: %q, want %q", got, want)
	}
	if in[0].Movie != "10" {
		t.Error("Top sorted the caller's rows")
	}
	if got := len(Top(9, in)); got != 5 {
		t.Errorf("Top(9) has %d rows", got)
	}
	if got := len(Top(-1, in)); got != 0 {
		t.Errorf("Top(-1) has %d rows", got)
	}
}

func TestAverage(t *testing.T) {
	t.Parallel()
	for in, want := range map[float64]string{3.005: "3.00", -2: "-2.00", 9999999: "9999999.00", 1e7: "1e+07", -1e308: "-1e+308", math.Inf(1): "+Inf"} {
		if got := average(in); got != want {
			t.Errorf("average(%v) = %s, want %s", in, got, want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		terminal bool
		env      map[string]string
		want     Options
	}{
		{"no terminal", false, map[string]string{"TERM": "xterm", "LANG": "C.UTF-8"}, Options{}},
		{"dumb", true, map[string]string{"TERM": "dumb"}, Options{}},
		{"no TERM", true, map[string]string{"LANG": "C.UTF-8"}, Options{}},
		{"xterm", true, map[string]string{"TERM": "xterm"}, Options{Terminal: true, Color: true}},
		{"NO_COLOR", true, map[string]string{"TERM": "xterm", "NO_COLOR": "0", "LANG": "en_US.UTF-8"}, Options{Terminal: true, Unicode: true}},
		{"empty NO_COLOR", true, map[string]string{"TERM": "xterm", "NO_COLOR": "", "LC_CTYPE": "de_DE.utf8"}, Options{Terminal: true, Color: true, Unicode: true}},
		{"LC_ALL wins", true, map[string]string{"TERM": "xterm", "LC_ALL": "C", "LANG": "en_US.UTF-8"}, Options{Terminal: true, Color: true}},
	} {
		got := environment(c.terminal, func(key string) string { return c.env[key] })
		if got.Terminal != c.want.Terminal || got.Color != c.want.Color || got.Unicode != c.want.Unicode {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestOptionsForFile(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	o := OptionsFor(f, func(string) string { return "xterm" })
	if w, h := o.Size(); o.Terminal || o.Color || w != 0 || h != 0 {
		t.Errorf("a file is taken for a terminal: %+v, %d x %d", o, w, h)
	}
}
