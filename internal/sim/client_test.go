package sim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
)

// The second layer: the same topology and the same oracle, with the real client
// against the embedded broker, in a bubble of virtual time. Requests are refused,
// lose their answers, or find their connection gone; processes die and come
// back. There are goroutines in the client and the broker whose order nobody
// decides, so a seed says what is done to them, and not what comes of it.
//
// There is one live member at a time. The client holds a lock while it joins, a
// commit waits for that lock, and the time of a bubble stands still while
// somebody waits for a lock: a join that waits for another member's heartbeat
// would never end.

var clientSeeds = flag.Uint64("sim.client", 24, "how many seeds TestClient plays")

func TestClient(t *testing.T) {
	if *simSeed != 0 {
		synctest.Test(t, func(t *testing.T) { newBubble(t, *simSeed).play() })
		return
	}
	for seed := range *clientSeeds {
		t.Run(fmt.Sprint(*simFirst+seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { newBubble(t, *simFirst+seed).play() })
		})
	}
}

// The same, at least once with a store that keeps the outputs: state once, outputs
// once but for repetitions with the same id.
func TestClientWithOutbox(t *testing.T) {
	play := func(t *testing.T, seed uint64) {
		synctest.Test(t, func(t *testing.T) {
			u := newBubble(t, seed)
			u.w.setup.Outbox, u.w.setup.AtLeastOnce = true, true
			u.store = memstore.NewShared()
			details, err := kadm.NewClient(u.cl).ListTopics(u.ctx, inName)
			if err != nil {
				t.Fatal(err)
			}
			u.inputID = details[inName].ID
			u.play()
		})
	}
	if *simSeed != 0 {
		play(t, *simSeed)
		return
	}
	for seed := range *clientSeeds {
		t.Run(fmt.Sprint(*simFirst+seed), func(t *testing.T) {
			t.Parallel()
			play(t, *simFirst+seed)
		})
	}
}

// The client could not fetch the committed offsets as it joined. It gave the
// partitions up, and said so in a fetch that the worker took for a leftover: the
// tasks ran, and nothing ever came.
func TestOffsetsCannotBeFetchedByTheJoin(t *testing.T) {
	t.Parallel()
	for _, code := range []*kerr.Error{kerr.RequestTimedOut, kerr.UnknownServerError} {
		t.Run(code.Message, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				u := newBubble(t, 1)
				u.start()
				u.send()
				time.Sleep(time.Second)
				u.stop()
				in, err := u.b.Fault(embedded.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Code: code.Code, Count: int(u.w.setup.Partitions) * 2})
				if err != nil {
					t.Fatal(err)
				}
				u.start()
				u.send()
				u.finish()
				if in.Hits() == 0 {
					t.Error("no offsets were fetched")
				}
			})
		})
	}
}

// The connection broke under a heartbeat while the offsets of a transaction were
// on their way. The client's group ended its session and waited for the worker to
// allow a rebalance, the end of the transaction waited for another heartbeat, and
// the question whether the member was still known kept it so, for ever.
func TestAHeartbeatFailsUnderACommit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newBubble(t, 1)
		u.start()
		u.send()
		time.Sleep(2 * time.Second)
		u.mu.armed = true
		stop, err := u.b.Control(embedded.AnyRequest, func(c *embedded.Call) (kmsg.Response, error, bool) {
			u.mu.Lock()
			defer u.mu.Unlock()
			if !u.mu.armed {
				return nil, nil, false
			}
			switch r := c.Request.(type) {
			case *kmsg.TxnOffsetCommitRequest:
				u.mu.tried = true
				return busy(r, c.Answer().(*kmsg.TxnOffsetCommitResponse)), nil, true
			case *kmsg.HeartbeatRequest:
				if u.mu.tried {
					// The client tries again when a connection breaks, but for a new one.
					u.mu.broken++
					u.mu.armed = u.mu.broken < 2
					return nil, errors.New("connection closed by the simulation"), true
				}
			}
			return nil, nil, false
		})
		if err != nil {
			t.Fatal(err)
		}
		u.send()
		u.finish()
		stop()
		if u.mu.armed {
			t.Error("no heartbeat failed")
		}
	})
}

