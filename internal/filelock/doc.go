// Package filelock keeps two processes from using one folder: a lock on an open
// file, which the system gives up when the file is closed or the process dies.
package filelock
