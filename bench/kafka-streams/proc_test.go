package main

import (
	"slices"
	"testing"
)

func TestListeners(t *testing.T) {
	t.Parallel()
	// 0x2384 is 9092. The second socket is a connection, the third another port that ends alike.
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2384 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1001 1 0 100 0 0 10 0
   1: 0100007F:2384 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 1002 1 0 100 0 0 10 0
   2: 0100007F:1234 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1003 1 0 100 0 0 10 0
   3: 0000000000000000FFFF00000100007F:2384 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 1004 1
`
	if got, want := listeners(table, 9092), []string{"1001", "1004"}; !slices.Equal(got, want) {
		t.Errorf("listeners = %v, want %v", got, want)
	}
	if got := listeners(table, 84); got != nil {
		t.Errorf("listeners of a port that nobody listens on = %v", got)
	}
}
