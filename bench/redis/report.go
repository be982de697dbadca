package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/weirstreams/weir/bench/figure"
)

// bound is what a ratio should be.
type bound struct {
	most  bool // at most value, else at least
	value float64
}

func atMost(v float64) *bound  { return &bound{true, v} }
func atLeast(v float64) *bound { return &bound{false, v} }

func (b bound) String() string {
	if b.most {
		return "<= " + figure.Number(b.value)
	}
	return ">= " + figure.Number(b.value)
}

func (b bound) reached(ratio float64) bool {
	if b.most {
		return ratio <= b.value
	}
	return ratio >= b.value
}

// row is one comparison over all rounds. Ratios are taken within a round.
type row struct {
	Part   string        `json:"part"`
	Title  string        `json:"title"`
	Unit   string        `json:"unit"`
	Ours   figure.Spread `json:"ours"`
	Theirs figure.Spread `json:"theirs"`
	Ratio  figure.Spread `json:"ratio"` // ours / theirs
	Wanted string        `json:"wanted,omitempty"`
	// Reached is about the median; nil when nothing is wanted.
	Reached *bool  `json:"reached,omitempty"`
	Load    string `json:"load_average"` // when the part had ended
}

// newRow compares two figures of the same rounds.
func newRow(part, title, unit string, ours, theirs []float64, wanted *bound) row {
	ratios := make([]float64, len(ours))
	for i := range ours {
		ratios[i] = ours[i] / theirs[i]
	}
	r := row{Part: part, Title: title, Unit: unit, Ours: figure.NewSpread(ours), Theirs: figure.NewSpread(theirs), Ratio: figure.NewSpread(ratios)}
	r.judge(wanted)
	return r
}

// judge compares the ratio with what is wanted, and notes the load.
func (r *row) judge(wanted *bound) {
	r.Load = figure.Load()
	if wanted != nil {
		ok := wanted.reached(r.Ratio.Median)
		r.Wanted, r.Reached = wanted.String(), &ok
	}
}

// results is the content of the file of --json.
type results struct {
	Schema  int            `json:"schema"` // 1
	Machine figure.Machine `json:"machine"`
	Quick   bool           `json:"quick"`
	Notes   []string       `json:"notes"`
	Rows    []row          `json:"rows"`
}

func (r results) writeJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// writeTable prints the results for people.
func (r results) writeTable(w io.Writer) error {
	r.Machine.Write(w)
	for _, n := range r.Notes {
		fmt.Fprintln(w, n)
	}
	if r.Quick {
		fmt.Fprintln(w, "quick: so little was done that the figures say nothing")
	}
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	part := ""
	for _, x := range r.Rows {
		if x.Part != part {
			part = x.Part
			fmt.Fprintf(tw, "\n%s: median (min .. max)\tours\ttheirs\tratio\twanted\tload\n", part)
		}
		wanted := "-"
		if x.Reached != nil {
			wanted = x.Wanted + map[bool]string{true: ", reached", false: ", MISSED"}[*x.Reached]
		}
		title := x.Title
		if x.Unit != "" {
			title = strings.Join([]string{x.Title, x.Unit}, ", ")
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", title, x.Ours.Cell(figure.Number), x.Theirs.Cell(figure.Number), x.Ratio.Cell(figure.Ratio), wanted, x.Load)
	}
	return tw.Flush()
}
