package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/state"
)

// A batch may go as a transaction instead of a script, which costs the server
// less: no field and no value becomes a string of Lua's. It goes in one round
// trip, on a connection that belongs to the view, and the same round trip makes
// ready for the next batch:
//
//	HSET bucket ...    HDEL bucket ...    for each bucket
//	HSET meta token new
//	EXEC
//	WAIT               where replicas have to confirm
//	WATCH meta
//	HMGET meta token gen over
//	MULTI
//
// Why EXEC compares and swaps as the script does. WATCH comes before HMGET. When
// HMGET has seen the old token, the generation and no overlay, any change of the
// meta key after that, by whomever, makes EXEC do nothing: a claim, a rebuild, a
// staged batch, a key that is deleted, expires or is evicted, FLUSHALL, a replica
// that is given other data. And whatever takes the connection away takes what it
// watches along: a server that is killed or was replaced has no open transaction
// of ours. So an EXEC that did something met the meta key as HMGET saw it, as the
// script would have. A claim that comes between EXEC and WATCH is seen by HMGET:
// what it saw is not the next batch's old token, and the script refuses that
// batch. EXEC takes effect as a whole for everybody else, in the append-only file
// and for replicas too. It may be late, since the caller has given up on it; a
// repetition by a script, or anything else, has changed the meta key by then, or
// finds the new token.
//
// The reply of MULTI is seen before anything is written behind it. Were it sent
// together with the writes, a server that refuses it (a user that lost the right
// between two batches) would carry them out one by one, unguarded.
//
// What a server refuses, it refuses as a whole: a command that it does not queue,
// and an EXEC that it does not begin (out of memory, read-only, too few replicas,
// a slot that is being moved) leave nothing behind. Within EXEC two errors can
// occur. A key that somebody overwrote (WRONGTYPE) is passed over, and the new
// token stands beside it, where a script would have stopped with the old one. The
// view is corrupt before and after that, and is rebuilt as a whole, so this makes
// no difference as long as it is found: by Apply, which says so, and should its
// process die or the reply be lost just then, by the next read of that bucket,
// which fails as long as the key is of another type or, deleted, lacks its mark.
// And rights that change between a command and its EXEC (NOPERM): Apply says that
// the view is corrupt. Only there, should the reply be lost as well, nobody finds
// out: who takes rights away from a user at work has to rebuild its views.
//
// Everything else goes as a script, which finds out what became of a transaction
// whose reply was lost: batches with keys that are kept in order, because whether
// the index needs a new member is known to a script only; staged ones; and ones
// that carry outputs, whose state nothing could rebuild.

// lane is the way of the batches of one handle as transactions.
type lane struct {
	h    *handle
	pin  *redisconn.Pinned // nil when there is none
	open bool              // MULTI was the last command
	// What the open transaction rests on: token and generation of a view without
	// an overlay. They are empty when it cannot be used.
	token, gen string
	suited     time.Time // when a batch for a transaction was last, zero after another one

	commands []rueidis.Completed
}

// drop gives the connection back. What is open on it ends with it.
func (ln *lane) drop() {
	if ln.pin != nil {
		ln.h.t.pinned.CompareAndSwap(ln.pin, nil)
		ln.pin.Release()
	}
	ln.pin, ln.open, ln.token, ln.gen = nil, false, "", ""
}

// suits says whether the batch that has been collected may go as a transaction.
func (ln *lane) suits() bool {
	w := &ln.h.w
	return !ln.h.b.scripts.Load() && w.stage == "" && !w.c.ordered()
}

// rests says whether the open transaction is one for a batch on top of old, in
// the layout l.
func (ln *lane) rests(l *layout, old state.Token) bool {
	return ln.open && ln.token != "" && ln.token == string(old) && ln.gen == l.gen
}

