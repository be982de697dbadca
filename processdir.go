package weir

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/weirstreams/weir/internal/assign"
	"github.com/weirstreams/weir/internal/filelock"
)

// processDir is the folder of one process of an application: its identity,
// which makes transactional ids unique and assignments sticky over restarts,
// and the state on disk. A lock keeps every other process out.
type processDir struct {
	path string
	id   assign.ProcessID
	lock *os.File
}

// dirLockTimeout is how long to wait for a predecessor that is still dying.
const dirLockTimeout = 10 * time.Second

// openProcessDir makes or opens the folder of the application in dir.
func openProcessDir(ctx context.Context, dir, app string) (*processDir, error) {
	path := filepath.Join(dir, app)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("%w: Dir: %w", ErrConfig, err)
	}
	f, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("%w: Dir: %w", ErrConfig, err)
	}
	deadline := time.Now().Add(dirLockTimeout)
	for {
		ok, err := filelock.Try(f)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("%w: Dir: lock %s: %w", ErrConfig, f.Name(), err)
		}
		if ok {
			break
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			f.Close()
			return nil, fmt.Errorf("%w: folder %s is in use by another process of %q: give each process on a machine its own Config.Dir", ErrConfig, path, app)
		}
		time.Sleep(100 * time.Millisecond)
	}
	d := &processDir{path: path, lock: f}
	if err := d.identify(); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// identify reads the identity of the process, or makes one.
func (d *processDir) identify() error {
	file := filepath.Join(d.path, "process-id")
	b, err := os.ReadFile(file)
	if err == nil {
		id, err := hex.DecodeString(strings.TrimSpace(string(b)))
		if err == nil && len(id) == len(d.id) {
			copy(d.id[:], id)
			return nil
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read identity of the process: %w", err)
	}
	d.id = newProcessID()
	// Written aside and renamed, so that a crash leaves a whole one or none.
	tmp := file + ".tmp"
	if err := os.WriteFile(tmp, []byte(hex.EncodeToString(d.id[:])+"\n"), 0o644); err != nil {
		return fmt.Errorf("store identity of the process: %w", err)
	}
	if err := os.Rename(tmp, file); err != nil {
		return fmt.Errorf("store identity of the process: %w", err)
	}
	return nil
}

func (d *processDir) close() {
	if d != nil && d.lock != nil {
		d.lock.Close() // gives up the lock
		d.lock = nil
	}
}

func newProcessID() (id assign.ProcessID) {
	rand.Read(id[:])
	return id
}
