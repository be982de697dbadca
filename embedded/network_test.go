package embedded

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// logBuffer collects log lines.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func logTo(l *logBuffer) *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func frame(req kmsg.Request, version int16) []byte {
	req.SetVersion(version)
	return kmsg.NewRequestFormatter().AppendRequest(nil, req, 1)
}

func TestMalformedRequestsOverTCP(t *testing.T) {
	t.Parallel()
	var log logBuffer
	b := open(t, Options{Listen: "127.0.0.1:0", Logger: logTo(&log), Topics: []Topic{{Name: "in", Partitions: 2}}})
	addr := b.Brokers()[0]

	unknown := frame(kmsg.NewPtrApiVersionsRequest(), 0)
	binary.BigEndian.PutUint16(unknown[4:], 9999)
	negative := frame(kmsg.NewPtrApiVersionsRequest(), 0)
	binary.BigEndian.PutUint16(negative[6:], 0xffff)
	long := frame(kmsg.NewPtrApiVersionsRequest(), 0)
	binary.BigEndian.PutUint32(long, MaxRequestBytes+1)
	twice := kmsg.NewPtrProduceRequest()
	topic := kmsg.NewProduceRequestTopic()
	topic.Topic = "in"
	topic.Partitions = []kmsg.ProduceRequestTopicPartition{{Partition: 7}, {Partition: 7}}
	twice.Topics = append(twice.Topics, topic)
	noProtocol := kmsg.NewPtrJoinGroupRequest()
	noProtocol.Group, noProtocol.ProtocolType, noProtocol.SessionTimeoutMillis = "g", "consumer", 6000
	sameProtocol := kmsg.NewPtrJoinGroupRequest()
	sameProtocol.Group, sameProtocol.ProtocolType, sameProtocol.SessionTimeoutMillis = "g", "consumer", 6000
	sameProtocol.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "x"}, {Name: "x"}}
	huge := kmsg.NewPtrCreateTopicsRequest()
	hugeTopic := kmsg.NewCreateTopicsRequestTopic()
	hugeTopic.Topic, hugeTopic.NumPartitions, hugeTopic.ReplicationFactor = "huge", 2_000_000_000, 1
	huge.Topics = append(huge.Topics, hugeTopic)
	grow := kmsg.NewPtrCreatePartitionsRequest()
	growTopic := kmsg.NewCreatePartitionsRequestTopic()
	growTopic.Topic, growTopic.Count = "in", 2_000_000_000
	grow.Topics = append(grow.Topics, growTopic)

	for _, tt := range []struct {
		name string
		sent []byte
		log  string // what is logged about it
	}{
		{"http", []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), "is this a Kafka client?"},
		{"tls", []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), "is this a Kafka client?"},
		{"ssh", []byte("SSH-2.0-OpenSSH_9.6\r\n"), "is this a Kafka client?"},
		{"all ones", bytes.Repeat([]byte{0xff}, 64), "over the limit"},
		{"zeroes", make([]byte, 64), "below the 8 bytes of a header"},
		{"unknown key", unknown, "no request has key 9999"},
		{"negative version", negative, "version -1"},
		{"over the limit", long, "over the limit"},
		{"partition twice", frame(twice, 9), "names partition 7 of topic \\\"in\\\" twice"},
		{"no protocol", frame(noProtocol, 5), "names no protocol"},
		{"protocol twice", frame(sameProtocol, 5), "names protocol \\\"x\\\" twice"},
		{"huge topic", frame(huge, 4), "asks for 2000000000 partitions"},
		{"huge growth", frame(grow, 1), "asks for 2000000000 partitions"},
		{"version of tomorrow", frame(kmsg.NewPtrMetadataRequest(), 99), ""},
		{"produce by topic id", frame(kmsg.NewPtrProduceRequest(), 13), ""},
		{"not served", frame(kmsg.NewPtrStreamsGroupHeartbeatRequest(), 0), ""},
		{"body is cut short", append([]byte{0, 0, 0, 12}, 0, 3, 0, 9, 0, 0, 0, 1, 0, 1, 'x', 0), ""},
		{"half a frame", frame(kmsg.NewPtrMetadataRequest(), 9)[:9], ""},
		{"nothing", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(testTimeout))
			if _, err := c.Write(tt.sent); err != nil {
				t.Fatal(err)
			}
			// Fails when the broker has closed its end already, which is right.
			_ = c.(*net.TCPConn).CloseWrite()
			// A reset is as good as an end.
			if got, err := io.ReadAll(c); len(got) != 0 || err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("answered with %q, %v, want a closed connection", got, err)
			}
			if !strings.Contains(log.String(), tt.log) {
				t.Errorf("log has no %q:\n%s", tt.log, log.String())
			}
			over, err := kgo.NewClient(kgo.SeedBrokers(addr))
			if err != nil {
				t.Fatal(err)
			}
			defer over.Close()
			if err := over.Ping(testContext(t)); err != nil {
				t.Errorf("the broker does not answer any more: %v", err)
			}
		})
	}
}

