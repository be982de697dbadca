package weir

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// ErrBadKey says that a text is no key of the store it was looked up in.
var ErrBadKey = errors.New("weir: the text is no key of the store")

// Lookup is one entry of a store as it looks to a program that does not know the
// store's types. Key and Value are what the serdes of the store decode; where
// JSON has no such number (NaN, infinities) a string stands for it, so that
// encoding/json can write both unless the type itself refuses.
type Lookup struct {
	Key   any
	Value any
	// Time is the timestamp of the last update, in UTC and with a precision of
	// milliseconds. It is the zero Time for a [KeyValueStore], which keeps none.
	Time time.Time
}

// Stores returns the names of all stores of the topology in order, whether their
// tasks run on this instance or not. The stores of tables and aggregations have
// the name of the table.
func (a *App) Stores() []string { return slices.Sorted(maps.Keys(a.topology.stores())) }

// Lookup returns the entry of a key that is given as text, and whether there is
// one: strings as they are, numbers and booleans as Go writes them, []byte as
// they are or in base64 behind "base64:", and keys of other types as JSON. Like
// a [Reader], it sees committed batches only.
//
// The errors are those of [Reader.Get], ErrNoSuchStore for a name that is not
// among [App.Stores], and ErrBadKey for a text that is no key of that store.
func (a *App) Lookup(ctx context.Context, store, key string) (l Lookup, found bool, err error) {
	if err := ctx.Err(); err != nil {
		return l, false, err
	}
	info, ok := a.topology.stores()[store]
	if !ok {
		return l, false, fmt.Errorf("%w: %q", ErrNoSuchStore, store)
	}
	raw, err := info.key(key)
	if err != nil {
		return l, false, fmt.Errorf("%w %q: %w", ErrBadKey, store, err)
	}
	value, found, err := a.get(store, raw)
	if err != nil || !found {
		return l, false, err
	}
	if l.Key, err = info.keyOf(raw); err != nil {
		return Lookup{}, false, fmt.Errorf("key of store %q: %w", store, err)
	}
	v, ts, err := info.value(value)
	if err != nil {
		return Lookup{}, false, fmt.Errorf("value of store %q: %w", store, err)
	}
	l.Value = v
	if ts >= 0 {
		l.Time = time.UnixMilli(ts).UTC()
	}
	return l, true, nil
}
