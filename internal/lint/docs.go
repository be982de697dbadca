package lint

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
)

// vaguePackages are names that say nothing about what is in a package.
var vaguePackages = []string{"base", "common", "helper", "helpers", "misc", "shared", "type", "types", "util", "utils"}

// undocumentedOK are the packages that nobody imports from outside, whose exported
// names may speak for themselves.
var undocumentedOK = []string{"internal/...", "cmd/...", "bench/...", "examples/..."}

// wellKnownMethods have their contract in the standard library.
var wellKnownMethods = []string{"Error", "Is", "String", "Unwrap"}

// checkPackages wants a name that says something and a comment that says what for.
func checkPackages(files []file) []problem {
	type pkg struct {
		name       string
		documented bool
		code       bool // has files that are no tests, of which one must be documented
	}
	packages := map[string]*pkg{}
	var problems []problem
	for _, f := range files {
		if f.ast == nil {
			continue
		}
		p := packages[f.pkg()]
		if p == nil {
			p = &pkg{}
			packages[f.pkg()] = p
		}
		if !f.isTest() && !p.code {
			p.code, p.documented = true, false
		}
		if f.isTest() && p.code {
			continue
		}
		p.name = f.ast.Name.Name
		p.documented = p.documented || isPackageComment(f.ast)
	}
	for dir, p := range packages {
		name := strings.TrimSuffix(p.name, "_test")
		if slices.Contains(vaguePackages, name) {
			problems = append(problems, problem{dir, fmt.Sprintf("package %s: the name says nothing; name it for its one idea, or put the code where it is used", name)})
		}
		if !p.documented {
			problems = append(problems, problem{dir, fmt.Sprintf("package %s has no comment that says what it is for, beginning with \"Package %s\" (of a program: with anything)", name, name)})
		}
	}
	return problems
}

func isPackageComment(f *ast.File) bool {
	if f.Doc == nil {
		return false
	}
	text := f.Doc.Text()
	name := strings.TrimSuffix(f.Name.Name, "_test")
	return strings.HasPrefix(text, "Package "+name+" ") || name == "main" && text != ""
}

// checkExported wants a comment on every exported name that users of the library meet:
// it is the contract.
func checkExported(files []file) []problem {
	var problems []problem
	for _, f := range files {
		if f.ast == nil || f.isTest() || matches(f.pkg(), undocumentedOK...) || strings.Contains(f.path, "/internal/") {
			continue
		}
		report := func(name *ast.Ident) {
			problems = append(problems, problem{f.at(name), fmt.Sprintf("%s is exported and has no comment: say its contract: units, defaults, errors, concurrency", name.Name)})
		}
		for _, decl := range f.ast.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				wellKnown := decl.Recv != nil && slices.Contains(wellKnownMethods, decl.Name.Name)
				if decl.Doc == nil && decl.Name.IsExported() && isExportedReceiver(decl.Recv) && !wellKnown {
					report(decl.Name)
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					for _, name := range undocumented(decl, spec) {
						report(name)
					}
				}
			}
		}
	}
	return problems
}

// undocumented lists the exported names of a spec without a comment. A comment on a
// group of constants or variables stands for all of them.
func undocumented(decl *ast.GenDecl, spec ast.Spec) []*ast.Ident {
	var names []*ast.Ident
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		if spec.Doc == nil && spec.Comment == nil && (decl.Doc == nil || len(decl.Specs) > 1) {
			names = []*ast.Ident{spec.Name}
		}
	case *ast.ValueSpec:
		if spec.Doc == nil && spec.Comment == nil && decl.Doc == nil {
			names = spec.Names
		}
	}
	return slices.DeleteFunc(slices.Clone(names), func(name *ast.Ident) bool { return !name.IsExported() })
}

// isExportedReceiver reports whether a user can reach a method with this receiver; a
// function has none.
func isExportedReceiver(recv *ast.FieldList) bool {
	if recv == nil {
		return true
	}
	typ := recv.List[0].Type
	for {
		switch t := typ.(type) {
		case *ast.StarExpr:
			typ = t.X
		case *ast.ParenExpr:
			typ = t.X
		case *ast.IndexExpr:
			typ = t.X
		case *ast.IndexListExpr:
			typ = t.X
		case *ast.Ident:
			return t.IsExported()
		default:
			return true
		}
	}
}
