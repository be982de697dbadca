package stamp

import (
	"slices"
	"testing"
)

func TestDecideOutbox(t *testing.T) {
	t.Parallel()
	token := func(change func(*Token)) *Token {
		tok := Token{Lineage: lineageA, Outbox: true, Seq: 70, Last: 70, Nonce: 1}
		if change != nil {
			change(&tok)
		}
		return &tok
	}
	stamp := func(change func(*Stamp)) *Stamp {
		s := Stamp{Lineage: lineageA, Outbox: true, Seq: 70, Gaps: []Gap{{20, 64}}, Last: 70, Nonce: 1}
		if change != nil {
			change(&s)
		}
		return &s
	}
	logged := func(change func(*Token)) *Token {
		tok := Token{Lineage: lineageA, Seq: 70, Nonce: 1}
		if change != nil {
			change(&tok)
		}
		return &tok
	}
	loggedStamp := &Stamp{Lineage: lineageA, Seq: 70, Nonce: 1}
	for _, c := range []struct {
		name     string
		token    *Token
		stamp    *Stamp
		stores   bool
		want     Verdict
		onlyHere bool // Decide has to refuse it
	}{
		{"nothing", nil, nil, true, FirstClaim, false},
		{"a first claim that was interrupted", token(func(t *Token) { t.Seq, t.Last = 32, 0 }), nil, true, FirstClaim, true},
		{"the same, of the other protocol", logged(func(t *Token) { t.Seq = 0 }), nil, true, FirstClaim, false},
		{"batches, and no stamp", token(nil), nil, true, NoStamp, true},
		{"a first claim that the store has forgotten", nil, stamp(func(s *Stamp) { s.Last, s.Gaps = 0, []Gap{{0, 70}} }), true, FirstClaim, true},
		{"batches that the store has lost", nil, stamp(nil), true, NoView, true},
		{"the same of a task without stores", nil, stamp(nil), false, NoView, true},
		{"in step", token(nil), stamp(nil), true, InStep, true},
		{"claimed since", token(func(t *Token) { t.Seq = 102 }), stamp(nil), true, InStep, true},
		{"a claim that the store has forgotten", token(nil), stamp(func(s *Stamp) { s.Seq, s.Gaps = 102, []Gap{{20, 64}, {70, 102}} }), true, InStep, true},
		{"not acknowledged yet", token(func(t *Token) { t.Seq, t.Last = 73, 73 }), stamp(nil), true, Ahead, true},
		{"forgotten", token(func(t *Token) { t.Seq, t.Last = 66, 66 }), stamp(nil), true, Behind, true},
		{"another life", token(func(t *Token) { t.Lineage = lineageB }), stamp(nil), true, ForeignLineage, true},
		{"taken over from a changelog", logged(nil), loggedStamp, true, InStep, false},
		{"behind its changelog", logged(func(t *Token) { t.Seq = 69 }), loggedStamp, true, OtherProtocol, false},
		{"in a restore from it", logged(func(t *Token) { t.Restoring = true }), loggedStamp, true, OtherProtocol, false},
		{"another batch than its changelog's", logged(func(t *Token) { t.Nonce = 2 }), loggedStamp, true, OtherProtocol, false},
		{"a changelog and no view", nil, loggedStamp, true, OtherProtocol, false},
		{"no stores, so nothing to take over", nil, loggedStamp, false, InStep, false},
		{"taken over, and interrupted", token(func(t *Token) { t.Seq = 102 }), loggedStamp, true, InStep, true},
		{"the same of a task without stores", token(func(t *Token) { t.Seq, t.Last = 102, 0 }), loggedStamp, false, InStep, true},
		{"an empty view behind a stamp of a changelog", token(func(t *Token) { t.Last = 0 }), loggedStamp, true, OtherProtocol, true},
		{"batches behind a stamp of a changelog", token(func(t *Token) { t.Seq, t.Last = 103, 103 }), loggedStamp, true, OtherProtocol, true},
		{"a view older than the change of protocol", logged(nil), stamp(nil), true, OtherProtocol, true},
	} {
		if got := DecideOutbox(c.token, c.stamp, c.stores); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		if c.onlyHere {
			if got := Decide(c.token, c.stamp); got != OtherProtocol {
				t.Errorf("%s, with a changelog: %v, want %v", c.name, got, OtherProtocol)
			}
		}
	}
}