// A client of another process needs the address alone.
func TestTCP(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Brokers: 3, Listen: "127.0.0.1:0", Topics: []Topic{{Name: "in", Partitions: 6}}})
	if n := len(b.Brokers()); n != 3 {
		t.Fatalf("%d addresses, want 3", n)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Brokers()[1]), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for p := range int32(6) {
		produce(t, cl, record("in", p, "k", "tcp"))
		if got := read(t, b, "in", p); len(got) != 1 || got[0] != "k=tcp" {
			t.Errorf("partition %d has %v", p, got)
		}
	}
	if _, err := Open(Options{Listen: b.Brokers()[0]}); err == nil || !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second broker on the port: %v", err)
	}
}

func TestNetworkDown(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"", "127.0.0.1:0"} {
		t.Run("listen "+listen, func(t *testing.T) {
			t.Parallel()
			b := open(t, Options{Listen: listen, Topics: []Topic{{Name: "in", Partitions: 1}}})
			opts := b.ClientOptions()
			if listen != "" {
				opts = []kgo.Opt{kgo.SeedBrokers(b.Brokers()...)}
			}
			cl, err := kgo.NewClient(append(opts, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(20*time.Millisecond))...)
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			produce(t, cl, record("in", 0, "", "1"))
			if err := b.NetworkDown(true); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			cl.Produce(testContext(t), record("in", 0, "", "2"), func(_ *kgo.Record, err error) { done <- err })
			probe, err := kgo.NewClient(append(opts, kgo.RequestRetries(0))...)
			if err != nil {
				t.Fatal(err)
			}
			defer probe.Close()
			if err := probe.Ping(testContext(t)); err == nil {
				t.Error("a broker that is down answers")
			}
			// Its own state is still there to be looked at.
			if p, err := b.Partition("in", 0); err != nil || p.End != 1 {
				t.Errorf("partition is %+v, %v", p, err)
			}
			select {
			case err := <-done:
				t.Fatalf("produced while the broker was down: %v", err)
			default:
			}
			if err := b.NetworkDown(false); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Without ClientOptions there is no way to an in-process broker, and the error
// says of which kind it is.
func TestInProcessAddressDoesNotResolve(t *testing.T) {
	t.Parallel()
	b := open(t, Options{})
	host, _, err := net.SplitHostPort(b.Brokers()[0])
	if err != nil || !strings.HasSuffix(host, ".invalid") {
		t.Errorf("address is %q, %v", b.Brokers()[0], err)
	}
	if _, err := b.net.dial(testContext(t), "tcp", "localhost:9092"); err == nil || !strings.Contains(err.Error(), "no broker of this embedded cluster") {
		t.Errorf("dial of another address: %v", err)
	}
}

// Requests that are well formed and make no sense: whatever they do, the broker
// answers afterwards. A panic ends the test binary.
func TestRandomRequests(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Topics: []Topic{{Name: "t", Partitions: 2}, {Name: "u", Partitions: 1}}})
	for seed := range uint64(1500) {
		sendRandomRequest(t, b, seed)
	}
	if err := client(t, b).Ping(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

func FuzzRequests(f *testing.F) {
	b := open(f, Options{Topics: []Topic{{Name: "t", Partitions: 2}, {Name: "u", Partitions: 1}}})
	for seed := range uint64(16) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { sendRandomRequest(t, b, seed) })
}

func sendRandomRequest(t *testing.T, b *Broker, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	req := kmsg.RequestForKey(int16(r.IntN(kmsg.MaxKey + 1)))
	if req == nil {
		return
	}
	req.SetVersion(int16(r.IntN(int(req.MaxVersion()) + 1)))
	fillRandom(r, reflect.ValueOf(req).Elem())
	c, err := b.net.dial(testContext(t), "tcp", b.Brokers()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// Some requests wait for an answer that does not come; most are quick.
	c.SetDeadline(time.Now().Add(time.Millisecond))
	_, _ = roundTrip(c, req)
}

// fillRandom sets every field, mostly to values that mean something.
func fillRandom(r *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if r.IntN(3) > 0 {
			n := reflect.New(v.Type().Elem())
			fillRandom(r, n.Elem())
			v.Set(n)
		}
	case reflect.String:
		all := []string{"", "t", "u", "g", "h", "consumer", "range", "x", "0", "1", "sticky", "uniform"}
		v.SetString(all[r.IntN(len(all))])
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		all := []int64{0, 1, -1, 2, 3, 5, 1000, 6000, -2, int64(r.Uint64())}
		v.SetInt(all[r.IntN(len(all))])
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(r.IntN(4)))
	case reflect.Slice:
		n := r.IntN(3)
		if v.Type().Elem().Kind() == reflect.Uint8 {
			n = r.IntN(80)
		}
		s := reflect.MakeSlice(v.Type(), n, n)
		for i := range n {
			fillRandom(r, s.Index(i))
		}
		v.Set(s)
	case reflect.Array:
		for i := range v.Len() {
			fillRandom(r, v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.IsExported() && f.Name != "UnknownTags" && f.Name != "Version" {
				fillRandom(r, v.Field(i))
			}
		}
	default:
		if v.Kind() != reflect.Float64 {
			panic(fmt.Sprintf("a field of kind %v", v.Kind()))
		}
		v.SetFloat(r.Float64())
	}
}

// A port with TLS is for clients that speak it, and the process goes past it.
func TestTLS(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(nil) // has a certificate for 127.0.0.1
	defer s.Close()
	config := s.TLS.Clone()
	config.NextProtos = nil
	b := open(t, Options{Brokers: 2, Listen: "127.0.0.1:0", TLS: config, Topics: []Topic{{Name: "in", Partitions: 2}}})
	trusted := x509.NewCertPool()
	trusted.AddCert(s.Certificate())
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Brokers()[1]), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DialTLSConfig(&tls.Config{RootCAs: trusted}))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for p := range int32(2) {
		produce(t, cl, record("in", p, "k", "tls"))
		if got := read(t, b, "in", p); len(got) != 1 || got[0] != "k=tls" {
			t.Errorf("partition %d has %v", p, got)
		}
	}
	plain, err := kgo.NewClient(kgo.SeedBrokers(b.Brokers()...), kgo.RequestRetries(0))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if err := plain.Ping(testContext(t)); err == nil {
		t.Error("a client without TLS was served")
	}
	if _, err := Open(Options{TLS: config}); err == nil || !strings.Contains(err.Error(), "TLS is set without Listen") {
		t.Errorf("TLS without a port: %v", err)
	}
}
