package ratings

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"
)

const (
	// GeneratedMovies is how many movies a Generator rates. Their ids are the
	// numbers from 1.
	GeneratedMovies = 2000
	// GeneratedUsers is how many users a Generator has. Their ids are the
	// numbers from 1.
	GeneratedUsers = 10000
)

// A Generator makes an endless stream of ratings that looks like a real one: a
// few movies have most of the ratings and most movies have few (a Zipf-like
// law), some users rate far more than others, each movie has a quality and each
// user a mood, and a rating is 0.5 to 5 stars in halves.
//
// How popular and how good a movie is depends on its id alone, so that the
// averages of two runs agree; the seed chooses the stream. A seed gives the
// same ratings on every machine and with every version of Go: all arithmetic is
// on integers and the generator of random numbers is PCG-DXSM.
//
// It has no clock and no goroutine. One goroutine may use it at a time.
type Generator struct {
	src           *rand.PCG
	movies, users weighted
}

// A weighted is a set of people or movies of which some are chosen more often.
type weighted struct {
	ids  []string // by rank, the most frequent first
	bias []int64  // thousandths of a star to add
	sums []uint64 // running sums of the weights
}

// NewGenerator returns a Generator whose ratings are determined by seed.
func NewGenerator(seed uint64) *Generator {
	const catalogue = 0x7765_6972 // the same for every seed
	world := rand.NewPCG(catalogue, 0)
	g := &Generator{src: rand.NewPCG(seed, catalogue)}
	// With weights 1/(rank+10) a tenth of the movies gets over half of the
	// ratings; users differ less.
	g.movies = newWeighted(world, GeneratedMovies, 10)
	g.users = newWeighted(world, GeneratedUsers, 500)
	for i := range g.movies.bias {
		g.movies.bias[i] = 3400 + bell(world, 2, 800)
	}
	for i := range g.users.bias {
		g.users.bias[i] = bell(world, 2, 400)
	}
	return g
}

func newWeighted(world *rand.PCG, n int, offset uint64) weighted {
	w := weighted{ids: make([]string, n), bias: make([]int64, n), sums: make([]uint64, n)}
	var sum uint64
	for i := range n {
		w.ids[i] = strconv.Itoa(i + 1)
		sum += 1_000_000_000 / (uint64(i) + offset)
		w.sums[i] = sum
	}
	for i := n - 1; i > 0; i-- { // Fisher-Yates: the rank does not follow the id
		j := below(world, uint64(i)+1)
		w.ids[i], w.ids[j] = w.ids[j], w.ids[i]
	}
	return w
}

// Next returns the next rating, given at that time.
func (g *Generator) Next(at time.Time) Rating {
	user, movie := g.users.pick(g.src), g.movies.pick(g.src)
	milli := g.movies.bias[movie] + g.users.bias[user] + bell(g.src, 4, 700)
	halves := min(max((milli+250)/500, 1), 10)
	return Rating{
		User:  g.users.ids[user],
		Movie: g.movies.ids[movie],
		Stars: float64(halves) / 2,
		Time:  at,
	}
}

func (w weighted) pick(src *rand.PCG) int {
	r := below(src, w.sums[len(w.sums)-1])
	i, _ := slices.BinarySearch(w.sums, r+1) // the first sum above r
	return i
}

// below returns a number from 0 to n-1. The bias of this reduction is n/2^64.
func below(src *rand.PCG, n uint64) uint64 {
	hi, _ := bits.Mul64(src.Uint64(), n)
	return hi
}

// bell returns the sum of n uniform numbers from -spread to spread: with two of
// them a triangle around 0, with four nearly a normal distribution.
func bell(src *rand.PCG, n int, spread int64) int64 {
	var sum int64
	for range n {
		sum += int64(below(src, uint64(2*spread+1))) - spread
	}
	return sum
}
