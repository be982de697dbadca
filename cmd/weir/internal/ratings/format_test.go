package ratings

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestParseFormat(t *testing.T) {
	t.Parallel()
	for _, f := range []Format{Auto, MovieLens, CSV, JSONLines} {
		if got, err := ParseFormat(f.String()); got != f || err != nil {
			t.Errorf("ParseFormat(%q) = %v, %v", f, got, err)
		}
	}
	if want := []string{"auto", "movielens", "csv", "jsonl"}; !slices.Equal(FormatNames(), want) {
		t.Errorf("FormatNames() = %q, want %q", FormatNames(), want)
	}
	_, err := ParseFormat("xml")
	if want := `unknown ratings format "xml": use one of auto, movielens, csv, jsonl`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
	if got := Format(9).String(); got != "Format(9)" {
		t.Errorf("String() = %q", got)
	}
}

func TestDetectConsumesNothing(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Format{
		"1\t2\t3\t4\nx":                            MovieLens,
		"\xef\xbb\xbf\n movieId,rating\n":          CSV,
		"x\nmovieId,rating\n{":                     JSONLines, // a header counts only in front
		" {" + strings.Repeat("x", DetectBytes):    JSONLines,
		strings.Repeat("x\n", 1000) + "1\t2\t3\t4": MovieLens,
	} {
		br := bufio.NewReaderSize(iotest.OneByteReader(strings.NewReader(in)), 4096)
		if got, err := Detect(br); got != want || err != nil {
			t.Errorf("Detect(%.20q…) = %v, %v, want %v", in, got, err, want)
		}
		if rest, err := io.ReadAll(br); string(rest) != in || err != nil {
			t.Errorf("Detect(%.20q…) left %.20q…, %v", in, rest, err)
		}
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "u.data")
	if err := os.WriteFile(path, []byte("1\t2\t3\t4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	stdin := strings.NewReader("from stdin")
	for path, want := range map[string]string{path: "1\t2\t3\t4\n", Stdin: "from stdin"} {
		r, err := Open(path, stdin)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); string(got) != want || err != nil {
			t.Errorf("Open(%q) reads %q, %v", path, got, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	for path, want := range map[string]string{
		dir:                      dir + " is a folder: name the ratings file in it, such as u.data or ratings.csv",
		"":                       "the name of the ratings file is empty: name a file, or - for the standard input",
		Stdin:                    "no standard input to read ratings from: name a file",
		filepath.Join(dir, "no"): "no: no such file or directory; expected MovieLens u.data",
	} {
		_, err := Open(path, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Open(%q): %v, want %q in it", path, err, want)
		}
	}
	if _, err := Open(filepath.Join(dir, "no"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
}

func TestOpenLeavesStdinOpen(t *testing.T) {
	t.Parallel()
	stdin := &closer{Reader: strings.NewReader("x")}
	in, err := Open(Stdin, stdin)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Close(); err != nil || stdin.closed {
		t.Errorf("Close: %v, stdin closed: %v", err, stdin.closed)
	}
}

type closer struct {
	io.Reader
	closed bool
}

func (c *closer) Close() error {
	c.closed = true
	return nil
}
