package fence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/metric"
)

// Defaults of ConsumerConfig.
const (
	DefaultMaxBatchRecords = 1000
	DefaultMaxBatchBytes   = 8 << 20
	DefaultMaxConcurrency  = 16
	DefaultShutdownTimeout = 10 * time.Second
)

// ConsumerConfig says what a Consumer reads and what it does with it. The zero
// value of a field means its default.
type ConsumerConfig struct {
	// Kafka are options of the client: seed brokers, TLS, SASL, session timeout,
	// balancers. Those that the consumer needs for itself are set behind them;
	// ServerSideBalancer is not supported, and TransactionalID is refused. Seed
	// brokers are required.
	Kafka []kgo.Opt
	// Group is the consumer group. Required.
	Group string
	// Topics are the topics; they exist. Each has its own states. Required.
	Topics []string

	// Fence says where the states are. Its Topic and Partitions are filled in for
	// each topic. Its Name defaults to Group: two groups with one Name would
	// fence each other for ever.
	Fence Options

	// Handle says what a record does to the state of its key. It must be a pure
	// function of the record. Either Handle or Compute is required.
	Handle func(m *Message) (Op, error)
	// Compute makes a new state of the old one, see Claim.Update. It must not
	// keep state, nor have an effect of its own: it may be called again.
	Compute func(m *Message, state []byte, exists bool) (Change, error)
	// Output makes the records to send for a record that was applied. It must be
	// a pure function of its arguments: for a record that is read again it is
	// called again, with the same After, and has to make the same bytes. Nil
	// sends nothing.
	Output func(m *Message, after After) ([]Output, error)

	// DeadLetterTopic is where records go that cannot be applied; it exists.
	// Empty ends Run with a *MessageError at the first of them, with nothing
	// committed behind the record before it.
	DeadLetterTopic string
	// StartAtEnd begins with new records where the group has committed nothing.
	// By default it begins with the oldest ones.
	StartAtEnd bool

	// MaxBatchRecords bounds the batch of one partition: what is applied in one
	// step, and committed in one. Plan proposes it. Defaults to
	// DefaultMaxBatchRecords, at most MaxBatch.
	MaxBatchRecords int
	// MaxBatchBytes bounds what a broker sends at once, compressed, and with it
	// the memory: the client holds that much of each broker, and the consumer
	// works on as much. It gets no more of a partition that waits. Defaults to
	// DefaultMaxBatchBytes.
	MaxBatchBytes int
	// MaxConcurrency bounds the partitions that are worked on at once. Plan says
	// how many are of use. Defaults to DefaultMaxConcurrency.
	MaxConcurrency int
	// ShutdownTimeout bounds how long Run goes on after its context has ended,
	// to finish and commit what is under way. Defaults to
	// DefaultShutdownTimeout.
	ShutdownTimeout time.Duration

	// Logger gets what a person should know. Defaults to Fence.Logger; nil
	// discards.
	Logger *slog.Logger
	// Metrics receives the measurements of package metric whose names begin with
	// weir_fence. Defaults to Fence.Metrics; nil discards.
	Metrics metric.Sink
}

// After is what a record has left, for Output. It is the same each time that the
// record is read.
type After struct {
	// State is the state after this very record, and Exists whether there is one.
	// It is empty when Output is set. For SetAdd and SetRemove it is what
	// changed.
	State  []byte
	Exists bool
	// Output is Change.Output, or what the reducer put in its place; nil for
	// none.
	Output []byte
}

// Output is a record to send. Its partition comes from its key as the Java
// client chooses it, unless ConsumerConfig.Kafka holds another partitioner.
type Output struct {
	Topic   string
	Key     []byte
	Value   []byte
	Headers []Header
	// Time defaults to that of the record it was made of.
	Time time.Time
}

