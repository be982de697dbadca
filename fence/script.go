package fence

import (
	_ "embed"
	"strings"

	"github.com/weirstreams/weir/internal/redisconn"
)

// formatVersion is that of docs/formats/fence.md.
const formatVersion = "2"

var (
	//go:embed lua/batch.lua
	batchSource string
	//go:embed lua/claim.lua
	claimSource string
	//go:embed lua/meta.lua
	metaSource string
	//go:embed lua/read.lua
	readSource string
	//go:embed lua/rewind.lua
	rewindSource string
	//go:embed lua/layout.lua
	layoutSource string
	//go:embed lua/lease.lua
	leaseSource string

	claimScript  = redisconn.NewScript("claim", claimSource)
	metaScript   = redisconn.NewScript("meta", metaSource)
	readScript   = redisconn.NewScript("read", readSource)
	rewindScript = redisconn.NewScript("rewind", rewindSource)
	layoutScript = redisconn.NewScript("layout", layoutSource)
	leaseScript  = redisconn.NewScript("lease", leaseSource)
)

// reducersMark is where batch.lua takes in the reducers.
const reducersMark = "--REDUCERS--"

// batchScript is the script of Apply with the reducers in it.
func batchScript(reducers string) *redisconn.Script {
	return redisconn.NewScript("batch", strings.Replace(batchSource, reducersMark, reducers, 1))
}

// Statuses of the scripts' replies.
const (
	statusOK        = "OK"
	statusFenced    = "FENCED"    // with the owner, and with the position
	statusRegressed = "REGRESSED" // the same
	statusBad       = "BAD"       // with pairs of index and reason
	statusConflict  = "CONFLICT"  // with the indices of keys
	statusFull      = "FULL"      // with the number of records in the window
	statusCorrupt   = "CORRUPT"   // with the key
)
