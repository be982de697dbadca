package assign

import "math"

// The costs of a unit of flow: a lower bound that is not met; a task that has
// to move; that task being a stateful one; a task that goes where there is no
// state for it. Each outweighs rankStep units of the next, and no exchange
// between plans trades one for more than there are tasks.
const (
	rankStep    = 1 << 15
	costForeign = 1
	costState   = costForeign * rankStep
	costMove    = costState * rankStep
	costMiss    = costMove * rankStep
)

// setQuotas decides how many tasks of each class each worker gets, as the flow
// of least cost from the classes through the workers:
//
//	stateful ─> process ─> worker ─┐
//	                               ├─> worker ─> process ─> all
//	stateless ─────────────────────┘
//
// Each arc carries the exact share of what stands behind it, rounded up or
// down. The exact shares themselves satisfy all these bounds, so a flow of
// whole numbers does, too. As many units as a worker has tasks of a class are
// cheap: those tasks stay.
func setQuotas(count [2]int, processes []*process, workers []*worker) {
	weight := 0
	for _, p := range processes {
		weight += p.weight
	}
	total := count[0] + count[1]

	const source, sink, stateful, stateless = 0, 1, 2, 3
	nodes := 4
	node := func() int { nodes++; return nodes - 1 }
	g := &flow{}
	bounded := func(from, to, n, share int) {
		low := n * share / weight
		g.add(from, to, low, -costMiss)
		if n*share%weight != 0 {
			g.add(from, to, 1, 0)
		}
	}

	g.add(source, stateful, count[0], 0)
	g.add(source, stateless, count[1], 0)
	statefulArcs := make([]int, len(workers)) // between the two nodes of a worker
	allArcs := make([]int, len(workers))      // out of the second
	i := 0
	for _, p := range processes {
		in, near, out := node(), node(), node()
		bounded(stateful, in, count[0], p.weight)
		g.add(in, near, p.attracts, -costForeign)
		for _, w := range p.workers {
			first, second := node(), node()
			g.add(in, first, len(w.owned[0]), -costMove-costState)
			g.add(near, first, p.attracts, 0)
			g.add(in, first, count[0], 0)
			statefulArcs[i] = len(g.arcs)
			bounded(first, second, count[0], w.weight)
			g.add(stateless, second, len(w.owned[1]), -costMove)
			g.add(stateless, second, count[1], 0)
			allArcs[i] = len(g.arcs)
			bounded(second, out, total, w.weight)
			i++
		}
		bounded(out, sink, total, p.weight)
	}
	g.run(nodes, source, sink)

	i = 0
	for _, p := range processes {
		for _, w := range p.workers {
			share := func(arc, n int) int {
				used := g.used(arc)
				if n*w.weight%weight != 0 {
					used += g.used(arc + 2)
				}
				return used
			}
			w.quota[0] = share(statefulArcs[i], count[0])
			w.quota[1] = share(allArcs[i], total) - w.quota[0]
			i++
		}
	}
}

// flow is a network in which the largest flow of the least cost is sought.
type flow struct {
	arcs []arc // each at an even index, its reverse behind it
	out  [][]int
	dist []int64
	seen []bool
}

type arc struct {
	from, to int
	room     int
	cost     int64
}

func (g *flow) add(from, to, room int, cost int64) {
	g.arcs = append(g.arcs, arc{from, to, room, cost}, arc{to, from, 0, -cost})
}

// used returns the flow through the arc at an even index.
func (g *flow) used(arc int) int { return g.arcs[arc+1].room }

// run fills the network along cheapest paths, all paths of one length at a
// time. Costs may be negative, cycles of negative cost must not be there.
func (g *flow) run(nodes, source, sink int) {
	g.out = make([][]int, nodes)
	for i, a := range g.arcs {
		g.out[a.from] = append(g.out[a.from], i)
	}
	g.dist = make([]int64, nodes)
	g.seen = make([]bool, nodes)
	for g.measure(source, sink) {
		for {
			clear(g.seen)
			if g.push(source, sink, math.MaxInt) == 0 {
				break
			}
		}
	}
}

// measure computes the distances from the source and reports whether the sink
// can be reached.
func (g *flow) measure(source, sink int) bool {
	const unreached = math.MaxInt64
	for i := range g.dist {
		g.dist[i] = unreached
	}
	clear(g.seen)
	g.dist[source] = 0
	queue := []int{source}
	for len(queue) > 0 {
		n := queue[0]
		queue = queue[1:]
		g.seen[n] = false // seen: is in the queue
		for _, i := range g.out[n] {
			a := &g.arcs[i]
			if a.room == 0 || g.dist[n]+a.cost >= g.dist[a.to] {
				continue
			}
			g.dist[a.to] = g.dist[n] + a.cost
			if !g.seen[a.to] {
				g.seen[a.to] = true
				queue = append(queue, a.to)
			}
		}
	}
	return g.dist[sink] != unreached
}

// push sends up to limit units along arcs that lie on shortest paths, and
// enters each node once.
func (g *flow) push(n, sink, limit int) int {
	if n == sink {
		return limit
	}
	g.seen[n] = true
	sent := 0
	for _, i := range g.out[n] {
		a := &g.arcs[i]
		if a.room == 0 || g.seen[a.to] || g.dist[a.to] != g.dist[n]+a.cost {
			continue
		}
		got := g.push(a.to, sink, min(limit-sent, a.room))
		g.arcs[i].room -= got
		g.arcs[i^1].room += got
		sent += got
		if sent == limit {
			break
		}
	}
	return sent
}
