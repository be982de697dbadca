package metric

import (
	"fmt"
	"slices"
)

// Names of the labels.
const (
	LabelTopic     = "topic"     // name of a Kafka topic
	LabelPartition = "partition" // partition of that topic, decimal
	LabelTask      = "task"      // id of a task, as 0_3
	LabelNode      = "node"      // operator of the topology
	LabelStore     = "store"     // name of a store
	LabelWorker    = "worker"    // index of a worker of this process, decimal
	LabelReason    = "reason"    // one of a fixed set of words
	LabelOutcome   = "outcome"   // one of a fixed set of words
	LabelState     = "state"     // state of a task or of the app, in lower case
	LabelMetric    = "metric"    // name of a metric
	LabelVerdict   = "verdict"   // of the fence: apply, reemit, skip, rebase, dlq, fence
)

// Names of the metrics. [Metrics] says what each one is.
const (
	RecordsIn      = "weir_records_in_total"
	RecordsOut     = "weir_records_out_total"
	RecordsDropped = "weir_records_dropped_total"
	DeadLetters    = "weir_dead_letters_total"
	ConsumerLag    = "weir_consumer_lag_records"

	Commits       = "weir_commits_total"
	CommitLatency = "weir_commit_latency_seconds"
	BatchRecords  = "weir_batch_records"
	Aborts        = "weir_aborts_total"

	RestoreRecords   = "weir_restore_records_total"
	RestoreBytes     = "weir_restore_bytes_total"
	RestoreRemaining = "weir_restore_remaining_records"

	StoreKeys      = "weir_store_keys"
	StoreBytes     = "weir_store_bytes"
	CacheHits      = "weir_cache_hits_total"
	CacheMisses    = "weir_cache_misses_total"
	UnflushedBytes = "weir_unflushed_bytes"
	Claims         = "weir_claims_total"

	RecordsResent = "weir_records_resent_total"
	StoreForgot   = "weir_store_forgot_total"
	Reprocessed   = "weir_records_reprocessed_total"

	AppState   = "weir_app_state"
	Tasks      = "weir_tasks"
	Rebalances = "weir_rebalances_total"
	WorkerBusy = "weir_worker_busy_ratio"

	FenceRecords       = "weir_fence_records_total"
	FenceRoundTrip     = "weir_fence_round_trip_seconds"
	FenceBatchRecords  = "weir_fence_batch_records"
	FenceGap           = "weir_fence_gap_offsets"
	FenceWindow        = "weir_fence_window_records"
	FenceRegressions   = "weir_fence_regressions_total"
	FenceConflicts     = "weir_fence_conflicts_total"
	FenceBreakerOpen   = "weir_fence_breaker_open"
	FenceFull          = "weir_fence_full_total"
	FenceConsumerLag   = "weir_fence_consumer_lag_records"
	FenceDeadLetters   = "weir_fence_dead_letters_total"
	FenceWindowMaximum = "weir_fence_window_max_records"

	Refused = "weir_metrics_refused_total"
)

// Kind says how a metric behaves.
type Kind int

// The kinds of metrics, one for each method of a Sink.
const (
	KindCounter Kind = iota + 1
	KindGauge
	KindHistogram
)

// String returns "counter", "gauge" or "histogram".
func (k Kind) String() string {
	switch k {
	case KindCounter:
		return "counter"
	case KindGauge:
		return "gauge"
	case KindHistogram:
		return "histogram"
	}
	return fmt.Sprintf("Kind(%d)", int(k))
}

// Unit says what a value counts.
type Unit string

// The units. A name carries seconds, bytes and ratio at its end (before _total).
const (
	Seconds Unit = "seconds"
	Bytes   Unit = "bytes"
	Ratio   Unit = "ratio" // from 0 to 1
	Records Unit = "records"
	Count   Unit = "" // of whatever the name says
)

// Metric describes a metric.
type Metric struct {
	Name   string
	Kind   Kind
	Unit   Unit
	Help   string
	Labels []string
	// Buckets holds the inclusive upper bounds of a histogram's buckets in the
	// metric's unit, rising. A last one without bound follows.
	Buckets []float64
}

// latencyBuckets go from a commit on a broker next door to one that is about to
// exceed the transaction timeout of 10 seconds.
var latencyBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// sizeBuckets are for numbers of records.
var sizeBuckets = []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144}

