//go:build integration

package redisstore

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirstreams/weir/state"
)

func clusterOptions(nodes []*redisServer) Options {
	o := Options{Cluster: true, Check: CheckWarn, Timeout: time.Second}
	for _, n := range nodes {
		o.Addresses = append(o.Addresses, n.addr())
	}
	return o
}

// ownerOf returns the node that serves a slot, and another one.
func ownerOf(t *testing.T, nodes []*redisServer, slot int) (at, other *redisServer) {
	t.Helper()
	for i, n := range nodes {
		if slot >= i*slots/len(nodes) && slot < (i+1)*slots/len(nodes) {
			return n, nodes[(i+1)%len(nodes)]
		}
	}
	t.Fatalf("slot %d", slot)
	return nil, nil
}

// The slot of a view is moved to another node under load: MOVED, ASK and
// TRYAGAIN. Some calls may find it unavailable; nothing is lost or torn.
func TestClusterMovesSlot(t *testing.T) {
	nodes := startCluster(t, 3)
	o := newOwner(t, clusterOptions(nodes))
	o.apply(1000, 100)
	slot := int(crc16(tag(view0)) % slots)
	if n, err := nodes[0].must("CLUSTER", "KEYSLOT", metaKey(DefaultNamespace, view0)).AsInt64(); err != nil || int(n) != slot {
		t.Fatalf("the slot is %d, the server says %d, error %v", slot, n, err)
	}
	at, to := ownerOf(t, nodes, slot)
	var pending func() error // a call whose outcome is not known
	met := map[string]int{}
	step := func(size int) {
		t.Helper()
		err := error(nil)
		if pending == nil {
			pending, err = o.try(size, 50)
		} else {
			err = pending()
		}
		switch {
		case err == nil:
			pending = nil
		case !errors.Is(err, state.ErrUnavailable):
			t.Fatalf("%v, want state.ErrUnavailable", err)
		}
		for _, code := range []string{"MOVED", "ASK", "TRYAGAIN"} {
			if err != nil && strings.Contains(err.Error(), code) {
				met[code]++
			}
		}
	}
	to.must("CLUSTER", "SETSLOT", strconv.Itoa(slot), "IMPORTING", at.nodeID())
	at.must("CLUSTER", "SETSLOT", strconv.Itoa(slot), "MIGRATING", to.nodeID())
	for i := 0; ; i++ {
		keys, err := at.must("CLUSTER", "GETKEYSINSLOT", strconv.Itoa(slot), "1").AsStrSlice()
		if err != nil {
			t.Fatal(err)
		}
		if len(keys) == 0 {
			break
		}
		at.must("MIGRATE", "127.0.0.1", to.port, keys[0], "0", "10000")
		step(20)
		if i == 3 {
			step(1500)
		}
		if i > 1000 {
			t.Fatal("the slot does not get empty")
		}
	}
	step(20)
	for _, n := range []*redisServer{to, at, nodes[0], nodes[1], nodes[2]} {
		n.must("CLUSTER", "SETSLOT", strconv.Itoa(slot), "NODE", to.nodeID())
	}
	eventually(t, "the view is served again", func() bool {
		step(20)
		return pending == nil
	})
	o.check()
	o.apply(1500, 100)
	o.check()
	t.Logf("met %v", met)
	if met["TRYAGAIN"] == 0 {
		t.Error("no call met the half-moved slot")
	}
	if keys := at.keys(); len(keys) > 0 {
		t.Errorf("the former node still has %q", keys)
	}
}

