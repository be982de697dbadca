package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/redis/rueidis"

	"github.com/weirstreams/weir/state"
	"github.com/weirstreams/weir/state/redisstore"
)

// The data of the parts without Kafka: records of random keys, each with a value
// as large as a small document.
const (
	dataKeys  = 100_000
	dataValue = 100
	dataTag   = "{orders-07}" // all plain keys are in one slot, as those of a view are
)

// The keys, made before anything is measured.
var (
	plainKeys = makeKeys(func(user string) string { return "s:" + dataTag + ":" + user }) // as an application names them: 27 bytes
	storeKeys = makeKeys(func(user string) []byte { return redisstore.Key("counts", []byte(user)) })
)

func makeKeys[K any](of func(user string) K) []K {
	keys := make([]K, dataKeys)
	for n := range keys {
		keys[n] = of(fmt.Sprintf("user-%08d", n))
	}
	return keys
}

// numbers are random numbers of keys.
type numbers struct{ rng *rand.Rand }

func newNumbers(stream uint64) numbers { return numbers{rand.New(rand.NewPCG(1, stream))} }

func (n numbers) next() int { return n.rng.IntN(dataKeys) }

// valuePool is what values are cut out of, so that hardly two are equal, and none
// can be compressed or shared.
var valuePool = func() []byte {
	pool := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(pool)
	return pool
}()

// value is a random value.
func (n numbers) value() []byte {
	at := n.rng.IntN(len(valuePool) - dataValue)
	return valuePool[at : at+dataValue]
}

// view is a view with what its owner knows of it.
type view struct {
	state.View
	token state.Token
	seq   int
	batch state.Batch
	rng   numbers // of values
}

// newView makes view number i.
func newView(ctx context.Context, b state.Backend, i int) (*view, error) {
	id := state.ID{Application: "bench", Task: fmt.Sprintf("0_%d", i)}
	h, err := b.Claim(ctx, id, "", "t0")
	if err != nil {
		return nil, err
	}
	return &view{View: h, token: "t0", rng: newNumbers(uint64(i))}, nil
}

// write applies the batch.
func (v *view) write(ctx context.Context) error {
	v.seq++
	next := state.Token("t" + strconv.Itoa(v.seq))
	if err := v.Apply(ctx, v.token, next, &v.batch); err != nil {
		return err
	}
	v.token = next
	return nil
}

// fill puts all keys.
func (v *view) fill(ctx context.Context, keys int) error {
	for n := 0; n < keys; {
		v.batch.Reset()
		for range min(fillBatch, keys-n) {
			v.batch.Put(storeKeys[n], v.rng.value())
			n++
		}
		if err := v.write(ctx); err != nil {
			return err
		}
	}
	return nil
}

// fillBatch is how many keys are written at once where nothing is measured.
const fillBatch = 500

// doAll sends commands in one pipeline.
func doAll(ctx context.Context, c rueidis.Client, cmds []rueidis.Completed) error {
	var errs []error
	for _, r := range c.DoMulti(ctx, cmds...) {
		if err := r.Error(); err != nil && !rueidis.IsRedisNil(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
