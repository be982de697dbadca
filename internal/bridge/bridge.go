// Package bridge lets other packages of this module reach what the package weir
// does not show its users, without making it public.
package bridge

import (
	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/internal/topology"
)

// Topology returns the graph of a *weir.Topology and the function that makes the
// plans of its tasks for an application, one for each subtopology and at the
// index of its id. Package weir sets it when it is linked in.
var Topology func(topology any) (graph *topology.Topology, plans func(application string) []*task.Plan)

// CrashPoint sets the function that the workers of all Apps of this process
// tell where in the commit protocol they are, as internal/worker names the
// points; nil tells nobody. It is called by their goroutines and is to be set
// before the first App runs. Package weir sets it when it is linked in.
var CrashPoint func(f func(point string))
