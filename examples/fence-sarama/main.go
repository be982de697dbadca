// The program counts words with sarama as its Kafka client: package fence itself
// knows none. It shows what a loop of one's own has to do, and in which order:
//
//	claim when the group assigns a partition, and read from Claim.Start;
//	apply a batch, send its outputs, wait for them, commit, and tell the next
//	batch what is committed; after any error leave the partition to the group.
//
// The topics exist.
//
//	go run . -brokers localhost:9092 -redis redis://localhost:6379/0
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/weirstreams/weir/fence"
)

func main() {
	brokers := flag.String("brokers", "localhost:9092", "Kafka at host:port[,...]")
	redis := flag.String("redis", "redis://localhost:6379/0", "URL of Redis")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, strings.Split(*brokers, ","), *redis, "words", "word-counts"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const group = "fence-sarama"

func run(ctx context.Context, brokers []string, redis, in, out string) error {
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V2_6_0_0
	cfg.Consumer.Offsets.AutoCommit.Enable = false // never before the outputs are sent
	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
	cfg.Producer.Return.Successes = true
	cfg.Producer.RequiredAcks = sarama.WaitForAll
	cfg.Producer.Idempotent = true
	cfg.Net.MaxOpenRequests = 1
	client, err := sarama.NewClient(brokers, cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return err
	}
	producer, err := sarama.NewSyncProducerFromClient(client)
	if err != nil {
		return err
	}
	defer producer.Close()
	members, err := sarama.NewConsumerGroupFromClient(group, client)
	if err != nil {
		return err
	}
	defer members.Close()
	partitions, err := client.Partitions(in)
	if err != nil {
		return err
	}
	f, err := fence.Open(ctx, fence.Options{URL: redis, Name: group, Topic: in, Partitions: len(partitions)})
	if err != nil {
		return err
	}
	defer f.Close()
	c := &counter{f: f, client: client, admin: admin, producer: producer, out: out}
	// Each turn is one assignment: whoever is fenced comes back here and asks the
	// group again.
	for ctx.Err() == nil {
		if err := members.Consume(ctx, []string{in}, c); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

type counter struct {
	f        *fence.Fence
	client   sarama.Client
	admin    sarama.ClusterAdmin
	producer sarama.SyncProducer
	out      string
	claims   map[int32]*fence.Claim
}

// Setup claims what the group has assigned.
func (c *counter) Setup(s sarama.ConsumerGroupSession) error {
	c.claims = map[int32]*fence.Claim{}
	for _, p := range s.Claims()[c.f.Topic()] {
		committed, err := c.committed(p)
		if err != nil {
			return err
		}
		begin, err := c.client.GetOffset(c.f.Topic(), p, sarama.OffsetOldest)
		if err != nil {
			return err
		}
		claim, err := c.f.Claim(s.Context(), fence.Assignment{Partition: p, Committed: committed, Begin: begin})
		if err != nil {
			return err
		}
		c.claims[p] = claim
		s.ResetOffset(c.f.Topic(), p, claim.Start(), "")
		s.MarkOffset(c.f.Topic(), p, claim.Start(), "")
	}
	return nil
}

// Cleanup gives the claims up.
func (c *counter) Cleanup(sarama.ConsumerGroupSession) error {
	for _, claim := range c.claims {
		claim.Release()
	}
	return nil
}

// committed asks the group: sarama does not say whether a commit succeeded.
func (c *counter) committed(p int32) (int64, error) {
	r, err := c.admin.ListConsumerGroupOffsets(group, map[string][]int32{c.f.Topic(): {p}})
	if err != nil {
		return 0, err
	}
	b := r.GetBlock(c.f.Topic(), p)
	if b == nil {
		return -1, nil
	}
	if b.Err != sarama.ErrNoError {
		return 0, b.Err
	}
	return b.Offset, nil
}

// batch is how many records are applied together, and linger how long to wait
// for them.
const (
	batch  = 500
	linger = 50 * time.Millisecond
)

// ConsumeClaim is the loop of one partition.
func (c *counter) ConsumeClaim(s sarama.ConsumerGroupSession, messages sarama.ConsumerGroupClaim) error {
	p := messages.Partition()
	claim := c.claims[p]
	if first := messages.InitialOffset(); first > claim.Start() {
		return fmt.Errorf("partition %d begins at %d and not at %d", p, first, claim.Start())
	}
	committed := int64(-1)
	for s.Context().Err() == nil {
		b := fence.Batch{Committed: committed}
		for timer := time.After(linger); len(b.Records) < batch; {
			select {
			case m, ok := <-messages.Messages():
				if !ok {
					return nil
				}
				b.Records = append(b.Records, fence.Record{Offset: m.Offset, Key: m.Key, Op: fence.Add(1)})
				continue
			case <-s.Context().Done():
				return nil
			case <-timer:
			}
			break
		}
		if len(b.Records) == 0 {
			continue
		}
		results, err := claim.Apply(s.Context(), b)
		for errors.Is(err, fence.ErrUnavailable) && s.Context().Err() == nil {
			time.Sleep(linger)
			results, err = claim.Apply(s.Context(), b)
		}
		if err != nil {
			return err // the group assigns the partition anew
		}
		var outputs []*sarama.ProducerMessage
		for i, r := range results {
			if r.Verdict.Emits() {
				outputs = append(outputs, &sarama.ProducerMessage{Topic: c.out, Key: sarama.ByteEncoder(b.Records[i].Key), Value: sarama.ByteEncoder(r.State)})
			}
		}
		if err := c.producer.SendMessages(outputs); err != nil {
			return err
		}
		s.MarkOffset(c.f.Topic(), p, b.Records[len(b.Records)-1].Offset+1, "")
		s.Commit()
		if committed, err = c.committed(p); err != nil {
			return err
		}
	}
	return nil
}
