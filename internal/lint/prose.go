package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"strings"
)

const (
	readme        = "README.md"
	readmeExample = "example_test.go" // its function Example
	guarantees    = "docs/guarantees.md"
)

var (
	goBlock  = regexp.MustCompile("(?s)```go\n(.*?)```")
	mdLink   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	testName = regexp.MustCompile(`\b(?:Test|Example|Fuzz)[A-Z_][A-Za-z0-9_]*(?:/[A-Za-z0-9_,=.*-]+)*`)
)

// checkProse wants documents that are true of the files beside them: the program of the
// README is the one that is compiled and run, links lead somewhere, and each guarantee
// names tests that exist.
func checkProse(files []file) []problem {
	var problems []problem
	paths, tests := map[string]bool{}, map[string]bool{}
	var example *file
	for i, f := range files {
		for p := f.path; p != "." && p != "/"; p = path.Dir(p) {
			paths[p] = true
		}
		if f.path == readmeExample {
			example = &files[i]
		}
		if f.ast == nil || !f.isTest() && !strings.HasPrefix(f.pkg(), "state/statetest") {
			continue
		}
		for _, decl := range f.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
				tests[fn.Name.Name] = true
			}
		}
	}
	for _, f := range files {
		if path.Ext(f.path) != ".md" {
			continue
		}
		for _, m := range mdLink.FindAllSubmatch(f.data, -1) {
			target, _, _ := strings.Cut(string(m[1]), "#")
			if target == "" || strings.Contains(target, ":") {
				continue
			}
			if !paths[path.Join(path.Dir(f.path), target)] {
				problems = append(problems, problem{f.path, fmt.Sprintf("the link to %s leads nowhere", m[1])})
			}
		}
		switch f.path {
		case guarantees:
			for _, name := range testName.FindAllString(string(f.data), -1) {
				if fn, _, _ := strings.Cut(name, "/"); !tests[fn] {
					problems = append(problems, problem{f.path, fmt.Sprintf("there is no test %s: name the test that fails without the guarantee", fn)})
				}
			}
		case readme:
			m := goBlock.FindSubmatch(f.data)
			if m == nil {
				problems = append(problems, problem{f.path, "there is no block of Go: show the program of " + readmeExample})
			} else if example != nil && !bytes.Equal(m[1], exampleBody(example)) {
				problems = append(problems, problem{f.path, "its Go is not the body of Example in " + readmeExample + " up to its output; copy that, one tab less"})
			}
		}
	}
	return problems
}

// exampleBody returns the statements of function Example as a document shows them.
func exampleBody(f *file) []byte {
	if f.ast == nil {
		return nil
	}
	for _, decl := range f.ast.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || fn.Name.Name != "Example" {
			continue
		}
		body := f.data[f.pos.Position(fn.Body.Lbrace).Offset+1 : f.pos.Position(fn.Body.Rbrace).Offset]
		body, _, _ = bytes.Cut(body, []byte("\t// Output:"))
		body = bytes.TrimPrefix(body, []byte("\n"))
		var out []byte
		for line := range bytes.Lines(body) {
			out = append(out, bytes.TrimPrefix(line, []byte("\t"))...)
		}
		return out
	}
	return nil
}
