package fence

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirstreams/weir/internal/redisconn"
)

// The names of the keys and what they hold are a contract: docs/formats/fence.md.
// A change of it takes another version.
func TestFormat(t *testing.T) {
	t.Parallel()
	f, m := openMini(t, Options{Topic: "orders", Partitions: 12, TTL: 2 * time.Hour, Retention: time.Hour})
	key := []byte("alice")
	p := int32(Murmur2.Partition(key, 12))
	c := mustClaim(t, f, Assignment{Partition: p, Committed: -1, Begin: 100, TopicID: [16]byte{0xab}})
	if _, err := c.Apply(t.Context(), Batch{Records: []Record{{Offset: 100, Key: key, Op: Set([]byte("one\ntwo"))}, {Offset: 101, Key: key, Op: Delete()},
		{Offset: 102, Key: key, Op: SetAdd("x")}, {Offset: 103, Key: key, Op: Keep(), Output: []byte("out")}}, Next: 110}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Lease(t.Context(), p, time.Minute); err != nil {
		t.Fatal(err)
	}
	const prefix = "fence:{orders/9/261}:"
	want := []string{prefix + "l9", prefix + "malice", prefix + "p9", prefix + "salice", prefix + "w9", "fence:{orders}:layout"}
	if got := m.Keys(); !slices.Equal(got, want) {
		t.Errorf("keys %q, want %q", got, want)
	}
	if text, err := m.Get(prefix + "salice"); err != nil || text != "9 12 1 103 set\n1" {
		t.Errorf("state %q, error %v", text, err)
	}
	if list, err := m.List(prefix + "w9"); err != nil || !slices.Equal(list, []string{"100-103-4", "9 12 1 100\none\ntwo", "9 12 1 101", "9 12 1 102 change\n1 1", "9 12 1 103 output\nout"}) {
		t.Errorf("window %q, error %v", list, err)
	}
	for field, want := range map[string]string{"v": "2", "pos": "110", "begin": "100", "committed": "100", "lineage": "1", "since": "1", "count": "12", "topic": "ab000000000000000000000000000000", "doubt": ""} {
		if got := m.HGet(prefix+"p9", field); got != want {
			t.Errorf("field %s is %q, want %q", field, got, want)
		}
	}
	owner := m.HGet(prefix+"p9", "owner")
	if epoch, nonce, _ := strings.Cut(owner, " "); epoch != "1" || len(nonce) != 16 {
		t.Errorf("owner %q", owner)
	}
	for field, want := range map[string]string{"v": "2", "slots": "12", "partitioner": "murmur2"} {
		if got := m.HGet("fence:{orders}:layout", field); got != want {
			t.Errorf("field %s of the layout is %q, want %q", field, got, want)
		}
	}
	if got := m.TTL(prefix + "salice"); got != 2*time.Hour {
		t.Errorf("the state lives for %v", got)
	}
}

// A window that is damaged is found out, wherever it is.
func TestSegments(t *testing.T) {
	t.Parallel()
	good := []string{"1-3-2", "9 12 1 1\nx", "9 12 1 3", "2-2-1", "9 12 1 2 output\no"}
	all, err := segments(good)
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, error %v", all, err)
	}
	if list := all[segment{1, 3, 2}]; len(list) != 2 || string(list[0].value) != "sx" || list[1].offset != 3 || string(list[1].value) != "n" {
		t.Errorf("%v", list)
	}
	if list := all[segment{2, 2, 1}]; len(list) != 1 || string(list[0].value) != "oo" {
		t.Errorf("%v", list)
	}
	for _, bad := range []struct {
		at   int
		text string
	}{{0, "3-1-2"}, {0, "x"}, {1, ""}, {1, "9 12 1"}, {2, "9 12 1 x"}, {3, "9 12 1 2"}, {4, "2-2-1"}} {
		list := slices.Clone(good)
		list[bad.at] = bad.text
		if _, err := segments(list); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%q: %v, want ErrCorrupt", list, err)
		}
	}
	for n := range good {
		if _, err := segments(good[:n]); (err == nil) != (n == 0 || n == 3) {
			t.Errorf("%d elements: %v", n, err)
		}
	}
}

