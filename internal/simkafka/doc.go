// Package simkafka is a Kafka in memory for tests and simulations: topics with
// transactions and compaction, producers that are fenced, and consumer groups
// that rebalance, behind the seam through which workers reach a broker.
//
// It is deterministic. There is no goroutine, socket, clock or random source of
// its own: the clock and, where one is wanted, a seeded source are passed in,
// and nothing happens but inside a call. So a call never waits: where a real
// client would, it returns what there is, or an error that says to ask again.
// Timeouts of sessions, rebalances and transactions take effect at the first
// call after they are due.
//
// Each call through the seam goes by a hook first, which can fail it, carry it
// out and lose the answer, keep it for later, or let the caller die in it.
//
// What is modelled, and where the rule comes from:
//
//   - Offsets count transaction markers (KIP-98). A read-committed reader stops
//     at the last stable offset and does not see aborted records; markers are
//     returned as control records, as a client that keeps them does.
//   - Each end of a transaction raises the producer epoch (KIP-890), and so does
//     a new producer with the same transactional id, which aborts what the old
//     one left open. A request with an older epoch is refused.
//   - The markers of a transaction can be held, so that they arrive at the logs
//     and at the offsets one by one and in any order.
//   - Offsets committed in a transaction are pending until its end, and a stable
//     fetch reports them so (KIP-447). They carry member and generation, and a
//     stale one is refused (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID).
//   - Groups rebalance by the classic protocol, cooperatively (KIP-429): join of
//     all, plan of the leader, sync, revocation, and another round when a member
//     gave something up. Plans are those of internal/assign, through its
//     encodings.
//   - Compaction keeps the last value of each key below the last stable offset
//     and leaves offsets unused; tombstones and markers go in a later pass, once
//     delete.retention.ms is over (KIP-534). DeleteRecords and retention raise
//     the log's start.
//
// A log has one replica, so its end is the high watermark.
package simkafka
