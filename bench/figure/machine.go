package figure

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Machine is where and on what figures were taken. A fact that cannot be found
// out is left empty.
type Machine struct {
	Time      time.Time         `json:"time"`
	Cores     int               `json:"cores"`
	CPU       string            `json:"cpu,omitempty"`
	MemoryGiB float64           `json:"memory_gib,omitempty"`
	Kernel    string            `json:"kernel,omitempty"`
	OS        string            `json:"os"`
	Go        string            `json:"go"`
	Runtimes  map[string]string `json:"runtimes"` // what else was measured
	Commit    string            `json:"commit,omitempty"`
}

// Inspect describes this machine.
func Inspect(ctx context.Context, runtimes map[string]string) Machine {
	m := Machine{
		Time: time.Now().UTC().Truncate(time.Second), Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH,
		Go: runtime.Version(), Runtimes: runtimes, Commit: commit(ctx),
	}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		if n, err := ParseKB(string(b), "MemTotal"); err == nil {
			m.MemoryGiB = float64(n>>20) / 1024
		}
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(b))
	}
	return m
}

// commit names the checked-out commit, and says so when the files differ from it.
func commit(ctx context.Context) string {
	head, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return ""
	}
	name := strings.TrimSpace(string(head))
	if changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain").Output(); err != nil || len(changed) > 0 {
		name += " with changes"
	}
	return name
}

// Write prints the machine as a line.
func (m Machine) Write(w io.Writer) {
	fmt.Fprintf(w, "%s, %d cores (%s), %.0f GiB, %s, kernel %s, %s", m.Time.Format(time.RFC3339), m.Cores, m.CPU, m.MemoryGiB, m.OS, m.Kernel, m.Go)
	for _, s := range slices.Sorted(maps.Keys(m.Runtimes)) {
		fmt.Fprintf(w, ", %s: %s", s, m.Runtimes[s])
	}
	if m.Commit != "" {
		fmt.Fprintf(w, ", commit %s", m.Commit)
	}
	fmt.Fprintln(w)
}

// Load is the machine's load average of the last minute: a run beside other work
// measures that work too. It is empty where it cannot be found out.
func Load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	one, _, _ := strings.Cut(string(b), " ")
	return one
}

// ParseKB finds a line such as "VmHWM:   4096 kB" and returns its value in bytes.
func ParseKB(text, name string) (int64, error) {
	for line := range strings.Lines(text) {
		v, ok := strings.CutPrefix(line, name+":")
		if !ok {
			continue
		}
		v, ok = strings.CutSuffix(strings.TrimSpace(v), " kB")
		n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		if !ok || err != nil {
			return 0, fmt.Errorf("%s is %q, not a number of kB", name, strings.TrimSpace(line))
		}
		return n << 10, nil
	}
	return 0, fmt.Errorf("no %s", name)
}
