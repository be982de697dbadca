package weir

import (
	"fmt"

	"github.com/weirstreams/weir/internal/keyenc"
	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/serde"
)

// Topic is a topic of the user's with the types of its keys and values. It is a
// value and may be shared by builders.
type Topic[K, V any] struct {
	name  string
	key   serde.Serde[K]
	value serde.Serde[V]
}

// NewTopic declares a topic and says, once, how its keys and values are encoded.
// Nothing is created: the topics of the user's must exist when the application
// starts. A bad name or a nil serde is an error of the step that uses the topic.
func NewTopic[K, V any](name string, key serde.Serde[K], value serde.Serde[V]) Topic[K, V] {
	return Topic[K, V]{name, key, value}
}

// Name returns the name of the topic.
func (t Topic[K, V]) Name() string { return t.name }

// check says what is wrong with the topic, or returns nil.
func (t Topic[K, V]) check() error {
	if err := keyenc.ValidName(t.name); err != nil {
		return fmt.Errorf("the topic cannot be used: %w", err)
	}
	if t.key == nil || t.value == nil {
		return fmt.Errorf("topic %q was declared without a serde for its %s: give NewTopic both", t.name, missingSides(t.key == nil, t.value == nil))
	}
	return nil
}

func missingSides(key, value bool) string {
	switch {
	case key && value:
		return "keys and values"
	case key:
		return "keys"
	default:
		return "values"
	}
}

// ResetPolicy says where to start in a partition of a source topic for which
// the application has no committed offset, and where to go on when the records
// at the committed offset are gone.
type ResetPolicy uint8

// The reset policies. Earliest, the default, starts with the oldest record
// there is; Latest skips what is there; Fail stops the application with an
// error, for input that must not be skipped or repeated silently.
const (
	Earliest ResetPolicy = iota
	Latest
	Fail
)

// String returns the name of the policy.
func (p ResetPolicy) String() string { return topology.ResetPolicy(p).String() }

// SourceOption is an option of a step that reads a topic: [Builder.Stream] and
// [Builder.Table].
type SourceOption interface {
	TableOption
	applySource(*sourceConfig)
}

// TableOption is an option of [Builder.Table]: a [SourceOption] or a
// [StoreOption].
type TableOption interface {
	applyTable(*sourceConfig, *storeConfig)
}

type sourceConfig struct {
	reset    ResetPolicy
	resetSet bool
	feedback bool
}

type sourceOption func(*sourceConfig)

func (o sourceOption) applySource(c *sourceConfig)                { o(c) }
func (o sourceOption) applyTable(c *sourceConfig, _ *storeConfig) { o(c) }

// StartAt sets the reset policy of a source topic. Defaults to Earliest. A topic
// that is read by several steps has one policy: those that name one must agree.
func StartAt(p ResetPolicy) SourceOption {
	return sourceOption(func(c *sourceConfig) { c.reset, c.resetSet = p, true })
}

// Feedback allows a topology to write to a topic that it reads, as a retry
// topic is written. Without it that is a build error, since as a rule such a
// record goes round for ever. With it the program has to end the loop.
func Feedback() SourceOption {
	return sourceOption(func(c *sourceConfig) { c.feedback = true })
}

// RepartitionOption is an option of [Stream.Repartition].
type RepartitionOption interface{ applyRepartition(*repartitionConfig) }

type repartitionConfig struct {
	partitions int
	given      bool
}

type repartitionOption func(*repartitionConfig)

func (o repartitionOption) applyRepartition(c *repartitionConfig) { o(c) }

// Partitions sets the number of partitions of a repartition topic, at least 1.
// By default it is the largest number among the source topics that feed it. It
// cannot be changed once the topic exists.
func Partitions(n int) RepartitionOption {
	return repartitionOption(func(c *repartitionConfig) { c.partitions, c.given = n, true })
}
