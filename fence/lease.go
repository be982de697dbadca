package fence

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/weirstreams/weir/internal/redisconn"
)

var (
	// ErrLeaseHeld says that somebody else holds the lease.
	ErrLeaseHeld = errors.New("fence: somebody else holds the lease")
	// ErrLeaseLost says that a lease ran out before it was prolonged. Drop the
	// partition, as after ErrFenced. It comes with ErrLeaseHeld when somebody else
	// has taken it meanwhile.
	ErrLeaseLost = errors.New("fence: the lease was lost")
)

// Bounds of the time of a lease.
const (
	MinLease = time.Second
	MaxLease = time.Hour
)

// Lease takes the place of the group's assignment where there is no group: who
// holds the lease of a partition may claim it, once. It is no fence by itself,
// because a clock and a pause can betray it; the claim is. It is not safe for
// concurrent use.
type Lease struct {
	f      *Fence
	key    string
	holder string
	ttl    time.Duration
	part   int32
}

// Lease takes the lease of a partition for ttl, from MinLease to MaxLease. While
// somebody else holds it the error is ErrLeaseHeld; try again after some time.
func (f *Fence) Lease(ctx context.Context, partition int32, ttl time.Duration) (*Lease, error) {
	if err := f.checkPartition(partition); err != nil {
		return nil, err
	}
	if ttl < MinLease || ttl > MaxLease {
		return nil, fmt.Errorf("fence: a lease of %v: use %v to %v", ttl, MinLease, MaxLease)
	}
	var id [8]byte
	rand.Read(id[:])
	slot := f.reach(partition)[0]
	l := &Lease{f: f, key: f.partitionKey(slot, "l", partition), holder: hex.EncodeToString(id[:]), ttl: ttl, part: partition}
	if err := l.call(ctx, ttl, false); err != nil {
		return nil, f.fail("lease", partition, err)
	}
	return l, nil
}

// Renew prolongs the lease to its full time from now. Call it after a third of
// the time. ErrLeaseLost says that it had run out: drop the partition, whether
// somebody else has taken it or not, and take a new lease before you claim again.
func (l *Lease) Renew(ctx context.Context) error {
	return l.f.fail("renew the lease of", l.part, l.call(ctx, l.ttl, true))
}

// Release gives the lease up, so that somebody else need not wait for its end. One
// that has run out and that nobody has taken is given up already.
func (l *Lease) Release(ctx context.Context) error {
	return l.f.fail("release the lease of", l.part, l.call(ctx, 0, false))
}

func (l *Lease) call(ctx context.Context, ttl time.Duration, prolong bool) error {
	again := "0"
	if prolong {
		again = "1"
	}
	replies, err := l.f.run(ctx, l.key, false, redisconn.Call{Script: leaseScript, Keys: []string{l.key},
		Args: []string{l.holder, strconv.FormatInt(ttl.Milliseconds(), 10), again}})
	if err != nil {
		return err
	}
	r := &replies[0]
	switch {
	case r.Status != statusFenced:
		return nil
	case !prolong:
		return ErrLeaseHeld
	case r.Str(0) == "":
		return fmt.Errorf("%w: it ran out after %v", ErrLeaseLost, l.ttl)
	default:
		return fmt.Errorf("%w: %w", ErrLeaseLost, ErrLeaseHeld)
	}
}
