package assign

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/weirstreams/weir/internal/topology"
)

// Version is the layout of UserData and Assignment that this release speaks.
// Members of different versions do not work in one group. A change that old
// readers can overlook appends fields and raises minorVersion only.
const (
	Version      = 1
	minorVersion = 0
)

// ErrNewer says that a message has a version that this release does not know.
// Its head, which is the same in all versions, was read nevertheless.
var ErrNewer = errors.New("written by a newer release")

// errDamaged is the decoder's finding before it is put into context.
var errDamaged = errors.New("the contents do not add up")

const flagFollowUp = 1 << 0

// Encode returns the user data in layout Version. Lists may be in any order;
// the encoding has them sorted and without repetitions, so that an unchanged
// member sends unchanged bytes, from which brokers see that no rebalance is
// needed.
func (u UserData) Encode() []byte {
	b := append(make([]byte, 0, 64), Version, minorVersion)
	b = append(b, u.ProcessID[:]...)
	b = binary.AppendVarint(b, int64(u.Worker))
	b = append(b, u.Topology[:]...)
	b = appendTasks(b, u.Owned)
	// Here ends the head.
	b = appendString(b, u.Address)
	b = binary.AppendVarint(b, int64(u.Capacity))
	local := slices.Clone(u.Local)
	slices.SortStableFunc(local, func(a, b LocalTask) int { return a.ID.Compare(b.ID) })
	local = slices.CompactFunc(local, func(a, b LocalTask) bool { return a.ID == b.ID })
	ids := make([]topology.TaskID, len(local))
	for i, l := range local {
		ids[i] = l.ID
	}
	b = appendTasks(b, ids)
	for _, l := range local {
		b = binary.AppendVarint(b, l.Position)
	}
	return b
}

// DecodeUserData reads what Encode wrote. Bytes that a later minor version
// appended are ignored. For a newer version it returns what the head says
// (Version, ProcessID, Worker, Topology, Owned) and an error that matches
// ErrNewer.
func DecodeUserData(b []byte) (UserData, error) {
	r := reader{b: b}
	version, _ := r.byte(), r.byte()
	u := UserData{Version: int(version)}
	r.fixed(u.ProcessID[:])
	u.Worker = r.int32()
	r.fixed(u.Topology[:])
	u.Owned = r.tasks()
	if version == 0 {
		r.fail()
	}
	if r.err == nil && version > Version {
		return u, fmt.Errorf("group member data of version %d: %w: this one reads up to version %d", version, ErrNewer, Version)
	}
	u.Address = r.string()
	u.Capacity = r.int32()
	if ids := r.tasks(); len(ids) > 0 {
		u.Local = make([]LocalTask, len(ids))
		for i, id := range ids {
			u.Local[i] = LocalTask{id, r.varint()}
		}
	}
	if r.err != nil {
		return UserData{}, fmt.Errorf("group member data of %d bytes: %w", len(b), r.err)
	}
	return u, nil
}

// Encode returns the assignment, but its Partitions, in layout Version.
func (a Assignment) Encode() []byte {
	b := append(make([]byte, 0, 64), Version, minorVersion)
	b = binary.AppendVarint(b, int64(a.Generation))
	var e Error
	if a.Error != nil {
		e = *a.Error
	}
	b = append(b, byte(e.Code))
	b = appendString(b, e.Text)
	var flags byte
	if a.FollowUp {
		flags |= flagFollowUp
	}
	b = append(b, flags)
	b = appendTasks(b, a.Active)
	// Here ends the head.
	b = appendTasks(b, a.Standby)
	b = binary.AppendUvarint(b, uint64(len(a.Hosts)))
	for _, h := range a.Hosts {
		b = appendString(b, h.Address)
		b = appendTasks(b, h.Active)
		b = appendTasks(b, h.Standby)
	}
	return b
}