// Reasons of a Consumer, beside those of the verdicts.
const (
	// HandlerFailed: Handle or Compute returned an error.
	HandlerFailed Reason = "handler error"
	// HandlerPanicked: Handle, Compute or Output panicked.
	HandlerPanicked Reason = "handler panic"
	// NotApplicable: the Op cannot be applied to the state: overflow, another
	// type of state, an error of the reducer, too large.
	NotApplicable Reason = "not applicable"
	// OutputFailed: Output returned an error. The state has changed.
	OutputFailed Reason = "output error"
)

// MessageError is a record that cannot be processed.
type MessageError struct {
	Topic     string
	Partition int32
	Offset    int64
	Reason    Reason
	// Err says more; nil when the reason says it all.
	Err error
}

func (e *MessageError) Error() string {
	s := fmt.Sprintf("record at offset %d of partition %d of topic %s: %s", e.Offset, e.Partition, e.Topic, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns Err.
func (e *MessageError) Unwrap() error { return e.Err }

// ErrRunning says that Run was called before.
var ErrRunning = errors.New("fence: the consumer was started before")

// Consumer reads topics as a member of a group and keeps the contract of the
// package: apply, produce, flush, commit. See docs/fence-consumer.md.
type Consumer struct {
	cfg ConsumerConfig
	log *slog.Logger

	// at is called after each step, for tests; an error ends Run at once, as a
	// crash would.
	at func(step step, tps []topicPartition) error
	// idle is how long a poll waits without anything to do; tests make it long,
	// to see that whatever there is to do ends it.
	idle time.Duration
	// looks is how often partitions are looked at that bring no records.
	looks time.Duration

	mu struct {
		sync.Mutex
		started bool
		status  []PartitionStatus
	}
}

// NewConsumer checks the configuration. Nothing is connected before Run.
func NewConsumer(cfg ConsumerConfig) (*Consumer, error) {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("fence: ConsumerConfig."+format, args...))
	}
	def := func(n *int, to int, name string) {
		if *n == 0 {
			*n = to
		}
		if *n < 0 {
			bad("%s is negative", name)
		}
	}
	if cfg.Group == "" {
		bad("Group is empty")
	}
	if len(cfg.Topics) == 0 {
		bad("Topics is empty")
	}
	seen := map[string]bool{}
	for _, t := range cfg.Topics {
		if seen[t] {
			bad("Topics holds %q twice", t)
		}
		if seen[t] = true; t == cfg.DeadLetterTopic {
			bad("DeadLetterTopic %q is one of Topics: its records would come back for ever", t)
		}
	}
	switch {
	case cfg.Handle == nil && cfg.Compute == nil:
		bad("Handle and Compute are nil: one of them says what a record does")
	case cfg.Handle != nil && cfg.Compute != nil:
		bad("Handle and Compute are both set: use one")
	}
	if cfg.Fence.NoWindow && (cfg.Output != nil || cfg.DeadLetterTopic != "") {
		bad("Fence.NoWindow is for consumers that send nothing, neither outputs nor dead letters: they would be lost in a crash")
	}
	if cfg.Fence.Topic != "" || cfg.Fence.Partitions != 0 {
		bad("Fence.Topic and Fence.Partitions are filled in by the consumer: leave them out")
	}
	if cfg.Fence.Name == "" {
		cfg.Fence.Name = cfg.Group
	}
	def(&cfg.MaxBatchRecords, DefaultMaxBatchRecords, "MaxBatchRecords")
	def(&cfg.MaxBatchBytes, DefaultMaxBatchBytes, "MaxBatchBytes")
	def(&cfg.MaxConcurrency, DefaultMaxConcurrency, "MaxConcurrency")
	if cfg.MaxBatchRecords > MaxBatch {
		bad("MaxBatchRecords is %d, at most %d", cfg.MaxBatchRecords, MaxBatch)
	}
	if cfg.MaxBatchBytes > maxFetchBytes {
		bad("MaxBatchBytes is %d, at most %d", cfg.MaxBatchBytes, maxFetchBytes)
	}
	if cfg.ShutdownTimeout == 0 {
		cfg.ShutdownTimeout = DefaultShutdownTimeout
	}
	if cfg.ShutdownTimeout < 0 {
		bad("ShutdownTimeout is negative")
	}
	if cfg.Logger == nil {
		cfg.Logger = cfg.Fence.Logger
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Metrics == nil {
		cfg.Metrics = cfg.Fence.Metrics
	}
	cfg.Fence.Logger, cfg.Fence.Metrics = cfg.Logger, cfg.Metrics
	// What is wrong with the options of the fence is found now and not when
	// Kafka and Redis are there.
	probe := cfg.Fence
	probe.Topic, probe.Partitions = "probe", 1
	if _, _, err := probe.complete(); err != nil {
		if strings.ContainsAny(cfg.Group, ":") && cfg.Fence.Name == cfg.Group {
			err = fmt.Errorf("%w (Fence.Name defaults to Group; set it)", err)
		}
		errs = append(errs, err)
	}
	opts := new(member).options(&cfg)
	if err := kgo.ValidateOpts(opts...); err != nil {
		bad("Kafka: %w", err)
	} else if kgo.ValidateOpts(append(opts, kgo.DisableIdempotentWrite())...) != nil {
		// The options cannot be asked, but only a transactional client cannot do
		// without idempotence.
		bad("Kafka holds a kgo.TransactionalID: the consumer sends outputs and commits offsets without transactions; leave it out")
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Consumer{cfg: cfg, log: cfg.Logger, idle: pollMax, looks: lookInterval}, nil
}

// maxFetchBytes is what kgo reads at most in one answer.
const maxFetchBytes = 100 << 20

// PartitionState says what a Consumer does with a partition.
type PartitionState string

// The states of a partition.
const (
	// Claiming: it was assigned and is not yet claimed in Redis, as while Redis
	// is away.
	Claiming PartitionState = "claiming"
	// Running: records are processed.
	Running PartitionState = "running"
	// Waiting: a batch has failed, and is tried again.
	Waiting PartitionState = "waiting"
	// Dropped: another owner has fenced it, and the group was asked again whose
	// it is.
	Dropped PartitionState = "dropped"
	// Stopped: a person has to decide; the error says what. It begins again when
	// it is assigned anew.
	Stopped PartitionState = "stopped"
)

// PartitionStatus is how a partition that the group has assigned stands.
type PartitionStatus struct {
	Topic     string         `json:"topic"`
	Partition int32          `json:"partition"`
	State     PartitionState `json:"state"`
	Epoch     uint64         `json:"epoch"` // of the claim, 0 when there is none
	// Committed is the offset that is committed, -1 for none.
	Committed int64 `json:"committed"`
	// Lag is how many offsets are between Committed and the end of the
	// partition, -1 when that is not known.
	Lag int64 `json:"lag"`
	// Error is why it does not run.
	Error string `json:"error,omitempty"`
}

// Status returns how the partitions stand that the group has assigned to this
// member, by topic and partition. It is safe to call at any time.
func (c *Consumer) Status() []PartitionStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]PartitionStatus(nil), c.mu.status...)
}

// Run consumes until ctx ends, then finishes and commits what is under way,
// leaves the group and returns nil. While Kafka or Redis are away it waits for
// them, also at the start. It returns an error only for what a person has to
// decide: a record that cannot be processed and no DeadLetterTopic, a topic that
// does not exist or was created anew, states that do not fit the topic. Run can
// be called once.
func (c *Consumer) Run(ctx context.Context) error {
	c.mu.Lock()
	started := c.mu.started
	c.mu.started = true
	c.mu.Unlock()
	if started {
		return ErrRunning
	}
	defer func() {
		c.mu.Lock()
		c.mu.status = nil
		c.mu.Unlock()
	}()
	for {
		l, err := newLoop(ctx, c)
		if err != nil {
			return ended(ctx, err)
		}
		err = l.run(ctx)
		l.close(err)
		if !errors.Is(err, errStalled) {
			return ended(ctx, err)
		}
		c.log.Warn("the client is built anew", "group", c.cfg.Group, "error", err)
	}
}

// ended is nil for an error that says only that the context has ended.
func ended(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return nil
	}
	return err
}
