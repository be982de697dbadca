package topology

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weirstreams/weir/internal/keyenc"
)

// Topic is the name of the source's topic on the broker.
func (s Source) Topic(app string) string {
	if s.Repartition {
		return keyenc.RepartitionTopic(app, s.Name)
	}
	return s.Name
}

// UserTopics returns the names of the user's topics that the topology reads and
// of those that it writes, as far as they are known before a record chooses
// one, sorted.
func (t *Topology) UserTopics() (read, written []string) {
	for _, s := range t.Subtopologies {
		for _, src := range s.Sources {
			if !src.Repartition {
				read = appendNew(read, src.Name)
			}
		}
		for _, name := range s.SinkTopics {
			written = appendNew(written, name)
		}
	}
	slices.Sort(read)
	slices.Sort(written)
	return read, written
}

// InternalTopic is a topic that belongs to the application.
type InternalTopic struct {
	Name       string // on the broker
	Partitions int32
	Config     map[string]string // settings at creation
	// Store is the store that a changelog logs; empty for a repartition topic.
	Store string
	// Subtopology keeps the store, or reads the repartition topic.
	Subtopology int32
}

// Resolved is a topology with all partition counts known.
type Resolved struct {
	// Partitions are the counts of all topics that are read, by their names on
	// the broker.
	Partitions map[string]int32
	// Tasks is the number of tasks by subtopology: the largest count of its
	// sources.
	Tasks []int32
	// Stores is, by store, over how many of the tasks its keys are spread by
	// their hash: the count of a source that feeds it. There may be more tasks,
	// if another source of the subtopology has more partitions.
	Stores       map[string]int32
	Repartitions []InternalTopic
	Changelogs   []InternalTopic
}

// Check says what is wrong with running the topology as the given application:
// names of internal topics that Kafka would refuse or that the user's topics
// have already, and stamps that get too long.
func (t *Topology) Check(app string) error {
	if err := keyenc.ValidName(app); err != nil {
		return fmt.Errorf("application id: %w", err)
	}
	var errs []error
	internal := map[string]string{}
	add := func(what, topic string) {
		if err := keyenc.ValidName(topic); err != nil {
			errs = append(errs, fmt.Errorf("%s: its topic %.32q... has %d bytes, more than the %d that Kafka allows: give it, or the application, a shorter name",
				what, topic, len(topic), keyenc.MaxNameLength))
		}
		internal[topic] = what
	}
	for _, s := range t.Subtopologies {
		for _, st := range s.Stores {
			if st.Logged {
				add(fmt.Sprintf("store %q", st.Name), keyenc.ChangelogTopic(app, st.Name))
			}
		}
		errs = append(errs, t.checkStamp(s, app))
	}
	for _, r := range t.Repartitions {
		add(fmt.Sprintf("repartition %q", r.Name), keyenc.RepartitionTopic(app, r.Name))
	}
	read, written := t.UserTopics()
	for _, name := range slices.Compact(slices.Sorted(slices.Values(append(read, written...)))) {
		if what, ok := internal[name]; ok {
			errs = append(errs, fmt.Errorf("topic %q belongs to %s of this application: read or write the stream itself, not its internal topic", name, what))
		}
	}
	return errors.Join(errs...)
}

