package weir

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/metric"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/pebblestore"
)

// Guarantee says what a crash may do to outputs and state.
type Guarantee int

const (
	// ExactlyOnce changes the state once and makes each output visible once to
	// readers with isolation level read_committed, whatever crashes. It needs
	// transactions: a broker of version 2.5 or newer.
	ExactlyOnce Guarantee = iota
	// AtLeastOnce needs no transactions. With a store on disk or in memory it may
	// repeat outputs and changes of the state after a crash, as Kafka Streams
	// does.
	//
	// With a remote store that can keep outputs (a [state.Outbox], as
	// redisstore) there are no changelogs: one write of the store holds the state,
	// the outputs and the positions of a batch. As long as the store keeps what it
	// has acknowledged the state changes once, through repartition topics too, and
	// outputs appear at least once; repetitions carry the same weir-id header, by
	// which a [Deduper] drops them. A store that forgot acknowledged writes, as in
	// a failover of Redis, has their input processed again: what it had forgotten
	// may take effect twice. weir_store_forgot_total counts that, as far as somebody
	// is left who knows of it (O6 in docs/guarantees.md). A
	// store that lost a task's state as a whole stops the application: nothing
	// can rebuild it. A batch is at most what the store takes in one step (500
	// keys and 256 KiB in Redis, outputs of 1 MiB); a single record that writes
	// more is an error that matches [ErrBatchTooLarge]. An output that the broker
	// refuses for good stops the application at every start, until its topic takes
	// it: the state has its batch already.
	//
	// Either way input is read uncommitted: records of transactions that are open
	// or were aborted count as well.
	AtLeastOnce
)

// Decision is the answer of an error handler.
type Decision int

const (
	// Stop ends the application with the error. Nothing of the batch in which
	// it happened is committed.
	Stop Decision = iota
	// DeadLetter undoes what the record did, writes the record as it came to
	// Config.DeadLetterTopic, in the same transaction as the rest, and goes on.
	DeadLetter
)

