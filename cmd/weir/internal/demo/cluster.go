package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/embedded"
)

const (
	// defaultPartitions of the topics ratings and rating-averages.
	defaultPartitions = 4

	// connectTimeout bounds the first contact with a cluster.
	connectTimeout = 15 * time.Second

	// cleanupInterval is between compactions of the embedded broker, which keep
	// an endless demo from growing.
	cleanupInterval = 10 * time.Second

	// deadLetterBytes bounds the dead letters that a broker in memory keeps.
	deadLetterBytes = 64 << 20
)

// cluster is the Kafka that the demo runs on.
type cluster struct {
	broker  *embedded.Broker // nil when it is a real one
	keeps   bool             // whether the data is there after the run
	options []kgo.Opt        // to reach it
	name    string           // for people

	partitions int32 // of ratings, known after prepare
}

// openCluster starts the embedded broker, with its data in dir unless that is
// empty, or takes the brokers given.
func openCluster(brokers []string, opts []kgo.Opt, dir string, log *slog.Logger) (*cluster, error) {
	if len(brokers) > 0 {
		return &cluster{keeps: true, options: opts, name: "Kafka at " + strings.Join(brokers, ",")}, nil
	}
	c := &cluster{keeps: dir != "", name: "embedded broker in memory"}
	o := embedded.Options{CleanupInterval: cleanupInterval, Logger: log}
	if dir != "" {
		o.Dir = filepath.Join(dir, "broker")
		c.name = "embedded broker in " + o.Dir
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("the folder of --dir cannot be used: %w", err)
		}
	}
	var err error
	if c.broker, err = embedded.Open(o); err != nil {
		return nil, err
	}
	c.options = c.broker.ClientOptions()
	return c, nil
}

// incarnation is for transactional ids; a real Kafka needs none.
func (c *cluster) incarnation() string {
	if c.broker == nil || !c.keeps {
		return ""
	}
	return c.broker.Incarnation()
}

func (c *cluster) client(opts ...kgo.Opt) (*kgo.Client, error) {
	cl, err := kgo.NewClient(append(append([]kgo.Opt{kgo.ClientID(applicationID), kgo.MetadataMinAge(250 * time.Millisecond)}, c.options...), opts...)...)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", c.name, err)
	}
	return cl, nil
}

func (c *cluster) close() error {
	if c.broker == nil {
		return nil
	}
	return c.broker.Close()
}

// topic is a topic that the demo needs.
type topic struct {
	name       string
	partitions int32
	configs    map[string]string
}

func (c *cluster) topics(partitions int32) []topic {
	// Data sets are older than any usual retention, which goes by the timestamps
	// of the records, so nothing is deleted by age.
	forever := map[string]string{"retention.ms": "-1"}
	letters := map[string]string{"retention.ms": "-1"}
	if !c.keeps {
		letters["retention.bytes"] = fmt.Sprint(deadLetterBytes)
	}
	return []topic{
		{ratingsTopic, partitions, forever},
		{averagesTopic, partitions, map[string]string{"cleanup.policy": "compact"}},
		{deadLetterTopic, 1, letters},
	}
}

// prepare creates the topics that are missing, and returns what it has created.
// With 0 partitions, ratings gets the default if it is missing and stays as it is
// if it exists; any other number has to be what it has.
func (c *cluster) prepare(ctx context.Context, partitions int32) (created []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	// An unreachable broker shows after a try or two of its own accord.
	cl, err := c.client(kgo.RequestRetries(2), kgo.RetryTimeout(connectTimeout/2))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	want := c.topics(partitions)
	if partitions == 0 {
		want = c.topics(defaultPartitions)
	}
	have, err := c.look(ctx, adm)
	if err != nil {
		return nil, fmt.Errorf("cannot reach %s: %w: check that it runs and that --brokers names it", c.name, err)
	}
	c.partitions = want[0].partitions
	for _, t := range want {
		d, ok := have[t.name]
		switch {
		case ok && d.Err == nil:
			if t.name != ratingsTopic {
				continue
			}
			if c.partitions = int32(len(d.Partitions)); partitions != 0 && partitions != c.partitions {
				return created, fmt.Errorf("topic %s has %d partitions, not %d: leave --partitions out, or begin with an empty cluster or folder", t.name, c.partitions, partitions)
			}
			continue
		case ok && !errors.Is(d.Err, kerr.UnknownTopicOrPartition):
			return created, fmt.Errorf("topic %s: %w", t.name, d.Err)
		}
		configs := map[string]*string{}
		for k, v := range t.configs {
			configs[k] = &v
		}
		r, err := adm.CreateTopic(ctx, t.partitions, -1, configs, t.name)
		if err == nil {
			err = r.Err
		}
		switch {
		case err == nil:
			created = append(created, fmt.Sprintf("%s (%s)", t.name, counted(int64(t.partitions), "partition")))
		case errors.Is(err, kerr.TopicAlreadyExists): // another demo was faster
		default:
			return created, fmt.Errorf("create topic %s: %w", t.name, err)
		}
	}
	// A cluster shows a topic a little after it has created it.
	for len(created) > 0 {
		have, err := c.look(ctx, adm)
		if err != nil {
			return created, fmt.Errorf("look for the topics that were created: %w", err)
		}
		if have.Error() == nil {
			break
		}
		if err := sleep(ctx, topicPoll); err != nil {
			return created, fmt.Errorf("the topics that were created do not show: %w", have.Error())
		}
	}
	return created, nil
}

// topicPoll is the pause between two looks for topics that were created.
const topicPoll = 20 * time.Millisecond

// look describes the topics of the demo as they are now: the client keeps what
// it knows of topics for a while, but not what it is asked for here.
func (c *cluster) look(ctx context.Context, adm *kadm.Client) (kadm.TopicDetails, error) {
	return adm.ListTopics(kadm.WithAuthorizedOps(ctx), ratingsTopic, averagesTopic, deadLetterTopic)
}

// trim deletes the ratings that are processed from a broker in memory that ends
// with the run. Nobody else reads them, and a demo may run for days.
func (c *cluster) trim(ctx context.Context, position map[int32]int64) error {
	if c.keeps {
		return nil
	}
	for p, next := range position {
		if next <= 0 {
			continue
		}
		if err := c.broker.DeleteRecords(ctx, ratingsTopic, p, next); err != nil {
			return err
		}
	}
	return nil
}
