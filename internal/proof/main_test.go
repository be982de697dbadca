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
	if config := os.Getenv(fenceEnv); config != "" {
		os.Exit(fenceMain(config))
	}
	goleak.VerifyTestMain(m)
}
