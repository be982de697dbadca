package fence_test

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/weirstreams/weir/fence"
)

// A server for the examples; elsewhere the URL is that of a Redis.
func exampleURL() (url string, stop func()) {
	m, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	return "redis://" + m.Addr() + "?check=off", m.Close
}

// The balance of an account, kept by a consumer of its own making. It dies
// before its outputs are sent: nothing is lost, and nothing counts twice.
func ExampleFence() {
	url, stop := exampleURL()
	defer stop()
	ctx := context.Background()
	f, err := fence.Open(ctx, fence.Options{URL: url, Topic: "payments", Partitions: 1})
	if err != nil {
		panic(err)
	}
	defer f.Close()
	records := []fence.Record{
		{Offset: 0, Key: []byte("alice"), Op: fence.Add(100)},
		{Offset: 1, Key: []byte("alice"), Op: fence.Add(-30)},
		{Offset: 2, Key: []byte("bob"), Op: fence.Add(7)},
	}
	// Whoever gets the partition from the group claims it once, and reads from
	// Start on.
	claim, err := f.Claim(ctx, fence.Assignment{Partition: 0, Committed: -1, Begin: 0})
	if err != nil {
		panic(err)
	}
	if _, err := claim.Apply(ctx, fence.Batch{Records: records, Committed: -1}); err != nil {
		panic(err)
	}
	claim.Release() // it died: it has neither produced nor committed

	claim, err = f.Claim(ctx, fence.Assignment{Partition: 0, Committed: -1, Begin: 0})
	if err != nil {
		panic(err)
	}
	defer claim.Release()
	records = append(records, fence.Record{Offset: 3, Key: []byte("bob"), Op: fence.Add(1)})
	results, err := claim.Apply(ctx, fence.Batch{Records: records[claim.Start():], Committed: -1})
	if err != nil {
		panic(err)
	}
	for i, r := range results {
		if r.Verdict.Emits() {
			fmt.Printf("%-7s %s %s\n", r.Verdict, records[i].Key, r.State)
		}
	}
	// Now produce, flush, commit, and pass what is committed with the next batch.

	// Output:
	// reemit  alice 100
	// reemit  alice 70
	// reemit  bob 7
	// apply   bob 8
}

// A state that the caller computes: a running average with the exact old state
// as the condition.
func ExampleClaim_Update() {
	url, stop := exampleURL()
	defer stop()
	ctx := context.Background()
	f, err := fence.Open(ctx, fence.Options{URL: url, Topic: "readings", Partitions: 1})
	if err != nil {
		panic(err)
	}
	defer f.Close()
	claim, err := f.Claim(ctx, fence.Assignment{Partition: 0, Committed: -1})
	if err != nil {
		panic(err)
	}
	defer claim.Release()
	readings := map[int64]float64{0: 20, 1: 10, 2: 3}
	var b fence.Batch
	for o := range int64(len(readings)) {
		b.Records = append(b.Records, fence.Record{Offset: o, Key: []byte("sensor")})
	}
	results, err := claim.Update(ctx, b, func(r *fence.Record, state []byte, exists bool) (fence.Change, error) {
		average := readings[r.Offset]
		if exists {
			old, err := strconv.ParseFloat(string(state), 64)
			if err != nil {
				return fence.Change{}, err
			}
			average = old + (average-old)/2
		}
		return fence.Change{Value: strconv.AppendFloat(nil, average, 'g', -1, 64)}, nil
	})
	if err != nil {
		panic(err)
	}
	for _, r := range results {
		fmt.Println(r.Verdict, string(r.State))
	}

	// Output:
	// apply 20
	// apply 15
	// apply 9
}

// Without a group, a lease says who may claim. Who lost it is fenced whatever
// its clock says.
func ExampleFence_lease() {
	url, stop := exampleURL()
	defer stop()
	ctx := context.Background()
	f, err := fence.Open(ctx, fence.Options{URL: url, Topic: "jobs", Partitions: 4})
	if err != nil {
		panic(err)
	}
	defer f.Close()
	lease, err := f.Lease(ctx, 2, 30*time.Second)
	if err != nil {
		panic(err)
	}
	_, err = f.Lease(ctx, 2, 30*time.Second)
	fmt.Println(err)
	claim, err := f.Claim(ctx, fence.Assignment{Partition: 2, Committed: -1})
	if err != nil {
		panic(err)
	}
	defer claim.Release()
	fmt.Println("epoch", claim.Epoch())
	fmt.Println(lease.Renew(ctx), lease.Release(ctx)) // renewed each 10 s

	// Output:
	// lease partition 2 of topic jobs: fence: somebody else holds the lease
	// epoch 1
	// <nil> <nil>
}
