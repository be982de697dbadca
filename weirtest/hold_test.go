package weirtest

import (
	"fmt"
	"testing"

	weir "github.com/weirstreams/weir"
)

// A member whose commit the group refuses, and which has to wait for its next
// assignment, does not process the same records again and again meanwhile: under
// at least once each try would write their outputs once more.
func TestARefusedCommitWaitsForTheGroup(t *testing.T) {
	t.Parallel()
	topology := build(t, func(b *weir.Builder) { b.Stream(countsIn).To(othersIn) })
	d := New(t, topology, Options{Instances: 3, Partitions: map[string]int32{"in": 6}, Config: weir.Config{Guarantee: weir.AtLeastOnce}})
	in, out := d.Input(countsIn), d.Output(othersIn)
	late := d.Instance(2)
	d.settling = true // the steps are ours
	newcomer := d.add()
	newcomer.tick() // the group calls for a new generation
	late.PauseAt(AfterProcess)
	for p := range int32(6) {
		in.To(p).Send(fmt.Sprint("k", p), "v")
	}
	late.tick() // it joins the generation, and is stopped at its work
	if late.State() != Paused {
		t.Fatalf("the instance is %v", late.State())
	}
	newcomer.crash()
	for range 10 { // the generation begins without them, and another one is called for
		d.pass()
	}
	late.Resume() // and waits for the dead one until its session is over
	before := len(out.All())
	for range 100 {
		d.pass()
		d.commit()
	}
	if n := len(out.All()) - before; n > 6 {
		t.Errorf("%d outputs of 2 records were written while the group had no place for the member\n%s", n, d.describe())
	}
	d.settling = false
	d.Settle()
	got := map[string]bool{}
	for _, r := range out.All() {
		got[r.Key] = true
	}
	if len(got) != 6 {
		t.Errorf("outputs of %d records, want 6", len(got))
	}
}
