package embedded

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/weirstreams/weir/internal/filelock"
)

// Layout of Options.Dir:
//
//	LOCK         held while a broker runs; the process id of the last holder
//	format.json  {"format":1}: what this package and this version may touch
//	data/        the cluster's files, see recover.go
//	saved/       segments of compacted partitions while a compaction runs
//	saved.tmp/   the same while it is being made or removed
const (
	lockName    = "LOCK"
	formatName  = "format.json"
	dataName    = "data"
	savedName   = "saved"
	savedTmp    = "saved.tmp"
	folderFmt   = 1
	partsName   = "partitions"
	segmentExt  = ".dat"
	indexExt    = ".idx"
	snapshotNam = "snapshot.json"
)

// folder is Options.Dir, locked.
type folder struct {
	log  *slog.Logger
	dir  string
	data string
	lock *os.File
}

type folderFormat struct {
	Format int `json:"format"`
}

// partitionName names a partition.
type partitionName struct {
	topic     string
	partition int32
}

// dirName is the name that the cluster gives to a partition's folder.
func (p partitionName) dirName() string {
	return url.PathEscape(p.topic) + "-" + strconv.Itoa(int(p.partition))
}

func parsePartitionDir(name string) (partitionName, bool) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return partitionName{}, false
	}
	topic, err := url.PathUnescape(name[:i])
	n, err2 := strconv.ParseInt(name[i+1:], 10, 32)
	p := partitionName{topic, int32(n)}
	return p, err == nil && err2 == nil && p.dirName() == name
}

// openFolder locks the folder and checks that it is ours, or makes it.
func openFolder(dir string, log *slog.Logger) (_ *folder, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("folder: %w", err)
	}
	// Before anything is written: an existing folder that is not empty must
	// have our format file.
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("folder: %w", err)
	}
	_, formatErr := os.Stat(filepath.Join(dir, formatName))
	for _, e := range entries {
		if e.Name() != lockName && e.Name() != formatName+".tmp" && formatErr != nil {
			return nil, fmt.Errorf("%w: %s holds %s and no %s: name an empty folder", ErrFolderForeign, dir, e.Name(), formatName)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder: %w", err)
	}
	f := &folder{log: log, dir: dir, data: filepath.Join(dir, dataName)}
	if err := f.takeLock(); err != nil {
		return nil, err
	}
	if err := f.checkFormat(); err != nil {
		f.unlock()
		return nil, err
	}
	return f, nil
}

func (f *folder) takeLock() error {
	lock, err := os.OpenFile(filepath.Join(f.dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("folder: %w", err)
	}
	ok, err := filelock.Try(lock)
	if err != nil {
		lock.Close()
		return fmt.Errorf("lock folder %s: %w", f.dir, err)
	}
	if !ok {
		holder, _ := io.ReadAll(io.LimitReader(lock, 20)) // only for the message
		lock.Close()
		return fmt.Errorf("%w: %s, process id %s: stop that one, or name another folder", ErrFolderInUse, f.dir, strings.TrimSpace(string(holder)))
	}
	f.lock = lock
	if err = lock.Truncate(0); err == nil {
		_, err = lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		f.unlock()
		return fmt.Errorf("lock folder %s: %w", f.dir, err)
	}
	return nil
}

func (f *folder) unlock() {
	if f.lock != nil {
		f.lock.Close()
		f.lock = nil
	}
}

func (f *folder) checkFormat() error {
	path := filepath.Join(f.dir, formatName)
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		raw, err = json.Marshal(folderFormat{folderFmt})
		if err == nil {
			err = writeFile(path, raw)
		}
		if err != nil {
			return fmt.Errorf("folder: %w", err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("folder: %w", err)
	}
	var got folderFormat
	if err := json.Unmarshal(raw, &got); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrFolderForeign, path, err)
	}
	if got.Format != folderFmt {
		return fmt.Errorf("%w: %s says format %d, this version reads %d", ErrFolderForeign, path, got.Format, folderFmt)
	}
	return nil
}

// close ends the use of the folder after the cluster has written it. What the
// cluster remembers of group members and open transactions is dropped: the
// next start has other clients, and finds the same as after a kill.
func (f *folder) close() error {
	defer f.unlock()
	return f.dropSessions()
}

func (f *folder) dropSessions() error {
	if err := os.Remove(filepath.Join(f.data, "session_state.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("folder: %w", err)
	}
	return nil
}

func (f *folder) partitionDir(p partitionName) string {
	return filepath.Join(f.data, partsName, p.dirName())
}

// saveSegments links the segments of the partitions aside. A compaction removes
// them before it writes the new ones.
func (f *folder) saveSegments(parts []partitionName) error {
	tmp := filepath.Join(f.dir, savedTmp)
	if err := os.RemoveAll(tmp); err != nil {
		return fmt.Errorf("save segments: %w", err)
	}
	for _, p := range parts {
		from, to := f.partitionDir(p), filepath.Join(tmp, p.dirName())
		names, err := segmentFiles(from)
		if err != nil {
			return fmt.Errorf("save segments: %w", err)
		}
		if len(names) == 0 {
			continue
		}
		if err := os.MkdirAll(to, 0o700); err != nil {
			return fmt.Errorf("save segments: %w", err)
		}
		for _, name := range names {
			if err := os.Link(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
				return fmt.Errorf("save segments (the file system must have hard links): %w", err)
			}
		}
	}
	if err := os.Rename(tmp, filepath.Join(f.dir, savedName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("save segments: %w", err)
	}
	return nil
}

// dropSaved forgets the saved segments. From the rename on they do not count.
func (f *folder) dropSaved() error {
	tmp := filepath.Join(f.dir, savedTmp)
	err := os.Rename(filepath.Join(f.dir, savedName), tmp)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.RemoveAll(tmp)
	}
	if err != nil {
		return fmt.Errorf("drop saved segments: %w", err)
	}
	return nil
}

// restoreSaved puts back the segments of a compaction that did not end. It may
// be interrupted and done again.
func (f *folder) restoreSaved() error {
	saved := filepath.Join(f.dir, savedName)
	dirs, err := os.ReadDir(saved)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("restore segments: %w", err)
	}
	for _, d := range dirs {
		p, ok := parsePartitionDir(d.Name())
		if !ok {
			return fmt.Errorf("%w: %s in %s is no partition", ErrFolderForeign, d.Name(), saved)
		}
		from, to := filepath.Join(saved, d.Name()), f.partitionDir(p)
		old, err := segmentFiles(to)
		if err != nil {
			return fmt.Errorf("restore segments: %w", err)
		}
		for _, name := range append(old, snapshotNam) {
			if err := os.RemoveAll(filepath.Join(to, name)); err != nil {
				return fmt.Errorf("restore segments: %w", err)
			}
		}
		names, err := segmentFiles(from)
		if err != nil {
			return fmt.Errorf("restore segments: %w", err)
		}
		for _, name := range names {
			if err := os.Link(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
				return fmt.Errorf("restore segments: %w", err)
			}
		}
		f.log.Warn("restored a partition whose compaction did not end", keyTopic, p.topic, keyPartition, p.partition)
	}
	return f.dropSaved()
}

// segmentFiles lists the segments and indexes in a partition's folder; none if
// there is no such folder.
func segmentFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); e.Type().IsRegular() && (ext == segmentExt || ext == indexExt) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// writeFile replaces a file as a whole, or not at all.
func writeFile(path string, data []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	return err
}
