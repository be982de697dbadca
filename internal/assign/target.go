package assign

import (
	"cmp"
	"slices"

	"github.com/weirstreams/weir/internal/topology"
)

// worker is a member as the balancing sees it. A class is 0 for the stateful
// tasks and 1 for the stateless ones.
type worker struct {
	member  *Member
	process int
	weight  int
	owned   [2][]int // tasks that are here now, by class, in order
	quota   [2]int   // how many there should be, see setQuotas
}

// process is the workers of one process.
type process struct {
	id      ProcessID
	weight  int
	workers []*worker
	// attracts counts the tasks that nobody has and whose best state is here.
	attracts int
}

// targets returns the member that each task should be with once everything
// that has to move has moved. Tasks and members are in their order.
func targets(tasks []Task, members []*Member, cl *claims) []*Member {
	processes, workers := group(members)
	near := nearest(tasks, processes)
	at := make(map[*Member]*worker, len(workers))
	for _, w := range workers {
		at[w.member] = w
	}
	var count [2]int
	var pool [2][]int
	for task := range tasks {
		class := 1
		if tasks[task].Stateful {
			class = 0
		}
		count[class]++
		if w := at[holder(cl.tasks[task])]; w != nil {
			w.owned[class] = append(w.owned[class], task)
			continue
		}
		pool[class] = append(pool[class], task)
		if len(near[task]) > 0 {
			processes[near[task][0].process].attracts++
		}
	}

	target := make([]*Member, len(tasks))
	if len(workers) == 0 {
		return target
	}
	setQuotas(count, processes, workers)
	for class := range pool {
		s := seating{class: class, processes: processes, near: near, pool: pool[class], target: target}
		s.run(workers)
	}
	return target
}

// group puts the members of each process together.
func group(members []*Member) (processes []*process, workers []*worker) {
	for _, m := range members {
		last := len(processes) - 1
		if last < 0 || processes[last].id != m.UserData.ProcessID {
			processes = append(processes, &process{id: m.UserData.ProcessID})
			last++
		}
		w := &worker{member: m, process: last, weight: max(1, int(m.UserData.Capacity))}
		workers = append(workers, w)
		p := processes[last]
		p.workers = append(p.workers, w)
		p.weight += w.weight
	}
	return processes, workers
}

// local says that a process has state for a task.
type local struct {
	process int
	lag     int64 // how much the position is below the highest one in the group
}

// nearest returns, per task, the processes that have state for it, the one
// that lags least first. Stateless tasks have none.
func nearest(tasks []Task, processes []*process) [][]local {
	index := make(map[topology.TaskID]int, len(tasks))
	for i, t := range tasks {
		if t.Stateful {
			index[t.ID] = i
		}
	}
	near := make([][]local, len(tasks))
	for p, process := range processes {
		for _, w := range process.workers {
			for _, l := range w.member.UserData.Local {
				task, known := index[l.ID]
				if !known {
					continue
				}
				list, behind := near[task], -l.Position
				if last := len(list) - 1; last >= 0 && list[last].process == p {
					list[last].lag = min(list[last].lag, behind)
					continue
				}
				near[task] = append(list, local{p, behind})
			}
		}
	}
	for _, list := range near {
		// Of equals the first process comes first.
		slices.SortStableFunc(list, func(a, b local) int { return cmp.Compare(a.lag, b.lag) })
		for i := len(list) - 1; i >= 0; i-- {
			list[i].lag -= list[0].lag
		}
	}
	return near
}

// seating gives the tasks of a class their places once the quotas are known.
type seating struct {
	class     int
	processes []*process
	near      [][]local
	pool      []int // tasks without a place
	target    []*Member

	room map[*worker]int // negative: tasks too many
	free []int           // per process: what it takes from others, at least 0
}

func (s *seating) run(workers []*worker) {
	s.room = make(map[*worker]int, len(workers))
	s.free = make([]int, len(s.processes))
	for _, w := range workers {
		s.room[w] = w.quota[s.class] - len(w.owned[s.class])
		s.free[w.process] += s.room[w]
	}
	abroad := make([]int, len(s.processes)) // what a process gives to others
	for p, n := range s.free {
		abroad[p], s.free[p] = max(0, -n), max(0, n)
	}

	// A process with too many tasks gives away first those for which state is
	// waiting elsewhere, and of them those that lag least there.
	type offer struct {
		task int
		from *worker
		lag  int64
	}
	var offers []offer
	for _, w := range workers {
		owned := w.owned[s.class]
		for i := len(owned) - 1; i >= 0 && s.room[w] < 0 && abroad[w.process] > 0; i-- {
			if to := s.nearby(owned[i]); to >= 0 {
				offers = append(offers, offer{owned[i], w, s.near[owned[i]][to].lag})
			}
		}
	}
	slices.SortStableFunc(offers, func(a, b offer) int { return cmp.Compare(a.lag, b.lag) })
	given := map[int]bool{}
	for _, o := range offers {
		w := o.from
		to := s.nearby(o.task)
		if to < 0 || s.room[w] >= 0 || abroad[w.process] == 0 {
			continue
		}
		s.put(o.task, s.near[o.task][to].process)
		given[o.task] = true
		s.room[w]++
		abroad[w.process]--
	}
	// Then any. What else a worker has too many stays in its process, where
	// its state is.
	inside := make([][]int, len(s.processes))
	for _, w := range workers {
		kept := w.owned[s.class]
		for i := len(kept) - 1; i >= 0; i-- {
			switch task := kept[i]; {
			case given[task]:
			case s.room[w] >= 0:
				s.target[task] = w.member
			case abroad[w.process] > 0:
				s.pool = append(s.pool, task)
				s.room[w]++
				abroad[w.process]--
			default:
				inside[w.process] = append(inside[w.process], task)
				s.room[w]++
			}
		}
	}
	for p, list := range inside {
		slices.Sort(list)
		for _, task := range list {
			s.seat(task, p)
		}
	}

	// Tasks without a place: first to where state is, those with the fewest
	// choices in front, then to the emptiest process.
	slices.Sort(s.pool)
	byChoice := slices.Clone(s.pool)
	slices.SortStableFunc(byChoice, func(a, b int) int { return len(s.near[a]) - len(s.near[b]) })
	for _, task := range byChoice {
		if to := s.nearby(task); to >= 0 {
			s.put(task, s.near[task][to].process)
		}
	}
	for _, task := range s.pool {
		if s.target[task] != nil {
			continue
		}
		emptiest := 0
		for p := range s.processes {
			if s.free[p]*s.processes[emptiest].weight > s.free[emptiest]*s.processes[p].weight {
				emptiest = p
			}
		}
		s.put(task, emptiest)
	}
}

// nearby returns the index in near[task] of the best process with state for
// the task that takes tasks from others, -1 if there is none.
func (s *seating) nearby(task int) int {
	return slices.IndexFunc(s.near[task], func(l local) bool { return s.free[l.process] > 0 })
}

// put gives a task to a process that takes tasks from others.
func (s *seating) put(task, process int) {
	s.free[process]--
	s.seat(task, process)
}

// seat gives a task to the emptiest worker of a process.
func (s *seating) seat(task, process int) {
	workers := s.processes[process].workers
	emptiest := workers[0]
	for _, w := range workers {
		if s.room[w]*emptiest.weight > s.room[emptiest]*w.weight {
			emptiest = w
		}
	}
	s.room[emptiest]--
	s.target[task] = emptiest.member
}
