package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// The example prints what a plain loop over the payments does.
func TestRun(t *testing.T) {
	t.Parallel()
	const n = 1000
	sums, counts := make([]int, accounts), make([]int, accounts)
	for i := range n {
		sums[i%accounts] += i
		counts[i%accounts]++
	}
	var want strings.Builder
	for i := range accounts {
		fmt.Fprintf(&want, "account-%d: %d cents in %d payments\n", i, sums[i], counts[i])
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var got strings.Builder
	if err := run(ctx, []string{"-payments", fmt.Sprint(n)}, &got); err != nil {
		t.Fatal(err)
	}
	if got.String() != want.String() {
		t.Errorf("got\n%swant\n%s", got.String(), want.String())
	}
}
