package fence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/cockroachdb/datadriven"

	"github.com/weirstreams/weir/internal/redisconn"
)

// TestScenarios runs the scenarios of testdata/scenarios on miniredis; the
// integration tests run the same ones on a redis-server and on a cluster. With
// -rewrite the results are written anew; read the difference.
//
//	open         a fence: f=NAME partitions=12 slots= partitioner=any|crc32|none
//	             nowindow window=N ttl=2h retention=1h reducer=NAME
//	claim        c=NAME f=NAME p=5 committed=N begin=N topic=N; race=NAME claims
//	             for another one between the reading and the writing
//	apply        c=NAME committed=N next=N, and a record a line:
//	             OFFSET KEY OPERATION ARGUMENT … out=TEXT, or FROM..TO KEY …
//	             lost: it is carried out and its reply is lost; late: it is on its
//	             way for a long time, and the command late brings it in
//	update       the same, with operations that are computed by the caller
//	read         states of keys through a claim
//	rewind       p= offset= keep topic=
//	state        what is stored for keys; hand: del, damage and what else
//	describe     what is stored for a partition
//	predict      p=, and lines of OFFSET KEY
//	key          NAME p=17 n=24: a key that belongs there
//	redis        a command, as a person would give it; keys as state:NAME,
//	             members:NAME, meta:SLOT/PARTITION, window:SLOT/PARTITION
//	snapshot, restore, flush
//
// A key is a name, for which a real one is found that belongs on the partition;
// null, empty, or the key itself behind a =. Before each batch the verdicts of
// the first record of each key are predicted, and have to be those.
func TestScenarios(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		m := miniredis.RunT(t)
		runScenario(t, path, "redis://"+m.Addr()+"?check=off&timeout=30s")
	})
}

type scenario struct {
	t      *testing.T
	url    string
	fences map[string]*Fence
	claims map[string]*Claim
	keys   map[string][]byte
	names  map[string]string
	late   func() error
	shot   []saved
}

type saved struct {
	key  string
	kind string
	list []string
}

// admin is a client for what a person does by hand.
func (s *scenario) admin() *redisconn.Server { return s.fence("").s }

func (s *scenario) fence(name string) *Fence {
	s.t.Helper()
	if f := s.fences[name]; f != nil {
		return f
	}
	s.t.Fatalf("no fence %q", name)
	return nil
}

func runScenario(t *testing.T, path, url string) {
	s := &scenario{url: url, fences: map[string]*Fence{}, claims: map[string]*Claim{}, keys: map[string][]byte{}, names: map[string]string{}}
	t.Cleanup(func() {
		for _, f := range s.fences {
			f.Close()
		}
	})
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		s.t = t
		out, err := s.run(d)
		if err != nil {
			out += describeError(err) + "\n"
		}
		return out
	})
}

// describeError tells the class of an error, and what a program can read of it.
func describeError(err error) string {
	var bad *RecordError
	var conflict *ConflictError
	switch {
	case errors.As(err, &bad):
		lines := []string{ErrRecord.Error()}
		for _, b := range bad.Bad {
			// What Lua says differs with the interpreter.
			reason, _, _ := strings.Cut(b.Reason, ": user_script:")
			reason, _, _ = strings.Cut(reason, ": :")
			lines = append(lines, fmt.Sprintf("  %d: %d %s", b.Index, b.Offset, reason))
		}
		return strings.Join(lines, "\n")
	case errors.As(err, &conflict):
		return fmt.Sprintf("%v: %d", ErrConflict, len(conflict.Keys))
	}
	for _, class := range []error{ErrReleased, ErrFenced, ErrRegressed, ErrMissing, ErrTopicChanged, ErrPartitions, ErrLayout, ErrWindowFull, ErrCorrupt, ErrUnavailable, ErrLeaseHeld} {
		if errors.Is(err, class) {
			return class.Error()
		}
	}
	text, _, _ := strings.Cut(err.Error(), ": redis: ")
	return text
}

