package weirtest

import (
	"path/filepath"
	"strconv"
	"testing"

	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/memstore"
	"github.com/weirstreams/weir/state/pebblestore"
)

// lostMemory is the default of Options.Store.
func lostMemory(int) state.Backend { return memstore.New() }

// Memory returns an Options.Store with memory that survives its process, as no
// real memory does: what a crash leaves behind in a store can then be looked at
// without a disk.
func Memory() func(instance int) state.Backend {
	return Keep(lostMemory)
}

// Keep returns an Options.Store that gives each instance the same store at each
// start: the one that open returned the first time.
func Keep(open func(instance int) state.Backend) func(instance int) state.Backend {
	stores := map[int]state.Backend{}
	return func(i int) state.Backend {
		if stores[i] == nil {
			stores[i] = open(i)
		}
		return stores[i]
	}
}

// diskMemory bounds the caches of a database of Disk.
const diskMemory = 16 << 20

// Disk returns an Options.Store with a database on disk for each instance, in a
// temporary folder of the test. It survives its process.
func Disk(t testing.TB) func(instance int) state.Backend {
	dir := t.TempDir()
	return Keep(func(i int) state.Backend {
		t.Helper()
		db, err := pebblestore.Open(filepath.Join(dir, strconv.Itoa(i)), pebblestore.Options{MaxMemory: diskMemory})
		if err != nil {
			t.Fatalf("weirtest: open a store on disk: %v", err)
		}
		return db
	})
}
