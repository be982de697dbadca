package main

import (
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
)

// State in a Redis of this process, for people who have none.
func TestRedisEmbedded(t *testing.T) {
	t.Parallel()
	weir(t, strings.NewReader(udata), "demo", "--input", "-", "--exit", "--json", "--store", "redis-embedded").want(t, exitOK, averages)
}

// State in a Redis somewhere: that of topics which end with the run is removed,
// and so two runs do not meet.
func TestRedisOfARunThatKeepsNothing(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	for range 2 {
		weir(t, strings.NewReader(udata), "demo", "--input", "-", "--exit", "--json", "--store", "redis://"+server.Addr()+"/0?check=off").want(t, exitOK, averages)
		if keys := server.Keys(); len(keys) > 0 {
			t.Errorf("left behind in Redis: %q", keys)
		}
	}
	if server.CommandCount() == 0 {
		t.Error("the state was not in that Redis")
	}
}

// With a folder that is kept, a second run goes on with the state in Redis, also
// when Redis has lost it.
func TestRedisWithFolder(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	for _, lost := range []bool{false, true} {
		dir := t.TempDir()
		run := func(input string) result {
			return weir(t, strings.NewReader(input), "demo", "--input", "-", "--exit", "--json", "--dir", dir, "--store", "redis://"+server.Addr()+"/0?check=off")
		}
		run(udata).want(t, exitOK, averages)
		if len(server.Keys()) == 0 {
			t.Error("the state is not in that Redis")
		}
		if lost {
			server.FlushAll()
		}
		run(`{"movie_id":7,"rating":1}`).want(t, exitOK, `{"movie":"7","count":1,"sum":1,"average":1}`+"\n"+averages)
	}
}
