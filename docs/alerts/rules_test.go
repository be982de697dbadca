// Package alerts checks the alert rules with the code of promtool. It is a module
// of its own because that code needs much.
package alerts

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/weirstreams/weir/metric"
)

// added are the labels that are not the metric's: those that Prometheus adds to
// every series, and that of a histogram's buckets.
var added = []string{"job", "instance", "le"}

// The rules are as "promtool check rules" wants them, and speak of metrics and
// labels that there are.
func TestRules(t *testing.T) {
	files, err := filepath.Glob("*.rules.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no rules: %v", err)
	}
	for _, file := range files {
		groups, errs := rulefmt.ParseFile(file, false)
		for _, err := range errs {
			t.Errorf("%s: %v", file, err)
		}
		if groups == nil {
			continue
		}
		for _, g := range groups.Groups {
			for _, r := range g.Rules {
				if r.Alert == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
					t.Errorf("%s: rule %q: an alert has a severity, a summary and a description", file, r.Alert)
				}
				checkExpr(t, r.Alert, r.Expr)
			}
		}
	}
}

func checkExpr(t *testing.T, alert, text string) {
	expr, err := parser.ParseExpr(text)
	if err != nil {
		t.Errorf("%s: %v", alert, err)
		return
	}
	known := slices.Clone(added)
	var grouped []string
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			m, ok := metric.Lookup(n.Name)
			if base, is := strings.CutSuffix(n.Name, "_bucket"); !ok && is {
				m, ok = metric.Lookup(base)
			}
			if !ok {
				t.Errorf("%s: there is no metric %s", alert, n.Name)
			}
			known = append(known, m.Labels...)
			for _, l := range n.LabelMatchers {
				if l.Name != labels.MetricName && !slices.Contains(m.Labels, l.Name) {
					t.Errorf("%s: metric %s has no label %s", alert, n.Name, l.Name)
				}
			}
		case *parser.AggregateExpr:
			grouped = append(grouped, n.Grouping...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				grouped = append(grouped, n.VectorMatching.MatchingLabels...)
				grouped = append(grouped, n.VectorMatching.Include...)
			}
		}
		return nil
	})
	for _, l := range grouped {
		if !slices.Contains(known, l) {
			t.Errorf("%s: no metric of the rule has the label %s", alert, l)
		}
	}
}
