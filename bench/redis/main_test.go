package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestUsage(t *testing.T) {
	for _, tt := range []struct{ name, broker, args, want string }{
		{"no broker", "", "--parts=writes,count", "WEIR_KAFKA"},
		{"two brokers", "a:1,b:2", "--parts=start", "one broker"},
		{"unknown part", "a:1", "--parts=writes,reads", `"writes,reads"`},
		{"no part", "a:1", "--parts=", `""`},
		{"unknown flag", "a:1", "--fast", "-fast"},
		{"stray argument", "a:1", "--parts=writes now", `"now"`},
		{"fewer than no keys", "a:1", "--keys=-1", "negative"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("WEIR_KAFKA", tt.broker)
			var stdout, stderr bytes.Buffer
			err := run(t.Context(), strings.Fields(tt.args), &stdout, &stderr)
			if !errors.Is(err, errUsage) || !strings.Contains(stderr.String(), tt.want) {
				t.Errorf("error %v, printed %q; want wrong usage with %q", err, stderr.String(), tt.want)
			}
		})
	}
}
