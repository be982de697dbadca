// Package clientconf reads the file that tells Kafka's own tools how to connect
// (their --command-config), and makes options of the Go client from it.
package clientconf

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/magiconair/properties"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Config is what a file says.
type Config struct {
	Brokers []string  // bootstrap.servers, may be empty
	Options []kgo.Opt // TLS, SASL and the client id
	// Unused are the settings of the file that have no effect, in order of name.
	Unused []string
}

// The settings that are read. Those of librdkafka that say the same are read too.
const (
	keyBrokers    = "bootstrap.servers"
	keyClientID   = "client.id"
	keyProtocol   = "security.protocol"
	keyMechanism  = "sasl.mechanism"
	keyMechanisms = "sasl.mechanisms" // the same to librdkafka
	keyJAAS       = "sasl.jaas.config"
	keyUser       = "sasl.username"
	keyPassword   = "sasl.password"
	keyHostCheck  = "ssl.endpoint.identification.algorithm"

	keyTrust         = "ssl.truststore.location"
	keyTrustType     = "ssl.truststore.type"
	keyTrustInline   = "ssl.truststore.certificates"
	keyTrustPassword = "ssl.truststore.password"
	keyCA            = "ssl.ca.location"

	keyStore         = "ssl.keystore.location"
	keyStoreType     = "ssl.keystore.type"
	keyStorePassword = "ssl.keystore.password"
	keyStoreChain    = "ssl.keystore.certificate.chain"
	keyStoreKey      = "ssl.keystore.key"
	keyCertificate   = "ssl.certificate.location"
	keyKey           = "ssl.key.location"
	keyKeyPassword   = "ssl.key.password"
)

// Read reads a file of properties, in UTF-8. Paths in it are relative to its
// folder. What is wrong comes all at once; secrets are in no error.
func Read(file string) (Config, error) {
	loader := properties.Loader{Encoding: properties.UTF8, DisableExpansion: true}
	p, err := loader.LoadFile(file)
	if err != nil {
		return Config{}, fmt.Errorf("read the client settings: %w", err)
	}
	r := reader{p: p, dir: filepath.Dir(file), read: map[string]bool{}}
	c := r.config()
	if err := errors.Join(r.errs...); err != nil {
		return Config{}, fmt.Errorf("client settings of %s: %w", file, err)
	}
	return c, nil
}

type reader struct {
	p    *properties.Properties
	dir  string
	read map[string]bool
	errs []error
}

func (r *reader) bad(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf(format, args...))
}

// get returns a setting without the spaces around it.
func (r *reader) get(key string) (string, bool) {
	r.read[key] = true
	v, ok := r.p.Get(key)
	return strings.TrimSpace(v), ok
}

func (r *reader) str(key string) string {
	v, _ := r.get(key)
	return v
}

func (r *reader) config() Config {
	var c Config
	for _, b := range strings.Split(r.str(keyBrokers), ",") {
		if b = strings.TrimSpace(b); b == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(b); err != nil {
			r.bad("%s: %q is no address: write host:port", keyBrokers, b)
			continue
		}
		c.Brokers = append(c.Brokers, b)
	}
	if id := r.str(keyClientID); id != "" {
		c.Options = append(c.Options, kgo.ClientID(id))
	}
	var encrypted, authenticated bool
	switch v := strings.ToUpper(r.str(keyProtocol)); v {
	case "", "PLAINTEXT":
	case "SSL":
		encrypted = true
	case "SASL_PLAINTEXT":
		authenticated = true
	case "SASL_SSL":
		encrypted, authenticated = true, true
	default:
		r.bad("%s is %q: choose PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL", keyProtocol, v)
	}
	if encrypted {
		if config := r.tls(); config != nil {
			c.Options = append(c.Options, kgo.DialTLSConfig(config))
		}
	}
	if authenticated {
		if m := r.sasl(); m != nil {
			c.Options = append(c.Options, kgo.SASL(m))
		}
	}
	for _, key := range r.p.Keys() {
		if r.read[key] {
			continue
		}
		secure := strings.HasPrefix(key, "ssl.") || strings.HasPrefix(key, "sasl.") || strings.HasPrefix(key, "security.")
		switch {
		case !secure:
			c.Unused = append(c.Unused, key)
		case !encrypted && strings.HasPrefix(key, "ssl."):
			r.bad("%s is set, but %s is %q, which is without TLS: set it to SSL or SASL_SSL", key, keyProtocol, r.str(keyProtocol))
		case !authenticated && strings.HasPrefix(key, "sasl."):
			r.bad("%s is set, but %s is %q, which is without SASL: set it to SASL_SSL or SASL_PLAINTEXT", key, keyProtocol, r.str(keyProtocol))
		default:
			// To leave it out could weaken the connection.
			r.bad("%s is not supported: remove it, or connect by other means", key)
		}
	}
	slices.Sort(c.Unused)
	return c
}

