package assign

import (
	"encoding/hex"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/weirstreams/weir/internal/topology"
)

func ids(pairs ...int32) []topology.TaskID {
	var list []topology.TaskID
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, topology.TaskID{Subtopology: pairs[i], Partition: pairs[i+1]})
	}
	return list
}

func exampleUserData() UserData {
	return UserData{
		Version: Version, ProcessID: ProcessID{0xa0, 15: 0xaf}, Worker: 3, Topology: Topology{0xb0, 7: 0xbf},
		Owned: ids(0, 0, 0, 1, 0, 5, 2, 7), Address: "h:1", Local: []LocalTask{{topology.TaskID{Subtopology: 1, Partition: 2}, 64}}, Capacity: 2,
	}
}

func exampleAssignment() Assignment {
	return Assignment{
		Version: Version, Generation: 9, FollowUp: true,
		Active: ids(0, 0, 0, 1, 0, 5, 2, 7), Standby: ids(1, 0),
		Hosts: []Host{{"h:1", ids(0, 0, 0, 1, 0, 5, 2, 7), ids(1, 0)}, {"i:1", ids(1, 0), nil}},
	}
}

// The layouts are what other members and later releases read, so the bytes are
// pinned here as docs/formats/group.md gives them.
func TestLayouts(t *testing.T) {
	t.Parallel()
	const tasks = "02" + "00" + "03" + "000003" + "01" + "01" + "07" // 0_0 0_1 0_5 2_7
	for _, c := range []struct {
		name string
		got  []byte
		want []string
	}{
		{"user data", exampleUserData().Encode(), []string{
			"01", "00", "a00000000000000000000000000000af", "06", "b0000000000000bf", tasks, // head
			"03683a31", "04", "01010102", "8001",
		}},
		{"assignment", exampleAssignment().Encode(), []string{
			"01", "00", "12", "00", "00", "01", tasks, // head
			"01010100", "02", "03683a31", tasks, "01010100", "03693a31", "01010100", "00",
		}},
		{"error", Assignment{Generation: 9, Error: &Error{CodeTopology, "no"}}.Encode(), []string{
			"01", "00", "12", "02", "026e6f", "00", "00", "00", "00",
		}},
	} {
		if got, want := hex.EncodeToString(c.got), strings.Join(c.want, ""); got != want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, want)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	const most = 1<<31 - 1
	for _, want := range []UserData{
		{Version: Version}, exampleUserData(),
		{Version: Version, Worker: -1 << 31, Capacity: most, Owned: ids(0, most, most, 0, most, most), Local: []LocalTask{{ids(most, most)[0], -1 << 63}}},
	} {
		got, err := DecodeUserData(want.Encode())
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v\nwant %+v", got, err, want)
		}
	}
	for _, want := range []Assignment{
		{Version: Version}, exampleAssignment(),
		{Version: Version, Generation: most, Error: &Error{255, strings.Repeat("x", 1000)}},
	} {
		got, err := DecodeAssignment(want.Encode())
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v\nwant %+v", got, err, want)
		}
	}
}

func TestEncodingIsCanonical(t *testing.T) {
	t.Parallel()
	u := exampleUserData()
	want := u.Encode()
	slices.Reverse(u.Owned)
	u.Owned = append(u.Owned, u.Owned[0])
	u.Local = append(u.Local, LocalTask{u.Local[0].ID, 1})
	before := slices.Clone(u.Owned)
	if got := u.Encode(); !slices.Equal(got, want) {
		t.Errorf("got %x\nwant %x", got, want)
	}
	if !slices.Equal(u.Owned, before) {
		t.Error("Encode changed the list it was given")
	}
}

