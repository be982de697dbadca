// Package redisstore keeps views in Redis 6.2 or later (standalone, behind
// sentinels, or a cluster), or in a server that speaks its protocol and runs
// its scripts.
//
// A view is a handful of keys under one hash tag: a meta key, which holds the
// token and leads to the rest, some hashes with the data, and a sorted set that
// keeps the keys in order for stores that are asked for ranges. Data and token
// change in one script, which compares the token first, or in one transaction,
// which cannot succeed when the token is another; values are read in one script
// that returns the token as well. What a failover of Redis forgets, it
// forgets of data and token alike, so the runtime sees it and replays the tail
// of the changelog. A view that somebody damaged by hand is found out by marks
// and rebuilt.
//
// A batch of more than 500 keys or 256 KiB would stop the server for too long.
// It is staged beside the data in several scripts, becomes part of the view by
// one small one, and is moved into its place in several again; readers see
// either all or nothing of it, and a crash at any point leaves one of the two.
//
// Under at least once the runtime keeps no changelog, and each batch of a view
// carries its outputs into a ring beside the data, in the same script: see
// state.Outbox. Redis is the truth then, and what it loses is lost.
//
// docs/formats/redis.md describes the keys, so that other services may read
// them; in Go they use OpenReader.
package redisstore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/state"
)

// Backend keeps views in Redis. Open makes one. It is safe for concurrent use,
// by any number of processes at once.
//
// An error that matches state.ErrUnavailable says that the server could not be
// asked; while it stays away calls fail at once. A call that got one may be
// made again with the same arguments, whatever became of the first: Apply,
// Clear and Checkpoint recognise what has been done. Claim does not, and is
// refused then; its caller reads the token and claims again.
type Backend struct {
	opts   Options // without secrets
	s      *redisconn.Server
	closed atomic.Bool

	scripts atomic.Bool // batches go as scripts only

	mu struct {
		sync.Mutex
		targets   map[state.ID]*target
		unordered map[string][]string // stores by application
	}
}

var (
	_ state.Remote    = (*Backend)(nil)
	_ state.Unordered = (*Backend)(nil)
)

// Open connects to Redis and checks how it is set up (Options.Check). When the
// server is not there the error matches state.ErrUnavailable.
func Open(ctx context.Context, opts Options) (*Backend, error) {
	b, err := open(ctx, opts)
	if err != nil {
		return nil, err
	}
	if err := b.s.Refuse(ctx); err != nil {
		b.Close()
		return nil, fmt.Errorf("redis store: %w", err)
	}
	return b, nil
}

func open(ctx context.Context, opts Options) (*Backend, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	s, err := redisconn.Connect(ctx, opts.conn())
	if err != nil {
		return nil, fmt.Errorf("redis store: %w", err)
	}
	b := &Backend{opts: opts, s: s}
	b.opts.take(s.Options())
	b.scripts.Store(opts.ScriptsOnly)
	b.mu.targets = map[state.ID]*target{}
	b.mu.unordered = map[string][]string{}
	return b, nil
}

// String names the server.
func (b *Backend) String() string { return b.opts.String() }

// target is a view as this process knows it. Where its data are is only a
// guess, which every script compares with the truth.
type target struct {
	id     state.ID
	meta   string // its meta key
	br     *redisconn.Breaker
	layout atomic.Pointer[layout]
	pinned atomic.Pointer[redisconn.Pinned] // of the lane of its latest handle
}

func (b *Backend) target(id state.ID) *target {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.mu.targets[id]
	if t == nil {
		t = &target{id: id, meta: metaKey(b.opts.Namespace, id)}
		t.br = b.s.Breaker(t.meta)
		t.layout.Store(&layout{})
		b.mu.targets[id] = t
	}
	return t
}

// learn takes the layout fields of a reply.
func (t *target) learn(fields []string) (*layout, error) {
	if len(fields) != len(layoutFields) {
		return nil, fmt.Errorf("redis: %d layout fields", len(fields))
	}
	l, err := parseLayout(t.meta, fields)
	if err != nil {
		return nil, err
	}
	t.layout.Store(l)
	return l, nil
}

func (t *target) fenced(token string) error {
	return &state.FencedError{ID: t.id, Stored: state.Token(strings.Clone(token))}
}

// maxLayouts is how often in a row an operation may find the data elsewhere.
const maxLayouts = 100

func (t *target) restless() error {
	return fmt.Errorf("%w: the view was rebuilt %d times during one call", state.ErrUnavailable, maxLayouts)
}

func (b *Backend) wrap(what string, id state.ID, err error) error {
	if err == nil {
		return nil
	}
	if b.closed.Load() && !redisconn.IsContext(err) {
		err = state.ErrClosed
	}
	var fenced *state.FencedError
	if errors.As(err, &fenced) {
		return err // it names the view
	}
	return fmt.Errorf("redis store: %s view %s: %w", what, id, err)
}

func (b *Backend) check(ctx context.Context) error {
	if b.closed.Load() {
		return fmt.Errorf("redis store: %w", state.ErrClosed)
	}
	return ctx.Err()
}

// checkTokens refuses tokens that would break compare-and-swap: an empty one
// means "no view", and new equal to old could not be told from a repetition.
func checkTokens(what string, id state.ID, old, new state.Token) error {
	if new == "" {
		return fmt.Errorf("redis store: %s view %s: the new token is empty", what, id)
	}
	if old == new {
		return fmt.Errorf("redis store: %s view %s: the new token is the old one", what, id)
	}
	return nil
}

