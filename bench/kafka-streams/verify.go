package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

// verifyOutput checks that the output holds, for a read_committed reader, one
// count per input and that the counts of each key are 1, 2, 3 and so on up to
// its number of inputs. A record that was lost, processed twice or put out of
// order breaks the row of its key.
func (c *cluster) verifyOutput(ctx context.Context, topic string, in *input) error {
	last := make(map[string]int64, len(in.counts))
	var n int64
	err := c.read(ctx, topic, func(r *kgo.Record) error {
		count, err := decodeCount(r)
		if err != nil {
			return err
		}
		if count != last[string(r.Key)]+1 {
			return fmt.Errorf("key %s goes from %d to %d", r.Key, last[string(r.Key)], count)
		}
		last[string(r.Key)] = count
		n++
		return nil
	})
	if err != nil {
		return err
	}
	if n != in.records {
		return fmt.Errorf("topic %q: %d outputs for %d inputs", topic, n, in.records)
	}
	return compareCounts(topic, last, in.counts)
}

// verifyChangelog checks that the last value of each key in the changelog is its
// count, and returns how many records the changelog holds, which is what a
// restore has to read.
func (c *cluster) verifyChangelog(ctx context.Context, topic string, in *input) (int64, error) {
	last := make(map[string]int64, len(in.counts))
	var n int64
	err := c.read(ctx, topic, func(r *kgo.Record) error {
		count, err := decodeCount(r)
		last[string(r.Key)] = count
		n++
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, compareCounts(topic, last, in.counts)
}

func decodeCount(r *kgo.Record) (int64, error) {
	if len(r.Value) != 8 {
		return 0, fmt.Errorf("key %s: a count has 8 bytes, not %d", r.Key, len(r.Value))
	}
	return int64(binary.BigEndian.Uint64(r.Value)), nil
}

// maxNamed bounds how many wrong keys an error names.
const maxNamed = 5

func compareCounts(topic string, got, want map[string]int64) error {
	var errs []error
	wrong := 0
	note := func(key string) {
		if wrong++; wrong <= maxNamed {
			errs = append(errs, fmt.Errorf("key %s: the last count is %d, want %d", key, got[key], want[key]))
		}
	}
	for key, n := range want {
		if got[key] != n {
			note(key)
		}
	}
	for key := range got {
		if _, known := want[key]; !known {
			note(key)
		}
	}
	if wrong == 0 {
		return nil
	}
	return fmt.Errorf("topic %q: %d keys are wrong: %w", topic, wrong, errors.Join(errs...))
}
