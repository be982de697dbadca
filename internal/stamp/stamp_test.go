package stamp

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weirstreams/weir/internal/wire"
	"github.com/weirstreams/weir/state"
)

var (
	lineageA = Lineage{0xaa, 15: 1}
	lineageB = Lineage{0xbb, 15: 2}
)

func TestDecide(t *testing.T) {
	t.Parallel()
	const nonce, otherNonce = 0x1111, 0x2222
	positions := func(next int64) []Offset { return []Offset{{"counts", next}, {"sums", 7}} }
	token := func(l Lineage, seq, nonce uint64, restoring bool, next int64) *Token {
		return &Token{Lineage: l, Epoch: 9, Seq: seq, Nonce: nonce, Restoring: restoring, Changelog: positions(next)}
	}
	committed := func(l Lineage, seq, nonce uint64, next int64) *Stamp {
		return &Stamp{Lineage: l, Seq: seq, Nonce: nonce, Changelog: positions(next)}
	}

	// Every shape of token against every shape of stamp. A stamp at seq 5 has
	// its changelog position at 50; a whole view's position is ten times its
	// seq, a partial one's is given.
	type row struct {
		token *Token
		none  Verdict // no stamp at all
		zero  Verdict // the first claim's stamp: seq 0
		five  Verdict // the same lineage at seq 5
		other Verdict // another lineage at seq 5
	}
	rows := map[string]row{
		"no view":                     {nil, FirstClaim, NoView, NoView, NoView},
		"seq 0":                       {token(lineageA, 0, nonce, false, 0), FirstClaim, InStep, Behind, ForeignLineage},
		"seq 0, other nonce":          {token(lineageA, 0, otherNonce, false, 0), FirstClaim, OtherBatch, Behind, ForeignLineage},
		"seq 0, restoring at 0":       {token(lineageA, 0, nonce, true, 0), FirstClaim, Partial, Partial, ForeignLineage},
		"seq 0, restoring at 20":      {token(lineageA, 0, nonce, true, 20), FirstClaim, Ahead, Partial, ForeignLineage},
		"seq 4":                       {token(lineageA, 4, nonce, false, 40), NoStamp, Ahead, Behind, ForeignLineage},
		"seq 4, other nonce":          {token(lineageA, 4, otherNonce, false, 40), NoStamp, Ahead, Behind, ForeignLineage},
		"seq 4, restoring at 45":      {token(lineageA, 4, nonce, true, 45), NoStamp, Ahead, Partial, ForeignLineage},
		"seq 4, restoring at 50":      {token(lineageA, 4, nonce, true, 50), NoStamp, Ahead, Partial, ForeignLineage},
		"seq 4, restoring at 51":      {token(lineageA, 4, nonce, true, 51), NoStamp, Ahead, Ahead, ForeignLineage},
		"seq 5":                       {token(lineageA, 5, nonce, false, 50), NoStamp, Ahead, InStep, ForeignLineage},
		"seq 5, other nonce":          {token(lineageA, 5, otherNonce, false, 50), NoStamp, Ahead, OtherBatch, ForeignLineage},
		"seq 5, restoring at 45":      {token(lineageA, 5, nonce, true, 45), NoStamp, Ahead, Partial, ForeignLineage},
		"seq 5, other, restoring":     {token(lineageA, 5, otherNonce, true, 45), NoStamp, Ahead, Partial, ForeignLineage},
		"seq 6":                       {token(lineageA, 6, nonce, false, 60), NoStamp, Ahead, Ahead, ForeignLineage},
		"seq 6, restoring at 45":      {token(lineageA, 6, nonce, true, 45), NoStamp, Ahead, Ahead, ForeignLineage},
		"seq 5 of another life":       {token(lineageB, 5, nonce, false, 50), NoStamp, ForeignLineage, ForeignLineage, InStep},
		"seq 4 of another life, part": {token(lineageB, 4, nonce, true, 45), NoStamp, ForeignLineage, ForeignLineage, Partial},
	}
	for name, r := range rows {
		stamps := map[string]struct {
			stamp *Stamp
			want  Verdict
		}{
			"no stamp":                {nil, r.none},
			"stamp at 0":              {committed(lineageA, 0, nonce, 0), r.zero},
			"stamp at 5":              {committed(lineageA, 5, nonce, 50), r.five},
			"stamp of another at 5":   {committed(lineageB, 5, nonce, 50), r.other},
			"stamp at 5, new store":   {&Stamp{Lineage: lineageA, Seq: 5, Nonce: nonce, Changelog: append(positions(50), Offset{"new", 1})}, r.five},
			"stamp at 5, fewer store": {&Stamp{Lineage: lineageA, Seq: 5, Nonce: nonce, Changelog: positions(50)[:1]}, r.five},
		}
		for against, s := range stamps {
			if got := Decide(r.token, s.stamp); got != s.want {
				t.Errorf("%s, %s: got %q, want %q", name, against, got, s.want)
			}
		}
	}
}

func TestVerdictNamesDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]Verdict{}
	for v := FirstClaim; v <= NoStamp; v++ {
		if other, twice := seen[v.String()]; twice || v.String() == Verdict(0).String() {
			t.Errorf("verdict %d has the name %q of verdict %d", v, v, other)
		}
		seen[v.String()] = v
	}
}

func TestLatest(t *testing.T) {
	t.Parallel()
	at := func(l Lineage, seq, nonce uint64) Stamp { return Stamp{Lineage: l, Seq: seq, Nonce: nonce} }
	for _, c := range []struct {
		name   string
		stamps []Stamp
		want   uint64
		err    string
	}{
		{"one", []Stamp{at(lineageA, 3, 1)}, 3, ""},
		{"highest first", []Stamp{at(lineageA, 7, 1), at(lineageA, 3, 2)}, 7, ""},
		{"highest last", []Stamp{at(lineageA, 3, 2), at(lineageA, 7, 1), at(lineageA, 7, 1)}, 7, ""},
		{"none", nil, 0, "no stamp"},
		{"two lineages", []Stamp{at(lineageA, 3, 1), at(lineageB, 7, 1)}, 0, lineageB.String()},
		{"one number twice", []Stamp{at(lineageA, 7, 1), at(lineageA, 7, 2)}, 0, "number 7"},
	} {
		got, err := Latest(c.stamps)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: got %v and error %v, want an error with %q", c.name, got, err, c.err)
			}
			continue
		}
		if err != nil || got.Seq != c.want {
			t.Errorf("%s: got seq %d and error %v, want %d", c.name, got.Seq, err, c.want)
		}
	}
}

