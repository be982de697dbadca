package fence

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/weirstreams/weir/metric"
)

// The alert rules speak of metrics, labels and verdicts that there are. The
// module docs/alerts reads the rules themselves, as promtool does.
func TestAlertNames(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile("../docs/alerts/fence.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	verdicts := map[string]bool{}
	for v := Apply; v <= Fenced; v++ {
		verdicts[v.String()] = true
	}
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile(`(weir_[a-z_]+)(?:\{([a-z_]+)="([^"]*)"\})?`).FindAllStringSubmatch(string(rules), -1) {
		name := strings.TrimSuffix(m[1], "_bucket")
		seen[name] = true
		d, ok := metric.Lookup(name)
		if !ok {
			t.Errorf("there is no metric %s", m[1])
			continue
		}
		if m[1] != name && d.Kind != metric.KindHistogram {
			t.Errorf("%s is no histogram", name)
		}
		if m[2] != "" && !strings.Contains(strings.Join(d.Labels, " "), m[2]) {
			t.Errorf("metric %s has no label %s", name, m[2])
		}
		if m[2] == metric.LabelVerdict && !verdicts[m[3]] {
			t.Errorf("there is no verdict %s", m[3])
		}
	}
	for _, name := range []string{metric.FenceRecords, metric.FenceDeadLetters, metric.FenceWindow, metric.FenceWindowMaximum, metric.FenceBreakerOpen,
		metric.FenceRegressions, metric.FenceFull, metric.FenceConsumerLag, metric.FenceRoundTrip} {
		if !seen[name] {
			t.Errorf("no rule looks at %s", name)
		}
	}
}
