package weir_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"go.uber.org/goleak"
)

// afterExamples undoes what examples have started, which have no t.Cleanup.
var afterExamples []func() error

func TestMain(m *testing.M) {
	code := m.Run()
	for _, undo := range slices.Backward(afterExamples) {
		if err := undo(); err != nil {
			fmt.Println(err)
			code = 1
		}
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Println(err)
		code = 1
	}
	os.Exit(code)
}
