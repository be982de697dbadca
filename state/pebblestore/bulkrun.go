package pebblestore

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/weirstreams/weir/state"
)

// A run is a file of sorted writes that a restore could not hold in memory
// until its next checkpoint. It does not outlive the process. It consists of
// frames of about runFrame bytes,
//
//	length(4) crc32c(4) payload
//
// and the payload of records, which may go across frames:
//
//	uvarint(len(key)) key uvarint(0)                   delete
//	uvarint(len(key)) key uvarint(len(value)+1) value  put

const (
	runFrame       = 64 << 10
	runFrameHeader = 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type runWriter struct {
	file vfs.File
	buf  []byte // a frame, header included
}

func newRunWriter(file vfs.File) *runWriter {
	return &runWriter{file: file, buf: make([]byte, runFrameHeader, runFrame+runFrameHeader)}
}

func (w *runWriter) add(key, value []byte) error {
	var n [binary.MaxVarintLen64]byte
	if err := w.write(n[:binary.PutUvarint(n[:], uint64(len(key)))]); err != nil {
		return err
	}
	if err := w.write(key); err != nil {
		return err
	}
	if value == nil {
		return w.write([]byte{0})
	}
	if err := w.write(n[:binary.PutUvarint(n[:], uint64(len(value))+1)]); err != nil {
		return err
	}
	return w.write(value)
}

func (w *runWriter) write(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), cap(w.buf)-len(w.buf))
		w.buf = append(w.buf, p[:n]...)
		p = p[n:]
		if len(w.buf) == cap(w.buf) {
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *runWriter) flush() error {
	payload := w.buf[runFrameHeader:]
	if len(payload) == 0 {
		return nil
	}
	binary.LittleEndian.PutUint32(w.buf, uint32(len(payload)))
	binary.LittleEndian.PutUint32(w.buf[4:], crc32.Checksum(payload, castagnoli))
	_, err := w.file.Write(w.buf)
	w.buf = w.buf[:runFrameHeader]
	return err
}

// finish writes the last frame and closes the file. The file is not synced: it
// is of no use after a crash.
func (w *runWriter) finish() error {
	err := w.flush()
	if cerr := w.file.Close(); err == nil {
		err = cerr
	}
	return err
}

// runReader is the source of the writes in a run.
type runReader struct {
	r      io.Reader
	header [runFrameHeader]byte
	frame  []byte
	rest   []byte // of the frame
	key    []byte
	value  []byte
	put    bool
	failed error
}

func newRunReader(r io.Reader) *runReader { return &runReader{r: r} }

func (r *runReader) next() bool {
	if r.failed != nil {
		return false
	}
	if len(r.rest) == 0 {
		switch err := r.readFrame(); err {
		case nil:
		case io.EOF:
			return false
		default:
			r.failed = err
			return false
		}
	}
	r.failed = r.readRecord()
	return r.failed == nil
}

func (r *runReader) readRecord() error {
	n, err := r.uvarint()
	if err != nil {
		return err
	}
	if r.key, err = r.bytes(r.key, n); err != nil {
		return err
	}
	if n, err = r.uvarint(); err != nil {
		return err
	}
	r.put = n > 0
	if !r.put {
		return nil
	}
	r.value, err = r.bytes(r.value, n-1)
	return err
}

func (r *runReader) readFrame() error {
	if _, err := io.ReadFull(r.r, r.header[:]); err != nil {
		if err == io.EOF {
			return err
		}
		return runDamage("header", err)
	}
	n := binary.LittleEndian.Uint32(r.header[:])
	if n == 0 || n > runFrame {
		return runDamage("length", fmt.Errorf("%d bytes", n))
	}
	if cap(r.frame) < int(n) {
		r.frame = make([]byte, runFrame)
	}
	r.frame = r.frame[:n]
	if _, err := io.ReadFull(r.r, r.frame); err != nil {
		return runDamage("payload", err)
	}
	if sum, want := crc32.Checksum(r.frame, castagnoli), binary.LittleEndian.Uint32(r.header[4:]); sum != want {
		return runDamage("checksum", fmt.Errorf("%08x instead of %08x", sum, want))
	}
	r.rest = r.frame
	return nil
}

func runDamage(what string, err error) error {
	return fmt.Errorf("file of a restore: frame %s: %w: %w", what, state.ErrCorrupt, err)
}

// more makes the rest of the frame not empty.
func (r *runReader) more() error {
	if len(r.rest) > 0 {
		return nil
	}
	err := r.readFrame()
	if err == io.EOF {
		return runDamage("end", io.ErrUnexpectedEOF)
	}
	return err
}

func (r *runReader) uvarint() (uint64, error) {
	var v uint64
	for shift := 0; shift < 64; shift += 7 {
		if err := r.more(); err != nil {
			return 0, err
		}
		c := r.rest[0]
		r.rest = r.rest[1:]
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return v, nil
		}
	}
	return 0, runDamage("number", fmt.Errorf("more than 64 bits"))
}

func (r *runReader) bytes(dst []byte, n uint64) ([]byte, error) {
	if n > maxBulkRecord {
		return dst, runDamage("record", fmt.Errorf("%d bytes", n))
	}
	if dst = dst[:0]; dst == nil {
		dst = []byte{}
	}
	for n > 0 {
		if err := r.more(); err != nil {
			return dst, err
		}
		k := min(n, uint64(len(r.rest)))
		dst = append(dst, r.rest[:k]...)
		r.rest = r.rest[k:]
		n -= k
	}
	return dst, nil
}

func (r *runReader) record() (key, value []byte) {
	if r.put {
		return r.key, r.value
	}
	return r.key, nil
}

func (r *runReader) err() error { return r.failed }
