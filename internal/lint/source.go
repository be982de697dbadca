package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"slices"
)

// maxGoLines is the length of a Go file past which it surely holds a second idea.
const maxGoLines = 900

// pure are the packages that decide and do not act: given the same calls they do the
// same, so that the simulator can drive them and a failure can be replayed.
var pure = []string{
	"internal/task/...",
	"internal/topology/...",
	"internal/assign/...",
	"internal/stamp/...",
	"internal/keyenc/...",
}

// impureImports are imports that a pure package does without, with the reason.
var impureImports = map[string]string{
	"crypto/rand": "randomness comes in as a value",
	"log":         "the worker logs",
	"net":         "the worker does the input and output",
	"net/http":    "the worker does the input and output",
	"os":          "the worker does the input and output",
	"os/exec":     "the worker does the input and output",
}

// clockFunctions of package time read the clock or wait for it.
var clockFunctions = []string{"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"}

// seededNames of math/rand and math/rand/v2 do not touch the global source.
var seededNames = []string{"ChaCha8", "New", "NewChaCha8", "NewPCG", "NewSource", "NewZipf", "PCG", "Rand", "Source", "Source64", "Zipf"}

// allowedSkips maps "path function" of a test that may skip itself to the reason, which
// must be one that a user would accept.
var allowedSkips = map[string]string{}

// checkPure finds goroutines, clocks, global randomness and input or output in the
// packages that must be without.
func checkPure(files []file) []problem {
	var problems []problem
	for _, f := range files {
		if f.ast == nil || f.isTest() || !matches(f.pkg(), pure...) {
			continue
		}
		report := func(n ast.Node, what, why string) {
			problems = append(problems, problem{f.at(n), fmt.Sprintf("%s in the pure package %s: %s", what, f.pkg(), why)})
		}
		for _, spec := range f.ast.Imports {
			imported := unquote(spec.Path)
			if why, ok := impureImports[imported]; ok {
				report(spec, "import of "+imported, why)
			}
			if spec.Name != nil && spec.Name.Name == "." {
				report(spec, "dot import of "+imported, "it hides where a clock comes from")
			}
		}
		clock := f.importName("time")
		random := []string{f.importName("math/rand"), f.importName("math/rand/v2")}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				report(n, "go statement", "the worker owns all goroutines")
			case *ast.SelectorExpr:
				qualifier, ok := n.X.(*ast.Ident)
				if !ok || qualifier.Name == "" {
					return true
				}
				name := qualifier.Name + "." + n.Sel.Name
				if qualifier.Name == clock && slices.Contains(clockFunctions, n.Sel.Name) {
					report(n, name, "time comes in as a value")
				}
				if slices.Contains(random, qualifier.Name) && !slices.Contains(seededNames, n.Sel.Name) {
					report(n, name, "use a *rand.Rand with a seed that comes in as a value")
				}
			}
			return true
		})
	}
	return problems
}

func checkSkips(files []file) []problem { return findSkips(files, allowedSkips) }

// findSkips finds tests that leave themselves out. Every file that knows package
// testing is searched, since a helper can skip its caller.
func findSkips(files []file, allowed map[string]string) []problem {
	var problems []problem
	for _, f := range files {
		if f.ast == nil || f.importName("testing") == "" {
			continue
		}
		for _, decl := range f.ast.Decls {
			name := ""
			if fn, ok := decl.(*ast.FuncDecl); ok {
				name = fn.Name.Name
			}
			if _, ok := allowed[f.path+" "+name]; ok {
				continue
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				method, ok := statementCall(n)
				if ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, method.Sel.Name) {
					problems = append(problems, problem{f.at(method.Sel), fmt.Sprintf(
						"%s: a test that is skipped proves nothing; make it run or fail, or give the reason in allowedSkips of internal/lint/source.go as %q",
						method.Sel.Name, f.path+" "+name)})
				}
				return true
			})
		}
	}
	return problems
}

// statementCall returns the method that a statement calls. The methods that skip return
// nothing, so a call whose result is used is another one of that name.
func statementCall(n ast.Node) (*ast.SelectorExpr, bool) {
	var call *ast.CallExpr
	switch n := n.(type) {
	case *ast.ExprStmt:
		call, _ = n.X.(*ast.CallExpr)
	case *ast.DeferStmt:
		call = n.Call
	case *ast.GoStmt:
		call = n.Call
	}
	if call == nil {
		return nil, false
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	return method, ok
}

// checkFormat wants Go files as gofmt writes them, and short enough to hold one idea.
func checkFormat(files []file) []problem {
	var problems []problem
	for _, f := range files {
		if f.ast == nil {
			continue
		}
		if formatted, err := format.Source(f.data); err != nil {
			problems = append(problems, problem{f.path, err.Error()})
		} else if !bytes.Equal(formatted, f.data) {
			problems = append(problems, problem{f.path, "not formatted; run gofmt -w on it"})
		}
		if lines := bytes.Count(f.data, []byte("\n")); lines > maxGoLines && !ast.IsGenerated(f.ast) {
			problems = append(problems, problem{f.path, fmt.Sprintf("%d lines, of at most %d: look for the second idea and give it a file", lines, maxGoLines)})
		}
	}
	return problems
}
