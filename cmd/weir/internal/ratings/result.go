package ratings

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// A Result is what is known about one movie.
type Result struct {
	Movie string
	Count int64   // of its ratings; at least 1
	Sum   float64 // of their stars
}

// Average returns Sum / Count.
func (r Result) Average() float64 { return r.Sum / float64(r.Count) }

// WriteJSON writes one JSON object on each line for each result, in the order
// of [CompareIDs]:
//
//	{"movie":"362","count":2,"sum":18,"average":9}
//
// The members and their order are stable. Numbers have as few digits as say
// exactly the same float64: 18, not 18.0. It leaves results as it is and writes
// nothing if one of them has no ratings or a sum that is not finite, which JSON
// cannot express.
func WriteJSON(w io.Writer, results []Result) error {
	for _, r := range results {
		if r.Count < 1 {
			return fmt.Errorf("print the result of movie %q: it has %d ratings", r.Movie, r.Count)
		}
		if math.IsNaN(r.Sum) || math.IsInf(r.Sum, 0) {
			return fmt.Errorf("print the result of movie %q: the sum of its ratings is %v, ratings as large as these cannot be added", r.Movie, r.Sum)
		}
	}
	results = slices.SortedStableFunc(slices.Values(results), func(a, b Result) int { return CompareIDs(a.Movie, b.Movie) })
	bw := bufio.NewWriter(w)
	enc := json.NewEncoder(bw)
	enc.SetEscapeHTML(false) // an id is printed as it is
	for _, r := range results {
		err := enc.Encode(struct {
			Movie   string  `json:"movie"`
			Count   int64   `json:"count"`
			Sum     float64 `json:"sum"`
			Average float64 `json:"average"`
		}{r.Movie, r.Count, r.Sum, r.Average()})
		if err != nil {
			return fmt.Errorf("print the result of movie %q: %w", r.Movie, err)
		}
	}
	if err := bw.Flush(); err != nil {
		return fmt.Errorf("print the results: %w", err)
	}
	return nil
}

// CompareIDs orders movie ids, and returns a number below, equal to or above 0
// as a comes before, is or comes after b. Whole numbers (digits, with or without
// a minus, of any length) come first, by their value; other ids follow, byte by
// byte. Different spellings of one number, such as 7 and 007, are ordered byte
// by byte too.
func CompareIDs(a, b string) int {
	an, aNegative, aIsNumber := integer(a)
	bn, bNegative, bIsNumber := integer(b)
	switch {
	case aIsNumber && bIsNumber:
		if aNegative != bNegative {
			if aNegative {
				return -1
			}
			return 1
		}
		c := cmp.Or(cmp.Compare(len(an), len(bn)), strings.Compare(an, bn))
		if aNegative {
			c = -c
		}
		return cmp.Or(c, strings.Compare(a, b))
	case aIsNumber:
		return -1
	case bIsNumber:
		return 1
	}
	return strings.Compare(a, b)
}

// integer returns the digits of a whole number without leading zeros, so that
// a longer one is greater, and whether it is below zero.
func integer(id string) (digits string, negative, ok bool) {
	digits, negative = strings.CutPrefix(id, "-")
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return "", false, false
	}
	digits = strings.TrimLeft(digits, "0")
	return digits, negative && digits != "", true
}
