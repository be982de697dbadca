package redisstore

import (
	_ "embed"

	"github.com/weirstreams/weir/internal/redisconn"
)

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
	//go:embed lua/segments.lua
	segmentsSource string

	claimScript  = redisconn.NewScript("claim", claimSource)
	clearScript  = redisconn.NewScript("clear", clearSource)
	dropScript   = redisconn.NewScript("drop", dropSource)
	reapedScript = redisconn.NewScript("reaped", reapedSource)
	applyScript  = redisconn.NewScript("apply", applySource)
	beginScript  = redisconn.NewScript("begin", beginSource)
	stageScript  = redisconn.NewScript("stage", stageSource)
	flipScript   = redisconn.NewScript("flip", flipSource)
	moveScript   = redisconn.NewScript("move", moveSource)
	movedScript  = redisconn.NewScript("moved", movedSource)
	readScript   = redisconn.NewScript("read", readSource)
	pageScript   = redisconn.NewScript("page", pageSource)
	countScript  = redisconn.NewScript("count", countSource)

	segmentsScript = redisconn.NewScript("segments", segmentsSource)

	// What a round trip without a script is to the hooks.
	watchCall = &redisconn.Script{Name: "watch"}
	execCall  = &redisconn.Script{Name: "exec"}
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
