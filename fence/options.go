package fence

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	"github.com/weirstreams/weir/metric"
)

// Defaults and bounds.
const (
	DefaultName      = "fence"
	DefaultMaxWindow = 100_000
	// MaxSlots is the largest number of slots.
	MaxSlots = 4096
	// MinTTL is the shortest TTL.
	MinTTL = time.Second
	// MaxBatch is the largest number of records of one Apply.
	MaxBatch = 100_000
	// MaxValue is the largest state, output or argument, in bytes.
	MaxValue = 16 << 20
)

// looseSlots is the default of Options.Slots when a partition can reach all of
// them.
const looseSlots = 16

// Options say where the states are and what they belong to. The zero value of
// a field means its default.
type Options struct {
	// URL names the server: redis://user:password@host:6379/0, rediss:// with
	// TLS, unix://, redis+cluster://a,b, redis+sentinel://a,b/master. Its
	// parameters are timeout, dial_timeout, wait_replicas, wait_timeout,
	// client_name, check and others; docs/fence.md lists them. Required.
	URL string `json:"-"`
	// TLS takes the place of the settings of a rediss URL when it is not nil.
	TLS *tls.Config `json:"-"`

	// Name begins every key, so that several programs can share a server:
	// letters, digits, and any of ". _ - /". Defaults to DefaultName.
	Name string
	// Topic is the topic that the records come from: the states of another
	// topic are others. Required.
	Topic string
	// Partitions is the present number of partitions of the topic. Required.
	Partitions int
	// Slots is the number of hash tags over which the states are spread. It is
	// fixed when the first fence of Name and Topic is opened, and is best left
	// alone; another number later is ErrLayout, zero takes what is stored.
	// Defaults to Partitions, at most MaxSlots; and at most 16 when the
	// partitioner does not tell which slots a partition can reach, as
	// AnyPartition, because each batch then goes to all of them.
	Slots int
	// Partitioner says on which partition a key belongs. Defaults to Murmur2,
	// which is that of the Java client and of franz-go. AnyPartition switches
	// the check off. It decides which slots a partition can reach, so it is
	// fixed like Slots.
	Partitioner Partitioner
	// Existing does not begin states: when nothing is stored for Name and Topic,
	// Open fails with ErrMissing and writes nothing. It is for programs that look
	// at the states of others.
	Existing bool

	// NoWindow keeps no pending window: for consumers that send no output. A
	// record that was applied before is then always Skip.
	NoWindow bool
	// MaxWindow is the largest number of records in the pending window of a
	// partition, and so of a batch. A batch that is carried out in several calls
	// may exceed it, by its own size at most. Defaults to DefaultMaxWindow.
	MaxWindow int
	// TTL removes a state that long after its last change. It must be longer
	// than Retention, or else an old record could be applied to a state whose
	// fence is gone. Defaults to 0, never.
	TTL time.Duration
	// Retention is how long records stay in the topic, and with the longest lag
	// of the consumer. It is needed with TTL and used for nothing else.
	Retention time.Duration
	// Reducers are the functions that Reduce can name.
	Reducers []Reducer

	// Logger gets what a person should know. Nil discards.
	Logger *slog.Logger
	// Metrics receives the measurements of package metric whose names begin
	// with weir_fence. Nil discards.
	Metrics metric.Sink
}

// String describes the options without the URL, which may hold a password.
func (o Options) String() string {
	return fmt.Sprintf("fence %q of topic %q with %d partitions", o.Name, o.Topic, o.Partitions)
}

// GoString is String: not even %#v shows a secret.
func (o Options) GoString() string { return o.String() }

// LogValue implements slog.LogValuer.
func (o Options) LogValue() slog.Value { return slog.StringValue(o.String()) }
