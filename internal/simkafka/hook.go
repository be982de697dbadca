package simkafka

import (
	"errors"
	"fmt"

	"github.com/weirstreams/weir/internal/worker"
)

// Op names a call to the broker, or a step of one.
type Op string

// The calls of the seam. Commit consists of CommitOffsets and, in a
// transaction, EndTransaction; a flush that has something to send is a Produce
// first. Those three are requests to the broker like the others. The calls from
// Begin on are the client's own: they cannot fail, and of a fault only Crash
// counts.
const (
	Join           Op = "join"
	NewReader      Op = "new reader"
	Poll           Op = "poll"
	Produce        Op = "produce"
	CommitOffsets  Op = "commit offsets"
	EndTransaction Op = "end transaction"
	Abort          Op = "abort"
	FetchCommitted Op = "fetch committed offsets"
	FetchBounds    Op = "fetch bounds"
	Confirm        Op = "confirm"
	DeleteRecords  Op = "delete records"
	Describe       Op = "describe topics"
	ReadPoll       Op = "reader poll"
	ReadBounds     Op = "reader bounds"
	ReadSkip       Op = "reader skip"

	Begin          Op = "begin"
	Buffer         Op = "buffer records"
	Flush          Op = "flush"
	Seek           Op = "seek"
	Pause          Op = "pause"
	Resume         Op = "resume"
	AllowRebalance Op = "allow rebalance"
	CloseMember    Op = "close"
	ReadAdd        Op = "reader add"
	ReadRemove     Op = "reader remove"
	CloseReader    Op = "reader close"
)

// Call is one call as the hook sees it, before it is carried out.
type Call struct {
	Op     Op
	Client string // the name of the client
	Member string // its id in the group; empty before the first join
	// Partitions that the call is about, where there are any.
	Partitions []worker.TopicPartition
	// Records is the number of records that a Produce sends.
	Records int
}

func (c Call) String() string {
	s := fmt.Sprintf("%s: %s", c.Client, c.Op)
	for _, tp := range c.Partitions {
		s += " " + name(tp)
	}
	return s
}

// Effect is what becomes of a request.
type Effect int

// A request is Applied; Dropped, so that it never has an effect; or Late, which
// keeps it until Cluster.Deliver. A read that is Late is dropped.
const (
	Applied Effect = iota
	Dropped
	Late
)

// Fault is the answer of a hook. The zero value is none: the call goes ahead.
type Fault struct {
	Effect Effect
	// Err is what the caller gets instead of the answer. Without one, a request
	// that is not applied returns ErrConnection.
	Err error
	// Crash lets the caller die with a *Crashed panic, after the effect. The
	// client is dead from then on.
	Crash bool
}

// ErrConnection is the error of a request without an answer: whether it was
// carried out is not known.
var ErrConnection = errors.New("connection to the broker lost")

// errClosed is the error of a client that was closed or has died.
var errClosed = errors.New("the client is closed")

// Crashed is the panic of a caller that a fault let die.
type Crashed struct{ Call Call }

func (c *Crashed) Error() string { return "crashed in " + c.Call.String() }

// request takes a call by the hook and carries it out. The error is that of
// apply, or the fault's.
func (cl *Client) request(call Call, apply func() error) error {
	c := cl.cluster
	if cl.dead {
		return errClosed
	}
	c.expire()
	call.Client = cl.name
	f := c.fault(call)
	if cl.dead {
		// It died while the hook held the call.
		return errClosed
	}
	c.expire() // the hook may have let time pass
	err := f.Err
	switch f.Effect {
	case Applied:
		if e := apply(); err == nil {
			err = e
		}
	case Late:
		c.late = append(c.late, lateCall{call, apply})
		fallthrough
	default:
		if err == nil {
			err = ErrConnection
		}
	}
	if f.Crash {
		cl.Crash()
		panic(&Crashed{call})
	}
	return err
}

// local takes a call that is the client's own by the hook.
func (cl *Client) local(op Op, tps ...worker.TopicPartition) {
	if cl.dead {
		return
	}
	call := Call{Op: op, Client: cl.name, Partitions: tps}
	if f := cl.cluster.fault(call); f.Crash {
		cl.Crash()
		panic(&Crashed{call})
	}
}

func (c *Cluster) fault(call Call) Fault {
	if c.cfg.Hook == nil {
		return Fault{}
	}
	return c.cfg.Hook(call)
}

type lateCall struct {
	call  Call
	apply func() error
}

// LateCalls lists the requests that wait for Deliver, the oldest first.
func (c *Cluster) LateCalls() []Call {
	var list []Call
	for _, l := range c.late {
		list = append(list, l.call)
	}
	return list
}

// Deliver carries out the i-th of the late requests and returns what the broker
// answers to nobody.
func (c *Cluster) Deliver(i int) error {
	l := c.late[i]
	c.late = append(c.late[:i:i], c.late[i+1:]...)
	c.expire()
	return l.apply()
}
