package fence

import (
	"hash/crc32"

	"github.com/weirstreams/weir/internal/keyenc"
)

// Partitioner says on which partition a producer puts a key. It is safe for
// concurrent use and the same in every process.
type Partitioner interface {
	// Name is stored with the states: another one later is ErrLayout.
	Name() string
	// Partition returns the partition of a key in a topic of n partitions, or
	// -1 when any is right.
	Partition(key []byte, n int) int
}

// hashed is a partitioner that is a hash modulo the number of partitions. Of
// those it is known which slots a partition can reach.
type hashed interface {
	Partitioner
	hash(key []byte) uint32
}

// Partitioners.
var (
	// Murmur2 is the default of the Java client, franz-go, sarama's
	// compatible mode and librdkafka's murmur2 and murmur2_random.
	Murmur2 Partitioner = murmur2{}
	// CRC32 is librdkafka's consistent and consistent_random (its default), so
	// that of confluent-kafka-go, confluent-kafka-python and others.
	CRC32 Partitioner = crc{}
	// AnyPartition takes a key on any partition: it switches the check off.
	AnyPartition Partitioner = anyPartition{}
)

type murmur2 struct{}

func (murmur2) Name() string                      { return "murmur2" }
func (murmur2) hash(key []byte) uint32            { return uint32(keyenc.Murmur2(key)) & 0x7fffffff }
func (m murmur2) Partition(key []byte, n int) int { return int(m.hash(key) % uint32(n)) }

type crc struct{}

func (crc) Name() string                      { return "crc32" }
func (crc) hash(key []byte) uint32            { return crc32.ChecksumIEEE(key) }
func (c crc) Partition(key []byte, n int) int { return int(c.hash(key) % uint32(n)) }

type anyPartition struct{}

func (anyPartition) Name() string                  { return "any" }
func (anyPartition) Partition(_ []byte, _ int) int { return -1 }

// hashOf is the hash that the slot of a key comes from.
func hashOf(p Partitioner, key []byte) uint32 {
	if h, ok := p.(hashed); ok {
		return h.hash(key)
	}
	return murmur2{}.hash(key)
}

// reach lists the slots that keys of a partition can have: those congruent to
// it modulo the greatest common divisor of both numbers. Without a hash that
// decides on the partition it is all of them.
func reach(p Partitioner, partition, partitions, slots int) []int {
	step, first := 1, 0
	if _, ok := p.(hashed); ok {
		step = gcd(partitions, slots)
		first = partition % step
	}
	var list []int
	for s := first; s < slots; s += step {
		list = append(list, s)
	}
	return list
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// reach lists the slots that keys of a partition can have now.
func (f *Fence) reach(partition int32) []int {
	return reach(f.opts.Partitioner, int(partition), f.opts.Partitions, f.slots)
}