var metrics = []Metric{
	{
		Name: RecordsIn, Kind: KindCounter, Unit: Records, Labels: []string{LabelTopic, LabelPartition},
		Help: "Records of input and repartition topics that were processed. Those of an aborted batch count again.",
	},
	{
		Name: RecordsOut, Kind: KindCounter, Unit: Records, Labels: []string{LabelTopic},
		Help: "Records produced to output and repartition topics. Those of an aborted batch count again.",
	},
	{
		Name: RecordsDropped, Kind: KindCounter, Unit: Records, Labels: []string{LabelTask, LabelNode, LabelReason},
		Help: "Records that an operator left out: late, without a key or value it needs, or in the wrong partition. Also repetitions (reason repeated) of a repartition topic, whose name the node then is.",
	},
	{
		Name: DeadLetters, Kind: KindCounter, Unit: Records, Labels: []string{LabelTask, LabelNode, LabelReason},
		Help: "Records that could not be processed and went to the dead-letter topic.",
	},
	{
		Name: ConsumerLag, Kind: KindGauge, Unit: Records, Labels: []string{LabelTopic, LabelPartition},
		Help: "Offsets between the next record to process and the end of the partition.",
	},

	{
		Name: Commits, Kind: KindCounter, Labels: []string{LabelWorker},
		Help: "Batches committed.",
	},
	{
		Name: CommitLatency, Kind: KindHistogram, Unit: Seconds, Labels: []string{LabelWorker}, Buckets: latencyBuckets,
		Help: "Time from the start of a commit to the moment its outcome is known.",
	},
	{
		Name: BatchRecords, Kind: KindHistogram, Unit: Records, Labels: []string{LabelWorker}, Buckets: sizeBuckets,
		Help: "Input records in a committed batch.",
	},
	{
		Name: Aborts, Kind: KindCounter, Labels: []string{LabelReason},
		Help: "Batches aborted and processed again.",
	},

	{
		Name: RestoreRecords, Kind: KindCounter, Unit: Records, Labels: []string{LabelTask, LabelStore},
		Help: "Changelog records read to restore a store.",
	},
	{
		Name: RestoreBytes, Kind: KindCounter, Unit: Bytes, Labels: []string{LabelTask, LabelStore},
		Help: "Bytes of keys and values of the changelog records read to restore a store.",
	},
	{
		Name: RestoreRemaining, Kind: KindGauge, Unit: Records, Labels: []string{LabelTask, LabelStore},
		Help: "Offsets of the changelog still to be read before the store is restored.",
	},

	{
		Name: StoreKeys, Kind: KindGauge, Labels: []string{LabelTask, LabelStore},
		Help: "Approximate number of keys in a store.",
	},
	{
		Name: StoreBytes, Kind: KindGauge, Unit: Bytes, Labels: []string{LabelTask, LabelStore},
		Help: "Approximate size of a store where it is kept.",
	},
	{
		Name: CacheHits, Kind: KindCounter, Labels: []string{LabelTask, LabelStore},
		Help: "Reads of a store that the cache in front of the backend answered.",
	},
	{
		Name: CacheMisses, Kind: KindCounter, Labels: []string{LabelTask, LabelStore},
		Help: "Reads of a store that went to the backend.",
	},
	{
		Name: UnflushedBytes, Kind: KindGauge, Unit: Bytes, Labels: []string{LabelTask},
		Help: "Committed writes that the backend has not yet applied.",
	},
	{
		Name: Claims, Kind: KindCounter, Labels: []string{LabelOutcome},
		Help: "Claims of task state, by what was found.",
	},
	{
		Name: RecordsResent, Kind: KindCounter, Unit: Records, Labels: []string{LabelTask},
		Help: "Outputs of a former owner that were sent again when a task was claimed, at least once on a remote store. Their ids are those of the first time.",
	},
	{
		Name: StoreForgot, Kind: KindCounter, Labels: []string{LabelTask},
		Help: "Times that a remote store was found to have forgotten acknowledged batches of a task without a changelog.",
	},
	{
		Name: Reprocessed, Kind: KindCounter, Unit: Records, Labels: []string{LabelTask},
		Help: "Input records that were processed again because a remote store had forgotten them; what they have put out before may have taken effect twice.",
	},

	{
		Name: AppState, Kind: KindGauge, Labels: []string{LabelState},
		Help: "1 for the state that the application is in, 0 for the others.",
	},
	{
		Name: Tasks, Kind: KindGauge, Labels: []string{LabelWorker, LabelState},
		Help: "Tasks that a worker holds.",
	},
	{
		Name: Rebalances, Kind: KindCounter, Labels: []string{LabelWorker},
		Help: "Assignments that a worker received from its group.",
	},
	{
		Name: WorkerBusy, Kind: KindGauge, Unit: Ratio, Labels: []string{LabelWorker},
		Help: "Share of its time that a worker spent on anything but waiting for records, lately.",
	},

	{
		Name: FenceRecords, Kind: KindCounter, Unit: Records, Labels: []string{LabelTopic, LabelPartition, LabelVerdict},
		Help: "Records that the fence judged, by verdict. verdict=\"fence\" counts batches that were refused because another owner has the partition.",
	},
	{
		Name: FenceRoundTrip, Kind: KindHistogram, Unit: Seconds, Labels: []string{LabelTopic}, Buckets: latencyBuckets,
		Help: "How long it took to apply a batch in Redis, with the round trip.",
	},
	{
		Name: FenceBatchRecords, Kind: KindHistogram, Unit: Records, Labels: []string{LabelTopic}, Buckets: sizeBuckets,
		Help: "Records of a batch that was applied in Redis.",
	},
	{
		Name: FenceGap, Kind: KindHistogram, Unit: Count, Labels: []string{LabelTopic}, Buckets: sizeBuckets,
		Help: "Offsets missing between a record and the one before it in its partition: transaction markers and compaction leave such holes.",
	},
	{
		Name: FenceWindow, Kind: KindGauge, Unit: Records, Labels: []string{LabelTopic, LabelPartition},
		Help: "Records in the pending window of a partition: applied, and not known to be committed.",
	},
	{
		Name: FenceWindowMaximum, Kind: KindGauge, Unit: Records, Labels: []string{LabelTopic},
		Help: "Most records that the pending window of a partition may hold; past it batches wait.",
	},
	{
		Name: FenceRegressions, Kind: KindCounter, Unit: Count, Labels: []string{LabelTopic, LabelPartition},
		Help: "How often Redis was found to have forgotten acknowledged writes of a partition.",
	},
	{
		Name: FenceConflicts, Kind: KindCounter, Unit: Count, Labels: []string{LabelTopic, LabelPartition},
		Help: "Batches whose states had changed since they were read, and which were computed again.",
	},
	{
		Name: FenceBreakerOpen, Kind: KindGauge, Unit: Count, Labels: []string{LabelTopic},
		Help: "Circuit breakers to Redis that are open: 1 while a server is away, and more when several nodes of a cluster are.",
	},
	{
		Name: FenceFull, Kind: KindCounter, Unit: Count, Labels: []string{LabelTopic},
		Help: "Calls that Redis refused because it has reached maxmemory. Nothing was written.",
	},
	{
		Name: FenceConsumerLag, Kind: KindGauge, Unit: Records, Labels: []string{LabelTopic, LabelPartition},
		Help: "Records between the end of a partition and what the fenced consumer has committed.",
	},
	{
		Name: FenceDeadLetters, Kind: KindCounter, Unit: Records, Labels: []string{LabelTopic, LabelReason},
		Help: "Records that the fenced consumer wrote to the dead-letter topic, by reason.",
	},
	{
		Name: Refused, Kind: KindCounter, Labels: []string{LabelMetric},
		Help: "Measurements asked for under a name, kind or label that is not declared. An error in the program; they are dropped.",
	},
}

