package stamp

import (
	"encoding/base64"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"

	"github.com/weirstreams/weir/internal/wire"
	"github.com/weirstreams/weir/state"
)

// The layouts are what other processes and later releases read, so the bytes
// are pinned here as docs/formats/stamp.md gives them.
func TestLayouts(t *testing.T) {
	t.Parallel()
	token := Token{
		Lineage: Lineage{0: 0xa0, 15: 0xaf}, Epoch: 3, Seq: 300, Nonce: 1, Wall: 1000, Restoring: true,
		Changelog: []Offset{{"counts", 64}}, Inputs: []Offset{{"orders", 2}}, Times: []Time{{"", 999}},
	}
	want := strings.Join([]string{
		"01", "04e4af5a", // version, CRC-32C
		"a00000000000000000000000000000af", // lineage
		"03", "ac02",                       // epoch, seq
		"0000000000000001",             // nonce
		"d00f",                         // wall
		"01",                           // flags: restoring
		"01", "06636f756e7473", "8001", // changelog: counts -> 64
		"01", "066f7264657273", "04", // inputs: orders -> 2
		"01", "00", "ce0f", // times: "" -> 999
	}, "")
	if got := hex.EncodeToString([]byte(token.Encode())); got != want {
		t.Errorf("token:\n got %s\nwant %s", got, want)
	}
	stamp := Stamp{
		Lineage: Lineage{0: 0xa0, 15: 0xaf}, Seq: 300, Nonce: 1,
		Changelog: []Offset{{"counts", 64}}, Times: []Time{{"", 999}},
		Inputs: []Input{{Topic: "orders", ID: [16]byte{0: 0xb0, 15: 0xbf}, LeaderEpoch: 4, Partitions: 12, Time: -1}},
	}
	want = strings.Join([]string{
		"575354", "01", "5bc4346b", // magic, version, CRC-32C
		"a00000000000000000000000000000af", // lineage
		"ac02", "0000000000000001",         // seq, nonce
		"01", "06636f756e7473", "8001", // changelog: counts -> 64
		"01", "00", "ce0f", // times: "" -> 999
		"01", "066f7264657273", "b00000000000000000000000000000bf", "08", "18", "01", // input: id, leader epoch, partitions, time
	}, "")
	raw, err := base64.StdEncoding.DecodeString(stamp.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(raw); got != want {
		t.Errorf("stamp:\n got %s\nwant %s", got, want)
	}
	stamp.Changelog, stamp.Outbox, stamp.Last, stamp.PastAt = nil, true, 300, 1000
	stamp.Gaps, stamp.Inputs[0].Past = []Gap{{20, 52}, {55, 290}}, 2
	want = strings.Join([]string{
		"575354", "02", "cbdca780", // magic, version, CRC-32C
		"a00000000000000000000000000000af", // lineage
		"ac02", "0000000000000001",         // seq, nonce
		"00",               // changelog
		"01", "00", "ce0f", // times: "" -> 999
		"01", "066f7264657273", "b00000000000000000000000000000bf", "08", "18", "01", // input: id, leader epoch, partitions, time
		"02", "1434", "37a202", // gaps
		"ac02", "d00f", "04", // last, past at, past of the input
	}, "")
	if raw, err = base64.StdEncoding.DecodeString(stamp.Encode()); err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(raw); got != want {
		t.Errorf("stamp with an outbox:\n got %s\nwant %s", got, want)
	}
	if !strings.HasPrefix(stamp.Encode(), stampPrefix) {
		t.Errorf("stamp %s does not begin with %s", stamp.Encode(), stampPrefix)
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, want := range []Token{{}, exampleToken(), outboxToken(), {Epoch: 1<<64 - 1, Seq: 1<<64 - 1, Nonce: 1<<64 - 1, Wall: -1 << 63}} {
		got, err := DecodeToken(want.Encode())
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v\nwant %+v", got, err, want)
		}
	}
	for _, want := range []Stamp{{}, exampleStamp(), outboxStamp(), {Inputs: []Input{{LeaderEpoch: -1 << 31, Partitions: 1<<31 - 1, Time: -1 << 63}}}} {
		got, ours, err := DecodeStamp(want.Encode())
		if err != nil || !ours || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, ours %v, %v\nwant %+v", got, ours, err, want)
		}
	}
}

