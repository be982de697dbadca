package fence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/metric"
)

// Fence gives access to the states of one topic. It is safe for concurrent use.
type Fence struct {
	opts     Options
	s        *redisconn.Server
	slots    int
	prefixes []string // of the keys, by slot
	batch    *redisconn.Script
	scope    *metric.Scope
	metrics  *fenceMetrics
	closed   atomic.Bool
	before   atomic.Pointer[func(calls []redisconn.Call) error] // for tests
}

// Open connects to Redis, checks how it is set up, and stores the layout of the
// states or compares it with the stored one. When the server is not there the
// error matches ErrUnavailable.
func Open(ctx context.Context, opts Options) (*Fence, error) {
	conn, text, err := opts.complete()
	if err != nil {
		return nil, err
	}
	f := &Fence{opts: opts, batch: batchScript(text), scope: metric.NewScope(opts.Metrics, metric.L(metric.LabelTopic, opts.Topic))}
	f.opts.URL, f.opts.TLS = "", nil // secrets are no longer needed
	f.metrics = newFenceMetrics(f.scope, &f.opts)
	conn.OnBreaker = f.breaker()
	if f.s, err = redisconn.Connect(ctx, *conn); err != nil {
		f.scope.Close()
		return nil, fmt.Errorf("fence: %w", err)
	}
	if err := f.open(ctx); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (f *Fence) open(ctx context.Context) error {
	if err := f.s.Refuse(ctx); err != nil {
		return fmt.Errorf("fence: %w", err)
	}
	slots, err := f.layout(ctx, f.opts.Slots)
	if err != nil {
		return fmt.Errorf("fence: %w", err)
	}
	f.slots = slots
	f.prefixes = make([]string, f.slots)
	for i := range f.prefixes {
		f.prefixes[i] = prefix(f.opts.Name, f.opts.Topic, i)
	}
	// A reducer that does not compile is found here and not with the first
	// record.
	if len(f.opts.Reducers) > 0 {
		if _, err := f.s.Do(ctx, f.s.Breaker(f.prefixes[0]), "SCRIPT", nil, "LOAD", f.batch.Source); err != nil {
			return fmt.Errorf("fence: load the script with the reducers: %w", err)
		}
	}
	return nil
}

// complete checks the options and fills in what is not set. It returns the
// options of the connection and the part of the script that defines the
// reducers.
func (o *Options) complete() (*redisconn.Options, string, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("fence: "+format, args...)) }
	conn, err := redisconn.ParseURL(o.URL, nil)
	if err != nil {
		bad("Options.URL: %w", err)
	}
	if o.TLS != nil {
		conn.TLS = o.TLS
	}
	if o.Name == "" {
		o.Name = DefaultName
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	conn.Namespace, conn.Logger, conn.Docs = o.Name, o.Logger, "docs/fence.md"
	conn.Expires = o.TTL > 0
	conn.Forgot = "the partitions are read again from where it stands"
	conn.Errors = redisconn.Errors{Unavailable: ErrUnavailable, Full: ErrFull, Corrupt: ErrCorrupt, Replicas: ErrReplicas, Unsuitable: ErrUnsuitable}
	if err == nil {
		if conn, err = conn.WithDefaults("fence"); err != nil {
			errs = append(errs, err)
		}
	}
	if strings.ContainsAny(o.Name, ":") {
		bad("Options.Name %q: it must hold no colon", o.Name)
	}
	if o.Topic == "" {
		bad("Options.Topic is empty: give the topic that the records come from")
	} else if strings.IndexFunc(o.Topic, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
	}) >= 0 || len(o.Topic) > 249 {
		bad("Options.Topic %q is no name of a topic", o.Topic)
	}
	if o.Partitions < 1 {
		bad("Options.Partitions is %d: give the number of partitions of the topic", o.Partitions)
	}
	if o.Slots < 0 || o.Slots > MaxSlots {
		bad("Options.Slots is %d: use 1 to %d, or 0 for what is stored", o.Slots, MaxSlots)
	}
	if o.Partitioner == nil {
		o.Partitioner = Murmur2
	}
	if name := o.Partitioner.Name(); name == "" || strings.ContainsAny(name, " \n") {
		bad("Options.Partitioner has the name %q: use a word", name)
	}
	if o.MaxWindow == 0 {
		o.MaxWindow = DefaultMaxWindow
	}
	if o.MaxWindow < 0 {
		bad("Options.MaxWindow is negative: NoWindow switches the window off")
	}
	switch {
	case o.TTL < 0 || o.Retention < 0:
		bad("Options.TTL or Options.Retention is negative")
	case o.TTL > 0 && o.TTL < MinTTL:
		bad("Options.TTL is %v: at least %v", o.TTL, MinTTL)
	case o.TTL > 0 && o.Retention == 0:
		bad("Options.TTL without Options.Retention: say how long records stay in the topic, because a state must outlive the records that changed it")
	case o.TTL > 0 && o.TTL <= o.Retention:
		bad("Options.TTL (%v) is not longer than Options.Retention (%v): an old record that is read again would find no fence and be applied twice", o.TTL, o.Retention)
	}
	text, err := reducers(o.Reducers)
	if err != nil {
		errs = append(errs, err)
	}
	return &conn, text, errors.Join(errs...)
}

