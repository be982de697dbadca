package redisstore

import (
	"testing"

	"github.com/weirstreams/weir/internal/redistest"
)

var commands = redistest.Commands{
	Dirs: []string{".", "../../internal/redisconn"},
	Since: map[string]string{
		"CLUSTER INFO":   "3.0.0",
		"CONFIG GET":     "2.0.0",
		"DEL":            "1.0.0",
		"DISCARD":        "2.0.0",
		"EVAL":           "2.6.0",
		"EVALSHA":        "2.6.0",
		"EXEC":           "1.2.0",
		"HDEL":           "2.0.0", // several fields: 2.4.0
		"HEXISTS":        "2.0.0",
		"HGET":           "2.0.0",
		"HLEN":           "2.0.0",
		"HMGET":          "2.0.0",
		"HSCAN":          "2.8.0",
		"HSET":           "2.0.0", // several fields: 4.0.0
		"INFO":           "1.0.0",
		"MULTI":          "1.2.0",
		"TIME":           "2.6.0",
		"TYPE":           "1.0.0",
		"UNLINK":         "4.0.0",
		"WAIT":           "3.0.0",
		"WATCH":          "2.2.0",
		"ZADD":           "1.2.0",
		"ZLEXCOUNT":      "2.8.9",
		"ZRANGEBYLEX":    "2.8.9",
		"ZREM":           "1.2.0",
		"ZREVRANGEBYLEX": "2.8.9",
		"ZSCORE":         "1.2.0",
	},
	Words: []string{statusOK, statusDup, statusFenced, statusLayout, statusStage, statusLeftover, statusCorrupt, "COUNT", "LIMIT"},
}

func TestCommandsOfRedis62(t *testing.T) {
	t.Parallel()
	commands.Check(t)
}
