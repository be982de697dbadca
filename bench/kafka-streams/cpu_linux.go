package main

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime returns the user and system time that a process has used, from the
// kernel's clock for it. The file /proc/<pid>/stat has the same in hundredths of
// a second only.
func cpuTime(pid int) (time.Duration, error) {
	// The id of the clock, as clock_getcpuclockid(3) makes it.
	const schedulerClock = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedulerClock), &ts); err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}
