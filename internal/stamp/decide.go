package stamp

import "slices"

// Verdict says how a view stands to what Kafka committed.
type Verdict uint8

// The verdicts of Decide. Only FirstClaim, InStep, Behind, Partial and NoView
// can be acted on without a person; the others mean that one of the two sides
// was changed behind the runtime's back.
const (
	// FirstClaim: no batch was ever committed, as far as either side knows.
	// There is no stamp, and no view, or a view that holds no batch because a
	// first claim was interrupted; its lineage then stays. A changelog that is
	// not empty is another system's state to take over: restore it whole.
	FirstClaim Verdict = iota + 1
	// InStep: the view holds exactly the batch that Kafka committed last.
	InStep
	// Behind: the view holds an earlier batch. Replay the changelog from the
	// token's positions to the stamp's.
	Behind
	// Partial: a restore was interrupted. The contents are no batch boundary;
	// replay from the token's positions to the stamp's before any use.
	Partial
	// NoView: Kafka has a stamp and the view is gone. Rebuild it whole.
	NoView
	// Ahead: the view holds what Kafka never committed: the committed offsets
	// were set back, or the view belongs to another cluster.
	Ahead
	// ForeignLineage: view and stamp are of two different lives of the task.
	ForeignLineage
	// OtherBatch: both stand at the same number, but it was given twice, and
	// the view holds the batch that was not committed.
	OtherBatch
	// NoStamp: the view holds batches and Kafka has no stamp: the group's
	// offsets expired, were deleted, or were set by another tool.
	NoStamp
	// OtherProtocol: one of the two has an outbox and the other a changelog, and
	// they are not at one batch.
	OtherProtocol
)

// String returns the verdict in words, for logs and errors.
func (v Verdict) String() string {
	switch v {
	case FirstClaim:
		return "first claim"
	case InStep:
		return "in step"
	case Behind:
		return "behind"
	case Partial:
		return "partial restore"
	case NoView:
		return "no view"
	case Ahead:
		return "ahead"
	case ForeignLineage:
		return "foreign lineage"
	case OtherBatch:
		return "other batch"
	case NoStamp:
		return "no stamp"
	case OtherProtocol:
		return "other protocol"
	}
	return "unknown verdict"
}

// Decide compares the token of a view, nil when there is no view, with the
// latest stamp of the task's committed offsets, nil when there is none.
//
// A difference of lineage outranks everything else, since sequence numbers and
// positions of two lineages cannot be compared. For a view under restore the
// positions decide, not the sequence numbers: as long as it holds nothing
// beyond the stamp the restore can be resumed.
func Decide(token *Token, stamp *Stamp) Verdict {
	switch {
	case stamp != nil && stamp.Outbox, token != nil && token.Outbox:
		return OtherProtocol
	case stamp == nil && (token == nil || token.Seq == 0):
		return FirstClaim
	case stamp == nil:
		return NoStamp
	case token == nil:
		return NoView
	case token.Lineage != stamp.Lineage:
		return ForeignLineage
	case token.Seq > stamp.Seq:
		return Ahead
	case token.Restoring && beyond(token.Changelog, stamp.Changelog):
		return Ahead
	case token.Restoring:
		return Partial
	case token.Seq < stamp.Seq:
		return Behind
	case token.Nonce != stamp.Nonce:
		return OtherBatch
	}
	return InStep
}

// DecideOutbox is Decide for a view with an outbox, which is the truth itself:
// Ahead is the usual case, as its outbox has what the group lacks, and Behind
// says that the store has forgotten batches. NoView cannot be mended. A view, or
// a task without one, may come from the protocol with a changelog when nothing is
// missing in it; stores says whether the task has stores.
func DecideOutbox(token *Token, stamp *Stamp, stores bool) Verdict {
	switch {
	case stamp == nil && token == nil:
		return FirstClaim
	case stamp == nil && (token.Outbox && token.Last == 0 || !token.Outbox && token.Seq == 0):
		return FirstClaim // one that was interrupted
	case stamp == nil:
		return NoStamp
	case token == nil && stamp.Outbox && stamp.Last == 0:
		return FirstClaim // no batch was ever applied, so nothing is lost
	case token == nil && !stamp.Outbox && !stores:
		return InStep
	case token == nil && !stamp.Outbox:
		return OtherProtocol
	case token == nil:
		return NoView
	case token.Lineage != stamp.Lineage:
		return ForeignLineage
	case !token.Outbox && (stamp.Outbox || token.Restoring || token.Seq != stamp.Seq || token.Nonce != stamp.Nonce):
		return OtherProtocol
	case !stamp.Outbox && token.Outbox && token.Last != stamp.Seq && (stores || token.Last > 0):
		return OtherProtocol
	case !token.Outbox || !stamp.Outbox:
		return InStep
	case token.Last < stamp.Last:
		return Behind
	case token.Last > stamp.Last:
		return Ahead
	}
	return InStep
}

// Acknowledged says whether the outputs of a batch of a view with an outbox are
// on the broker, as far as the stamp tells, and so those of all batches before it
// in the view. A stamp of the protocol with a changelog acknowledges all that it
// counts.
//
// The number alone tells it: a store that goes back over claims, to a former
// owner that stands still, lets that one go on with numbers which the claims have
// left out. They are not higher than what is acknowledged, and yet nobody has
// acknowledged them. The From of the last claim is acknowledged in any case: it
// was sent by that claim, under another number where it needed one.
func (s *Stamp) Acknowledged(seq uint64) bool {
	switch {
	case !s.Outbox:
		return seq <= s.Seq
	case seq > s.Last:
		return false
	case len(s.Gaps) > 0 && seq == s.Gaps[len(s.Gaps)-1].From:
		return true
	}
	return !slices.ContainsFunc(s.Gaps, func(g Gap) bool { return seq > g.From && seq <= g.Base })
}

// Stray says whether a batch that is not acknowledged may have a number below one
// that readers have seen, so that its outputs need others: it was applied by an
// owner that was fenced, to a store that has forgotten the claim.
func (s *Stamp) Stray(seq uint64) bool { return s.Outbox && seq <= s.Seq && !s.Acknowledged(seq) }

// Claimed returns the gaps behind a claim, which goes on behind batch from and
// begins with the number base. Those from later than that batch are part of the
// new one. The two oldest become one when there are too many: what lies between
// them then counts as not acknowledged, and is sent again should the store go back
// that far.
func Claimed(gaps []Gap, from, base uint64) []Gap {
	n := len(gaps)
	for n > 0 && gaps[n-1].From >= from {
		n--
	}
	list := append(slices.Clone(gaps[:n]), Gap{from, base})
	if len(list) > MaxGaps {
		list[1].From = list[0].From
		list = list[1:]
	}
	return list
}

// beyond reports whether a position is higher than the one of the same name.
// Names that only one side has are stores that were added or removed since.
func beyond(positions, limit []Offset) bool {
	for _, p := range positions {
		for _, l := range limit {
			if p.Name == l.Name && p.Next > l.Next {
				return true
			}
		}
	}
	return false
}
