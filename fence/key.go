package fence

import (
	"strconv"

	"github.com/weirstreams/weir/internal/redisconn"
)

// The keys of a slot share a hash tag, so that one script may touch them:
//
//	<name>:{<topic>/<slot>/<n>}:s<key>           string: a state with its fence
//	<name>:{<topic>/<slot>/<n>}:m<key>           set: its members, for SetAdd
//	<name>:{<topic>/<slot>/<n>}:p<partition>     hash: owner, position, lineage
//	<name>:{<topic>/<slot>/<n>}:w<partition>     hash: the pending window
//	<name>:{<topic>/<slot>/<n>}:l<partition>     string: the lease
//	<name>:{<topic>}:layout                      hash: slots, partitioner

// prefix begins the keys of a slot.
func prefix(name, topic string, slot int) string {
	region := uint8((uint32(slot)*0x9e3779b9 + uint32(redisconn.CRC16(topic))<<16) >> 24)
	return name + ":{" + redisconn.Spread(topic+"/"+strconv.Itoa(slot)+"/", region) + "}:"
}

func layoutKey(name, topic string) string { return name + ":{" + topic + "}:layout" }

// stateKey is the key of a state.
func (f *Fence) stateKey(slot int, key []byte) string {
	return f.prefixes[slot] + "s" + string(key)
}

func (f *Fence) partitionKey(slot int, kind string, partition int32) string {
	return f.prefixes[slot] + kind + strconv.FormatInt(int64(partition), 10)
}

// slotOf is the slot that the state of a key is in.
func (f *Fence) slotOf(key []byte) int {
	return int(hashOf(f.opts.Partitioner, key) % uint32(f.slots))
}
