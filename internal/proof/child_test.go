package proof

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/bridge"
	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
	"github.com/weirstreams/weir/state/redisstore"
)

// The environment of a child: the test binary runs the hash-chain application
// instead of tests when childEnv is set to a childConfig in JSON.
const childEnv = "WEIR_PROOF_CHILD"

// childConfig says what a child runs.
type childConfig struct {
	Names     chainNames
	Brokers   []string
	Dir       string
	Memory    bool   // keep the state in memory, not on disk
	Redis     string // URL of a Redis that keeps the state
	AtLeast   bool   // AtLeastOnce
	Workers   int
	Point     string // where to act, "" nowhere
	Nth       int64  // at which passage of that point
	Stop      bool   // stop (SIGSTOP) instead of kill (SIGKILL)
	FlushMS   int64
	Patient   bool // sessions and rebalances last patience
	Verbosely bool
}

// The points between those that the worker names: the answer to the offsets of
// the transaction is here and its end not requested; the end is requested and
// not answered; it is answered and nobody has looked at it.
//
// Without transactions: outputs are sent and not answered; they are answered and
// nobody has looked; and the same of the offsets.
const (
	pointOffsetsAdded    = "offsets added"
	pointEndSent         = "end sent"
	pointEndAnswered     = "end answered"
	pointProduced        = "produced"
	pointAnswered        = "answered"
	pointOffsetsSent     = "commit sent"
	pointOffsetsAnswered = "commit answered"
)

// What a child writes to its standard output, one line each.
const (
	saysState  = "state "
	saysStop   = "stopping"
	saysFailed = "failed "
)

// sharedTimeouts are short, so that a dead member is found dead soon.
func shortTimeouts(c *weir.Config) {
	c.SessionTimeout, c.HeartbeatInterval = time.Second, 200*time.Millisecond
	c.RebalanceTimeout, c.TransactionTimeout = 3*time.Second, 3*time.Second
	c.StartTimeout = 30 * time.Second
}

// patience is for a child that must not lose its place in the group, however slow
// the machine is.
const patience = 10 * time.Second

// executioner ends or stops the process at the nth passage of a point.
type executioner struct {
	point string
	nth   int64
	stop  bool
	seen  atomic.Int64
}

var (
	_ kgo.HookBrokerWrite = (*executioner)(nil)
	_ kgo.HookBrokerRead  = (*executioner)(nil)
)

func (e *executioner) pass(point string) {
	if e.point != point || e.seen.Add(1) != e.nth {
		return
	}
	if e.stop {
		fmt.Println(saysStop)
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way
}

func (e *executioner) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if err != nil {
		return
	}
	switch kmsg.Key(key) {
	case kmsg.EndTxn:
		e.pass(pointEndSent)
	case kmsg.Produce:
		e.pass(pointProduced)
	case kmsg.OffsetCommit:
		e.pass(pointOffsetsSent)
	}
}

func (e *executioner) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if err != nil {
		return
	}
	switch kmsg.Key(key) {
	case kmsg.TxnOffsetCommit:
		e.pass(pointOffsetsAdded)
	case kmsg.EndTxn:
		e.pass(pointEndAnswered)
	case kmsg.Produce:
		e.pass(pointAnswered)
	case kmsg.OffsetCommit:
		e.pass(pointOffsetsAnswered)
	}
}

// childMain is the program of a child. It runs until SIGTERM.
func childMain(config string) int {
	var c childConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		fmt.Println(saysFailed + err.Error())
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := c.run(ctx); err != nil {
		fmt.Println(saysFailed + strings.ReplaceAll(err.Error(), "\n", "; "))
		return 1
	}
	return 0
}

func (c *childConfig) run(ctx context.Context) error {
	ex := &executioner{point: c.Point, nth: c.Nth, stop: c.Stop}
	bridge.CrashPoint(ex.pass)
	config := c.config()
	config.ClientOptions = append(config.ClientOptions, kgo.WithHooks(ex))
	config.OnState = func(s weir.State) { fmt.Println(saysState + s.String()) }
	level := slog.LevelInfo
	if c.Verbosely {
		level = slog.LevelDebug
	}
	config.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	var err error
	switch {
	case c.Memory:
		config.Store = memstore.New()
	case c.Redis != "":
		if config.Store, err = openRedis(ctx, c.Redis); err != nil {
			return err
		}
	}
	ch, err := newChain(c.Names)
	if err != nil {
		return err
	}
	app, err := weir.NewApp(ch.topology, config)
	if err != nil {
		return err
	}
	err = app.Run(ctx)
	if config.Store != nil {
		err = errors.Join(err, config.Store.Close())
	}
	return err
}

// openRedis opens the store in the Redis with a URL, once that is there.
func openRedis(ctx context.Context, url string) (state.Backend, error) {
	opts, err := redisstore.ParseURL(url)
	if err != nil {
		return nil, err
	}
	for {
		store, err := redisstore.Open(ctx, opts)
		if !errors.Is(err, state.ErrUnavailable) {
			return store, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// config is that of the hash-chain application, in a child or not.
func (c *childConfig) config() weir.Config {
	config := weir.Config{
		ApplicationID: c.Names.App, Brokers: c.Brokers, Dir: c.Dir, Workers: c.Workers,
		CommitInterval: 50 * time.Millisecond, FlushInterval: time.Duration(c.FlushMS) * time.Millisecond,
		PurgeInterval:  24 * time.Hour, // the repartition topic is read afterwards
		MaxStateMemory: 32 << 20, DeadLetterTopic: c.Names.Dead,
		OnError: func(*weir.TaskError) weir.Decision { return weir.DeadLetter },
	}
	if c.AtLeast {
		config.Guarantee = weir.AtLeastOnce
	}
	shortTimeouts(&config)
	if c.Patient {
		config.SessionTimeout, config.RebalanceTimeout = patience, patience
	}
	return config
}