func TestLaterMinorVersionIsRead(t *testing.T) {
	t.Parallel()
	u := append(exampleUserData().Encode(), 1, 2, 3)
	u[1]++
	if got, err := DecodeUserData(u); err != nil || !reflect.DeepEqual(got, exampleUserData()) {
		t.Errorf("got %+v, %v", got, err)
	}
	a := append(exampleAssignment().Encode(), 1, 2, 3)
	a[1]++
	if got, err := DecodeAssignment(a); err != nil || !reflect.DeepEqual(got, exampleAssignment()) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestNewerVersionYieldsItsHead(t *testing.T) {
	t.Parallel()
	u := exampleUserData()
	head := UserData{Version: Version + 1, ProcessID: u.ProcessID, Worker: u.Worker, Topology: u.Topology, Owned: u.Owned}
	b := append(UserData{ProcessID: u.ProcessID, Worker: u.Worker, Topology: u.Topology, Owned: u.Owned}.Encode(), 0xff, 0xff)
	b[0]++
	if got, err := DecodeUserData(b); !errors.Is(err, ErrNewer) || !reflect.DeepEqual(got, head) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, head)
	}
	want := Assignment{Version: Version + 1, Generation: 9, Error: &Error{CodeVersion, "upgrade"}, FollowUp: true, Active: ids(0, 3)}
	b = append(want.Encode(), 0xff, 0xff)
	b[0]++
	if got, err := DecodeAssignment(b); !errors.Is(err, ErrNewer) || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
}

func TestDamageIsRefused(t *testing.T) {
	t.Parallel()
	u, a := exampleUserData().Encode(), exampleAssignment().Encode()
	for i := range u {
		if got, err := DecodeUserData(u[:i]); err == nil || errors.Is(err, ErrNewer) {
			t.Fatalf("user data cut to %d of %d bytes: got %+v, %v", i, len(u), got, err)
		}
	}
	for i := range a {
		if got, err := DecodeAssignment(a[:i]); err == nil || errors.Is(err, ErrNewer) {
			t.Fatalf("assignment cut to %d of %d bytes: got %+v, %v", i, len(a), got, err)
		}
	}
	zero := slices.Clone(u)
	zero[0] = 0
	if _, err := DecodeUserData(zero); err == nil {
		t.Error("user data of version 0 was read")
	}
	zero = slices.Clone(a)
	zero[0] = 0
	if _, err := DecodeAssignment(zero); err == nil {
		t.Error("assignment of version 0 was read")
	}
	head := Assignment{}.Encode()
	head = head[:len(head)-2] // up to the standby list
	for name, list := range map[string][]byte{
		"count beyond the end":     {0xff, 0xff, 0xff, 0xff, 0x0f},
		"empty subtopology":        {1, 0, 0, 0},
		"subtopology over 31 bits": {1, 0x80, 0x80, 0x80, 0x80, 0x08, 1, 0, 0},
		"partition over 31 bits":   {1, 0, 2, 0xff, 0xff, 0xff, 0xff, 0x07, 0, 0},
	} {
		if got, err := DecodeAssignment(append(slices.Clone(head), list...)); err == nil {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

func TestTaskListsAreCompact(t *testing.T) {
	t.Parallel()
	var list []topology.TaskID
	for sub := range int32(4) {
		for p := int32(0); p < 250; p += 3 {
			list = append(list, topology.TaskID{Subtopology: sub, Partition: p})
		}
	}
	if got := len(appendTasks(nil, list)); got > len(list)+16 {
		t.Errorf("%d tasks take %d bytes, want about one each", len(list), got)
	}
}

func FuzzDecodeUserData(f *testing.F) {
	f.Add(exampleUserData().Encode())
	f.Add(UserData{}.Encode())
	f.Add([]byte{2, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		u, err := DecodeUserData(b)
		if err != nil {
			return
		}
		again, err := DecodeUserData(u.Encode())
		if err != nil || !reflect.DeepEqual(u, again) {
			t.Fatalf("decoded %+v, encoded and decoded again %+v, %v", u, again, err)
		}
	})
}

func FuzzDecodeAssignment(f *testing.F) {
	f.Add(exampleAssignment().Encode())
	f.Add(Assignment{Error: &Error{CodePartitions, "text"}}.Encode())
	f.Add([]byte{2, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := DecodeAssignment(b)
		if err != nil {
			return
		}
		again, err := DecodeAssignment(a.Encode())
		if err != nil || !reflect.DeepEqual(a, again) {
			t.Fatalf("decoded %+v, encoded and decoded again %+v, %v", a, again, err)
		}
	})
}
