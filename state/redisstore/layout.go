package redisstore

import (
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"unsafe"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/state"
)

// The layout is described in docs/formats/redis.md.

// formatVersion is the value of the field v of a meta key. Whoever changes the
// layout of a generation raises it.
const formatVersion = "1"

// ErrFormat says that a view was written by a version of this package that
// this one does not know.
var ErrFormat = errors.New("redisstore: unknown format version")

// mark is a field that every bucket and a member that the order index holds,
// so that an empty one differs from one that was deleted by hand.
const mark = "\xff"

// field is what a key is called in a bucket and in the order index. It is the
// key itself, but for keys that begin with the byte of the mark; these get it
// twice. Fields compare as their keys do.
func field(key []byte) string {
	if len(key) > 0 && key[0] == mark[0] {
		return mark + string(key)
	}
	return stringOf(key)
}

// keyOf is the reverse of field.
func keyOf(field string) []byte {
	if len(field) > 0 && field[0] == mark[0] {
		field = field[1:]
	}
	return bytesOf(field)
}

// stringOf and bytesOf convert without a copy. The result must not outlive the
// argument's owner nor be written to.
func stringOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func bytesOf(s string) []byte {
	if s == "" {
		return []byte{}
	}
	return unsafe.Slice(unsafe.StringData(s), len(s))
}

// tag is the hash tag of all keys of a view. Its last part is chosen such that
// the tasks of an application are spread evenly over the slots, and with them
// over the nodes, however many there are: by the golden ratio over the
// partitions, whose every run of consecutive multiples is spread.
func tag(id state.ID) string {
	base := escape(id.Application) + "/" + escape(id.Task) + "/"
	return redisconn.Spread(base, region(id))
}

func region(id state.ID) uint8 {
	subtopology, partition, found := strings.Cut(id.Task, "_")
	s, serr := strconv.ParseUint(subtopology, 10, 31)
	p, perr := strconv.ParseUint(partition, 10, 31)
	if !found || serr != nil || perr != nil {
		s, p = 0, uint64(redisconn.CRC16(id.Task))
	}
	x := uint32(p)*0x9e3779b9 + uint32(s)*0x6a09e667 + uint32(redisconn.CRC16(id.Application))<<16
	return uint8(x >> 24)
}

// escape keeps what is harmless in a key and in a shell and turns the rest
// into %XX, so that no two names give the same tag.
func escape(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}

// metaKey is the key that holds the token of a view and leads to its data.
func metaKey(namespace string, id state.ID) string { return namespace + ":{" + tag(id) + "}" }

// points are the stores of a view that are kept without order: their key
// prefixes one after the other, or "*" for all of them.
type points string

const allPoints points = "*"

// encodePoints returns the points of some store names.
func encodePoints(stores []string, all bool) points {
	if all {
		return allPoints
	}
	var b strings.Builder
	for _, s := range stores {
		b.WriteByte(byte(len(s)))
		b.WriteString(s)
	}
	return points(b.String())
}

// prefixes returns the key prefixes, nil when there are none or all.
func (p points) prefixes() ([]string, error) {
	var list []string
	for s := string(p); p != allPoints && s != ""; {
		n := 1 + int(s[0])
		if n > len(s) {
			return nil, fmt.Errorf("points %q end early", string(p))
		}
		list = append(list, s[:n])
		s = s[n:]
	}
	return list, nil
}

// overlay is a batch that is part of the view but has not been moved into the
// buckets yet.
type overlay struct {
	entries int
	bytes   int
	mask    string // per bucket: '1' where it has an overlay bucket
}

func (o overlay) String() string {
	return strconv.Itoa(o.entries) + ":" + strconv.Itoa(o.bytes) + ":" + o.mask
}

func parseOverlay(s string, buckets int) (overlay, error) {
	part := strings.Split(s, ":")
	if len(part) != 3 || len(part[2]) != buckets || strings.Trim(part[2], "01") != "" {
		return overlay{}, fmt.Errorf("overlay %q", s)
	}
	entries, err := strconv.Atoi(part[0])
	if err != nil {
		return overlay{}, fmt.Errorf("overlay %q: %w", s, err)
	}
	bytes, err := strconv.Atoi(part[1])
	if err != nil {
		return overlay{}, fmt.Errorf("overlay %q: %w", s, err)
	}
	return overlay{entries, bytes, part[2]}, nil
}

// layout is where the data of a view are. It does not change; what replaces it
// is another one. The zero layout is that of a view that does not exist.
type layout struct {
	gen     string
	buckets int
	points  points
	over    string // the overlay as stored, "" when there is none
	overlay overlay
	trash   string // generations to be removed

	unordered map[string]bool // by key prefix
	base      []string        // names of the buckets
	upper     []string        // names of the overlay buckets
	index     string          // name of the order index, which points may make needless
}

