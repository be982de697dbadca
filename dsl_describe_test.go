package weir

import (
	"testing"

	"github.com/weirstreams/weir/serde"
)

func TestTopologyString(t *testing.T) {
	t.Parallel()
	b := NewBuilder()
	kv := NewKeyValueStore("kv", serde.String, serde.String)
	upper := func(k, _ string) string { return k }
	s := b.Stream(in)
	sp := s.Filter(func(_, _ string) bool { return true }).Split("size")
	big := sp.Branch("big", func(_, v string) bool { return len(v) > 9 })
	sp.Default("rest").Peek(func(_, _ string) {}).ToEach(func(_, _ string) Topic[string, string] { return out })
	counts := big.GroupBy("by-name", serde.String, upper).Count("names")
	counts.Filter(func(_ string, n int64) bool { return n > 1 }).MapValues(func(_ string, n int64) int64 { return -n }).
		GroupBy("by-count", serde.Int64, serde.String, func(k string, n int64) (int64, string) { return n, k }).Count("counts")
	counts.ToStream().Map(func(k string, n int64) (int64, string) { return n, k }).
		MapValues(func(_ int64, v string) string { return v }).
		TryMapValues(func(_ int64, v string) (string, error) { return v, nil }).
		FlatMap(func(_ int64, v string, emit func(string, string)) { emit(v, v) }).
		SelectKey(upper).Merge(b.Stream(NewTopic("in2", serde.String, serde.String)), s).Serdes(serde.String, serde.String).
		Process("dedup", newEcho, kv).ToTable("unique").ToStream().To(out)
	b.Table("users", NewTopic("users", serde.String, serde.String))
	top, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	if got := top.String(); got != wantTopology {
		t.Errorf("got:\n%s", got)
	}
}

const wantTopology = `Topologies:
   Sub-topology: 0
    Source: by-name-repartition-source (topics: [by-name-repartition])
      --> names
    Processor: names (stores: [names])
      --> TABLE-TOSTREAM-0000000007, TABLE-FILTER-0000000005
      <-- by-name-repartition-source
    Source: STREAM-SOURCE-0000000000 (topics: [in])
      --> STREAM-FILTER-0000000001, STREAM-MERGE-0000000014
    Processor: TABLE-TOSTREAM-0000000007 (stores: [])
      --> STREAM-MAP-0000000008
      <-- names
    Processor: STREAM-FILTER-0000000001 (stores: [])
      --> size
      <-- STREAM-SOURCE-0000000000
    Processor: STREAM-MAP-0000000008 (stores: [])
      --> STREAM-MAPVALUES-0000000009
      <-- TABLE-TOSTREAM-0000000007
    Processor: STREAM-MAPVALUES-0000000009 (stores: [])
      --> STREAM-TRYMAPVALUES-0000000010
      <-- STREAM-MAP-0000000008
    Processor: size (stores: [])
      --> size-big, size-rest
      <-- STREAM-FILTER-0000000001
    Processor: STREAM-TRYMAPVALUES-0000000010 (stores: [])
      --> STREAM-FLATMAP-0000000011
      <-- STREAM-MAPVALUES-0000000009
    Processor: STREAM-FLATMAP-0000000011 (stores: [])
      --> STREAM-KEY-SELECT-0000000012
      <-- STREAM-TRYMAPVALUES-0000000010
    Processor: STREAM-KEY-SELECT-0000000012 (stores: [])
      --> STREAM-MERGE-0000000014
      <-- STREAM-FLATMAP-0000000011
    Source: STREAM-SOURCE-0000000013 (topics: [in2])
      --> STREAM-MERGE-0000000014
    Processor: STREAM-MERGE-0000000014 (stores: [])
      --> dedup
      <-- STREAM-SOURCE-0000000000, STREAM-KEY-SELECT-0000000012, STREAM-SOURCE-0000000013
    Processor: TABLE-FILTER-0000000005 (stores: [])
      --> TABLE-MAPVALUES-0000000006
      <-- names
    Processor: size-big (stores: [])
      --> STREAM-KEY-SELECT-0000000004
      <-- size
    Processor: size-rest (stores: [])
      --> STREAM-PEEK-0000000002
      <-- size
    Processor: STREAM-KEY-SELECT-0000000004 (stores: [])
      --> by-name-repartition-sink
      <-- size-big
    Processor: STREAM-PEEK-0000000002 (stores: [])
      --> STREAM-SINK-0000000003
      <-- size-rest
    Processor: TABLE-MAPVALUES-0000000006 (stores: [])
      --> by-count-repartition-sink
      <-- TABLE-FILTER-0000000005
    Processor: dedup (stores: [kv])
      --> unique-repartition-sink
      <-- STREAM-MERGE-0000000014
    Sink: STREAM-SINK-0000000003 (extractor class: chosen per record)
      <-- STREAM-PEEK-0000000002
    Sink: by-count-repartition-sink (topic: by-count-repartition)
      <-- TABLE-MAPVALUES-0000000006
    Sink: by-name-repartition-sink (topic: by-name-repartition)
      <-- STREAM-KEY-SELECT-0000000004
    Sink: unique-repartition-sink (topic: unique-repartition)
      <-- dedup

  Sub-topology: 1
    Source: by-count-repartition-source (topics: [by-count-repartition])
      --> counts
    Processor: counts (stores: [counts])
      --> none
      <-- by-count-repartition-source

  Sub-topology: 2
    Source: unique-repartition-source (topics: [unique-repartition])
      --> unique
    Processor: unique (stores: [unique])
      --> TABLE-TOSTREAM-0000000015
      <-- unique-repartition-source
    Processor: TABLE-TOSTREAM-0000000015 (stores: [])
      --> STREAM-SINK-0000000016
      <-- unique
    Sink: STREAM-SINK-0000000016 (topic: out)
      <-- TABLE-TOSTREAM-0000000015

  Sub-topology: 3
    Source: STREAM-SOURCE-0000000017 (topics: [users])
      --> users
    Processor: users (stores: [users])
      --> none
      <-- STREAM-SOURCE-0000000017

`
