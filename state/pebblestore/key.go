package pebblestore

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/weirstreams/weir/state"
)

// The layout of the database is described in docs/formats/pebble.md. In short:
//
//	00 "weir"                            format record
//	01 esc(application) esc(task)        view number, 4 bytes big endian
//	02 number(4) 00                      token
//	02 number(4) 01 key                  value
//
// A view's data has a short prefix of a fixed length: no prefix is the prefix
// of another. The token is the first key of its view, so that it fits into the
// same sorted table as the data behind it.
const (
	spaceFormat   = 0x00
	spaceRegistry = 0x01
	spaceViews    = 0x02
	spaceEnd      = 0x03

	viewToken = 0x00
	viewData  = 0x01
	viewEnd   = 0x02
)

// formatVersion is the version of the layout, written by this package.
const formatVersion = 1

var (
	formatKey   = []byte{spaceFormat, 'w', 'e', 'i', 'r'}
	formatMagic = []byte("weir state\x00")
)

func formatRecord() []byte { return append(bytes.Clone(formatMagic), formatVersion) }

// parseFormatRecord returns the version of the layout.
func parseFormatRecord(v []byte) (int, error) {
	if len(v) != len(formatMagic)+1 || !bytes.HasPrefix(v, formatMagic) {
		return 0, fmt.Errorf("format record %x is not one of ours: %w", v, state.ErrCorrupt)
	}
	return int(v[len(v)-1]), nil
}

// dataPrefixLen is the number of bytes before a key of a view.
const dataPrefixLen = 6

// appendView appends the prefix of one of a view's parts.
func appendView(dst []byte, number uint32, part byte) []byte {
	dst = append(dst, spaceViews)
	dst = binary.BigEndian.AppendUint32(dst, number)
	return append(dst, part)
}

func tokenKey(number uint32) []byte { return appendView(nil, number, viewToken) }

// viewBounds are the bounds of everything that a view stores, token included.
func viewBounds(number uint32) (lower, upper []byte) {
	return appendView(nil, number, viewToken), appendView(nil, number, viewEnd)
}

// dataBounds are the bounds of the keys of a range within a view. The range is
// empty when they are equal or the wrong way round.
func dataBounds(number uint32, r state.Range) (lower, upper []byte) {
	lower = append(appendView(nil, number, viewData), r.Lower...)
	if r.Upper == nil {
		return lower, appendView(nil, number, viewEnd)
	}
	return lower, append(appendView(nil, number, viewData), r.Upper...)
}

// parseViewKey returns the number of the view that a key belongs to.
func parseViewKey(key []byte) (number uint32, ok bool) {
	if len(key) < dataPrefixLen || key[0] != spaceViews {
		return 0, false
	}
	return binary.BigEndian.Uint32(key[1:]), true
}

// In the registry a name is escaped so that its end is unambiguous: 00 becomes
// 00 FF, and 00 01 ends it. The order of names is kept, and no encoded name is
// a prefix of another.
const (
	escape       = 0x00
	escapedZero  = 0xff
	escapedEnd   = 0x01
	escapeLength = 2
)

func appendName(dst []byte, name string) []byte {
	for i := range len(name) {
		dst = append(dst, name[i])
		if name[i] == escape {
			dst = append(dst, escapedZero)
		}
	}
	return append(dst, escape, escapedEnd)
}

func cutName(src []byte) (name string, rest []byte, err error) {
	var b []byte
	for i := 0; ; {
		j := bytes.IndexByte(src[i:], escape)
		if j < 0 || i+j+1 >= len(src) {
			return "", nil, fmt.Errorf("name %x has no end", src)
		}
		b = append(b, src[i:i+j]...)
		i += j + escapeLength
		switch src[i-1] {
		case escapedEnd:
			return string(b), src[i:], nil
		case escapedZero:
			b = append(b, escape)
		default:
			return "", nil, fmt.Errorf("name %x has an unknown escape", src)
		}
	}
}

func registryKey(id state.ID) []byte {
	k := append(make([]byte, 0, 1+len(id.Application)+len(id.Task)+2*escapeLength), spaceRegistry)
	return appendName(appendName(k, id.Application), id.Task)
}

func registryValue(number uint32) []byte { return binary.BigEndian.AppendUint32(nil, number) }

// parseRegistry decodes an entry of the registry.
func parseRegistry(key, value []byte) (id state.ID, number uint32, err error) {
	fail := func(why any) (state.ID, uint32, error) {
		return state.ID{}, 0, fmt.Errorf("registry entry %x = %x: %v: %w", key, value, why, state.ErrCorrupt)
	}
	if len(key) == 0 || key[0] != spaceRegistry {
		return fail("not in the registry")
	}
	app, rest, err := cutName(key[1:])
	if err != nil {
		return fail(err)
	}
	task, rest, err := cutName(rest)
	if err != nil {
		return fail(err)
	}
	if len(rest) != 0 {
		return fail("bytes after the names")
	}
	if len(value) != 4 {
		return fail("a view number has 4 bytes")
	}
	number = binary.BigEndian.Uint32(value)
	if number == 0 {
		return fail("no view has number 0")
	}
	return state.ID{Application: app, Task: task}, number, nil
}