// DecodeAssignment reads what Encode wrote. Bytes that a later minor version
// appended are ignored. For a newer version it returns what the head says
// (Version, Generation, Error, FollowUp, Active), so that a leader of a newer
// release can still tell an older member why it gets no tasks, and an error
// that matches ErrNewer.
func DecodeAssignment(b []byte) (Assignment, error) {
	r := reader{b: b}
	version, _ := r.byte(), r.byte()
	a := Assignment{Version: int(version)}
	a.Generation = r.int32()
	if code, text := ErrorCode(r.byte()), r.string(); code != 0 {
		a.Error = &Error{code, text}
	}
	a.FollowUp = r.byte()&flagFollowUp != 0
	a.Active = r.tasks()
	if version == 0 {
		r.fail()
	}
	if r.err == nil && version > Version {
		return a, fmt.Errorf("group assignment of version %d: %w: this one reads up to version %d", version, ErrNewer, Version)
	}
	a.Standby = r.tasks()
	if n := r.count(minHostBytes); n > 0 {
		a.Hosts = make([]Host, n)
		for i := range a.Hosts {
			a.Hosts[i] = Host{r.string(), r.tasks(), r.tasks()}
		}
	}
	if r.err != nil {
		return Assignment{}, fmt.Errorf("group assignment of %d bytes: %w", len(b), r.err)
	}
	return a, nil
}

// The shortest encodings of list elements: they bound what a damaged count
// can make the decoder allocate.
const (
	minHostBytes        = 3 // empty address, two empty lists
	minSubtopologyBytes = 3 // number, count, one partition
)

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendTasks writes a set of tasks: the number of subtopologies, and for each
// its number and a count of partitions, then the partitions. Numbers are the
// distance to the one before less one, so a task mostly takes one byte: every
// member gets the tasks of all hosts, and the broker keeps all of it in one
// record. Ids are never negative.
func appendTasks(b []byte, ids []topology.TaskID) []byte {
	ids = slices.Clone(ids)
	slices.SortFunc(ids, topology.TaskID.Compare)
	ids = slices.Compact(ids)
	var groups uint64
	for i, id := range ids {
		if i == 0 || id.Subtopology != ids[i-1].Subtopology {
			groups++
		}
	}
	b = binary.AppendUvarint(b, groups)
	for lastSub := int32(-1); len(ids) > 0; {
		sub, n := ids[0].Subtopology, 1
		for n < len(ids) && ids[n].Subtopology == sub {
			n++
		}
		b = binary.AppendUvarint(b, uint64(sub-lastSub-1))
		b = binary.AppendUvarint(b, uint64(n))
		last := int32(-1)
		for _, id := range ids[:n] {
			b = binary.AppendUvarint(b, uint64(id.Partition-last-1))
			last = id.Partition
		}
		ids, lastSub = ids[n:], sub
	}
	return b
}

// reader takes fields off the front of b. After an error every field is zero.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail() {
	r.b = nil
	if r.err == nil {
		r.err = errDamaged
	}
}

func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.fail()
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) fixed(dst []byte) { copy(dst, r.take(len(dst))) }

func (r *reader) byte() byte {
	if b := r.take(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) int32() int32 {
	v := r.varint()
	if v < math.MinInt32 || v > math.MaxInt32 {
		r.fail()
		return 0
	}
	return int32(v)
}

// count reads the length of a list whose elements take at least size bytes.
func (r *reader) count(size int) int {
	n := r.uvarint()
	if n > uint64(len(r.b)/size) {
		r.fail()
		return 0
	}
	return int(n)
}

func (r *reader) string() string { return string(r.take(r.count(1))) }

// after reads the distance from the number before and returns the number.
func (r *reader) after(last int32) int32 {
	d := r.uvarint()
	if d > math.MaxInt32 || int64(last)+1+int64(d) > math.MaxInt32 {
		r.fail()
		return 0
	}
	return last + 1 + int32(d)
}

func (r *reader) tasks() []topology.TaskID {
	var ids []topology.TaskID
	sub := int32(-1)
	for range r.count(minSubtopologyBytes) {
		sub = r.after(sub)
		partition := int32(-1)
		n := r.count(1)
		if n == 0 {
			r.fail() // the encoder writes no empty subtopology
		}
		for range n {
			partition = r.after(partition)
			ids = append(ids, topology.TaskID{Subtopology: sub, Partition: partition})
		}
	}
	if r.err != nil {
		return nil
	}
	return ids
}
