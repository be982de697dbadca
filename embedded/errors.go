package embedded

import "errors"

// The errors below are matched with errors.Is. Each is returned wrapped with
// the name of what it is about and what can be done.
var (
	// ErrClosed is returned by every method after Close has begun.
	ErrClosed = errors.New("embedded: broker is closed")

	// ErrFolderInUse is returned by Open when another broker, in this or in
	// another process, has Options.Dir open.
	ErrFolderInUse = errors.New("embedded: folder is in use by another broker")

	// ErrFolderForeign is returned by Open when Options.Dir holds files that
	// no broker of this package wrote, or that a version wrote which this one
	// cannot read. Nothing in the folder is changed.
	ErrFolderForeign = errors.New("embedded: folder does not belong to an embedded broker")

	// ErrFolderCorrupt is returned by Open when a file in Options.Dir is
	// damaged in a way that a killed process does not explain: a bad checksum,
	// or a hole before the end. Nothing is dropped silently; restore the folder
	// from a copy, or delete it to start empty.
	ErrFolderCorrupt = errors.New("embedded: folder is corrupt")

	// ErrStorage is returned once a write to Options.Dir has failed. The broker
	// stops answering at the first such failure, so that nothing more is
	// acknowledged; Close it, see to the disk, and Open it again.
	ErrStorage = errors.New("embedded: writing the folder failed")

	// ErrTransactionOpen is returned by Compact when no moment without an open
	// transaction came before its context ended.
	ErrTransactionOpen = errors.New("embedded: a transaction is open")

	// ErrTopicDiffers is returned when a topic exists with another partition
	// count or other settings than those asked for.
	ErrTopicDiffers = errors.New("embedded: topic exists and differs")

	// ErrTopicUnknown is returned for a topic or partition that does not exist.
	ErrTopicUnknown = errors.New("embedded: no such topic or partition")

	// ErrUnsupported is returned for a setting or an option that the embedded
	// broker does not honour, rather than accepting and ignoring it.
	ErrUnsupported = errors.New("embedded: not supported by the embedded broker")
)
