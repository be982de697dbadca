package task

// Clock names the time that drives a punctuation.
type Clock int

// StreamTime advances with the records of the task, WallClock with the time
// of the machine.
const (
	StreamTime Clock = iota
	WallClock
)

type timer struct {
	clock    Clock
	interval int64 // ms
	due      int64 // ms
	node     string
	fn       func(now int64) error
}

// advance moves due to the next point of the timer's grid after now, so that
// a gap of many intervals costs one late call instead of many.
func (t *timer) advance(now int64) {
	t.due += t.interval
	if now >= t.due {
		t.due += ((now-t.due)/t.interval + 1) * t.interval
	}
}