func TestAcknowledged(t *testing.T) {
	t.Parallel()
	type fate struct{ acknowledged, stray bool }
	sent, stray, ahead := fate{true, false}, fate{false, true}, fate{false, false}
	for _, c := range []struct {
		name  string
		stamp Stamp
		want  map[uint64]fate
	}{
		{"one claim", Stamp{Seq: 55, Last: 55, Gaps: []Gap{{20, 52}}},
			map[uint64]fate{1: sent, 20: sent, 21: stray, 52: stray, 53: sent, 55: sent, 56: ahead}},
		{"a claim, and nothing since", Stamp{Seq: 52, Last: 20, Gaps: []Gap{{20, 52}}},
			map[uint64]fate{20: sent, 21: stray, 52: stray, 53: ahead}},
		{"two claims", Stamp{Seq: 88, Last: 88, Gaps: []Gap{{20, 52}, {55, 87}}},
			map[uint64]fate{19: sent, 20: sent, 21: stray, 36: stray, 52: stray, 53: sent, 55: sent, 56: stray, 87: stray, 88: sent, 89: ahead}},
		{"a claim of what a fenced owner has applied", Stamp{Seq: 120, Last: 22, Gaps: []Gap{{20, 52}, {22, 120}}},
			map[uint64]fate{20: sent, 21: stray, 22: sent, 23: stray, 55: stray, 121: ahead}},
		{"the same, and a batch since", Stamp{Seq: 121, Last: 121, Gaps: []Gap{{20, 52}, {22, 120}}},
			map[uint64]fate{20: sent, 22: sent, 53: stray, 121: sent, 122: ahead}},
		{"numbers that are used up, and not acknowledged", Stamp{Seq: 120, Last: 55, Gaps: []Gap{{20, 52}}},
			map[uint64]fate{20: sent, 21: stray, 55: sent, 56: stray, 120: stray, 121: ahead}},
		{"the first claim", Stamp{Seq: 33, Last: 33, Gaps: []Gap{{0, 32}}}, map[uint64]fate{1: stray, 33: sent}},
	} {
		c.stamp.Outbox = true
		for seq, want := range c.want {
			if got := (fate{c.stamp.Acknowledged(seq), c.stamp.Stray(seq)}); got != want {
				t.Errorf("%s: batch %d is %+v, want %+v", c.name, seq, got, want)
			}
		}
	}
	logged := Stamp{Seq: 70}
	if !logged.Acknowledged(70) || logged.Acknowledged(71) || logged.Stray(71) {
		t.Error("a stamp of a changelog at 70 does not acknowledge all up to 70 and no more")
	}
}

func TestClaimed(t *testing.T) {
	t.Parallel()
	var many []Gap
	for i := range uint64(MaxGaps) {
		many = append(many, Gap{100 * i, 100*i + 50})
	}
	for _, c := range []struct {
		name       string
		gaps       []Gap
		from, base uint64
		want       []Gap
	}{
		{"the first", nil, 0, 32, []Gap{{0, 32}}},
		{"another", []Gap{{20, 52}}, 55, 87, []Gap{{20, 52}, {55, 87}}},
		{"no batch since", []Gap{{20, 52}}, 20, 84, []Gap{{20, 84}}},
		{"gone back over one claim", []Gap{{20, 52}, {55, 87}}, 22, 120, []Gap{{20, 52}, {22, 120}}},
		{"gone back over both", []Gap{{20, 52}, {55, 87}}, 19, 120, []Gap{{19, 120}}},
		{"too many", many, 100*MaxGaps + 60, 1000, append(append([]Gap{{0, 150}}, many[2:]...), Gap{100*MaxGaps + 60, 1000})},
	} {
		was := slices.Clone(c.gaps)
		if got := Claimed(c.gaps, c.from, c.base); !slices.Equal(got, c.want) || !slices.Equal(c.gaps, was) {
			t.Errorf("%s: %v of %v, want %v of %v", c.name, got, c.gaps, c.want, was)
		}
	}
}