func arg[T any](d *datadriven.TestData, name string, def T, parse func(string) (T, error)) T {
	for _, a := range d.CmdArgs {
		if a.Key == name && len(a.Vals) == 1 {
			v, err := parse(a.Vals[0])
			if err != nil {
				panic(fmt.Sprintf("%s: %s=%s: %v", d.Pos, name, a.Vals[0], err))
			}
			return v
		}
	}
	return def
}

func text(s string) (string, error)  { return s, nil }
func number(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }

func topicID(n int64) (id [16]byte) {
	id[15] = byte(n)
	return id
}

// custom is a partitioner that the package does not know.
type custom struct{}

func (custom) Name() string { return "custom" }
func (custom) Partition(key []byte, n int) int {
	return (Murmur2.Partition(key, n) + 1) % n
}

var scenarioReducers = map[string]Reducer{
	"join":    {Name: "join", Version: 1, Source: "return (state or '') .. table.concat(args, ',') .. ';', '<' .. args[1] .. '>'"},
	"join2":   {Name: "join", Version: 2, Reads: 1, Source: "return (state or '') .. table.concat(args, '+') .. ';'"},
	"join3":   {Name: "join", Version: 3, Source: "return (state or '') .. '3'"},
	"other":   {Name: "other", Version: 1, Source: "return 'x'"},
	"forget":  {Name: "forget", Version: 1, Source: "if args[1] == 'yes' then return nil end return 'kept'"},
	"failing": {Name: "failing", Version: 1, Source: "error({err = 'as told'})"},
	"number":  {Name: "number", Version: 1, Source: "return 7"},
	"table":   {Name: "table", Version: 1, Source: "return 'x', {}"},
	"redis":   {Name: "redis", Version: 1, Source: "redis.call('SET', KEYS[1], 'x') return 'x'"},
	"argv":    {Name: "argv", Version: 1, Source: "ARGV[1] = 'x' return 'x'"},
	"global":  {Name: "global", Version: 1, Source: "return getfenv(0).redis.call('PING')"},
	"broken":  {Name: "broken", Version: 1, Source: "return return"},
}

