package main

import (
	"context"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/embedded"
)

// The checkers have to see each way in which a program can be wrong, or the
// figures of a broken program would be believed.
func TestCheckersSeeWhatIsWrong(t *testing.T) {
	t.Parallel()
	b, err := embedded.Open(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := openCluster(b.Brokers(), b.ClientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)

	type rec struct {
		key   string
		count int64
	}
	for _, tt := range []struct {
		name              string
		recs              []rec
		output, changelog string // parts of the errors; empty: right
	}{
		{"right", []rec{{"a", 1}, {"b", 1}, {"a", 2}}, "", ""},
		{"lost", []rec{{"a", 1}, {"a", 2}}, "2 outputs for 3 inputs", "key b: the last count is 0, want 1"},
		{"lost in the middle", []rec{{"a", 2}, {"b", 1}}, "key a goes from 0 to 2", ""},
		{"written twice", []rec{{"a", 1}, {"a", 1}, {"b", 1}, {"a", 2}}, "key a goes from 1 to 1", ""},
		{"counted twice", []rec{{"a", 1}, {"b", 1}, {"a", 2}, {"a", 3}}, "4 outputs for 3 inputs", "key a: the last count is 3, want 2"},
		{"out of order", []rec{{"a", 2}, {"a", 1}, {"b", 1}}, "key a goes from 0 to 2", "key a: the last count is 1, want 2"},
		{"another key", []rec{{"a", 1}, {"b", 1}, {"c", 1}}, "key a: the last count is 1, want 2", "key c: the last count is 1, want 0"},
		{"nothing", nil, "0 outputs for 3 inputs", "2 keys are wrong"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			topic := strings.ReplaceAll(tt.name, " ", "-")
			if err := c.createTopic(t.Context(), topic, 2, nil); err != nil {
				t.Fatal(err)
			}
			for _, r := range tt.recs {
				value := binary.BigEndian.AppendUint64(nil, uint64(r.count))
				if err := c.client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Key: []byte(r.key), Value: value}).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
			in := &input{records: 3, counts: map[string]int64{"a": 2, "b": 1}}
			expect(t, "output", c.verifyOutput(t.Context(), topic, in), tt.output)
			n, err := c.verifyChangelog(t.Context(), topic, in)
			expect(t, "changelog", err, tt.changelog)
			if n != int64(len(tt.recs)) {
				t.Errorf("the changelog has %d records, want %d", n, len(tt.recs))
			}
		})
	}
}

func expect(t *testing.T, what string, err error, part string) {
	t.Helper()
	switch {
	case part == "" && err != nil:
		t.Errorf("%s: %v", what, err)
	case part != "" && (err == nil || !strings.Contains(err.Error(), part)):
		t.Errorf("%s: error %v, want one with %q", what, err, part)
	}
}

func TestReadSkipsWhatWasAborted(t *testing.T) {
	t.Parallel()
	b, err := embedded.Open(embedded.Options{Topics: []embedded.Topic{{Name: "out", Partitions: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := openCluster(b.Brokers(), b.ClientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	client, err := kgo.NewClient(append(c.opts, kgo.TransactionalID("writer"), kgo.DefaultProduceTopic("out"))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	for _, tx := range []struct {
		value string
		end   kgo.TransactionEndTry
	}{{"kept", kgo.TryCommit}, {"aborted", kgo.TryAbort}} {
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := client.ProduceSync(t.Context(), &kgo.Record{Value: []byte(tx.value)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := client.EndTransaction(t.Context(), tx.end); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	if err := c.read(context.Background(), "out", func(r *kgo.Record) error {
		got = append(got, string(r.Value))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0] != "kept" {
		t.Errorf("read %q, want what was committed", got)
	}
}
