package lint

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// checks are all rules by name.
var checks = map[string]func([]file) []problem{
	"imports":  checkImports,
	"pure":     checkPure,
	"skips":    checkSkips,
	"packages": checkPackages,
	"exported": checkExported,
	"format":   checkFormat,
	"text":     checkText,
	"prose":    checkProse,
}

// TestRepository applies every rule to this repository.
func TestRepository(t *testing.T) {
	t.Parallel()
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	files, err := load(root)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(files, func(f file) bool { return f.path == "internal/lint/lint_test.go" && f.ast != nil }) {
		t.Fatalf("%d files below %s, but not this test: the rules would see nothing", len(files), root)
	}
	for name, check := range checks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			problems := check(files)
			slices.SortFunc(problems, func(a, b problem) int { return strings.Compare(a.where, b.where) })
			for _, p := range problems {
				t.Error(p)
			}
		})
	}
}

// moduleRoot is the folder of go.mod above this package.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(data), "module "+module+"\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fs.ErrNotExist
		}
		dir = parent
	}
}

// parse makes a tree of one file.
func parse(t *testing.T, name, text string) []file {
	t.Helper()
	f, err := newFile(name, 0o644, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return []file{f}
}

// TestImports checks the tables with imports that must pass and imports that must not.
func TestImports(t *testing.T) {
	t.Parallel()
	const weir = module
	for _, test := range []struct {
		file, imported string
		want           string // a part of the problem, or "" for none
	}{
		{"stream.go", weir + "/internal/worker", ""},
		{"stream.go", weir + "/internal/topology", ""},
		{"stream.go", weir + "/state/pebblestore", ""},
		{"stream.go", weir + "/state/memstore", "only the default one"},
		{"stream.go", weir + "/state/redisstore", "only the default one"},
		{"stream.go", weir + "/embedded", "nothing from above it"},
		{"stream.go", weir + "/query", "nothing from above it"},
		{"stream.go", "github.com/twmb/franz-go/pkg/kgo", ""},
		{"stream.go", "github.com/twmb/franz-go/pkg/kfake", "package embedded"},
		{"stream.go", "github.com/prometheus/client_golang/prometheus", "weirprom"},
		{"stream.go", "github.com/spf13/cobra", "programs"},
		{"stream_test.go", weir + "/embedded", ""},
		{"stream_test.go", weir + "/cmd/weir/internal/ratings", "nothing imports a program"},
		{"stream_test.go", weir + "/examples/ratings", "nothing imports an example"},
		{"internal/worker/run.go", weir + "/internal/task", ""},
		{"internal/worker/run.go", weir, "state.Backend"},
		{"internal/worker/run.go", weir + "/state", ""},
		{"internal/worker/run.go", weir + "/state/pebblestore", "state.Backend"},
		{"internal/worker/run.go", "github.com/twmb/franz-go/pkg/kgo", ""},
		{"internal/task/step.go", weir + "/state", ""},
		{"internal/task/step.go", weir + "/internal/topology", ""},
		{"internal/task/step.go", weir + "/internal/worker", "below the worker"},
		{"internal/task/step.go", weir, "below the worker"},
		{"internal/task/step.go", "github.com/twmb/franz-go/pkg/kgo", "the core is pure"},
		{"internal/task/step_test.go", "github.com/twmb/franz-go/pkg/kgo", ""},
		{"internal/task/step_test.go", weir + "/state/memstore", ""},
		{"internal/newcomer/a.go", weir + "/internal/worker", "below the worker"},
		{"state/state.go", weir + "/metric", ""},
		{"state/state.go", weir + "/internal/task", "knows none of them"},
		{"state/memstore/m.go", weir + "/state", ""},
		{"state/memstore/m.go", weir + "/state/internal/token", ""},
		{"state/memstore/m.go", weir + "/state/pebblestore", "its own driver"},
		{"state/memstore/m.go", weir + "/internal/task", "its own driver"},
		{"state/memstore/m.go", "example.com/tree", "its own driver"},
		{"state/memstore/m.go", "encoding/binary", ""},
		{"state/pebblestore/p.go", "github.com/cockroachdb/pebble/v2", ""},
		{"state/pebblestore/p.go", "github.com/redis/rueidis", "a technology has one package"},
		{"state/memstore/m_test.go", "github.com/cockroachdb/pebble/v2/vfs", "a technology has one package"},
		{"fence/f.go", "github.com/redis/rueidis", ""},
		{"fence/f.go", weir, "plain consumers"},
		{"fence/f.go", weir + "/internal/worker", "plain consumers"},
		{"fence/f.go", weir + "/internal/keyenc", ""},
		{"embedded/e.go", "github.com/twmb/franz-go/pkg/kfake", ""},
		{"embedded/e.go", weir, "neither knows the other"},
		{"weirtest/driver.go", weir + "/internal/task", ""},
		{"weirtest/driver.go", weir + "/embedded", "without a broker"},
		{"weirprom/p.go", "github.com/prometheus/client_golang/prometheus", ""},
		{"weirprom/p.go", weir + "/internal/worker", "nothing of what is measured"},
		{"query/q.go", weir, ""},
		{"cmd/weir/main.go", weir + "/cmd/weir/internal/ratings", ""},
		{"cmd/weir/main.go", weir + "/examples/ratings", "an example"},
		{"examples/ratings/main.go", weir + "/state/memstore", ""},
		{"examples/ratings/main.go", weir + "/internal/keyenc", "copied by its readers"},
		{"bench/kafka-streams/main.go", weir + "/cmd/weir", "nothing imports a program"},
		{"serde/json.go", weir + "/state", "everything stands on them"},
		{"metric/m.go", weir + "/serde", "knows nothing else"},
		{"window/w.go", "example.com/time", "arithmetic"},
		{"elsewhere/a.go", "fmt", "no place in the import order"},
	} {
		problems := checkImports(parse(t, test.file, "package p\n\nimport _ \""+test.imported+"\"\n"))
		expect(t, test.file+" imports "+test.imported, problems, test.want)
	}
}

// expect compares the problems with one that contains want, or none.
func expect(t *testing.T, name string, problems []problem, want string) {
	t.Helper()
	switch {
	case want == "" && len(problems) != 0:
		t.Errorf("%s: %v, want no problem", name, problems)
	case want != "" && (len(problems) != 1 || !strings.Contains(problems[0].String(), want)):
		t.Errorf("%s: %v, want one problem with %q", name, problems, want)
	}
}

// TestRules checks every other rule with code that must pass and code that must not.
func TestRules(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		check, name, file, text string
		want                    string
	}{
		{"pure", "goroutine", "internal/task/a.go", "package task\n\nfunc f() { go f() }\n", "a.go:3: go statement"},
		{"pure", "goroutine in a test", "internal/task/a_test.go", "package task\n\nfunc f() { go f() }\n", ""},
		{"pure", "goroutine in the worker", "internal/worker/a.go", "package worker\n\nfunc f() { go f() }\n", ""},
		{"pure", "clock", "internal/topology/a.go", "package topology\n\nimport \"time\"\n\nvar t = time.Now()\n", "time.Now"},
		{"pure", "clock as a value", "internal/assign/a.go", "package assign\n\nimport \"time\"\n\nvar now = time.Now\n", "time.Now"},
		{"pure", "renamed clock", "internal/stamp/a.go", "package stamp\n\nimport clock \"time\"\n\nvar c = clock.After(1)\n", "clock.After"},
		{"pure", "duration", "internal/task/a.go", "package task\n\nimport \"time\"\n\nvar d = 3 * time.Second\n", ""},
		{"pure", "global random", "internal/keyenc/a.go", "package keyenc\n\nimport \"math/rand/v2\"\n\nvar n = rand.IntN(3)\n", "rand.IntN"},
		{"pure", "seeded random", "internal/keyenc/a.go", "package keyenc\n\nimport \"math/rand/v2\"\n\nvar r = rand.New(rand.NewPCG(1, 2))\n", ""},
		{"pure", "system random", "internal/task/b/a.go", "package b\n\nimport _ \"crypto/rand\"\n", "crypto/rand"},
		{"pure", "dot import", "internal/task/a.go", "package task\n\nimport . \"time\"\n", "dot import"},

		{"skips", "skip", "a_test.go", "package a\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) { t.Skip(\"no\") }\n", "a_test.go TestA"},
		{"skips", "skip now in a helper", "a.go", "package a\n\nimport \"testing\"\n\nfunc f(t testing.TB) { t.SkipNow() }\n", "SkipNow"},
		{"skips", "formatted skip in a closure", "a_test.go", "package a\n\nimport \"testing\"\n\nvar f = func(t *testing.T) { t.Skipf(\"no\") }\n", "Skipf"},
		{"skips", "method of another type that returns something", "a_test.go", "package a\n\nimport \"testing\"\n\nfunc f(t *testing.T, r r) { n := r.Skip(1); _ = n }\n", ""},
		{"skips", "another skip", "a.go", "package a\n\nfunc f(r interface{ Skip(int) }) { r.Skip(1) }\n", ""},

		{"packages", "documented", "a/a.go", "// Package a is for this.\npackage a\n", ""},
		{"packages", "undocumented", "a/a.go", "package a\n", "no comment"},
		{"packages", "wrong comment", "a/a.go", "// Something.\npackage a\n", "no comment"},
		{"packages", "program", "a/main.go", "// The program does this.\npackage main\n", ""},
		{"packages", "tests only", "a/a_test.go", "// Package a checks that.\npackage a_test\n", ""},
		{"packages", "undocumented tests only", "a/a_test.go", "package a\n", "no comment"},
		{"packages", "vague", "util/a.go", "// Package util is for everything.\npackage util\n", "says nothing"},

		{"exported", "function", "serde/a.go", "package serde\n\nfunc F() {}\n", "a.go:3: F is exported"},
		{"exported", "documented function", "serde/a.go", "package serde\n\n// F does.\nfunc F() {}\n", ""},
		{"exported", "unexported function", "serde/a.go", "package serde\n\nfunc f() {}\n", ""},
		{"exported", "method", "a.go", "package weir\n\nfunc (s *S[K, V]) M() {}\n", "M is exported"},
		{"exported", "well-known method", "a.go", "package weir\n\nfunc (e *E) Error() string { return \"\" }\n", ""},
		{"exported", "method out of reach", "a.go", "package weir\n\nfunc (s *s[K]) M() {}\n", ""},
		{"exported", "type", "a.go", "package weir\n\ntype T int\n", "T is exported"},
		{"exported", "type in a group", "a.go", "package weir\n\n// Both.\ntype (\n\tT int\n)\n\n// Group.\ntype (\n\t// A is.\n\tA int\n\tB int\n)\n", "B is exported"},
		{"exported", "constant", "a.go", "package weir\n\nconst C = 1\n", "C is exported"},
		{"exported", "constants of a group", "a.go", "package weir\n\n// Both.\nconst (\n\tC = 1\n\tD = 2\n)\n", ""},
		{"exported", "internal", "state/internal/a.go", "package internal\n\nfunc F() {}\n", ""},
		{"exported", "program", "cmd/weir/a.go", "package main\n\nfunc F() {}\n", ""},

		{"format", "formatted", "a.go", "package a\n\nvar x = 1\n", ""},
		{"format", "unformatted", "a.go", "package a\nvar  x = 1\n", "not formatted"},
		{"format", "long", "a.go", "package a\n" + strings.Repeat("\n// line\n", maxGoLines), "second idea"},
		{"format", "long, generated", "a.go", "// Code generated by hand. DO NOT EDIT.\n\npackage a\n" + strings.Repeat("\n// line\n", maxGoLines), ""},

		{"text", "machine path", "README.md", "see /wo" + "rk/main", "one machine"},
		{"text", "path of a user", "README.md", "see /ho" + "me/me/x", "one machine"},
		{"text", "address", "README.md", "http://example.com/ho" + "me/me", ""},
		{"text", "worker", "README.md", "internal/worker/run.go", ""},
		{"text", "registry", "a.yaml", "url: https://py" + "pi.org/x", "registry"},
		{"text", "tool", "a.md", "the Sub" + "agent", "desk"},
		{"text", "undone", "a.go", "package a\n\n// TO" + "DO: all of it\n", "undone"},
		{"text", "context", "a.go", "package a\n\nvar c = context.TO" + "DO()\n", ""},
		{"text", "binary", "a.bin", "\x00/wo" + "rk/main", ""},
		{"text", "script", "a.sh", "#!/bin/sh\n", "run bit"},
	} {
		problems := checks[test.check](parse(t, test.file, test.text))
		expect(t, test.check+": "+test.name, problems, test.want)
	}
}

