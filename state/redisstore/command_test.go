package redisstore

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// since are the commands that this package uses, with the version of Redis that
// brought them in the form that is used. The integration tests compare them
// with what a server says.
var since = map[string]string{
	"CLUSTER INFO":   "3.0.0",
	"CONFIG GET":     "2.0.0",
	"DEL":            "1.0.0",
	"EVAL":           "2.6.0",
	"EVALSHA":        "2.6.0",
	"HDEL":           "2.0.0", // several fields: 2.4.0
	"HEXISTS":        "2.0.0",
	"HGET":           "2.0.0",
	"HLEN":           "2.0.0",
	"HMGET":          "2.0.0",
	"HSCAN":          "2.8.0",
	"HSET":           "2.0.0", // several fields: 4.0.0
	"INFO":           "1.0.0",
	"TIME":           "2.6.0",
	"TYPE":           "1.0.0",
	"UNLINK":         "4.0.0",
	"WAIT":           "3.0.0",
	"ZADD":           "1.2.0",
	"ZLEXCOUNT":      "2.8.9",
	"ZRANGEBYLEX":    "2.8.9",
	"ZREM":           "1.2.0",
	"ZREVRANGEBYLEX": "2.8.9",
	"ZSCORE":         "1.2.0",
}

// options are the options of commands that this package uses; all are as old
// as their commands. Newer ones, as NOVALUES of HSCAN, are not to come in
// unseen.
var options = []string{"COUNT", "LIMIT"}

var (
	luaCall = regexp.MustCompile(`(?:redis\.)?p?call\(\s*([^,)]*)`)
	luaWord = regexp.MustCompile(`'([A-Z]{2,})'`)
)

// commandsOf finds the commands in the scripts and in the calls of the driver's
// builder. What it cannot read it reports.
func commandsOf(t *testing.T) map[string]bool {
	found := map[string]bool{}
	scripts, err := filepath.Glob("lua/*.lua")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	statuses := []string{statusOK, statusDup, statusFenced, statusLayout, statusStage, statusLeftover, statusCorrupt}
	for _, name := range scripts {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text := regexp.MustCompile(`--[^\n]*`).ReplaceAllString(string(src), "")
		for _, m := range luaCall.FindAllStringSubmatch(text, -1) {
			verb, ok := strings.CutPrefix(m[1], "'")
			if !ok {
				t.Errorf("%s: the command of %q is no literal", name, m[0])
				continue
			}
			found[strings.Trim(verb, "'")] = true
		}
		for _, m := range luaWord.FindAllStringSubmatch(text, -1) {
			if !found[m[1]] && !slices.Contains(statuses, m[1]) && !slices.Contains(options, m[1]) {
				t.Errorf("%s: %s is neither a command, nor a status, nor an option that is known", name, m[1])
			}
		}
	}
	fset := token.NewFileSet()
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range sources {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			verbs := -1
			switch f := c.Fun.(type) {
			case *ast.Ident:
				if f.Name == "build" { // of the check: the words of a command
					verbs = 0
				}
			case *ast.SelectorExpr:
				switch f.Sel.Name {
				case "Arbitrary":
					verbs = 0
				case "do":
					verbs = 2
				}
				// The driver's builder has a method for each command of each
				// version; Arbitrary is the one that this test can read.
				if b, ok := f.X.(*ast.CallExpr); ok {
					if s, ok := b.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "B" && f.Sel.Name != "Arbitrary" {
						t.Errorf("%s: use Arbitrary, not %s", fset.Position(c.Pos()), f.Sel.Name)
					}
				}
			}
			if verbs < 0 || verbs >= len(c.Args) {
				return true
			}
			switch a := c.Args[verbs].(type) {
			case *ast.BasicLit:
				verb, err := strconv.Unquote(a.Value)
				if err != nil {
					t.Fatal(err)
				}
				if verb == "CLUSTER" || verb == "CONFIG" {
					verb += " " + subcommand(c, verbs, file)
				}
				found[verb] = true
			case *ast.Ident:
				// verb: EVALSHA or EVAL in send, and what do and build are given.
				if a.Name != "verb" {
					t.Errorf("%s: the command %s is no literal", fset.Position(c.Pos()), a.Name)
				}
			}
			return true
		})
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, verb := range []string{"EVALSHA", "EVAL"} {
			if strings.Contains(string(text), strconv.Quote(verb)) {
				found[verb] = true
			}
		}
	}
	return found
}

// subcommand is the second word of a command: the next argument, or that of
// Args behind Arbitrary.
func subcommand(c *ast.CallExpr, verbs int, file *ast.File) string {
	word := ""
	if verbs+1 < len(c.Args) {
		if l, ok := c.Args[verbs+1].(*ast.BasicLit); ok {
			word, _ = strconv.Unquote(l.Value)
		}
		return word
	}
	ast.Inspect(file, func(n ast.Node) bool {
		outer, ok := n.(*ast.CallExpr)
		if !ok || len(outer.Args) == 0 {
			return true
		}
		if s, ok := outer.Fun.(*ast.SelectorExpr); ok && s.X == ast.Expr(c) && s.Sel.Name == "Args" {
			if l, ok := outer.Args[0].(*ast.BasicLit); ok {
				word, _ = strconv.Unquote(l.Value)
			}
		}
		return true
	})
	return word
}

// Only commands that Redis 6.2 has are used, however new the server of the
// tests is.
func TestCommandsOfRedis62(t *testing.T) {
	t.Parallel()
	found := commandsOf(t)
	for verb := range found {
		v, ok := since[verb]
		switch {
		case !ok:
			t.Errorf("%s is not in the table since: look up the version that brought it; 6.2 is the newest that may be used", verb)
		case !notAfter62(v):
			t.Errorf("%s came with %s, and 6.2 has to do", verb, v)
		}
	}
	if got, want := slices.Sorted(maps.Keys(found)), slices.Sorted(maps.Keys(since)); !slices.Equal(got, want) {
		t.Errorf("commands that are used: %q\nand of the table: %q", got, want)
	}
}

func notAfter62(version string) bool {
	part := strings.Split(version, ".")
	major, err1 := strconv.Atoi(part[0])
	minor, err2 := strconv.Atoi(part[1])
	return err1 == nil && err2 == nil && (major < minMajor || major == minMajor && minor <= minMinor)
}
