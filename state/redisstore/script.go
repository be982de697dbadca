package redisstore

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
)

// script is a Lua script that the server runs in one atomic step. All scripts
// reply with an array that begins with a status.
type script struct {
	name   string
	source string
	sha    string
}

func newScript(name, source string) *script {
	sum := sha1.Sum([]byte(source)) // what EVALSHA calls a script by
	return &script{name, source, hex.EncodeToString(sum[:])}
}

var (
	//go:embed lua/claim.lua
	claimSource string
	//go:embed lua/clear.lua
	clearSource string
	//go:embed lua/drop.lua
	dropSource string
	//go:embed lua/reaped.lua
	reapedSource string
	//go:embed lua/apply.lua
	applySource string
	//go:embed lua/begin.lua
	beginSource string
	//go:embed lua/stage.lua
	stageSource string
	//go:embed lua/flip.lua
	flipSource string
	//go:embed lua/move.lua
	moveSource string
	//go:embed lua/moved.lua
	movedSource string
	//go:embed lua/read.lua
	readSource string
	//go:embed lua/page.lua
	pageSource string
	//go:embed lua/count.lua
	countSource string

	claimScript  = newScript("claim", claimSource)
	clearScript  = newScript("clear", clearSource)
	dropScript   = newScript("drop", dropSource)
	reapedScript = newScript("reaped", reapedSource)
	applyScript  = newScript("apply", applySource)
	beginScript  = newScript("begin", beginSource)
	stageScript  = newScript("stage", stageSource)
	flipScript   = newScript("flip", flipSource)
	moveScript   = newScript("move", moveSource)
	movedScript  = newScript("moved", movedSource)
	readScript   = newScript("read", readSource)
	pageScript   = newScript("page", pageSource)
	countScript  = newScript("count", countSource)
)

// Statuses of the scripts' replies.
const (
	statusOK       = "OK"
	statusDup      = "DUP"      // it was done before
	statusFenced   = "FENCED"   // with the token that is stored
	statusLayout   = "LAYOUT"   // the data are elsewhere: with the layout fields
	statusStage    = "STAGE"    // what was staged is gone or not complete
	statusLeftover = "LEFTOVER" // an earlier stage was given up and not cleaned up
	statusCorrupt  = "CORRUPT"  // with the key that is damaged
)
