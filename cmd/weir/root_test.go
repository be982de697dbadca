package main

import (
	"encoding/json"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, message string }{
		{"bogus", `unknown command "bogus"`},
		{"dem", `did you mean demo?`},
		{"--bogus", "unknown flag: --bogus"},
		{"version x", `unknown command "x" for "weir version"`},
		{"completion bogus", "bogus"},
		{"completion", ""},
		{"demo --bogus", "unknown flag: --bogus"},
		{"demo x", `unknown command "x"`},
		{"demo --rate", "flag needs an argument"},
		{"demo --rate x", "invalid argument"},
		{"demo --rate 0", "--rate is 0"},
		{"demo --rate NaN", "--rate is NaN"},
		{"demo --rate -1", "--rate is -1"},
		{"demo --rate 1e9", "--rate is 1e+09"},
		{"demo --exit", "--exit needs --input"},
		{"demo --json", "--json needs --input"},
		{"demo --format csv", "--format needs --input"},
		{"demo --input x --json", "--json needs --exit"},
		{"demo --input x --format xml", `unknown ratings format "xml"`},
		{"demo --input x --seed 3", "--seed is for generated ratings"},
		{"demo --input=", "--input is empty"},
		{"demo --dir=", "--dir is empty"},
		{"demo --brokers=", "--brokers is empty"},
		{"demo --brokers a:1,b", `"b" is no address`},
		{"demo --brokers :9092", `":9092" is no address`},
		{"demo --brokers a:0", `"a:0" is no address`},
		{"demo --brokers a:65536", `"a:65536" is no address`},
		{"demo --listen nowhere", `"nowhere" is no address`},
		{"demo --store tape", `--store is "tape"`},
		{"demo --store redis://:secret@host:port/x", `--store is no URL of a Redis: `},
		{"demo --partitions 0", "--partitions is 0"},
		{"demo --partitions 1001", "--partitions is 1001"},
		{"demo --workers -1", "--workers is -1"},
	} {
		r := weir(t, nil, strings.Fields(c.args)...)
		if c.args == "completion" { // of its own accord it shows its help
			if r.code != exitOK || !strings.Contains(r.stdout, "bash") {
				t.Errorf("weir completion: %+v", r)
			}
			continue
		}
		r.want(t, exitUsage, "", "weir: ", c.message, "--help' for usage.")
	}
	// All that is wrong is said at once.
	r := weir(t, nil, "demo", "--store", "tape", "--rate", "0")
	r.want(t, exitUsage, "", "--store", "--rate", "Run 'weir demo --help' for usage.")
}

func TestHelp(t *testing.T) {
	t.Parallel()
	for args, texts := range map[string][]string{
		"":               {"weir demo", "Exit codes", "version", "completion"},
		"--help":         {"weir demo", "Exit codes"},
		"help demo":      {"Usage:", "Examples:", "--input", "u.data", "ratings-dead-letters", "--brokers"},
		"demo --help":    {"Usage:", "Examples:", "-i, --input file", "--format format", "auto, movielens, csv, jsonl", "(default 500)"},
		"version --help": {"Examples:", "--json"},
	} {
		r := weir(t, nil, strings.Fields(args)...)
		if r.code != exitOK || r.stderr != "" {
			t.Errorf("weir %s: exit code %d, messages %q", args, r.code, r.stderr)
		}
		for _, text := range texts {
			if !strings.Contains(r.stdout, text) {
				t.Errorf("weir %s: no %q in\n%s", args, text, r.stdout)
			}
		}
		for line := range strings.Lines(r.stdout) {
			if len(strings.TrimRight(line, "\n")) > 120 {
				t.Errorf("weir %s: a long line: %s", args, line)
			}
		}
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	for args, want := range map[string][]string{
		"__complete ":               {"completion", "demo", "fence", "help", "version"},
		"__complete demo --format ": {"auto", "movielens", "csv", "jsonl"},
		"__complete demo --store ":  {"disk", "memory", "redis-embedded"},
		"__complete demo --rate ":   nil,
		"__complete demo ":          nil,
		"__complete version --":     {"--help", "--json"},
	} {
		fields := strings.Split(args, " ")
		r := weir(t, nil, fields...)
		var got []string
		for line := range strings.Lines(r.stdout) {
			if !strings.HasPrefix(line, ":") {
				name, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
				got = append(got, name)
			}
		}
		if r.code != exitOK || !slices.Equal(got, want) {
			t.Errorf("weir %q: exit code %d, %q, want %q", args, r.code, got, want)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if r := weir(t, nil, "completion", shell); r.code != exitOK || !strings.Contains(r.stdout, "weir") {
			t.Errorf("weir completion %s: exit code %d", shell, r.code)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	r := weir(t, nil, "version")
	if want := runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH + "\n"; r.code != exitOK || !strings.HasPrefix(r.stdout, "weir ") || !strings.HasSuffix(r.stdout, want) {
		t.Errorf("weir version: %+v", r)
	}
	r = weir(t, nil, "version", "--json")
	var v version
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil || r.code != exitOK || v.Version == "" || v.Go != runtime.Version() {
		t.Errorf("weir version --json: %+v, %v", r, err)
	}
}

func TestVersionOf(t *testing.T) {
	t.Parallel()
	build := func(version string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}, Settings: settings}
	}
	machine := runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH + "\n"
	for _, c := range []struct {
		info *debug.BuildInfo
		want string
	}{
		{build(""), "weir (devel)\n" + machine},
		{build("v1.2.3"), "weir v1.2.3\n" + machine},
		{build("v1.2.3", debug.BuildSetting{Key: "vcs.revision", Value: "abc"}, debug.BuildSetting{Key: "vcs.time", Value: "2026-01-31T08:30:00Z"},
			debug.BuildSetting{Key: "vcs.modified", Value: "true"}), "weir v1.2.3\nrevision abc of 2026-01-31T08:30:00Z, modified\n" + machine},
		{build("", debug.BuildSetting{Key: "vcs.revision", Value: "abc"}, debug.BuildSetting{Key: "vcs.modified", Value: "false"}), "weir (devel)\nrevision abc\n" + machine},
	} {
		var b strings.Builder
		if err := versionOf(c.info).print(&b); err != nil || b.String() != c.want {
			t.Errorf("printed %q, %v, want %q", b.String(), err, c.want)
		}
	}
}