// ResolvePartitions derives all counts from those of the user's topics.
//
// A repartition topic has the number of partitions that was given, else the
// largest of the sources of the subtopologies that write it. Inside a group of
// co-partitioned sources the user's topics must have one count already, and the
// repartition topics take it; without any of the user's, they take the largest
// count of the group. Changelogs have one partition per task. These are the
// rules of Kafka Streams.
//
// Topics of the user that are missing from userTopics are named all at once.
func (t *Topology) ResolvePartitions(app string, userTopics map[string]int32) (*Resolved, error) {
	if err := t.Check(app); err != nil {
		return nil, err
	}
	var missing []string
	read, _ := t.UserTopics()
	for _, name := range read {
		if userTopics[name] <= 0 {
			missing = append(missing, fmt.Sprintf("%q", name))
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("source topics do not exist: %s: create them, or correct their names", strings.Join(missing, ", "))
	}
	c := counts{t: t, user: userTopics, derived: map[string]int32{}}
	if err := c.fix(); err != nil {
		return nil, err
	}
	c.derive()

	res := &Resolved{Partitions: map[string]int32{}, Stores: map[string]int32{}}
	for _, s := range t.Subtopologies {
		tasks := int32(0)
		for _, src := range s.Sources {
			n := c.of(src)
			if n == 0 {
				return nil, fmt.Errorf("the partition count of repartition %q cannot be derived, since nothing with a known count feeds it: say Partitions(n)", src.Name)
			}
			res.Partitions[src.Topic(app)] = n
			tasks = max(tasks, n)
			if src.Repartition {
				res.Repartitions = append(res.Repartitions, InternalTopic{Name: src.Topic(app), Partitions: n,
					Config: keyenc.RepartitionConfig(), Subtopology: s.ID})
			}
		}
		res.Tasks = append(res.Tasks, tasks)
		for _, st := range s.Stores {
			res.Stores[st.Name] = tasks
			if i, ok := s.feeds[st.Name]; ok {
				res.Stores[st.Name] = c.of(s.Sources[i])
			}
			if st.Logged {
				res.Changelogs = append(res.Changelogs, InternalTopic{Name: keyenc.ChangelogTopic(app, st.Name), Partitions: tasks,
					Config: keyenc.ChangelogConfig(keyenc.KeyValueChangelog, 0), Store: st.Name, Subtopology: s.ID})
			}
		}
	}
	byName := func(a, b InternalTopic) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(res.Repartitions, byName)
	slices.SortFunc(res.Changelogs, byName)
	return res, nil
}

// counts finds the partition counts of repartition topics.
type counts struct {
	t       *Topology
	user    map[string]int32
	derived map[string]int32 // repartition topics that are neither given nor fixed by a group
	fixed   map[string]int32 // repartition topics whose group says the number
}

// of returns what is known of a source so far, 0 for nothing.
func (c *counts) of(s Source) int32 {
	if !s.Repartition {
		return c.user[s.Name]
	}
	if n := c.t.repartition(s).Partitions; n > 0 {
		return n
	}
	if n := c.fixed[s.Name]; n > 0 {
		return n
	}
	return c.derived[s.Name]
}

// fix checks the groups and lets the members whose count is a fact decide for
// the others.
func (c *counts) fix() error {
	c.fixed = map[string]int32{}
	var errs []error
	for _, s := range c.t.Subtopologies {
		for g, group := range s.Copartitioned {
			first := -1
			for _, i := range group {
				switch n := c.fact(s.Sources[i]); {
				case n == 0:
				case first < 0:
					first = i
				case n != c.fact(s.Sources[first]):
					errs = append(errs, c.mismatch(s, g, first, i))
				}
			}
			if first < 0 {
				continue
			}
			for _, i := range group {
				if c.fact(s.Sources[i]) == 0 {
					c.fixed[s.Sources[i].Name] = c.fact(s.Sources[first])
				}
			}
		}
	}
	return errors.Join(errs...)
}

// fact is the count of a source that cannot be chosen: that of a user's topic,
// or a given one.
func (c *counts) fact(s Source) int32 {
	if !s.Repartition {
		return c.user[s.Name]
	}
	return c.t.repartition(s).Partitions
}

func (c *counts) mismatch(s *Subtopology, group, a, b int) error {
	fix := "send one of them through Repartition, or create it anew with the other's count"
	name := func(i int) string {
		src := s.Sources[i]
		what := "topic"
		if src.Repartition {
			what = "repartition"
			fix = fmt.Sprintf("give Repartition(%q) the other's count, or leave Partitions out", src.Name)
		}
		return fmt.Sprintf("%s %q (%d partitions)", what, src.Name, c.fact(src))
	}
	return fmt.Errorf("not co-partitioned: %s and %s, but their keys meet in store %q, so equal keys must be in partitions of equal number: %s",
		name(a), name(b), s.meet[group], fix)
}

// derive raises the counts of the remaining topics to the largest of what feeds
// them and of their group, until nothing changes. They only ever grow, and never
// beyond the largest count that is known at the start.
func (c *counts) derive() {
	raise := func(s Source, n int32) bool {
		if c.of(s) >= n || c.fact(s) > 0 || c.fixed[s.Name] > 0 {
			return false
		}
		c.derived[s.Name] = n
		return true
	}
	for changed := true; changed; {
		changed = false
		for _, s := range c.t.Subtopologies {
			for _, src := range s.Sources {
				if !src.Repartition {
					continue
				}
				for _, w := range c.t.writers[src.Name] {
					for _, feed := range c.t.Subtopologies[w].Sources {
						changed = raise(src, c.of(feed)) || changed
					}
				}
			}
			for _, group := range s.Copartitioned {
				n := int32(0)
				for _, i := range group {
					n = max(n, c.of(s.Sources[i]))
				}
				for _, i := range group {
					changed = raise(s.Sources[i], n) || changed
				}
			}
		}
	}
}
