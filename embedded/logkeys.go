package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"
)

// Keys of log attributes.
const (
	keyAddress     = "address"
	keyRemote      = "remote"
	keyError       = "error"
	keyDetail      = "detail"
	keyDir         = "dir"
	keyIncarnation = "incarnation"
	keyTopic       = "topic"
	keyPartition   = "partition"
	keyCount       = "count"
	keyBytes       = "bytes"
	keyFile        = "file"
	keyOffset      = "offset"
)

// storageTrouble are the starts of the messages with which kfake reports that
// it could not write the folder, or that what it read there is damaged. It goes
// on after each of them: a commit whose marker was not written is still
// acknowledged, a compaction that could not write its result has already
// removed its input, and damage is cut away. TestStorageTroubleIsComplete keeps
// the list in step with the source.
var storageTrouble = []string{
	"persist ",
	"rebuildSegments ",
	"compact ",
	"endTx: failed to persist ",
	"save session state",
	"delete topic ",
	"partition ",
	"pids.log: ",
	"groups.log: ",
}

// clusterLog passes kfake's log on, one level lower, because it speaks of
// single requests, and picks out the failures of the folder.
type clusterLog struct {
	log     *slog.Logger
	trouble func(error)
}

var _ kfake.Logger = (*clusterLog)(nil)

// Logf implements kfake.Logger.
func (l *clusterLog) Logf(level kfake.LogLevel, format string, args ...any) {
	for _, start := range storageTrouble {
		if level <= kfake.LogLevelWarn && strings.HasPrefix(format, start) {
			l.trouble(fmt.Errorf("%w: %s", ErrStorage, fmt.Sprintf(format, args...)))
			return
		}
	}
	to := slog.LevelDebug
	switch level {
	case kfake.LogLevelError:
		to = slog.LevelWarn
	case kfake.LogLevelWarn:
		to = slog.LevelInfo
	}
	if ctx := context.Background(); l.log.Enabled(ctx, to) {
		l.log.Log(ctx, to, "cluster", keyDetail, fmt.Sprintf(format, args...))
	}
}
