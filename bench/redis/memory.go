package main

import (
	"context"
	"errors"
	"strconv"

	"github.com/redis/rueidis"
)

// memory compares what a key takes in a view to what it takes as a hash of its
// own with three fields: value, offset and partition.
func (b *bench) memory(ctx context.Context) ([]row, error) {
	keys := b.size(dataKeys, 2000)
	view := func(unordered bool) func(s *server) error {
		return func(s *server) error {
			backend, err := s.open(ctx, s.addr, unordered)
			if err != nil {
				return err
			}
			defer backend.Close()
			v, err := newView(ctx, backend, 0)
			if err != nil {
				return err
			}
			return v.fill(ctx, keys)
		}
	}
	plain := func(command func(c rueidis.Client, n int) rueidis.Completed) func(s *server) error {
		return func(s *server) error {
			c, err := dial(s.addr)
			if err != nil {
				return err
			}
			defer c.Close()
			for n := 0; n < keys; {
				var cmds []rueidis.Completed
				for range min(fillBatch, keys-n) {
					cmds = append(cmds, command(c, n))
					n++
				}
				if err := doAll(ctx, c, cmds); err != nil {
					return err
				}
			}
			return nil
		}
	}
	random := newNumbers(1)
	value := func() string { return rueidis.BinaryString(random.value()) }
	hash, err := b.bytesPerKey(ctx, keys, plain(func(c rueidis.Client, n int) rueidis.Completed {
		return c.B().Hset().Key(plainKeys[n]).FieldValue().FieldValue("value", value()).
			FieldValue("offset", strconv.Itoa(1_000_000+n)).FieldValue("partition", "7").Build()
	}))
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, c := range []struct {
		title  string
		fill   func(*server) error
		wanted *bound
	}{
		{"store without order / hash for each key", view(true), atMost(0.5)},
		{"store with order / hash for each key", view(false), nil},
		{"plain string / hash for each key", plain(func(c rueidis.Client, n int) rueidis.Completed {
			return c.B().Set().Key(plainKeys[n]).Value(value()).Build()
		}), nil},
	} {
		ours, err := b.bytesPerKey(ctx, keys, c.fill)
		if err != nil {
			return nil, err
		}
		rows = append(rows, newRow("memory", c.title, "bytes per key", []float64{ours}, []float64{hash}, c.wanted))
	}
	return rows, nil
}

// bytesPerKey is what fill adds to the memory of a new server for each key.
func (b *bench) bytesPerKey(ctx context.Context, keys int, fill func(*server) error) (n float64, err error) {
	s, err := startServer(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	empty, err := s.memory(ctx)
	if err == nil {
		err = fill(s)
	}
	if err != nil {
		return 0, err
	}
	full, err := s.memory(ctx)
	return (full - empty) / float64(keys), err
}
