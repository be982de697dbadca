package demo

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/weirstreams/weir"
	"github.com/weirstreams/weir/cmd/weir/internal/liveview"
)

const (
	// How often the table changes and how many rows it has, on a terminal and in
	// plain lines.
	frameInterval = 250 * time.Millisecond
	frameRows     = 15
	plainInterval = 2 * time.Second
	plainRows     = 5

	// frameShare bounds the time that goes into reading the table: after a read
	// there is a pause of at least so many times its length.
	frameShare = 10

	// rateWindow is what the rate is measured over.
	rateWindow = 3 * time.Second
)

// live feeds the application and shows the table until the work ends.
func (d *demo) live(w *work) error {
	fed := make(chan struct{})
	w.spawn(func(ctx context.Context) error {
		err := d.feed(ctx)
		if err == nil {
			close(fed)
		}
		return err
	})
	interval, rows := plainInterval, plainRows
	if d.console.options.Terminal {
		interval, rows = frameInterval, frameRows
	}
	d.console.show(d.config.Stdout)
	defer d.console.hide()
	var f frame
	for {
		begin := time.Now()
		f.read(w.ctx, d, begin)
		if w.ctx.Err() != nil {
			return context.Cause(w.ctx)
		}
		ended := false
		select {
		case <-fed:
			ended = true
		default:
		}
		switch err := d.console.update(d.header(&f, ended), liveview.Top(rows, f.rows)); {
		case errors.Is(err, syscall.EPIPE): // as in weir demo | head
			return errStop
		case err != nil:
			return fmt.Errorf("show the table: %w", err)
		}
		if err := sleep(w.ctx, max(interval, frameShare*time.Since(begin))); err != nil {
			return err
		}
	}
}

// frame is what is shown of the table at one time.
type frame struct {
	rows    []liveview.Row
	ratings int64 // in all rows
	example string
	samples []sample
}

// sample is how many ratings there were at some time.
type sample struct {
	at      time.Time
	ratings int64
}

// read reads the part of the table that is on this instance. When that cannot be
// read, as in a rebalance, the last rows stay.
func (f *frame) read(ctx context.Context, d *demo, now time.Time) {
	var rows []liveview.Row
	var n int64
	for e, err := range d.app.Read(d.table).Local().Range(ctx, weir.All[string]()) {
		if err != nil {
			return
		}
		rows = append(rows, liveview.Row{Movie: e.Key, Count: e.Value.Count, Average: e.Value.Average})
		n += e.Value.Count
	}
	if n < f.ratings {
		f.samples = nil // tasks have gone to another instance
	}
	f.rows, f.ratings = rows, n
	if f.example == "" && len(rows) > 0 {
		f.example = liveview.Top(1, rows)[0].Movie
	}
	f.samples = append(f.samples, sample{now, n})
	for len(f.samples) > 2 && now.Sub(f.samples[1].at) >= rateWindow {
		f.samples = f.samples[1:]
	}
}

// rate returns how many ratings per second were added lately.
func (f *frame) rate() int64 {
	if len(f.samples) < 2 {
		return 0
	}
	first, last := f.samples[0], f.samples[len(f.samples)-1]
	return int64(float64(last.ratings-first.ratings)/last.at.Sub(first.at).Seconds() + 0.5)
}

// header is what stands above the rows.
func (d *demo) header(f *frame, ended bool) []string {
	lines := []string{
		"weir demo: the running average of movie ratings, exactly once",
		fmt.Sprintf("%s of %s, %s/s", counted(f.ratings, "rating"), counted(int64(len(f.rows)), "movie"), grouped(f.rate())),
		fmt.Sprintf("topic %s, by movie, to topic %s; %s, state %s", ratingsTopic, averagesTopic, d.cluster.name, d.config.where()),
	}
	if s := d.app.State(); s != weir.Running {
		lines[1] += fmt.Sprintf(" (%v)", s)
	}
	if here, all := len(d.app.Position()[ratingsTopic]), int(d.cluster.partitions); here < all {
		lines = append(lines, fmt.Sprintf("%d of %d partitions are here; the others are with other instances or on their way", here, all))
	}
	if d.input != nil {
		sent, bad := d.feeder.sent()
		line := fmt.Sprintf("%s: %s read, %s", d.input.describe(), counted(sent, "rating"), badLines(bad))
		if ended {
			line += ", to its end"
		}
		lines = append(lines, line)
	}
	if d.server != nil {
		lines = append(lines, "ask it:  curl "+shellQuoted(d.server.URL()+"/stores/"+storeName+"/"+url.PathEscape(f.example)))
		if f.example == "" {
			lines[len(lines)-1] = "ask it:  curl " + d.server.URL() + "/stores"
		}
	}
	return append(lines, "Ctrl-C stops it")
}

// shellQuoted returns a URL so that it can be pasted into a shell.
func shellQuoted(u string) string {
	if strings.ContainsAny(u, "$&'()*!~;") {
		return "'" + strings.ReplaceAll(u, "'", "%27") + "'"
	}
	return u
}
