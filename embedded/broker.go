package embedded

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

const (
	// MaxBrokers is the largest Options.Brokers.
	MaxBrokers = 16

	// MinSessionTimeout is the shortest session timeout that a group member may
	// ask for. Kafka's default (group.min.session.timeout.ms) is six seconds,
	// which makes every test of a failed member wait that long.
	MinSessionTimeout = 100 * time.Millisecond

	// Sizes of a log segment for topics that do not set segment.bytes. Memory
	// and disk space come back a whole segment at a time, so Kafka's gigabyte
	// would keep all data for ever; a smaller segment costs a file each.
	memorySegmentBytes = 1 << 20
	folderSegmentBytes = 4 << 20

	// never is the interval of kfake's own cleaner, 100 years: it compacts
	// without regard to open transactions, so it must not run.
	never = 100 * 365 * 24 * time.Hour

	// closeTimeout bounds each step of Close that waits for something that a
	// caller's control function can hold up.
	closeTimeout = 5 * time.Second

	// goroutineLabel marks the goroutines of a broker, in profiles too.
	goroutineLabel = "weir_embedded_broker"
)

// Options says what Open starts. The zero value is one broker in memory,
// reached within the process only.
type Options struct {
	// Dir is a folder that the broker keeps its data in, made if it does not
	// exist. Only one broker can have it open. Defaults to "": everything is in
	// memory and gone after Close. See the package comment for what a folder
	// promises and what it does not.
	Dir string

	// Listen is a TCP address, such as "127.0.0.1:9092", for clients of other
	// processes; port 0 takes a free one. Several brokers take consecutive
	// ports. The host must be one that clients can reach, since it is what they
	// are told. There is no authentication, and encryption only with TLS:
	// whoever reaches the port reads and writes everything. Defaults to "": no
	// port.
	Listen string

	// TLS is what the port speaks, with the certificate and, if it sets
	// ClientAuth, a check of those of the clients. Connections of
	// ClientOptions never leave the process and stay as they are. Defaults to
	// nil: plain text.
	TLS *tls.Config

	// Brokers is how many nodes the cluster has, at most MaxBrokers. More than
	// one is of use to tests that move leaders. There is no replication.
	// Defaults to 1.
	Brokers int

	// Topics are created as by CreateTopic before Open returns.
	Topics []Topic

	// CleanupInterval is how often compaction and retention are applied, as by
	// Compact and Retain. Defaults to 0: only when these are called.
	CleanupInterval time.Duration

	// Logger gets warnings and what the cluster does (debug). Defaults to nil:
	// nothing is logged.
	Logger *slog.Logger
}

func (o *Options) check() error {
	switch {
	case o.Brokers < 0 || o.Brokers > MaxBrokers:
		return fmt.Errorf("Brokers is %d: want 1 to %d", o.Brokers, MaxBrokers)
	case o.TLS != nil && o.Listen == "":
		return errors.New("TLS is set without Listen: it is for a port; leave it out, or name the address to listen on")
	case o.CleanupInterval < 0:
		return fmt.Errorf("CleanupInterval is %v: want 0 or more", o.CleanupInterval)
	}
	if o.Brokers == 0 {
		o.Brokers = 1
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	for _, t := range o.Topics {
		if err := t.check(); err != nil {
			return err
		}
	}
	return nil
}

// Broker is a running cluster. All methods may be called from any goroutine.
// A method that is called from within a Control function must not wait for a
// request to be answered: Compact, OpenTransactions and Close would wait for
// the function that calls them. From within Fault.When no method may be called.
type Broker struct {
	log         *slog.Logger
	incarnation string
	cluster     *kfake.Cluster
	net         *network
	folder      *folder // nil in memory

	life     context.Context // ends when Close begins
	end      context.CancelCauseFunc
	wg       sync.WaitGroup // our own goroutines
	compacts chan struct{}  // held by the one Compact that runs

	// use is held for reading by each call and for writing by Close.
	use struct {
		sync.RWMutex
		closed bool
	}
	trouble struct {
		sync.Mutex
		err error
	}
	// names holds each topic name that ever was, and more: the cluster cannot
	// be asked for its topics while it is held still.
	names struct {
		sync.Mutex
		set map[string]bool
	}
	closing struct {
		once sync.Once
		err  error
	}
}

// Open starts a broker. The caller must Close it.
//
// With Options.Dir it first repairs what a killed process left behind: torn
// ends of files are cut off, and transactions that were open are aborted, so
// that read_committed readers neither see nor wait for them.
func Open(opts Options) (*Broker, error) {
	if err := opts.check(); err != nil {
		return nil, fmt.Errorf("open embedded broker: %w", err)
	}
	b := &Broker{
		log:         opts.Logger,
		incarnation: strings.ToLower(rand.Text()),
		compacts:    make(chan struct{}, 1),
	}
	b.names.set = make(map[string]bool)
	b.life, b.end = context.WithCancelCause(context.Background())
	if err := b.open(opts); err != nil {
		b.end(ErrClosed)
		return nil, fmt.Errorf("open embedded broker: %w", err)
	}
	b.log.Info("embedded broker started", keyIncarnation, b.incarnation, keyAddress, b.net.addresses(), keyDir, opts.Dir)
	return b, nil
}

func (b *Broker) open(opts Options) (err error) {
	var left leftovers
	if opts.Dir != "" {
		if b.folder, err = openFolder(opts.Dir, b.log); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				b.folder.unlock()
			}
		}()
		if left, err = b.folder.recover(); err != nil {
			return err
		}
		for _, name := range left.topics {
			b.addName(name)
		}
	}
	if b.net, err = newNetwork(opts.Brokers, opts.Listen, opts.TLS, b.log, b.addName); err != nil {
		return err
	}
	// Clients are let in when everything is in order.
	b.net.setDown(-1, true)
	if err = b.startCluster(opts); err != nil {
		b.net.close()
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.stopCluster())
		}
	}()
	if err = b.settle(left); err != nil {
		return err
	}
	for _, t := range opts.Topics {
		if err = b.createTopic(t); err != nil {
			return err
		}
	}
	b.setDown(-1, false)
	if err = b.failure(); err != nil {
		return err
	}
	if opts.CleanupInterval > 0 {
		b.wg.Go(func() { b.cleanEvery(opts.CleanupInterval) })
	}
	return nil
}

