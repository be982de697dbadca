package embedded

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The files of the cluster that recovery looks into, version 1 of kfake's
// format (persist.go there; TestFolderFormat holds this file against it):
//
//	data/meta.json     {"version":1, ...}
//	data/topics.json   {"topics":[{"name":..., "partitions":n}, ...]}
//	data/groups.log    entries: committed offsets and groups
//	data/pids.log      entries: producer ids and epochs
//	data/partitions/<topic>-<n>/
//	  <base offset>.dat   record batches, one after another
//	  <base offset>.idx   for each batch, in order: version 1, low byte of the
//	                      crc32c of the rest 1, leader epoch 4, running maximum
//	                      of timestamps 8, flags 1 (bit 0: transactional data)
//	  snapshot.json       state at the last clean stop; used if it fits the
//	                      sizes of the segments
//
// An entry of a log is: length of what follows the checksum 4, crc32c of it 4,
// version 2, JSON. Numbers in indexes and logs are little endian.
//
// What a kill leaves, and what the cluster would make of it:
//
//   - A batch without its index entry: the two are written one after the other.
//     Later entries would be taken for earlier batches, so that aborted records
//     are read as committed. The index is made anew.
//   - Half an entry at the end of a log: new entries would go behind it, and the
//     next start would drop them, committed offsets included. It is cut off.
//   - Half a batch at the end of a partition: cut off, as the cluster does too.
//   - A transaction that was open: the cluster aborts it in memory only. Records
//     that the same transactional id commits later would be hidden from
//     read_committed readers, and after one more restart the aborted ones would
//     be seen. Abort markers are written.
//   - The folder of a partition that no longer exists: a new topic of the same
//     name would write behind the old records. It is removed.
const (
	clusterFormat  = 1
	indexEntrySize = 15
	logHeaderSize  = 8
)

// leftovers is what recovery found.
type leftovers struct {
	topics []string
	open   []openTransaction
}

// openTransaction is a transaction that no marker ends on a partition.
type openTransaction struct {
	topic      string
	partition  int32
	producerID int64
	epoch      int16 // producer epoch
	first      int64 // offset of its first record
}

// recover brings the files into a state from which the cluster goes on
// correctly, or fails with ErrFolderCorrupt.
func (f *folder) recover() (leftovers, error) {
	var left leftovers
	if err := f.restoreSaved(); err != nil {
		return left, err
	}
	var meta struct {
		Version int `json:"version"`
	}
	found, err := readJSON(filepath.Join(f.data, "meta.json"), &meta)
	if err != nil {
		return left, err
	}
	if !found {
		// A first start, or one that was killed before it wrote anything.
		return left, nil
	}
	if meta.Version != clusterFormat {
		return left, fmt.Errorf("%w: %s has version %d, this version reads %d", ErrFolderForeign, filepath.Join(f.data, "meta.json"), meta.Version, clusterFormat)
	}
	if err := f.dropSessions(); err != nil {
		return left, err
	}
	for _, name := range []string{"groups.log", "pids.log"} {
		if err := f.repairLog(filepath.Join(f.data, name)); err != nil {
			return left, err
		}
	}
	partitions, err := f.readTopics()
	if err != nil {
		return left, err
	}
	for name := range partitions {
		left.topics = append(left.topics, name)
	}
	slices.Sort(left.topics)

	dirs, err := os.ReadDir(filepath.Join(f.data, partsName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return left, fmt.Errorf("folder: %w", err)
	}
	for _, d := range dirs {
		path := filepath.Join(f.data, partsName, d.Name())
		p, ok := parsePartitionDir(d.Name())
		if !ok {
			return left, fmt.Errorf("%w: %s is no partition", ErrFolderForeign, path)
		}
		if p.partition < 0 || p.partition >= partitions[p.topic] {
			f.log.Warn("removing a partition whose topic was deleted", keyTopic, p.topic, keyPartition, p.partition)
			if err := os.RemoveAll(path); err != nil {
				return left, fmt.Errorf("folder: %w", err)
			}
			continue
		}
		open, err := f.repairPartition(path, p)
		if err != nil {
			return left, err
		}
		left.open = append(left.open, open...)
	}
	return left, nil
}

// readTopics returns the partition count of each topic.
func (f *folder) readTopics() (map[string]int32, error) {
	var list struct {
		Topics []struct {
			Name       string `json:"name"`
			Partitions int32  `json:"partitions"`
		} `json:"topics"`
	}
	path := filepath.Join(f.data, "topics.json")
	found, err := readJSON(path, &list)
	if err != nil {
		return nil, err
	}
	if !found {
		// It is written before the first partition is.
		if _, err := os.Stat(filepath.Join(f.data, partsName)); !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: %s is missing", ErrFolderCorrupt, path)
		}
	}
	partitions := make(map[string]int32, len(list.Topics))
	for _, t := range list.Topics {
		partitions[t.Name] = t.Partitions
	}
	return partitions, nil
}