// newLayout makes the layout of a generation without an overlay.
func newLayout(meta, gen string, buckets int, p points) (*layout, error) {
	prefixes, err := p.prefixes()
	if err != nil {
		return nil, err
	}
	l := &layout{gen: gen, buckets: buckets, points: p, unordered: map[string]bool{},
		base: make([]string, buckets), upper: make([]string, buckets), index: indexKey(meta, gen)}
	for _, prefix := range prefixes {
		l.unordered[prefix] = true
	}
	for i := range buckets {
		l.base[i], l.upper[i] = bucketKey(meta, gen, i), overlayKey(meta, gen, i)
	}
	return l, nil
}

func bucketKey(meta, gen string, bucket int) string {
	return meta + ":" + gen + ":" + strconv.Itoa(bucket)
}

func overlayKey(meta, gen string, bucket int) string {
	return meta + ":" + gen + ":o" + strconv.Itoa(bucket)
}

func indexKey(meta, gen string) string { return meta + ":" + gen + ":z" }

// outboxKey is the ring of the outputs of the last batches. Only views without a
// changelog have one.
func outboxKey(meta, gen string) string { return meta + ":" + gen + ":q" }

// layoutFields are the fields of a meta key that make its layout, in the order
// in which the scripts return them.
var layoutFields = []string{"v", "gen", "buckets", "points", "over", "trash"}

// parseLayout reads the fields of a meta key; a missing one is "".
func parseLayout(meta string, fields []string) (*layout, error) {
	v, gen, buckets, p, over, trash := fields[0], fields[1], fields[2], points(fields[3]), fields[4], fields[5]
	if gen == "" && v == "" {
		return &layout{trash: trash}, nil
	}
	if v != formatVersion {
		return nil, fmt.Errorf("%w: key %q has version %q, this program knows %q: use the version of the program that wrote it, or drop the view to rebuild it",
			ErrFormat, meta, v, formatVersion)
	}
	n, err := strconv.Atoi(buckets)
	if err != nil || n < 1 || n > MaxBuckets || gen == "" {
		return nil, fmt.Errorf("key %q: generation %q with %q buckets: %w", meta, gen, buckets, state.ErrCorrupt)
	}
	l, err := newLayout(meta, gen, n, p)
	if err != nil {
		return nil, fmt.Errorf("key %q: %w: %w", meta, err, state.ErrCorrupt)
	}
	l.trash, l.over = trash, over
	if over != "" {
		if l.overlay, err = parseOverlay(over, n); err != nil {
			return nil, fmt.Errorf("key %q: %w: %w", meta, err, state.ErrCorrupt)
		}
	}
	return l, nil
}

// with returns the layout with another overlay.
func (l *layout) with(over string, o overlay) *layout {
	m := *l
	m.over, m.overlay = over, o
	return &m
}

// indexed says whether the view has an order index.
func (l *layout) indexed() bool { return l.gen != "" && l.points != allPoints }

// ordered says whether a key is in the order index.
func (l *layout) ordered(key []byte) bool {
	switch {
	case l.points == "":
		return true
	case l.points == allPoints:
		return false
	case len(key) == 0 || len(key) < 1+int(key[0]):
		return true
	}
	return !l.unordered[string(key[:1+int(key[0])])]
}

// bucket is where a field belongs. A bucket must not depend on the escape of
// field, so that a reader needs to know only one of them.
func (l *layout) bucket(key []byte) int {
	return int(crc32.ChecksumIEEE(key) % uint32(l.buckets))
}

// covered says whether a bucket has an overlay bucket.
func (l *layout) covered(bucket int) bool {
	return l.over != "" && l.overlay.mask[bucket] == '1'
}

// trashKeys returns the names of all keys of a generation of the trash list.
func trashKeys(meta, entry string) ([]string, error) {
	gen, buckets, _ := strings.Cut(entry, ":")
	n, err := strconv.Atoi(buckets)
	if err != nil || n < 1 || n > MaxBuckets || gen == "" {
		return nil, fmt.Errorf("key %q: %q is no generation with its buckets: %w", meta, entry, state.ErrCorrupt)
	}
	keys := make([]string, 0, 2*n+2)
	keys = append(keys, indexKey(meta, gen), outboxKey(meta, gen))
	for i := range n {
		keys = append(keys, bucketKey(meta, gen, i), overlayKey(meta, gen, i))
	}
	return keys, nil
}