// sasl returns what the client authenticates with.
func (r *reader) sasl() sasl.Mechanism {
	mechanism, jaas := cmp.Or(r.str(keyMechanism), r.str(keyMechanisms)), r.str(keyJAAS)
	user, password := r.str(keyUser), r.str(keyPassword)
	scrambled := strings.HasPrefix(mechanism, "SCRAM-")
	switch mechanism {
	case "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512":
	case "":
		r.bad("%s is missing: set PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", keyMechanism)
		return nil
	default:
		r.bad("%s is %q, which is not supported: use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", keyMechanism, mechanism)
		return nil
	}
	if jaas != "" {
		module, options, err := parseJAAS(jaas)
		if err != nil {
			r.bad("%s: %w", keyJAAS, err)
			return nil
		}
		if want := map[bool]string{false: "PlainLoginModule", true: "ScramLoginModule"}[scrambled]; !strings.HasSuffix(module, "."+want) {
			r.bad("%s names the module %q, but %s is %s, whose module is %s", keyJAAS, module, keyMechanism, mechanism, want)
			return nil
		}
		user, password = options["username"], options["password"]
	}
	if user == "" || password == "" {
		r.bad("user or password is missing: give both in %s (Kafka's) or in %s and %s (librdkafka's)", keyJAAS, keyUser, keyPassword)
		return nil
	}
	switch mechanism {
	case "PLAIN":
		return plain.Auth{User: user, Pass: password}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism()
	default:
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism()
	}
}

var (
	jaasLine   = regexp.MustCompile(`^\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\s+((?s:.*?))\s*;\s*$`)
	jaasOption = regexp.MustCompile(`^\s*(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s"';=]+))(?:\s|$)`)
	jaasEscape = regexp.MustCompile(`\\(.)`)
)

// parseJAAS takes a login module with its options apart.
func parseJAAS(s string) (module string, options map[string]string, err error) {
	m := jaasLine.FindStringSubmatch(s)
	if m == nil {
		return "", nil, errors.New(`it is not of the form: org.apache.kafka.common.security.plain.PlainLoginModule required username="..." password="...";`)
	}
	options = map[string]string{}
	for rest := m[2]; strings.TrimSpace(rest) != ""; {
		o := jaasOption.FindStringSubmatch(rest)
		if o == nil {
			return "", nil, fmt.Errorf(`the option after %d others is not of the form name="value"`, len(options))
		}
		options[o[1]] = jaasEscape.ReplaceAllString(o[2], "$1") + o[3]
		rest = rest[len(o[0]):]
	}
	return m[1], options, nil
}

