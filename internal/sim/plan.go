package sim

import (
	"fmt"
	"strings"
	"time"
)

// StoreKind is where instances keep their state.
type StoreKind string

const (
	// Shared is one store of all instances, as Redis is.
	Shared StoreKind = "shared"
	// Lost is memory that goes with the process.
	Lost StoreKind = "lost with the process"
	// Kept is a store of each instance that survives its process.
	Kept StoreKind = "kept"
	// Lagging is one that survives too, without what was written last: a disk
	// that is not synced.
	Lagging StoreKind = "kept, but for the last writes"
)

// Setup is what stays the same in a plan.
type Setup struct {
	Instances   int // that run at the beginning
	Partitions  int32
	Store       StoreKind
	Keys        int
	Timers      bool // wall-clock punctuations of all tasks
	SmallCache  bool // reads go to the store
	AtLeastOnce bool
	Outbox      bool          // the store keeps outputs beside the state; at least once, and shared
	Slow        time.Duration // that a record takes, so that more wait than one round can process

	CommitInterval, FlushInterval, PurgeInterval time.Duration
	SessionTimeout, TransactionTimeout           time.Duration
	TombstoneLife                                time.Duration // delete.retention.ms
}

func (s Setup) String() string {
	guarantee := "exactly once"
	if s.AtLeastOnce {
		guarantee = "at least once"
	}
	if s.Outbox {
		guarantee += " with outboxes"
	}
	extra := ""
	if s.Timers {
		extra += ", timers"
	}
	if s.SmallCache {
		extra += ", no cache"
	}
	if s.Slow > 0 {
		extra += fmt.Sprintf(", %v for a record", s.Slow)
	}
	return fmt.Sprintf("%d instances, %d partitions, %d keys, %s, store %s%s; commit %v, flush %v, purge %v, session %v, transaction %v, tombstones %v",
		s.Instances, s.Partitions, s.Keys, guarantee, s.Store, extra, s.CommitInterval, s.FlushInterval, s.PurgeInterval,
		s.SessionTimeout, s.TransactionTimeout, s.TombstoneLife)
}

// Kind is what a step does.
type Kind string

// The kinds of steps.
const (
	Send     Kind = "send"
	Work     Kind = "work"
	Wait     Kind = "wait"
	Arm      Kind = "arm"
	Go       Kind = "go"
	Kill     Kind = "kill"
	Stop     Kind = "stop"
	Start    Kind = "start"
	Wipe     Kind = "wipe"
	Compact  Kind = "compact"
	Deliver  Kind = "deliver"
	Redo     Kind = "redo"
	Regress  Kind = "regress"
	Flush    Kind = "flush"
	LoseView Kind = "lose view"
	LosePart Kind = "lose part"
	Foreign  Kind = "foreign"
	Database Kind = "database"
	Down     Kind = "down"
	Markers  Kind = "markers"
	Mark     Kind = "mark"
	Noise    Kind = "noise"
	Elect    Kind = "elect"
	Stranger Kind = "stranger"
	Rewind   Kind = "rewind"
	Expire   Kind = "expire"
	Grow     Kind = "grow"
	Recreate Kind = "recreate"
)

// offsetMarkers is the What of a Mark for those of all offsets.
const offsetMarkers = "offsets"

// Step is one step of a plan. Which fields count depends on Kind.
type Step struct {
	ID   uint64 // seeds the chance of this step, so that others can be left out
	Kind Kind
	Who  int    // instance
	What string // records, or what is down
	At   Await
	Nth  int // time that it gets there from now on
	Do   Fault
	N    int
	D    time.Duration
	On   bool
}

func (s Step) String() string {
	switch s.Kind {
	case Send:
		return "send " + s.What
	case Work:
		return fmt.Sprintf("all work for %d rounds, %v each", s.N, s.D)
	case Wait:
		return fmt.Sprintf("%v go by", s.D)
	case Arm:
		at := string(s.At)
		if at == "" {
			at = "await point, whichever"
		}
		text := fmt.Sprintf("from now on, the %d. time at %q: instance %d %s", s.Nth, at, s.Who, s.Do)
		if s.Do == Forget {
			text = fmt.Sprintf("from now on, the %d. time that instance %d is at %q: the store forgets %d writes", s.Nth, s.Who, at, s.N)
		}
		return text
	case Go:
		return fmt.Sprintf("instance %d goes on, if it stands still", s.Who)
	case Kill:
		return fmt.Sprintf("instance %d is killed", s.Who)
	case Stop:
		return fmt.Sprintf("instance %d is stopped", s.Who)
	case Start:
		return fmt.Sprintf("instance %d is started", s.Who)
	case Wipe:
		return fmt.Sprintf("the local state of instance %d is lost, if it does not run", s.Who)
	case Compact:
		return "the log cleaner runs"
	case Deliver:
		return fmt.Sprintf("late request %d reaches the broker", s.N)
	case Redo:
		return fmt.Sprintf("late write %d reaches the store", s.N)
	case Regress:
		if s.On {
			return fmt.Sprintf("the store forgets the last %d claims of view %d, and what came after them", s.N, s.Who)
		}
		if s.Who < 0 {
			return fmt.Sprintf("the store forgets the last %d writes", s.N)
		}
		return fmt.Sprintf("the store forgets the last %d writes of view %d", s.N, s.Who)
	case Flush:
		return "the store is emptied"
	case LoseView:
		return fmt.Sprintf("view %d of the store is deleted", s.Who)
	case LosePart:
		return fmt.Sprintf("a part of view %d of the store is deleted", s.Who)
	case Foreign:
		return fmt.Sprintf("another application with the same name writes view %d", s.Who)
	case Database:
		if s.On {
			return "the store shows another, empty database"
		}
		return "the store shows its own database again"
	case Down:
		if s.On {
			return "the " + s.What + " is down"
		}
		return "the " + s.What + " is up again"
	case Markers:
		if s.On {
			return "markers of transactions are held back from now on"
		}
		return "all markers arrive, as they do from now on"
	case Mark:
		if s.What == offsetMarkers {
			return "the held markers of offsets arrive"
		}
		return fmt.Sprintf("held marker %d arrives", s.N)
	case Noise:
		return fmt.Sprintf("from now on %d of 1000 requests fail", s.N)
	case Elect:
		return fmt.Sprintf("partition %d gets another leader", s.Who)
	case Stranger:
		if s.On {
			return fmt.Sprintf("a stranger's transaction is open on partition %d of the input", s.Who)
		}
		return "the stranger's transaction is aborted"
	case Rewind:
		return fmt.Sprintf("another tool sets the group's offset of partition %d back by %d", s.Who, s.N)
	case Expire:
		return "the broker forgets the group, if it is empty"
	case Grow:
		return "the input gets another partition"
	case Recreate:
		return "the repartition topic is deleted and made again"
	}
	return string(s.Kind)
}

// Plan is what one seed makes of a scenario.
type Plan struct {
	Scenario string
	Seed     uint64
	Setup    Setup
	Steps    []Step
}

// String lists the steps.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "scenario %s, seed %d: %s\n", p.Scenario, p.Seed, p.Setup)
	for i, s := range p.Steps {
		fmt.Fprintf(&b, "%4d. %s\n", i+1, s)
	}
	return b.String()
}
