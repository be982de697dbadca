// Package weirtest runs a topology in a test, without a broker, without
// goroutines, and in virtual time.
//
// What runs is what runs in production: workers, tasks, changelogs and stores,
// under transactions, on topics with as many partitions as there will be. Only
// Kafka is a model in memory. So a test can send records and look at outputs and
// tables, and it can also do what production does to a program: restart it,
// kill it at a chosen boundary of the commit protocol, pause it until another
// instance has taken over, take its local state away, or rebalance.
//
//	d := weirtest.New(t, topology, weirtest.Options{})
//	in, out := d.Input(ratings), d.Output(averages)
//	in.Send("ada", Rating{Movie: "362", Stars: 5})
//	records := out.Read()
//
// # When things happen
//
// Nothing runs by itself. Send returns when everything that follows from the
// record is processed and committed, over all subtopologies. Several records are
// processed as one batch, in one transaction, when they are sent inside of
// [Driver.Batch].
//
// The clock stands still while records are processed; [Driver.Advance] moves it,
// and with it wall-clock punctuations, idling tasks and timeouts. There is one
// exception: while tasks have no instance that runs them, time goes by until they
// have, since recovery takes time: a group waits for SessionTimeout before it
// gives the tasks of a dead member away.
//
// Records are processed by task in the order of their timestamps, as in
// production, and nothing waits for an input that is empty, unless MaxTaskIdle
// says so.
//
// # Use
//
// A Driver and all that comes from it belong to the goroutine of the test.
// Mistakes of the test and failures of the application end the test through
// testing.TB.Fatal, with a text that says what is wrong.
package weirtest
