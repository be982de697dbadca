// Package sim is a deterministic simulation of applications that run through
// hostile times. The workers, tasks, changelogs and stores in it are those of
// production; Kafka is that of internal/simkafka, and the store of a kind that
// forgets, loses answers and carries things out late, as a Redis with a failover
// does. There is one goroutine at a time, one clock that only the simulation
// moves, and one source of chance.
//
// A plan is a list of steps that a seed makes within a scenario: send records,
// let instances work, let one of them die, stall or be refused at an await point,
// let the store forget. An await point is every call that leaves the process, to
// the broker or to the store, and every boundary of the commit protocol. While
// an instance stands still at one, the others go on. The same plan does the same
// in every run, so that a failure can be repeated by its seed, cut down to the
// steps that matter, and read as a story.
//
// # What has to hold
//
// After each step, and at the end when all faults have stopped:
//
//   - Chain. Each output of a key hashes the one before with what the record says
//     and with a salt that differs from one attempt to the next. So a reader of
//     what is committed finds out when an output is lost, doubled, reordered, or
//     was computed from a state that is not that of the output before. The records
//     are compared with the list of those that were sent, taken in order.
//   - Position. The offsets that the group holds are not ahead of the state: the
//     changelog up to the stamped position is the fold of exactly the records
//     below the committed offset.
//   - View. What a store holds under a token is the fold of the changelog up to
//     the token's position, never a mixture.
//   - Progress. When all faults have stopped every task runs within ten minutes,
//     all records that were sent are processed, and the stores agree with the
//     changelogs.
//
// An instance that was frozen goes on as a process does after SIGCONT: for some
// milliseconds it gets records, and does not hear that its group has gone on.
//
// With outboxes (at least once on a remote store) there is no changelog to compare
// with. The outputs without repetitions, those with an id that was seen, make the
// same chain; equal ids have equal contents; new ids come in order; and the state at
// the end is that of all records. Once the store has forgotten something it is only
// asked that no record is left out of outputs and state, as a reader sees them who
// drops repetitions.
//
// # Use
//
// Scenarios lists what can be played, by name; each is a family of plans, one per
// seed. A failure tells how to play it again.
//
//	go test ./internal/sim                                          some thousand plans
//	go test ./internal/sim -run 'TestScenarios/^regress$'           one scenario
//	go test ./internal/sim -run 'TestScenarios/^regress$' -sim.seed=7   one plan; -sim.whole, -sim.log tell more
//	make sim SEEDS=1000000                                          many, with progress
//	make sim-controls                                               the designs below
//
// Controls are designs that are known to be wrong, each a small change at a seam.
// A simulation that does not find them proves nothing.
//
// Two more layers are in the tests: the same plans on redisstore with a stand-in
// for the server (TestRedis), and the same topology and oracle with the real
// Kafka client and the embedded broker, in virtual time (TestClient,
// TestClientWithOutbox).
package sim
