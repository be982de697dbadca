package pebblestore

import (
	"bufio"
	"bytes"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// The default bound of memory: a share of what the process may use, within
// limits. It leaves three quarters for the Go heap, which holds the overlays,
// caches of decoded values and the clients' buffers.
const (
	defaultMemoryShare = 4 // one part in this many
	minDefaultMemory   = 32 << 20
	maxDefaultMemory   = 2 << 30
	// assumedMemory is used where the system does not say.
	assumedMemory = 1 << 30
)

// DefaultMaxMemory is the bound that Options.MaxMemory == 0 stands for: a
// quarter of the memory that the process may use, at least 32 MiB and at most
// 2 GiB. What it may use is the lowest limit of its control groups (version 2:
// memory.max, version 1: memory.limit_in_bytes), else the memory of the
// machine. Where neither is known, as on systems other than Linux, 1 GiB is
// assumed.
func DefaultMaxMemory() int64 { return defaultMaxMemory(os.DirFS("/")) }

func defaultMaxMemory(root fs.FS) int64 {
	return min(max(availableMemory(root)/defaultMemoryShare, minDefaultMemory), maxDefaultMemory)
}

// availableMemory returns the lowest limit that applies to the process.
func availableMemory(root fs.FS) int64 {
	limit := int64(math.MaxInt64)
	for _, file := range memoryLimitFiles(root) {
		if n, ok := readLimit(root, file); ok {
			limit = min(limit, n)
		}
	}
	// A limit of version 1 that is not set reads as a huge number: the
	// machine's memory is then the lower one.
	if n, ok := machineMemory(root); ok {
		limit = min(limit, n)
	}
	if limit == math.MaxInt64 {
		return assumedMemory
	}
	return limit
}

// memoryLimitFiles lists the files with the limits of the process's control
// groups and of all groups above: the lowest one counts. In a container the
// group is often hidden, its limit is then at the root of the mount.
func memoryLimitFiles(root fs.FS) []string {
	var files []string
	add := func(mount, group, name string) {
		for group = path.Clean("/" + group); ; group = path.Dir(group) {
			files = append(files, path.Join(mount, group, name))
			if group == "/" {
				return
			}
		}
	}
	const v2, v1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"
	const limitV2, limitV1 = "memory.max", "memory.limit_in_bytes"
	content, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		content = nil
	}
	for line := range bytes.Lines(content) {
		// hierarchy:controllers:path, as in "0::/user.slice" (version 2) or
		// "4:memory:/docker/ab12" (version 1).
		parts := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch {
		case parts[0] == "0" && parts[1] == "":
			add(v2, parts[2], limitV2)
		case containsController(parts[1], "memory"):
			add(v1, parts[2], limitV1)
		}
	}
	add(v2, "/", limitV2)
	add(v1, "/", limitV1)
	return files
}

func containsController(list, name string) bool {
	for c := range strings.SplitSeq(list, ",") {
		if c == name {
			return true
		}
	}
	return false
}

// readLimit reads a file that holds one number of bytes, or "max" for none.
func readLimit(root fs.FS, name string) (int64, bool) {
	content, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
	return n, err == nil && n > 0
}

func machineMemory(root fs.FS) (int64, bool) {
	f, err := root.Open("proc/meminfo")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) == 3 && fields[0] == "MemTotal:" && fields[2] == "kB" {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			return n << 10, err == nil && n > 0
		}
	}
	return 0, false
}

// memorySplit says how one bound is divided. Pebble takes memtables out of the
// block cache, so that the cache's size is the bound; and what restores gather
// is taken out of it too.
type memorySplit struct {
	cache    int64
	memtable uint64
	// unflushed is how many bytes of memtables may wait to be flushed before
	// an Apply waits.
	unflushed uint64
	// bulk is for one restore, bulks for all that run at the same time.
	bulk, bulks int
}

const (
	// MinMemory is the least that Options.MaxMemory is raised to.
	MinMemory = 4 << 20

	memtableShare = 8
	minMemtable   = 256 << 10
	maxMemtable   = 16 << 20
	// memtablesWaiting bounds the memtables that wait or are being written.
	memtablesWaiting = 3

	bulkShare  = 4
	minBulk    = 1 << 20
	maxBulk    = 256 << 20
	bulksShare = 2
)

func splitMemory(limit int64) memorySplit {
	limit = max(limit, MinMemory)
	memtable := uint64(min(max(limit/memtableShare, minMemtable), maxMemtable))
	return memorySplit{
		cache:     limit,
		memtable:  memtable,
		unflushed: memtablesWaiting * memtable,
		bulk:      int(min(max(limit/bulkShare, minBulk), maxBulk)),
		bulks:     int(limit / bulksShare),
	}
}
