package keyenc

import (
	"maps"
	"math"
	"strings"
	"testing"
	"time"
)

func TestTopicNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ got, want string }{
		{ChangelogTopic("app", "c"), "app-c-changelog"},
		{ChangelogTopic("app", "cnt"), "app-cnt-changelog"},
		{RepartitionTopic("app", "g"), "app-g-repartition"},
		{RepartitionTopic("app", "grp"), "app-grp-repartition"},
		{RepartitionTopic("app", "jn-left"), "app-jn-left-repartition"},
		{ChangelogTopic("app", "KSTREAM-AGGREGATE-STATE-STORE-0000000002"), "app-KSTREAM-AGGREGATE-STATE-STORE-0000000002-changelog"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
		if err := ValidName(c.got); err != nil {
			t.Errorf("%s: %v", c.got, err)
		}
	}
}

func TestValidName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "A-b_c.9", "...", "-", "_", strings.Repeat("x", 249)} {
		if err := ValidName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, c := range []struct{ name, want string }{
		{"", "the name is empty"},
		{".", `the name "." is reserved`},
		{"..", `the name ".." is reserved`},
		{"by movie", `the name "by movie" has ' ' at byte 2: use ASCII letters, digits, '.', '_' and '-' only`},
		{"a/b", `the name "a/b" has '/' at byte 1: use ASCII letters, digits, '.', '_' and '-' only`},
		{"café", `the name "café" has 'é' at byte 3: use ASCII letters, digits, '.', '_' and '-' only`},
		{"a\n", `the name "a\n" has '\n' at byte 1: use ASCII letters, digits, '.', '_' and '-' only`},
		{strings.Repeat("x", 250), `the name "` + strings.Repeat("x", 32) + `"... has 250 bytes, more than the 249 that Kafka allows a topic`},
	} {
		if err := ValidName(c.name); err == nil || err.Error() != c.want {
			t.Errorf("%.20q:\n got %v\nwant %s", c.name, err, c.want)
		}
	}
	// A valid store name can make a topic name that is too long.
	store := strings.Repeat("s", MaxNameLength)
	if ValidName(store) != nil || ValidName(ChangelogTopic("app", store)) == nil {
		t.Error("the changelog of a store with the longest name must be refused")
	}
	if err := ValidName(strings.Repeat("x", 1<<20) + " "); err == nil || len(err.Error()) > 400 {
		t.Errorf("the error on a name of a megabyte has %d bytes", len(err.Error()))
	}
}

// The settings with which Kafka Streams 4.4.0 creates its topics.
func TestTopicConfigs(t *testing.T) {
	t.Parallel()
	const createTime = "CreateTime"
	for _, c := range []struct {
		what      string
		got, want map[string]string
	}{
		{
			"repartition", RepartitionConfig(),
			map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "segment.bytes": "52428800", "message.timestamp.type": createTime},
		},
		{
			"key-value", ChangelogConfig(KeyValueChangelog, time.Hour),
			map[string]string{"cleanup.policy": "compact", "message.timestamp.type": createTime},
		},
		{
			"tumbling 10 ms", ChangelogConfig(WindowChangelog, 10*time.Millisecond),
			map[string]string{"cleanup.policy": "compact,delete", "retention.ms": "86400010", "message.timestamp.type": createTime},
		},
		{
			"stream-stream join within 10 ms", ChangelogConfig(JoinChangelog, 20*time.Millisecond),
			map[string]string{"cleanup.policy": "delete", "retention.ms": "86400020", "message.timestamp.type": createTime},
		},
		{
			"versioned, an hour of history", ChangelogConfig(VersionedChangelog, time.Hour),
			map[string]string{"cleanup.policy": "compact", "min.compaction.lag.ms": "90000000", "message.timestamp.type": createTime},
		},
		{
			"less than a millisecond is rounded up", ChangelogConfig(WindowChangelog, time.Millisecond+1),
			map[string]string{"cleanup.policy": "compact,delete", "retention.ms": "86400002", "message.timestamp.type": createTime},
		},
		{
			"the longest duration", ChangelogConfig(WindowChangelog, math.MaxInt64),
			map[string]string{"cleanup.policy": "compact,delete", "retention.ms": "9223458436855", "message.timestamp.type": createTime},
		},
	} {
		if !maps.Equal(c.got, c.want) {
			t.Errorf("%s:\n got %v\nwant %v", c.what, c.got, c.want)
		}
	}
	// Each call gives a map of its own.
	RepartitionConfig()["cleanup.policy"] = "changed"
	if RepartitionConfig()["cleanup.policy"] != "delete" {
		t.Error("a caller changed the settings of all")
	}
}
