package clientconf

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/weirstreams/weir/embedded"
)

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t *testing.T) *authority {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key, block("CERTIFICATE", der)}
}

func block(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// issue makes a certificate with its key, as PEM.
func (a *authority) issue(t *testing.T, name string, ips ...net.IP) (cert, key string) {
	k, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IPAddresses: ips,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, k.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	kd, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return block("CERTIFICATE", der), block("PRIVATE KEY", kd)
}

// listen starts a broker that speaks TLS as a host, and asks clients for a certificate.
func listen(t *testing.T, a *authority, host string, ips ...net.IP) string {
	t.Helper()
	cert, key := a.issue(t, host, ips...)
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(a.cert)
	b, err := embedded.Open(embedded.Options{Listen: "127.0.0.1:0",
		TLS: &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.VerifyClientCertIfGiven}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b.Brokers()[0]
}

func ping(t *testing.T, addr, file string) error {
	t.Helper()
	c, err := Read(file)
	if err != nil {
		t.Fatal(err)
	}
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(addr), kgo.RequestRetries(0)}, c.Options...)...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return cl.Ping(ctx)
}

func TestTLS(t *testing.T) {
	ours, theirs, dir := newAuthority(t), newAuthority(t), t.TempDir()
	here := listen(t, ours, "localhost", net.IPv4(127, 0, 0, 1))
	elsewhere := listen(t, ours, "kafka.example")
	write(t, dir, "ca.pem", ours.pem)
	write(t, dir, "other.pem", theirs.pem)
	cert, key := ours.issue(t, "client")
	write(t, dir, "client.crt", cert)
	write(t, dir, "client.key", key)
	write(t, dir, "client.pem", key+cert)
	foreign, foreignKey := theirs.issue(t, "client")
	write(t, dir, "foreign.pem", foreign+foreignKey)
	inline := func(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "\\n") }

	for _, tt := range []struct {
		name, addr, text, want string
	}{
		{"truststore", here, "security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location=ca.pem", ""},
		{"absolute path", here, "security.protocol=SSL\nssl.truststore.location=" + dir + "/ca.pem", ""},
		{"librdkafka", here, "security.protocol=ssl\nssl.ca.location=ca.pem", ""},
		{"inline", here, "security.protocol=SSL\nssl.truststore.certificates=" + inline(ours.pem), ""},
		{"another authority", here, "security.protocol=SSL\nssl.truststore.location=other.pem", "unknown authority"},
		{"the system's", here, "security.protocol=SSL", "unknown authority"},
		{"plain", here, "security.protocol=PLAINTEXT", "is TLS missing"},
		{"host", elsewhere, "security.protocol=SSL\nssl.truststore.location=ca.pem", "127.0.0.1"},
		{"any host", elsewhere, "security.protocol=SSL\nssl.truststore.location=ca.pem\nssl.endpoint.identification.algorithm=", ""},
		{"any host, another authority", elsewhere, "security.protocol=SSL\nssl.truststore.location=other.pem\nssl.endpoint.identification.algorithm=", "unknown authority"},
		{"keystore", here, "security.protocol=SSL\nssl.truststore.location=ca.pem\nssl.keystore.type=PEM\nssl.keystore.location=client.pem", ""},
		{"certificate and key", here, "security.protocol=SSL\nssl.ca.location=ca.pem\nssl.certificate.location=client.crt\nssl.key.location=client.key", ""},
		{"inline keystore", here, "security.protocol=SSL\nssl.ca.location=ca.pem\nssl.keystore.certificate.chain=" + inline(cert) + "\nssl.keystore.key=" + inline(key), ""},
		{"certificate that the broker refuses", here, "security.protocol=SSL\nssl.ca.location=ca.pem\nssl.keystore.location=foreign.pem", "remote error"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := ping(t, tt.addr, write(t, dir, "client.properties", tt.text))
			if tt.want == "" && err != nil {
				t.Errorf("ping: %v", err)
			} else if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("ping: %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestSASL(t *testing.T) {
	const kafka = "org.apache.kafka.common.security."
	for _, tt := range []struct {
		name, text, mechanism, first string
	}{
		{"plain", "sasl.mechanism=PLAIN\nsasl.jaas.config=" + kafka + `plain.PlainLoginModule required username="alice" password="a ${b}";`, "PLAIN", "\x00alice\x00a ${b}"},
		{"over lines", "sasl.mechanism=PLAIN\nsasl.jaas.config=" + kafka + "plain.PlainLoginModule required \\\n    username=\"alice\" \\\n    password=\"secret\";\n", "PLAIN", "\x00alice\x00secret"},
		// Of two backslashes the properties take one, and the other is for JAAS.
		{"quotes", "sasl.mechanism=PLAIN\nsasl.jaas.config=" + kafka + `plain.PlainLoginModule required username="alice" password="a\\"b;=";`, "PLAIN", "\x00alice\x00a\"b;="},
		{"scram", "sasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config=" + kafka + `scram.ScramLoginModule required username="alice" password="secret";`, "SCRAM-SHA-256", "n,,n=alice,r="},
		{"librdkafka", "sasl.mechanisms=SCRAM-SHA-512\nsasl.username=alice\nsasl.password=secret", "SCRAM-SHA-512", "n,,n=alice,r="},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Read(write(t, t.TempDir(), "client.properties", "security.protocol=SASL_PLAINTEXT\nbootstrap.servers=one:9092, two:9093\nacks=all\nclient.id=tool\n"+tt.text))
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(c.Brokers, c.Unused); got != "[one:9092 two:9093] [acks]" {
				t.Errorf("brokers and unused settings: %s", got)
			}
			cl, err := kgo.NewClient(c.Options...)
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			if id := cl.OptValue(kgo.ClientID); id != "tool" {
				t.Errorf("client id %v", id)
			}
			m := cl.OptValue(kgo.SASL).([]sasl.Mechanism)
			if len(m) != 1 || m[0].Name() != tt.mechanism {
				t.Fatalf("mechanisms %v, want %s", m, tt.mechanism)
			}
			_, first, err := m[0].Authenticate(t.Context(), "one")
			if err != nil || !bytes.HasPrefix(first, []byte(tt.first)) {
				t.Errorf("first message %q, %v, want %q", first, err, tt.first)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	const plain = "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
	dir := t.TempDir()
	write(t, dir, "store.jks", "\xfe\xed\xfe\xed")
	write(t, dir, "empty.pem", block("PRIVATE KEY", []byte("x")))
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"protocol", "security.protocol=TLS", []string{`security.protocol is "TLS"`, "SASL_SSL"}},
		{"address", "bootstrap.servers=localhost", []string{`"localhost" is no address`}},
		{"mechanism", "security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI\nsasl.kerberos.service.name=kafka", []string{`sasl.mechanism is "GSSAPI"`, "sasl.kerberos.service.name is not supported"}},
		{"no mechanism", "security.protocol=SASL_SSL\nsasl.username=a\nsasl.password=secret", []string{"sasl.mechanism is missing"}},
		{"no password", plain + "sasl.username=alice", []string{"user or password is missing"}},
		{"jaas", plain + `sasl.jaas.config=username="alice" password="secret"`, []string{"sasl.jaas.config", "PlainLoginModule required"}},
		{"jaas option", plain + `sasl.jaas.config=a.PlainLoginModule required username="alice" password=secret";`, []string{"option after 1 others"}},
		{"jaas module", plain + `sasl.jaas.config=a.ScramLoginModule required username="alice" password="secret";`, []string{"whose module is PlainLoginModule"}},
		{"sasl without", "security.protocol=SSL\nsasl.mechanism=PLAIN\nsasl.password=secret", []string{"sasl.mechanism is set", "sasl.password is set", "SASL_SSL"}},
		{"tls without", "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=a\nsasl.password=secret\nssl.ca.location=x", []string{"ssl.ca.location is set", "SASL_SSL"}},
		{"jks", "security.protocol=SSL\nssl.truststore.location=store.jks\nssl.truststore.password=secret", []string{"store.jks is not PEM", "keytool -exportcert"}},
		{"jks of the client", "security.protocol=SSL\nssl.keystore.location=store.jks\nssl.keystore.password=secret", []string{"store.jks is not PEM", "openssl pkcs12"}},
		{"no certificate", "security.protocol=SSL\nssl.ca.location=empty.pem", []string{"no certificate"}},
		{"missing file", "security.protocol=SSL\nssl.ca.location=missing.pem", []string{"ssl.ca.location", "missing.pem"}},
		{"two", "security.protocol=SSL\nssl.ca.location=a\nssl.truststore.location=b", []string{"both set"}},
		{"type only", "security.protocol=SSL\nssl.truststore.type=PEM", []string{"ssl.truststore.location is missing"}},
		{"key only", "security.protocol=SSL\nssl.key.location=a", []string{"belong together"}},
		{"key with password", "security.protocol=SSL\nssl.key.password=secret", []string{"ssl.key.password is set", "openssl pkey"}},
		{"host check", "security.protocol=SSL\nssl.endpoint.identification.algorithm=ldap", []string{`is "ldap"`}},
		{"unknown", "security.protocol=SSL\nssl.cipher.suites=x", []string{"ssl.cipher.suites is not supported"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Read(write(t, dir, "client.properties", tt.text))
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range append(tt.want, "client.properties") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("error %q has the secret", err)
			}
		})
	}
	if _, err := Read(filepath.Join(dir, "nothing")); err == nil || !strings.Contains(err.Error(), "nothing") {
		t.Errorf("a missing file: %v", err)
	}
}

func TestJAAS(t *testing.T) {
	module, options, err := parseJAAS(`  a.b.C  required debug=true user_x="1" ; `)
	if err != nil || module != "a.b.C" || len(options) != 2 || options["debug"] != "true" || options["user_x"] != "1" {
		t.Errorf("%q %v %v", module, slices.Sorted(slices.Values([]string{options["debug"], options["user_x"]})), err)
	}
}
