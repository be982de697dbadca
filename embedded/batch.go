package embedded

import (
	"encoding/binary"
	"hash/crc32"
)

// Layout of a Kafka record batch, format 2 (KIP-98), big endian:
//
//	 0 base offset      8    23 last offset delta 4    51 producer epoch 2
//	 8 length           4    27 first timestamp   8    53 first sequence 4
//	12 leader epoch     4    35 max timestamp     8    57 records        4
//	16 magic            1    43 producer id       8    61 ...
//	17 crc32c           4
//	21 attributes       2
const (
	batchLengthEnd  = 12 // base offset and length: what must be read to know the size
	batchHeaderSize = 61
	batchCRCFrom    = 21 // the checksum covers the batch from here on
	batchMagic      = 2

	attrTransactional = 0x10
	attrControl       = 0x20

	// maxBatchBytes is the largest batch that is taken for real on disk.
	// Topics default to 1 MiB (max.message.bytes); past 1 GiB the broker itself
	// treats the length as damage.
	maxBatchBytes = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// batchHeader is the part of a record batch that recovery and the transaction
// gate look at.
type batchHeader struct {
	baseOffset  int64
	leaderEpoch int32
	attributes  uint16
	lastDelta   int32
	maxTime     int64
	producerID  int64
	epoch       int16
}

func (h *batchHeader) transactional() bool { return h.attributes&attrTransactional != 0 }
func (h *batchHeader) control() bool       { return h.attributes&attrControl != 0 }
func (h *batchHeader) lastOffset() int64   { return h.baseOffset + int64(h.lastDelta) }

// parseBatchHeader reads the header of a batch. It returns false when there
// are too few bytes or the format is not version 2.
func parseBatchHeader(b []byte) (batchHeader, bool) {
	if len(b) < batchHeaderSize || b[16] != batchMagic {
		return batchHeader{}, false
	}
	be := binary.BigEndian
	return batchHeader{
		baseOffset:  int64(be.Uint64(b)),
		leaderEpoch: int32(be.Uint32(b[12:])),
		attributes:  be.Uint16(b[21:]),
		lastDelta:   int32(be.Uint32(b[23:])),
		maxTime:     int64(be.Uint64(b[35:])),
		producerID:  int64(be.Uint64(b[43:])),
		epoch:       int16(be.Uint16(b[51:])),
	}, true
}

// batchChecksumHolds reports whether the stored checksum fits the batch.
func batchChecksumHolds(b []byte) bool {
	return binary.BigEndian.Uint32(b[17:]) == crc32.Checksum(b[batchCRCFrom:], castagnoli)
}