// readJSON reads a file that is always replaced as a whole.
func readJSON(path string, v any) (found bool, err error) {
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("folder: %w", err)
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return false, fmt.Errorf("%w: %s: %w", ErrFolderCorrupt, path, err)
	}
	return true, nil
}

// repairLog cuts half an entry off the end of a log.
func (f *folder) repairLog(path string) error {
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("folder: %w", err)
	}
	good, err := scanLog(raw)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrFolderCorrupt, path, err)
	}
	return f.cut(path, int64(len(raw)), int64(good))
}

// scanLog returns the length of the whole entries at the start of a log. It
// fails on damage that is not a short end.
func scanLog(raw []byte) (int, error) {
	le := binary.LittleEndian
	for pos := 0; ; {
		rest := raw[pos:]
		if len(rest) < logHeaderSize {
			return pos, nil
		}
		n := int64(le.Uint32(rest))
		if n < 2 {
			return 0, fmt.Errorf("entry at byte %d has length %d", pos, n)
		}
		if int64(len(rest)) < logHeaderSize+n {
			return pos, nil
		}
		body := rest[logHeaderSize : logHeaderSize+n]
		if crc32.Checksum(body, castagnoli) != le.Uint32(rest[4:]) {
			return 0, fmt.Errorf("entry at byte %d has a bad checksum", pos)
		}
		pos += logHeaderSize + int(n)
	}
}

// cut shortens a file to what is whole.
func (f *folder) cut(path string, size, good int64) error {
	if good == size {
		return nil
	}
	f.log.Warn("cut off the torn end of a file", keyFile, path, keyBytes, size-good)
	if err := os.Truncate(path, good); err != nil {
		return fmt.Errorf("folder: %w", err)
	}
	return nil
}

// repairPartition checks the segments of a partition, makes their indexes fit,
// and returns the transactions that are open at its end.
func (f *folder) repairPartition(dir string, p partitionName) ([]openTransaction, error) {
	names, err := segmentFiles(dir)
	if err != nil {
		return nil, fmt.Errorf("folder: %w", err)
	}
	var bases []int64
	for _, name := range names {
		stem, isSegment := strings.CutSuffix(name, segmentExt)
		if !isSegment {
			continue
		}
		base, err := strconv.ParseInt(stem, 10, 64)
		if err != nil || base < 0 {
			return nil, fmt.Errorf("%w: %s is no segment", ErrFolderForeign, filepath.Join(dir, name))
		}
		bases = append(bases, base)
	}
	slices.Sort(bases)

	open := make(map[int64]openTransaction)
	next := int64(0)
	for i, base := range bases {
		path := filepath.Join(dir, strconv.FormatInt(base, 10)+segmentExt)
		headers, good, size, err := scanSegment(path, max(next, base))
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrFolderCorrupt, path, err)
		}
		if good != size && i < len(bases)-1 {
			return nil, fmt.Errorf("%w: %s ends in half a batch at byte %d although later segments follow", ErrFolderCorrupt, path, good)
		}
		if err := f.cut(path, size, good); err != nil {
			return nil, err
		}
		if err := f.repairIndex(strings.TrimSuffix(path, segmentExt)+indexExt, headers); err != nil {
			return nil, err
		}
		for _, h := range headers {
			next = h.lastOffset() + 1
			_, isOpen := open[h.producerID]
			switch {
			case h.control():
				delete(open, h.producerID)
			case h.transactional() && !isOpen:
				open[h.producerID] = openTransaction{p.topic, p.partition, h.producerID, h.epoch, h.baseOffset}
			}
		}
	}
	if err := f.checkSnapshot(filepath.Join(dir, snapshotNam), len(open) > 0); err != nil {
		return nil, err
	}
	list := make([]openTransaction, 0, len(open))
	for _, t := range open {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b openTransaction) int { return int(a.first - b.first) })
	return list, nil
}

