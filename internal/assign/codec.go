package assign

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/weirstreams/weir/internal/topology"
	"github.com/weirstreams/weir/internal/wire"
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
	b = wire.AppendString(b, u.Address)
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
	r := reader{wire.NewReader(b)}
	version, _ := r.Byte(), r.Byte()
	u := UserData{Version: int(version)}
	r.Fixed(u.ProcessID[:])
	u.Worker = r.Int32()
	r.Fixed(u.Topology[:])
	u.Owned = r.tasks()
	if version == 0 {
		r.Fail()
	}
	if !r.Bad() && version > Version {
		return u, fmt.Errorf("group member data of version %d: %w: this one reads up to version %d", version, ErrNewer, Version)
	}
	u.Address = r.String()
	u.Capacity = r.Int32()
	if ids := r.tasks(); len(ids) > 0 {
		u.Local = make([]LocalTask, len(ids))
		for i, id := range ids {
			u.Local[i] = LocalTask{id, r.Varint()}
		}
	}
	if r.Bad() {
		return UserData{}, fmt.Errorf("group member data of %d bytes: %w", len(b), errDamaged)
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
	b = wire.AppendString(b, e.Text)
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
		b = wire.AppendString(b, h.Address)
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
	r := reader{wire.NewReader(b)}
	version, _ := r.Byte(), r.Byte()
	a := Assignment{Version: int(version)}
	a.Generation = r.Int32()
	if code, text := ErrorCode(r.Byte()), r.String(); code != 0 {
		a.Error = &Error{code, text}
	}
	a.FollowUp = r.Byte()&flagFollowUp != 0
	a.Active = r.tasks()
	if version == 0 {
		r.Fail()
	}
	if !r.Bad() && version > Version {
		return a, fmt.Errorf("group assignment of version %d: %w: this one reads up to version %d", version, ErrNewer, Version)
	}
	a.Standby = r.tasks()
	if n := r.Count(minHostBytes); n > 0 {
		a.Hosts = make([]Host, n)
		for i := range a.Hosts {
			a.Hosts[i] = Host{r.String(), r.tasks(), r.tasks()}
		}
	}
	if r.Bad() {
		return Assignment{}, fmt.Errorf("group assignment of %d bytes: %w", len(b), errDamaged)
	}
	return a, nil
}

// The shortest encodings of list elements: they bound what a damaged count
// can make the decoder allocate.
const (
	minHostBytes        = 3 // empty address, two empty lists
	minSubtopologyBytes = 3 // number, count, one partition
)

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

// reader reads what user data and assignments are made of.
type reader struct{ wire.Reader }

// after reads the distance from the number before and returns the number.
func (r *reader) after(last int32) int32 {
	d := r.Uvarint()
	if d > math.MaxInt32 || int64(last)+1+int64(d) > math.MaxInt32 {
		r.Fail()
		return 0
	}
	return last + 1 + int32(d)
}

func (r *reader) tasks() []topology.TaskID {
	var ids []topology.TaskID
	sub := int32(-1)
	for range r.Count(minSubtopologyBytes) {
		sub = r.after(sub)
		partition := int32(-1)
		n := r.Count(1)
		if n == 0 {
			r.Fail() // the encoder writes no empty subtopology
		}
		for range n {
			partition = r.after(partition)
			ids = append(ids, topology.TaskID{Subtopology: sub, Partition: partition})
		}
	}
	if r.Bad() {
		return nil
	}
	return ids
}
