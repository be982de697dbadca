package fence

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirstreams/weir/internal/redisconn"
)

// longForm ends what the script does in the short form; see batch.lua.
const longForm = "-- The records in the long form."

// onlyShort makes a script that fails where the short form does not do, so that a
// test knows which one was taken.
func onlyShort(t *testing.T, f *Fence) {
	t.Helper()
	source := strings.Replace(f.batch.Source, longForm, "error('not the short way') "+longForm, 1)
	if source == f.batch.Source {
		t.Fatalf("the script has no %q", longForm)
	}
	f.batch = redisconn.NewScript("batch", source)
}

// eachCall calls do for each call of the script of Apply before it is made.
func eachCall(f *Fence, do func(call *redisconn.Call)) {
	hook := func(calls []redisconn.Call) error {
		for i := range calls {
			if calls[i].Script != f.batch {
				continue
			}
			do(&calls[i])
		}
		return nil
	}
	f.before.Store(&hook)
}

// forms notes in which form each call of the script is made.
func forms(f *Fence) *[]string {
	var list []string
	eachCall(f, func(call *redisconn.Call) {
		switch {
		case len(call.Args) == argRecords+1:
			list = append(list, "empty")
		case call.Args[argRecords] == "":
			list = append(list, "long")
		default:
			list = append(list, "short")
		}
	})
	return &list
}

