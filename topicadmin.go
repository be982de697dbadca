package weir

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirstreams/weir/internal/topology"
)

// topicAdmin checks the topics of an application and makes the internal ones.
// It never changes a topic that exists.
type topicAdmin struct {
	adm    *kadm.Client
	config *Config
	log    *slog.Logger
}

// adminRetry is the pause between two tries to reach the cluster.
const adminRetry = 250 * time.Millisecond

func newTopicAdmin(c *Config) (*topicAdmin, func(), error) {
	opts := append([]kgo.Opt{kgo.ClientID("weir"), kgo.SeedBrokers(c.Brokers...), kgo.MetadataMinAge(adminRetry)}, c.ClientOptions...)
	if len(c.Brokers) == 0 {
		opts = append([]kgo.Opt{kgo.ClientID("weir"), kgo.MetadataMinAge(adminRetry)}, c.ClientOptions...)
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: ClientOptions: %w", ErrConfig, err)
	}
	return &topicAdmin{kadm.NewClient(cl), c, c.Logger}, cl.Close, nil
}

// retry calls f until it succeeds, fails for good, or ctx ends.
func retry(ctx context.Context, log *slog.Logger, what string, f func() error) error {
	for n := 0; ; n++ {
		err := f()
		var ke *kerr.Error
		if err == nil || errors.Is(err, ErrTopics) || errors.As(err, &ke) && !ke.Retriable {
			return err
		}
		if n == 0 {
			log.Warn(what+" failed; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: no success in time: %w", what, err)
		case <-time.After(adminRetry):
		}
	}
}

// prepare makes sure that all topics are there and as they have to be, and
// returns the partition counts that follow from them.
func (a *topicAdmin) prepare(ctx context.Context, t *topology.Topology) (*topology.Resolved, error) {
	ctx, cancel := context.WithTimeout(ctx, a.config.StartTimeout)
	defer cancel()
	read, written := t.UserTopics()
	if a.config.DeadLetterTopic != "" {
		written = append(written, a.config.DeadLetterTopic)
	}
	all := slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(read), written...))))
	counts := map[string]int32{}
	err := retry(ctx, a.log, "look up topics on "+strings.Join(a.config.Brokers, ","), func() error {
		clear(counts)
		details, err := a.adm.ListTopics(ctx, all...)
		if err != nil {
			return err
		}
		var missing []string
		for _, name := range all {
			d, ok := details[name]
			switch {
			case !ok || errors.Is(d.Err, kerr.UnknownTopicOrPartition):
				missing = append(missing, strconv.Quote(name))
			case d.Err != nil:
				return fmt.Errorf("topic %s: %w", name, d.Err)
			default:
				counts[name] = int32(len(d.Partitions))
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("%w: these do not exist: %s: create them, or correct their names", ErrTopics, strings.Join(missing, ", "))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	res, err := t.ResolvePartitions(a.config.ApplicationID, counts)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTopics, err)
	}
	if a.config.usesOutbox() {
		res.Changelogs = nil
		if err := checkOutbox(t, res, a.config.ApplicationID); err != nil {
			return nil, err
		}
	}
	err = retry(ctx, a.log, "prepare internal topics", func() error { return a.internal(ctx, res) })
	return res, err
}

// internal makes the internal topics that are missing and checks the others.
func (a *topicAdmin) internal(ctx context.Context, res *topology.Resolved) error {
	topics := append(slices.Clone(res.Repartitions), res.Changelogs...)
	if len(topics) == 0 {
		return nil
	}
	var names []string
	for _, t := range topics {
		names = append(names, t.Name)
	}
	details, err := a.adm.ListTopics(ctx, names...)
	if err != nil {
		return err
	}
	made := false
	for _, t := range topics {
		d, ok := details[t.Name]
		if ok && d.Err == nil {
			continue
		}
		configs := map[string]*string{}
		merged := maps.Clone(a.config.TopicConfigs)
		if merged == nil {
			merged = map[string]string{}
		}
		maps.Copy(merged, t.Config)
		for k, v := range merged {
			configs[k] = &v
		}
		r, err := a.adm.CreateTopic(ctx, t.Partitions, a.config.ReplicationFactor, configs, t.Name)
		if err == nil {
			err = r.Err
		}
		switch {
		case err == nil:
			a.log.Info("internal topic created", "topic", t.Name, "partitions", t.Partitions)
		case errors.Is(err, kerr.TopicAlreadyExists): // another instance was faster
		default:
			return fmt.Errorf("create internal topic %s: %w%s", t.Name, err, brokerText(r.ErrMessage))
		}
		made = true
	}
	if made {
		// The client remembers for a while that the topics were missing. It is
		// asked for something that it never remembers.
		if details, err = a.adm.ListTopics(kadm.WithAuthorizedOps(ctx), names...); err != nil {
			return err
		}
	}
	configs, err := a.adm.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return err
	}
	var errs []error
	for _, t := range topics {
		d := details[t.Name]
		if d.Err != nil {
			return fmt.Errorf("internal topic %s: %w", t.Name, d.Err)
		}
		if n := int32(len(d.Partitions)); n != t.Partitions {
			errs = append(errs, fmt.Errorf("internal topic %s has %d partitions and needs %d: its inputs have another count than when it was made; migrate the state, or reset the application",
				t.Name, n, t.Partitions))
		}
		c, err := configs.On(t.Name, nil)
		if err != nil {
			return fmt.Errorf("settings of internal topic %s: %w", t.Name, err)
		}
		errs = append(errs, checkPolicy(t, c))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: %w", ErrTopics, err)
	}
	return nil
}

