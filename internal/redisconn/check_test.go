package redisconn

import "testing"

// A policy that can remove states is a danger once there is a bound to reach.
func TestCheckEviction(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy, maxmemory string
		expires           bool
		found, danger     bool
	}{
		{"noeviction", "1000000", true, false, false},
		{"", "", true, false, false}, // not told
		{"allkeys-lru", "1000000", false, true, true},
		{"allkeys-lru", "0", true, true, false},
		{"volatile-ttl", "1000000", false, true, false},
		{"volatile-ttl", "1000000", true, true, true},
		{"volatile-ttl", "0", true, true, false},
	} {
		found, danger := false, false
		checkEviction(c.policy, c.maxmemory, c.expires, func(d bool, _, _ string, _ ...any) { found, danger = true, d })
		if found != c.found || danger != c.danger {
			t.Errorf("%+v: found %v, danger %v", c, found, danger)
		}
	}
}
