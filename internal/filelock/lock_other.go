//go:build !(darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd || windows)

package filelock

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// Try refuses: without a lock two processes could write one folder.
func Try(*os.File) (bool, error) {
	return false, fmt.Errorf("file locks on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}
