package lint

import (
	"fmt"
	"strings"
)

// A direction says what the packages of a pattern may import. The first row that
// matches a package counts.
type direction struct {
	pkg string
	// may are the patterns of the packages of this module that non-test code may import.
	// Tests may look at anything but programs: a test above a package checks it from above.
	may []string
	// drivers are the modules from elsewhere that non-test code may import; nil says
	// nothing about them, and the table owners still holds.
	drivers []string
	why     string
}

// none as drivers means the standard library only.
var none = []string{}

// directions is the import order of the module, from the top down: arrows point down.
//
//	cmd, examples, bench, query, weirtest, weirprom -> weir -> internal/worker
//	-> internal/{task, topology, assign, ...} -> state -> metric, serde, window
var directions = []direction{
	{
		pkg: "cmd/...", may: []string{"...", "!examples/...", "!bench/..."},
		why: "a program may use the whole library, but neither the examples nor the benchmarks",
	},
	{
		pkg: "examples/...",
		may: []string{"examples/...", ".", "serde/...", "window", "metric", "state/...", "embedded", "fence/...", "query/...", "weirtest", "weirprom"},
		why: "an example is copied by its readers, who cannot import internal packages",
	},
	{
		pkg: "docs/...", may: []string{"metric"},
		why: "what checks a document knows the names that it speaks of, and nothing of the library",
	},
	{
		pkg: "bench/...", may: []string{"...", "!cmd/...", "!examples/..."},
		why: "benchmarks measure the library, not the programs around it",
	},
	{
		pkg: "internal/lint/...", may: []string{"internal/lint/..."},
		why: "the rules stand outside of what they judge",
	},
	{
		pkg: "internal/sim/...", may: []string{"...", "!cmd/...", "!examples/...", "!bench/..."},
		why: "the simulator drives the library from outside",
	},
	{
		pkg: "weirtest/...",
		may: []string{"weirtest/...", ".", "serde/...", "window", "metric", "state/...", "internal/...", "!internal/sim/...", "!internal/lint/..."},
		why: "the test driver runs topologies without a broker, so it stands on the library and not beside programs or brokers",
	},
	{
		pkg: "query/...",
		may: []string{"query/...", ".", "serde/...", "window", "metric", "state", "internal/...", "!internal/sim/...", "!internal/lint/..."},
		why: "queries read what the library shows; a backend is behind it",
	},
	{
		pkg: "weirprom/...", may: []string{"weirprom/...", ".", "metric"},
		why: "the exporter knows the metric interface and nothing of what is measured",
	},
	{
		pkg: "embedded/...", may: []string{"embedded/...", "internal/filelock"},
		why: "the embedded broker is a Kafka to the library, as any other: neither knows the other",
	},
	{
		pkg: "fence/...",
		may: []string{"fence/...", "metric", "serde/...", "internal/...", "!internal/worker/...", "!internal/task/...", "!internal/topology/...", "!internal/assign/...", "!internal/sim/...", "!internal/lint/..."},
		why: "the fence is for plain consumers, who do not want the topology runtime with it",
	},
	{
		pkg: ".",
		may: []string{"serde/...", "window", "metric", "state", "state/pebblestore", "internal/...", "!internal/sim/...", "!internal/lint/..."},
		why: "the library is linked into every user's program: of the backends only the default one, and nothing from above it",
	},
	{
		pkg: "internal/worker/...",
		may: []string{"internal/...", "state", "metric", "serde/...", "window", "!internal/sim/...", "!internal/lint/..."},
		why: "the worker knows backends as state.Backend only, so that each of them and the simulator fit",
	},
	{
		pkg: "internal/simkafka/...",
		may: []string{"internal/...", "state", "metric", "serde/...", "window", "!internal/sim/...", "!internal/lint/..."},
		why: "the simulated cluster is what a worker sees of one, so it stands beside the worker's clients",
	},
	{
		pkg: "internal/...",
		may: []string{"internal/...", "state", "metric", "serde/...", "window", "!internal/worker/...", "!internal/sim/...", "!internal/lint/..."},
		why: "the core is below the worker: it decides, the worker acts",
	},
	{
		pkg: "state", may: []string{"state/internal/...", "metric", "serde/...", "window"}, drivers: none,
		why: "the contract of the backends knows none of them",
	},
	{
		pkg: "state/statetest/...", may: []string{"state", "state/internal/...", "state/statetest/..."},
		why: "one suite judges every backend, so it knows none of them",
	},
	{
		pkg: "state/internal/...", may: []string{"state", "state/internal/..."}, drivers: none,
		why: "what backends share belongs to no driver",
	},
	{
		pkg: "state/memstore/...", may: []string{"state", "state/internal/...", "state/memstore/..."},
		drivers: []string{"github.com/tidwall/btree"},
		why:     "a backend knows the contract, state, and its own driver",
	},
	{
		pkg: "state/pebblestore/...", may: []string{"state", "state/internal/...", "state/pebblestore/..."},
		drivers: []string{"github.com/cockroachdb/pebble"},
		why:     "a backend knows the contract, state, and its own driver",
	},
	{
		pkg: "state/redisstore/...", may: []string{"state", "state/internal/...", "state/redisstore/...", "internal/redisconn"},
		drivers: []string{"github.com/redis/rueidis"},
		why:     "a backend knows the contract, state, and its own driver",
	},
	{
		pkg: "state/...", may: []string{"state", "state/internal/..."},
		why: "a backend knows the contract, state, and its own driver",
	},
	{
		pkg: "serde/...", may: []string{"serde/..."},
		why: "serdes are bytes to values and back; everything stands on them",
	},
	{
		pkg: "window/...", may: []string{"window/..."}, drivers: none,
		why: "windows are arithmetic on time; everything stands on them",
	},
	{
		pkg: "metric/...", may: []string{"metric/..."}, drivers: none,
		why: "everything reports metrics, so the interface knows nothing else",
	},
}

