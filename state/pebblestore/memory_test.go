package pebblestore

import (
	"io/fs"
	"testing"
	"testing/fstest"
)

func TestDefaultMaxMemory(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	meminfo := "MemFree:          123 kB\nMemTotal:       8388608 kB\nSwapTotal: 1 kB\n" // 8 GiB
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int64
	}{
		{"nothing known", nil, gib / 4},
		{"no control group", map[string]string{"proc/meminfo": meminfo}, 2 * gib},
		{"version 2", map[string]string{
			"proc/meminfo":     meminfo,
			"proc/self/cgroup": "0::/system.slice/app.service\n",
			"sys/fs/cgroup/system.slice/app.service/memory.max": "1073741824\n",
		}, gib / 4},
		{"version 2, a lower limit above", map[string]string{
			"proc/meminfo":                     meminfo,
			"proc/self/cgroup":                 "0::/pod/app\n",
			"sys/fs/cgroup/pod/app/memory.max": "max\n",
			"sys/fs/cgroup/pod/memory.max":     "536870912\n",
		}, gib / 8},
		{"version 2, in a container with a namespace", map[string]string{
			"proc/meminfo":             meminfo,
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "2147483648\n",
		}, gib / 2},
		{"version 2, the group is out of the namespace", map[string]string{
			"proc/meminfo":             meminfo,
			"proc/self/cgroup":         "0::/../../docker/ab\n",
			"sys/fs/cgroup/memory.max": "2147483648\n",
		}, gib / 2},
		{"version 2 without a limit", map[string]string{
			"proc/meminfo":             meminfo,
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "max\n",
		}, 2 * gib},
		{"version 1", map[string]string{
			"proc/meminfo":     meminfo,
			"proc/self/cgroup": "12:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab\n1:name=systemd:/docker/ab\n",
			"sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes": "1073741824\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":           "9223372036854771712\n",
		}, gib / 4},
		{"version 1, in a container", map[string]string{
			"proc/meminfo":     meminfo,
			"proc/self/cgroup": "4:memory:/docker/ab\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n",
		}, gib / 4},
		{"version 1 without a limit", map[string]string{
			"proc/meminfo":     meminfo,
			"proc/self/cgroup": "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 2 * gib},
		{"a limit above the machine's memory", map[string]string{
			"proc/meminfo":             "MemTotal: 1048576 kB\n",
			"sys/fs/cgroup/memory.max": "10737418240\n",
		}, gib / 4},
		{"little", map[string]string{"proc/meminfo": meminfo, "sys/fs/cgroup/memory.max": "67108864\n"}, minDefaultMemory},
		{"much", map[string]string{"proc/meminfo": "MemTotal: 268435456 kB\n"}, maxDefaultMemory},
		{"garbage", map[string]string{
			"proc/meminfo": "MemTotal: many kB\n", "proc/self/cgroup": "::\n\nx\n0::\n",
			"sys/fs/cgroup/memory.max": "-1\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "12 MB",
		}, gib / 4},
	} {
		root := fstest.MapFS{}
		for name, content := range c.files {
			root[name] = &fstest.MapFile{Data: []byte(content)}
		}
		if got := defaultMaxMemory(root); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestDefaultMaxMemoryHere(t *testing.T) {
	t.Parallel()
	if got := DefaultMaxMemory(); got < minDefaultMemory || got > maxDefaultMemory {
		t.Errorf("DefaultMaxMemory() = %d", got)
	}
}

func FuzzMemoryLimits(f *testing.F) {
	f.Add("0::/a/b\n", "max\n", "MemTotal: 1 kB\n")
	f.Add("3:memory:/../..\n", "123", "MemTotal: 99999999999999999999 kB")
	f.Fuzz(func(t *testing.T, cgroup, limit, meminfo string) {
		root := fstest.MapFS{
			"proc/self/cgroup":         {Data: []byte(cgroup)},
			"sys/fs/cgroup/memory.max": {Data: []byte(limit)},
			"proc/meminfo":             {Data: []byte(meminfo)},
		}
		for _, name := range memoryLimitFiles(root) {
			if !fs.ValidPath(name) {
				t.Fatalf("%q is no path", name)
			}
		}
		if got := defaultMaxMemory(root); got < minDefaultMemory || got > maxDefaultMemory {
			t.Fatalf("%d", got)
		}
	})
}

func TestSplitMemory(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{0, MinMemory, 32 << 20, 1 << 30, 64 << 30} {
		s := splitMemory(limit)
		if s.cache != max(limit, MinMemory) {
			t.Errorf("%d: the cache has %d", limit, s.cache)
		}
		if s.memtable < minMemtable || s.memtable > maxMemtable {
			t.Errorf("%d: a memtable has %d", limit, s.memtable)
		}
		if used := int64(s.unflushed) + int64(s.memtable) + int64(s.bulks); used > s.cache {
			t.Errorf("%d: memtables and restores take %d of %d", limit, used, s.cache)
		}
		if s.bulk < minBulk || s.bulk > maxBulk || s.bulk > s.bulks {
			t.Errorf("%d: a restore has %d, all have %d", limit, s.bulk, s.bulks)
		}
	}
}
