package liveview

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A Row is one movie of the table.
type Row struct {
	Movie   string
	Count   int64 // of its ratings
	Average float64
}

// Top returns the n rows with the most ratings, the greatest first, and of two
// with the same number the one with the shorter, then the smaller id. It leaves
// rows as it is.
func Top(n int, rows []Row) []Row {
	rows = slices.SortedFunc(slices.Values(rows), func(a, b Row) int {
		return cmp.Or(
			cmp.Compare(b.Count, a.Count),
			cmp.Compare(len(a.Movie), len(b.Movie)),
			strings.Compare(a.Movie, b.Movie))
	})
	return rows[:max(0, min(n, len(rows)))]
}

const (
	maxMovieWidth = 24 // of a longer id the beginning is shown
	maxBarWidth   = 40
	minBarWidth   = 8 // a shorter one says nothing and is left out
)

// widths are those of the columns, in runes.
type widths struct{ movie, count, average int }

// A frameLine is one line of a frame, not yet cut.
type frameLine struct {
	text  string
	title bool
	bar   int // where the bar begins, in runes; past the end if there is none
}

// frame lays out the last header and rows for lines of that width.
func (v *View) frame(width int) []frameLine {
	var lines []frameLine
	for i, text := range v.header {
		lines = append(lines, frameLine{v.clean(text), i == 0, math.MaxInt})
	}
	if len(lines) > 0 {
		lines = append(lines, frameLine{})
	}
	names := make([]string, len(v.rows))
	w := &v.widths
	*w = widths{max(w.movie, len("movie")), max(w.count, len("ratings")), max(w.average, len("average"))}
	var most int64
	for i, r := range v.rows {
		names[i] = string(v.cut(v.clean(r.Movie), maxMovieWidth))
		w.movie = max(w.movie, utf8.RuneCountInString(names[i]))
		w.count = max(w.count, len(strconv.FormatInt(r.Count, 10)))
		w.average = max(w.average, len(average(r.Average)))
		most = max(most, r.Count)
	}
	lines = append(lines, frameLine{fmt.Sprintf("%-*s  %*s  %*s", w.movie, "movie", w.count, "ratings", w.average, "average"), false, math.MaxInt})
	start := w.movie + 2 + w.count + 2 + w.average + 2
	full := min(maxBarWidth, width-start)
	for i, r := range v.rows {
		text := fmt.Sprintf("%-*s  %*d  %*s", w.movie, names[i], w.count, r.Count, w.average, average(r.Average))
		if full >= minBarWidth && r.Count > 0 {
			text += "  " + strings.Repeat(v.block(), max(1, int(math.Round(float64(r.Count)/float64(most)*float64(full)))))
		}
		lines = append(lines, frameLine{text, false, start})
	}
	return lines
}

func (v *View) block() string {
	if v.o.Unicode {
		return "█"
	}
	return "#"
}

// average prints an average with two decimals, unless it is too large for that.
func average(a float64) string {
	if math.Abs(a) < 1e7 {
		return strconv.FormatFloat(a, 'f', 2, 64)
	}
	return strconv.FormatFloat(a, 'g', 4, 64)
}