// An owner says which packages may import a module from elsewhere. The first row that
// matches an import counts; a module without a row may be imported by all that their
// direction does not restrict.
type owner struct {
	module string
	by     []string
	tests  bool // whether tests of other packages are bound too
	why    string
}

var owners = []owner{
	{
		module: module + "/cmd", by: []string{"cmd/..."}, tests: true,
		why: "nothing imports a program",
	},
	{
		module: module + "/examples", by: []string{"examples/..."}, tests: true,
		why: "nothing imports an example",
	},
	{
		module: "github.com/twmb/franz-go/pkg/kfake", by: []string{"embedded/..."}, tests: true,
		why: "package embedded is where the fake cluster's bugs are worked around or refused; use it",
	},
	{
		module: "github.com/twmb/franz-go",
		by:     []string{".", "internal/worker/...", "internal/holes/...", "internal/kafkaclient/...", "internal/sim/...", "embedded/...", "weirtest/...", "fence/...", "examples/...", "bench/...", "cmd/..."},
		why:    "the core is pure, and a backend is no Kafka: only the worker drives the client",
	},
	{
		module: "github.com/cockroachdb/pebble", by: []string{"state/pebblestore/..."}, tests: true,
		why: "a technology has one package, and only that package imports its driver",
	},
	{
		module: "github.com/redis/rueidis", by: []string{"internal/redisconn/...", "internal/redistest/...", "state/redisstore/...", "fence/...", "bench/..."},
		why: "a technology has one package, and only that package imports its driver",
	},
	{
		module: "github.com/prometheus", by: []string{"weirprom/...", "cmd/..."},
		why: "the library reports through package metric; who wants Prometheus imports weirprom",
	},
	{
		module: "github.com/spf13", by: []string{"cmd/..."},
		why: "command lines are for programs",
	},
}

// checkImports applies directions and owners to every import.
func checkImports(files []file) []problem {
	var problems []problem
	unplaced := map[string]bool{}
	for _, f := range files {
		if f.ast == nil {
			continue
		}
		row := directionOf(f.pkg())
		if row == nil {
			if !unplaced[f.pkg()] {
				unplaced[f.pkg()] = true
				problems = append(problems, problem{f.pkg(), "the package has no place in the import order; add it to directions in internal/lint/imports.go"})
			}
			continue
		}
		for _, spec := range f.ast.Imports {
			imported := unquote(spec.Path)
			report := func(format string, args ...any) {
				what := fmt.Sprintf("package %s must not import %s: ", f.pkg(), imported)
				problems = append(problems, problem{f.at(spec), what + fmt.Sprintf(format, args...)})
			}
			if o := ownerOf(imported); o != nil && (o.tests || !f.isTest()) && !matches(f.pkg(), o.by...) {
				report("%s (only %s may)", o.why, strings.Join(o.by, ", "))
				continue
			}
			if f.isTest() {
				continue
			}
			if local, ok := localPackage(imported); ok {
				if !matches(local, row.may...) {
					report("%s (%s may import: %s)", row.why, row.pkg, list(row.may))
				}
				continue
			}
			if row.drivers != nil && !isStandard(imported) && !underAny(imported, row.drivers) {
				report("%s (%s may import from elsewhere: %s)", row.why, row.pkg, list(row.drivers))
			}
		}
	}
	return problems
}

func directionOf(pkg string) *direction {
	for i := range directions {
		if matches(pkg, directions[i].pkg) {
			return &directions[i]
		}
	}
	return nil
}

func ownerOf(imported string) *owner {
	for i := range owners {
		if under(imported, owners[i].module) {
			return &owners[i]
		}
	}
	return nil
}

// localPackage turns an import path of this module into the package's folder.
func localPackage(imported string) (string, bool) {
	if imported == module {
		return ".", true
	}
	return strings.CutPrefix(imported, module+"/")
}

// isStandard reports whether the import is of the standard library: other import paths
// begin with a host name.
func isStandard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

func under(imported, prefix string) bool {
	return imported == prefix || strings.HasPrefix(imported, prefix+"/")
}

func underAny(imported string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if under(imported, prefix) {
			return true
		}
	}
	return false
}

func list(patterns []string) string {
	if len(patterns) == 0 {
		return "nothing"
	}
	return strings.Join(patterns, ", ")
}