// scanSegment reads the batches of a segment. It returns their headers, the
// length of the whole batches, and the size of the file. A short end is no
// error; anything else that is wrong is.
func scanSegment(path string, next int64) (headers []batchHeader, good, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, 0, err
	}
	size = info.Size()
	r := bufio.NewReaderSize(f, 256<<10)
	var batch []byte
	for {
		batch = grow(batch, batchLengthEnd)
		if size-good < batchLengthEnd {
			return headers, good, size, nil
		}
		if _, err := io.ReadFull(r, batch); err != nil {
			return nil, 0, 0, err
		}
		length := int64(int32(binary.BigEndian.Uint32(batch[8:])))
		if length < batchHeaderSize-batchLengthEnd || length > maxBatchBytes {
			return nil, 0, 0, fmt.Errorf("batch at byte %d has length %d", good, length)
		}
		if size-good < batchLengthEnd+length {
			return headers, good, size, nil
		}
		batch = grow(batch, batchLengthEnd+int(length))
		if _, err := io.ReadFull(r, batch[batchLengthEnd:]); err != nil {
			return nil, 0, 0, err
		}
		h, ok := parseBatchHeader(batch)
		switch {
		case !ok:
			return nil, 0, 0, fmt.Errorf("batch at byte %d has another format than 2", good)
		case !batchChecksumHolds(batch):
			return nil, 0, 0, fmt.Errorf("batch at byte %d has a bad checksum", good)
		case h.baseOffset < next || h.lastDelta < 0:
			return nil, 0, 0, fmt.Errorf("batch at byte %d has offset %d, want %d or more", good, h.baseOffset, next)
		}
		headers = append(headers, h)
		next = h.lastOffset() + 1
		good += batchLengthEnd + length
	}
}

// repairIndex makes an index anew when it does not have one good entry for each
// batch.
func (f *folder) repairIndex(path string, headers []batchHeader) error {
	raw, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("folder: %w", err)
	}
	fits := len(raw) == len(headers)*indexEntrySize
	for i := 0; fits && i < len(raw); i += indexEntrySize {
		e := raw[i : i+indexEntrySize]
		fits = e[0] == clusterFormat && e[1] == byte(crc32.Checksum(e[2:], castagnoli))
	}
	if fits {
		return nil
	}
	f.log.Warn("made an index anew", keyFile, path, keyCount, len(headers))
	if err := writeFile(path, makeIndex(headers)); err != nil {
		return fmt.Errorf("folder: %w", err)
	}
	return nil
}

func makeIndex(headers []batchHeader) []byte {
	le := binary.LittleEndian
	index := make([]byte, 0, len(headers)*indexEntrySize)
	var latest int64
	for i, h := range headers {
		if i == 0 || h.maxTime > latest {
			latest = h.maxTime
		}
		var e [indexEntrySize]byte
		e[0] = clusterFormat
		le.PutUint32(e[2:], uint32(h.leaderEpoch))
		le.PutUint64(e[6:], uint64(latest))
		if h.transactional() && !h.control() {
			e[14] = 1
		}
		e[1] = byte(crc32.Checksum(e[2:], castagnoli))
		index = append(index, e[:]...)
	}
	return index
}

// checkSnapshot removes a snapshot that would bring an open transaction back:
// the cluster would wait for its end, which never comes.
func (f *folder) checkSnapshot(path string, open bool) error {
	var snap struct {
		End        int64 `json:"high_watermark"`
		LastStable int64 `json:"last_stable_offset"`
	}
	found, err := readJSON(path, &snap)
	if err != nil || !found || !open && snap.End == snap.LastStable {
		return err
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("folder: %w", err)
	}
	return nil
}