// The group is gone with its offsets, and the state was in memory: what the
// changelog says of transactions is what the real client says of them.
func TestOffsetsExpiredAndTheMemoryLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newBubble(t, 1)
		u.store = nil
		u.start()
		u.send()
		time.Sleep(time.Second)
		u.stop()
		req := kmsg.NewPtrDeleteGroupsRequest()
		req.Groups = []string{application}
		resp, err := req.RequestWith(u.ctx, u.cl)
		if err != nil || len(resp.Groups) != 1 || resp.Groups[0].ErrorCode != 0 {
			t.Fatalf("delete the group: %v, %+v", err, resp)
		}
		u.start()
		if err := <-u.life.done; !errors.Is(err, weir.ErrStateMismatch) {
			t.Errorf("the application ended with %v, want ErrStateMismatch", err)
		}
		u.life = nil
		u.end()
	})
}

// busy makes a client try again.
func busy(req *kmsg.TxnOffsetCommitRequest, resp *kmsg.TxnOffsetCommitResponse) *kmsg.TxnOffsetCommitResponse {
	for _, t := range req.Topics {
		rt := kmsg.NewTxnOffsetCommitResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			rp := kmsg.NewTxnOffsetCommitResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p.Partition, kerr.CoordinatorLoadInProgress.Code
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// Bounds of a bubble, in its time.
const (
	bubbleLimit    = time.Hour
	bubbleProgress = 5 * time.Minute // after the last fault
)

type bubble struct {
	t     *testing.T
	ctx   context.Context
	rng   *rand.Rand
	shop  *workload
	w     *World // only its oracle
	b     *embedded.Broker
	cl    *kgo.Client
	read  *kgo.Client
	store state.Backend // that survives a process, or nil
	dir   string
	life  *life
	sent  int
	did   []string

	inputID [16]byte
	log     logBuffer

	mu struct {
		sync.Mutex
		rng    *rand.Rand
		chance float64 // of a fault, by request
		done   map[string]int

		armed, tried bool // of TestAHeartbeatFailsUnderACommit
		broken       int
	}
}

// life is one process.
type life struct {
	app  *weir.App
	done chan error
	dead atomic.Bool
	mu   struct {
		sync.Mutex
		conns []net.Conn
	}
}

func newBubble(t *testing.T, seed uint64) *bubble {
	t.Helper()
	u := &bubble{t: t, rng: rand.New(rand.NewPCG(seed, 11)), dir: t.TempDir()}
	ctx, cancel := context.WithTimeout(context.Background(), bubbleLimit)
	t.Cleanup(cancel)
	u.ctx = ctx
	u.mu.rng, u.mu.done = rand.New(rand.NewPCG(seed, 12)), map[string]int{}
	parts := 1 + int32(u.rng.IntN(2))
	u.w = &World{setup: Setup{Partitions: parts}}
	u.w.oracle = newOracle(u.w)
	var err error
	if u.shop, err = newWorkload(); err != nil {
		t.Fatal(err)
	}
	u.shop.timers, u.shop.spend = u.rng.IntN(3) == 0, func() {}
	u.b, err = embedded.Open(embedded.Options{Topics: []embedded.Topic{{Name: inName, Partitions: parts}, {Name: outName, Partitions: parts}}})
	if err != nil {
		t.Fatal(err)
	}
	u.cl = u.client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableIdempotentWrite())
	u.read = u.client(kgo.ConsumeTopics(outName), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if u.rng.IntN(2) == 0 {
		u.store = memstore.New()
	}
	return u
}

func (u *bubble) client(opts ...kgo.Opt) *kgo.Client {
	u.t.Helper()
	cl, err := kgo.NewClient(append(u.b.ClientOptions(), opts...)...)
	if err != nil {
		u.t.Fatal(err)
	}
	return cl
}

func (u *bubble) note(format string, args ...any) {
	u.did = append(u.did, fmt.Sprintf("%s "+format, append([]any{time.Now().Format("15:04:05.000")}, args...)...))
}

// dial makes connections that die with the process.
func (l *life) dial(dial func(context.Context, string, string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if l.dead.Load() {
			return nil, net.ErrClosed
		}
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.mu.conns = append(l.mu.conns, c)
		return c, nil
	}
}

// kill cuts the process off, and then ends it.
func (u *bubble) kill() {
	l := u.life
	if l == nil {
		return
	}
	u.note("kill")
	u.life = nil
	l.dead.Store(true)
	l.mu.Lock()
	for _, c := range l.mu.conns {
		_ = c.Close()
	}
	l.mu.Unlock()
	_ = l.app.Close()
	<-l.done
}

func (u *bubble) stop() {
	l := u.life
	if l == nil {
		return
	}
	u.note("stop")
	u.life = nil
	_ = l.app.Close() // faults may keep it from committing
	<-l.done
}

func (u *bubble) start() {
	u.t.Helper()
	if u.life != nil {
		return
	}
	u.note("start")
	store := u.store
	if store == nil {
		store = memstore.New()
	}
	l := &life{done: make(chan error, 1)}
	opts := u.b.ClientOptions()
	probe := u.client() // knows the broker's way to dial
	dial := probe.OptValue(kgo.Dialer).(func(context.Context, string, string) (net.Conn, error))
	probe.Close()
	cfg := weir.Config{ApplicationID: application, ClientOptions: append(opts, kgo.Dialer(l.dial(dial))), Dir: u.dir, Store: store, Workers: 1,
		CommitInterval: ms(30), FlushInterval: pickFrom(u.rng, ms(1), ms(200)), SessionTimeout: 3 * time.Second, RebalanceTimeout: 6 * time.Second,
		TransactionTimeout: 5 * time.Second, PurgeInterval: time.Second, MaxStateMemory: 16 << 20, Logger: slog.New(slog.NewTextHandler(&u.log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if u.w.setup.Outbox {
		cfg.Guarantee = weir.AtLeastOnce
	}
	var err error
	if l.app, err = weir.NewApp(u.shop.topology, cfg); err != nil {
		u.t.Fatal(err)
	}
	go func() { l.done <- l.app.Run(u.ctx) }()
	u.life = l
}

func pickFrom[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// spoil decides about a request of the application.
func (u *bubble) spoil(c *embedded.Call) (kmsg.Response, error, bool) { //nolint:revive // as Control wants it
	switch r := c.Request.(type) {
	case *kmsg.ProduceRequest:
		if !u.ofApplication(r) {
			return nil, nil, false
		}
	case *kmsg.AddPartitionsToTxnRequest, *kmsg.AddOffsetsToTxnRequest, *kmsg.TxnOffsetCommitRequest, *kmsg.EndTxnRequest,
		*kmsg.OffsetFetchRequest, *kmsg.HeartbeatRequest, *kmsg.InitProducerIDRequest, *kmsg.OffsetCommitRequest:
	default:
		return nil, nil, false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.mu.rng.Float64() >= u.mu.chance {
		return nil, nil, false
	}
	u.mu.done[kmsg.NameForKey(c.Request.Key())+": connection closed"]++
	return nil, errors.New("connection closed by the simulation"), true
}

// codes are what the broker may answer with.
var codes = map[kmsg.Key][]*kerr.Error{
	kmsg.Produce:            {kerr.RequestTimedOut, kerr.NotLeaderForPartition, kerr.InvalidTxnState, kerr.InvalidProducerEpoch},
	kmsg.AddPartitionsToTxn: {kerr.ConcurrentTransactions, kerr.CoordinatorLoadInProgress, kerr.ProducerFenced, kerr.RequestTimedOut},
	kmsg.AddOffsetsToTxn:    {kerr.ConcurrentTransactions, kerr.CoordinatorNotAvailable, kerr.ProducerFenced, kerr.RequestTimedOut},
	kmsg.TxnOffsetCommit:    {kerr.CoordinatorLoadInProgress, kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.RequestTimedOut},
	kmsg.EndTxn:             {kerr.CoordinatorNotAvailable, kerr.ConcurrentTransactions, kerr.ProducerFenced, kerr.UnknownServerError, kerr.RequestTimedOut},
	kmsg.OffsetFetch:        {kerr.UnstableOffsetCommit, kerr.CoordinatorLoadInProgress, kerr.RequestTimedOut},
	kmsg.Heartbeat:          {kerr.RebalanceInProgress, kerr.UnknownMemberID, kerr.IllegalGeneration},
	kmsg.InitProducerID:     {kerr.ConcurrentTransactions, kerr.CoordinatorNotAvailable},
}

// outboxCodes are those of an application without transactions.
var outboxCodes = map[kmsg.Key][]*kerr.Error{
	kmsg.Produce:        {kerr.RequestTimedOut, kerr.NotLeaderForPartition, kerr.InvalidProducerEpoch, kerr.UnknownServerError},
	kmsg.OffsetCommit:   {kerr.CoordinatorLoadInProgress, kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.RebalanceInProgress, kerr.RequestTimedOut},
	kmsg.OffsetFetch:    {kerr.CoordinatorLoadInProgress, kerr.RequestTimedOut},
	kmsg.Heartbeat:      {kerr.RebalanceInProgress, kerr.UnknownMemberID, kerr.IllegalGeneration},
	kmsg.InitProducerID: {kerr.CoordinatorNotAvailable, kerr.RequestTimedOut},
}

// ofApplication says whether records are the application's, and not the input.
func (u *bubble) ofApplication(r *kmsg.ProduceRequest) bool {
	if !u.w.setup.Outbox {
		return r.TransactionID != nil
	}
	return len(r.Topics) > 0 && r.Topics[0].TopicID != u.inputID && r.Topics[0].Topic != inName
}

// arm puts a fault in place for one of the next requests of a kind.
func (u *bubble) arm() {
	u.t.Helper()
	keys, answers := []kmsg.Key{kmsg.Produce, kmsg.AddPartitionsToTxn, kmsg.AddOffsetsToTxn, kmsg.TxnOffsetCommit, kmsg.EndTxn, kmsg.OffsetFetch, kmsg.Heartbeat, kmsg.InitProducerID}, codes
	if u.w.setup.Outbox {
		keys, answers = []kmsg.Key{kmsg.Produce, kmsg.OffsetCommit, kmsg.OffsetFetch, kmsg.Heartbeat, kmsg.InitProducerID}, outboxCodes
	}
	key := pickFrom(u.rng, keys...)
	code := pickFrom(u.rng, answers[key]...)
	var skip atomic.Int64
	skip.Store(int64(u.rng.IntN(3)))
	f := embedded.Fault{Keys: []kmsg.Key{key}, Code: code.Code, Count: 1 + u.rng.IntN(2), When: func(r kmsg.Request) bool {
		if p, ok := r.(*kmsg.ProduceRequest); ok && !u.ofApplication(p) {
			return false
		}
		return skip.Add(-1) < 0
	}}
	if _, err := u.b.Fault(f); err != nil {
		u.t.Fatal(err)
	}
	u.note("%s answers %s", kmsg.NameForKey(int16(key)), code.Message)
}

func (u *bubble) send() {
	u.t.Helper()
	var records []*kgo.Record
	for range 1 + u.rng.IntN(8) {
		u.sent++
		key := u.rng.IntN(4)
		value := fmt.Sprintf("k%d.%d%c", key, u.sent, pickFrom(u.rng, opPut, opPut, opPut, opSilent, opMany, opDelete))
		u.w.oracle.sent(keyOf(value), value)
		records = append(records, &kgo.Record{Topic: inName, Partition: int32(key) % u.w.setup.Partitions, Key: []byte("u"), Value: []byte(value)})
	}
	if err := u.cl.ProduceSync(u.ctx, records...).FirstErr(); err != nil {
		u.t.Fatalf("send: %v", err)
	}
	u.note("%d records sent", u.sent)
}

// outputs checks what has come.
func (u *bubble) outputs(wait time.Duration) {
	ctx, cancel := context.WithTimeout(u.ctx, wait)
	defer cancel()
	u.read.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
		if u.w.setup.Outbox {
			var headers []task.Header
			for _, h := range r.Headers {
				headers = append(headers, task.Header(h))
			}
			if !u.w.oracle.fresh(outName, r.Partition, r.Key, r.Value, headers) {
				return
			}
		}
		u.w.oracle.output(r.Partition, r.Offset, string(r.Key), string(r.Value))
	})
}

func (u *bubble) play() {
	stop, err := u.b.Control(embedded.AnyRequest, u.spoil)
	if err != nil {
		u.t.Fatal(err)
	}
	u.start()
	for range 6 + u.rng.IntN(8) {
		switch u.rng.IntN(10) {
		case 0:
			u.kill()
		case 1:
			u.stop()
		case 2, 3, 4:
			u.arm()
		case 5:
			u.mu.Lock()
			u.mu.chance = pickFrom(u.rng, 0, 0.02, 0.1)
			u.note("%.0f %% of the requests lose their connection", 100*u.mu.chance)
			u.mu.Unlock()
		}
		u.send()
		time.Sleep(ms(20 + u.rng.IntN(1500)))
		if u.rng.IntN(3) > 0 {
			u.start()
		}
		u.outputs(ms(1))
	}
	stop()
	u.note("the faults end")
	u.start()
	u.finish()
}

// finish waits until everything is processed, and ends the bubble.
func (u *bubble) finish() {
	for begin := time.Now(); u.w.err == nil && !u.finished(); {
		if time.Since(begin) > bubbleProgress {
			u.w.violate("no progress: %v after the last fault some outputs are missing: %s", bubbleProgress, u.w.oracle.missing())
			break
		}
		select {
		case err := <-u.life.done:
			u.life = nil
			u.note("the application has ended: %v", err)
			u.start()
		default:
		}
		u.outputs(time.Second)
	}
	u.outputs(2 * time.Second)
	u.stop()
	u.end()
}

// end ends the bubble and says how it went.
func (u *bubble) end() {
	u.cl.Close()
	u.read.Close()
	if err := u.b.Close(); err != nil {
		u.t.Error(err)
	}
	u.t.Logf("%d records, %d outputs, %d things done, connections closed: %v", u.sent, u.w.oracle.outputs, len(u.did), u.mu.done)
	if u.w.err != nil {
		u.t.Errorf("%v\n%s\nthe last lines of the log:\n%s", u.w.err, strings.Join(u.did, "\n"), u.log.last(logLines))
	}
}

// logLines is how many lines of the log a failure shows.
const logLines = 60

// logBuffer keeps what is logged.
type logBuffer struct {
	mu struct {
		sync.Mutex
		lines []string
	}
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.lines = append(l.mu.lines, strings.TrimSuffix(string(p), "\n"))
	if n := len(l.mu.lines); n > 20*logLines {
		l.mu.lines = append(l.mu.lines[:0], l.mu.lines[n-10*logLines:]...)
	}
	return len(p), nil
}

func (l *logBuffer) last(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.mu.lines[max(len(l.mu.lines)-n, 0):], "\n")
}

// finished says whether all records have their outputs.
func (u *bubble) finished() bool {
	for _, c := range u.w.oracle.keys {
		for _, v := range c.sent[c.next:] {
			if !silent(v) {
				return false
			}
		}
	}
	return true
}
