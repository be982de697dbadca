package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/weirstreams/weir/state/redisstore"
)

// Shape of the part writes.
const (
	writeRounds  = 9
	writeRecords = 128_000 // of a round
	wayBatches   = 4_000   // of a round at most
)

// writes compares the processor time of redis-server for batches of writes with
// their token to that for the same data as plain SETs, pipelined in the same
// batches. The two servers take turns.
func (b *bench) writes(ctx context.Context) (rows []row, err error) {
	for _, c := range []struct {
		title     string
		unordered bool
		batch     int
		wanted    *bound
	}{
		{"store without order / SET, batches of 128", true, 128, atMost(1)},
		{"store without order / SET, batches of 500", true, 500, nil},
		{"store with order / SET, batches of 128", false, 128, nil},
	} {
		ours, theirs, err := b.writesOf(ctx, c.unordered, c.batch)
		if err != nil {
			return nil, err
		}
		rows = append(rows, newRow("writes", c.title, "us of server CPU per record", ours, theirs, c.wanted))
	}
	for _, batch := range []int{1, 16, 128} {
		more, err := b.ways(ctx, batch)
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// way is a store whose batches go as transactions, or as scripts.
type way struct {
	server *server
	view   *view
	random numbers
	used   [2][]float64 // us of CPU per record by round: of the server, of this process
}

// turn writes a batch.
func (w *way) turn(ctx context.Context, batch int) error {
	w.view.batch.Reset()
	for range batch {
		w.view.batch.Put(storeKeys[w.random.next()], w.random.value())
	}
	return w.view.write(ctx)
}

// ways compares batches as transactions with the same as scripts, in turns of
// many batches: their processor time in the server, and in this process.
func (b *bench) ways(ctx context.Context, batch int) (rows []row, err error) {
	var ways [2]*way
	for i := range ways {
		s, err := startServer(ctx)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, s.close()) }()
		opts := s.options(s.addr, true)
		opts.ScriptsOnly = i == 1
		backend, err := redisstore.Open(ctx, opts)
		if err != nil {
			return nil, err
		}
		defer backend.Close()
		v, err := newView(ctx, backend, 0)
		if err != nil {
			return nil, err
		}
		if err := v.fill(ctx, b.size(dataKeys, 1000)); err != nil {
			return nil, err
		}
		ways[i] = &way{server: s, view: v, random: newNumbers(1)}
	}
	batches := b.size(min(wayBatches, writeRecords/batch), 20)
	for range b.roundsOf(writeRounds) {
		for _, w := range ways {
			before, err := w.server.cpu(ctx)
			if err != nil {
				return nil, err
			}
			own := processTime()
			for range batches {
				if err := w.turn(ctx, batch); err != nil {
					return nil, err
				}
			}
			own = processTime() - own
			after, err := w.server.cpu(ctx)
			if err != nil {
				return nil, err
			}
			records := float64(batches * batch)
			w.used[0] = append(w.used[0], (after-before)/records)
			w.used[1] = append(w.used[1], float64(own.Microseconds())/records)
		}
	}
	for i, whose := range []string{"server", "client"} {
		rows = append(rows, newRow("writes", fmt.Sprintf("transactions / scripts, batches of %d", batch), "us of "+whose+" CPU per record",
			ways[0].used[i], ways[1].used[i], nil))
	}
	return rows, nil
}

func (b *bench) writesOf(ctx context.Context, unordered bool, batch int) (ours, theirs []float64, err error) {
	var servers [2]*server
	for i := range servers {
		s, err := startServer(ctx)
		if err != nil {
			return nil, nil, err
		}
		defer func() { err = errors.Join(err, s.close()) }()
		servers[i] = s
	}
	backend, err := servers[0].open(ctx, servers[0].addr, unordered)
	if err != nil {
		return nil, nil, err
	}
	defer backend.Close()
	v, err := newView(ctx, backend, 0)
	if err != nil {
		return nil, nil, err
	}
	sets, err := dial(servers[1].addr)
	if err != nil {
		return nil, nil, err
	}
	defer sets.Close()

	random := newNumbers(1)
	turn := func() error {
		v.batch.Reset()
		cmds := make([]rueidis.Completed, batch)
		for i := range cmds {
			n, value := random.next(), random.value()
			v.batch.Put(storeKeys[n], value)
			cmds[i] = sets.B().Set().Key(plainKeys[n]).Value(rueidis.BinaryString(value)).Build()
		}
		return errors.Join(v.write(ctx), doAll(ctx, sets, cmds))
	}
	// Most keys exist, as in a long run.
	for range b.size(3*dataKeys/batch, 10) {
		if err := turn(); err != nil {
			return nil, nil, err
		}
	}
	batches := b.size(writeRecords/batch, 20)
	for range b.roundsOf(writeRounds) {
		var before, used [2]float64
		for i, s := range servers {
			if before[i], err = s.cpu(ctx); err != nil {
				return nil, nil, err
			}
		}
		for range batches {
			if err := turn(); err != nil {
				return nil, nil, err
			}
		}
		for i, s := range servers {
			after, err := s.cpu(ctx)
			if err != nil {
				return nil, nil, err
			}
			used[i] = (after - before[i]) / float64(batches*batch)
		}
		ours, theirs = append(ours, used[0]), append(theirs, used[1])
	}
	return ours, theirs, nil
}
