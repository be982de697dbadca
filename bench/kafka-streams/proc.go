package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/weirstreams/weir/bench/figure"
)

// peakRSS returns the largest resident size that a process has had, in bytes.
func peakRSS(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	n, err := figure.ParseKB(string(b), "VmHWM")
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	return n, nil
}

// errNoListener says that no process of this machine that we may look into
// listens on the broker's port.
var errNoListener = errors.New("no process of this machine that this user may inspect listens there")

// listenerPID finds the process that listens on the port of addr, which is how
// the broker is found whoever started it.
func listenerPID(addr string) (int, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, fmt.Errorf("find the process behind %s: %w", addr, err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("find the process behind %s: %w", addr, err)
	}
	sockets := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(table)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("find the process behind %s: %w", addr, err)
		}
		for _, inode := range listeners(string(b), uint16(n)) {
			sockets["socket:["+inode+"]"] = true
		}
	}
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0, fmt.Errorf("find the process behind %s: %w", addr, err)
	}
	for _, fd := range fds {
		// Processes end and descriptors close while we look: an error is no match.
		if target, err := os.Readlink(fd); err == nil && sockets[target] {
			return strconv.Atoi(strings.Split(fd, "/")[2])
		}
	}
	return 0, fmt.Errorf("find the process behind %s: %w", addr, errNoListener)
}

// listeners returns the inodes of the sockets of a table such as /proc/net/tcp
// that listen on port.
func listeners(table string, port uint16) []string {
	const local, state, inode = 1, 3, 9
	const listening = "0A"
	suffix := fmt.Sprintf(":%04X", port)
	var inodes []string
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > inode && f[state] == listening && strings.HasSuffix(f[local], suffix) {
			inodes = append(inodes, f[inode])
		}
	}
	return inodes
}
