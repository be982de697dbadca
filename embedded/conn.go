package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// MaxRequestBytes is the largest request that is read, as Kafka's
	// socket.request.max.bytes. A longer one closes the connection: the first
	// bytes of an HTTP request or of a TLS handshake, read as a length, ask for
	// hundreds of megabytes.
	MaxRequestBytes = 100 << 20

	// MaxPartitions is the largest partition count of a topic. The broker holds
	// about 2 KB per partition even when it is empty.
	MaxPartitions = 10_000

	// minRequestBytes is the smallest request header: key, version and
	// correlation id.
	minRequestBytes = 8

	// keptFrameBytes is how much of a frame buffer a connection keeps for the
	// next frame.
	keptFrameBytes = 1 << 20
)

// errMalformed closes a connection whose requests the cluster cannot take.
var errMalformed = errors.New("malformed request")

// conn stands between a client and the cluster and lets only requests through
// that the cluster survives. The cluster runs in goroutines of its own, so a
// panic there ends the host process and cannot be recovered. In the pinned
// version these panic or exhaust memory:
//
//   - a request key that does not exist;
//   - a frame length of any size, since the buffer is made before the body is
//     read;
//   - a produce request that names a partition twice (a produce by topic id
//     with two deleted topics does so, which is why versions above 12 are not
//     offered at all, see maxVersions);
//   - a join with no protocol, or with a protocol named twice;
//   - a topic with billions of partitions.
//
// Bodies that are cut short or senseless in other ways are answered or closed
// by the cluster itself.
type conn struct {
	net.Conn
	l        *listener
	tcp      bool
	internal bool
	once     sync.Once
	done     chan struct{} // closed by Close

	// Read state. The cluster reads from one goroutine at a time.
	head  []byte // read and checked, not yet handed on
	left  int    // bytes of the current frame still to come from Conn
	frame []byte // buffer behind head
}

// Read hands on checked frames.
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(c.head) == 0 && c.left == 0 {
		if err := c.next(); err != nil {
			if errors.Is(err, errMalformed) {
				c.l.nw.log.Warn("connection closed", keyAddress, c.l.addr, keyRemote, c.RemoteAddr(), keyError, err)
				c.Close()
			}
			return 0, err
		}
	}
	if len(c.head) > 0 {
		n := copy(p, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// Close ends the connection. It may be called more than once, from any
// goroutine.
func (c *conn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		close(c.done)
		c.l.nw.forget(c)
		err = c.Conn.Close()
	})
	return err
}

// next reads the start of the next frame, and all of it when its content must
// be checked.
func (c *conn) next() error {
	if cap(c.frame) > keptFrameBytes {
		c.frame = nil
	}
	const start = 4 + 4 // length, then key and version
	c.frame = grow(c.frame, start)
	if _, err := io.ReadFull(c.Conn, c.frame); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(c.frame)
	key := int16(binary.BigEndian.Uint16(c.frame[4:]))
	version := int16(binary.BigEndian.Uint16(c.frame[6:]))
	switch {
	case size > MaxRequestBytes:
		return fmt.Errorf("%w: length %d is over the limit of %d bytes (is this a Kafka client?)", errMalformed, size, MaxRequestBytes)
	case size < minRequestBytes:
		return fmt.Errorf("%w: length %d is below the %d bytes of a header", errMalformed, size, minRequestBytes)
	case !knownKeys[key] || version < 0:
		return fmt.Errorf("%w: no request has key %d and version %d", errMalformed, key, version)
	}
	c.left = int(size) - 4
	if inspect := inspectors[kmsg.Key(key)]; inspect != nil {
		c.frame = grow(c.frame, 4+int(size))
		if _, err := io.ReadFull(c.Conn, c.frame[start:]); err != nil {
			return err
		}
		c.left = 0
		if err := inspect(c, version, requestBody(key, version, c.frame[4:])); err != nil {
			return err
		}
	}
	c.head = c.frame
	return nil
}

// grow returns b with length n, its content kept.
func grow(b []byte, n int) []byte {
	if n <= cap(b) {
		return b[:n]
	}
	g := make([]byte, n)
	copy(g, b)
	return g
}

// requestBody skips the request header, as leniently as the cluster does: what
// is checked here must be what is read there.
func requestBody(key, version int16, frame []byte) []byte {
	r := kbin.Reader{Src: frame}
	r.Int16()
	r.Int16()
	r.Int32()
	r.NullableString()
	req := kmsg.RequestForKey(key)
	req.SetVersion(version)
	if req.IsFlexible() {
		kmsg.SkipTags(&r)
	}
	return r.Src
}

var knownKeys = func() map[int16]bool {
	known := make(map[int16]bool)
	for key := range int16(kmsg.MaxKey + 1) {
		known[key] = kmsg.RequestForKey(key) != nil
	}
	return known
}()

// inspectors look into the bodies of the requests that could end the cluster.
// A body that does not parse is left to the cluster, which closes the
// connection.
var inspectors = map[kmsg.Key]func(c *conn, version int16, body []byte) error{
	kmsg.Produce:          inspectProduce,
	kmsg.JoinGroup:        inspectJoin,
	kmsg.CreateTopics:     inspectCreateTopics,
	kmsg.CreatePartitions: inspectCreatePartitions,
	kmsg.EndTxn:           inspectEndTxn,
}