// What the owner looks for in the window is there, or the window is damaged.
func TestSegmentIsGone(t *testing.T) {
	t.Parallel()
	f, m := openMini(t, Options{Topic: "t", Partitions: 1})
	c := mustClaim(t, f, Assignment{Committed: -1})
	var b Batch
	for o := range int64(3) {
		b.Records = append(b.Records, Record{Offset: o, Key: []byte("k"), Op: Set([]byte{'a' + byte(o)})})
	}
	if _, err := c.Apply(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	m.Del(f.stateKey(0, []byte("k")))
	calls := 0
	update := func() error {
		_, err := c.Update(t.Context(), b, func(*Record, []byte, bool) (Change, error) {
			calls++
			return Change{}, nil
		})
		return err
	}
	if err := update(); err != nil || calls != 0 {
		t.Errorf("the state was deleted by hand, and its outputs are there: error %v, computed %d", err, calls)
	}
	window := f.partitionKey(0, "w", 0)
	if _, err := m.Lpop(window); err != nil {
		t.Fatal(err)
	}
	if err := update(); !errors.Is(err, ErrCorrupt) || calls != 0 {
		t.Errorf("the window was damaged: %v, computed %d, want ErrCorrupt", err, calls)
	}
}

// The tags of the slots of a topic are spread over the nodes of a cluster.
func TestSlotsAreSpread(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{12, 48, 256} {
		for _, nodes := range []int{3, 5} {
			count := make([]int, nodes)
			for s := range slots {
				tag, _, _ := strings.Cut(strings.SplitN(prefix("fence", "orders", s), "{", 2)[1], "}")
				count[int(redisconn.CRC16(tag)%redisconn.Slots)*nodes/redisconn.Slots]++
			}
			if most := slices.Max(count); most > slots/nodes+2+slots/24 {
				t.Errorf("%d slots on %d nodes: %v", slots, nodes, count)
			}
		}
	}
}

// The vectors are those of librdkafka's tests; those of murmur2 come from the
// Java client.
func TestPartitioners(t *testing.T) {
	t.Parallel()
	for key, hash := range map[string][2]uint32{
		"":      {0x106e08d9, 0},
		"23456": {0x058d780f, 0xb1b451d7},
		"this is another string with more length to it perhaps": {0x4f7703da, 0xb0150df7},
		"hejsan": {0x5ec19395, 0xd077037e},
	} {
		for _, n := range []int{1, 7, 12, 17, 5000} {
			if got, want := Murmur2.Partition([]byte(key), n), int(hash[0]%uint32(n)); got != want {
				t.Errorf("murmur2 of %q is %d of %d, want %d", key, got, n, want)
			}
			if got, want := CRC32.Partition([]byte(key), n), int(hash[1]%uint32(n)); got != want {
				t.Errorf("crc32 of %q is %d of %d, want %d", key, got, n, want)
			}
		}
	}
}

// A key that is rightly on a partition is in a slot that the partition reaches,
// for any numbers of both.
func TestReach(t *testing.T) {
	t.Parallel()
	for _, p := range []Partitioner{Murmur2, CRC32, AnyPartition, custom{}} {
		for partitions := 1; partitions <= 30; partitions++ {
			for slots := 1; slots <= 30; slots++ {
				for i := range 20 {
					key := []byte{byte(i), byte(partitions), byte(slots)}
					at := max(p.Partition(key, partitions), 0)
					list := reach(p, at, partitions, slots)
					if !slices.Contains(list, int(hashOf(p, key)%uint32(slots))) {
						t.Fatalf("%s: key %x on partition %d of %d: %v of %d slots", p.Name(), key, at, partitions, list, slots)
					}
				}
			}
		}
	}
}

// A lease is held by one, is prolonged, runs out, and can be given up.
func TestLease(t *testing.T) {
	t.Parallel()
	f, m := openMini(t, Options{Topic: "orders", Partitions: 3})
	ctx := t.Context()
	a, err := f.Lease(ctx, 1, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Lease(ctx, 1, 10*time.Second); !errors.Is(err, ErrLeaseHeld) {
		t.Errorf("%v, want ErrLeaseHeld", err)
	}
	if _, err := f.Lease(ctx, 2, 10*time.Second); err != nil {
		t.Errorf("another partition: %v", err)
	}
	m.FastForward(8 * time.Second)
	if err := a.Renew(ctx); err != nil {
		t.Fatal(err)
	}
	m.FastForward(8 * time.Second)
	if _, err := f.Lease(ctx, 1, 10*time.Second); !errors.Is(err, ErrLeaseHeld) {
		t.Errorf("prolonged: %v, want ErrLeaseHeld", err)
	}
	m.FastForward(3 * time.Second)
	// Its holder cannot know whether somebody else had it in between.
	if err := a.Renew(ctx); !errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrLeaseHeld) {
		t.Errorf("it ran out: %v, want ErrLeaseLost", err)
	}
	if err := a.Release(ctx); err != nil {
		t.Errorf("it ran out, and is given up: %v", err)
	}
	b, err := f.Lease(ctx, 1, 10*time.Second)
	if err != nil {
		t.Fatalf("it ran out: %v", err)
	}
	if err := a.Renew(ctx); !errors.Is(err, ErrLeaseLost) || !errors.Is(err, ErrLeaseHeld) {
		t.Errorf("the former holder: %v, want ErrLeaseLost and ErrLeaseHeld", err)
	}
	if err := a.Release(ctx); !errors.Is(err, ErrLeaseHeld) {
		t.Errorf("the former holder gives up: %v, want ErrLeaseHeld", err)
	}
	if err := b.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Lease(ctx, 1, MinLease); err != nil {
		t.Errorf("given up: %v", err)
	}
	for _, ttl := range []time.Duration{0, MinLease - 1, MaxLease + 1} {
		if _, err := f.Lease(ctx, 1, ttl); err == nil {
			t.Errorf("a lease of %v", ttl)
		}
	}
}

// A fence that is closed refuses all, and closing again does nothing.
func TestClosed(t *testing.T) {
	t.Parallel()
	f, _ := openMini(t, Options{Topic: "orders", Partitions: 1})
	c := mustClaim(t, f, Assignment{Committed: -1})
	f.Close()
	f.Close()
	ctx := t.Context()
	_, err1 := c.Apply(ctx, Batch{Records: []Record{{Key: []byte("k")}}})
	_, err2 := f.Claim(ctx, Assignment{})
	_, err3 := f.Inspect(ctx, []byte("k"))
	_, err4 := f.Describe(ctx, 0)
	err5 := f.Rewind(ctx, Rewinding{})
	_, err6 := f.Lease(ctx, 0, MinLease)
	_, err7 := f.Check(ctx)
	for i, err := range []error{err1, err2, err3, err4, err5, err6, err7} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("call %d: %v, want ErrClosed", i+1, err)
		}
	}
}