// apply stores the batch that has been collected, if it can. When it says
// neither that it has stored it nor an error, a script has to.
func (ln *lane) apply(ctx context.Context, l *layout, old, new state.Token) (stored bool, err error) {
	if !ln.suits() {
		ln.suited = time.Time{}
		return false, nil
	}
	now := time.Now()
	if !ln.rests(l, old) && now.Sub(ln.suited) < redisconn.PinnedIdle {
		// One round trip more, and perhaps a connection to be opened. After a
		// batch that went another way, or long ago, it is not made: it would be
		// made again and again.
		if err := ln.arm(ctx); err != nil {
			return false, err
		}
	}
	ln.suited = now
	if !ln.rests(l, old) {
		return false, nil
	}
	stored, err = ln.exec(ctx, l, new)
	if errors.Is(err, redisconn.ErrUnpinned) || errors.Is(err, redisconn.ErrLost) {
		// Nothing was sent, or it is not known what became of it: a script finds
		// the new token then.
		err = nil
	}
	if !ln.open {
		ln.drop()
	}
	return stored, err
}

// watch appends the commands that open a transaction.
func (ln *lane) watch(b rueidis.Builder) {
	meta := ln.h.t.meta
	ln.commands = append(ln.commands, b.Arbitrary("WATCH").Keys(meta).Build(),
		b.Arbitrary("HMGET").Keys(meta).Args("token", "gen", "over").Build(), b.Arbitrary("MULTI").Build())
}

// watched is the number of commands of watch.
const watched = 3

// take takes the replies of watch. Its error is that of the server, for which
// there is no transaction.
func (ln *lane) take(results []rueidis.RedisResult) error {
	ln.open, ln.token, ln.gen = false, "", ""
	ok, err := results[0].ToString()
	fields, err2 := results[1].AsStrSlice()
	ok2, err3 := results[2].ToString()
	if err := cmp.Or(err, err2, err3); err != nil {
		return err
	}
	if ok != "OK" || ok2 != "OK" || len(fields) != 3 {
		return fmt.Errorf("redis: WATCH, HMGET and MULTI reply %q, %d fields, %q", ok, len(fields), ok2)
	}
	ln.open = true
	if fields[2] == "" {
		ln.token, ln.gen = fields[0], fields[1]
	}
	return nil
}

// arm opens a transaction. When it cannot be had it returns nil, and nothing is
// open; an error says that the server is away.
func (ln *lane) arm(ctx context.Context) error {
	h := ln.h
	if ln.pin == nil {
		if ln.pin = h.b.s.Pin(); ln.pin == nil {
			return nil
		}
		if former := h.t.pinned.Swap(ln.pin); former != nil {
			former.Release() // of another handle of the view, which it cannot use any more
		}
	}
	b := h.b.s.Client().B()
	ln.commands = ln.commands[:0]
	if ln.open {
		ln.commands = append(ln.commands, b.Arbitrary("DISCARD").Build())
	}
	ln.watch(b)
	var refused error
	err := ln.pin.Do(ctx, h.t.br, redisconn.Call{Script: watchCall, Keys: []string{h.t.meta}}, ln.commands, func(results []rueidis.RedisResult) error {
		if len(results) > watched && results[0].Error() != nil {
			refused = results[0].Error()
			return nil
		}
		refused = ln.take(results[len(results)-watched:])
		return nil
	})
	switch {
	case errors.Is(err, redisconn.ErrUnpinned), errors.Is(err, redisconn.ErrLost):
		ln.drop()
		return nil
	case err != nil:
		ln.drop()
		return err
	case refused != nil:
		ln.drop()
		h.b.refuse(ctx, refused)
	}
	return nil
}

// refuse notes that the server refused a transaction. Where it would do so again
// none is tried any more.
func (b *Backend) refuse(ctx context.Context, err error) {
	err = b.s.Classify(ctx, err)
	for _, passes := range []error{state.ErrUnavailable, state.ErrCorrupt, state.ErrFull} {
		if errors.Is(err, passes) {
			return
		}
	}
	if !b.scripts.Swap(true) {
		b.opts.Logger.Warn("redis refuses transactions; batches go as scripts, which cost it more", "error", err)
	}
}

