package weirtest_test

import (
	"fmt"
	"testing"
	"time"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/serde"
	"github.com/weirstreams/weir/weirtest"
)

// Rating is what a user says about a movie.
type Rating struct {
	Movie string
	Stars int
}

// Average is what all users say about a movie.
type Average struct{ Count, Sum int }

var (
	ratings  = weir.NewTopic("ratings", serde.String, serde.JSON[Rating]())
	averages = weir.NewTopic("averages", serde.String, serde.JSON[Average]())
)

// averaging counts the ratings of each movie, which are keyed by user.
func averaging() (*weir.Topology, weir.Table[string, Average]) {
	b := weir.NewBuilder()
	table := b.Stream(ratings).
		GroupBy("by-movie", serde.String, func(_ string, r Rating) string { return r.Movie }).
		Aggregate("movies", serde.JSON[Average](), func() Average { return Average{} },
			func(_ string, r Rating, a Average) Average { return Average{a.Count + 1, a.Sum + r.Stars} })
	table.ToStream().To(averages)
	t, err := b.Build()
	if err != nil {
		panic(err)
	}
	return t, table
}

// t is the *testing.T of a real test.
var t testing.TB = &exampleT{}

type exampleT struct{ testing.TB }

func (*exampleT) Helper()                   {}
func (*exampleT) Cleanup(func())            {}
func (*exampleT) Fatal(args ...any)         { panic(fmt.Sprint(args...)) }
func (*exampleT) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// A record goes through both subtopologies, over the repartition topic, before
// Send returns.
func Example() {
	topology, movies := averaging()
	d := weirtest.New(t, topology, weirtest.Options{Partitions: map[string]int32{"ratings": 3}})

	in, out := d.Input(ratings), d.Output(averages)
	in.Send("ada", Rating{"362", 5})
	in.Send("bob", Rating{"362", 3})
	in.Send("ada", Rating{"129", 4})

	for _, r := range out.ReadKeyValues() {
		fmt.Println(r.Key, r.Value)
	}
	average, found := d.Table(movies).Get("362")
	fmt.Println("table:", average, found)
	// Output:
	// 362 {1 5}
	// 362 {2 8}
	// 129 {1 4}
	// table: {2 8} true
}

// A restart changes nothing. The store, which is memory that is lost, is restored
// from the changelog.
func ExampleDriver_Restart() {
	topology, movies := averaging()
	d := weirtest.New(t, topology, weirtest.Options{})

	in, out := d.Input(ratings), d.Output(averages)
	in.Send("ada", Rating{"362", 5})
	d.Restart()
	in.Send("bob", Rating{"362", 3})

	fmt.Println(out.ReadKeyValues())
	fmt.Println(d.Table(movies).Entries()[0].Value)
	// Output:
	// [{362 {1 5} false} {362 {2 8} false}]
	// {2 8}
}

// An instance that dies with outputs on the broker and nothing committed: what it
// had begun is aborted, and done again by its successor.
func ExampleDriver_CrashAt() {
	topology, _ := averaging()
	d := weirtest.New(t, topology, weirtest.Options{Store: weirtest.Memory()})

	in, out := d.Input(ratings), d.Output(averages)
	in.Send("ada", Rating{"362", 5})
	d.CrashAt(weirtest.BeforeCommit)
	in.Send("bob", Rating{"362", 3})
	fmt.Println(d.Instance(0).State(), out.ReadKeyValues())

	before := d.Now()
	d.Start()
	fmt.Println(d.Instance(0).State(), out.ReadKeyValues())
	fmt.Println("the group waited for the dead member:", d.Now().Sub(before))
	// Output:
	// crashed [{362 {1 5} false}]
	// running [{362 {2 8} false}]
	// the group waited for the dead member: 15s
}

// Two instances share the tasks. When one is gone for longer than its session
// lasts, the other one takes over; what the first one does when it comes back is
// refused.
func ExampleInstance_PauseAt() {
	topology, _ := averaging()
	d := weirtest.New(t, topology, weirtest.Options{Instances: 2, Partitions: map[string]int32{"ratings": 2}})
	fmt.Println(d.Instance(0).Tasks(), d.Instance(1).Tasks())

	in, out := d.Input(ratings), d.Output(averages)
	d.Instance(0).PauseAt(weirtest.BeforeCommit)
	d.Instance(1).PauseAt(weirtest.BeforeCommit)
	in.Send("ada", Rating{"362", 5})
	zombie := d.Instance(0)
	if zombie.State() != weirtest.Paused {
		zombie = d.Instance(1)
	}
	d.Instance(0).PauseAt("")
	d.Instance(1).PauseAt("")
	d.Advance(20 * time.Second)
	fmt.Println(out.ReadKeyValues())

	zombie.Resume()
	fmt.Println("nothing more:", out.Empty())
	// Output:
	// [0_0 1_0] [0_1 1_1]
	// [{362 {1 5} false}]
	// nothing more: true
}
