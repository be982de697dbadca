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

// ErrLeaseHeld says that somebody else holds the lease.
var ErrLeaseHeld = errors.New("fence: somebody else holds the lease")

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
	if err := l.call(ctx, ttl); err != nil {
		return nil, f.fail("lease", partition, err)
	}
	return l, nil
}

// Renew prolongs the lease to its full time from now. Call it after a third of
// the time. ErrLeaseHeld says that the lease was lost: drop the partition, as
// after ErrFenced.
func (l *Lease) Renew(ctx context.Context) error {
	return l.f.fail("renew the lease of", l.part, l.call(ctx, l.ttl))
}

// Release gives the lease up, so that somebody else need not wait for its end.
func (l *Lease) Release(ctx context.Context) error {
	return l.f.fail("release the lease of", l.part, l.call(ctx, 0))
}

func (l *Lease) call(ctx context.Context, ttl time.Duration) error {
	replies, err := l.f.run(ctx, l.key, false, redisconn.Call{Script: leaseScript, Keys: []string{l.key},
		Args: []string{l.holder, strconv.FormatInt(ttl.Milliseconds(), 10)}})
	if err != nil {
		return err
	}
	if replies[0].Status == statusFenced {
		return ErrLeaseHeld
	}
	return nil
}
