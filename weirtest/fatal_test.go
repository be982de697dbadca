package weirtest

import (
	"strings"
	"testing"
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/internal/worker"
)

// What no retry mends stops an instance at once, with a text that says what it
// is: it does not try for minutes with new clients.
func TestWhatNoRetryMends(t *testing.T) {
	t.Parallel()
	var d *Driver
	pass := func(b *weir.Builder) { b.Stream(countsIn).To(othersIn) }
	tp := worker.TopicPartition{Topic: "in"}
	for _, c := range []struct {
		name    string
		program func(b *weir.Builder)
		act     func()
		want    string
	}{
		{"a record that takes longer than MaxRecordTime", func(b *weir.Builder) {
			b.Stream(countsIn).Peek(func(string, string) { d.clock.now = d.clock.now.Add(2 * time.Minute) }).To(othersIn)
		}, func() { d.Input(countsIn).Send("k", "v") }, "more than MaxRecordTime"},
		{"a damaged stamp", pass, func() {
			d.Instance(0).Stop()
			o := d.sim.Committed("test")[tp]
			d.sim.SetOffsets("test", worker.OffsetCommit{TopicPartition: tp, Offset: o.Offset, LeaderEpoch: -1, Metadata: o.Metadata[:len(o.Metadata)-4]})
			d.Instance(0).start()
		}, "is damaged"},
		{"a reset policy that forbids it", func(b *weir.Builder) { b.Stream(countsIn, weir.StartAt(weir.Fail)).To(othersIn) }, func() {}, "reset policy is Fail"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d = prepare(t, build(t, c.program), Options{AllowFailure: true})
			d.add()
			d.Settle()
			began := d.Now()
			if d.Instance(0).State() == Running {
				c.act()
				d.Settle()
			}
			in := d.Instance(0)
			if in.State() != Failed || !strings.Contains(in.Err().Error(), c.want) {
				t.Errorf("the instance is %v with %v, want it failed with %q", in.State(), in.Err(), c.want)
			}
			if took := d.Now().Sub(began); took > 5*time.Minute {
				t.Errorf("it took %v", took)
			}
		})
	}
}
