package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// waitUntil waits for a moment that is less than a millisecond away. The timers
// of the Go runtime may be late by one, when nothing else wakes it; the kernel's
// are late by some 50 us.
func waitUntil(due time.Time) {
	for {
		left := time.Until(due)
		if left <= 0 {
			return
		}
		ts := unix.NsecToTimespec(left.Nanoseconds())
		_ = unix.Nanosleep(&ts, nil) // interrupted: the loop looks again
	}
}
