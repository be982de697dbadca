package assign

import (
	"fmt"
	"testing"
)

// BenchmarkAssign plans for a stable group, and for one in which a process
// with local state has just come back, so that everything moves somewhere.
func BenchmarkAssign(b *testing.B) {
	for _, size := range []struct{ tasks, processes, workers int }{{100, 3, 4}, {1000, 25, 2}, {10000, 50, 8}} {
		members := size.processes * size.workers
		for _, stable := range []bool{true, false} {
			b.Run(fmt.Sprintf("tasks=%d/members=%d/stable=%v", size.tasks, members, stable), func(b *testing.B) {
				g := newSimGroup(nil, layout(func(sub int) bool { return sub%2 == 0 }, size.tasks/4, size.tasks/4, size.tasks/4, size.tasks/4))
				for i := range members {
					g.join(byte(1+i%size.processes), int32(i/size.processes))
				}
				list := g.joinGroup()
				c := Cluster{Topology: g.topology, Tasks: g.tasks, Generation: 1}
				plan, _ := Sticky{}.Assign(c, list)
				for i := range list {
					a := plan[list[i].ID]
					list[i].Generation = 1
					if stable || list[i].UserData.ProcessID != (ProcessID{1}) {
						list[i].UserData.Owned, list[i].Partitions = a.Active, a.Partitions
						continue
					}
					for _, id := range a.Active {
						list[i].UserData.Local = append(list[i].UserData.Local, LocalTask{id, 100})
					}
				}
				if !stable { // half of what the process had went to the next one
					for i := range list {
						if list[i].UserData.ProcessID == (ProcessID{2}) {
							for _, l := range list[i].UserData.Local[:len(list[i].UserData.Local)/2] {
								list[i].UserData.Owned = append(list[i].UserData.Owned, l.ID)
							}
						}
					}
				}
				b.ReportAllocs()
				for b.Loop() {
					Sticky{}.Assign(c, list)
				}
			})
		}
	}
}

func BenchmarkAssignmentCodec(b *testing.B) {
	a := exampleAssignment()
	data := a.Encode()
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			a.Encode()
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := DecodeAssignment(data); err != nil {
				b.Fatal(err)
			}
		}
	})
}
