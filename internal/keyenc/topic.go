package keyenc

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// MaxNameLength is Kafka's limit for the name of a topic.
const MaxNameLength = 249

// ChangelogTopic names the topic that logs a store.
func ChangelogTopic(application, store string) string {
	return application + "-" + store + "-changelog"
}

// RepartitionTopic names the topic that carries a regrouped stream or table.
func RepartitionTopic(application, name string) string {
	return application + "-" + name + "-repartition"
}

// ValidName says why name cannot name an application, a store, an operator or a
// topic, or returns nil: Kafka allows ASCII letters, digits, '.', '_' and '-',
// at most MaxNameLength of them, and neither "." nor "..". The names of internal
// topics are longer than their parts, so they are to be checked as well.
func ValidName(name string) error {
	switch {
	case name == "":
		return errors.New("the name is empty")
	case name == "." || name == "..":
		return fmt.Errorf("the name %q is reserved", name)
	}
	for i, r := range name {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '.', r == '_', r == '-':
		default:
			return fmt.Errorf("the name %.*q has %q at byte %d: use ASCII letters, digits, '.', '_' and '-' only", MaxNameLength, name, r, i)
		}
	}
	if len(name) > MaxNameLength {
		return fmt.Errorf("the name %.32q... has %d bytes, more than the %d that Kafka allows a topic", name, len(name), MaxNameLength)
	}
	return nil
}

// ChangelogKind says what a changelog logs, on which its settings depend.
type ChangelogKind int

const (
	// KeyValueChangelog is for key-value stores, the shared store of an outer
	// stream join among them: the last value of each key is kept.
	KeyValueChangelog ChangelogKind = iota
	// WindowChangelog is for window and session stores: compacted, and old
	// segments are deleted.
	WindowChangelog
	// JoinChangelog is for the two window stores of a stream-stream join. They
	// keep duplicates under counted keys, which compaction would not reduce.
	JoinChangelog
	// VersionedChangelog is for versioned stores: compacted, but not before
	// the history is no longer needed.
	VersionedChangelog
)

// AdditionalRetention is kept beyond what a store needs, against clocks that
// differ (windowstore.changelog.additional.retention.ms).
const AdditionalRetention = 24 * time.Hour

// ChangelogConfig returns the settings with which a changelog is created.
// Retention is how long the store keeps windows, sessions or history, >= 0,
// rounded up to milliseconds; key-value changelogs ignore it. The map is the
// caller's.
func ChangelogConfig(kind ChangelogKind, retention time.Duration) map[string]string {
	config := map[string]string{"message.timestamp.type": "CreateTime"}
	keep := retention.Milliseconds()
	if retention%time.Millisecond > 0 {
		keep++
	}
	kept := strconv.FormatInt(keep+AdditionalRetention.Milliseconds(), 10)
	switch kind {
	case KeyValueChangelog:
		config["cleanup.policy"] = "compact"
	case WindowChangelog:
		config["cleanup.policy"] = "compact,delete"
		config["retention.ms"] = kept
	case JoinChangelog:
		config["cleanup.policy"] = "delete"
		config["retention.ms"] = kept
	case VersionedChangelog:
		config["cleanup.policy"] = "compact"
		config["min.compaction.lag.ms"] = kept
	default:
		panic("keyenc: unknown kind of changelog " + strconv.Itoa(int(kind)))
	}
	return config
}

// repartitionSegmentBytes lets the broker delete what was consumed in small
// steps.
const repartitionSegmentBytes = 50 << 20

// RepartitionConfig returns the settings with which a repartition topic is
// created: nothing is deleted by age, since only the application knows what it
// has consumed and deletes that itself. The map is the caller's.
func RepartitionConfig() map[string]string {
	return map[string]string{
		"cleanup.policy":         "delete",
		"retention.ms":           "-1",
		"segment.bytes":          strconv.Itoa(repartitionSegmentBytes),
		"message.timestamp.type": "CreateTime",
	}
}