func brokerText(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

// checkPolicy refuses a topic that would lose what it is for.
func checkPolicy(t topology.InternalTopic, rc kadm.ResourceConfig) error {
	value := func(key string) string {
		for _, c := range rc.Configs {
			if c.Key == key && c.Value != nil {
				return *c.Value
			}
		}
		return ""
	}
	policy := value("cleanup.policy")
	if want := t.Config["cleanup.policy"]; policy != "" && !samePolicy(policy, want) {
		return fmt.Errorf("internal topic %s has cleanup.policy=%s and needs %s: with it records would be lost; set it back with kafka-configs", t.Name, policy, want)
	}
	if ts := value("message.timestamp.type"); ts == "LogAppendTime" {
		return fmt.Errorf("internal topic %s has message.timestamp.type=LogAppendTime and needs CreateTime: timestamps would be lost; set it back with kafka-configs", t.Name)
	}
	return nil
}

func samePolicy(a, b string) bool {
	split := func(s string) []string {
		list := strings.Split(s, ",")
		for i := range list {
			list[i] = strings.TrimSpace(list[i])
		}
		slices.Sort(list)
		return list
	}
	return slices.Equal(split(a), split(b))
}

// tombstoneLife is how long the changelogs keep tombstones, the shortest of
// all; 0 when there is none.
func (a *topicAdmin) tombstoneLife(ctx context.Context, res *topology.Resolved) (time.Duration, error) {
	var names []string
	for _, t := range res.Changelogs {
		names = append(names, t.Name)
	}
	if len(names) == 0 {
		return 0, nil
	}
	life := 24 * time.Hour // Kafka's default
	err := retry(ctx, a.log, "read topic settings", func() error {
		configs, err := a.adm.DescribeTopicConfigs(ctx, names...)
		if err != nil {
			return err
		}
		for _, rc := range configs {
			for _, c := range rc.Configs {
				if c.Key == "delete.retention.ms" && c.Value != nil {
					if ms, err := strconv.ParseInt(*c.Value, 10, 64); err == nil {
						life = min(life, time.Duration(ms)*time.Millisecond)
					}
				}
			}
		}
		return nil
	})
	return life, err
}
