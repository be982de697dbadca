package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// TestMain lets this binary be the child "bare", as the program is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == bareKey {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		name, broker, args, want string
	}{
		{"no broker", "", "--only=bare", "WEIR_KAFKA"},
		{"two brokers", "a:1,b:2", "--only=bare", "one broker"},
		{"unknown side", "a:1", "--only=bare,rust", `"bare,rust"`},
		{"unknown flag", "a:1", "--fast", "-fast"},
		{"stray argument", "a:1", "--only=bare now", `"now"`},
		{"nothing to load", "a:1", "--only=bare --records=0", "must be positive"},
		{"interval below a millisecond", "a:1", "--only=bare --commit-interval=10us", "must be positive"},
		{"called without the script, java", "a:1", "--only=java", "bench/kafka-streams/run"},
		{"called without the script, weir", "a:1", "--only=weir", "bench/kafka-streams/run"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("WEIR_KAFKA", tt.broker)
			var stdout, stderr bytes.Buffer
			err := runMain(context.Background(), strings.Fields(tt.args), strings.NewReader(""), &stdout, &stderr)
			if !errors.Is(err, errUsage) || !strings.Contains(stderr.String(), tt.want) {
				t.Errorf("error %v, printed %q; want wrong usage with %q", err, stderr.String(), tt.want)
			}
		})
	}
}

func TestSidesThatTakePart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		only string
		bare bool
		want string
	}{
		{"", false, "java weir"},
		{"", true, "java weir bare"},
		{"weir", true, "weir"},
		{"bare,java", false, "java bare"},
	} {
		o := options{settings: settings{Only: tt.only, Bare: tt.bare}}
		sides, err := o.sides()
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, sd := range sides {
			keys = append(keys, sd.key)
		}
		if got := strings.Join(keys, " "); got != tt.want {
			t.Errorf("only %q, bare %v: %s, want %s", tt.only, tt.bare, got, tt.want)
		}
	}
}
