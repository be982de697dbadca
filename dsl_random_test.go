package weir

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/weirstreams/weir/internal/task"
	"github.com/weirstreams/weir/serde"
)

// A random history of a table, with aborted batches in between: what its groups
// hold in the end is what a loop over the rows gives.
func TestRandomTableHistory(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		d := start(t, map[string]int32{"in": 3}, func(b *Builder) {
			rows := b.Table("rows", in).Filter(func(_, v string) bool { return v[0] != 'x' })
			rows.ToStream().To(out)
			g := rows.GroupBy("g", serde.String, serde.Int64, func(_, v string) (string, int64) { return v[:1], int64(len(v)) })
			g.Count("count")
			g.Reduce("sum", serde.Int64, func(a, b int64) int64 { return a + b }, func(a, b int64) int64 { return a - b })
			b.Stream(in).GroupBy("s", serde.String, func(_, v string) string { return v }).Count("seen")
		})
		rows, seen, latest := map[string]string{}, map[string]int64{}, map[string]string{}
		for i := range 400 {
			key := fmt.Sprintf("k%d", r.IntN(12))
			if r.IntN(8) == 0 {
				d.send("in", []byte(key), nil, int64(r.IntN(1000)))
				delete(rows, key)
			} else {
				v := "abx"[r.IntN(3):][:1] + "12345"[:r.IntN(3)]
				d.send("in", []byte(key), []byte(v), int64(r.IntN(1000)))
				rows[key] = v
				seen[v]++
			}
			if d.err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, i, d.err)
			}
			if r.IntN(20) == 0 {
				d.abortOne(r, key)
			}
			for _, o := range d.take("out") {
				if o.Value == nil {
					delete(latest, string(o.Key))
				} else {
					latest[string(o.Key)] = string(o.Value)
				}
			}
		}
		count, sum := map[string]int64{}, map[string]int64{}
		maps.DeleteFunc(rows, func(_, v string) bool { return v[0] == 'x' })
		for _, v := range rows {
			count[v[:1]]++
			sum[v[:1]] += int64(len(v))
		}
		if !maps.Equal(latest, rows) {
			t.Errorf("seed %d: the output says %v, want %v", seed, latest, rows)
		}
		for store, want := range map[string]map[string]int64{"count": count, "sum": sum, "seen": seen} {
			got := d.contents(store)
			if store != "seen" {
				maps.DeleteFunc(got, func(_ string, n int64) bool { return n == 0 }) // a group without rows stays as 0
			}
			if !maps.Equal(got, want) {
				t.Errorf("seed %d: %s is %v, want %v", seed, store, got, want)
			}
		}
	}
}

// abortOne processes a record in a task and aborts the batch, as if the broker
// had refused it. The record is not committed and does not come again.
func (d *driver) abortOne(r *rand.Rand, key string) {
	tk := d.tasks[r.IntN(len(d.tasks))]
	for i, topic := range tk.Plan().Inputs {
		if topic != "in" {
			continue
		}
		at := fmt.Sprintf("in/%d", tk.ID().Partition)
		tk.Add(i, task.Record{Offset: d.offsets[at], Timestamp: 5000, Key: []byte(key), Value: []byte("aborted")})
		if _, err := tk.Step(d.now, 10); err != nil {
			d.t.Fatal(err)
		}
		if err := tk.Abort(); err != nil {
			d.t.Fatal(err)
		}
	}
}

// contents returns the committed entries of a store in all tasks.
func (d *driver) contents(store string) map[string]int64 {
	all := map[string]int64{}
	for _, tk := range d.tasks {
		s := tk.Store(store)
		if s == nil {
			continue
		}
		page, err := s.PageCommitted(nil, nil, false, 1000)
		if err != nil {
			d.t.Fatal(err)
		}
		for _, kv := range page {
			_, body, err := splitTimestamped(kv.Value)
			if err != nil {
				d.t.Fatal(err)
			}
			n, err := serde.Int64.Decode(body)
			if _, twice := all[string(kv.Key)]; twice || err != nil {
				d.t.Fatalf("store %s: key %q twice %t, %v", store, kv.Key, twice, err)
			}
			all[string(kv.Key)] = n
		}
	}
	return all
}
