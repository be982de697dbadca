package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirstreams/weir/fence"
)

// Shape of the part fence.
const (
	fenceRounds  = 7
	fenceRecords = 64_000 // of a round
	rateBatch    = 256    // records of a batch of a partition, over round trips that take a while: one call of the script
)

// fenceBatches are the sizes of the batches that are compared.
var fenceBatches = [2]int{128, 500}

// fenced is a claim with what its owner knows of it.
type fenced struct {
	f     *fence.Fence
	claim *fence.Claim
	batch fence.Batch
	next  int64
}

// newFenced opens a fence of a topic of one partition.
func newFenced(ctx context.Context, addr, topic string, noWindow bool) (*fenced, error) {
	f, err := fence.Open(ctx, fence.Options{URL: "redis://" + addr + "?check=off&timeout=" + callTimeout.String(), Topic: topic, Partitions: 1, NoWindow: noWindow})
	if err != nil {
		return nil, err
	}
	c, err := f.Claim(ctx, fence.Assignment{Committed: -1})
	if err != nil {
		f.Close()
		return nil, err
	}
	return &fenced{f: f, claim: c}, nil
}

func (c *fenced) close() { c.f.Close() }

// add adds a record to the batch.
func (c *fenced) add(n int, value []byte) {
	c.batch.Records = append(c.batch.Records, fence.Record{Offset: c.next, Key: userKeys[n], Op: fence.Set(value)})
	c.next++
}

// apply applies the batch. The one before counts as committed by then.
func (c *fenced) apply(ctx context.Context) error {
	results, err := c.claim.Apply(ctx, c.batch)
	if err != nil {
		return err
	}
	for i := range results {
		if results[i].Verdict != fence.Apply {
			return fmt.Errorf("record %d: verdict %v", i, results[i].Verdict)
		}
	}
	c.batch.Records, c.batch.Committed = c.batch.Records[:0], c.next
	return nil
}

// userKeys are the keys as a consumer gets them.
var userKeys = makeKeys(func(user string) []byte { return []byte(user) })

// The sides of the part fence.
const (
	sideFence    = iota // the contract with its pending window
	sideNoWindow        // without
	sideScripts         // the usual script, called for each record
	sideSets            // plain SETs
	fenceSides
)

// fence compares the contract of package fence, one script for each batch, with
// the usual script for each record and with plain SETs, all pipelined; and, over
// round trips that take a while, with the usual script called record by record.
func (b *bench) fence(ctx context.Context) ([]row, error) {
	server, client, err := b.fenceCPU(ctx, fenceBatches[0])
	if err != nil {
		return nil, err
	}
	larger, _, err := b.fenceCPU(ctx, fenceBatches[1])
	if err != nil {
		return nil, err
	}
	compare := func(title, unit string, of *[fenceSides][]float64, ours, theirs int, wanted *bound) row {
		return newRow("fence", title, unit, of[ours], of[theirs], wanted)
	}
	const onServer, onClient = "us of server CPU per record", "us of client CPU per record"
	rows := []row{
		compare("fence / a script for each record, batches of 128", onServer, server, sideFence, sideScripts, atMost(1/1.3)),
		compare("fence / a script for each record, batches of 500", onServer, larger, sideFence, sideScripts, atMost(1/1.3)),
		compare("fence / SET, batches of 128", onServer, server, sideFence, sideSets, nil),
		compare("fence / fence without its pending window, batches of 128", onServer, server, sideFence, sideNoWindow, nil),
		compare("fence / a script for each record, batches of 128", onClient, client, sideFence, sideScripts, nil),
		compare("fence / SET, batches of 128", onClient, client, sideFence, sideSets, nil),
	}
	rate, err := b.fenceRate(ctx)
	if err != nil {
		return nil, err
	}
	return append(rows, rate), nil
}

