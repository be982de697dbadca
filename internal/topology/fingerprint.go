package topology

import (
	"crypto/sha256"
	"fmt"
	"io"
)

// fingerprintVersion is part of the hash. It changes with what the hash covers,
// so that members which hash differently never take their topologies for equal
// by chance.
const fingerprintVersion = 1

// fingerprint hashes what decides about tasks, topics and the layout of state.
func (t *Topology) fingerprint() [8]byte {
	h := sha256.New()
	put := func(format string, args ...any) { _, _ = io.WriteString(h, fmt.Sprintf(format+"\n", args...)) }
	put("weir topology %d", fingerprintVersion)
	for _, s := range t.Subtopologies {
		put("subtopology %d", s.ID)
		for _, src := range s.Sources {
			put("source %q %t", src.Name, src.Repartition)
		}
		for _, st := range s.Stores {
			put("store %q %t %t", st.Name, st.Logged, st.Timestamped)
		}
		for _, name := range s.Repartitions {
			put("writes %q", name)
		}
		for _, group := range s.Copartitioned {
			put("copartitioned %d", group)
		}
	}
	for _, r := range t.Repartitions {
		put("repartition %q %d", r.Name, r.Partitions)
	}
	return [8]byte(h.Sum(nil))
}
