package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// This is the usual way to be safe against repeated records without transactions:
// state and offset of a key side by side, changed by one atomic script. It is a
// model of its own, since no worker works like that: a consumer takes a batch,
// changes the keys, writes the outputs, and commits the offset. A record below
// the offset of its key was processed before and is skipped; for one that may
// still be unwritten the stored output is written again.
//
// With a window of one output per key, that of the last record, an output is lost
// when two records of a key are in one batch and the process dies before the
// outputs are written. With a window that reaches back to the committed offset
// none is.

// fencedKey is what the store has of a key.
type fencedKey struct {
	offset  int
	state   string
	outputs map[int]string // by offset
}

// keyFence is a run of the model.
type keyFence struct {
	rng       *rand.Rand
	window    int // outputs that a key keeps; 0 keeps all from the committed offset on
	log       []string
	committed int
	keys      map[string]*fencedKey
	written   []string
	trace     []string
}

// PlayFence runs the model with a seed and returns what is not right with the
// outputs, and what happened.
func PlayFence(seed uint64, window int) (string, error) {
	f := &keyFence{rng: rand.New(rand.NewPCG(seed, 4)), window: window, keys: map[string]*fencedKey{}}
	for i := range 4 + f.rng.IntN(12) {
		f.log = append(f.log, fmt.Sprintf("k%d.%d", f.rng.IntN(3), i))
	}
	for lives := 0; f.committed < len(f.log); lives++ {
		f.live(lives < 6)
	}
	return strings.Join(f.trace, "\n"), f.judge()
}

func (f *keyFence) note(format string, args ...any) {
	f.trace = append(f.trace, fmt.Sprintf(format, args...))
}

// live is one life of the consumer.
func (f *keyFence) live(mortal bool) {
	dies := func(where string) bool {
		if mortal && f.rng.IntN(8) == 0 {
			f.note("dies %s", where)
			return true
		}
		return false
	}
	f.note("starts at offset %d", f.committed)
	for at := f.committed; at < len(f.log); {
		end := min(at+1+f.rng.IntN(5), len(f.log))
		var outputs []string
		for o := at; o < end; o++ {
			out := f.apply(o)
			f.note("record %d (%s): %q", o, f.log[o], out)
			if out != "" {
				outputs = append(outputs, out)
			}
			if dies("between two records") {
				return
			}
		}
		for _, o := range outputs {
			f.written = append(f.written, o)
			if dies("between two outputs") {
				return
			}
		}
		if dies("before the commit") {
			return
		}
		f.committed, at = end, end
		f.note("commits %d", end)
	}
}

// apply is the script.
func (f *keyFence) apply(offset int) string {
	key := keyOf(f.log[offset])
	k := f.keys[key]
	if k == nil {
		k = &fencedKey{offset: -1, outputs: map[int]string{}}
		f.keys[key] = k
	}
	if offset <= k.offset {
		return k.outputs[offset] // "" skips
	}
	k.state = hash(k.state, f.log[offset], 0)
	k.offset = offset
	k.outputs[offset] = f.log[offset] + "|" + k.state
	for o := range k.outputs {
		if f.window == 0 && o < f.committed || f.window > 0 && o != offset {
			delete(k.outputs, o)
		}
	}
	return k.outputs[offset]
}

// judge compares with a plain loop: repeated outputs are fine, missing ones are
// not.
func (f *keyFence) judge() error {
	got := map[string]bool{}
	for _, o := range f.written {
		got[o] = true
	}
	last := map[string]string{}
	for offset, v := range f.log {
		key := keyOf(v)
		last[key] = hash(last[key], v, 0)
		if want := v + "|" + last[key]; !got[want] {
			return fmt.Errorf("the output %q of record %d was never written", want, offset)
		}
	}
	return nil
}
