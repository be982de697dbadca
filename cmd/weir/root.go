package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// usageError is a command line that says nothing that can be done.
type usageError struct {
	err     error
	command string // whose help has the answer
}

func (e *usageError) Error() string { return e.err.Error() }

func (e *usageError) Unwrap() error { return e.err }

func newRoot(stdin io.Reader, stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "weir",
		Short: "Stateful stream processing on Kafka, exactly once",
		Long: `weir shows what Weir does: Kafka Streams' job done in Go.

Exit codes: 0 done, 1 failed, 2 a command line that makes no sense.`,
		Example: `  weir demo                          # a generated stream of movie ratings
  weir demo --input u.data --exit    # the averages of a file of ratings`,
		Args:          noSubcommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	// Before the commands are added: completion keeps what it finds here.
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return &usageError{err, cmd.CommandPath()} })
	root.AddCommand(newDemo(), newFence(), newVersion())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	usageErrors(root)
	return root
}

// noSubcommand refuses what is no command of the root.
func noSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q", args[0])
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += ": did you mean " + strings.Join(near, " or ") + "?"
	}
	return errors.New(text)
}

// usageErrors marks what the commands say about their arguments as errors of
// usage.
func usageErrors(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return &usageError{err, cmd.CommandPath()}
			}
			return nil
		}
	}
	for _, c := range cmd.Commands() {
		if !c.Runnable() { // it would show its help for any argument
			c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
		usageErrors(c)
	}
}

// execute runs a command line and prints its error, if there is one. It returns
// the exit code.
func execute(root *cobra.Command) int {
	err := root.Execute()
	if err == nil {
		return exitOK
	}
	// Errors of the library begin with its name, which is that of the program.
	fmt.Fprintf(root.ErrOrStderr(), "weir: %s\n", strings.TrimPrefix(err.Error(), "weir: "))
	var usage *usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(root.ErrOrStderr(), "Run '%s --help' for usage.\n", usage.command)
		return exitUsage
	}
	return exitFailure
}
