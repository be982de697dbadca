package proof

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(childEnv); config != "" {
		os.Exit(childMain(config))
	}
	goleak.VerifyTestMain(m)
}