func TestLineageString(t *testing.T) {
	t.Parallel()
	if got, want := lineageA.String(), "aa000000000000000000000000000001"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestTokenErrors(t *testing.T) {
	t.Parallel()
	good := exampleToken().Encode()
	if _, err := DecodeToken(""); !errors.Is(err, state.ErrCorrupt) {
		t.Errorf("empty token: got %v, want ErrCorrupt", err)
	}
	for i := range len(good) {
		if tok, err := DecodeToken(good[:i]); !errors.Is(err, state.ErrCorrupt) {
			t.Fatalf("token cut to %d of %d bytes: got %v, %v, want ErrCorrupt", i, len(good), tok, err)
		}
		for bit := range 8 {
			changed := []byte(good)
			changed[i] ^= 1 << bit
			if tok, err := DecodeToken(state.Token(changed)); !errors.Is(err, state.ErrCorrupt) {
				t.Fatalf("token with bit %d of byte %d flipped: got %v, %v, want ErrCorrupt", bit, i, tok, err)
			}
		}
	}
	newer := []byte(good)
	newer[0] = outboxVersion + 1
	wire.Seal(newer, 1)
	if _, err := DecodeToken(state.Token(newer)); !errors.Is(err, ErrNewer) || errors.Is(err, state.ErrCorrupt) {
		t.Errorf("token of a newer layout: got %v, want ErrNewer", err)
	}
	flagged := []byte(good)
	flagged[tokenHeadBytes+16+1+1+8+6] = 0x80 // epoch, seq, nonce, wall, flags
	wire.Seal(flagged, 1)
	if _, err := DecodeToken(state.Token(flagged)); !errors.Is(err, state.ErrCorrupt) {
		t.Errorf("token with an unknown flag: got %v, want ErrCorrupt", err)
	}
}

func TestStampErrors(t *testing.T) {
	t.Parallel()
	good := exampleStamp().Encode()
	for i := len(stampPrefix); i < len(good); i++ {
		if s, ours, err := DecodeStamp(good[:i]); !ours || err == nil {
			t.Fatalf("stamp cut to %d of %d bytes: got %v, ours %v, error %v", i, len(good), s, ours, err)
		}
		changed := []byte(good)
		changed[i] ^= 1
		if s, ours, err := DecodeStamp(string(changed)); !ours || err == nil {
			t.Fatalf("stamp with byte %d changed: got %v, ours %v, error %v", i, s, ours, err)
		}
	}
	for _, foreign := range []string{
		"", "V1N", "kgo-1-0e2b", "AgAAAZcxyTAA", "AQAAAZcxyTAA", "some note", strings.ToLower(good),
	} {
		if s, ours, err := DecodeStamp(foreign); ours || err != nil {
			t.Errorf("metadata %q: got %v, ours %v, error %v, want not ours", foreign, s, ours, err)
		}
	}
	newer := sealedStamp(outboxVersion+1, []byte("whatever comes"))
	if _, ours, err := DecodeStamp(newer); !ours || !errors.Is(err, ErrNewer) {
		t.Errorf("stamp of a newer layout: got ours %v, error %v, want ErrNewer", ours, err)
	}
	trailing := sealedStamp(stampVersion, append(stampBody(exampleStamp()), 0))
	if _, ours, err := DecodeStamp(trailing); !ours || err == nil {
		t.Errorf("stamp with a byte too much: got ours %v, error %v", ours, err)
	}
}

func TestStampIsCompact(t *testing.T) {
	t.Parallel()
	name := func(kind string, i int) string { return fmt.Sprintf("%s-%0*d", kind, 19-len(kind), i) }
	s := Stamp{Lineage: lineageA, Seq: 1 << 40, Nonce: 1 << 63, Times: []Time{{"", 1_790_000_000_000}}}
	for i := range 3 {
		s.Changelog = append(s.Changelog, Offset{name("store", i), 50_000_000_000})
	}
	for i := range 4 {
		s.Inputs = append(s.Inputs, Input{Topic: name("topic", i), ID: lineageB, LeaderEpoch: 1000, Partitions: 1000, Time: 1_790_000_000_000})
	}
	const limit = 600
	if got := len(s.Encode()); got > limit {
		t.Errorf("a stamp of 3 stores and 4 inputs takes %d bytes, want at most %d", got, limit)
	}
}

func TestMaxStampSize(t *testing.T) {
	t.Parallel()
	stores, inputs, times := []string{"counts", strings.Repeat("s", 200)}, []string{"orders", ""}, []string{"", "window"}
	const lowest = -1 << 63
	worst := Stamp{Lineage: lineageA, Seq: 1<<64 - 1, Nonce: 1<<64 - 1}
	for _, n := range stores {
		worst.Changelog = append(worst.Changelog, Offset{n, lowest})
	}
	for _, n := range times {
		worst.Times = append(worst.Times, Time{n, lowest})
	}
	for _, n := range inputs {
		worst.Inputs = append(worst.Inputs, Input{Topic: n, ID: lineageB, LeaderEpoch: -1 << 31, Partitions: -1 << 31, Time: lowest})
	}
	if got, want := MaxStampSize(stores, inputs, times), len(worst.Encode()); got != want {
		t.Errorf("MaxStampSize says %d, the longest stamp takes %d", got, want)
	}
	if got, want := MaxStampSize(nil, nil, nil), len((Stamp{Seq: 1<<64 - 1}).Encode()); got != want {
		t.Errorf("MaxStampSize of nothing says %d, the longest stamp takes %d", got, want)
	}
	worst.Changelog, worst.Outbox, worst.Last, worst.PastAt = nil, true, 1<<64-1, lowest
	for range MaxGaps {
		worst.Gaps = append(worst.Gaps, Gap{1<<64 - 1, 1<<64 - 1})
	}
	for i := range worst.Inputs {
		worst.Inputs[i].Past = lowest
	}
	if got, want := MaxOutboxStampSize(inputs, times), len(worst.Encode()); got != want {
		t.Errorf("MaxOutboxStampSize says %d, the longest stamp takes %d", got, want)
	}
}

func exampleToken() Token {
	return Token{
		Lineage: lineageA, Epoch: 3, Seq: 41, Nonce: 0xfeedfacecafebeef,
		Changelog: []Offset{{"counts", 812}, {"sums", 1 << 40}},
		Inputs:    []Offset{{"orders", 4000}, {"payments", 0}},
		Wall:      1_790_000_000_000,
		Times:     []Time{{"", 1_789_999_999_000}, {"window", -1}},
		Restoring: true,
	}
}

func outboxToken() Token {
	t := exampleToken()
	t.Restoring, t.Changelog = false, nil
	t.Outbox, t.Last = true, 40
	t.Highs = []High{{"by-key", 0, 3, lineageB, 17, 4}, {"by-key", 1, 0, lineageA, 1 << 40, 1<<32 - 1}, {"by-name", 0, 3, lineageB, 2, 0}}
	return t
}

func outboxStamp() Stamp {
	s := exampleStamp()
	s.Changelog = nil
	s.Outbox, s.Gaps, s.Last, s.PastAt = true, []Gap{{2, 5}, {7, 40}}, 41, 1_789_999_999_000
	s.Inputs[0].Past, s.Inputs[1].Past = 3999, -1
	return s
}

func exampleStamp() Stamp {
	return Stamp{
		Lineage: lineageA, Seq: 41, Nonce: 0xfeedfacecafebeef,
		Changelog: []Offset{{"counts", 812}, {"sums", 1 << 40}},
		Times:     []Time{{"", 1_789_999_999_000}},
		Inputs: []Input{
			{Topic: "orders", ID: lineageB, LeaderEpoch: 4, Partitions: 12, Time: 1_789_999_999_000},
			{Topic: "payments", ID: lineageA, LeaderEpoch: -1, Partitions: 12, Time: -1},
		},
	}
}
