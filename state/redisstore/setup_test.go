//go:build integration

package redisstore

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirstreams/weir/internal/redistest"
	"github.com/weirstreams/weir/state"
)

// certificate makes a certificate for 127.0.0.1 that is its own authority.
func certificate(t *testing.T, dir string) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	k, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	pemCert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := errors.Join(os.WriteFile(cert, pemCert, 0o600), os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: k}), 0o600)); err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(pemCert)
	return cert, key, pool
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key, pool := certificate(t, dir)
	port := redistest.FreePort(t)
	s := redistest.Start(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	opts := serverOptions(s)
	opts.Addresses, opts.TLS = []string{net.JoinHostPort("127.0.0.1", port)}, &tls.Config{RootCAs: pool}
	o := newOwner(t, opts)
	o.apply(2000, 100)
	o.check()
	opts.TLS = &tls.Config{} // which does not know the authority
	if _, err := Open(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a server that nobody vouches for: %v", err)
	}
	url, err := ParseURL("rediss://" + opts.Addresses[0] + "?skip_verify=true&check=warn")
	if err != nil {
		t.Fatal(err)
	}
	if token, err := mustOpen(t, url).Token(t.Context(), view0); err != nil || token != o.token {
		t.Errorf("token %q, error %v", token, err)
	}
}

func TestUnixSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "weir") // short: a path of a socket has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "redis.sock")
	redistest.Start(t, "--unixsocket", path)
	opts, err := ParseURL("unix://" + path + "?db=2&check=warn")
	if err != nil {
		t.Fatal(err)
	}
	o := newOwner(t, opts)
	o.apply(2000, 100)
	o.check()
}

// rights are what docs/formats/redis.md says that the user of an application
// needs, and that of a reader.
func rights(t *testing.T) (owner, reader []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/formats/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) > 4 && words[0] == "ACL" && words[1] == "SETUSER" {
			if words[2] == "weir" {
				owner = words
			} else {
				reader = words
			}
		}
	}
	if owner == nil || reader == nil {
		t.Fatal("docs/formats/redis.md has no ACL lines")
	}
	return owner, reader
}

// The rights of the documentation are enough for everything, and a user that
// lacks some is refused for good.
func TestUserWithFewRights(t *testing.T) {
	s := redistest.Start(t)
	all, reading := rights(t)
	for i, words := range [][]string{all, reading} {
		words = slices.Clone(words)
		words[slices.Index(words, ">PASSWORD")] = ">secret" + strconv.Itoa(i)
		s.Must(words...)
	}
	opts := serverOptions(s)
	opts.Username, opts.Password, opts.Check = all[2], "secret0", CheckWarn
	o := newOwner(t, opts)
	o.apply(2000, 100)
	o.apply(10, 10)
	o.check()
	if found, err := o.b.Check(t.Context()); err != nil || slices.ContainsFunc(found, func(f Finding) bool { return f.Subject == "rights" }) {
		t.Errorf("findings %v, error %v", found, err)
	}
	bulk, err := o.v.Bulk(t.Context(), o.token)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(bulk.Put([]byte("bulk"), []byte("b")), bulk.Checkpoint(t.Context(), "bulk"), bulk.Close()); err != nil {
		t.Fatal(err)
	}
	o.token, o.want["bulk"] = "bulk", "b"
	o.check()
	if _, err := o.v.ApproximateCount(t.Context(), state.Range{}); err != nil {
		t.Fatal(err)
	}

	opts.Username, opts.Password = reading[2], "secret1"
	r, err := OpenReader(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	seen := ""
	token, err := r.View(view0).Read(t.Context(), [][]byte{[]byte("bulk")}, func(_ int, v []byte) { seen = string(v) })
	if err != nil || token != "bulk" || seen != "b" {
		t.Errorf("%q under token %q, error %v", seen, token, err)
	}
	it := r.View(view0).Iterate(t.Context(), state.Range{})
	n := 0
	for it.Next() {
		n++
	}
	if it.Err() != nil || n != len(o.want) {
		t.Errorf("%d entries, want %d, error %v", n, len(o.want), it.Err())
	}
	opts.Check = CheckOff
	b := mustOpen(t, opts)
	_, err = b.Claim(t.Context(), view0, "bulk", "stolen")
	if err == nil || errors.Is(err, state.ErrUnavailable) || !strings.Contains(err.Error(), "docs/formats/redis.md") {
		t.Errorf("a claim of a user who may not write: %v", err)
	}
	opts.Password = "wrong"
	_, err = Open(t.Context(), opts)
	if err == nil || errors.Is(err, state.ErrUnavailable) || strings.Contains(err.Error(), "wrong") && !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("a wrong password: %v", err)
	}
	bulk, err = o.v.Bulk(t.Context(), o.token)
	if err != nil {
		t.Fatal(err)
	}
	if err := bulk.Close(); err != nil {
		t.Fatal(err)
	}
	if err := o.v.Clear(t.Context(), o.token, "cleared"); err != nil {
		t.Fatal(err)
	}
	if err := o.b.Drop(t.Context(), view0); err != nil {
		t.Fatal(err)
	}
	if keys := s.Keys(); len(keys) > 0 {
		t.Errorf("left over: %q", keys)
	}
}

