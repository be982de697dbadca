package fence

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// However options are printed, the password in the URL is not shown.
func TestOptionsHideURL(t *testing.T) {
	t.Parallel()
	o := Options{URL: "redis://user:hunter2@host", Topic: "t"}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("options", "fence", o, "pointer", &o)
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{fmt.Sprintf("%v %+v %#v", o, &o, o), fmt.Sprintf("%+v %#v", ConsumerConfig{Fence: o}, ConsumerConfig{Fence: o}), log.String(), string(text)} {
		if strings.Contains(s, "hunter2") {
			t.Errorf("a secret in %s", s)
		}
	}
	for _, url := range []string{"redis://user:hun?ter2@host:6379/0", "redis://user:hun/ter2@host:6379/0", "redis://user:hun%zzter2@host"} {
		_, err := Open(t.Context(), Options{URL: url, Topic: "t", Partitions: 1})
		if err == nil || strings.Contains(err.Error(), "ter2") {
			t.Errorf("error %v", err)
		}
	}
}

// An output that only one broker has could be lost behind the commit, whatever
// the options of the client say.
func TestConsumerWaitsForAllReplicas(t *testing.T) {
	t.Parallel()
	cfg := ConsumerConfig{Group: "g", Topics: []string{"t"}, MaxBatchBytes: DefaultMaxBatchBytes, Logger: slog.New(slog.DiscardHandler),
		Kafka: []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1"), kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.NoAck())}}
	m, err := newMember(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer m.cl.Close()
	if got := m.cl.OptValue(kgo.RequiredAcks); got != kgo.AllISRAcks() {
		t.Errorf("acks %v", got)
	}
}