// tls returns how connections are encrypted.
func (r *reader) tls() *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	before := len(r.errs)
	if trusted := r.trusted(); trusted != nil {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(trusted) {
			r.bad("there is no certificate in what the broker's is to be checked against")
		}
	}
	if own := r.own(); own != nil {
		config.Certificates = []tls.Certificate{*own}
	}
	switch v, ok := r.get(keyHostCheck); {
	case !ok || strings.EqualFold(v, "https"):
	case v == "" || strings.EqualFold(v, "none"):
		// The certificate counts, whatever host it is for.
		config.InsecureSkipVerify = true
		roots := config.RootCAs
		config.VerifyConnection = func(cs tls.ConnectionState) error {
			between := x509.NewCertPool()
			for _, c := range cs.PeerCertificates[1:] {
				between.AddCert(c)
			}
			_, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between})
			return err
		}
	default:
		r.bad("%s is %q: choose https, or leave it empty so that a certificate for another host will do", keyHostCheck, v)
	}
	if len(r.errs) > before {
		return nil
	}
	return config
}

// trusted returns the certificates that brokers are checked against, nil for
// those that the system trusts.
func (r *reader) trusted() []byte {
	kind, password := r.str(keyTrustType), r.str(keyTrustPassword)
	if inline := r.str(keyTrustInline); inline != "" {
		return []byte(inline)
	}
	key := keyTrust
	file := r.str(key)
	if ca := r.str(keyCA); ca != "" {
		if file != "" {
			r.bad("%s and %s are both set: leave one out", keyTrust, keyCA)
			return nil
		}
		key, file = keyCA, ca
	}
	if file == "" {
		if kind != "" || password != "" {
			r.bad("%s is missing, though its type or password is set", keyTrust)
		}
		return nil
	}
	return r.pem(key, file)
}

// own returns the certificate that the client shows, if any.
func (r *reader) own() *tls.Certificate {
	kind, storePassword := r.str(keyStoreType), r.str(keyStorePassword)
	if r.str(keyKeyPassword) != "" {
		r.bad("%s is set: a key behind a password is not supported; openssl pkey -in KEY -out PLAIN-KEY writes one without", keyKeyPassword)
		return nil
	}
	chain, private := []byte(r.str(keyStoreChain)), []byte(r.str(keyStoreKey))
	switch store, certificate, key := r.str(keyStore), r.str(keyCertificate), r.str(keyKey); {
	case store != "":
		if chain = r.pem(keyStore, store); chain == nil {
			return nil
		}
		private = chain
	case certificate != "" && key != "":
		if chain, private = r.pem(keyCertificate, certificate), r.pem(keyKey, key); chain == nil || private == nil {
			return nil
		}
	case certificate != "" || key != "":
		r.bad("%s and %s belong together: set both", keyCertificate, keyKey)
		return nil
	case len(chain) == 0 && len(private) == 0:
		if kind != "" || storePassword != "" {
			r.bad("%s is missing, though its type or password is set", keyStore)
		}
		return nil
	}
	pair, err := tls.X509KeyPair(chain, private)
	if err != nil {
		r.bad("the certificate of the client: %w", err)
		return nil
	}
	return &pair
}

// pem reads a file that has to hold PEM.
func (r *reader) pem(key, file string) []byte {
	if !filepath.IsAbs(file) {
		file = filepath.Join(r.dir, file)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		r.bad("%s: %w", key, err)
		return nil
	}
	if block, _ := pem.Decode(b); block == nil {
		how := fmt.Sprintf("keytool -exportcert -rfc -alias ALIAS -keystore %s -file CA.pem writes a certificate, set %s and %s=PEM then", file, keyTrust, keyTrustType)
		if key != keyTrust && key != keyCA {
			how = fmt.Sprintf("openssl pkcs12 -in STORE.p12 -nodes -out CLIENT.pem writes a key with its certificates (keytool -importkeystore makes a PKCS12 of a JKS), set %s and %s=PEM then", keyStore, keyStoreType)
		}
		r.bad("%s: %s is not PEM, and JKS and PKCS12 are not supported: %s", key, file, how)
		return nil
	}
	return b
}
