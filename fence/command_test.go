package fence

import (
	"testing"

	"github.com/weirstreams/weir/internal/redistest"
)

var commands = redistest.Commands{
	Dirs: []string{".", "../internal/redisconn"},
	Since: map[string]string{
		"CLUSTER INFO": "3.0.0",
		"CONFIG GET":   "2.0.0",
		"DEL":          "1.0.0",
		"EVAL":         "2.6.0",
		"EVALSHA":      "2.6.0",
		"EXISTS":       "1.0.0",
		"GET":          "1.0.0",
		"GETRANGE":     "2.4.0",
		"HGET":         "2.0.0",
		"HMGET":        "2.0.0",
		"HSET":         "2.0.0", // several fields: 4.0.0
		"INFO":         "1.0.0",
		"LINDEX":       "1.0.0",
		"LLEN":         "1.0.0",
		"LPOS":         "6.0.6",
		"LRANGE":       "1.0.0",
		"LTRIM":        "1.0.0",
		"MGET":         "1.0.0",
		"MSET":         "1.0.1",
		"PERSIST":      "2.2.0",
		"PEXPIRE":      "2.6.0",
		"RPUSH":        "1.0.0", // several elements: 2.4.0
		"SADD":         "1.0.0",
		"SCRIPT":       "2.6.0", // SCRIPT LOAD
		"SET":          "1.0.0", // PX: 2.6.12
		"SISMEMBER":    "1.0.0",
		"SREM":         "1.0.0",
		"SSCAN":        "2.8.0",
		"TIME":         "2.6.0",
		"UNLINK":       "4.0.0",
		"WAIT":         "3.0.0",
	},
	Words: []string{statusOK, statusFenced, statusRegressed, statusBad, statusConflict, statusFull, statusCorrupt, "PX"},
}

func TestCommandsOfRedis62(t *testing.T) {
	t.Parallel()
	commands.Check(t)
}