// exec sends the batch that has been collected and ends the open transaction.
func (ln *lane) exec(ctx context.Context, l *layout, new state.Token) (stored bool, err error) {
	h := ln.h
	b := h.b.s.Client().B()
	ln.commands = ln.commands[:0]
	for _, i := range h.w.c.used {
		g := &h.w.c.groups[i]
		if len(g.puts) > 0 {
			ln.commands = append(ln.commands, b.Arbitrary("HSET").Keys(l.base[g.bucket]).Args(g.puts...).Build())
		}
		if len(g.dels) > 0 {
			ln.commands = append(ln.commands, b.Arbitrary("HDEL").Keys(l.base[g.bucket]).Args(g.dels...).Build())
		}
	}
	// The token comes last, as in the script.
	ln.commands = append(ln.commands, b.Arbitrary("HSET").Keys(h.t.meta).Args("token", string(new)).Build())
	queued := len(ln.commands)
	ln.commands = append(ln.commands, b.Arbitrary("EXEC").Build())
	confirm, wait := h.b.s.WaitCommand()
	if wait {
		ln.commands = append(ln.commands, confirm)
	}
	ln.watch(b)
	ln.open = false // until the replies say so
	err = ln.pin.Do(ctx, h.t.br, redisconn.Call{Script: execCall, Keys: []string{h.t.meta}}, ln.commands, func(results []rueidis.RedisResult) (err error) {
		if stored, err = h.b.executed(ctx, results[:queued], results[queued]); err != nil {
			return err
		}
		if stored && wait {
			if err := h.b.s.Confirmed(ctx, results[queued+1]); err != nil {
				return err
			}
		}
		_ = ln.take(results[len(results)-watched:]) // the next batch asks why
		return nil
	})
	return stored, err
}

// executed judges the replies of the commands of a transaction and of its EXEC.
// When it says neither that the batch was stored nor an error, nothing was
// changed, and a script finds out why.
func (b *Backend) executed(ctx context.Context, queued []rueidis.RedisResult, exec rueidis.RedisResult) (stored bool, err error) {
	replies, err := exec.ToArray()
	if rueidis.IsRedisNil(err) {
		return false, nil // the meta key has changed
	}
	if err != nil {
		// It was not begun. The first command that was not queued says why, if
		// there is one.
		first := exec
		for _, q := range queued {
			if q.Error() != nil {
				first = q
				break
			}
			if s, _ := q.ToString(); s != "QUEUED" {
				// No server of Redis's make does that; a proxy could.
				b.refuse(ctx, err)
				return false, fmt.Errorf("%w: writes of a transaction were carried out one by one, without a guard: %w", state.ErrCorrupt, b.s.Classify(ctx, err))
			}
		}
		if redirected(first.Error()) {
			return false, nil // the driver follows the redirection of a script
		}
		if err := b.s.Failed(ctx, first); errors.Is(err, state.ErrUnavailable) {
			return false, err // as a script would say
		}
		b.refuse(ctx, first.Error())
		return false, nil
	}
	if len(replies) != len(queued) {
		return false, fmt.Errorf("redis: EXEC of %d commands has %d replies", len(queued), len(replies))
	}
	last := len(replies) - 1
	if err := replies[last].Error(); err != nil {
		return false, b.s.Classify(ctx, err) // as a script that ended half-way
	}
	for i := range replies[:last] {
		if err := replies[i].Error(); err != nil {
			return true, fmt.Errorf("%w: a part of a batch was refused and its token was not: %w", state.ErrCorrupt, b.s.Classify(ctx, err))
		}
	}
	return true, nil
}

// redirected says that the keys are at another node of the cluster.
func redirected(err error) bool {
	e, ok := rueidis.IsRedisErr(err)
	if !ok {
		return false
	}
	_, moved := e.IsMoved()
	_, ask := e.IsAsk()
	return moved || ask
}