func (b *Broker) startCluster(opts Options) error {
	segment := memorySegmentBytes
	cfg := []kfake.Opt{
		kfake.NumBrokers(opts.Brokers),
		kfake.ListenFn(b.net.listenFunc()),
		kfake.WithLogger(&clusterLog{log: b.log, trouble: b.fail}),
		kfake.ClusterID("weir-embedded"),
		kfake.GroupMinSessionTimeout(MinSessionTimeout),
		kfake.MaxVersions(maxVersions()),
	}
	if b.folder != nil {
		segment = folderSegmentBytes
		cfg = append(cfg, kfake.DataDir(b.folder.data))
	}
	cfg = append(cfg, kfake.BrokerConfigs(map[string]string{
		"log.segment.bytes":      strconv.Itoa(segment),
		"log.cleaner.backoff.ms": strconv.FormatInt(never.Milliseconds(), 10),
		// Kafka deletes after seven days of record time. Data that is older by
		// its own timestamps, such as any published data set, would be gone at
		// the first retention run, so a topic must ask for it.
		"log.retention.ms": "-1",
	}))

	// Goroutines inherit labels, so everything that the cluster starts is
	// marked. A goroutine of its own keeps the caller's labels as they are.
	var err error
	var started sync.WaitGroup
	started.Go(func() {
		pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(goroutineLabel, b.incarnation)))
		b.cluster, err = kfake.NewCluster(cfg...)
	})
	started.Wait()
	return err
}

// maxVersions are the request versions of the newest Kafka release, except for
// produce requests, which name topics (12) rather than topic ids (13): two
// unknown ids in one request, as after two topics were deleted under a
// producer, panic in the cluster.
func maxVersions() *kversion.Versions {
	v := kversion.Stable()
	v.SetMaxKeyVersion(int16(kmsg.Produce), 12)
	return v
}

// settle finishes the recovery of a folder in the running cluster.
func (b *Broker) settle(left leftovers) error {
	if b.folder == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(b.life, closeTimeout)
	defer cancel()
	if err := b.writeAbortMarkers(ctx, left.open); err != nil {
		return err
	}
	for _, name := range left.topics {
		for _, p := range b.cluster.PartitionInfos(name) {
			if p.LastStableOffset != p.HighWatermark {
				return fmt.Errorf("%w: partition %d of topic %q has last stable offset %d after recovery, want its end %d", ErrFolderCorrupt, p.Partition, name, p.LastStableOffset, p.HighWatermark)
			}
		}
	}
	return b.restoreTombstoneRetention(ctx)
}

// Brokers returns the addresses of the brokers, host:port. Unless
// Options.Listen was given they are names that only ClientOptions can dial.
func (b *Broker) Brokers() []string { return b.net.addresses() }

// ClientOptions returns what a client of this process needs to reach the
// broker: seed addresses and a dialer. Connections do not leave the process,
// with Options.Listen neither, and work in a testing/synctest bubble.
//
// A client that meets moved leaders or a broker that was down asks for new
// metadata no more often than kgo.MetadataMinAge, five seconds by default; a
// test sets it lower.
func (b *Broker) ClientOptions() []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(b.net.addresses()...),
		kgo.Dialer(b.net.dial),
	}
}

