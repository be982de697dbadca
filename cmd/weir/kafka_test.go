package main

import (
	"encoding/pem"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/embedded"
)

// encrypted starts a broker whose port speaks TLS, and returns the file of client
// settings for it.
func encrypted(t *testing.T) (b *embedded.Broker, config string) {
	t.Helper()
	s := httptest.NewTLSServer(nil) // has a certificate for 127.0.0.1
	t.Cleanup(s.Close)
	tls := s.TLS.Clone()
	tls.NextProtos = nil
	b, err := embedded.Open(embedded.Options{Listen: "127.0.0.1:0", TLS: tls})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	return b, file(t, "client.properties", "bootstrap.servers="+b.Brokers()[0]+"\nsecurity.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location="+
		file(t, "ca.pem", string(ca))+"\nacks=all\n")
}

func TestCommandConfig(t *testing.T) {
	t.Parallel()
	b, config := encrypted(t)
	weir(t, strings.NewReader(udata), "demo", "--command-config", config, "--input", "-", "--exit", "--json").want(t, exitOK, averages,
		config+": not used: acks\n", "created on Kafka at "+b.Brokers()[0])

	cl, err := kgo.NewClient(b.ClientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, err := kadm.NewClient(cl).CreateTopic(t.Context(), 3, 1, nil, "orders"); err != nil {
		t.Fatal(err)
	}
	redis := "redis://" + miniredis.RunT(t).Addr() + "?timeout=30s"
	// Rewind goes to the topic, to the group, and to the states.
	weir(t, nil, "fence", "rewind", "--redis", redis, "--name", "billing", "--topic", "orders", "--command-config", config,
		"--group", "billing", "--partition", "1", "--offset", "0").want(t, exitOK, "partition 1 starts over at offset 0\n", "")
	committed, err := kadm.NewClient(cl).FetchOffsets(t.Context(), "billing")
	if err != nil {
		t.Fatal(err)
	}
	if o, ok := committed.Lookup("orders", 1); !ok || o.At != 0 {
		t.Errorf("the group is at %v, want offset 0", o)
	}
}

func TestCommandConfigIsWrong(t *testing.T) {
	t.Parallel()
	bad := file(t, "bad.properties", "security.protocol=TLS\n")
	lonely := file(t, "lonely.properties", "security.protocol=PLAINTEXT\n")
	missing := filepath.Join(t.TempDir(), "missing.properties")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"demo", "--command-config", ""}, "--command-config is empty"},
		{[]string{"demo", "--command-config", bad}, `security.protocol is "TLS"`},
		{[]string{"demo", "--command-config", missing}, missing},
		{[]string{"demo", "--command-config", lonely}, "--command-config names no bootstrap.servers"},
		{[]string{"fence", "reconcile", "--redis", "redis://127.0.0.1:1", "--topic", "t", "--command-config", lonely}, "--brokers is empty"},
		{[]string{"fence", "reconcile", "--redis", "redis://127.0.0.1:1", "--topic", "t", "--command-config", bad}, `security.protocol is "TLS"`},
	} {
		weir(t, nil, c.args...).want(t, exitUsage, "", c.want)
	}
}
