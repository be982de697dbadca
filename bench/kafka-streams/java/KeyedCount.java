import java.lang.management.ManagementFactory;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * The Java side of the comparison: a keyed count in Kafka Streams, with its defaults except where
 * the comparison fixes a setting for both sides (exactly-once, commit interval, threads, no cache).
 *
 * <p>It says what happens as JSON lines on standard output, in the protocol of the Go package
 * child, and runs until its standard input ends. Nothing is counted in the topology: the harness
 * follows the committed offsets and reads the process's clocks from outside, as for the other
 * sides.
 */
public final class KeyedCount {
  private static final String STORE = "counts";

  public static void main(String[] args) throws Exception {
    Map<String, String> flags = parse(args);
    int partitions = Integer.parseInt(need(flags, "partitions"));

    Properties config = new Properties();
    config.put(StreamsConfig.APPLICATION_ID_CONFIG, need(flags, "app"));
    config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, need(flags, "brokers"));
    config.put(StreamsConfig.STATE_DIR_CONFIG, need(flags, "dir"));
    config.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, Integer.parseInt(need(flags, "workers")));
    config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, Long.parseLong(need(flags, "commit-ms")));
    config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);

    StreamsBuilder builder = new StreamsBuilder();
    builder.stream(need(flags, "in"), Consumed.with(Serdes.String(), Serdes.ByteArray()))
        .groupByKey(Grouped.with(Serdes.String(), Serdes.ByteArray()))
        .count(
            // The default store is RocksDB on disk.
            Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as(STORE)
                .withKeySerde(Serdes.String())
                .withValueSerde(Serdes.Long())
                .withLoggingEnabled(Map.of())
                .withCachingDisabled())
        .toStream()
        .to(need(flags, "out"), Produced.with(Serdes.String(), Serdes.Long()));

    KafkaStreams streams = new KafkaStreams(builder.build(config), config);
    streams.setGlobalStateRestoreListener(new RestoreEvents(partitions));
    streams.setStateListener(
        (now, before) -> {
          if (now == KafkaStreams.State.RUNNING) {
            say("\"event\":\"running\"");
          }
        });
    streams.setUncaughtExceptionHandler(
        e -> {
          e.printStackTrace();
          say("\"event\":\"failed\",\"error\":\"" + e.getClass().getName() + ", see standard error\"");
          return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
    say("\"event\":\"started\",\"runtime\":\"Java " + System.getProperty("java.vm.version") + "\"");
    streams.start();

    while (System.in.read() >= 0) {
      // Anything written means nothing; the end of the input is the order to stop.
    }
    // By default an instance stays in its group when it stops, and the next start would wait for
    // the session to time out.
    streams.close(CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP));
    say("\"event\":\"stopped\",\"cpu_seconds\":" + cpuSeconds());
  }

  /** One start for the first store that restores, one end for the last of all partitions. */
  private static final class RestoreEvents implements StateRestoreListener {
    private final int partitions;
    private final AtomicInteger started = new AtomicInteger();
    private final AtomicInteger ended = new AtomicInteger();

    RestoreEvents(int partitions) {
      this.partitions = partitions;
    }

    @Override
    public void onRestoreStart(TopicPartition p, String store, long from, long to) {
      if (started.getAndIncrement() == 0) {
        say("\"event\":\"restoring\"");
      }
    }

    @Override
    public void onBatchRestored(TopicPartition p, String store, long offset, long n) {}

    @Override
    public void onRestoreEnd(TopicPartition p, String store, long total) {
      if (ended.incrementAndGet() == partitions) {
        say("\"event\":\"restored\"");
      }
    }
  }

  private static synchronized void say(String members) {
    System.out.println("{" + members + "}");
    System.out.flush();
  }

  private static double cpuSeconds() {
    return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime()
        / 1e9;
  }

  private static Map<String, String> parse(String[] args) {
    Map<String, String> flags = new HashMap<>();
    for (String arg : args) {
      int eq = arg.indexOf('=');
      if (!arg.startsWith("--") || eq < 0) {
        throw new IllegalArgumentException("flags look like --name=value, not like " + arg);
      }
      flags.put(arg.substring(2, eq), arg.substring(eq + 1));
    }
    return flags;
  }

  private static String need(Map<String, String> flags, String name) {
    String value = flags.get(name);
    if (value == null) {
      throw new IllegalArgumentException("the flag --" + name + " is missing");
    }
    return value;
  }
}
