package redisstore

import (
	"errors"
	"fmt"

	"github.com/weirstreams/weir/state"
)

var (
	// ErrReplicas says that a write was carried out, but that fewer replicas
	// than Options.WaitReplicas confirmed it in time: a failover now may lose
	// it. It comes together with state.ErrUnavailable; the same call again
	// recognises the write and waits anew.
	ErrReplicas = errors.New("redisstore: too few replicas confirmed the write")
	// ErrUnordered says that a range was asked for of keys that are kept
	// without order (Options.PointLookups, Options.Unordered).
	ErrUnordered = errors.New("redisstore: the keys are not kept in order")
	// ErrUnsuitable says that the start-up check refused the server.
	ErrUnsuitable = errors.New("redisstore: the server is not suitable")
)

func corrupt(key string) error {
	return fmt.Errorf("%w: key %q is gone or lacks its mark: it was deleted or overwritten by somebody else", state.ErrCorrupt, key)
}
