package lint

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// module is the path of this module; packages are named relative to it, and the root
// package is ".".
const module = "github.com/weirstreams/weir"

// binarySniffLen is how much of a file is searched for a zero byte, which makes it
// binary. Git does the same.
const binarySniffLen = 8000

// majorVersion is a last element of an import path that is no name.
var majorVersion = regexp.MustCompile(`^v[0-9]+$`)

// A file is one file of the tree.
type file struct {
	path string // relative to the module, with slashes
	mode fs.FileMode
	data []byte
	pos  *token.FileSet
	ast  *ast.File // nil unless it is a Go file outside testdata
}

// A problem is a broken rule at a place.
type problem struct {
	where string // path, or path:line
	what  string // what is wrong and what to do
}

func (p problem) String() string { return p.where + ": " + p.what }

// load reads the files below root that git tracks or would add. In a tree without git,
// as an unpacked archive, these are all files but those of git and of the services.
func load(root string) ([]file, error) {
	paths, err := listGit(root)
	if err != nil {
		if paths, err = listAll(root); err != nil {
			return nil, fmt.Errorf("list the files of %s: %w", root, err)
		}
	}
	slices.Sort(paths)
	var files []file
	for _, p := range slices.Compact(paths) {
		full := filepath.Join(root, filepath.FromSlash(p))
		info, err := os.Lstat(full)
		if errors.Is(err, fs.ErrNotExist) {
			continue // tracked, but removed from the working tree
		}
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() {
			continue
		}
		data, err := os.ReadFile(full)
		if err != nil {
			return nil, err
		}
		f, err := newFile(p, info.Mode(), data)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

func newFile(name string, mode fs.FileMode, data []byte) (file, error) {
	f := file{path: name, mode: mode, data: data, pos: token.NewFileSet()}
	if !strings.HasSuffix(name, ".go") || ignoredByGo(name) {
		return f, nil
	}
	var err error
	f.ast, err = parser.ParseFile(f.pos, name, data, parser.ParseComments|parser.SkipObjectResolution)
	return f, err
}

// ignoredByGo reports whether the go command looks away from this path.
func ignoredByGo(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == "testdata" || part == "vendor" || part[0] == '_' || part[0] == '.' {
			return true
		}
	}
	return false
}

func listGit(root string) ([]string, error) {
	// The owner of a checkout in a container is often another user, which git refuses by default.
	cmd := exec.Command("git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 }), nil
}

func listAll(root string) ([]string, error) {
	var paths []string
	err := filepath.WalkDir(root, func(p string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name := entry.Name(); name == ".git" || name == ".services" {
				return filepath.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(root, p)
		paths = append(paths, filepath.ToSlash(rel))
		return err
	})
	return paths, err
}

// pkg is the package of a file, as its folder: "." is the root package.
func (f *file) pkg() string { return path.Dir(f.path) }

func (f *file) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }

func (f *file) isBinary() bool {
	return bytes.IndexByte(f.data[:min(len(f.data), binarySniffLen)], 0) >= 0
}

func (f *file) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.path, f.pos.Position(n.Pos()).Line)
}

// importName is the name under which the file uses an import, or "" if it does not
// import that path. An import with a version as its last element is known by the one before.
func (f *file) importName(importPath string) string {
	for _, spec := range f.ast.Imports {
		if unquote(spec.Path) != importPath {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		if majorVersion.MatchString(path.Base(importPath)) {
			importPath = path.Dir(importPath)
		}
		return path.Base(importPath)
	}
	return ""
}

func unquote(lit *ast.BasicLit) string {
	s, err := strconv.Unquote(lit.Value)
	if err != nil {
		panic("lint: the parser accepted the import " + lit.Value)
	}
	return s
}

// matches reports whether a package matches one of the patterns: "a/b" is that package,
// "a/..." is a and all below it, "..." is everything, and a later pattern that begins
// with "!" takes away again.
func matches(pkg string, patterns ...string) bool {
	found := false
	for _, pattern := range patterns {
		rest, negative := strings.CutPrefix(pattern, "!")
		if matchesOne(pkg, rest) {
			found = !negative
		}
	}
	return found
}

func matchesOne(pkg, pattern string) bool {
	if pattern == "..." {
		return true
	}
	if prefix, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == prefix || strings.HasPrefix(pkg, prefix+"/")
	}
	return pkg == pattern
}
