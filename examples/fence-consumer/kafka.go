package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const accounts = 5

// pay creates the topics, and makes n payments and one that is none. It returns
// where the balances end before that.
func pay(ctx context.Context, kafka []kgo.Opt, n int) (kadm.ListedOffsets, error) {
	cl, err := kgo.NewClient(kafka...)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	created, err := adm.CreateTopics(ctx, 4, -1, nil, payments, balances, letters)
	if err != nil {
		return nil, err
	}
	for _, t := range created {
		if t.Err != nil && !errors.Is(t.Err, kerr.TopicAlreadyExists) {
			return nil, fmt.Errorf("create topic %s: %w", t.Topic, t.Err)
		}
	}
	ends, err := adm.ListEndOffsets(ctx, balances)
	if err = errors.Join(err, ends.Error()); err != nil {
		return nil, err
	}
	records := []*kgo.Record{{Topic: payments, Key: []byte("account-0"), Value: []byte("five cents")}}
	for i := range n {
		records = append(records, &kgo.Record{Topic: payments, Key: fmt.Appendf(nil, "account-%d", i%accounts), Value: strconv.AppendInt(nil, int64(i), 10)})
	}
	return ends, cl.ProduceSync(ctx, records...).FirstErr()
}

// follow reads n balances and returns the last one of each account.
func follow(ctx context.Context, kafka []kgo.Opt, from kadm.ListedOffsets, n int) (map[string]string, error) {
	cl, err := kgo.NewClient(append(kafka[:len(kafka):len(kafka)], kgo.ConsumePartitions(from.KOffsets()))...)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	last := map[string]string{}
	for read := 0; read < n; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return last, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			last[string(r.Key)] = string(r.Value)
			read++
		})
	}
	return last, nil
}