// TestPackageCommentBesideTests checks that a comment in a test does not stand for the package's.
func TestPackageCommentBesideTests(t *testing.T) {
	t.Parallel()
	const documented = "// Package a is for this.\npackage a\n"
	code, test := parse(t, "a/a.go", "package a\n"), parse(t, "a/a_test.go", documented)
	expect(t, "code first", checkPackages(append(slices.Clone(code), test...)), "no comment")
	expect(t, "test first", checkPackages(append(slices.Clone(test), code...)), "no comment")
	more := parse(t, "a/doc.go", documented)
	expect(t, "documented elsewhere", checkPackages(append(slices.Clone(code), more...)), "")
}

// TestAllowedSkip checks that the list of exceptions is consulted, and only for the function named.
func TestAllowedSkip(t *testing.T) {
	t.Parallel()
	const source = "package a\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) { t.Skip() }\n\nfunc TestB(t *testing.T) { t.Skip() }\n"
	allowed := map[string]string{"a_test.go TestA": "for this test"}
	expect(t, "one of two is allowed", findSkips(parse(t, "a_test.go", source), allowed), "TestB")
}

// TestListAll checks the way without git: everything but git's own and the services' files.
func TestListAll(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, name := range []string{"a.go", "b/c.txt", ".git/config", ".services/log", ".ci/run"} {
		full := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := listAll(root)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if want := []string{".ci/run", "a.go", "b/c.txt"}; !slices.Equal(got, want) {
		t.Errorf("listAll = %q, want %q", got, want)
	}
}

// TestProse checks documents against the files beside them.
func TestProse(t *testing.T) {
	t.Parallel()
	const example = "package weir_test\n\nfunc Example() {\n\tif true {\n\t\tf()\n\t}\n\n\tg()\n\t// Output: x\n}\n"
	const shown = "if true {\n\tf()\n}\n\ng()\n"
	for _, test := range []struct {
		name, file, text string
		want             string
	}{
		{"same program", "README.md", "Use:\n```go\n" + shown + "```\n", ""},
		{"another program", "README.md", "```go\nf()\n```\n", "not the body"},
		{"no program", "README.md", "Use it.\n", "no block of Go"},
		{"other documents show what they like", "docs/a.md", "```go\nf()\n```\n", ""},
		{"link to a file", "docs/a.md", "[here](../example_test.go)", ""},
		{"link to a folder with a place", "docs/a.md", "[here](b/#there)", ""},
		{"link to a website", "docs/a.md", "[there](https://example.com/x)", ""},
		{"dead link", "docs/a.md", "[here](example_test.go)", "leads nowhere"},
		{"test that exists", "docs/guarantees.md", "`TestReal`, `TestReal/case=1`", ""},
		{"test that does not", "docs/guarantees.md", "`TestUnreal`", "no test TestUnreal"},
		{"test elsewhere", "docs/a.md", "`TestUnreal`", ""},
	} {
		files := slices.Concat(parse(t, "example_test.go", example), parse(t, test.file, test.text),
			parse(t, "docs/b/c.md", "text"), parse(t, "a/a_test.go", "package a\n\nfunc TestReal(t *testing.T) {}\n"))
		expect(t, test.name, checkProse(files), test.want)
	}
}
