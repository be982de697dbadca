// Package fence keeps the state of a plain consumer in Redis so that each record
// changes it once and no output is lost, whatever crashes, whoever is paused and
// whatever is read again.
//
// It is for people who write a consumer and not a topology. Beside each state
// stand the partition and the offset of the record that it comes from; beside
// each partition stand the epoch of its owner, the position up to which records
// were applied, and the pending window: what each record wrote, for all records
// that the group has not committed yet. One script compares and writes a whole
// batch. What becomes of a record is its [Verdict].
//
// The usual form of this contract compares the offset of a record with the last
// one of its key and sends the output again only when they are equal. It loses
// an output whenever two records of a key are in one batch and the process dies
// before the producer is flushed. The pending window closes that hole. See
// docs/fence.md.
//
// # Order
//
// The order of the steps is the contract, and [Consumer] keeps it: apply the
// batch, produce its outputs, flush, commit, and pass what was committed with
// the next batch. Never commit first.
//
// # Layers
//
// [Fence] takes plain values and knows no Kafka client. [Consumer] is the batch
// loop on franz-go. [Lease] takes the place of the group where there is none.
package fence