// lengthened makes a call in the long form of one in the short form.
func lengthened(t *testing.T, call *redisconn.Call) {
	t.Helper()
	if call.Args[argRecords] == "" {
		t.Fatal("it is in the long form")
	}
	args, keys := append(slices.Clone(call.Args[:argRecords]), ""), slices.Clone(call.Keys[:2])
	for i, text := range call.Args[argRecords+1:] {
		s, err := parseState([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		key := call.Keys[2+i]
		place := slices.Index(keys, key)
		if place < 0 {
			place, keys = len(keys), append(keys, key)
		}
		args = append(args, strconv.Itoa(place+1), formatOffset(s.Offset))
		if s.Exists {
			args = append(args, "s", string(s.Value))
		} else {
			args = append(args, "d")
		}
	}
	call.Args, call.Keys = args, keys
}

// What the caller knows is sent in the short form, and nothing else is.
func TestForms(t *testing.T) {
	t.Parallel()
	f, _ := openMini(t, Options{Topic: "t", Partitions: 1})
	list := forms(f)
	c := mustClaim(t, f, Assignment{Committed: -1})
	rec := func(o int64, op Op) Record { return Record{Offset: o, Key: []byte("k"), Op: op} }
	set := Set([]byte("v"))
	next := int64(0)
	for _, tc := range []struct {
		name    string
		records []Record
		want    string
	}{
		{"nothing", nil, "empty"},
		{"sets", []Record{rec(0, set), rec(1, set), rec(5, set)}, "short"},
		{"deletes", []Record{rec(0, Delete()), rec(1, set), rec(2, Delete())}, "short"},
		{"keep", []Record{rec(0, set), rec(1, Keep())}, "long"},
		{"zero", []Record{rec(0, Op{}), rec(1, set)}, "long"},
		{"add", []Record{rec(0, Set([]byte("1"))), rec(1, Add(1))}, "long"},
		{"compare", []Record{rec(0, set), rec(1, CompareAndSet([]byte("v"), []byte("w")))}, "long"},
		{"output", []Record{rec(0, set), {Offset: 1, Key: []byte("k"), Op: set, Output: []byte{}}}, "long"},
		{"twice", []Record{rec(0, set), rec(0, set)}, "long"},
		{"again", []Record{rec(0, set), rec(1, set)}, "short"},
	} {
		*list = nil
		for i := range tc.records {
			tc.records[i].Offset += next
		}
		if _, err := c.Apply(t.Context(), Batch{Records: tc.records, Next: next + 10}); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		next += 10
		if got := strings.Join(*list, " "); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}

// nonces are the random parts of owners.
var nonces = regexp.MustCompile(`\b[0-9a-f]{16}\b`)

// The script takes the short way unless a state before the batch or a record that
// is read again needs more, and both ways leave the same bytes.
func TestShortWay(t *testing.T) {
	t.Parallel()
	rec := func(o int64, key string, op Op) Record { return Record{Offset: o, Key: []byte(key), Op: op} }
	set := func(v string) Op { return Set([]byte(v)) }
	batch := []Record{rec(100, "a", set("one")), rec(101, "b", set("")), rec(105, "a", set("two\nlines")), rec(110, "c", Delete()), rec(111, "b", set("9 9 9 9\nx"))}
	// Each prepares offsets 0 to 99, and returns the claim that goes on.
	applied := func(records ...Record) func(t *testing.T, c *Claim) *Claim {
		return func(t *testing.T, c *Claim) *Claim {
			if _, err := c.Apply(t.Context(), Batch{Records: records, Next: max(100, records[len(records)-1].Offset+1)}); err != nil {
				t.Fatal(err)
			}
			return c
		}
	}
	rewound := func(keep bool, records ...Record) func(t *testing.T, c *Claim) *Claim {
		return func(t *testing.T, c *Claim) *Claim {
			applied(records...)(t, c)
			if err := c.f.Rewind(t.Context(), Rewinding{Offset: 100, Keep: keep}); err != nil {
				t.Fatal(err)
			}
			return mustClaim(t, c.f, Assignment{Committed: 100})
		}
	}
	elsewhere := func(records ...Record) func(t *testing.T, c *Claim) *Claim {
		return func(t *testing.T, c *Claim) *Claim {
			applied(records...)(t, mustClaim(t, c.f, Assignment{Partition: 1, Committed: -1}))
			return c
		}
	}
	grown := func(records ...Record) func(t *testing.T, c *Claim) *Claim {
		return func(t *testing.T, c *Claim) *Claim {
			applied(records...)(t, c)
			o := c.f.opts
			o.URL, o.Partitions = "redis://"+strings.Join(c.f.s.Options().Addresses, ",")+"?check=off&timeout=30s", 3
			f, err := Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(f.Close)
			return mustClaim(t, f, Assignment{Committed: 100})
		}
	}
	for _, tc := range []struct {
		name    string
		before  func(t *testing.T, c *Claim) *Claim
		records []Record
		opts    Options
		short   bool
	}{
		{name: "nothing before", records: batch, short: true},
		{name: "states before", before: applied(rec(1, "a", set("old")), rec(2, "b", Delete()), rec(3, "c", set("old\n3"))), records: batch, short: true},
		{name: "computed before", before: applied(rec(1, "a", Add(7)), rec(99, "c", Keep())), records: batch, short: true},
		{name: "long values", before: applied(rec(1, "a", set(strings.Repeat("x", 2000))), rec(2, "b", Delete())), records: append([]Record{rec(100, "d", set(strings.Repeat("y", 1000)))}, batch[1:]...), short: true},
		{name: "long values, a set before", before: applied(rec(1, "c", set("3")), rec(50, "a", SetAdd("x")), rec(60, "b", set("1\n2"))), records: append([]Record{rec(100, "d", set(strings.Repeat("y", 1000)))}, batch[1:]...)},
		{name: "long values, another lineage before", before: rewound(false, rec(1, "a", set(strings.Repeat("x", 2000)))), records: append([]Record{rec(100, "a", set(strings.Repeat("y", 1000)))}, batch[1:]...)},
		{name: "no window", records: batch, opts: Options{NoWindow: true}, short: true},
		{name: "an expiry", records: batch, opts: Options{TTL: 2 * time.Hour, Retention: time.Hour}, short: true},
		{name: "one record", records: batch[:1], short: true},
		{name: "a sum before", before: applied(rec(1, "a", Sum(7))), records: batch},
		{name: "sets before", before: applied(rec(1, "a", SetAdd("x", "y")), rec(2, "c", SetAdd("z"))), records: batch},
		{name: "a set before, which was deleted", before: applied(rec(1, "a", SetAdd("x", "y")), rec(2, "a", Delete())), records: batch, short: true},
		{name: "another lineage before", before: rewound(false, rec(1, "a", set("old")), rec(2, "b", Add(1))), records: batch},
		{name: "another lineage before, which counts", before: rewound(true, rec(1, "a", set("old")), rec(2, "b", SetAdd("x"))), records: batch},
		{name: "another partition before", before: elsewhere(rec(1, "a", set("old")), rec(2, "b", Delete())), records: batch},
		{name: "fewer partitions before", before: grown(rec(1, "a", set("old"))), records: batch},
		{name: "all is read again", before: applied(batch...), records: batch},
		{name: "some is read again", before: applied(batch[:2]...), records: batch},
		{name: "the last one is read again", before: applied(batch...), records: batch[4:]},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			play := func(prepare func(f *Fence)) (string, error) {
				o := tc.opts
				o.Topic, o.Partitions, o.Slots, o.Partitioner = "t", 2, 1, AnyPartition
				f, m := openMini(t, o)
				c := mustClaim(t, f, Assignment{Committed: -1})
				if tc.before != nil {
					c = tc.before(t, c)
				}
				prepare(c.f)
				results, err := c.Apply(t.Context(), Batch{Records: tc.records, Next: 200, Committed: 50})
				ttls := ""
				for _, key := range m.Keys() {
					ttls += m.TTL(key).String() + " "
				}
				return nonces.ReplaceAllString(fmt.Sprintf("%+v\n%d\n%s\n%s", results, c.Pending(), m.Dump(), ttls), "NONCE"), err
			}
			var list *[]string
			got, err := play(func(f *Fence) { list = forms(f) })
			if err != nil || !slices.Equal(*list, []string{"short"}) {
				t.Fatalf("error %v, forms %v", err, *list)
			}
			want, err := play(func(f *Fence) {
				eachCall(f, func(call *redisconn.Call) { lengthened(t, call) })
			})
			if err != nil {
				t.Fatal(err)
			}
			if got != want {
				t.Errorf("the short form leaves\n%s\nand the long one\n%s", got, want)
			}
			only, err := play(func(f *Fence) { onlyShort(t, f) })
			if (err == nil) != tc.short || tc.short && only != want {
				t.Errorf("the short way alone, want it taken %t: error %v\n%s", tc.short, err, only)
			}
		})
	}
}

// The beginnings that are read of states hold the longest fences.
func TestShortWayLongOffsets(t *testing.T) {
	t.Parallel()
	f, m := openMini(t, Options{Topic: "t", Partitions: 1})
	c := mustClaim(t, f, Assignment{Committed: -1})
	key, members := []byte("k"), f.prefixes[0]+"mk"
	apply := func(offset int64, op Op) {
		t.Helper()
		if _, err := c.Apply(t.Context(), Batch{Records: []Record{{Offset: offset, Key: key, Op: op}}}); err != nil {
			t.Fatal(err)
		}
	}
	long := Set(bytes.Repeat([]byte("x"), 1000))
	apply(maxOffset-10, SetAdd("x", "y"))
	if !m.Exists(members) {
		t.Fatal("no members")
	}
	apply(maxOffset-9, long)
	if m.Exists(members) {
		t.Error("the members of a set that is none any more are left")
	}
	onlyShort(t, f)
	apply(maxOffset-8, long)
}

// A full window refuses a call in the short form before anything is written.
func TestShortWayFull(t *testing.T) {
	t.Parallel()
	f, m := openMini(t, Options{Topic: "t", Partitions: 1, MaxWindow: 5})
	onlyShort(t, f)
	c := mustClaim(t, f, Assignment{Committed: -1})
	batch := func(first int64, n int) Batch {
		b := Batch{Committed: -1}
		for i := range n {
			b.Records = append(b.Records, Record{Offset: first + int64(i), Key: []byte{'a' + byte(i)}, Op: Set([]byte("v"))})
		}
		return b
	}
	if _, err := c.Apply(t.Context(), batch(0, 3)); err != nil {
		t.Fatal(err)
	}
	before := m.Dump()
	if _, err := c.Apply(t.Context(), batch(3, 3)); !errors.Is(err, ErrWindowFull) {
		t.Errorf("%v, want ErrWindowFull", err)
	}
	if got := m.Dump(); got != before {
		t.Errorf("it has written\n%s\nover\n%s", got, before)
	}
	if _, err := c.Apply(t.Context(), batch(3, 2)); err != nil {
		t.Errorf("what fits: %v", err)
	}
	b := batch(5, 5)
	b.Committed = 5
	if _, err := c.Apply(t.Context(), b); err != nil {
		t.Errorf("after all was pruned: %v", err)
	}
	if c.Pending() != 5 {
		t.Errorf("%d are pending, want 5", c.Pending())
	}
}