// Sentinels name the primary, and its successor after a failover.
func TestSentinel(t *testing.T) { eachWay(t, testSentinel) }

func testSentinel(t *testing.T, unordered bool) {
	s := redistest.Start(t, "--repl-diskless-sync", "no")
	r := s.StartReplica("--repl-diskless-sync", "no")
	sentinel := redistest.StartSentinel(t, s)
	opts := serverOptions(s)
	opts.Addresses, opts.Sentinel, opts.Unordered = []string{sentinel.Addr()}, &Sentinel{Master: "main"}, unordered
	o := newOwner(t, opts)
	o.apply(100, 100)
	awaitToken(t, r, o.token)
	redistest.Eventually(t, "the sentinel knows the replica", func() bool {
		return sentinel.Do("SENTINEL", "FAILOVER", "main").Error() == nil
	})
	// A primary that is not demoted yet would take writes and forget them.
	redistest.Eventually(t, "the failover", func() bool {
		return r.Info("replication")["role"] == "master" && s.Info("replication")["role"] == "slave"
	})
	again, _ := o.try(10, 10)
	o.soon(again)
	o.check()
	awaitToken(t, r, o.token)

	// A primary that dies is replaced without anybody's help.
	o.arm()
	r.AwaitOnline(1)
	awaitToken(t, s, o.token)
	redistest.Eventually(t, "the sentinel knows the new replica", func() bool {
		in, err := sentinel.Must("SENTINEL", "REPLICAS", "main").ToArray()
		return err == nil && len(in) > 0 && sentinelSees(t, sentinel)
	})
	r.Kill()
	again, _ = o.try(10, 10)
	o.soon(again)
	o.check()
}

func sentinelSees(t *testing.T, sentinel *redistest.Server) bool {
	t.Helper()
	list, err := sentinel.Must("SENTINEL", "REPLICAS", "main").ToArray()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		in, err := m.AsStrMap()
		if err == nil && in["flags"] == "slave" && in["master-link-status"] == "ok" {
			return true
		}
	}
	return false
}

