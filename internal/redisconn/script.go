package redisconn

import (
	"crypto/sha1"
	"encoding/hex"
)

// Script is a Lua script that the server runs in one atomic step. All scripts
// reply with an array that begins with a status.
type Script struct {
	Name   string
	Source string
	sha    string
}

// NewScript makes a script of a name, which is for logs and tests, and its
// source.
func NewScript(name, source string) *Script {
	sum := sha1.Sum([]byte(source)) // what EVALSHA calls a script by
	return &Script{name, source, hex.EncodeToString(sum[:])}
}
