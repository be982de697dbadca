package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/rueidis"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/state"
)

// maxReadKeys is how many keys one script reads, and one command of a script
// that has to read more.
const maxReadKeys = 500

// maxTornReads is how often a read of several scripts may find that the view
// changed between them, before it is made by one large one.
const maxTornReads = 3

// read reads values with their token, which is compared when expect is not
// nil. Nothing is visited before all has been read under one token.
func (b *Backend) read(ctx context.Context, t *target, expect *state.Token, keys [][]byte, visit func(int, []byte)) (state.Token, error) {
	token, _, err := b.locate(ctx, t, expect, keys, visit)
	return token, err
}

// locate is read that also says where the data are under that token. What the
// target knows may be older again by then: others learn at the same time.
func (b *Backend) locate(ctx context.Context, t *target, expect *state.Token, keys [][]byte, visit func(int, []byte)) (state.Token, *layout, error) {
	step := maxReadKeys
	torn := 0
	for range maxLayouts {
		l := t.layout.Load()
		var calls []redisconn.Call
		var orders [][]int
		for from := 0; from < max(len(keys), 1); from += step {
			c, order := readCall(t, l, expect, keys, from, min(from+step, len(keys)))
			calls, orders = append(calls, c), append(orders, order)
		}
		var replies []redisconn.Reply
		for i := 0; i < len(calls); i += maxPipeline {
			rs, err := b.s.Run(ctx, t.br, false, calls[i:min(i+maxPipeline, len(calls))]...)
			if err != nil {
				return "", nil, err
			}
			replies = append(replies, rs...)
		}
		moved, err := t.judgeRead(replies)
		if err != nil {
			return "", nil, err
		}
		if moved {
			continue
		}
		token := replies[0].Str(0)
		if slices.ContainsFunc(replies, func(r redisconn.Reply) bool { return r.Str(0) != token }) {
			if torn++; torn == maxTornReads {
				step = max(len(keys), 1)
			}
			continue
		}
		if token == "" && l.gen != "" {
			return "", nil, fmt.Errorf("%w: key %q has no token", state.ErrCorrupt, t.meta)
		}
		for i := range replies {
			if err := deliver(replies[i].Values[1:], orders[i], visit); err != nil {
				return "", nil, err
			}
		}
		return state.Token(token), l, nil
	}
	return "", nil, t.restless()
}

// judgeRead says whether the data are elsewhere, which the target then knows.
func (t *target) judgeRead(replies []redisconn.Reply) (moved bool, err error) {
	for i := range replies {
		switch r := &replies[i]; r.Status {
		case statusFenced:
			return false, t.fenced(r.Str(0))
		case statusCorrupt:
			return false, corrupt(r.Str(0))
		case statusLayout:
			_, err := t.learn(r.List(0))
			return true, err
		}
	}
	return false, nil
}

// readCall is the call that reads the keys [from, to), and the indices of the
// keys in the order of its reply.
func readCall(t *target, l *layout, expect *state.Token, keys [][]byte, from, to int) (redisconn.Call, []int) {
	n := to - from
	names := make([]string, 1, 3)
	names[0] = t.meta
	args := make([]string, 4, 4+n+8)
	args[2], args[3] = l.gen, l.over
	args[0] = flag(expect != nil)
	if expect != nil {
		args[1] = string(*expect)
	}
	order := make([]int, 0, n)
	if l.gen == "" {
		for i := from; i < to; i++ {
			order = append(order, i)
		}
		return redisconn.Call{Script: readScript, Keys: names, Args: args}, order
	}
	// Group the keys by bucket, in the order of the keys within each.
	buckets := make([]int, n)
	first := make([]int, l.buckets+1)
	for i := range n {
		buckets[i] = l.bucket(keys[from+i])
		first[buckets[i]+1]++
	}
	for i := range l.buckets {
		first[i+1] += first[i]
	}
	order = order[:n]
	at := slices.Clone(first)
	for i, bucket := range buckets {
		order[at[bucket]] = from + i
		at[bucket]++
	}
	for bucket := range l.buckets {
		all := order[first[bucket]:first[bucket+1]]
		if len(all) == 0 {
			continue
		}
		names = append(names, l.base[bucket])
		place, over := len(names), 0
		if l.covered(bucket) {
			names = append(names, l.upper[bucket])
			over = len(names)
		}
		for group := range slices.Chunk(all, maxReadKeys) {
			args = append(args, strconv.Itoa(len(group)+1), strconv.Itoa(place), strconv.Itoa(over), mark)
			for _, i := range group {
				args = append(args, field(keys[i]))
			}
		}
	}
	return redisconn.Call{Script: readScript, Keys: names, Args: args}, order
}

