package keyenc

import (
	"encoding/binary"
	"math/bits"
)

// Murmur2 is the 32-bit hash by which Kafka's default partitioner places keys
// (org.apache.kafka.common.utils.Utils.murmur2, seed 0x9747b28c).
func Murmur2(key []byte) int32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := uint32(seed) ^ uint32(len(key))
	for ; len(key) >= 4; key = key[4:] {
		k := binary.LittleEndian.Uint32(key) * m
		k ^= k >> r
		h = h*m ^ k*m
	}
	switch len(key) {
	case 3:
		h ^= uint32(key[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(key[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(key[0])) * m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return int32(h)
}

// Partition returns the partition of a topic with n partitions to which a
// non-null key belongs: the hash with its sign bit cleared, not its absolute
// value, modulo n. For a windowed key it takes the inner key's bytes alone.
// It panics unless n > 0.
func Partition(key []byte, n int32) int32 {
	if n <= 0 {
		panic("keyenc: partition of a topic without partitions")
	}
	return Murmur2(key) & 0x7fffffff % n
}

// ForeignKeySeed is the seed with which foreign-key joins hash the serialized
// left value.
const ForeignKeySeed = 104729

// Murmur3 is the 128-bit hash for x64 of MurmurHash3, as its two halves
// (org.apache.kafka.streams.state.internals.Murmur3.hash128).
func Murmur3(data []byte, seed uint32) (h1, h2 int64) {
	const (
		c1 = 0x87c37b91114253d5
		c2 = 0x4cf5ad432745937f
		r1 = 31
		r2 = 27
		r3 = 33
		m  = 5
		n1 = 0x52dce729
		n2 = 0x38495ab5
	)
	a, b := uint64(seed), uint64(seed)
	size := uint64(len(data))
	for ; len(data) >= 16; data = data[16:] {
		k1 := binary.LittleEndian.Uint64(data)
		k2 := binary.LittleEndian.Uint64(data[8:])
		a ^= bits.RotateLeft64(k1*c1, r1) * c2
		a = (bits.RotateLeft64(a, r2)+b)*m + n1
		b ^= bits.RotateLeft64(k2*c2, r3) * c1
		b = (bits.RotateLeft64(b, r1)+a)*m + n2
	}
	// The tail padded with zeros: a zero block mixes in as zero, as if it were
	// absent.
	var tail [16]byte
	copy(tail[:], data)
	b ^= bits.RotateLeft64(binary.LittleEndian.Uint64(tail[8:])*c2, r3) * c1
	a ^= bits.RotateLeft64(binary.LittleEndian.Uint64(tail[:])*c1, r1) * c2

	a ^= size
	b ^= size
	a += b
	b += a
	a = murmur3Final(a)
	b = murmur3Final(b)
	a += b
	b += a
	return int64(a), int64(b)
}

func murmur3Final(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return h
}
