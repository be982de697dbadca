package keyenc

import (
	"bytes"
	"errors"
	"testing"
)

// checkDecoded demands of any input: an error is ErrMalformed and short, and
// what decodes encodes to the same bytes.
func checkDecoded(t *testing.T, src []byte, err error, encode func() []byte) {
	t.Helper()
	if err != nil {
		if !errors.Is(err, ErrMalformed) || len(err.Error()) > 300 {
			t.Fatalf("error of %d bytes: %.300v", len(err.Error()), err)
		}
		return
	}
	if got := encode(); !bytes.Equal(got, src) {
		t.Fatalf("%x came back as %x", src, got)
	}
}

func FuzzWindowKey(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(AppendWindowKey(nil, []byte("ab"), 10))
	f.Fuzz(func(t *testing.T, src []byte) {
		key, start, err := DecodeWindowKey(src)
		checkDecoded(t, src, err, func() []byte { return AppendWindowKey(nil, key, start) })
	})
}

func FuzzWindowStoreKey(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(AppendWindowStoreKey(nil, []byte("ab"), 10, 3))
	f.Fuzz(func(t *testing.T, src []byte) {
		key, start, seq, err := DecodeWindowStoreKey(src)
		checkDecoded(t, src, err, func() []byte { return AppendWindowStoreKey(nil, key, start, seq) })
	})
}

func FuzzSessionKey(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(AppendSessionKey(nil, []byte("ab"), 10, 20))
	f.Fuzz(func(t *testing.T, src []byte) {
		key, start, end, err := DecodeSessionKey(src)
		if err == nil && start > end {
			t.Fatalf("%x decodes to a session from %d to %d", src, start, end)
		}
		checkDecoded(t, src, err, func() []byte { return AppendSessionKey(nil, key, start, end) })
	})
}

// A varint has longer forms too, which Java reads and nobody writes, so it is
// the change that must come back and not its bytes.
func FuzzChange(f *testing.F) {
	for _, seed := range []string{"", "a\x00", "a\x01", "\x04a2a1\x02", "\x80\x00\x02", "\x02\x02", "x\x03", "\xff\xff\xff\xff\x0f\x02"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		c, err := DecodeChange(src)
		checkDecoded(t, nil, err, func() []byte {
			b, err := AppendChange(nil, c)
			if err != nil {
				t.Fatalf("%x decodes to %+v: %v", src, c, err)
			}
			if len(b) > len(src) {
				t.Fatalf("%x became longer: %x", src, b)
			}
			again, err := DecodeChange(b)
			if err != nil || !sameChange(c, again) {
				t.Fatalf("%+v came back as %+v, %v", c, again, err)
			}
			return nil
		})
	})
}

// Any change whatever survives the round trip.
func FuzzChangeRoundTrip(f *testing.F) {
	f.Add([]byte("new"), []byte("old"), true, true)
	f.Fuzz(func(t *testing.T, added, old []byte, hasNew, hasOld bool) {
		c := Change{HasNew: hasNew, HasOld: hasOld}
		if hasNew {
			c.New = added
		}
		if hasOld {
			c.Old = old
		}
		b, err := AppendChange(nil, c)
		if (err == nil) != (hasNew || hasOld) {
			t.Fatalf("AppendChange(%+v): %v", c, err)
		}
		if err != nil {
			return
		}
		back, err := DecodeChange(b)
		if err != nil || !sameChange(back, c) {
			t.Fatalf("%+v came back as %+v, %v", c, back, err)
		}
	})
}