func inspectProduce(c *conn, version int16, body []byte) error {
	req := kmsg.ProduceRequest{Version: version}
	if req.UnsafeReadFrom(body) != nil {
		return nil
	}
	total := 0
	for i := range req.Topics {
		total += len(req.Topics[i].Partitions)
	}
	if total > 1 {
		type partition struct {
			topic string
			n     int32
		}
		seen := make(map[partition]bool, total)
		for i := range req.Topics {
			for j := range req.Topics[i].Partitions {
				p := partition{req.Topics[i].Topic, req.Topics[i].Partitions[j].Partition}
				if seen[p] {
					return fmt.Errorf("%w: produce names partition %d of topic %q twice", errMalformed, p.n, p.topic)
				}
				seen[p] = true
			}
		}
	}
	if g := c.l.nw.gate.Load(); g != nil {
		for i := range req.Topics {
			for j := range req.Topics[i].Partitions {
				if h, ok := parseBatchHeader(req.Topics[i].Partitions[j].Records); ok && h.transactional() {
					return g.pass(h.producerID, c.done)
				}
			}
		}
	}
	return nil
}

func inspectJoin(_ *conn, version int16, body []byte) error {
	req := kmsg.JoinGroupRequest{Version: version}
	if req.UnsafeReadFrom(body) != nil {
		return nil
	}
	if len(req.Protocols) == 0 {
		return fmt.Errorf("%w: join of group %q names no protocol", errMalformed, req.Group)
	}
	seen := make(map[string]bool, len(req.Protocols))
	for _, p := range req.Protocols {
		if seen[p.Name] {
			return fmt.Errorf("%w: join of group %q names protocol %q twice", errMalformed, req.Group, p.Name)
		}
		seen[p.Name] = true
	}
	return nil
}

func inspectCreateTopics(c *conn, version int16, body []byte) error {
	req := kmsg.CreateTopicsRequest{Version: version}
	if req.ReadFrom(body) != nil {
		return nil
	}
	for i := range req.Topics {
		t := &req.Topics[i]
		if t.NumPartitions > MaxPartitions || len(t.ReplicaAssignment) > MaxPartitions {
			return fmt.Errorf("%w: topic %q asks for %d partitions, over the limit of %d", errMalformed, t.Topic, t.NumPartitions, MaxPartitions)
		}
		c.l.nw.topic(t.Topic)
	}
	return nil
}

func inspectCreatePartitions(_ *conn, version int16, body []byte) error {
	req := kmsg.CreatePartitionsRequest{Version: version}
	if req.UnsafeReadFrom(body) != nil {
		return nil
	}
	for i := range req.Topics {
		if t := &req.Topics[i]; t.Count > MaxPartitions {
			return fmt.Errorf("%w: topic %q asks for %d partitions, over the limit of %d", errMalformed, t.Topic, t.Count, MaxPartitions)
		}
	}
	return nil
}

func inspectEndTxn(c *conn, version int16, body []byte) error {
	g := c.l.nw.gate.Load()
	if g == nil {
		return nil
	}
	req := kmsg.EndTxnRequest{Version: version}
	if req.UnsafeReadFrom(body) == nil {
		g.end(req.ProducerID)
	}
	return nil
}

// gate lets the open transactions run out: while it is shut, it holds the
// produce requests that would begin another one. See Broker.Compact.
type gate struct {
	open chan struct{} // closed when the gate opens again

	mu struct {
		sync.Mutex
		inside  map[int64]bool // producers in a transaction that may go on
		ended   map[int64]bool // producers whose transaction has ended since
		changed chan struct{}  // closed when inside grows
	}
}

func newGate() *gate {
	g := &gate{open: make(chan struct{})}
	g.mu.inside = make(map[int64]bool)
	g.mu.ended = make(map[int64]bool)
	g.mu.changed = make(chan struct{})
	return g
}

// allow lets producers that are in a transaction go on with it. Whose
// transaction was seen to end is not let in again: the list may be older.
func (g *gate) allow(producers []int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	grown := false
	for _, id := range producers {
		if !g.mu.inside[id] && !g.mu.ended[id] {
			g.mu.inside[id] = true
			grown = true
		}
	}
	if grown {
		close(g.mu.changed)
		g.mu.changed = make(chan struct{})
	}
}

// end notes that a producer asks for the end of its transaction: what it
// produces from then on begins another.
func (g *gate) end(producer int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.mu.inside, producer)
	g.mu.ended[producer] = true
}

// pass returns when the producer may go on.
func (g *gate) pass(producer int64, done <-chan struct{}) error {
	for {
		g.mu.Lock()
		inside, changed := g.mu.inside[producer], g.mu.changed
		g.mu.Unlock()
		if inside {
			return nil
		}
		select {
		case <-g.open:
			return nil
		case <-changed:
		case <-done:
			return net.ErrClosed
		}
	}
}
