package stamp

import "testing"

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
		s := Stamp{Lineage: lineageA, Outbox: true, Seq: 70, Base: 64, From: 20, Last: 70, Nonce: 1}
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
		{"a first claim that the store has forgotten", nil, stamp(func(s *Stamp) { s.Last, s.From = 0, 0 }), true, FirstClaim, true},
		{"batches that the store has lost", nil, stamp(nil), true, NoView, true},
		{"the same of a task without stores", nil, stamp(nil), false, NoView, true},
		{"in step", token(nil), stamp(nil), true, InStep, true},
		{"claimed since", token(func(t *Token) { t.Seq = 102 }), stamp(nil), true, InStep, true},
		{"a claim that the store has forgotten", token(nil), stamp(func(s *Stamp) { s.Seq, s.Base, s.From = 102, 102, 70 }), true, InStep, true},
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
	s := Stamp{Outbox: true, From: 20, Base: 52, Last: 55}
	for seq, want := range map[uint64][2]bool{1: {true, false}, 20: {true, false}, 21: {false, true}, 52: {false, true}, 53: {true, false}, 55: {true, false}, 56: {false, false}} {
		if got := [2]bool{s.Acknowledged(seq), s.Stray(seq)}; got != want {
			t.Errorf("batch %d: acknowledged, stray = %v, want %v", seq, got, want)
		}
	}
	logged := Stamp{Seq: 70}
	if !logged.Acknowledged(70) || logged.Acknowledged(71) {
		t.Error("a stamp of a changelog at 70 does not acknowledge all up to 70 and no more")
	}
}
