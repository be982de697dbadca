//go:build integration

package fence

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/internal/redistest"
)

// perKey is the usual contract: one script call for each record, with an epoch
// beside it.
var perKey = redisconn.NewScript("per-key", `local e = redis.call('GET', KEYS[2])
if e and tonumber(ARGV[1]) < tonumber(e) then return {'FENCE'} end
local m = redis.call('HMGET', KEYS[1], 'partition', 'offset', 'value')
if m[1] then
	if m[1] ~= ARGV[2] then
		redis.call('HSET', KEYS[1], 'value', ARGV[4], 'partition', ARGV[2], 'offset', ARGV[3])
		return {'REBASE'}
	end
	local last, this = tonumber(m[2]), tonumber(ARGV[3])
	if this < last then return {'SKIP'} end
	if this == last then return {'REEMIT', m[3]} end
end
redis.call('HSET', KEYS[1], 'value', ARGV[4], 'partition', ARGV[2], 'offset', ARGV[3])
return {'APPLY'}`)

// BenchmarkServer measures the processor time of redis-server for a record, in
// batches of 500 of one partition, 20 000 keys and values of 100 bytes.
func BenchmarkServer(b *testing.B) {
	const keys, batch = 20_000, 500
	value := func(i int) []byte {
		return []byte(fmt.Sprintf(`{"user":"user-%08d","total":%12d,"average":%12.3f,"first":"2026-01-02","last":%9d}`, i*7919%keys, i*31, float64(i)/7, i))
	}
	name := func(i int) []byte { return []byte(fmt.Sprintf("user-%08d", i*7919%keys)) }
	run := func(b *testing.B, s *redistest.Server, step func(first int)) {
		for i := 0; i < keys; i += batch {
			step(i)
		}
		before := s.CPU()
		b.ResetTimer()
		n := 0
		for b.Loop() {
			step(keys + n)
			n += batch
		}
		b.ReportMetric((s.CPU()-before)/float64(n), "server-µs/record")
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(n), "µs/record")
	}
	fenced := func(noWindow bool, op func(i int) Op) func(b *testing.B) {
		return func(b *testing.B) {
			s := redistest.Start(b)
			f := mustOpen(b, Options{URL: "redis://" + s.Addr() + "?check=off", Topic: "t", Partitions: 1, NoWindow: noWindow})
			c := mustClaim(b, f, Assignment{Committed: -1})
			run(b, s, func(first int) {
				records := make([]Record, batch)
				for j := range records {
					records[j] = Record{Offset: int64(first + j), Key: name(first + j), Op: op(first + j)}
				}
				if _, err := c.Apply(b.Context(), Batch{Records: records, Committed: int64(first)}); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
	set := func(i int) Op { return Set(value(i)) }
	b.Run("set", fenced(false, set))
	b.Run("set-without-window", fenced(true, set))
	b.Run("add", fenced(false, func(i int) Op { return Add(int64(i)) }))
	b.Run("cas-free-sum", fenced(false, func(i int) Op { return Sum(int64(i)) }))
	b.Run("per-key-pipelined", func(b *testing.B) {
		s := redistest.Start(b)
		f := mustOpen(b, Options{URL: "redis://" + s.Addr() + "?check=off", Topic: "t", Partitions: 1})
		run(b, s, func(first int) {
			calls := make([]redisconn.Call, batch)
			for j := range calls {
				calls[j] = redisconn.Call{Script: perKey, Keys: []string{"state:{t-0}:" + string(name(first+j)), "epoch:{t-0}"},
					Args: []string{"1", "0", strconv.Itoa(first + j), string(value(first + j))}}
			}
			if _, err := f.s.Run(b.Context(), f.s.Breaker(""), false, calls...); err != nil {
				b.Fatal(err)
			}
		})
	})
}

// BenchmarkMemory measures what a key takes, with a value of 100 bytes: as the
// fence keeps it, and as a hash with the fields value, offset and partition.
func BenchmarkMemory(b *testing.B) {
	const keys, batch = 100_000, 1000
	value := make([]byte, 100)
	for name, fenced := range map[string]bool{"fence": true, "hash": false} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s := redistest.Start(b)
				f := mustOpen(b, Options{URL: "redis://" + s.Addr() + "?check=off", Topic: "t", Partitions: 1})
				c := mustClaim(b, f, Assignment{Committed: -1})
				before := s.Memory()
				for first := 0; first < keys; first += batch {
					var records []Record
					var calls []redisconn.Call
					for i := first; i < first+batch; i++ {
						key := []byte(fmt.Sprintf("user-%08d", i))
						records = append(records, Record{Offset: int64(i), Key: key, Op: Set(value)})
						calls = append(calls, redisconn.Call{Script: perKey, Keys: []string{"state:{t-0}:" + string(key), "epoch:{t-0}"},
							Args: []string{"1", "0", strconv.Itoa(i), string(value)}})
					}
					var err error
					if fenced {
						_, err = c.Apply(b.Context(), Batch{Records: records, Committed: int64(first)})
					} else {
						_, err = f.s.Run(b.Context(), f.s.Breaker(""), false, calls...)
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				if fenced { // without the window
					if _, err := c.Apply(b.Context(), Batch{Committed: keys}); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(s.Memory()-before)/keys, "B/key")
				s.Kill()
			}
		})
	}
}