// The start-up check: what each finding needs, and what the modes make of it.
func TestCheck(t *testing.T) {
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "everysec")
	subjects := func(o Options) (list []string, dangers int) {
		t.Helper()
		o.Check = CheckOff
		b, err := Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		found, err := b.Check(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			list = append(list, f.Subject)
			if f.Danger {
				dangers++
			}
		}
		return list, dangers
	}
	open := func(o Options, mode CheckMode) error {
		o.Check = mode
		b, err := Open(t.Context(), o)
		if err == nil {
			b.Close()
		}
		return err
	}
	opts := serverOptions(s)
	if list, _ := subjects(opts); len(list) > 0 {
		t.Fatalf("a good server has findings: %q", list)
	}
	if err := open(opts, CheckStrict); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		subject string
		danger  bool
		begin   []string
		end     []string
	}{
		{"eviction", false, []string{"CONFIG", "SET", "maxmemory-policy", "allkeys-lru"}, []string{"CONFIG", "SET", "maxmemory-policy", "noeviction"}},
		{"eviction", true, []string{"CONFIG", "SET", "maxmemory-policy", "allkeys-lfu", "maxmemory", "1gb"}, []string{"CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "0"}},
		{"eviction", false, []string{"CONFIG", "SET", "maxmemory-policy", "volatile-ttl", "maxmemory", "1gb"}, []string{"CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "0"}},
		{"persistence", false, []string{"CONFIG", "SET", "appendfsync", "no"}, []string{"CONFIG", "SET", "appendfsync", "everysec"}},
		{"persistence", false, []string{"CONFIG", "SET", "appendonly", "no"}, []string{"CONFIG", "SET", "appendonly", "yes"}},
		{"role", true, []string{"REPLICAOF", "127.0.0.1", redistest.FreePort(t)}, []string{"REPLICAOF", "NO", "ONE"}},
		{"rights", false, []string{"ACL", "SETUSER", "default", "-config"}, []string{"ACL", "SETUSER", "default", "+config"}},
		{"rights", false, []string{"ACL", "SETUSER", "default", "-info"}, []string{"ACL", "SETUSER", "default", "+info"}},
	} {
		s.Must(c.begin...)
		list, dangers := subjects(opts)
		if !slices.Equal(list, []string{c.subject}) || (dangers > 0) != c.danger {
			t.Errorf("%q: findings %q, %d of them dangerous", c.begin, list, dangers)
		}
		if err := open(opts, CheckStrict); !errors.Is(err, ErrUnsuitable) || !strings.Contains(err.Error(), c.subject) {
			t.Errorf("%q: strict: %v", c.begin, err)
		}
		if err := open(opts, CheckRefuse); errors.Is(err, ErrUnsuitable) != c.danger || err != nil && !c.danger {
			t.Errorf("%q: refuse: %v", c.begin, err)
		}
		if err := open(opts, CheckWarn); err != nil {
			t.Errorf("%q: warn: %v", c.begin, err)
		}
		s.Must(c.end...)
		redistest.Eventually(t, "the end of a rewrite", func() bool {
			in := s.Info("persistence")
			return in["aof_rewrite_in_progress"] == "0" && in["aof_rewrite_scheduled"] == "0"
		})
	}
	if list, _ := subjects(opts); len(list) > 0 {
		t.Fatalf("findings are left: %q", list)
	}
	opts.WaitReplicas = 1
	if list, _ := subjects(opts); !slices.Equal(list, []string{"replicas"}) {
		t.Errorf("findings without replicas: %q", list)
	}
	s.StartReplica()
	if list, _ := subjects(opts); len(list) > 0 {
		t.Errorf("findings with a replica: %q", list)
	}
}

// The table of commands agrees with what the server says of its commands.
func TestCommandsAgainstServer(t *testing.T) {
	s := redistest.Start(t)
	commands.CheckServer(t, s)
}

// The recipe of the documentation finds a value.
func TestRecipe(t *testing.T) {
	s := redistest.Start(t)
	b := mustOpen(t, serverOptions(s))
	id := state.ID{Application: "ratings", Task: "0_3"}
	v, err := b.Claim(t.Context(), id, "", "t1")
	if err != nil {
		t.Fatal(err)
	}
	var batch state.Batch
	for i := range 50 {
		batch.Put(Key("counts", fmt.Append(nil, i)), []byte("other"))
	}
	batch.Put(Key("counts", []byte("alice")), []byte("her value"))
	if err := v.Apply(t.Context(), "t1", "t2", &batch); err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/formats/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	_, recipe, found := strings.Cut(string(doc), "```sh\n")
	recipe, _, end := strings.Cut(recipe, "```")
	if !found || !end {
		t.Fatal("docs/formats/redis.md has no recipe")
	}
	script := "set -eu\nredis-cli() { command redis-cli -p " + s.Port + " \"$@\"; }\n" + recipe
	out, err := exec.Command("bash", "-c", script).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "her value" {
		t.Errorf("the recipe prints %q, error %v", out, err)
	}
}
