package ratings

import (
	"crypto/sha256"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

func TestGeneratorIsRepeatable(t *testing.T) {
	t.Parallel()
	sum := func(seed uint64) string {
		g, h := NewGenerator(seed), sha256.New()
		for range 10000 {
			r := g.Next(time.Time{})
			fmt.Fprintf(h, "%s %s %v\n", r.User, r.Movie, r.Stars)
		}
		return fmt.Sprintf("%x", h.Sum(nil)[:8])
	}
	for seed, want := range map[uint64]string{1: "30fcb2de16e80cec", 2: "e2d392d10b246844"} {
		if got := sum(seed); got != want {
			t.Errorf("seed %d gives %s, want %s", seed, got, want)
		}
	}
}

func TestGeneratorLooksReal(t *testing.T) {
	t.Parallel()
	type average struct {
		count int
		sum   float64
	}
	const n = 400_000
	at := time.Date(2024, 1, 2, 3, 4, 5, 0, time.UTC)
	g := NewGenerator(7)
	movies, users, stars := map[string]*average{}, map[string]int{}, map[float64]int{}
	var total float64
	for range n {
		r := g.Next(at)
		if r.Stars < 0.5 || r.Stars > 5 || r.Stars*2 != math.Trunc(r.Stars*2) || !r.Time.Equal(at) {
			t.Fatalf("rating %+v", r)
		}
		m := movies[r.Movie]
		if m == nil {
			m = &average{}
			movies[r.Movie] = m
		}
		m.count++
		m.sum += r.Stars
		total += r.Stars
		users[r.User]++
		stars[r.Stars]++
	}
	if len(movies) != GeneratedMovies || len(users) != GeneratedUsers || len(stars) != 10 {
		t.Errorf("%d movies, %d users, %d kinds of rating", len(movies), len(users), len(stars))
	}
	var counts []int
	var means []float64
	for _, m := range movies {
		counts = append(counts, m.count)
		means = append(means, m.sum/float64(m.count))
	}
	slices.Sort(counts)
	slices.Reverse(counts)
	slices.Sort(means)
	top := 0
	for _, c := range counts[:GeneratedMovies/10] {
		top += c
	}
	if share := float64(top) / n; share < 0.5 || share > 0.7 {
		t.Errorf("a tenth of the movies has %.2f of the ratings", share)
	}
	if counts[0] < 50*counts[len(counts)-1] {
		t.Errorf("%d ratings for the first, %d for the last", counts[0], counts[len(counts)-1])
	}
	if mean := total / n; mean < 3 || mean > 3.8 {
		t.Errorf("the mean is %.2f", mean)
	}
	if low, high := means[len(means)/10], means[len(means)*9/10]; high-low < 1 {
		t.Errorf("movies hardly differ: a tenth is below %.2f, a tenth above %.2f", low, high)
	}
}

// The same movie has the same quality whatever the seed.
func TestGeneratorSeedsAgreeOnMovies(t *testing.T) {
	t.Parallel()
	a, b := NewGenerator(1), NewGenerator(2)
	if !slices.Equal(a.movies.ids, b.movies.ids) || !slices.Equal(a.movies.bias, b.movies.bias) {
		t.Error("the movies differ between seeds")
	}
}

func BenchmarkGenerator(b *testing.B) {
	g := NewGenerator(1)
	b.ReportAllocs()
	for b.Loop() {
		g.Next(time.Time{})
	}
}
