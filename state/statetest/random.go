package statetest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/weirstreams/weir/state"
)

// SeedVariable names the environment variable that replays testRandom with
// the seed which a failure printed.
const SeedVariable = "WEIR_STATETEST_SEED"

const (
	randomSteps = 1500
	randomKeys  = 60
)

// testRandom performs random operations on a few views and compares each with
// a plain map.
func testRandom(t *testing.T, open func(*testing.T) Harness) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv(SeedVariable); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("%s: %v", SeedVariable, err)
		}
	}
	// A test logs only when it fails (or is asked to).
	t.Logf("seed %d: replay with %s=%d", seed, SeedVariable, seed)
	h := open(t)
	m := &model{
		t: t, h: h, b: h.Backend,
		rng: rand.New(rand.NewPCG(seed, 0)),
		ids: []state.ID{{Application: "a", Task: "0_1"}, {Application: "a", Task: "0_11"}, {Application: "a0", Task: "_1"}},
	}
	m.views = make([]modelView, len(m.ids))
	for i := range m.views {
		m.views[i].history = history{{"", contents{}}}
	}
	for step := range randomSteps {
		m.step(step)
		if t.Failed() {
			t.Fatalf("step %d of seed %d", step, seed)
		}
	}
}

type model struct {
	t     *testing.T
	h     Harness
	b     state.Backend
	rng   *rand.Rand
	ids   []state.ID
	views []modelView
	n     int
}

type modelView struct {
	history
	handle state.View // nil until claimed
	// older is a handle that lost the view, with the token it believes in.
	older      state.View
	olderToken state.Token
}

func (v *modelView) now() moment { return v.history[len(v.history)-1] }

func (m *model) token() state.Token {
	m.n++
	return state.Token(fmt.Sprintf("token %d\x00%c", m.n, byte(m.rng.Uint32())))
}

func (m *model) key() []byte {
	k := m.rng.IntN(randomKeys)
	switch k % 4 {
	case 0:
		return bytes.Repeat([]byte{0xff}, k/4)
	case 1:
		return bytes.Repeat([]byte{0}, k/4)
	default:
		return fmt.Appendf(nil, "%d", k)
	}
}

func (m *model) value() []byte {
	switch m.rng.IntN(20) {
	case 0:
		return nil
	case 1:
		return bytes.Repeat([]byte{byte(m.rng.Uint32())}, m.rng.IntN(20_000))
	default:
		return fmt.Append(nil, m.rng.Uint32())
	}
}

func (m *model) bound() []byte {
	if m.rng.IntN(3) == 0 {
		return nil
	}
	return m.key()
}

func (m *model) batch() *state.Batch {
	var b state.Batch
	for range m.rng.IntN(12) {
		if m.rng.IntN(3) == 0 {
			b.Delete(m.key())
		} else {
			b.Put(m.key(), m.value())
		}
	}
	return &b
}

func (m *model) step(step int) {
	t, i := m.t, m.rng.IntN(len(m.ids))
	v, id := &m.views[i], m.ids[i]
	now := v.now()
	if v.handle == nil || m.rng.IntN(25) == 0 {
		m.claim(v, id)
		return
	}
	switch op := m.rng.IntN(100); {
	case op < 30:
		b, next := m.batch(), m.token()
		mustApply(t, v.handle, now.token, next, b)
		v.add(next, now.contents.with(b))
	case op < 35:
		if len(v.history) > 1 && v.now().token != "" {
			// A repetition: the old token no longer matters.
			mustApply(t, v.handle, m.token(), now.token, m.batch())
		}
	case op < 40:
		err := v.handle.Apply(t.Context(), m.token(), m.token(), m.batch())
		mustFence(t, "Apply", err, id, now.token)
	case op < 60:
		m.iterate(v, id)
	case op < 75:
		mustRead(t, v.handle, now.token, now.contents)
	case op < 80:
		m.older(v, id)
	case op < 88:
		m.bulk(v)
	case op < 91:
		next := m.token()
		if err := v.handle.Clear(t.Context(), now.token, next); err != nil {
			t.Fatal(err)
		}
		v.add(next, contents{})
	case op < 93:
		if err := m.b.Drop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		v.older, v.olderToken = v.handle, now.token
		v.handle = nil
		v.history = append(v.history, moment{"", contents{}})
	case op < 95:
		mustToken(t, m.b, id, now.token)
		token, got, err := committed(t, m.b, id, now.contents)
		if err != nil || token != now.token {
			t.Fatalf("step %d: committed token %q, error %v, want %q", step, token, err, now.token)
		}
		mustEqual(t, "the committed view", got.in(state.Range{}), now.contents.in(state.Range{}))
	case op < 97:
		if m.h.Reopen != nil {
			m.b = m.h.Reopen(t)
			m.forget(false)
		}
	default:
		if m.h.Crash != nil {
			m.b = m.h.Crash(t)
			m.forget(m.h.LosesSuffix)
		}
	}
}

