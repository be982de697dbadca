package embedded

import (
	"context"
	"errors"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
)

// moduleDir returns the folder of a package of another module.
func moduleDir(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", path).CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestCreateTopicAgain(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	ctx := testContext(t)
	compact := map[string]string{"cleanup.policy": "compact", "segment.bytes": "1000"}
	if err := b.CreateTopic(ctx, "table", 3, compact); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name       string
		partitions int32
		configs    map[string]string
		want       string
	}{
		{"equal", 3, compact, ""},
		{"fewer settings", 3, map[string]string{"segment.bytes": "1000"}, ""},
		{"no settings", 3, nil, ""},
		{"other count", 4, compact, `topic "table" has 3 partitions, asked for 4`},
		{"other setting", 3, map[string]string{"cleanup.policy": "delete"}, "has cleanup.policy=compact, asked for delete"},
		{"new setting", 3, map[string]string{"retention.ms": "1"}, "has retention.ms=unset, asked for 1"},
	} {
		err := b.CreateTopic(ctx, "table", tt.partitions, tt.configs)
		if tt.want == "" {
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		if !errors.Is(err, ErrTopicDiffers) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error is %v, want ErrTopicDiffers with %q", tt.name, err, tt.want)
		}
	}
}

func TestCreateTopicRefused(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Topics: []Topic{{Name: "a.b", Partitions: 1}}})
	ctx := testContext(t)
	for _, tt := range []struct {
		topic       string
		partitions  int32
		key, value  string
		want        string
		unsupported bool
	}{
		{"", 1, "", "", `topic name ""`, false},
		{"..", 1, "", "", `topic name ".."`, false},
		{"a/b", 1, "", "", `topic name "a/b"`, false},
		{strings.Repeat("x", 250), 1, "", "", "249 characters", false},
		{"t", 0, "", "", "0 partitions: want 1 to 10000", false},
		{"t", 10_001, "", "", "10001 partitions", false},
		{"a_b", 1, "", "", "another topic has this name but for '.' and '_'", false},
		{"t", 1, "min.compaction.lag.ms", "1", `setting "min.compaction.lag.ms"`, true},
		{"t", 1, "retention.mss", "1", "it has cleanup.policy", true},
		{"t", 1, "message.timestamp.type", "LogAppendTime", "LogAppendTime", true},
		{"t", 1, "retention.ms", "soon", `retention.ms="soon"`, true},
		{"t", 1, "segment.bytes", "0", `segment.bytes="0"`, true},
		{"t", 1, "cleanup.policy", "none", `cleanup.policy="none"`, true},
	} {
		var configs map[string]string
		if tt.key != "" {
			configs = map[string]string{tt.key: tt.value}
		}
		err := b.CreateTopic(ctx, tt.topic, tt.partitions, configs)
		if err == nil || !strings.Contains(err.Error(), tt.want) || errors.Is(err, ErrUnsupported) != tt.unsupported {
			t.Errorf("topic %.20q, %d partitions, %s=%s: error is %v, want one with %q", tt.topic, tt.partitions, tt.key, tt.value, err, tt.want)
		}
	}
	if _, err := b.Partitions("t"); !errors.Is(err, ErrTopicUnknown) {
		t.Errorf("a refused topic is there: %v", err)
	}
}

// The settings that CreateTopic takes are those that the broker describes.
func TestSettingsAreThoseDescribed(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Topics: []Topic{{Name: "in", Partitions: 1}}})
	described, err := kadm.NewClient(client(t, b)).DescribeTopicConfigs(testContext(t), "in")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range described[0].Configs {
		// Settings of the broker appear under their own names as well.
		if !strings.HasPrefix(c.Key, "log.") {
			got = append(got, c.Key)
		}
	}
	slices.Sort(got)
	if want := slices.Sorted(maps.Keys(topicConfigs)); !slices.Equal(got, want) {
		t.Errorf("described are\n%v, taken are\n%v", got, want)
	}
}

func TestPartitionsAndRecordsComeAndGo(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Brokers: 2, Topics: []Topic{{Name: "in", Partitions: 1}}})
	ctx := testContext(t)
	cl := client(t, b)
	if err := b.AddPartitions(ctx, "in", 3); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Partitions("in"); n != 3 || err != nil {
		t.Errorf("partitions are %d, %v, want 3", n, err)
	}
	produce(t, cl, record("in", 2, "", "1"), record("in", 2, "", "2"), record("in", 2, "", "3"))
	if err := b.DeleteRecords(ctx, "in", 2, 1); err != nil {
		t.Fatal(err)
	}
	if got, want := read(t, b, "in", 2), []string{"=2", "=3"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if err := b.DeleteRecords(ctx, "in", 2, -1); err != nil {
		t.Fatal(err)
	}
	if p, _ := b.Partition("in", 2); p.LogStart != 3 || p.End != 3 || p.Bytes != 0 {
		t.Errorf("partition is %+v, want it empty from 3", p)
	}
	if err := b.DeleteTopic(ctx, "in"); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"AddPartitions": b.AddPartitions(ctx, "in", 4),
		"DeleteTopic":   b.DeleteTopic(ctx, "in"),
		"DeleteRecords": b.DeleteRecords(ctx, "in", 0, 0),
		"Partition":     second(b.Partition("in", 0)),
		"Partitions":    second(b.Partitions("in")),
	} {
		if !errors.Is(err, ErrTopicUnknown) {
			t.Errorf("%s of a deleted topic: %v, want ErrTopicUnknown", name, err)
		}
	}
	if err := b.CreateTopic(ctx, "in", 2, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.AddPartitions(ctx, "in", 1); err == nil || !strings.Contains(err.Error(), "want 2 to 10000") {
		t.Errorf("fewer partitions: %v", err)
	}
	if err := b.DeleteRecords(ctx, "in", 0, 7); err == nil {
		t.Error("deleted records past the end")
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := b.CreateTopic(ended, "other", 1, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}