// Token implements state.Backend.
func (b *Backend) Token(ctx context.Context, id state.ID) (state.Token, error) {
	if err := b.check(ctx); err != nil {
		return "", err
	}
	t := b.target(id)
	r, err := b.s.Do(ctx, t.br, "HGET", []string{t.meta}, "token")
	if err != nil {
		return "", b.wrap("read the token of", id, err)
	}
	token, _ := r.ToString() // an absent one is empty
	return state.Token(token), nil
}

// KeepUnordered implements state.Unordered. The stores come on top of those of
// Options.PointLookups.
func (b *Backend) KeepUnordered(application string, stores []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.unordered[application] = slices.Clone(stores)
}

// points are the stores without order of an application, for views made from
// now on.
func (b *Backend) points(application string) points {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := append(slices.Clone(b.opts.PointLookups), b.mu.unordered[application]...)
	slices.Sort(list)
	return encodePoints(slices.Compact(list), b.opts.Unordered)
}

// generation is a new, empty generation: its layout and the keys that a script
// gets to make it.
func (b *Backend) generation(t *target) (*layout, []string, error) {
	var id [8]byte
	rand.Read(id[:])
	o := &b.opts
	l, err := newLayout(t.meta, hex.EncodeToString(id[:]), o.Buckets, b.points(t.id.Application))
	if err != nil {
		return nil, nil, err
	}
	keys := []string{t.meta}
	if l.indexed() {
		keys = append(keys, l.index)
	}
	return l, append(keys, l.base...), nil
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// Claim implements state.Backend.
func (b *Backend) Claim(ctx context.Context, id state.ID, old, new state.Token) (state.View, error) {
	if err := checkTokens("claim", id, old, new); err != nil {
		return nil, err
	}
	if err := b.check(ctx); err != nil {
		return nil, err
	}
	t := b.target(id)
	if err := b.claim(ctx, t, old, new); err != nil {
		return nil, b.wrap("claim", id, err)
	}
	if former := t.pinned.Swap(nil); former != nil {
		former.Release() // of a handle that is refused from now on
	}
	h := &handle{b: b, t: t}
	h.lane.h = h
	return h, nil
}

func (b *Backend) claim(ctx context.Context, t *target, old, new state.Token) error {
	l, keys, err := b.generation(t)
	if err != nil {
		return err
	}
	if old != "" {
		keys = keys[:1]
	}
	replies, err := b.s.Run(ctx, t.br, true, redisconn.Call{Script: claimScript, Keys: keys,
		Args: []string{string(old), string(new), l.gen, strconv.Itoa(l.buckets), string(l.points), flag(l.indexed()), formatVersion}})
	if err != nil {
		return err
	}
	r := &replies[0]
	if r.Status == statusFenced {
		return t.fenced(r.Str(0))
	}
	got, err := t.learn(r.List(0))
	if err != nil {
		return err
	}
	if got.points != l.points || got.buckets != l.buckets {
		b.opts.Logger.Info("the view keeps the layout that it was made with until it is rebuilt", "task", t.id.Task,
			"buckets", got.buckets, "point_lookups", fmt.Sprintf("%q", got.points))
	}
	b.reap(ctx, t, got.trash)
	return nil
}

// Committed implements state.Backend.
func (b *Backend) Committed(id state.ID) state.Reader { return &reader{b, b.target(id)} }

// Drop implements state.Backend.
func (b *Backend) Drop(ctx context.Context, id state.ID) error {
	if err := b.check(ctx); err != nil {
		return err
	}
	return b.wrap("drop", id, b.drop(ctx, b.target(id)))
}

func (b *Backend) drop(ctx context.Context, t *target) error {
	gen := t.layout.Load().gen
	for range maxLayouts {
		replies, err := b.s.Run(ctx, t.br, true, redisconn.Call{Script: dropScript, Keys: []string{t.meta}, Args: []string{gen}})
		if err != nil {
			return err
		}
		if r := &replies[0]; r.Status == statusOK {
			t.layout.Store(&layout{})
			b.reap(ctx, t, r.Str(0))
			return nil
		}
		// The generation alone is looked at, so that a view whose layout
		// cannot be read can be dropped.
		gen = replies[0].Str(0)
	}
	return t.restless()
}

// reapStep is how many keys are removed in one call.
const reapStep = 64

// reap removes the keys of generations that nothing leads to any more. What it
// does not manage is left to the next claim.
func (b *Backend) reap(ctx context.Context, t *target, trash string) {
	if trash == "" {
		return
	}
	if err := b.tryReap(ctx, t, strings.Fields(trash)); err != nil {
		b.opts.Logger.Warn("keys of a former generation are left over; the next claim removes them", "task", t.id.Task, "error", err)
	}
}

func (b *Backend) tryReap(ctx context.Context, t *target, entries []string) error {
	for _, entry := range entries {
		keys, err := trashKeys(t.meta, entry)
		if err != nil {
			return err
		}
		for len(keys) > 0 {
			n := min(reapStep, len(keys))
			if _, err := b.s.Do(ctx, t.br, "UNLINK", keys[:n]); err != nil {
				return err
			}
			keys = keys[n:]
		}
	}
	_, err := b.s.Run(ctx, t.br, false, redisconn.Call{Script: reapedScript, Keys: []string{t.meta}, Args: entries})
	return err
}

// Views implements state.Backend. It yields nothing: Redis is equally near to
// everybody.
func (b *Backend) Views(ctx context.Context, _ string, _ func(state.ID, state.Token) bool) error {
	return b.check(ctx)
}

// Remote implements state.Remote.
func (b *Backend) Remote() bool { return true }

// Close implements state.Backend. Calls that are under way fail.
func (b *Backend) Close() error {
	if !b.closed.Swap(true) {
		b.s.Close()
	}
	return nil
}
