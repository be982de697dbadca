package demo

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/weirstreams/weir/cmd/weir/internal/ratings"
)

// maxIDWidth is how wide the column of movies gets; a longer id pushes its
// numbers to the right.
const maxIDWidth = 40

// print prints the result of a run with Config.Exit.
func (d *demo) print(results []ratings.Result) error {
	write := writeTable
	if d.config.JSON {
		write = ratings.WriteJSON
	}
	if err := write(d.config.Stdout, results); err != nil {
		return err
	}
	sent, bad := d.feeder.sent()
	d.console.print("%s: %s processed, %s", d.input.describe(), counted(sent, "rating"), badLines(bad))
	return nil
}

// writeTable writes the result for people, in the order of ratings.CompareIDs.
func writeTable(w io.Writer, results []ratings.Result) error {
	results = slices.SortedStableFunc(slices.Values(results), func(a, b ratings.Result) int { return ratings.CompareIDs(a.Movie, b.Movie) })
	names := make([]string, len(results))
	width := len("movie")
	for i, r := range results {
		names[i] = r.Movie
		if strings.ContainsFunc(r.Movie, func(c rune) bool { return !strconv.IsPrint(c) }) {
			names[i] = strconv.Quote(r.Movie)
		}
		width = max(width, min(utf8.RuneCountInString(names[i]), maxIDWidth))
	}
	bw := bufio.NewWriter(w)
	fmt.Fprintf(bw, "%-*s  %9s  %9s\n", width, "movie", "ratings", "average")
	for i, r := range results {
		fmt.Fprintf(bw, "%-*s  %9d  %9s\n", width, names[i], r.Count, decimal(r.Average()))
	}
	if err := bw.Flush(); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}

// decimal prints an average with two decimals, unless it is too large for that.
func decimal(a float64) string {
	if math.Abs(a) < 1e6 {
		return strconv.FormatFloat(a, 'f', 2, 64)
	}
	return strconv.FormatFloat(a, 'g', 4, 64)
}