// layout stores the layout of the states unless there is one, and compares it:
// slots is the number of them, 0 for that which is stored.
func (f *Fence) layout(ctx context.Context, slots int) (int, error) {
	key, name := layoutKey(f.opts.Name, f.opts.Topic), f.opts.Partitioner.Name()
	begin := min(f.opts.Partitions, MaxSlots)
	if _, ok := f.opts.Partitioner.(hashed); !ok {
		// Each partition reaches all of them, with each batch.
		begin = min(begin, looseSlots)
	}
	if f.opts.Existing {
		begin = 0
	}
	replies, err := f.run(ctx, key, true, redisconn.Call{Script: layoutScript, Keys: []string{key},
		Args: []string{formatVersion, strconv.Itoa(slots), name, strconv.Itoa(begin)}})
	if err != nil {
		return 0, fmt.Errorf("read the layout: %w", err)
	}
	version, text, partitioner := replies[0].Str(0), replies[0].Str(1), replies[0].Str(2)
	if version == "" && f.opts.Existing {
		return 0, fmt.Errorf("%w: nothing is stored under the name %s for topic %s: look whether server, database, name and topic are the right ones (the name of a Consumer is its group unless it was set)", ErrMissing, f.opts.Name, f.opts.Topic)
	}
	if version != formatVersion {
		return 0, fmt.Errorf("%w: %s is of format %s, and this program knows format %s", ErrLayout, key, version, formatVersion)
	}
	stored, err := strconv.Atoi(text)
	switch {
	case err != nil || stored < 1 || stored > MaxSlots:
		return 0, fmt.Errorf("%w: %s holds %q slots", ErrCorrupt, key, text)
	case slots != 0 && slots != stored:
		return 0, fmt.Errorf("%w: the states of topic %s are spread over %d slots, and this is for %d: leave Options.Slots out", ErrLayout, f.opts.Topic, stored, slots)
	case partitioner != name:
		return 0, fmt.Errorf("%w: the states of topic %s were made with the partitioner %s, and Options.Partitioner is %s", ErrLayout, f.opts.Topic, partitioner, name)
	}
	return stored, nil
}

// same makes sure that the layout is still that of this fence: what is stored
// may be gone since Open, and have begun again with another.
func (f *Fence) same(ctx context.Context) error {
	_, err := f.layout(ctx, f.slots)
	return err
}

// run calls scripts whose keys share the tag of key.
func (f *Fence) run(ctx context.Context, key string, wait bool, calls ...redisconn.Call) ([]redisconn.Reply, error) {
	if f.closed.Load() {
		return nil, ErrClosed
	}
	if h := f.before.Load(); h != nil {
		if err := (*h)(calls); err != nil {
			return nil, err
		}
	}
	replies, err := f.s.Run(ctx, f.s.Breaker(key), wait, calls...)
	if err != nil && f.closed.Load() {
		return nil, ErrClosed
	}
	if err != nil && strings.Contains(err.Error(), "access a non local key") {
		// Members of a set are a key that the call does not name.
		err = fmt.Errorf("%w: the slot of the keys is being moved to another node: %w", ErrUnavailable, err)
	}
	if errors.Is(err, ErrFull) {
		f.metrics.full.Add(1)
	}
	return replies, err
}

// Topic returns the topic whose states these are.
func (f *Fence) Topic() string { return f.opts.Topic }

// Partitions returns Options.Partitions.
func (f *Fence) Partitions() int { return f.opts.Partitions }

// Slots returns the number of slots of the states.
func (f *Fence) Slots() int { return f.slots }

// CheckPartition says whether a key may be on a partition, and on which one it
// belongs when it may not; that is -1 when any is right.
func (f *Fence) CheckPartition(key []byte, partition int32) (want int32, ok bool) {
	want = int32(f.opts.Partitioner.Partition(key, f.opts.Partitions))
	return want, want < 0 || want == partition
}

// Finding is something about the set-up of the server that a person should know.
type Finding = redisconn.Finding

// Check looks at how the server is set up: version, eviction, persistence,
// replicas, cluster, clock. Open does it as well, and how strict that is says
// the parameter check of the URL.
func (f *Fence) Check(ctx context.Context) ([]Finding, error) {
	if f.closed.Load() {
		return nil, ErrClosed
	}
	return f.s.Check(ctx)
}

// String names the server and the topic, without secrets.
func (f *Fence) String() string {
	return "fence of topic " + f.opts.Topic + " in " + f.s.Options().String()
}

// Close ends the connections. Calls that are under way fail with ErrClosed.
// What is stored stays. Closing again has no effect.
func (f *Fence) Close() {
	if !f.closed.Swap(true) {
		f.s.Close()
		f.scope.Close()
	}
}