// A node dies: its slots are unavailable, and the whole cluster with the
// default settings. It comes back, with its file.
func TestClusterNodeDies(t *testing.T) {
	nodes := startCluster(t, 3)
	for _, n := range nodes {
		n.must("CONFIG", "SET", "appendonly", "yes")
	}
	o := newOwner(t, clusterOptions(nodes))
	o.apply(100, 100)
	at, _ := ownerOf(t, nodes, int(crc16(tag(view0))%slots))
	eventually(t, "the file", func() bool {
		in := parseInfo(text(t, at, "INFO", "persistence"))
		return in["aof_enabled"] == "1" && in["aof_rewrite_in_progress"] == "0" && in["aof_rewrite_scheduled"] == "0"
	})
	at.kill()
	again, err := o.try(10, 10)
	mustBe(t, "Apply", err, state.ErrUnavailable)
	// The others find out, and then do not serve either.
	_, alive := ownerOf(t, nodes, int(crc16(tag(view0))%slots))
	eventually(t, "the cluster is down", func() bool {
		return strings.Contains(text(t, alive, "CLUSTER", "INFO"), "cluster_state:fail")
	})
	down := clusterOptions(nodes)
	down.Check = CheckOff
	b := mustOpen(t, down)
	found, err := b.Check(t.Context())
	if err != nil || !slices.ContainsFunc(found, func(f Finding) bool { return f.Danger && f.Subject == "cluster" }) {
		t.Errorf("findings of a cluster without a third of its slots: %v, error %v", found, err)
	}
	other := state.ID{Application: "app"}
	for p := 0; ; p++ {
		other.Task = "0_" + strconv.Itoa(p)
		if n, _ := ownerOf(t, nodes, int(crc16(tag(other))%slots)); n == alive {
			break
		}
	}
	_, err = b.Claim(t.Context(), other, "", "t")
	mustBe(t, "a claim on a node that lives", err, state.ErrUnavailable)
	if !strings.Contains(err.Error(), "CLUSTERDOWN") {
		t.Errorf("the error does not name the reason: %v", err)
	}
	at.args = append(at.args, "--appendonly", "yes")
	at.start()
	o.soon(again)
	o.check()
}

// WAIT counts the replicas of the node that has the view, on the connection that
// wrote, also in a cluster, where a client may be sent elsewhere in between.
func TestClusterWaitReplicas(t *testing.T) {
	nodes := startCluster(t, 3)
	opts := clusterOptions(nodes)
	opts.WaitReplicas, opts.WaitTimeout = 1, 200*time.Millisecond
	b := mustOpen(t, opts)
	_, err := b.Claim(t.Context(), view0, "", "t1")
	mustBe(t, "Claim without a replica", err, ErrReplicas)
	at, _ := ownerOf(t, nodes, int(crc16(tag(view0))%slots))
	at.must("CONFIG", "SET", "repl-diskless-sync", "no")
	replica := startRedis(t, "--cluster-enabled", "yes", "--cluster-port", freePort(t), "--repl-diskless-sync", "no")
	replica.must("CLUSTER", "MEET", "127.0.0.1", at.port, at.args[3])
	eventually(t, "the replica knows its primary", func() bool {
		return replica.do("CLUSTER", "REPLICATE", at.nodeID()).Error() == nil
	})
	at.awaitOnline(1)
	o := &owner{t: t, b: b, want: map[string]string{}}
	token, err := b.Token(t.Context(), view0)
	if err != nil || token != "t1" {
		t.Fatalf("token %q, error %v: the claim was made, and only not confirmed", token, err)
	}
	o.claim("t1")
	o.apply(100, 100)
	o.apply(2000, 200)
	o.check()
	thaw := replica.freeze()
	again, err := o.try(10, 10)
	mustBe(t, "Apply without a replica", err, ErrReplicas)
	thaw()
	o.soon(again)
	o.check()
}

// The views of an application are on all nodes.
func TestClusterSpreads(t *testing.T) {
	nodes := startCluster(t, 3)
	b := mustOpen(t, clusterOptions(nodes))
	for p := range 12 {
		if _, err := b.Claim(t.Context(), state.ID{Application: "ratings", Task: "0_" + strconv.Itoa(p)}, "", "t"); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range nodes {
		metas := 0
		for _, k := range n.keys() {
			if strings.HasSuffix(k, "}") {
				metas++
			}
		}
		if metas < 2 || metas > 6 {
			t.Errorf("a node has %d of 12 views", metas)
		}
	}
}
