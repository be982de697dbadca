// Package embedded runs a Kafka broker inside the process, for demos, tests and
// development without a cluster.
//
// Open starts it, ClientOptions are for a franz-go client that talks to it, and
// Close ends it. It is franz-go's kfake: transactions, consumer groups of the
// classic and the newer protocol, compaction, and everything else that a client
// asks of Kafka are there, on one goroutine and without replication. This
// package makes it safe to have in a process that matters, keeps its data in a
// folder if asked to, and offers what tests need: faults, held and altered
// requests, brokers that go down, leaders that move, and a look at offsets and
// groups. It works in a testing/synctest bubble.
//
// # What it promises
//
// In memory, which is the default, transactions are exactly once: a
// read_committed reader sees the records of every committed transaction and of
// no other, and offsets are committed with them or not at all. All of it is gone
// at Close.
//
// With Options.Dir the same holds while the process lives, and from a Close to
// the next Open. When the process is killed:
//
//   - Records and offsets that were acknowledged are there at the next Open, and
//     transactions that were open are aborted.
//   - A commit that was under way can be found half done, because the cluster
//     writes its markers one partition at a time, then the offsets: the records
//     can be visible on some partitions while the offsets are not committed. So
//     it is at least once across a kill.
//   - Records deleted with DeleteRecords since the last Close can come back.
//   - Open reads the whole folder, and needs memory for all of it at once.
//
// Use transactional ids that contain Incarnation. A loss of power can lose or
// damage what was acknowledged, as nothing is synced; Open refuses a damaged
// folder rather than guess. Data that matters belongs on a real Kafka.
//
// Whenever the broker stops, in either way, it forgets its group members and
// share groups. Groups keep their committed offsets.
//
// # Where it differs from Kafka
//
//   - Cleaning up runs only when asked for (Compact, Retain,
//     Options.CleanupInterval), since the cluster's own would compact over open
//     transactions.
//   - There is no default retention: a topic is kept for ever unless it says
//     otherwise.
//   - Compaction keeps tombstones for ever, and moves the log start of a
//     partition up to its first record.
//   - Sessions of group members may be as short as MinSessionTimeout.
//   - Produce requests name topics, not topic ids (version 12), so a producer
//     writes to a topic that was deleted and created again without noticing.
//   - Requests that would bring the cluster down close their connection instead.
//   - There is no security, quota, rack or tiered storage, and none of the
//     protocol for streams groups (KIP-1071).
//
// # Memory
//
// Without a folder all data is in memory, 25 to 120 bytes for a record of 100
// bytes. It comes back with Retain, Compact, DeleteRecords and DeleteTopic, a
// segment of 1 MiB at a time; a topic can set segment.bytes. With a folder only
// an index is in memory.
package embedded