func (m *model) claim(v *modelView, id state.ID) {
	t, now, next := m.t, v.now(), m.token()
	if _, err := m.b.Claim(t.Context(), id, m.token(), next); !errors.Is(err, state.ErrFenced) {
		t.Fatalf("a claim with a foreign token: %v", err)
	}
	handle := mustClaim(t, m.b, id, now.token, next)
	if v.handle != nil {
		v.older, v.olderToken = v.handle, now.token
	}
	v.handle = handle
	v.add(next, now.contents)
}

// forget drops the handles after the backend was opened again and, where
// writes may be lost, finds out how far the views went back.
func (m *model) forget(lossy bool) {
	for i := range m.views {
		v := &m.views[i]
		v.handle, v.older = nil, nil
		from := len(v.history) - 1
		if lossy {
			from = 0
		}
		at := v.history.mustFind(m.t, m.b, m.ids[i], from)
		v.history = v.history[:at+1]
	}
}

func (m *model) iterate(v *modelView, id state.ID) {
	t, now := m.t, v.now()
	r := state.Range{Lower: m.bound(), Upper: m.bound(), Reverse: m.rng.IntN(2) == 0}
	if m.rng.IntN(3) == 0 {
		reverse := r.Reverse
		r = state.PrefixRange(m.key())
		r.Reverse = reverse
	}
	it := v.handle.Iterate(t.Context(), now.token, r)
	if m.rng.IntN(2) == 0 {
		it.Close()
		it = m.b.Committed(id).Iterate(t.Context(), r)
	}
	got, err := drain(it)
	if err != nil {
		t.Fatal(err)
	}
	mustEqual(t, fmt.Sprintf("range [%x, %x) reverse %v", r.Lower, r.Upper, r.Reverse), got, now.contents.in(r))
}

// older lets the handle that lost the view try its luck.
func (m *model) older(v *modelView, id state.ID) {
	if v.older == nil {
		return
	}
	t, now := m.t, v.now()
	switch m.rng.IntN(4) {
	case 0:
		mustFence(t, "Apply", v.older.Apply(t.Context(), v.olderToken, m.token(), m.batch()), id, now.token)
	case 1:
		err := v.older.Read(t.Context(), v.olderToken, [][]byte{m.key()}, func(int, []byte) { t.Error("a refused Read visited a key") })
		mustFence(t, "Read", err, id, now.token)
	case 2:
		_, err := drain(v.older.Iterate(t.Context(), v.olderToken, state.Range{}))
		mustFence(t, "Iterate", err, id, now.token)
	case 3:
		mustFence(t, "Clear", v.older.Clear(t.Context(), v.olderToken, m.token()), id, now.token)
	}
}

func (m *model) bulk(v *modelView) {
	t, now := m.t, v.now()
	bulk := mustBulk(t, v.handle, now.token)
	want := now.contents.clone()
	for range 1 + m.rng.IntN(3) {
		for range m.rng.IntN(60) {
			k, value := m.key(), m.value()
			if m.rng.IntN(3) == 0 {
				mustDelete(t, bulk, string(k))
				delete(want, string(k))
			} else {
				if err := bulk.Put(k, value); err != nil {
					t.Fatal(err)
				}
				want[string(k)] = string(value)
			}
		}
		next := m.token()
		mustCheckpoint(t, bulk, next)
		v.add(next, want)
	}
	if m.rng.IntN(2) == 0 {
		mustPut(t, bulk, string(m.key()), "dropped")
	}
	mustCloseBulk(t, bulk)
}