// Config says how an App runs. The zero value of a field is its default.
type Config struct {
	// ApplicationID names the application: it is the consumer group, and the
	// prefix of internal topics and transactional ids. Required. Letters,
	// digits, dots, underscores and hyphens.
	ApplicationID string
	// Brokers are the host:port addresses to begin with. Required, unless
	// ClientOptions has them.
	Brokers []string
	// ClientOptions are added to those of every Kafka client, for TLS, SASL,
	// dialers and hooks. Options that Weir sets itself for its protocol (group,
	// transactions, offsets, isolation) must not be among them.
	ClientOptions []kgo.Opt

	// Dir is the folder for state on disk and for the identity of the process.
	// One process at a time uses it. Defaults to "weir" in the user's cache
	// folder, or in the temporary folder where there is none.
	Dir string
	// Store keeps the state. The caller closes it after Run. Defaults to a
	// Pebble database in Dir, which the App opens and closes itself.
	Store state.Backend

	// Guarantee defaults to ExactlyOnce.
	Guarantee Guarantee
	// Workers is the number of group members, each with a goroutine, a client
	// and its share of the tasks. Defaults to GOMAXPROCS; never more than the
	// topology has tasks.
	Workers int

	// CommitInterval is the time between two commits, and so the delay that
	// readers of committed outputs see. Defaults to 100 ms; under AtLeastOnce
	// with a local store, where outputs do not wait for the commit, to 1 s.
	CommitInterval time.Duration
	// FlushInterval is how long committed writes may stay in memory before the
	// store has them; a crash costs a replay of that much changelog and
	// nothing else. Defaults to 500 ms. Not used under AtLeastOnce on a remote
	// store.
	FlushInterval time.Duration
	// MaxTaskIdle is how long a task with several inputs waits for an empty one
	// that the broker has nothing for, so that records are taken in the order
	// of their timestamps. With 0, the default, it waits for what the broker
	// is known to have; a negative value takes what is there. As
	// max.task.idle.ms (KIP-353, KIP-695).
	MaxTaskIdle time.Duration
	// MaxRecordTime is how long one record may take. The worker gives up with an
	// error when one takes longer twice in a row: once may have been a pause of
	// the process. Defaults to RebalanceTimeout.
	MaxRecordTime time.Duration
	// PurgeInterval is the time between deletions of processed records from
	// repartition topics. Defaults to 30 s. Under AtLeastOnce on a remote store
	// records are kept for six hours after they were processed, for a store that
	// forgets.
	PurgeInterval time.Duration

	// SessionTimeout is how long the group waits for a sign of life before it
	// gives the tasks away. Defaults to 15 s.
	SessionTimeout time.Duration
	// HeartbeatInterval defaults to a fifth of SessionTimeout.
	HeartbeatInterval time.Duration
	// RebalanceTimeout is how long a rebalance waits for this member. Defaults
	// to 60 s.
	RebalanceTimeout time.Duration
	// TransactionTimeout is when the broker aborts a transaction of a process
	// that died. Defaults to 10 s.
	TransactionTimeout time.Duration
	// StartTimeout bounds the wait for brokers and topics at the start.
	// Defaults to 60 s.
	StartTimeout time.Duration

	// MaxStateMemory bounds the memory for state: one half for the working set
	// in front of the store, one half for the store's caches and memtables.
	// Defaults to a quarter of the memory that the process may use (the limit
	// of the cgroup, else that of the machine).
	MaxStateMemory int64
	// MaxBatchBytes bounds writes and outputs between two commits; when they
	// reach it, the commit comes early. Defaults to 64 MiB.
	MaxBatchBytes int64
	// MaxUnflushedBytes bounds the committed writes that the store does not
	// have yet. Defaults to 64 MiB.
	MaxUnflushedBytes int64
	// MaxBufferedRecords and MaxBufferedBytes bound what was fetched and is not
	// processed yet. Default to 5,000 per worker and to 64 MiB.
	MaxBufferedRecords int
	MaxBufferedBytes   int64
	// MaxRecordBytes bounds key, value and headers of one output. It must be
	// below max.message.bytes of the topics. Defaults to 1,000,000.
	MaxRecordBytes int

	// OnError decides about errors of decoding, callbacks, punctuations and
	// outputs. It is called from the worker's goroutines and must be safe for
	// that. Defaults to Stop.
	OnError func(*TaskError) Decision
	// DeadLetterTopic is where dead letters go. The topic has to exist.
	DeadLetterTopic string
	// ReplaceFailedWorkers restarts a worker that failed, with a growing pause,
	// instead of stopping the App. A record that always fails then fails for
	// ever.
	ReplaceFailedWorkers bool

	// ReplicationFactor of internal topics. Defaults to that of the broker.
	ReplicationFactor int16
	// TopicConfigs are added to the settings of internal topics at their
	// creation.
	TopicConfigs map[string]string

	// AdvertisedAddress is the host:port at which other instances reach the
	// query server of this one. Defaults to none.
	AdvertisedAddress string
	// Incarnation is added to the transactional ids. Only brokers that need
	// fresh ids at each start need it, as the embedded one with a data folder.
	Incarnation string

	// Logger defaults to none.
	Logger *slog.Logger
	// Metrics defaults to none.
	Metrics metric.Sink
	// OnState is told of each change of the App's state, in order and one at a
	// time. It may call methods of the App, but not wait: neither for a state
	// nor for Close, which wait for the one who calls it.
	OnState func(State)
	// OnRestore is told of the progress of restores. It is called from the
	// workers' goroutines and must not block.
	OnRestore func(RestoreProgress)
}

