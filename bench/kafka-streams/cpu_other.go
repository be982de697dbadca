//go:build !linux

package main

import (
	"errors"
	"fmt"
	"time"
)

// cpuTime is there for the package to compile: what is measured is read from
// Linux.
func cpuTime(pid int) (time.Duration, error) {
	return 0, fmt.Errorf("read the CPU time of process %d: %w on this system; use Linux", pid, errors.ErrUnsupported)
}
