package redisstore

import (
	"context"
	"fmt"

	"github.com/weirstreams/weir/internal/redisconn"
)

// CheckMode says what Open does about what the start-up check finds.
type CheckMode = redisconn.CheckMode

// The modes. Whatever is not refused is logged as a warning.
const (
	// CheckRefuse refuses a server that cannot work, or that loses state
	// without a failure: findings with Danger set.
	CheckRefuse = redisconn.CheckRefuse
	// CheckStrict refuses any finding.
	CheckStrict = redisconn.CheckStrict
	// CheckWarn refuses nothing.
	CheckWarn = redisconn.CheckWarn
	// CheckOff does not look.
	CheckOff = redisconn.CheckOff
)

// Finding is something about the set-up of a server that a person should know.
type Finding = redisconn.Finding

// Check looks at how the server is set up. No finding means that it is fine.
// The error is about the check itself.
//
//	subject      dangerous                         a warning
//	-----------  --------------------------------  ------------------------------
//	version      below 6.2                         unknown
//	role         a replica
//	eviction     maxmemory with allkeys-*          allkeys-* without maxmemory,
//	                                               volatile-*
//	persistence                                    no append-only file, or one
//	                                               that is never synced, or whose
//	                                               last write failed
//	replicas                                       fewer online, as the primary
//	                                               sees it, than WaitReplicas
//	cluster      down, or slots without a node     a node cannot be asked
//	clock                                          5 s off this machine's
//	rights                                         CONFIG or INFO are refused, so
//	                                               that something is not known
func (b *Backend) Check(ctx context.Context) ([]Finding, error) {
	if err := b.check(ctx); err != nil {
		return nil, err
	}
	found, err := b.s.Check(ctx)
	if err != nil {
		return nil, fmt.Errorf("redis store: %w", err)
	}
	return found, nil
}
