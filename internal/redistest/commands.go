package redistest

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

	"github.com/weirstreams/weir/internal/redisconn"
)

// Commands says which commands of Redis a package uses. Only those that the
// oldest supported version has may be used, however new the server of the
// tests is.
type Commands struct {
	// Dirs hold the sources, and the scripts below lua/.
	Dirs []string
	// Since are the commands with the version of Redis that brought them in the
	// form that is used.
	Since map[string]string
	// Words are the words in capitals of the scripts that are no commands:
	// statuses, and options of commands. Newer options, as NOVALUES of HSCAN,
	// are not to come in unseen.
	Words []string
}

// Check compares the sources with Since.
func (c *Commands) Check(t *testing.T) {
	t.Helper()
	found := c.find(t)
	for verb := range found {
		v, ok := c.Since[verb]
		switch {
		case !ok:
			t.Errorf("%s is not in the table: look up the version that brought it; %d.%d is the newest that may be used", verb, redisconn.MinMajor, redisconn.MinMinor)
		case !notAfterMin(v):
			t.Errorf("%s came with %s, and %d.%d has to do", verb, v, redisconn.MinMajor, redisconn.MinMinor)
		}
	}
	if got, want := slices.Sorted(maps.Keys(found)), slices.Sorted(maps.Keys(c.Since)); !slices.Equal(got, want) {
		t.Errorf("commands that are used: %q\nand of the table: %q", got, want)
	}
}

// CheckServer compares Since with what a server says of its commands.
func (c *Commands) CheckServer(t *testing.T, s *Server) {
	t.Helper()
	for verb, want := range c.Since {
		name := strings.ToLower(strings.ReplaceAll(verb, " ", "|"))
		docs, err := s.Must("COMMAND", "DOCS", name).AsMap()
		if err != nil {
			t.Fatal(err)
		}
		entry, ok := docs[name]
		if !ok {
			t.Errorf("the server does not know %s", verb)
			continue
		}
		fields, err := entry.AsMap()
		if err != nil {
			t.Fatal(err)
		}
		field := fields["since"]
		if got, _ := field.ToString(); got != want {
			t.Errorf("%s came with %s, the table says %s", verb, got, want)
		}
	}
}

var (
	luaCall = regexp.MustCompile(`(?:redis\.)?p?call\(\s*([^,)]*)`)
	luaWord = regexp.MustCompile(`'([A-Z]{2,})'`)
)

// find finds the commands in the scripts and in the calls of the driver's
// builder. What it cannot read it reports.
func (c *Commands) find(t *testing.T) map[string]bool {
	found := map[string]bool{}
	var scripts, sources []string
	for _, dir := range c.Dirs {
		lua, err := filepath.Glob(filepath.Join(dir, "lua/*.lua"))
		if err != nil {
			t.Fatal(err)
		}
		scripts = append(scripts, lua...)
		code, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(code) == 0 {
			t.Fatalf("no sources in %s: %v", dir, err)
		}
		sources = append(sources, code...)
	}
	if len(scripts) == 0 {
		t.Fatal("no scripts")
	}
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
			if !found[m[1]] && !slices.Contains(c.Words, m[1]) {
				t.Errorf("%s: %s is neither a command nor a word that is known", name, m[1])
			}
		}
	}
	fset := token.NewFileSet()
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
				case "Do":
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
				// verb: EVALSHA or EVAL in send, and what Do and build are given.
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

func notAfterMin(version string) bool {
	part := strings.Split(version, ".")
	major, err1 := strconv.Atoi(part[0])
	minor, err2 := strconv.Atoi(part[1])
	return err1 == nil && err2 == nil && (major < redisconn.MinMajor || major == redisconn.MinMajor && minor <= redisconn.MinMinor)
}
