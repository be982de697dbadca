package weir

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/serde"
)

// pump feeds one task with records of the given keys and values, and commits
// each thousand without keeping what is produced.
func pump(b testing.TB, d *driver, keys, values [][]byte, n int) {
	tk := d.tasks[0]
	const batch = 1000
	var batchRecords [batch]task.Record
	for done := 0; done < n; {
		records := batchRecords[:min(batch, n-done)]
		for i := range records {
			at := int(d.offsets["in"])
			records[i] = task.Record{Offset: int64(at), Timestamp: int64(at), Key: keys[at%len(keys)], Value: values[at%len(values)]}
			d.offsets["in"]++
		}
		tk.Add(0, records...)
		if e, err := tk.Step(0, batch); err != nil || e.Records != len(records) {
			b.Fatal(e.Records, err)
		}
		tk.Seal(1, nil)
		tk.Committed(nil)
		if tk.Behind() {
			_, token, _ := tk.Flush(0)
			tk.Flushed(token) // the backend is left out
		}
		done += len(records)
	}
}

// steady fills the caches with every key, so that what is measured is the state
// that a long run is in.
func steady(b testing.TB, declare func(*Builder), keys, values [][]byte) *driver {
	d := start(b, nil, declare)
	pump(b, d, keys, values, 2*len(keys)+2000)
	return d
}

var (
	countTopology = func(b *Builder) {
		b.Stream(in).GroupByKey().Count("n").ToStream().To(outCounts)
	}
	countIntTopology = func(b *Builder) {
		ints := NewTopic("in", serde.Int64, serde.String)
		b.Stream(ints).GroupByKey().Count("n").ToStream().To(NewTopic("out", serde.Int64, serde.Int64))
	}
	chainTopology = func(b *Builder) {
		ints := NewTopic("in", serde.Int64, serde.Int64)
		b.Stream(ints).
			Filter(func(k, v int64) bool { return k >= 0 }).
			MapValues(func(_, v int64) int64 { return v + 1 }).
			Map(func(k, v int64) (int64, float64) { return v, float64(k) }).
			Peek(func(int64, float64) {}).
			To(NewTopic("out", serde.Int64, serde.Float64))
	}
	tableTopology = func(b *Builder) {
		ints := NewTopic("in", serde.Int64, serde.Int64)
		b.Table("t", ints).MapValues(func(_, v int64) int64 { return v % 7 }).ToStream().To(ints2)
	}
	ints2 = NewTopic("out", serde.Int64, serde.Int64)
)

func benchKeys(n int) (text, ints [][]byte) {
	for i := range n {
		text = append(text, fmt.Appendf(nil, "key-%08d", i))
		ints = append(ints, binary.BigEndian.AppendUint64(nil, uint64(i)))
	}
	return text, ints
}

func bench(b *testing.B, declare func(*Builder), keys, values [][]byte) {
	d := steady(b, declare, keys, values)
	b.ReportAllocs()
	b.ResetTimer()
	pump(b, d, keys, values, b.N)
}

// One record from the bytes of the source to the bytes of sink and changelog.
func BenchmarkCountStringKey(b *testing.B) {
	keys, _ := benchKeys(1000)
	bench(b, countTopology, keys, [][]byte{[]byte(strings.Repeat("v", 100))})
}

func BenchmarkCountInt64Key(b *testing.B) {
	_, keys := benchKeys(1000)
	bench(b, countIntTopology, keys, [][]byte{[]byte(strings.Repeat("v", 100))})
}

func BenchmarkStatelessChain(b *testing.B) {
	_, keys := benchKeys(1000)
	bench(b, chainTopology, keys, keys)
}

func BenchmarkTable(b *testing.B) {
	_, keys := benchKeys(1000)
	bench(b, tableTopology, keys, keys[:999]) // values that change
}

// A record costs the allocations of what its serdes return and nothing else:
// one for a string key, none for numbers.
func TestAllocationsPerRecord(t *testing.T) {
	text, ints := benchKeys(1000)
	value := [][]byte{[]byte(strings.Repeat("v", 100))}
	for _, test := range []struct {
		name         string
		declare      func(*Builder)
		keys, values [][]byte
		want         float64
	}{
		{"count by string", countTopology, text, value, 1},
		{"count by int64", countIntTopology, ints, value, 0},
		{"stateless", chainTopology, ints, ints, 0},
		{"table", tableTopology, ints, ints[:999], 0},
	} {
		d := steady(t, test.declare, test.keys, test.values)
		const records = 20000
		per := testing.AllocsPerRun(1, func() { pump(t, d, test.keys, test.values, records) }) / records
		if per > test.want+0.05 {
			t.Errorf("%s: %.3f allocations per record, want %.0f", test.name, per, test.want)
		}
	}
}