// deliver visits the values of a reply. Keys of a view that does not exist
// have no group and are absent.
func deliver(groups []rueidis.RedisMessage, order []int, visit func(int, []byte)) error {
	at := 0
	for g := range groups {
		values, err := groups[g].ToArray()
		if err != nil {
			return fmt.Errorf("redis: unexpected reply of a read: %w", err)
		}
		if len(values) == 0 || at+len(values)-1 > len(order) {
			return fmt.Errorf("redis: unexpected reply of a read: %d values", len(values))
		}
		for i := 1; i < len(values); i++ {
			if values[i].IsNil() {
				visit(order[at], nil)
			} else {
				s, err := values[i].ToString()
				if err != nil {
					return fmt.Errorf("redis: unexpected reply of a read: %w", err)
				}
				visit(order[at], bytesOf(s))
			}
			at++
		}
	}
	for ; at < len(order); at++ {
		visit(order[at], nil)
	}
	return nil
}

// count counts the entries of a range, without a fence.
func (b *Backend) count(ctx context.Context, t *target, r state.Range) (int64, error) {
	for range maxLayouts {
		l := t.layout.Load()
		c := redisconn.Call{Script: countScript, Keys: append([]string{t.meta}, l.base...), Args: []string{l.gen}}
		if (r.Lower != nil || r.Upper != nil) && l.indexed() && l.mustOrder(r) == nil {
			from, to := bounds(r)
			c.Keys = []string{t.meta, l.index}
			c.Args = append(c.Args, from, to)
		}
		replies, err := b.s.Run(ctx, t.br, false, c)
		if err != nil {
			return 0, err
		}
		if replies[0].Status == statusLayout {
			if _, err := t.learn(replies[0].List(0)); err != nil {
				return 0, err
			}
			continue
		}
		n, err := replies[0].Values[0].AsInt64()
		return max(n, 0), err
	}
	return 0, t.restless()
}

// reader is the state.Reader of a view.
type reader struct {
	b *Backend
	t *target
}

var _ state.Reader = (*reader)(nil)

// Read implements state.Reader.
func (r *reader) Read(ctx context.Context, keys [][]byte, visit func(i int, value []byte)) (state.Token, error) {
	if err := r.b.check(ctx); err != nil {
		return "", err
	}
	token, err := r.b.read(ctx, r.t, nil, keys, visit)
	return token, r.b.wrap("read", r.t.id, err)
}

// Iterate implements state.Reader. Each entry is from some committed state.
func (r *reader) Iterate(ctx context.Context, rg state.Range) state.Iterator {
	if err := r.b.check(ctx); err != nil {
		return state.Empty(err)
	}
	return &iterator{ctx: ctx, b: r.b, t: r.t, r: rg, more: true}
}

// Reader reads the views of an application from outside of it. It is safe for
// concurrent use. What it reads is committed, and whole: it sees all of a
// batch or nothing. A view that is being rebuilt holds a part of its state;
// its token says so (docs/formats/stamp.md).
type Reader struct{ b *Backend }

// OpenReader connects a reader. Of the options it needs the server, user and
// Namespace; it writes nothing, and so Check is not done.
func OpenReader(ctx context.Context, opts Options) (*Reader, error) {
	b, err := open(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &Reader{b}, nil
}

// View reads one view. One that does not exist reads as empty.
func (r *Reader) View(id state.ID) state.Reader { return r.b.Committed(id) }

// Token returns the token of a view, "" when it does not exist.
func (r *Reader) Token(ctx context.Context, id state.ID) (state.Token, error) {
	return r.b.Token(ctx, id)
}

// Key is the key of an entry of a store in a view. Of a store with timestamps
// the value begins with eight bytes that hold one, in ms since 1970, big-endian.
func Key(store string, key []byte) []byte {
	k := make([]byte, 0, 1+len(store)+len(key))
	return append(append(append(k, byte(len(store))), store...), key...)
}

// Close ends the connections. It is idempotent.
func (r *Reader) Close() error { return r.b.Close() }
