// Package weir processes streams of Kafka records with state, exactly once: it
// is to Go what Kafka Streams is to Java.
//
// A program declares a topology with a [Builder]: sources, steps and sinks as a
// chain of methods, of which the compiler infers every type; the examples of Builder
// and Processor show it.
//
// Mistakes are collected and returned by [Builder.Build], each with the step,
// its place in the program and the fix.
//
// # Names
//
// Whatever owns a topic or a store takes a name: aggregations, tables,
// repartitions and processors. State is found by name, so it does not move when
// the program around it changes. Names consist of ASCII letters, digits, '.',
// '_' and '-'. The topics are those of Kafka Streams:
// <application>-<store>-changelog and <application>-<name>-repartition.
//
// # Functions
//
// The functions given to steps are pure: they may be called again for the same
// record after a crash or an abort, from several goroutines at once for
// different partitions, and those of [Table.Filter] and [Table.MapValues] from
// readers of the table too. What can fail is [Stream.TryMapValues] or a
// [Processor]. A panic is caught and treated like a returned error.
//
// # Null keys and tombstones
//
// A record without a value, a tombstone, never reaches a function, and neither
// step nor serde ever makes one of a value; only a [Processor] sees it, as
// Record.Tombstone. A null key reaches a function as the zero value of its type.
// docs/operators.md says for each step what becomes of them.
package weir
