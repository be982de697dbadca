//go:build !race

// The race detector makes pools drop what they hold.

package pebblestore

import (
	"context"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/weirstreams/weir/state"
)

func TestReadsHardlyAllocate(t *testing.T) {
	b := mustOpen(t, testDir, testOptions(vfs.NewMem()))
	v := mustClaim(t, b, testID, "", "0")
	var bt state.Batch
	keys := make([][]byte, 500)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "%05d", i)
		bt.Put(keys[i], []byte("value"))
	}
	if err := v.Apply(t.Context(), "0", "1", &bt); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	found := 0
	visit := func(_ int, value []byte) { found += len(value) }
	for _, n := range []int{1, len(keys)} {
		const few = 6 // Pebble's own, of its pools
		allocs := testing.AllocsPerRun(50, func() {
			if err := v.Read(ctx, "1", keys[:n], visit); err != nil {
				t.Fatal(err)
			}
		})
		if allocs > few {
			t.Errorf("reading %d keys allocates %v times", n, allocs)
		}
	}
	if found == 0 {
		t.Error("nothing was read")
	}
}
