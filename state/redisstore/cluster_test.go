//go:build integration

package redisstore

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirstreams/weir/internal/redisconn"
	"github.com/weirstreams/weir/internal/redistest"
	"github.com/weirstreams/weir/state"
)

func clusterOptions(nodes []*redistest.Server) Options {
	o := Options{Cluster: true, Check: CheckWarn, Timeout: time.Second}
	for _, n := range nodes {
		o.Addresses = append(o.Addresses, n.Addr())
	}
	return o
}

// ownerOf returns the node that serves a slot, and another one.
func ownerOf(t *testing.T, nodes []*redistest.Server, slot int) (at, other *redistest.Server) {
	t.Helper()
	for i, n := range nodes {
		if slot >= i*redisconn.Slots/len(nodes) && slot < (i+1)*redisconn.Slots/len(nodes) {
			return n, nodes[(i+1)%len(nodes)]
		}
	}
	t.Fatalf("slot %d", slot)
	return nil, nil
}

// The slot of a view is moved to another node under load: MOVED, ASK and
// TRYAGAIN. Some calls may find it unavailable; nothing is lost or torn.
func TestClusterMovesSlot(t *testing.T) { eachWay(t, testClusterMovesSlot) }

func testClusterMovesSlot(t *testing.T, unordered bool) {
	nodes := redistest.StartCluster(t, 3)
	opts := clusterOptions(nodes)
	opts.Unordered = unordered
	o := newOwner(t, opts)
	o.apply(1000, 100)
	slot := int(redisconn.CRC16(tag(view0)) % redisconn.Slots)
	if n, err := nodes[0].Must("CLUSTER", "KEYSLOT", metaKey(DefaultNamespace, view0)).AsInt64(); err != nil || int(n) != slot {
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
	to.Must("CLUSTER", "SETSLOT", strconv.Itoa(slot), "IMPORTING", at.NodeID())
	at.Must("CLUSTER", "SETSLOT", strconv.Itoa(slot), "MIGRATING", to.NodeID())
	for i := 0; ; i++ {
		keys, err := at.Must("CLUSTER", "GETKEYSINSLOT", strconv.Itoa(slot), "1").AsStrSlice()
		if err != nil {
			t.Fatal(err)
		}
		if len(keys) == 0 {
			break
		}
		at.Must("MIGRATE", "127.0.0.1", to.Port, keys[0], "0", "10000")
		step(20)
		if i == 3 {
			step(1500)
		}
		if i > 1000 {
			t.Fatal("the slot does not get empty")
		}
	}
	step(20)
	for _, n := range []*redistest.Server{to, at, nodes[0], nodes[1], nodes[2]} {
		n.Must("CLUSTER", "SETSLOT", strconv.Itoa(slot), "NODE", to.NodeID())
	}
	redistest.Eventually(t, "the view is served again", func() bool {
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
	if keys := at.Keys(); len(keys) > 0 {
		t.Errorf("the former node still has %q", keys)
	}
}

// A node dies: its slots are unavailable, and the whole cluster with the
// default settings. It comes back, with its file.
func TestClusterNodeDies(t *testing.T) { eachWay(t, testClusterNodeDies) }

func testClusterNodeDies(t *testing.T, unordered bool) {
	nodes := redistest.StartCluster(t, 3)
	for _, n := range nodes {
		n.Must("CONFIG", "SET", "appendonly", "yes")
	}
	opts := clusterOptions(nodes)
	opts.Unordered = unordered
	o := newOwner(t, opts)
	o.apply(100, 100)
	at, _ := ownerOf(t, nodes, int(redisconn.CRC16(tag(view0))%redisconn.Slots))
	redistest.Eventually(t, "the file", func() bool {
		in := at.Info("persistence")
		return in["aof_enabled"] == "1" && in["aof_rewrite_in_progress"] == "0" && in["aof_rewrite_scheduled"] == "0"
	})
	at.Kill()
	again, err := o.try(10, 10)
	mustBe(t, "Apply", err, state.ErrUnavailable)
	// The others find out, and then do not serve either.
	_, alive := ownerOf(t, nodes, int(redisconn.CRC16(tag(view0))%redisconn.Slots))
	redistest.Eventually(t, "the cluster is down", func() bool {
		return strings.Contains(alive.Text("CLUSTER", "INFO"), "cluster_state:fail")
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
		if n, _ := ownerOf(t, nodes, int(redisconn.CRC16(tag(other))%redisconn.Slots)); n == alive {
			break
		}
	}
	_, err = b.Claim(t.Context(), other, "", "t")
	mustBe(t, "a claim on a node that lives", err, state.ErrUnavailable)
	if !strings.Contains(err.Error(), "CLUSTERDOWN") {
		t.Errorf("the error does not name the reason: %v", err)
	}
	at.Args = append(at.Args, "--appendonly", "yes")
	at.Start()
	o.soon(again)
	o.check()
}

// WAIT counts the replicas of the node that has the view, on the connection that
// wrote, also in a cluster, where a client may be sent elsewhere in between.
func TestClusterWaitReplicas(t *testing.T) { eachWay(t, testClusterWaitReplicas) }

func testClusterWaitReplicas(t *testing.T, unordered bool) {
	nodes := redistest.StartCluster(t, 3)
	opts := clusterOptions(nodes)
	opts.Unordered = unordered
	opts.WaitReplicas, opts.WaitTimeout = 1, 200*time.Millisecond
	b := mustOpen(t, opts)
	_, err := b.Claim(t.Context(), view0, "", "t1")
	mustBe(t, "Claim without a replica", err, ErrReplicas)
	at, _ := ownerOf(t, nodes, int(redisconn.CRC16(tag(view0))%redisconn.Slots))
	at.Must("CONFIG", "SET", "repl-diskless-sync", "no")
	replica := redistest.Start(t, "--cluster-enabled", "yes", "--cluster-port", redistest.FreePort(t), "--repl-diskless-sync", "no")
	replica.Must("CLUSTER", "MEET", "127.0.0.1", at.Port, at.Args[3])
	redistest.Eventually(t, "the replica knows its primary", func() bool {
		return replica.Do("CLUSTER", "REPLICATE", at.NodeID()).Error() == nil
	})
	at.AwaitOnline(1)
	o := &owner{t: t, b: b, want: map[string]string{}, known: map[string]bool{}}
	token, err := b.Token(t.Context(), view0)
	if err != nil || token != "t1" {
		t.Fatalf("token %q, error %v: the claim was made, and only not confirmed", token, err)
	}
	o.claim("t1")
	o.apply(100, 100)
	o.apply(2000, 200)
	o.arm()
	o.check()
	thaw := replica.Freeze()
	again, err := o.try(10, 10)
	mustBe(t, "Apply without a replica", err, ErrReplicas)
	thaw()
	o.soon(again)
	o.check()
}

// The views of an application are on all nodes.
func TestClusterSpreads(t *testing.T) {
	nodes := redistest.StartCluster(t, 3)
	b := mustOpen(t, clusterOptions(nodes))
	for p := range 12 {
		if _, err := b.Claim(t.Context(), state.ID{Application: "ratings", Task: "0_" + strconv.Itoa(p)}, "", "t"); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range nodes {
		metas := 0
		for _, k := range n.Keys() {
			if strings.HasSuffix(k, "}") {
				metas++
			}
		}
		if metas < 2 || metas > 6 {
			t.Errorf("a node has %d of 12 views", metas)
		}
	}
}