// fenceCPU returns the processor time per record of the servers and of this
// process, by side and round.
func (b *bench) fenceCPU(ctx context.Context, size int) (onServer, onClient *[fenceSides][]float64, err error) {
	var servers [fenceSides]*server
	for i := range servers {
		s, err := startServer(ctx)
		if err != nil {
			return nil, nil, err
		}
		defer func() { err = errors.Join(err, s.close()) }()
		servers[i] = s
	}
	var fences [2]*fenced
	for i := range fences {
		if fences[i], err = newFenced(ctx, servers[i].addr, "orders", i == sideNoWindow); err != nil {
			return nil, nil, err
		}
		defer fences[i].close()
	}
	sha, err := servers[sideScripts].info.Do(ctx, servers[sideScripts].info.B().ScriptLoad().Script(keyScript).Build()).ToString()
	if err != nil {
		return nil, nil, err
	}
	var conns [fenceSides]rueidis.Client
	for _, i := range []int{sideScripts, sideSets} {
		if conns[i], err = dial(servers[i].addr); err != nil {
			return nil, nil, err
		}
		defer conns[i].Close()
	}
	offset := 0
	onServer, onClient = new([fenceSides][]float64), new([fenceSides][]float64)
	var client [fenceSides]time.Duration
	// A side takes its batches one after the other, as a consumer does: the server
	// that has just worked has its data in the processor's cache. All sides get
	// the same records.
	type item struct {
		n     int
		value []byte
	}
	random := newNumbers(1)
	block := func(batches int) error {
		items := make([]item, batches*size)
		for i := range items {
			items[i] = item{random.next(), random.value()}
		}
		for side := range fenceSides {
			for at := 0; at < len(items); at += size {
				batch := items[at : at+size]
				cmds := make([]rueidis.Completed, 0, size)
				for _, it := range batch {
					switch side {
					case sideFence, sideNoWindow:
						fences[side].add(it.n, it.value)
					case sideScripts:
						offset++
						cmds = append(cmds, conns[side].B().Evalsha().Sha1(sha).Numkeys(2).Key(plainKeys[it.n], "epoch:"+dataTag).
							Arg("1", strconv.Itoa(offset), "0", rueidis.BinaryString(it.value)).Build())
					case sideSets:
						cmds = append(cmds, conns[side].B().Set().Key(plainKeys[it.n]).Value(rueidis.BinaryString(it.value)).Build())
					}
				}
				began := processTime()
				var err error
				if side == sideFence || side == sideNoWindow {
					err = fences[side].apply(ctx)
				} else {
					err = doAll(ctx, conns[side], cmds)
				}
				if err != nil {
					return err
				}
				client[side] += processTime() - began
			}
		}
		return nil
	}
	if err := block(b.size(3*dataKeys/size, 10)); err != nil {
		return nil, nil, err
	}
	batches := b.size(fenceRecords/size, 20)
	for range b.roundsOf(fenceRounds) {
		var before [fenceSides]float64
		for i, s := range servers {
			if before[i], err = s.cpu(ctx); err != nil {
				return nil, nil, err
			}
		}
		client = [fenceSides]time.Duration{}
		if err := block(batches); err != nil {
			return nil, nil, err
		}
		for i, s := range servers {
			after, err := s.cpu(ctx)
			if err != nil {
				return nil, nil, err
			}
			onServer[i] = append(onServer[i], (after-before[i])/float64(batches*size))
			onClient[i] = append(onClient[i], float64(client[i].Microseconds())/float64(batches*size))
		}
	}
	return onServer, onClient, nil
}

// fenceRate compares records per second over round trips that take a while: four
// partitions at once against one loop that waits for the script of each record.
func (b *bench) fenceRate(ctx context.Context) (r row, err error) {
	s, err := startServer(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	p, _, err := b.proxyOf(ctx, s)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	var parts [latencyViews]*fenced
	for i := range parts {
		if parts[i], err = newFenced(ctx, p.addr(), "orders-"+strconv.Itoa(i), false); err != nil {
			return r, err
		}
		defer parts[i].close()
	}
	ours := func(ctx context.Context, until time.Time) (int, error) {
		return together(latencyViews, func(i int) (n int, err error) {
			random := newNumbers(rand.Uint64())
			for ; time.Now().Before(until); n += rateBatch {
				for range rateBatch {
					parts[i].add(random.next(), random.value())
				}
				if err := parts[i].apply(ctx); err != nil {
					return n, err
				}
			}
			return n, nil
		})
	}
	scripts, err := newScripts(ctx, p.addr(), s)
	if err != nil {
		return r, err
	}
	defer scripts.close()
	phase := latencyPhase
	if b.quick {
		phase /= 20
	}
	var rates [2][]float64
	for range b.roundsOf(latencyRounds) {
		for i, run := range []loop{ours, scripts.loop(1, 1)} {
			began := time.Now()
			n, err := run(ctx, began.Add(phase))
			if err != nil {
				return r, err
			}
			rates[i] = append(rates[i], float64(n)/time.Since(began).Seconds())
		}
	}
	return newRow("fence", fmt.Sprintf("fence, %d partitions / a script for each record", latencyViews), "records/s", rates[0], rates[1], atLeast(100)), nil
}
