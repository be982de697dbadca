package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// machine is where and on what the figures were taken. A fact that cannot be
// found out is left empty.
type machine struct {
	Time      time.Time         `json:"time"`
	Cores     int               `json:"cores"`
	CPU       string            `json:"cpu,omitempty"`
	MemoryGiB float64           `json:"memory_gib,omitempty"`
	Kernel    string            `json:"kernel,omitempty"`
	OS        string            `json:"os"`
	Go        string            `json:"go"`
	Runtimes  map[string]string `json:"runtimes"` // of the sides
	Commit    string            `json:"commit,omitempty"`
}

func inspect(ctx context.Context, runtimes map[string]string) machine {
	m := machine{
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
		if n, err := parseKB(string(b), "MemTotal"); err == nil {
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

func (m machine) write(w io.Writer) {
	fmt.Fprintf(w, "%s, %d cores (%s), %.0f GiB, %s, kernel %s, %s", m.Time.Format(time.RFC3339), m.Cores, m.CPU, m.MemoryGiB, m.OS, m.Kernel, m.Go)
	for _, s := range slices.Sorted(maps.Keys(m.Runtimes)) {
		fmt.Fprintf(w, ", %s: %s", s, m.Runtimes[s])
	}
	if m.Commit != "" {
		fmt.Fprintf(w, ", commit %s", m.Commit)
	}
	fmt.Fprintln(w)
}
