//go:build !(darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd || windows)

package embedded

import (
	"fmt"
	"os"
	"runtime"
)

// lockFile refuses: without a lock two brokers could write one folder.
func lockFile(*os.File) (bool, error) {
	return false, fmt.Errorf("file locks on %s: %w", runtime.GOOS, ErrUnsupported)
}