// withDefaults returns the config with every field set, or all that is wrong
// with it.
func (c Config) withDefaults() (Config, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.ApplicationID == "" {
		bad("ApplicationID is missing: name the application, as in \"ratings\"")
	}
	if len(c.Brokers) == 0 && len(c.ClientOptions) == 0 {
		bad("Brokers is missing: give the host:port of at least one broker")
	}
	if c.Guarantee != ExactlyOnce && c.Guarantee != AtLeastOnce {
		bad("Guarantee is %d: choose ExactlyOnce or AtLeastOnce", c.Guarantee)
	}
	if c.Workers < 0 {
		bad("Workers is %d: choose a positive number, or 0 for the default", c.Workers)
	}
	if c.Dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			base = os.TempDir()
		}
		c.Dir = filepath.Join(base, "weir")
	}
	commit := 100 * time.Millisecond
	if c.Guarantee == AtLeastOnce && !c.usesOutbox() {
		commit = time.Second
	}
	c.Workers = cmp.Or(c.Workers, runtime.GOMAXPROCS(0))
	duration := func(name string, d *time.Duration, def, low time.Duration) {
		if *d < 0 || *d != 0 && *d < low {
			bad("%s is %v: choose at least %v, or 0 for the default of %v", name, *d, low, def)
		}
		*d = cmp.Or(*d, def)
	}
	ms := time.Millisecond
	duration("CommitInterval", &c.CommitInterval, commit, ms)
	duration("FlushInterval", &c.FlushInterval, 500*ms, ms)
	duration("PurgeInterval", &c.PurgeInterval, 30*time.Second, 100*ms)
	duration("SessionTimeout", &c.SessionTimeout, 15*time.Second, 100*ms)
	duration("HeartbeatInterval", &c.HeartbeatInterval, c.SessionTimeout/5, ms)
	duration("RebalanceTimeout", &c.RebalanceTimeout, time.Minute, 100*ms)
	duration("TransactionTimeout", &c.TransactionTimeout, 10*time.Second, 100*ms)
	duration("StartTimeout", &c.StartTimeout, time.Minute, 100*ms)
	duration("MaxRecordTime", &c.MaxRecordTime, c.RebalanceTimeout, ms)
	if c.HeartbeatInterval >= c.SessionTimeout {
		bad("HeartbeatInterval (%v) is not below SessionTimeout (%v): the group would take the member for dead", c.HeartbeatInterval, c.SessionTimeout)
	}
	if c.Guarantee == ExactlyOnce && c.CommitInterval >= c.TransactionTimeout {
		bad("CommitInterval (%v) is not below TransactionTimeout (%v): the broker would abort every transaction", c.CommitInterval, c.TransactionTimeout)
	}
	size := func(name string, n *int64, def, low int64) {
		if *n < 0 || *n != 0 && *n < low {
			bad("%s is %d bytes: choose at least %d, or 0 for the default", name, *n, low)
		}
		*n = cmp.Or(*n, def)
	}
	size("MaxStateMemory", &c.MaxStateMemory, pebblestore.DefaultMaxMemory(), 8<<20)
	size("MaxBatchBytes", &c.MaxBatchBytes, 64<<20, 1<<20)
	size("MaxUnflushedBytes", &c.MaxUnflushedBytes, 64<<20, 1<<10)
	size("MaxBufferedBytes", &c.MaxBufferedBytes, 64<<20, 1<<20)
	if c.MaxBufferedRecords < 0 {
		bad("MaxBufferedRecords is %d: choose a positive number, or 0 for the default of 5,000", c.MaxBufferedRecords)
	}
	c.MaxBufferedRecords = cmp.Or(c.MaxBufferedRecords, 5_000)
	if c.MaxRecordBytes < 0 || c.MaxRecordBytes > math.MaxInt32/2 {
		bad("MaxRecordBytes is %d: choose a size between 1 byte and 1 GiB, or 0 for the default of 1,000,000", c.MaxRecordBytes)
	}
	c.MaxRecordBytes = cmp.Or(c.MaxRecordBytes, 1_000_000)
	if c.ReplicationFactor == 0 {
		c.ReplicationFactor = -1
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if len(errs) > 0 {
		return c, fmt.Errorf("%w: %w", ErrConfig, errors.Join(errs...))
	}
	return c, nil
}

// onError adapts the user's handler.
func (c *Config) onError() func(*task.Error) task.Decision {
	if c.OnError == nil {
		return nil
	}
	return func(e *task.Error) task.Decision {
		if c.OnError(taskError(e)) == DeadLetter {
			return task.DeadLetter
		}
		return task.Stop
	}
}
