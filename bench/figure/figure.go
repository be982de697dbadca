// Package figure is what the benchmarks make figures with: medians over rounds,
// how they are printed, and the machine and the load that they were taken under.
package figure

import (
	"fmt"
	"slices"
	"strconv"
)

// Spread is a figure over all rounds.
type Spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// NewSpread needs at least one value.
func NewSpread(values []float64) Spread {
	v := slices.Sorted(slices.Values(values))
	mid := len(v) / 2
	median := v[mid]
	if len(v)%2 == 0 {
		median = (v[mid-1] + v[mid]) / 2
	}
	return Spread{v[0], median, v[len(v)-1]}
}

// Cell prints the figure for a table, each number by format.
func (s Spread) Cell(format func(float64) string) string {
	return fmt.Sprintf("%s (%s .. %s)", format(s.Median), format(s.Min), format(s.Max))
}

// Number prints three digits or more, and no more decimals than that needs.
func Number(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// Ratio prints a ratio.
func Ratio(v float64) string { return "x" + Number(v) }