func TestDecodeStreamsMetadata(t *testing.T) {
	t.Parallel()
	encode := func(parts ...string) string {
		b, err := hex.DecodeString(strings.Join(parts, ""))
		if err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(b)
	}
	const time, unknown = "00000000000003e8", "ffffffffffffffff"
	for _, c := range []struct {
		name, metadata string
		want           StreamsMetadata
		theirs, bad    bool
	}{
		{"version 1", encode("01", time), StreamsMetadata{PartitionTime: 1000}, true, false},
		{"version 2", encode("02", time), StreamsMetadata{PartitionTime: 1000}, true, false},
		{"unknown time", encode("02", unknown), StreamsMetadata{PartitionTime: -1}, true, false},
		{"map", encode("02", time, "00000002", "00000001", "7a", time, "00000001", "61", unknown),
			StreamsMetadata{1000, []Time{{"a", -1}, {"z", 1000}}}, true, false},
		{"map cut short", encode("02", time, "00000001", "00000001", "7a", "00"), StreamsMetadata{}, true, true},
		{"map with a wild key length", encode("02", time, "00000001", "ffffffff", "7a", time), StreamsMetadata{}, true, true},
		{"map with a wild count", encode("02", time, "ffffffff"), StreamsMetadata{}, true, true},
		{"map with a tail", encode("02", time, "00000000", "00"), StreamsMetadata{}, true, true},
		{"empty", "", StreamsMetadata{}, false, false},
		{"too short", encode("02", "0000"), StreamsMetadata{}, false, false},
		{"other version", encode("03", time), StreamsMetadata{}, false, false},
		{"not base64", "kgo-1", StreamsMetadata{}, false, false},
		{"a stamp", exampleStamp().Encode(), StreamsMetadata{}, false, false},
	} {
		got, theirs, err := DecodeStreamsMetadata(c.metadata)
		if !reflect.DeepEqual(got, c.want) || theirs != c.theirs || (err != nil) != c.bad {
			t.Errorf("%s: got %+v, theirs %v, error %v", c.name, got, theirs, err)
		}
	}
}

func FuzzDecodeToken(f *testing.F) {
	f.Add([]byte(exampleToken().Encode()), true)
	f.Add([]byte(exampleToken().Encode()), false)
	f.Add([]byte((Token{}).Encode()), true)
	f.Add([]byte(outboxToken().Encode()), true)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= tokenHeadBytes { // get past the checksum
			wire.Seal(b, 1)
		}
		tok, err := DecodeToken(state.Token(b))
		if err != nil {
			return
		}
		again, err := DecodeToken(tok.Encode())
		if err != nil || !reflect.DeepEqual(tok, again) {
			t.Fatalf("decoded %+v, encoded and decoded again %+v, %v", tok, again, err)
		}
	})
}

func FuzzDecodeStamp(f *testing.F) {
	f.Add(exampleStamp().Encode(), []byte(nil))
	f.Add("", append([]byte{0}, stampBody(exampleStamp())...))
	f.Add("", append([]byte{0}, stampBody(Stamp{})...))
	f.Add(outboxStamp().Encode(), []byte(nil))
	f.Add("", append([]byte{1}, stampBody(outboxStamp())...))
	f.Fuzz(func(t *testing.T, metadata string, body []byte) {
		if len(body) > 0 {
			metadata = sealedStamp(stampVersion+body[0]%2, body[1:])
		}
		s, ours, err := DecodeStamp(metadata)
		if err != nil || !ours {
			return
		}
		again, _, err := DecodeStamp(s.Encode())
		if err != nil || !reflect.DeepEqual(s, again) {
			t.Fatalf("decoded %+v, encoded and decoded again %+v, %v", s, again, err)
		}
		var stores, inputs, times []string
		for _, o := range s.Changelog {
			stores = append(stores, o.Name)
		}
		for _, in := range s.Inputs {
			inputs = append(inputs, in.Topic)
		}
		for _, tm := range s.Times {
			times = append(times, tm.Name)
		}
		limit := MaxStampSize(stores, inputs, times)
		if s.Outbox {
			if limit = MaxOutboxStampSize(inputs, times); len(s.Gaps) > MaxGaps || len(s.Changelog) > 0 {
				return
			}
		}
		if len(s.Encode()) > limit {
			t.Fatalf("stamp of %d bytes, the bound is %d", len(s.Encode()), limit)
		}
	})
}

func FuzzDecodeStreamsMetadata(f *testing.F) {
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x03\xe8\x00\x00\x00\x01\x00\x00\x00\x01z\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x00\x03\xe8"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, theirs, err := DecodeStreamsMetadata(base64.StdEncoding.EncodeToString(b))
		if theirs && b[0] != 1 && b[0] != 2 || err != nil && !theirs {
			t.Fatalf("got %+v, theirs %v, error %v", m, theirs, err)
		}
		if theirs && err == nil && len(m.Processors) > len(b)/12 {
			t.Fatalf("%d processors out of %d bytes", len(m.Processors), len(b))
		}
	})
}

func BenchmarkStampEncode(b *testing.B) {
	s := exampleStamp()
	b.ReportAllocs()
	for b.Loop() {
		s.Encode()
	}
}

func BenchmarkTokenEncode(b *testing.B) {
	t := exampleToken()
	b.ReportAllocs()
	for b.Loop() {
		t.Encode()
	}
}

// stampBody is the part of the stamp that follows its checksum.
func stampBody(s Stamp) []byte {
	b, err := base64.StdEncoding.DecodeString(s.Encode())
	if err != nil {
		panic(err)
	}
	return b[stampHeadBytes:]
}

func sealedStamp(version byte, body []byte) string {
	b := append([]byte(stampMagic), version, 0, 0, 0, 0)
	b = append(b, body...)
	wire.Seal(b, len(stampMagic)+1)
	return base64.StdEncoding.EncodeToString(b)
}
