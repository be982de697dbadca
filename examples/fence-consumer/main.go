// The program keeps the balances of accounts: it reads payments, keeps the sum of
// each account in Redis, and sends every new balance. Each payment changes its
// balance once, and no balance is lost, whenever the program or Redis dies.
//
//	go run ./examples/fence-consumer
//	go run ./examples/fence-consumer -brokers localhost:9092 -redis redis://localhost:6379/0
//
// Without flags Kafka and Redis are in this process. The topics are created.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/embedded"
	"github.com/weirstreams/weir/fence"
)

const payments, balances, letters = "payments", "balances", "payments-dead-letters"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("fence-consumer", flag.ContinueOnError)
	brokers := flags.String("brokers", "", "Kafka at host:port[,...]; embedded without")
	redis := flags.String("redis", "", "URL of Redis; embedded without")
	n := flags.Int("payments", 1000, "how many payments to make")
	verbose := flags.Bool("v", false, "show the log")
	if err := flags.Parse(args); err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	if *verbose {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	kafka := []kgo.Opt{kgo.SeedBrokers(strings.Split(*brokers, ",")...)}
	if *brokers == "" {
		broker, err := embedded.Open(embedded.Options{})
		if err != nil {
			return err
		}
		defer broker.Close()
		kafka = broker.ClientOptions()
	}
	if *redis == "" {
		server, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer server.Close()
		*redis = "redis://" + server.Addr() + "/0?check=off&timeout=30s"
	}
	from, err := pay(ctx, kafka, *n)
	if err != nil {
		return err
	}

	consumer, err := fence.NewConsumer(fence.ConsumerConfig{
		Kafka:  kafka,
		Group:  "fence-consumer",
		Topics: []string{payments},
		Fence:  fence.Options{URL: *redis},
		// What a payment does to the state of its account. It happens in Redis,
		// together with the comparison of the offsets.
		Handle: func(m *fence.Message) (fence.Op, error) {
			cents, err := strconv.ParseInt(string(m.Value), 10, 64)
			return fence.Sum(cents), err
		},
		// What is sent, made of the payment and the state behind it, and of
		// nothing else: a payment that is read again makes the same record.
		Output: func(m *fence.Message, after fence.After) ([]fence.Output, error) {
			sum, count, err := fence.DecodeSum(after.State)
			return []fence.Output{{Topic: balances, Key: m.Key, Value: fmt.Appendf(nil, "%d cents in %d payments", sum, count)}}, err
		},
		DeadLetterTopic: letters,
		Logger:          log,
	})
	if err != nil {
		return err
	}
	ctx, done := context.WithCancel(ctx)
	defer done()
	ended := make(chan error, 1)
	go func() { ended <- consumer.Run(ctx) }()
	last, err := follow(ctx, kafka, from, *n)
	done()
	if runErr := <-ended; runErr != nil {
		return runErr
	}
	for _, account := range slices.Sorted(maps.Keys(last)) {
		fmt.Fprintf(stdout, "%s: %s\n", account, last[account])
	}
	return err
}
