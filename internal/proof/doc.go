// Package proof holds the tests that run whole applications against whole
// brokers: programs that are killed at each boundary of the commit protocol, a
// real data set counted while instances come and go, and one suite of
// situations for every broker. It has no code of its own.
//
// Without a build tag the tests use the embedded broker. With the tag
// integration they use the Kafka at WEIR_KAFKA as well, and fail when the
// variable is missing. Names of topics and applications are new in each run, so
// that several runs can share a broker.
package proof
