package pebblestore

import "sync"

// alarm delivers alarms from a goroutine of its own, because they are raised
// inside of Pebble, which holds locks then.
type alarm struct {
	mu struct {
		sync.Mutex
		closed bool
	}
	ch   chan error
	done chan struct{}
}

// alarmQueue bounds the alarms that wait for a slow receiver; more are
// dropped. Each kind is raised once, or once for each time that the disk
// becomes full.
const alarmQueue = 16

func (a *alarm) init() {
	a.ch = make(chan error, alarmQueue)
	a.done = make(chan struct{})
}

// start begins the delivery, also of what was raised before.
func (a *alarm) start(deliver func(error)) {
	go func() {
		defer close(a.done)
		for err := range a.ch {
			deliver(err)
		}
	}()
}

// raise never blocks.
func (a *alarm) raise(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.closed {
		return
	}
	select {
	case a.ch <- err:
	default:
	}
}

// close waits for the last delivery.
func (a *alarm) close() {
	a.mu.Lock()
	if !a.mu.closed {
		a.mu.closed = true
		close(a.ch)
	}
	a.mu.Unlock()
	<-a.done
}