var byName = func() map[string]Metric {
	m := make(map[string]Metric, len(metrics))
	for _, d := range metrics {
		m[d.Name] = d
	}
	return m
}()

// Metrics returns the table of all metrics. It is the caller's, its slices are
// not.
func Metrics() []Metric { return slices.Clone(metrics) }

// Lookup returns the description of the metric of that name. Its slices are not
// to be changed.
func Lookup(name string) (Metric, bool) {
	m, ok := byName[name]
	return m, ok
}

// Check returns the description of a metric and the values of the labels in the
// order of its Labels, or an error that says what is not as declared: the name,
// the kind, or a label that is missing, unknown or given twice. Implementations
// of Sink call it when they resolve a handle.
func Check(kind Kind, name string, labels []Label) (Metric, []string, error) {
	m, ok := byName[name]
	if !ok {
		return Metric{}, nil, fmt.Errorf("metric %q is not declared in package metric", name)
	}
	if m.Kind != kind {
		return Metric{}, nil, fmt.Errorf("metric %q is a %s, used as a %s", name, m.Kind, kind)
	}
	values := make([]string, len(m.Labels))
	var seen uint64 // a bit for each label; TestTable holds their number below 64
	for _, l := range labels {
		i := slices.Index(m.Labels, l.Name)
		if i < 0 {
			return Metric{}, nil, fmt.Errorf("metric %q has no label %q, but %q", name, l.Name, m.Labels)
		}
		if seen&(1<<i) != 0 {
			return Metric{}, nil, fmt.Errorf("metric %q got the label %q twice", name, l.Name)
		}
		seen |= 1 << i
		values[i] = l.Value
	}
	for i, l := range m.Labels {
		if seen&(1<<i) == 0 {
			return Metric{}, nil, fmt.Errorf("metric %q needs the label %q", name, l)
		}
	}
	return m, values, nil
}
