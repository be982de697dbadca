package ratings

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// Stdin is the path that stands for the standard input. A file of that name is
// "./-".
const Stdin = "-"

// Open opens the file at path, or hands out stdin for the path "-". The caller
// closes the result, which leaves stdin itself open. A missing file and a folder
// are errors here; whether the content is of use is found out by [NewReader].
func Open(path string, stdin io.Reader) (io.ReadCloser, error) {
	if path == Stdin {
		if stdin == nil {
			return nil, errors.New("no standard input to read ratings from: name a file")
		}
		return io.NopCloser(stdin), nil
	}
	if path == "" {
		return nil, errors.New("the name of the ratings file is empty: name a file, or - for the standard input")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the ratings file: %w; %s", err, Auto.expected())
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return nil, errors.Join(
			fmt.Errorf("%s is a folder: name the ratings file in it, such as u.data or ratings.csv", path),
			f.Close())
	}
	return f, nil
}
