package weirtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	weir "github.com/weirstreams/weir"
	"github.com/weirstreams/weir/serde"
)

// asker keeps values by key, deletes with tombstones, and answers "?" with what
// an iterator finds from the key on, "?<" with what one finds down from it.
type asker struct {
	weir.ProcessorDefaults
	store *weir.KeyValueStore[string, string]
	open  weir.KeyValue[string, string]
	out   *weir.Emitter[string, string]
}

func (a *asker) Init(t *weir.Task, out *weir.Emitter[string, string]) error {
	a.open, a.out = a.store.Open(t), out
	return nil
}

func (a *asker) Process(r weir.Record[string, string]) error {
	switch {
	case r.Tombstone:
		return a.open.Delete(r.Key)
	case r.Value != "?" && r.Value != "?<":
		return a.open.Put(r.Key, r.Value)
	}
	bounds := weir.From(r.Key)
	if r.Value == "?<" {
		bounds = weir.Upto(r.Key).Reverse()
	}
	var found []string
	for k, v := range a.open.Range(bounds) {
		found = append(found, k+"="+v)
	}
	a.out.Emit(weir.Record[string, string]{Key: r.Key, Value: strings.Join(found, " ")})
	return nil
}

// askerRun is a run of an asker.
type askerRun struct {
	*Driver
	in    Input[string, string]
	out   *Output[string, string]
	store *weir.KeyValueStore[string, string]
}

func newAsker(t testing.TB, opts Options) *askerRun {
	t.Helper()
	b := weir.NewBuilder()
	store := weir.NewKeyValueStore("kv", serde.String, serde.String)
	b.Stream(chainIn).Process("asker", func() *asker { return &asker{store: store} }, store).To(chainOut)
	topology, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	d := New(t, topology, opts)
	return &askerRun{d, d.Input(chainIn), d.Output(chainOut), store}
}

// ask asks for what is found from or down from a key.
func (a *askerRun) ask(key, question, want string) {
	a.t.Helper()
	a.in.Send(key, question)
	if got := a.out.ReadKeyValues(); len(got) != 1 || got[0].Value != want {
		a.t.Errorf("%s %s: %v, want %q", question, key, got, want)
	}
}

// TestSituationG1: keys are deleted, and the store is iterated. The iterator had
// them with a nil value, and the store grew with each. They are absent: within a
// batch, behind a commit, in the store itself, and after a restore.
func TestSituationG1(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"lost", "memory", "behind", "disk"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			a := newAsker(t, stores[kind](t))
			a.Batch(func() {
				a.in.Send("a", "1")
				a.in.Send("b", "2")
				a.in.Send("c", "3")
				a.in.SendTombstone("b")
				a.in.Send("a", "?")
			})
			if got := a.out.ReadKeyValues(); len(got) != 1 || got[0].Value != "a=1 c=3" {
				t.Errorf("within the batch: %v, want a and c", got)
			}
			a.ask("", "?", "a=1 c=3")
			a.in.SendTombstone("a")
			a.ask("", "?", "c=3")
			for i := range 1000 {
				a.in.Send(fmt.Sprint("k", i), "x")
				a.in.SendTombstone(fmt.Sprint("k", i))
			}
			a.ask("", "?", "c=3")
			a.ask("z", "?<", "c=3")
			if kind != "behind" {
				if got := storedKeys(t, a.Instance(0).store, "0_0"); len(got) != 1 {
					t.Errorf("the store holds %d entries, want 1", len(got))
				}
			}
			a.Restart()
			a.ask("", "?", "c=3")
			a.Compact()
			a.Crash()
			a.Instance(0).DropState()
			a.Start()
			a.ask("", "?", "c=3")
			entries := a.Store(a.store).Entries()
			if want := []weir.Entry[string, string]{{Key: "c", Value: "3"}}; !slices.Equal(entries, want) {
				t.Errorf("a query finds %v, want %v", entries, want)
			}
		})
	}
}

// TestSituationH3: an iterator begins at a key. Its first element was lost. It is
// there: in the batch, in the store, and whether the key itself is there or only
// the next one.
func TestSituationH3(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"lost", "memory", "behind", "disk"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			a := newAsker(t, stores[kind](t))
			a.Batch(func() {
				for _, key := range []string{"a", "b", "c", "d"} {
					a.in.Send(key, key)
				}
				a.in.Send("b", "?")
			})
			if got := a.out.ReadKeyValues(); len(got) != 1 || got[0].Value != "b=b c=c d=d" {
				t.Errorf("within the batch: %v, want b, c and d", got)
			}
			for range 2 {
				a.ask("b", "?", "b=b c=c d=d")
				a.ask("bb", "?", "c=c d=d")
				a.ask("a", "?", "a=a b=b c=c d=d")
				a.ask("d", "?", "d=d")
				a.ask("c", "?<", "c=c b=b a=a")
				a.ask("a", "?<", "a=a")
				a.ask("bb", "?<", "b=b a=a")
				a.Restart()
			}
		})
	}
}