func (s *scenario) run(d *datadriven.TestData) (string, error) {
	t, ctx := s.t, s.t.Context()
	fname := arg(d, "f", "", text)
	part := int32(arg(d, "p", 0, number))
	switch d.Cmd {
	case "open":
		o := Options{URL: s.url, Topic: arg(d, "topic", "orders", text), Partitions: int(arg(d, "partitions", 12, number)), Slots: int(arg(d, "slots", 0, number)),
			Name: arg(d, "name", "", text), MaxWindow: int(arg(d, "window", 0, number)), NoWindow: d.HasArg("nowindow"), TTL: arg(d, "ttl", 0, time.ParseDuration), Retention: arg(d, "retention", 0, time.ParseDuration)}
		switch arg(d, "partitioner", "", text) {
		case "any":
			o.Partitioner = AnyPartition
		case "crc32":
			o.Partitioner = CRC32
		case "custom":
			o.Partitioner = custom{}
		}
		for _, a := range d.CmdArgs {
			if a.Key == "reducer" {
				for _, v := range a.Vals {
					o.Reducers = append(o.Reducers, scenarioReducers[v])
				}
			}
		}
		f, err := Open(ctx, o)
		if err != nil {
			return "", err
		}
		if old := s.fences[fname]; old != nil {
			t.Cleanup(old.Close)
		}
		s.fences[fname] = f
		return fmt.Sprintf("%d slots\n", f.Slots()), nil
	case "key":
		name, n := d.CmdArgs[0].Key, int(arg(d, "n", 12, number))
		s.find(name, func(key []byte) bool { return Murmur2.Partition(key, n) == int(part) })
		return "", nil
	case "claim":
		f := s.fence(fname)
		a := Assignment{Partition: part, Committed: arg(d, "committed", -1, number), Begin: arg(d, "begin", 0, number), TopicID: topicID(arg(d, "topic", 0, number))}
		out := ""
		if other := arg(d, "race", "", text); other != "" {
			s.once(f, "claim", func([]redisconn.Call) error {
				c, err := f.Claim(ctx, a)
				if err != nil {
					t.Fatal(err)
				}
				out += other + ": " + s.claimed(other, c)
				return nil
			})
		}
		c, err := f.Claim(ctx, a)
		if err != nil {
			return out, err
		}
		return out + s.claimed(arg(d, "c", "", text), c), nil
	case "release":
		s.claim(d).Release()
		return "", nil
	case "apply", "update":
		return s.apply(d)
	case "late":
		return "", s.late()
	case "read":
		c := s.claim(d)
		var keys [][]byte
		names := strings.Fields(d.Input)
		for _, name := range names {
			keys = append(keys, s.key(c.f, c.partition, name))
		}
		states, err := c.Read(ctx, keys)
		if err != nil {
			return "", err
		}
		out := ""
		for i, name := range names {
			out += name + ": " + showState(&states[i]) + "\n"
		}
		return out, nil
	case "state":
		out := ""
		f := s.fence(fname)
		for _, name := range strings.Fields(d.Input) {
			in, err := f.Inspect(ctx, s.key(f, -1, name))
			if err != nil {
				return out, err
			}
			out += name + ": " + showState(&in.State) + "\n"
		}
		return out, nil
	case "describe":
		f := s.fence(fname)
		list, err := f.Describe(ctx, part)
		out := ""
		for _, in := range list {
			held, err := windowOf(ctx, f, in.Slot, part)
			if err != nil {
				return out, err
			}
			var shown []string
			for _, name := range slices.SortedFunc(maps.Keys(held), func(a, b string) int {
				return cmp.Or(len(a)-len(b), strings.Compare(a, b))
			}) {
				text := name + ":"
				for _, e := range held[name] {
					text += fmt.Sprintf(" %d=%s", e.offset, e.value)
				}
				shown = append(shown, text)
			}
			out += fmt.Sprintf("slot %d: epoch %d position %d committed %d begin %d lineage %d since %d partitions %d window %s\n", in.Slot, in.Epoch, in.Position, in.Committed, in.Begin, in.Lineage, in.Since, in.Partitions, shown)
		}
		return out, err
	case "rewind":
		return "", s.fence(fname).Rewind(ctx, Rewinding{Partition: part, Offset: arg(d, "offset", 0, number), Keep: d.HasArg("keep"), TopicID: topicID(arg(d, "topic", 0, number))})
	case "predict":
		f, out := s.fence(fname), ""
		for line := range strings.Lines(d.Input) {
			word := strings.Fields(line)
			offset, err := number(word[0])
			if err != nil {
				t.Fatal(err)
			}
			in, err := f.Inspect(ctx, s.key(f, part, word[1]))
			if err != nil {
				return out, err
			}
			v, reason, err := f.Predict(ctx, in, part, offset)
			if err != nil {
				return out, err
			}
			out += fmt.Sprintf("%d %s %s %s\n", offset, word[1], v, reason)
		}
		return out, nil
	case "redis":
		out := ""
		for line := range strings.Lines(d.Input) {
			word := strings.Fields(line)
			f := s.fence(fname)
			var key string
			if len(word) > 1 {
				key = s.redisKey(f, word[1])
				r, err := f.s.Do(ctx, f.s.Breaker(key), word[0], []string{key}, word[2:]...)
				if err != nil {
					return out, err
				}
				v, err := r.ToAny()
				if err != nil {
					return out, err
				}
				if list, ok := v.([]any); ok { // a set
					slices.SortFunc(list, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
				}
				out += fmt.Sprintln(v)
			}
		}
		return out, nil
	case "flush":
		s.flush()
		return "", nil
	case "snapshot":
		s.shot = s.dump()
		return "", nil
	case "restore":
		s.flush()
		s.load(s.shot)
		return "", nil
	}
	t.Fatalf("unknown command %s", d.Cmd)
	return "", nil
}

func (s *scenario) claim(d *datadriven.TestData) *Claim {
	s.t.Helper()
	c := s.claims[arg(d, "c", "", text)]
	if c == nil {
		d.Fatalf(s.t, "no such claim")
	}
	return c
}

func (s *scenario) claimed(name string, c *Claim) string {
	s.claims[name] = c
	s.t.Cleanup(c.Release)
	out := fmt.Sprintf("epoch %d start %d pending %d", c.Epoch(), c.Start(), c.Pending())
	if c.Regressed() {
		out += " regressed"
	}
	return out + "\n"
}

func showState(st *State) string {
	out := "none"
	if st.Exists {
		out = strconv.Quote(string(st.Value))
	}
	if st.Kind != "" {
		out += " (" + st.Kind + ")"
	}
	if st.Fenced {
		out += fmt.Sprintf(" by partition %d of %d, lineage %d, offset %d", st.Partition, st.Partitions, st.Lineage, st.Offset)
	}
	return out
}

// find settles which key a name stands for.
func (s *scenario) find(name string, ok func([]byte) bool) []byte {
	for i := 0; ; i++ {
		key := []byte(name + "-" + strconv.Itoa(i))
		if ok(key) {
			s.keys[name], s.names[string(key)] = key, name
			return key
		}
	}
}

func (s *scenario) key(f *Fence, partition int32, name string) []byte {
	switch {
	case name == "null":
		return nil
	case name == "empty":
		return []byte{}
	case strings.HasPrefix(name, "="):
		return []byte(name[1:])
	}
	if key := s.keys[name]; key != nil {
		return key
	}
	if partition < 0 {
		s.t.Fatalf("the key %s is not known", name)
	}
	return s.find(name, func(key []byte) bool {
		_, ok := f.CheckPartition(key, partition)
		return ok
	})
}

func (s *scenario) redisKey(f *Fence, name string) string {
	kind, rest, _ := strings.Cut(name, ":")
	switch kind {
	case "state":
		key := s.key(f, -1, rest)
		return f.stateKey(f.slotOf(key), key)
	case "members":
		key := s.key(f, -1, rest)
		return f.prefixes[f.slotOf(key)] + "m" + string(key)
	case "meta", "window":
		var slot, partition int
		if _, err := fmt.Sscanf(rest, "%d/%d", &slot, &partition); err != nil {
			s.t.Fatal(err)
		}
		return f.partitionKey(slot, map[string]string{"meta": "p", "window": "w"}[kind], int32(partition))
	case "layout":
		return layoutKey(f.opts.Name, f.opts.Topic)
	}
	return name
}

// once calls a function before the next call of a script.
func (s *scenario) once(f *Fence, script string, h func(calls []redisconn.Call) error) {
	hook := func(calls []redisconn.Call) error {
		if calls[0].Script.Name != script {
			return nil
		}
		f.before.Store(nil)
		return h(calls)
	}
	f.before.Store(&hook)
}

func (s *scenario) apply(d *datadriven.TestData) (string, error) {
	t, ctx := s.t, s.t.Context()
	c := s.claim(d)
	b := Batch{Committed: arg(d, "committed", -1, number), Next: arg(d, "next", 0, number)}
	type line struct {
		name string
		add  string
	}
	var lines []line
	compute := map[int64]string{}
	for text := range strings.Lines(d.Input) {
		from, to, ranged := strings.Cut(strings.Fields(text)[0], "..")
		if !ranged {
			to = from
		}
		first, err1 := number(from)
		last, err2 := number(to)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		for n := range last - first + 1 {
			o := first + n
			r, name, op := s.record(c, text, d.Cmd == "update")
			r.Offset = o
			b.Records = append(b.Records, r)
			lines = append(lines, line{name, op})
			compute[o] = op
		}
	}
	switch {
	case d.HasArg("lost"):
		s.once(c.f, "batch", func(calls []redisconn.Call) error {
			if _, err := c.f.s.Run(ctx, c.f.s.Breaker(calls[0].Keys[0]), false, calls...); err != nil {
				t.Fatal(err)
			}
			return ErrUnavailable
		})
	case d.HasArg("late"):
		s.once(c.f, "batch", func(calls []redisconn.Call) error {
			calls = slices.Clone(calls)
			s.late = func() error {
				_, err := c.f.s.Run(ctx, c.f.s.Breaker(calls[0].Keys[0]), false, calls...)
				return err
			}
			return ErrUnavailable
		})
	}
	predicted := s.predict(c, &b)
	var results []Result
	var err error
	out := ""
	if d.Cmd == "update" {
		calls := 0
		results, err = c.Update(ctx, b, func(r *Record, state []byte, exists bool) (Change, error) {
			calls++
			return s.change(compute[r.Offset], string(state), exists)
		})
		out = fmt.Sprintf("computed %d\n", calls)
	} else {
		results, err = c.Apply(ctx, b)
	}
	if err != nil {
		return out, err
	}
	for i, r := range results {
		text := fmt.Sprintf("%d %s %s", b.Records[i].Offset, lines[i].name, r.Verdict)
		if r.Reason != "" {
			text += fmt.Sprintf(" (%s)", r.Reason)
		}
		if r.Exists {
			text += fmt.Sprintf(" %.60q", r.State)
		} else if r.Verdict.Emits() && r.Output == nil {
			text += " none"
		}
		if r.Output != nil {
			text += fmt.Sprintf(" out=%s", r.Output)
		}
		if want, ok := predicted[i]; ok && want != r.Verdict {
			text += fmt.Sprintf(" PREDICTED %s", want)
		}
		if len(results) <= 40 || i < 2 || i > len(results)-3 || i > 0 && results[i].Verdict != results[i-1].Verdict {
			out += text + "\n"
		}
	}
	return out, nil
}

// predict tells the verdicts of the first record of each key, with what is
// committed by now.
func (s *scenario) predict(c *Claim, b *Batch) map[int]Verdict {
	known, seen := map[int]Verdict{}, map[string]bool{}
	for i := range b.Records {
		r := &b.Records[i]
		if seen[string(r.Key)] || len(seen) > 20 {
			continue
		}
		seen[string(r.Key)] = true
		in, err := c.f.Inspect(s.t.Context(), r.Key)
		if err != nil {
			continue
		}
		about, err := c.f.ask(s.t.Context(), in, c.partition)
		if err != nil {
			continue
		}
		about.info.Committed = max(about.info.Committed, min(b.Committed, c.through))
		if v, _, err := c.f.Predict(s.t.Context(), in, c.partition, r.Offset); err == nil {
			known[i] = v
		}
	}
	return known
}

// record reads a line.
func (s *scenario) record(c *Claim, line string, computed bool) (Record, string, string) {
	word := strings.Fields(line)
	if len(word) < 3 {
		s.t.Fatalf("record %q", line)
	}
	r := Record{Key: s.key(c.f, c.partition, word[1])}
	args := word[3:]
	if n := len(args); n > 0 && strings.HasPrefix(args[n-1], "out=") {
		r.Output = []byte(args[n-1][len("out="):])
		args = args[:n-1]
	}
	if !computed {
		r.Op = s.op(word[2], args)
	}
	return r, word[1], strings.Join(word[2:], " ")
}

// quoted makes "nil" nil and "”" empty; x*N is x N times.
func quoted(s string) []byte {
	switch s {
	case "nil":
		return nil
	case "''":
		return []byte{}
	}
	if x, n, ok := strings.Cut(s, "*"); ok {
		if n, err := strconv.Atoi(n); err == nil {
			return []byte(strings.Repeat(x, n))
		}
	}
	return []byte(s)
}

func (s *scenario) op(name string, args []string) Op {
	integer := func() int64 {
		n, err := number(args[0])
		if err != nil {
			s.t.Fatal(err)
		}
		return n
	}
	float := func() float64 {
		x, err := strconv.ParseFloat(args[0], 64)
		if err != nil {
			s.t.Fatal(err)
		}
		return x
	}
	switch name {
	case "keep":
		return Keep()
	case "zero":
		return Op{}
	case "set":
		return Set(quoted(args[0]))
	case "delete":
		return Delete()
	case "cas":
		return CompareAndSet(quoted(args[0]), quoted(args[1]))
	case "add":
		return Add(integer())
	case "add-float":
		return AddFloat(float())
	case "sum":
		return Sum(integer())
	case "sum-float":
		return SumFloat(float())
	case "min":
		return Min(integer())
	case "max":
		return Max(integer())
	case "min-float":
		return MinFloat(float())
	case "max-float":
		return MaxFloat(float())
	case "append":
		return Append(quoted(args[1]), int(integer()))
	case "set-add":
		return SetAdd(args...)
	case "set-remove":
		return SetRemove(args...)
	case "reduce":
		return Reduce(args[0], args[1:]...)
	}
	s.t.Fatalf("unknown operation %s", name)
	return Op{}
}

// change is what the caller of Update computes.
func (s *scenario) change(op, state string, exists bool) (Change, error) {
	word := strings.Fields(op)
	switch word[0] {
	case "add":
		n, err := DecodeInt([]byte(state))
		if err != nil {
			return Change{}, err
		}
		m, err := number(word[1])
		return Change{Value: strconv.AppendInt(nil, n+m, 10)}, err
	case "append":
		return Change{Value: []byte(state + word[1]), Output: fmt.Appendf(nil, "%t:%s", exists, word[1])}, nil
	case "delete":
		return Change{}, nil
	case "meddle": // somebody else changes the state in between
		f := s.fence("")
		key := s.keys[word[1]]
		if _, err := f.s.Do(s.t.Context(), f.s.Breaker(""), "SET", []string{f.stateKey(f.slotOf(key), key)}, "5 12 1 19\n"+state+"+"); err != nil {
			return Change{}, err
		}
		return Change{Value: []byte(state + "!")}, nil
	}
	return Change{}, fmt.Errorf("no way to compute %q", op)
}

// windowOf reads the window of a partition in a slot, by the names of segments.
func windowOf(ctx context.Context, f *Fence, slot int, partition int32) (map[string][]entry, error) {
	key := f.partitionKey(slot, "w", partition)
	r, err := f.s.Do(ctx, f.s.Breaker(""), "LRANGE", []string{key}, "0", "-1")
	if err != nil {
		return nil, err
	}
	list, err := r.AsStrSlice()
	if err != nil {
		return nil, err
	}
	all, err := segments(list)
	held := map[string][]entry{}
	for g, entries := range all {
		held[g.String()] = entries
	}
	return held, err
}

// dump reads all keys of all nodes.
func (s *scenario) dump() []saved {
	var all []saved
	ctx := s.t.Context()
	srv := s.admin()
	for _, node := range srv.Nodes() {
		keys, err := node.Do(ctx, node.B().Arbitrary("KEYS").Args("*").Build()).AsStrSlice()
		if err != nil {
			s.t.Fatal(err)
		}
		for _, key := range keys {
			kind, err := node.Do(ctx, node.B().Arbitrary("TYPE").Keys(key).Build()).ToString()
			if err != nil {
				s.t.Fatal(err)
			}
			one := saved{key: key, kind: kind}
			switch kind {
			case "hash":
				m, err := node.Do(ctx, node.B().Arbitrary("HGETALL").Keys(key).Build()).AsStrMap()
				if err != nil {
					s.t.Fatal(err)
				}
				for f, v := range m {
					one.list = append(one.list, f, v)
				}
			case "string":
				text, err := node.Do(ctx, node.B().Arbitrary("GET").Keys(key).Build()).ToString()
				if err != nil {
					s.t.Fatal(err)
				}
				one.list = []string{text}
			case "list":
				if one.list, err = node.Do(ctx, node.B().Arbitrary("LRANGE").Keys(key).Args("0", "-1").Build()).AsStrSlice(); err != nil {
					s.t.Fatal(err)
				}
			case "set":
				if one.list, err = node.Do(ctx, node.B().Arbitrary("SMEMBERS").Keys(key).Build()).AsStrSlice(); err != nil {
					s.t.Fatal(err)
				}
			default:
				s.t.Fatalf("key %s is a %s", key, kind)
			}
			all = append(all, one)
		}
	}
	return all
}

func (s *scenario) load(all []saved) {
	for _, one := range all {
		verb := map[string]string{"hash": "HSET", "list": "RPUSH", "set": "SADD", "string": "SET"}[one.kind]
		if _, err := s.admin().Do(s.t.Context(), s.admin().Breaker(""), verb, []string{one.key}, one.list...); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *scenario) flush() {
	for _, node := range s.admin().Nodes() {
		if err := node.Do(s.t.Context(), node.B().Arbitrary("FLUSHALL").Build()).Error(); err != nil {
			s.t.Fatal(err)
		}
	}
}