// Incarnation identifies this start of the broker: it differs at each Open,
// with the same folder too. With a folder, make it part of every transactional
// id. A transaction that was open at the end of the last start has been
// aborted; an id that is used again would continue the producer of that start.
func (b *Broker) Incarnation() string { return b.incarnation }

// NetworkDown cuts all connections and refuses new ones, as a broker that is
// down or unreachable, until it is called with false. Requests that were
// received may still be carried out, unanswered.
func (b *Broker) NetworkDown(down bool) error {
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	b.setDown(-1, down)
	return nil
}

// NodeDown is NetworkDown for one node. Partitions that it leads stay with it
// until MoveLeader, groups and transactions that it coordinates until
// MoveCoordinators.
func (b *Broker) NodeDown(node int32, down bool) error {
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	if node < 0 || !b.setDown(node, down) {
		return fmt.Errorf("no broker has node id %d", node)
	}
	return nil
}

// setDown is that of the network, but does not let clients in again after the
// folder has failed.
func (b *Broker) setDown(node int32, down bool) bool {
	found := b.net.setDown(node, down)
	if !down && b.failure() != nil {
		b.net.setDown(-1, true)
	}
	return found
}

// enter begins a call: it keeps Close waiting and fails when that has begun, or
// when the folder has failed. Calls do not nest.
func (b *Broker) enter() error {
	b.use.RLock()
	err := b.failure()
	if b.use.closed {
		err = ErrClosed
	}
	if err != nil {
		b.use.RUnlock()
	}
	return err
}

func (b *Broker) leave() { b.use.RUnlock() }

// bounded returns a context that also ends when Close begins.
func (b *Broker) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(b.life, func() { cancel(ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// fail records the first failure of the folder and shuts clients out. The
// cluster would go on to acknowledge what it could not write.
func (b *Broker) fail(err error) {
	b.trouble.Lock()
	first := b.trouble.err == nil
	if first {
		b.trouble.err = err
	}
	b.trouble.Unlock()
	if first {
		b.log.Error("embedded broker stopped answering", keyError, err)
		b.net.setDown(-1, true)
	}
}

func (b *Broker) failure() error {
	b.trouble.Lock()
	defer b.trouble.Unlock()
	return b.trouble.err
}

// addName notes a topic name.
func (b *Broker) addName(name string) {
	b.names.Lock()
	defer b.names.Unlock()
	b.names.set[name] = true
}

// topicNames returns every topic that exists, and names that do not any more.
func (b *Broker) topicNames() []string {
	b.names.Lock()
	defer b.names.Unlock()
	return slices.Sorted(maps.Keys(b.names.set))
}

// Close stops the broker: it cuts all connections, aborts the open
// transactions when there is a folder, so that the next start finds none,
// writes the folder, and waits for every goroutine that the broker started.
// It returns an error when the folder could not be written, at any time since
// Open, or when a Control function does not return. It may be called more than
// once; later calls wait for the first and return the same.
func (b *Broker) Close() error {
	b.closing.once.Do(func() {
		b.end(ErrClosed)
		b.wg.Wait()
		b.use.Lock()
		b.use.closed = true
		b.use.Unlock()
		if err := b.stopCluster(); err != nil {
			b.closing.err = fmt.Errorf("close embedded broker: %w", err)
		}
		b.log.Info("embedded broker stopped", keyIncarnation, b.incarnation)
	})
	return b.closing.err
}

// stopCluster undoes open.
func (b *Broker) stopCluster() error {
	b.net.setDown(-1, true)
	var errs []error
	if b.folder != nil && b.failure() == nil {
		// A transaction that cannot be aborted here is aborted by the next
		// start, as after a kill.
		if err := b.abortOpenTransactions(); err != nil {
			b.log.Warn("open transactions are left to the next start", keyError, err)
		}
	}
	b.cluster.Close()
	b.net.close()
	errs = append(errs, b.awaitGoroutines())
	if b.folder != nil {
		errs = append(errs, b.failure(), b.folder.close())
	}
	return errors.Join(errs...)
}

func (b *Broker) abortOpenTransactions() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	open, err := b.openTransactions(ctx)
	for _, t := range open {
		err = errors.Join(err, b.abortTransaction(ctx, t.TransactionalID))
	}
	return err
}

// awaitGoroutines waits until no goroutine of the cluster is left. The cluster
// only tells its goroutines to stop, so they are looked for by their label.
func (b *Broker) awaitGoroutines() error {
	var profile bytes.Buffer
	mark := []byte(strconv.Quote(b.incarnation))
	deadline := time.Now().Add(closeTimeout)
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 50*time.Millisecond) {
		profile.Reset()
		if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
			return fmt.Errorf("list goroutines: %w", err)
		}
		if !bytes.Contains(profile.Bytes(), mark) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("goroutines of the cluster still run after %v: does a Control function wait for something?", closeTimeout)
		}
		time.Sleep(pause)
	}
}
